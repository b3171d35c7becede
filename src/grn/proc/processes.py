"""Process identity, listing and signals; signals never reach an unrelated process.

A pid is reused once its process has been reaped, so the start time is compared as well.
"""

from __future__ import annotations

import errno
import functools
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_MAX_OOM_SCORE, _COMMAND_OOM_SCORE = 1000, 500
# Errors that pass: of a machine that has no room for one more process, and of a program that is
# being written.
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
PASSING_S = 10.0  # for so long a start that failed so is tried again, before others are tried
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0
_QUICK_LOOKS = 50


class Process:
    """One process as it was seen once; of some only the exit status may be left."""

    __slots__ = ("group", "is_over", "parent", "pid", "session", "started_ticks")

    def __init__(
        self,
        pid: int,
        parent: int,
        group: int,
        session: int,
        started_ticks: int,
        is_over: bool = False,
    ) -> None:
        self.pid = pid
        self.group = group
        self.is_over = is_over  # only its exit status is left
        self.parent = parent
        self.session = session
        self.started_ticks = started_ticks


def look(pid: int) -> Process | None:
    """Look at a process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # what comes before is a name of any kind
    parent, group, session, ticks = (int(fields[place]) for place in (1, 2, 3, 19))
    return Process(pid, parent, group, session, ticks, is_over=fields[0] in (b"Z", b"X"))


def has_variable(pid: int, assignment: bytes) -> bool:
    """True when a process was started with a variable; of one that is over nothing is known."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return assignment in file.read().split(b"\0")
    except OSError:
        return False


def everyone() -> Iterator[Process]:
    """Yield all processes there are."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := look(int(name))) is not None:
            yield found


def below(root: int) -> list[Process]:
    """Return all processes below one, parents before children."""
    children: dict[int, list[Process]] = {}
    for one in everyone():
        children.setdefault(one.parent, []).append(one)
    found: list[Process] = []
    todo = [root]
    while todo:
        some = children.get(todo.pop(), [])
        found += some
        todo += [one.pid for one in some]
    return found


def children() -> list[int]:
    """Return the pids of our own children, in a fraction of the time that `below` takes."""
    own = os.getpid()
    listed = listed_children(own)
    if listed is None:
        return [one.pid for one in everyone() if one.parent == own]
    return sorted(listed)


def listed_children(parent: int) -> set[int] | None:
    """Return the children of the first thread of a process; None if the kernel keeps no list."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children", "rb") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return None


def send(process: Process, signum: int) -> bool:
    """Signal a process if it is still the same; False when it is gone or not ours to signal."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        found = look(process.pid)  # after opening: from here on nobody else can be meant
        if found is None or found.started_ticks != process.started_ticks:
            return False
        signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def adopt_orphans(is_wanted: bool = True) -> None:
    """Become the parent of all below us that lose theirs, so that none of them escapes."""
    import ctypes  # not at the top: it is not cheap, and most who look at processes need it not

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0)


def has_children() -> bool:
    """True while we have a child, be it one of which only the exit status is left."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_children(spared: Collection[int] = ()) -> None:
    """Kill our children quicker than they fork: whose parent ends is our child from then on."""
    killed: set[int] = set(spared)
    for _ in range(_QUICK_LOOKS):
        for pid in children():
            if pid not in killed:
                os.kill(pid, signal.SIGKILL)  # our child and not buried yet: the pid is its own
                killed.add(pid)


def pauses() -> Iterator[float]:
    """Yield how long to wait before each new try of a start, for `PASSING_S` in all."""
    waited, pause = 0.0, _FIRST_PAUSE_S
    while waited < PASSING_S:
        yield pause
        waited += pause
        pause = min(2 * pause, _MAX_PAUSE_S)


def spawn(
    program: str, argv: list[str] | tuple[str, ...], environment: Mapping[Any, Any], **how: Any
) -> int:
    """Start a program, as one that the kernel ends before us when memory runs out.

    Our own score is raised meanwhile: after the start the program could be quicker than we.
    """
    own = _own_oom_score(os.getpid())
    has_raised = own is not None and _set_oom_score("self", own + _COMMAND_OOM_SCORE)
    try:
        return os.posix_spawn(program, argv, environment, **how)
    finally:
        if has_raised and own is not None:
            _set_oom_score("self", own)


def become_first_to_end() -> None:
    """Let the kernel end this process before its parents when memory runs out."""
    score = oom_score("self")
    if score is not None:
        _set_oom_score("self", score + _COMMAND_OOM_SCORE)


def end_no_earlier_than_others(pid: int) -> None:
    """Undo for a process what it has inherited from a command that `spawn` has started."""
    score = oom_score(pid)
    if score is not None and score >= _COMMAND_OOM_SCORE:
        _set_oom_score(pid, score - _COMMAND_OOM_SCORE)


@functools.lru_cache(maxsize=1)
def _own_oom_score(_pid: int) -> int | None:
    return oom_score("self")


def oom_score(pid: int | str) -> int | None:
    """Return how readily the kernel ends a process when memory runs out, None if it is not told."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _set_oom_score(pid: int | str, score: int) -> bool:
    """Set that; False when the system does not let us."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, b"%d" % min(score, _MAX_OOM_SCORE))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def find_program(program: str, path: str) -> str:
    """Find a program as a shell would, by the PATH of the command."""
    if "/" in program:
        return program
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder or ".", program)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise FileNotFoundError(errno.ENOENT, "command not found", program)
