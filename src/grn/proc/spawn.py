"""Start processes: commands by `posix_spawn`, forks of this process, grn's own services.

Each way to fail has one translation, `NotStarted`, with the exit status a shell would give.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

NOT_RUNNABLE, NOT_FOUND = 126, 127
PIPE, NO_INPUT = -1, -3  # as in `subprocess`, which is slow to import
# Errors that pass: the machine has no room for one more process, or the program is being written.
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
_PASSING_S = 10.0  # for how long such a start is repeated
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # programs expect the default
_MAX_OOM_SCORE, _COMMAND_OOM_SCORE = 1000, 500
SERVICE = "GRN_SERVICE"  # marks daemons and shims: they do not count as memory of jobs
_JOB = (
    "GRN_JOB_TAG", "GRN_JOB_ID", "GRN_ATTEMPT", "GRN_LEASE", "GRN_GPU_COUNT", "GRN_CPUS",
    "GRN_PEAK_FILE", "GRN_REPLY_FILE",
)  # fmt: skip
_LEASED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # a lease sets them too
_OLD = (
    "import sys; del sys.path[0]; import runpy; "
    "runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
)


class NotStarted(Exception):
    """A command could not be started; `status` is what a shell would return."""

    def __init__(self, status: int, trouble: str, *, is_passing: bool = False) -> None:
        super().__init__(trouble)
        self.is_passing = is_passing  # it may start a moment later
        self.status = status
        self.trouble = trouble


def not_started(argv: Sequence[str], error: OSError | ValueError) -> NotStarted:
    """Return why the system did not start a command."""
    if isinstance(error, OSError):
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        trouble = f"{os.fsdecode(error.filename or argv[0])}: {error.strerror}"
        status = NOT_FOUND if is_missing else NOT_RUNNABLE
        return NotStarted(status, trouble, is_passing=error.errno in _PASSING)
    if any("\0" in word for word in argv):
        return NotStarted(NOT_RUNNABLE, "a command cannot hold a NUL character")
    return NotStarted(NOT_RUNNABLE, f"the system does not take this command: {error}")


def command(
    argv: list[str] | tuple[str, ...],
    environment: Mapping[Any, Any],
    files: Sequence[int],
    reset: Iterable[int] = (),
    **how: Any,
) -> int:
    """Start a command and return its pid; raise NotStarted.

    `files` become its standard files, -1 leaves ours. `reset` names signals that the command must
    not ignore because we do.
    """
    try:
        path = environment.get("PATH") or environment.get(b"PATH") or os.defpath
        return _first_to_end(
            find_program(argv[0], os.fsdecode(path)),
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(files) if fd >= 0
            ],
            setsigmask=(),
            setsigdef=(*_IGNORED_BY_PYTHON, *reset),
            **how,
        )
    except (OSError, ValueError) as error:
        raise not_started(argv, error) from error


def fork(run: Callable[[], int | None]) -> int:
    """Fork this process to run a function; its result is the exit status. Return the pid.

    Other threads do not exist in the fork, so the function must not wait for one of them.
    """
    if (pid := _fork()) != 0:
        return pid
    status = 1
    try:
        status = run() or 0
    finally:
        os._exit(status)


def _fork() -> int:
    if "threading" not in sys.modules:
        return os.fork()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def child(argv: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
    """Start a process of grn's own, or of its demonstration; the options are those of Popen."""
    import subprocess  # not at the top: it is slow to import

    return subprocess.Popen(argv, **how)


def pauses() -> Iterator[float]:
    """Yield how long to wait before each repetition of a start that failed for a passing reason."""
    waited, pause = 0.0, _FIRST_PAUSE_S
    while waited < _PASSING_S:
        yield pause
        waited += pause
        pause = min(2 * pause, _MAX_PAUSE_S)


def patiently(start: Callable[[], int]) -> int:
    """Start a process; retry for a while where the machine has no room for one."""
    for pause in pauses():
        try:
            return start()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
        time.sleep(pause)
    return start()


def find_program(program: str, path: str) -> str:
    """Find a program as a shell would, by the PATH of the command."""
    if "/" in program:
        return program
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder or ".", program)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise FileNotFoundError(errno.ENOENT, "command not found", program)


# --- services of grn: with its own code, and apart from a surrounding job -------------------


def own_module(name: str) -> list[str]:
    """Return the command that runs a module of grn with this interpreter.

    `python -m` searches the current folder first, so a stray or planted `random.py` would run.
    """
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", name]
    return [sys.executable, "-c", _OLD.format(name=name)]


def service_environment(name: str) -> dict[str, str]:
    """Return the environment of a service, without the variables of a job or a lease.

    These would make the service a part of that job, on its GPUs only.
    """
    dropped = {*_JOB, *(_LEASED if "GRN_LEASE" in os.environ else ())}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {**kept, SERVICE: name}


# --- which process the kernel ends when memory runs out ------------------------------------


def _first_to_end(
    program: str, argv: list[str] | tuple[str, ...], environment: Mapping[Any, Any], **how: Any
) -> int:
    """Start a program that the kernel ends before this process when memory runs out.

    The own score is raised meanwhile: after the start the program could run before it is set.
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


def become_ordinary() -> None:
    """Drop the score that an engine gives its workers: what is started here is no such worker."""
    if oom_score("self"):
        _set_oom_score("self", 0)


def end_no_earlier_than_others(pid: int) -> None:
    """Reset the score that a process has inherited from a command."""
    score = oom_score(pid)
    if score is not None and score >= _COMMAND_OOM_SCORE:
        _set_oom_score(pid, score - _COMMAND_OOM_SCORE)


@functools.lru_cache(maxsize=1)
def _own_oom_score(_pid: int) -> int | None:
    return oom_score("self")


def oom_score(pid: int | str) -> int | None:
    """Return how readily the kernel ends a process when memory runs out; None if it is hidden."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _set_oom_score(pid: int | str, score: int) -> bool:
    """Set the score; False when it is not permitted."""
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
