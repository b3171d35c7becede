"""The arrows between the parts of grn, and what pure files may touch, read from their imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"

# Pure: no clock, randomness, environment, file, socket, process, thread, GPU or log. A folder's
# `__init__` runs before each of its files, so where one of those is pure it has to be as well.
PURE_PARTS = {"errors", "wire", "model"}
PURE_FILES = {
    "negotiator": "__init__ events engine order place ledger learn load arguments shelf memory "
    "models times links usage shares waitlist lines rules holdings keep grant runs refuse report "
    "explain history picture pages quota overlap pairs by_arguments change fit known margin "
    "blame growth room returning",
    "queue": "__init__ events engine lifecycle line roll asks finish",
    "simulate": "__init__ workload bound schedulers replay policies show",
    "sweep": "__init__ task grid script space condition names nested template tries",
    "front": "__init__ render table job_text account metrics board draw view screen",
    "gpus": "__init__ visible",
    "compat": "__init__ tasks tasks.names tasks.config",
}
PURE_STDLIB = (
    "__future__ ast bisect collections collections.abc copy dataclasses enum functools hashlib "
    "heapq itertools json math operator posixpath re shlex statistics struct textwrap typing"
)
IMPURE_CALLS = {"open", "input", "print", "breakpoint", "eval", "exec", "__import__"}

# Who may import whom. "grn" is the package itself, with the public names; "pure negotiator" stands
# for the pure files of that folder. A part may always import itself.
ARROWS = {
    "grn": {"client", "sweep", "errors"},
    "errors": set(),
    "places": set(),
    "processes": set(),
    "services": {"places", "processes"},
    "startup": set(),
    "model": {"errors"},
    "wire": {"model", "errors"},
    "settings": {"errors", "model", "places"},
    "database": set(),
    "ground": {"errors", "places"},
    "daemon_log": set(),
    "schemas": {"errors", "wire"},
    "talk": {"schemas", "wire", "model", "errors"},
    "gpus": {"model", "startup", "errors"},
    "pure negotiator": {"model", "errors"},
    "negotiator": {
        "pure negotiator",
        "gpus",
        "wire",
        "model",
        "settings",
        "places",
        "database",
        "ground",
        "daemon_log",
        "schemas",
        "talk",
        "errors",
    },
    "pure queue": {"model", "errors"},
    "queue": {
        "pure queue",
        "client",
        "processes",
        "services",
        "startup",
        "wire",
        "model",
        "settings",
        "places",
        "database",
        "ground",
        "daemon_log",
        "schemas",
        "talk",
        "errors",
    },
    "client": {"wire", "model", "settings", "places", "processes", "startup", "errors"},
    "pure sweep": {"model", "errors"},
    "sweep": {"pure sweep", "client", "wire", "model", "places", "processes", "services", "errors"},
    "simulate": {"pure negotiator", "model", "errors"},
    "compat": {"grn", "client", "pure sweep", "sweep", "model", "errors"},
    "gpu_task_scheduler": {"compat"},
    "integrations": {"grn", "client", "sweep", "model", "errors"},
    "hydra_plugins": {"integrations"},
    "front": {
        "grn",
        "simulate",
        "client",
        "pure sweep",
        "sweep",
        "wire",
        "model",
        "settings",
        "places",
        "processes",
        "startup",
        "errors",
    },
    "__main__": {"front"},
    "glb": {"grn", "client", "errors"},
}
THIRD_PARTY = {
    "click": {"front"},
    "cloudpickle": {"grn.client.call", "grn.compat.tasks.sending", "grn.integrations.worker"},
    "rich": {"front"},
    "textual": {"grn.front.top"},
    "starlette": {"grn.front.web.app"},
    "uvicorn": {"grn.front.web.command"},
    "msgspec": {"negotiator", "queue", "settings", "schemas", "talk"},
    "pynvml": {"grn.gpus.nvml_helper"},
    "tomli": {"settings", "grn.sweep.files"},
    "yaml": {"grn.sweep.files"},
    "matplotlib": {"grn.sweep.plot"},
    "pandas": {"grn.sweep.results"},
    "optuna": {"grn.sweep.sampler"},
    "hydra": {"hydra_plugins", "grn.integrations.hydra"},
    "omegaconf": {"hydra_plugins", "grn.integrations.hydra"},
    "joblib": {"grn.integrations.joblib"},
    "pytest": {"grn.integrations.pytest_plugin"},
}
STDLIB = sys.stdlib_module_names | {"tomllib"}  # which 3.10 does not have


def part_of(module: str) -> str:
    """Name the part a module belongs to: `grn.negotiator.place` → `pure negotiator`."""
    pieces = module.split(".")
    part = pieces[1] if len(pieces) > 1 and pieces[0] == "grn" else pieces[0]
    return f"pure {part}" if part in ("negotiator", "queue", "sweep") and is_pure(module) else part


def is_pure(module: str) -> bool:
    _, part, name = (*module.split(".", 2), "__init__", "__init__")[:3]
    return part in PURE_PARTS or name in PURE_FILES.get(part, "").split()


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
            if target not in PURE_STDLIB.split():
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


@pytest.mark.parametrize("module", FILES)
def test_a_file_imports_only_what_its_part_may(module: str) -> None:
    assert faults(module, FILES[module].read_text(), set(FILES)) == []


def test_no_part_is_left_out() -> None:
    assert {"grn", "errors", "model", "negotiator", "client"} <= {part_of(name) for name in FILES}


# The check itself: made-up files, each with one fault that must be seen.

KNOWN = {
    *("grn", "grn.errors", "grn.places", "grn.wire", "grn.settings", "grn.model", "grn.model.job"),
    *("grn.negotiator", "grn.negotiator.place", "grn.negotiator.loop", "grn.negotiator.store"),
    *("grn.client", "grn.client.lease", "grn.gpus", "grn.gpus.visible", "grn.gpus.nvml"),
    *("grn.front", "grn.front.cli", "grn.front.render", "glb"),
}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("grn.client.lease", "from grn.negotiator.place import Place"),
        ("grn.client.lease", "from grn.negotiator import loop"),
        ("grn.client.lease", "import grn.gpus.nvml"),
        ("grn.client.lease", "def f():\n    from grn.negotiator import engine"),
        ("grn.client.lease", "if TYPE_CHECKING:\n    import grn.negotiator"),
        ("grn.client.lease", "importlib.import_module('grn.negotiator.loop')"),
        ("grn.front.cli", "from grn.negotiator import loop"),
        ("grn.front.cli", "from grn.gpus import nvml"),
        ("grn.model.job", "from grn import wire"),
        ("grn.model.job", "from grn.negotiator.place import Place"),
        ("grn.wire", "from grn.settings import Settings"),
        ("grn.gpus.nvml", "from grn.settings import Settings"),
        ("grn.gpus.nvml", "from grn.negotiator.events import Sampled"),
        ("grn.negotiator.place", "from grn.gpus.visible import parse"),
        ("grn.negotiator.place", "from grn import wire"),
        ("grn.negotiator.loop", "from grn.client.lease import acquire"),
        ("grn.negotiator.loop", "from grn import job"),
        ("grn.settings", "from grn.wire import encode"),
        ("grn.places", "from grn.errors import GrnError"),
        ("grn.errors", "from grn.model.job import Outcome"),
        ("grn", "from grn.front.cli import main"),
        ("glb", "from grn.negotiator.engine import Engine"),
    ],
)
def test_a_wrong_arrow_is_caught(module: str, source: str) -> None:
    assert [fault for fault in faults(module, source, KNOWN) if "may not import" in fault]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("grn.negotiator.place", "import time"),
        ("grn.negotiator.engine", "from logging import getLogger"),
        ("grn.negotiator.learn", "import os.path"),
        ("grn.negotiator.order", "def f():\n    import random"),
        ("grn.negotiator.place", "from grn.negotiator import loop"),
        ("grn.negotiator", "from grn.negotiator.store import Store"),
        ("grn.negotiator.events", "import msgspec"),
        ("grn.negotiator.explain", "import importlib"),
        ("grn.model.job", "from datetime import datetime"),
        ("grn.model.job", "open('x')"),
        ("grn.wire", "print('sent')"),
        ("grn.front.render", "from grn.front.cli import main"),
        ("grn.front.render", "from rich.table import Table"),
        ("grn.gpus.visible", "import os"),
    ],
)
def test_a_pure_file_that_touches_the_machine_is_caught(module: str, source: str) -> None:
    assert faults(module, source, KNOWN)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("grn.client.lease", "import msgspec"),
        ("grn.client.lease", "import torch"),
        ("grn.negotiator.server", "from rich.console import Console"),
        ("grn.front.cli", "import msgspec"),
        ("grn.gpus.nvml", "import pynvml"),
        ("glb", "import click"),
        ("grn.magic.wand", "import re"),  # a part nobody made a rule for
        ("grn.client.lease", "from .decorator import job"),
        ("grn.client.lease", "from . import decorator"),
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
        ("grn.negotiator.place", "from grn.negotiator.ledger import Ledger"),
        ("grn.negotiator.place", "from grn.negotiator import ledger\nfrom grn.model import job"),
        ("grn.negotiator.loop", "import os, asyncio, msgspec\nfrom grn.negotiator import place"),
        ("grn.negotiator.__main__", "from grn import settings, places, __version__"),
        ("grn.settings", "import os, tomllib, tomli, msgspec\nfrom grn import places"),
        ("grn.client.lease", "import json, os, socket\nfrom grn import places, wire"),
        ("grn.front.cli", "import click\nfrom rich.console import Console"),
        ("grn.front.cli", "from grn import __version__\nfrom grn.front import render"),
        ("grn.front.render", "from grn.model.job import Outcome"),
        ("grn.gpus.nvml_helper", "import pynvml, sys"),
        ("glb", "from grn import job, lease"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert faults(module, source, KNOWN | {"grn.negotiator.ledger"}) == []
