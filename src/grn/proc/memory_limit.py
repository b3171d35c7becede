"""Hold a job's stated host memory: a control group with a limit of its own, where that is possible.

Two ways, tried in this order: a group below that of the queue, where that is writable and has the
memory controller (cgroup v2); a scope of the user's systemd. Without either nothing is limited.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil

from grn.model.record import Record
from grn.proc import host, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = "/sys/fs/cgroup"
_OWN = "/proc/self/cgroup"
_LEAF = "grn-queue"  # the group of the queue itself, so that its parent may have others
_GROUP = "grn-job-"
_PROBE_BYTES = 64 << 20
_PROBE_S = 5.0
# The command joins its group by itself: no moment is left in which it could fork outside.
_JOIN = 'echo 0 > "$0" 2>/dev/null; exec "$@"'
_SHOW_LIMIT = 'cat "$0$(sed -n s/^0:://p /proc/self/cgroup)/memory.max"'


class MemoryLimit(Record):
    """How the memory of jobs is limited on this machine, or why it is not."""

    folder: str = ""  # groups of jobs are made here
    manager: tuple[str, ...] = ()  # the command that starts another in a scope
    why_not: str = ""

    def describe(self) -> str:
        """Say in a few words how a stated size is held."""
        return f"by groups in {self.folder}" if self.folder else "by scopes of systemd"

    def sweep(self) -> None:
        """Remove groups that killed processes of grn have left; those in use stay."""
        if self.folder:
            for name in os.listdir(self.folder):
                if name.startswith(_GROUP):
                    JobLimit(self, 0, name.removeprefix(_GROUP)).leave()


class JobLimit:
    """The limit of one job. `name` is the mark of its processes: no two jobs share it."""

    def __init__(self, way: MemoryLimit, size: int, name: str) -> None:
        self._way = way
        self._size = size
        self._name = f"{_GROUP}{name}"
        self._group = f"{way.folder}/{self._name}" if way.folder else ""
        self._kills = host.oom_kills() or 0  # by the kernel, before it began

    def enter(self, argv: list[str]) -> list[str]:
        """Return the command that starts `argv` with the limit, `argv` where none is possible."""
        if self._group:
            return self._enter_group(argv)
        if self._way.manager:
            limits = ("-p", f"MemoryMax={self._size}", "-p", "MemorySwapMax=0")
            unit = f"--unit={self._name}.scope"
            return [*self._way.manager, "--collect", unit, *limits, "--", *argv]
        return argv

    def _enter_group(self, argv: list[str]) -> list[str]:
        try:
            os.makedirs(self._group, exist_ok=True)
            _write(f"{self._group}/memory.max", str(self._size))
        except OSError:
            self.leave()
            return argv
        with contextlib.suppress(OSError):  # swap is not counted on this machine
            _write(f"{self._group}/memory.swap.max", "0")
        return ["/bin/sh", "-c", _JOIN, f"{self._group}/cgroup.procs", *argv]

    def was_hit(self) -> bool:
        """True when the kernel ended a process of the job, of which one was killed.

        The group of a scope is gone by now: any kill since the job began is taken for its own.
        """
        if self._group:
            return _counted(f"{self._group}/memory.events", "oom_kill") > 0
        return bool(self._way.manager) and (host.oom_kills() or 0) > self._kills

    def leave(self) -> None:
        """Remove the group once the processes of the job have ended; systemd removes a scope."""
        if self._group:
            with contextlib.suppress(OSError):  # never made, or processes were spared
                os.rmdir(self._group)


@functools.lru_cache(maxsize=1)
def here() -> MemoryLimit:
    """Return how memory is limited for children of this process."""
    return find(os.environ)


def find(environment: Mapping[str, str], root: str = ROOT, own: str = _OWN) -> MemoryLimit:
    """Look which way of limiting memory works."""
    if _own_group(root, own) is None:
        return MemoryLimit(why_not="control groups are of version 1 here; it takes version 2")
    folder = _folder_of_groups(root, own)
    if folder:
        return MemoryLimit(folder)
    manager = _manager(environment)
    if manager and _holds(manager, root):
        return MemoryLimit(manager=manager)
    systemd = "systemd gives this user no scopes with a limit" if manager else "there is no systemd"
    return MemoryLimit(
        why_not=f"this control group has no memory controller of its own, and {systemd}"
    )


def remove(name: str) -> None:
    """Remove the group of a job whose shim was killed, where there is one."""
    folder = _folder_of_groups(ROOT, _OWN)
    if folder:
        JobLimit(MemoryLimit(folder), 0, name).leave()


def prepare(root: str = ROOT, own: str = _OWN) -> None:
    """Move this process into a group of its own, where groups of jobs can be made beside it.

    A group with processes cannot limit groups below it. With processes of others in it, nothing is
    moved.
    """
    group = _own_group(root, own)
    if group is None or os.path.basename(group) == _LEAF:
        return
    if not os.access(f"{group}/cgroup.subtree_control", os.W_OK):
        return
    is_able = "memory" in _words(f"{group}/cgroup.controllers")
    is_done = "memory" in _words(f"{group}/cgroup.subtree_control")
    ours = {os.getpid(), *(one.pid for one in processes.all_below(os.getpid()))}
    inside = {int(word) for word in _words(f"{group}/cgroup.procs")}
    if not is_able or is_done or not inside <= ours:
        return
    with contextlib.suppress(OSError):  # not delegated after all
        os.makedirs(f"{group}/{_LEAF}", exist_ok=True)
        for pid in inside:
            _write(f"{group}/{_LEAF}/cgroup.procs", str(pid))
        _write(f"{group}/cgroup.subtree_control", "+memory")
        MemoryLimit(group).sweep()


def _own_group(root: str, own: str) -> str | None:
    """Return the folder of this process's group in cgroup v2, None where there is none."""
    if not os.path.exists(f"{root}/cgroup.controllers"):
        return None
    with contextlib.suppress(OSError), open(own) as file:
        for line in file:
            if line.startswith("0::"):
                return os.path.normpath(f"{root}/{line[3:].strip()}")
    return None


def _folder_of_groups(root: str, own: str) -> str:
    """Return the folder in which groups with a limit can be made, empty if there is none."""
    group = _own_group(root, own)
    if group is None:
        return ""
    folder = os.path.dirname(group) if os.path.basename(group) == _LEAF else group
    is_able = "memory" in _words(f"{folder}/cgroup.subtree_control")
    return folder if is_able and os.access(folder, os.W_OK) else ""


def _manager(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command of the systemd that may limit jobs of this user."""
    program = shutil.which("systemd-run", path=environment.get("PATH", os.defpath))
    if program is None:
        return ()
    if os.getuid() == 0:
        return (program, "--scope", "--quiet")
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if not os.path.exists(f"{runtime}/bus") and not os.path.exists(f"{runtime}/systemd"):
        return ()
    found = (program, "--user", "--scope", "--quiet")
    if "XDG_RUNTIME_DIR" in environment:
        return found
    return (shutil.which("env") or "/usr/bin/env", f"XDG_RUNTIME_DIR={runtime}", *found)


def _holds(manager: tuple[str, ...], root: str) -> bool:
    """Start a scope and look whether the kernel has its limit."""
    limit = ("-p", f"MemoryMax={_PROBE_BYTES}", "--", "/bin/sh", "-c", _SHOW_LIMIT, root)
    return _output([*manager, *limit]) == str(_PROBE_BYTES)


def _output(argv: list[str]) -> str:
    """Return what a command prints, nothing where it fails."""
    import subprocess  # slow to import, and rarely needed

    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=_PROBE_S, check=False, text=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _words(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().split()
    except OSError:
        return []


def _counted(path: str, name: str) -> int:
    words = _words(path)
    return int(words[words.index(name) + 1]) if name in words else 0


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
