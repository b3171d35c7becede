"""Builds the stand-in driver library and writes the state it acts out.

The format of the state is described at the top of nvml_standin.c; this file only spells its lines.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

GiB = 1 << 30
MiB = 1 << 20
HERE = Path(__file__).resolve().parent
FAKE_TORCH = HERE / "fake_torch"


class NoCompiler(Exception):
    """The machine has no C compiler."""


def compile_library(folder: Path, *flags: str) -> Path:
    """Compile a variant of the library (`NO_V3`, `LONG_V3`, …) and return its folder."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompiler("the stand-in for libnvidia-ml.so.1 needs gcc")
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"made.{os.getpid()}"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-std=gnu11"]
    command += [f"-D{flag}" for flag in flags]
    command += ["-o", str(made), str(HERE / "nvml_standin.c")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    made.rename(folder / "libnvidia-ml.so.1")
    return folder


@dataclass(frozen=True, slots=True)
class StandIn:
    """One pretended machine: a library, and the state file it reads at each call."""

    library: Path
    state: Path

    @property
    def allocations(self) -> Path:
        """Return the folder where processes say what they have allocated."""
        return self.state.with_name(self.state.name + ".d")

    @property
    def sessions(self) -> int:
        """Return how often a process has opened the driver, or tried to."""
        dots = self.state.with_name(self.state.name + ".sessions")
        return dots.stat().st_size if dots.exists() else 0

    def write(self, *lines: str) -> None:
        """Replace the state, in one step."""
        self.allocations.mkdir(exist_ok=True)
        made = self.state.with_name(self.state.name + ".new")
        made.write_text("".join(line + "\n" for line in lines))
        made.rename(self.state)

    def allocate(self, uuid: str, pid: int, used_bytes: int) -> None:
        """Say what a process has allocated, as the fake torch does for its own."""
        made = self.allocations / f".{uuid}.{pid}"
        made.write_text(str(used_bytes))
        made.rename(self.allocations / f"{uuid}.{pid}")

    def env(self, *, with_torch: bool = False) -> dict[str, str]:
        """Return the variables that make a process see this machine."""
        env = {"LD_LIBRARY_PATH": str(self.library), "GRN_STANDIN_NVML": str(self.state)}
        if with_torch:
            paths = (str(FAKE_TORCH), os.environ.get("PYTHONPATH", ""))
            env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return env


def gpu(uuid: str, **facts: object) -> str:
    """Spell a GPU by facts: total, base, util, temp, power, clock, mode, mig, health, name, ..."""
    return f"gpu {uuid} {_facts(facts)}"


def mig(parent: str, place: int, uuid: str, **facts: object) -> str:
    """Spell a MIG slice of a GPU."""
    return f"mig {parent} {place} {uuid} {_facts(facts)}"


def process(
    uuid: str, pid: int, used_bytes: int | None, kind: str = "compute", *, is_sticky: bool = False
) -> str:
    """Spell a process in one of the lists of a GPU; a sticky one may be dead or impossible."""
    used = "unknown" if used_bytes is None else str(used_bytes)
    return f"process {uuid} {pid} {used} {kind} {'sticky' if is_sticky else ''}"


def busy(uuid: str, pid: int, percent: int, stamp: int = 1) -> str:
    """Spell the load of a process, and when the driver has measured it, in microseconds."""
    return f"busy {uuid} {pid} {percent} {stamp}"


def link(one: str, other: str, lanes: int | str = 0, level: int | str = 50) -> str:
    """Spell how two GPUs are joined: lanes of NVLink or `switched`, and where PCIe meets."""
    return f"link {one} {other} {lanes} {level}"


def hang(function: str, uuid: str = "") -> str:
    """Spell that a function does not return."""
    return f"hang {function} {uuid}"


def crash(function: str, uuid: str = "") -> str:
    """Spell that a function ends the process that calls it."""
    return f"crash {function} {uuid}"


def null(function: str, uuid: str = "") -> str:
    """Spell that a function gives a handle that points nowhere."""
    return f"null {function} {uuid}"


def fail(function: str, code: int, uuid: str = "") -> str:
    """Spell that a function gives an error."""
    return f"fail {function} {code} {uuid}"


def _facts(facts: dict[str, object]) -> str:
    facts = {"total": 8 * GiB, **facts}
    name = facts.pop("name", None)  # it takes the rest of the line
    words = [f"{key}={value}" for key, value in facts.items()]
    return " ".join([*words, *([f"name={name}"] if name is not None else [])])
