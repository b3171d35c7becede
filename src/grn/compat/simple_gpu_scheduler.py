"""`simple_gpu_scheduler`: commands from standard input, one per line, each on its own GPU.

Translates lines to tasks and slots; running them is the runner's work.
"""

from __future__ import annotations

import os
import signal
import sys

from grn.batch.line_reader import LineReader, shell_argv
from grn.errors import GrnError, MachineError, UsageError
from grn.fixed_slots.runner import Runner
from grn.fixed_slots.slots import FixedSlots
from grn.group.task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.group.roles import RunControl
    from grn.group.task import CommandEnd, Slot

NAME = "simple_gpu_scheduler"
MAX_FAILURES = 20  # listed at the end
_SHOWN_BYTES = 200  # of a command that failed


def main(argv: Sequence[str] | None = None) -> int:
    """Run all commands; 0 when all were run, whatever they returned."""
    words = list(sys.argv[1:] if argv is None else argv)
    gpus, is_strict = _plain(words) or _parse(words)
    try:
        _check_files()
        report, lines = Report(), LineReader(0)
        slots = FixedSlots(_slot_names(gpus), NAME, _complain)
        runner = Runner(slots, Commands(lines), report)
        runner.run()
    except GrnError as error:
        _complain(str(error))
        return error.exit_code
    report.summarise(runner.stopped_by)
    if runner.stopped_by:
        _die_of(runner.stopped_by)
    if lines.trouble:
        _complain(lines.trouble)
        return MachineError.exit_code
    return 1 if is_strict and report.failures else 0


def _plain(words: list[str]) -> tuple[list[str], bool] | None:
    """Read `--gpus GPUS ... [--fail]` without argparse, which is slower to load than all else."""
    is_strict = words[-1:] == ["--fail"]
    gpus = words[1:-1] if is_strict else words[1:]
    if words[:1] != ["--gpus"] or not gpus or any(word.startswith("-") for word in gpus):
        return None
    return gpus, is_strict


def _parse(words: list[str]) -> tuple[list[str], bool]:
    """Read other spellings with argparse, or print help."""
    import argparse

    parser = argparse.ArgumentParser(
        prog=NAME,
        description="Run commands from standard input, one per line, each on a GPU of its own.",
        epilog="Example: simple_gpu_scheduler --gpus 0,1,2 < gpu_commands.txt",
    )
    parser.add_argument(
        "--gpus",
        nargs="+",
        required=True,
        metavar="GPUS",
        help="GPU ids: `0 1 2` or `0,1,2`; of several, each may be a list, as in `0,1 2,3`",
    )
    parser.add_argument(
        "--fail", action="store_true", help="exit with status 1 if a command failed"
    )
    options = parser.parse_args(words)
    return options.gpus, options.fail


def _slot_names(gpus: list[str]) -> list[str]:
    """Return the slots: a single argument is split at commas, several are slots as they are."""
    if len(gpus) > 1 or "," not in gpus[0]:
        return gpus
    names = gpus[0].split(",")
    if "" in names:
        raise UsageError(f"there is an empty GPU id in --gpus {gpus[0]!r}.", "Write it like 0,1,2.")
    return names


class Commands:
    """The commands among the lines: no blank ones, no comments."""

    def __init__(self, lines: LineReader) -> None:
        self._lines = lines
        self._count = 0
        self.fileno = lines.fileno
        self.hear = lines.hear

    @property
    def is_over(self) -> bool:
        """True when the last line has been taken."""
        return self._lines.is_over

    def next_task(self) -> Task | None:
        """Return the next command that has come in."""
        while (line := self._lines.next_line()) is not None:
            line = line.rstrip()
            if line and not line.lstrip().startswith(b"#"):
                self._count += 1
                return Task(self._count, shell_argv(line), os.fsdecode(line))
        return None


class Report:
    """Prints starts, and remembers failures."""

    def __init__(self) -> None:
        self._count = 0
        self.failures = 0
        self._first_failures: list[CommandEnd] = []

    def starting(self, runner: RunControl, task: Task, slot: Slot) -> None:
        """Print the command and its GPU at once."""
        text = f"Processing command `{task.label}` on gpu {slot.name}\n"
        _say(1, os.fsencode(text))

    def ended(self, runner: RunControl, ended: CommandEnd) -> None:
        """Remember a failure."""
        self._count += 1
        if ended.status:
            self.failures += 1
            if self.failures <= MAX_FAILURES:
                self._first_failures.append(ended)

    def summarise(self, stopped_by: int) -> None:
        """Print what failed and what was interrupted."""
        if stopped_by:
            name = signal.Signals(stopped_by).name
            _complain(f"stopped by {name}; what was running has been ended")
        if not self.failures:
            return
        lines = [f"{self.failures} of {self._count} commands failed:"]
        lines += [f"  {_how(ended)}: {_shown(ended)}" for ended in self._first_failures]
        if self.failures > MAX_FAILURES:
            lines.append(f"  ... and {self.failures - MAX_FAILURES} more")
        _complain("\n".join(lines))


def _how(ended: CommandEnd) -> str:
    if ended.trouble:
        return f"not started ({ended.trouble})"
    if ended.status < 0:
        return f"ended by signal {-ended.status}"
    return f"exit status {ended.status}"


def _shown(ended: CommandEnd) -> str:
    text = ended.task.label.replace("\0", "\\0")
    return text if len(text) <= _SHOWN_BYTES else f"{text[:_SHOWN_BYTES]} ..."


def _complain(text: str) -> None:
    _say(2, os.fsencode(f"{NAME}: {text}\n"))


def _say(fd: int, data: bytes) -> None:
    """Write to one of our outputs; a closed output must not end the commands."""
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        pass


def _check_files() -> None:
    """Open missing standard files, so that the runner's files do not take their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            if fd == 0:
                raise UsageError(
                    "standard input is closed.", "Give the commands there, one per line."
                ) from None
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)


def _die_of(signum: int) -> None:
    """End by the signal, so that a shell sees it."""
    signal.signal(signum, signal.SIG_DFL)
    signal.raise_signal(signum)


if __name__ == "__main__":
    sys.exit(main())
