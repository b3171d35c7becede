"""The stand-in machine as a program on it sees it: its GPUs, what is free, and what we hold."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


class OutOfMemoryError(RuntimeError):
    """The GPU has not that much left."""


# As the name stands in tracebacks.
OutOfMemoryError.__module__ = "torch"


@dataclass
class Machine:
    """The state file and the folder of allocations, read once."""

    state: Path
    totals: dict[str, int] = field(default_factory=dict)  # in the order of the driver
    slices: dict[str, list[str]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    _taken: dict[str, int] = field(default_factory=dict)
    _seen: set[tuple[str, int]] = field(default_factory=set)

    def visible(self) -> tuple[str, ...]:
        """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, by CUDA's rules."""
        cards = [uuid for uuid in self.totals if not uuid.startswith("MIG-")]
        cards = [uuid for uuid in cards if uuid not in self.lost]  # CUDA does not count those
        value = os.environ.get("CUDA_VISIBLE_DEVICES")
        if value is None:
            return tuple(self._usable(uuid) for uuid in cards)
        chosen: list[str] = []
        for name in value.split(","):
            found = self._find(name.strip(), cards)
            if found is None:
                break  # the first wrong entry ends the list
            chosen.append(self._usable(found))
        return tuple(chosen) if len(set(chosen)) == len(chosen) else ()

    def free_bytes(self, uuid: str) -> int:
        """Return what is left on a GPU."""
        return self.totals[uuid] - self._taken.get(uuid, 0)

    def hold(self, uuid: str, held_bytes: int) -> None:
        """Say how much this process has on a GPU."""
        folder = _folder(self.state)
        path = folder / f"{uuid}.{os.getpid()}"
        if not path.exists():
            atexit.register(_let_go, path, os.getpid())
        made = folder / f".{path.name}"
        made.write_text(f"{held_bytes} {_started_ticks(os.getpid()) or 0}")
        made.rename(path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[Machine]:
        """Keep other processes from allocating; gives the machine as it is then."""
        with open(_folder(self.state) / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield read_machine()

    def _find(self, name: str, cards: list[str]) -> str | None:
        if name.isdecimal():
            return cards[int(name)] if int(name) < len(cards) else None
        found = [
            uuid for uuid in self.totals if name[:4] in ("GPU-", "MIG-") and uuid.startswith(name)
        ]
        return found[0] if len(found) == 1 else None

    def _usable(self, uuid: str) -> str:
        """A card that is split stands for its first slice."""
        return self.slices[uuid][0] if uuid in self.slices else uuid

    def read_line(self, words: list[str]) -> None:
        """Take in one line of the state file."""
        if words[:1] == ["gpu"]:
            self._read_gpu(words[1], words[2:])
        elif words[:1] == ["mig"]:
            self.slices.setdefault(words[1], []).append(words[3])
            self._read_gpu(words[3], words[4:])
        elif words[:1] == ["process"]:
            is_there = "sticky" in words or _started_ticks(int(words[2])) is not None
            if is_there and words[3] != "unknown":
                self._take(words[1], int(words[2]), int(words[3]))

    def read_allocation(self, path: Path) -> None:
        """Take in what one process holds."""
        uuid, _, pid = path.name.rpartition(".")
        with contextlib.suppress(OSError, ValueError):
            held_bytes, *started = (int(word) for word in path.read_text().split())
            ticks = _started_ticks(int(pid))
            if ticks is not None and (not started or started[0] in (0, ticks)):
                self._take(uuid, int(pid), held_bytes)

    def _read_gpu(self, uuid: str, words: list[str]) -> None:
        facts = dict(word.split("=", 1) for word in words if "=" in word)
        self.totals[uuid] = int(facts.get("total", 0))
        if facts.get("health", "ok") != "ok":
            self.lost.add(uuid)
        self._taken[uuid] = int(facts.get("base", 0)) + int(facts.get("reserve", 0))

    def _take(self, uuid: str, pid: int, held_bytes: int) -> None:
        if (uuid, pid) not in self._seen:  # one process may be in several lists
            self._seen.add((uuid, pid))
            self._taken[uuid] = self._taken.get(uuid, 0) + held_bytes


def read_machine() -> Machine:
    """Read the machine as it is now; one without a driver has no GPUs."""
    machine = Machine(Path(os.environ.get("GRN_STANDIN_NVML", "/nonexistent")))
    if machine.state.exists():
        for line in machine.state.read_text().splitlines():
            with contextlib.suppress(IndexError, ValueError):
                machine.read_line(line.split(" name=")[0].split())
        for path in sorted(_folder(machine.state).iterdir()):
            if not path.name.startswith("."):
                machine.read_allocation(path)
    return machine


def _folder(state: Path) -> Path:
    folder = state.with_name(state.name + ".d")
    folder.mkdir(exist_ok=True)
    return folder


def _started_ticks(pid: int) -> int | None:
    """Return when a process started, None when it is gone; a zombie holds no memory."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _let_go(path: Path, pid: int) -> None:
    if os.getpid() == pid:
        path.unlink(missing_ok=True)
