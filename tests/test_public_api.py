"""What `import grn` gives, and what it costs: no clock, only the modules it brings in."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import glb
import grn

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = {
    "CallHandle",
    "DaemonNotRunning",
    "Executor",
    "GrnError",
    "JobFailed",
    "JobHandle",
    "NeverFits",
    "Sweep",
    "__version__",
    "gpus",
    "job",
    "jobs",
    "lease",
    "profiles",
    "should_stop",
    "submit",
}
MAX_MODULES = 15

# What site would have loaded is loaded before counting; json only after it.
FRESH = """
import sys, site
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
{statement}
added = sorted(set(sys.modules) - before)
import json
print(json.dumps(added))
"""


def modules_added_by(statement: str) -> list[str]:
    """Run a statement where only the standard library and src/ can be imported."""
    script = FRESH.format(statement=statement)
    # Without site no .pth file runs and site-packages is not there: a third-party import fails.
    command = [sys.executable, "-I", "-S", "-c", script, str(ROOT / "src")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    added: list[str] = json.loads(done.stdout)
    return added


def test_the_public_names_are_these() -> None:
    assert set(grn.__all__) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(grn, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = grn.no_such_name


def test_the_old_import_name_gives_the_same_things() -> None:
    assert glb.job is grn.job


def test_importing_grn_is_cheap_and_needs_the_standard_library_only() -> None:
    added = modules_added_by("import grn")

    assert "grn" in added
    assert len(added) <= MAX_MODULES, added
    tops = {name.split(".")[0] for name in added}
    assert tops <= sys.stdlib_module_names | {"grn"}


def test_using_the_public_names_needs_the_standard_library_only() -> None:
    added = modules_added_by("import grn\nfor name in grn.__all__: getattr(grn, name)")

    assert not [name for name in added if name.startswith(("grn.negotiator", "grn.cli."))]


def test_the_count_of_modules_would_notice_a_heavy_import() -> None:
    assert len(modules_added_by("import asyncio")) > MAX_MODULES


def test_all_commands_are_entry_points() -> None:
    """Installers start these from any path; a script in the wheel fails where that has a blank."""
    commands = {one.name for one in metadata.entry_points(group="console_scripts")}
    assert {"grn", "grn-start", "grn-run"} <= commands
