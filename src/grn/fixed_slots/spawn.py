"""Starting one command: its environment, its folder, its output, a process group of its own.

Not a session of its own: to the kernel each is a party of its own in sharing out the CPU, and on a
busy machine short commands would take nearly twice as long.
"""

from __future__ import annotations

import errno
import os
import signal

from grn.proc import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.group.task import Slot, Task

NOT_RUNNABLE, NOT_FOUND = 126, 127
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # programs expect them as they were


class NotStarted(Exception):
    """The command could not be started; `status` is what a shell would return."""

    def __init__(self, status: int, trouble: str, *, is_passing: bool = False) -> None:
        super().__init__(trouble)
        self.is_passing = is_passing  # it may well start a moment later
        self.status = status
        self.trouble = trouble


class Spawner:
    """Starts commands with the environment that we had when it was made."""

    def __init__(self) -> None:
        self._environment = dict(os.environb)
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of what it holds."""
        os.close(self._null)

    def spawn(self, task: Task, slot: Slot) -> int:
        """Start a command as the leader of a process group of its own and return its pid."""
        log = home = -1
        try:
            environment = self._environment_of(task, slot)
            if task.log_path is not None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                log = os.open(task.log_path, flags, 0o666)
            if task.folder is not None:
                home = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                os.chdir(task.folder)
            return self._spawn(task, environment, log)
        except (OSError, ValueError) as error:
            raise _not_started(task, error) from error
        finally:
            if home >= 0:
                os.fchdir(home)
                os.close(home)
            if log >= 0:
                os.close(log)

    def _spawn(self, task: Task, environment: dict[bytes, bytes], log: int) -> int:
        program = task.argv[0]
        if "/" not in program:
            path = os.fsdecode(environment.get(b"PATH", os.defpath.encode()))
            program = processes.find_program(program, path)
        actions = [(os.POSIX_SPAWN_DUP2, self._null, 0)]
        if log >= 0:
            actions += [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        return processes.spawn(
            program,
            task.argv,
            environment,
            file_actions=actions,
            setpgroup=0,
            setsigmask=(),
            setsigdef=_IGNORED_BY_PYTHON,
        )

    def _environment_of(self, task: Task, slot: Slot) -> dict[bytes, bytes]:
        chosen = dict(self._environment)
        for changes in (task.environment, slot.environment):
            for name, value in changes.items():
                chosen[os.fsencode(name)] = os.fsencode(value)
        return chosen


def _not_started(task: Task, error: OSError | ValueError) -> NotStarted:
    if isinstance(error, OSError):
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        what = error.filename or task.argv[0]
        trouble = f"{os.fsdecode(what)}: {error.strerror}"
        status = NOT_FOUND if is_missing else NOT_RUNNABLE
        return NotStarted(status, trouble, is_passing=error.errno in processes.PASSING)
    if any("\0" in word for word in task.argv):
        return NotStarted(NOT_RUNNABLE, "a command cannot hold a NUL character")
    return NotStarted(NOT_RUNNABLE, f"the system does not take this command: {error}")
