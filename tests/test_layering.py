"""The arrows between the parts of grn, and what pure files may touch, read from their imports."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"

# Pure: no clock, randomness, environment, file, socket, process, thread, GPU or log. A folder's
# `__init__` runs before each of its files, so where one of those is pure it has to be as well.
PURE_PARTS = {"errors", "wire", "model"}
PURE_FILES = {  # a name without a dot also stands for a subpackage
    "protocol": "__init__ lease lease_messages negotiator_rows queue_rows rows snapshot",
    "negotiator": "__init__ actions events endings scheduler engine engine_view schedule learn "
    "queries",
    "queue": "__init__ events engine jobs "
    "sites.__init__ sites.leases.__init__ sites.leases.choice sites.leases.remote_lease "
    "sites.pilots.slurm_jobs sites.teaching",
    "simulate": "__init__ workload schedulers replay policies",
    "group": "__init__ task roles call_table",
    "sweep": "__init__ grid space condition values template",
    "batch": "__init__ file",
    "cli": "__init__ output.__init__ output.render output.style output.table output.job_text "
    "output.ps_text output.html output.metrics report.__init__ report.usage "
    "report.replay_charts "
    "top.__init__ top.rows top.board top.draw top.state top.screen top.detail",
    "proc": "__init__ tree",
    "gpus": "__init__ probe",
    "compat": "__init__ tasks.__init__ tasks.config",
}
PURE_STDLIB = (
    "__future__ ast bisect collections collections.abc copy dataclasses enum functools hashlib "
    "heapq html itertools json math operator posixpath re shlex statistics struct textwrap types "
    "typing unicodedata fnmatch difflib"
)
STRUCTS = {"msgspec", "msgspec.structs"}  # values that cost little to make
PURE_EXCEPT = {
    "grn.model.gpu": STRUCTS,  # of the daemons alone: clients have no msgspec
    "grn.model.job": STRUCTS,
    "grn.model.windows": {"datetime"},  # arithmetic on given times: the present is an argument
    "grn.model.record": {"typing_extensions"},  # for mypy alone
}
IMPURE_CALLS = {"open", "input", "print", "breakpoint", "eval", "exec", "__import__"}

# Who may import whom. "grn" is the package itself, with the public names; "pure negotiator" stands
# for the pure files of that folder. A part may always import itself.
ARROWS = {
    "grn": {"client", "group", "sweep", "errors"},
    "errors": set(),
    "paths": set(),
    "model": {"errors"},
    "wire": {"model", "errors"},
    "option_file": {"errors"},
    "settings": {"option_file", "errors", "model", "paths"},
    "sites": {"option_file", "errors", "model", "paths"},
    "pure protocol": {"errors", "wire", "model"},
    "protocol": {"pure protocol", "errors", "wire", "model"},
    "proc": {"errors", "model", "paths"},
    "daemon": {"protocol", "proc", "wire", "model", "errors", "paths"},
    "gpus": {"model", "errors", "proc"},
    "pure negotiator": {"pure protocol", "model", "errors"},
    "negotiator": {
        "pure negotiator",
        "gpus",
        "daemon",
        "proc",
        "pure protocol",
        "protocol",
        "wire",
        "model",
        "settings",
        "paths",
        "errors",
    },
    "pure queue": {"model", "errors"},
    "queue": {
        "pure queue",
        "client",
        "daemon",
        "proc",
        "pure protocol",
        "protocol",
        "wire",
        "model",
        "settings",
        "paths",
        "sites",
        "errors",
    },
    "client": {
        "pure protocol",
        "wire",
        "model",
        "settings",
        "paths",
        "proc",
        "errors",
    },
    "pure group": {"model"},
    "fixed_slots": {"pure group", "client", "pure protocol", "wire", "paths", "proc", "errors"},
    "group": {
        "pure group",
        "fixed_slots",
        "client",
        "pure protocol",
        "wire",
        "model",
        "proc",
        "errors",
    },
    "pure sweep": {"pure group", "model", "errors"},
    "sweep": {
        "pure sweep",
        "option_file",
        "pure group",
        "group",
        "client",
        "wire",
        "model",
        "settings",
        "sites",
        "paths",
        "proc",
        "errors",
    },
    "batch": {"pure group", "group", "model", "errors"},
    "simulate": {"pure negotiator", "model", "errors"},
    "compat": {
        "grn",
        "client",
        "batch",
        "pure group",
        "pure sweep",
        "sweep",
        "fixed_slots",
        "proc",
        "model",
        "errors",
    },
    "gpu_task_scheduler": {"compat"},
    "integrations": {"grn", "client", "pure group", "group", "errors"},
    "hydra_plugins": {"integrations"},
    "cli": {
        "grn",
        "option_file",
        "simulate",
        "client",
        "pure group",
        "pure protocol",
        "pure sweep",
        "sweep",
        "batch",
        "wire",
        "model",
        "settings",
        "sites",
        "paths",
        "proc",
        "errors",
    },
    "testing": {"client", "errors"},
    "__main__": {"cli"},
    "glb": {"grn", "client", "errors"},
}
THIRD_PARTY = {
    "click": {"cli"},
    "cloudpickle": {"grn.client.remote_call"},
    "rich": {"cli"},
    "textual": {"grn.cli.top.app"},
    "starlette": {"grn.cli.web.app"},
    "uvicorn": {"grn.cli.web.command"},
    "msgspec": {"negotiator", "queue", "settings", "protocol", "daemon", "gpus"},
    "pynvml": {"grn.gpus.nvml_helper"},
    "tomli": {"option_file"},
    "yaml": {"option_file"},
    "ray": {"grn.queue.sites.pilots.ray"},
    "matplotlib": {"grn.cli.report.sweep_png"},
    "pandas": {"grn.sweep.results"},
    "optuna": {"grn.sweep.sampler"},
    "hydra": {"hydra_plugins", "grn.integrations.hydra"},
    "omegaconf": {"hydra_plugins", "grn.integrations.hydra"},
    "joblib": {"grn.integrations.joblib"},
    "pytest": {"grn.integrations.pytest_plugin"},
}
STDLIB = sys.stdlib_module_names | {"tomllib"}  # which 3.10 does not have


def part_of(module: str) -> str:
    """Name the part a module belongs to: `grn.negotiator.engine` → `pure negotiator`."""
    pieces = module.split(".")
    part = pieces[1] if len(pieces) > 1 and pieces[0] == "grn" else pieces[0]
    has_both = part in ("negotiator", "protocol", "queue", "group", "sweep")
    return f"pure {part}" if has_both and is_pure(module) else part


def is_pure(module: str) -> bool:
    _, part, name = (*module.split(".", 2), "__init__", "__init__")[:3]
    pure = PURE_FILES.get(part, "").split()
    is_package = f"{name}.__init__" in pure
    return part in PURE_PARTS or name in pure or name.split(".")[0] in pure or is_package


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """List what a file imports anywhere in it, down to the module where the name is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner != "grn.__version__":  # a literal: everybody may know it
                    yield inner if inner in known else base
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant))


def faults(module: str, source: str, known: set[str]) -> list[str]:
    """Say what is wrong with the imports of one file, and with the calls of a pure one."""
    part, found = part_of(module), []
    if part not in ARROWS:
        return [f"no rule says what {module} may import: add its part to ARROWS"]
    tree = ast.parse(source)
    for target in imported(tree, known):
        top = target.split(".")[0]
        if top in ("grn", "glb", "gpu_task_scheduler"):
            if part_of(target) not in ARROWS[part] | {part}:
                found.append(f"{module} ({part}) may not import {target} ({part_of(target)})")
            elif is_pure(module) and not is_pure(target):
                found.append(f"{module} is pure and imports {target}, which is not")
        elif target.startswith("."):
            found.append(f"{module} imports {target}: write it in full")
        elif is_pure(module):
            values = STRUCTS if part in ("pure negotiator", "pure queue", "gpus") else set()
            if target not in {*PURE_STDLIB.split(), *values, *PURE_EXCEPT.get(module, ())}:
                found.append(f"{module} is pure and imports {target}")
        elif top not in STDLIB and not {part, module} & THIRD_PARTY.get(top, set()):
            found.append(f"{module} ({part}) may not import {target}, a third-party package")
    if is_pure(module):
        calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        found += [f"{module} is pure and calls {name}()" for name in sorted(names & IMPURE_CALLS)]
    return found


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(path): path for path in sorted(SRC.rglob("*.py"))}


def test_every_file_imports_only_what_its_part_may() -> None:
    known = set(FILES)
    assert [
        one for name, path in FILES.items() for one in faults(name, path.read_text(), known)
    ] == []


# A class and its wire form may share a name; `tests/protocol/test_lease.py` compares these two.
WIRE_FORMS = {"LeaseRequest": {"grn.protocol.lease_messages", "grn.protocol.negotiator_requests"}}


def doubled_classes(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return the class names that several files define, with the modules of those files."""
    owners: dict[str, set[str]] = {}
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                owners.setdefault(node.name, set()).add(module)
    return {name: modules for name, modules in owners.items() if len(modules) > 1}


def test_no_class_name_occurs_twice() -> None:
    doubled = doubled_classes({name: path.read_text() for name, path in FILES.items()})
    assert doubled == (WIRE_FORMS)


def test_a_class_name_in_two_files_is_found() -> None:
    two = {"a": "class Row: ...\nclass One: ...", "b": "def f():\n    class Row: ..."}
    assert doubled_classes(two) == {"Row": {"a", "b"}}


# Only `proc` reads /proc, spawns, signals and watches processes: words that no other file has.
PROCESS_WORDS = re.compile(
    r"/proc/|\bos\.(kill|killpg|posix_spawn\w*|fork|pidfd_open|waitid)\b|subprocess\.Popen\("
    r"|pidfd_send_signal|PR_SET_|\bprctl\b|SO_PEERCRED|SO_PEERPIDFD"
)


def test_only_proc_touches_processes() -> None:
    others = [name for name in FILES if name.startswith("grn") and not name.startswith("grn.proc")]
    touching = {name for name in others if PROCESS_WORDS.search(FILES[name].read_text())}
    assert touching == set()


@pytest.mark.parametrize(
    "text",
    ['open(f"/proc/{pid}/stat")', "os.kill(1, 9)", "os.fork()", "subprocess.Popen([])",
     "os.pidfd_open(1)", "os.posix_spawnp(x)", "libc.prctl(36)", "os.waitid(os.P_ALL, 0, 4)"],
)  # fmt: skip
def test_a_file_that_touches_processes_is_caught(text: str) -> None:
    assert PROCESS_WORDS.search(text)


def test_no_part_is_left_out() -> None:
    assert {"grn", "errors", "model", "negotiator", "client"} <= {part_of(name) for name in FILES}


# The check itself: made-up files, each with one fault that must be seen.

KNOWN = {
    *("grn", "grn.errors", "grn.paths", "grn.wire", "grn.settings", "grn.model", "grn.model.job"),
    *(
        "grn.negotiator",
        "grn.negotiator.schedule.placement",
        "grn.negotiator.loop",
        "grn.negotiator.storage.store",
    ),
    *("grn.client", "grn.client.leasing.lease", "grn.gpus", "grn.gpus.probe", "grn.gpus.nvml"),
    *(
        "grn.protocol",
        "grn.protocol.schemas",
        "grn.cli",
        "grn.cli.app",
        "grn.cli.output.render",
        "glb",
    ),
}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("grn.client.leasing.lease", "from grn.negotiator.schedule.placement import Place"),
        ("grn.client.leasing.lease", "from grn.negotiator import loop"),
        ("grn.client.leasing.lease", "import grn.gpus.nvml"),
        ("grn.client.leasing.lease", "from grn.protocol import schemas"),
        ("grn.client.leasing.lease", "def f():\n    from grn.negotiator import engine"),
        ("grn.client.leasing.lease", "if TYPE_CHECKING:\n    import grn.negotiator"),
        ("grn.client.leasing.lease", "importlib.import_module('grn.negotiator.loop')"),
        ("grn.cli.app", "from grn.negotiator import loop"),
        ("grn.cli.app", "from grn.gpus import nvml"),
        ("grn.model.job", "from grn import wire"),
        ("grn.model.job", "from grn.negotiator.schedule.placement import Place"),
        ("grn.wire", "from grn.settings import Settings"),
        ("grn.gpus.nvml", "from grn.settings import Settings"),
        ("grn.gpus.nvml", "from grn.negotiator.events import Sampled"),
        ("grn.negotiator.schedule.placement", "from grn.gpus.probe import parse"),
        ("grn.negotiator.schedule.placement", "from grn import wire"),
        ("grn.negotiator.loop", "from grn.client.leasing.lease import acquire"),
        ("grn.negotiator.loop", "from grn import job"),
        ("grn.settings", "from grn.wire import encode"),
        ("grn.paths", "from grn.errors import GrnError"),
        ("grn.errors", "from grn.model.job import Outcome"),
        ("grn", "from grn.cli.app import main"),
        ("glb", "from grn.negotiator.engine import Engine"),
    ],
)
def test_a_wrong_arrow_is_caught(module: str, source: str) -> None:
    assert [fault for fault in faults(module, source, KNOWN) if "may not import" in fault]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("grn.negotiator.schedule.placement", "import time"),
        ("grn.negotiator.engine", "from logging import getLogger"),
        ("grn.negotiator.learn.memory.profiling", "import os.path"),
        ("grn.negotiator.schedule.turns.order", "def f():\n    import random"),
        ("grn.negotiator.schedule.placement", "from grn.negotiator import loop"),
        ("grn.negotiator", "from grn.negotiator.storage.store import Store"),
        ("grn.negotiator.events", "import msgspec.json"),
        ("grn.negotiator.queries.views", "import importlib"),
        ("grn.model.job", "from datetime import datetime"),
        ("grn.model.job", "open('x')"),
        ("grn.wire", "print('sent')"),
        ("grn.cli.output.render", "from grn.cli.app import main"),
        ("grn.cli.output.render", "from rich.table import Table"),
        ("grn.gpus.probe", "import os"),
    ],
)
def test_a_pure_file_that_touches_the_machine_is_caught(module: str, source: str) -> None:
    assert faults(module, source, KNOWN)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("grn.client.leasing.lease", "import msgspec"),
        ("grn.client.leasing.lease", "import torch"),
        ("grn.negotiator.server", "from rich.console import Console"),
        ("grn.cli.app", "import msgspec"),
        ("grn.gpus.nvml", "import pynvml"),
        ("glb", "import click"),
        ("grn.magic.wand", "import re"),  # a part nobody made a rule for
        ("grn.client.leasing.lease", "from .decorator import job"),
        ("grn.client.leasing.lease", "from . import decorator"),
    ],
)
def test_other_faults_are_caught(module: str, source: str) -> None:
    assert faults(module, source, KNOWN)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("grn", "from grn.client import lease"),
        ("grn.wire", "import json, struct\nfrom grn.errors import ProtocolError"),
        ("grn.model.job", "from grn.model.gpu import Gpu\nfrom collections.abc import Mapping"),
        (
            "grn.negotiator.schedule.placement",
            "from grn.negotiator.schedule.room.ledger import Ledger",
        ),
        (
            "grn.negotiator.schedule.placement",
            "from grn.negotiator.schedule.room import ledger\nfrom grn.model import job",
        ),
        (
            "grn.negotiator.loop",
            "import os, asyncio, msgspec\nfrom grn.negotiator.schedule import placement as place",
        ),
        ("grn.negotiator.__main__", "from grn import settings, paths as places, __version__"),
        ("grn.settings", "import os, msgspec\nfrom grn import paths as places"),
        ("grn.option_file", "import tomllib, tomli, yaml"),
        (
            "grn.client.leasing.lease",
            "import json, os, socket\nfrom grn import paths as places, wire",
        ),
        ("grn.cli.app", "import click\nfrom rich.console import Console"),
        ("grn.cli.app", "from grn import __version__\nfrom grn.cli.output import render"),
        ("grn.cli.output.render", "from grn.model.job import Outcome"),
        ("grn.gpus.nvml_helper", "import pynvml, sys"),
        ("glb", "from grn import job, lease"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert faults(module, source, KNOWN | {"grn.negotiator.schedule.room.ledger"}) == []


def test_an_engine_is_changed_by_events_and_read_through_its_view() -> None:
    used = {
        (path.stem, node.attr)
        for path in (SRC / "grn/negotiator").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and getattr(node.value, "attr", getattr(node.value, "id", "")) in ("engine", "_engine")
    }
    assert used == {("loop", "handle"), ("loop", "view")}
