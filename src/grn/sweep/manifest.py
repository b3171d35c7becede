"""A sweep on disk: one folder with a manifest, and one folder with a manifest for each run.

Files are replaced atomically, so that no reader sees half of one, also after a crash.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any

from grn.errors import MachineError, UsageError

VERSION = 1
SWEEP_FILE, RUN_FILE, LOG_FILE = "sweep.json", "run.json", "log.txt"
_GIT_S = 5.0
_KINDS: dict[str, type] = {"fingerprint": str, "index": int, "params": dict, "result": dict}


class RunState(str, Enum):
    """The state of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    REQUEUED = "requeued"  # of earlier versions: it was about to run again


@dataclass(frozen=True, slots=True)
class RunManifest:
    """The manifest of one run: its parameters, GPUs, end and result."""

    run: str  # the name of its folder
    fingerprint: str
    index: int
    params: Mapping[str, Any]
    state: RunState
    command: tuple[str, ...] = ()
    seed: Any = None
    attempt: int = 1
    status: int | None = None  # exit status, or minus the signal
    trouble: str = ""  # why it failed, as text
    past: str = ""  # why earlier attempts failed, where the job was not to blame
    started_at: float | None = None
    ended_at: float | None = None
    duration_s: float | None = None
    gpu: str = ""
    peak_bytes: int | None = None
    git: str | None = None
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class About:
    """The manifest of a sweep."""

    name: str
    command: str  # the template, or the function
    is_shell: bool
    parameters: tuple[str, ...]
    created_at: float
    metric: str = ""  # the metric of a search, if it is one
    is_maximized: bool = False
    git: str | None = None


class Damaged(UsageError):
    """A manifest that is not as grn wrote it."""


class SweepFolder:
    """The folder of one sweep."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._lock_fd = -1

    def run_dir(self, run: str) -> str:
        """Return the folder of one run."""
        return os.path.join(self.path, "runs", run)

    def lock(self) -> None:
        """Make the folder and lock it against a second process with the same sweep."""
        try:
            os.makedirs(os.path.join(self.path, "runs"), exist_ok=True)
            path = os.path.join(self.path, ".lock")
            self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.unlock()
            raise UsageError(
                f"the sweep in {self.path} is being run by another process.",
                "Wait for it, or give this one a folder of its own with --out.",
            ) from error
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def about(self) -> About | None:
        """Return the manifest of the sweep, None where there is none."""
        found = _load(os.path.join(self.path, SWEEP_FILE))
        if found is None:
            return None
        about: About = _made(About, found, os.path.join(self.path, SWEEP_FILE))
        return about

    def write_about(self, about: About) -> None:
        """Keep the manifest of the sweep."""
        write_json(os.path.join(self.path, SWEEP_FILE), {"version": VERSION, **asdict(about)})

    def runs(self) -> list[RunManifest]:
        """Return the manifests of all runs, in order; unreadable ones count as never run.

        A damaged manifest is kept beside the new one when that run is run again.
        """
        return sorted(self._runs(), key=lambda run: (run.index, run.run))

    def _runs(self) -> Iterator[RunManifest]:
        try:
            names = os.listdir(os.path.join(self.path, "runs"))
        except FileNotFoundError:
            return
        for name in names:
            path = os.path.join(self.run_dir(name), RUN_FILE)
            found = _load(path)
            if found is not None:
                with contextlib.suppress(Damaged):
                    run: RunManifest = _made(RunManifest, {**found, "run": name}, path)
                    yield run

    def write_run(self, run: RunManifest) -> None:
        """Keep the manifest of a run, and make its folder."""
        folder = self.run_dir(run.run)
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
        path = os.path.join(folder, RUN_FILE)
        _keep_damaged(path)
        write_json(path, {"version": VERSION, **asdict(run)})


def _keep_damaged(path: str) -> None:
    """Set an unreadable manifest aside for people to inspect, before it is replaced."""
    found = _load(path)
    try:
        if found is not None:
            _made(RunManifest, {"run": "", **found}, path)
        elif os.path.getsize(path):
            raise Damaged(path)
    except Damaged:
        with contextlib.suppress(OSError):
            os.replace(path, f"{path}.broken")
    except (UsageError, OSError):
        pass  # of another version, or not there


def write_json(path: str, value: object) -> None:
    """Replace a file by a value, as JSON."""
    write_text(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def write_text(path: str, text: str) -> None:
    """Replace a file atomically."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from error


def plain(value: Any) -> Any:
    """Turn a value into JSON types; NaN and infinity become null."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    item = getattr(value, "item", None)  # the numbers of array libraries
    if callable(item) and getattr(value, "size", 1) == 1:
        return plain(item())
    return str(value)


def git_commit(folder: str) -> str | None:
    """Return the commit a folder is at, `+` after it if files differ; None outside of git."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", folder, *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=_GIT_S, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.decode(errors="replace").strip()

    commit = git("rev-parse", "HEAD")
    if not commit:
        return None
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def _load(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}.") from error
    return found if isinstance(found, dict) else None


def _made(kind: type[Any], found: dict[str, Any], path: str) -> Any:
    if found.get("version") != VERSION:
        raise UsageError(
            f"{path} was written by another version of grn.", "Use that one, or another folder."
        )
    known = {one.name for one in fields(kind)}
    try:
        made = {name: value for name, value in found.items() if name in known}
        if "state" in made:
            made["state"] = RunState(made["state"])
        for name in made.keys() & _KINDS.keys():
            if not isinstance(made[name], _KINDS[name]):
                raise TypeError(f"{name} is {made[name]!r}")
        return kind(**made)
    except (TypeError, ValueError) as error:
        raise Damaged(f"{path} is not as grn wrote it: {error}.") from error


def _unwritable(path: str, error: OSError) -> MachineError:
    hint = "Make room on the disk." if error.errno == errno.ENOSPC else "Choose another with --out."
    return MachineError(f"{path} cannot be written: {error.strerror}.", hint)
