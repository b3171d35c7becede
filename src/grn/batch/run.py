"""Run a batch: lines become jobs on negotiated GPUs, and a journal records how each ended.

The source and the listener of its runner. The runner repeats a job that failed because of other
jobs without counting it, else as often as requested.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from grn.batch.file import BatchJob, BatchParser
from grn.batch.journal import BatchJournal, Entry, id_of
from grn.batch.line_reader import LineReader, shell_argv
from grn.errors import UsageError
from grn.group.choose_runner import runner_for
from grn.group.roles import Progress, RunControl
from grn.group.task import CommandEnd, Needs, Slot, Task


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of a batch."""

    needs: Needs
    retries: int = 0
    is_fail_fast: bool = False
    parallel: int | None = None


@dataclass(frozen=True, slots=True)
class RunsAgain:
    """An attempt that failed because of other jobs: the job runs again and no retry is counted."""

    entry: Entry  # of that attempt
    has_more_room: bool


class Batch:
    """One batch while it runs."""

    def __init__(
        self,
        lines: LineReader,
        journal: BatchJournal,
        options: BatchOptions,
        on_change: Callable[[Progress, Entry | RunsAgain | None], None],
        total: int | None = None,
    ) -> None:
        self._lines = lines
        self._journal = journal
        self._options = options
        self._on_change = on_change
        self._parser = BatchParser(options.needs)
        self._finished: dict[str, Entry] = {}
        self._jobs: dict[int, BatchJob] = {}  # that wait or run, by the number of their task
        self._starts: dict[int, int] = {}
        self._running: dict[int, None] = {}  # in the order of their starts
        self._past: dict[int, str] = {}  # why earlier attempts failed
        self._count = 0
        self._has_all = False
        self.entries: list[Entry] = []  # of this run, and of jobs that had finished before
        self.progress = Progress(total)
        self.stopped_by = 0
        self.fileno = lines.fileno

    def run(
        self, group: str, finished: dict[str, Entry], on_wait: Callable[[Task, str], None]
    ) -> None:
        """Run all lines; return when the last has ended or all were stopped."""
        self._finished = finished
        options = self._options
        runner = runner_for(
            self, self, group, retries=options.retries, is_fail_fast=options.is_fail_fast,
            on_wait=on_wait, may_nest=not options.needs.is_elsewhere,
        )  # fmt: skip
        try:
            runner.run()
        finally:
            self.stopped_by = runner.stopped_by

    # --- the source ----------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True when the last line has become a job."""
        return self._has_all

    def hear(self) -> None:
        """Read more lines."""
        self._lines.hear()

    def next_task(self) -> Task | None:
        """Return the task of the next line that has not finished before."""
        if self._options.parallel is not None and len(self._jobs) >= self._options.parallel:
            return None
        while (job := self._next_job()) is not None:
            before = self._finished.get(id_of(job))
            if before is None:
                return self._task(job)
            self.entries.append(before)
            self._change(skipped=1)
        return None

    def _next_job(self) -> BatchJob | None:
        while (line := self._lines.next_line()) is not None:
            if (job := self._read(lambda: self._parser.take(line))) is not None:
                return job
        if not self._lines.is_over or self._has_all:
            return None
        self._has_all = True
        job = self._read(self._parser.finish)
        self._change()
        return job

    def _read(self, read: Callable[[], BatchJob | None]) -> BatchJob | None:
        """Read a line; a line that cannot be read is a failed job, since others may run already."""
        try:
            return read()
        except UsageError as error:
            entry = _unreadable(self._parser.begun_at, error.message)
            self._journal.add(entry)
            self.entries.append(entry)
            self._count += 1
            self._change(entry, failed=1)
            return None

    def _task(self, job: BatchJob) -> Task:
        self._count += 1
        self._jobs[self._count] = job
        self._change()
        log = self._journal.log_path(job)
        _empty(log)  # it holds this run of the batch only
        return Task(
            number=self._count,
            argv=shell_argv(job.text),
            label=job.name or os.fsdecode(job.text),
            environment={"GRN_LINE": str(job.line)},
            log_path=log,
            needs=job.needs,
        )

    # --- the listener --------------------------------------------------------------------

    def starting(self, runner: RunControl, task: Task, slot: Slot) -> None:
        """Note that a job starts."""
        self._starts[task.number] = self._starts.get(task.number, 0) + 1
        self._running[task.number] = None
        self._change(running=1)

    def ended(self, runner: RunControl, ended: CommandEnd) -> None:
        """Record how a job ended, or note that it runs again."""
        number = ended.task.number
        was_running = number in self._running
        self._running.pop(number, None)
        if ended.runs_again:
            self._change(self._again(ended), running=-was_running)
            return
        entry = self._entry(ended, runner.is_stopping)
        del self._jobs[number]
        self._journal.add(entry)
        self.entries.append(entry)
        is_bad = not entry.is_ok and entry.outcome != "interrupted"
        self._change(entry, running=-was_running, finished=entry.is_ok, failed=is_bad)
        if is_bad and self._options.is_fail_fast:
            runner.drain()

    def _again(self, ended: CommandEnd) -> RunsAgain | None:
        """Note an attempt that is repeated uncounted; of other failures the last is reported."""
        if ended.is_counted:
            return None
        number, entry = ended.task.number, self._entry(ended, is_stopping=False)
        self._past[number] = ended.past(entry.attempts, self._past.get(number, ""))
        return RunsAgain(entry, ended.has_more_room)

    def _entry(self, ended: CommandEnd, is_stopping: bool) -> Entry:
        job = self._jobs[ended.task.number]
        outcome = "ok" if ended.status == 0 else "oom" if ended.is_out_of_memory else "failed"
        is_cut_short = is_stopping or ended.is_cancelled
        return Entry(
            id=id_of(job),
            line=job.line,
            command=os.fsencode(ended.task.label).decode("utf-8", "backslashreplace"),
            outcome="interrupted" if is_cut_short and ended.status else outcome,
            status=ended.status,
            gpu=ended.slot.name,
            started_at=round(ended.started_at, 3),
            duration_s=round(ended.duration_s, 3),
            attempts=max(1, self._starts.get(ended.task.number, 0)),
            peak_bytes=ended.peak_bytes,
            log=ended.task.log_path or "",
            trouble=ended.trouble,
            because=ended.because,
            past=self._past.get(ended.task.number, ""),
        )

    def _change(
        self,
        entry: Entry | RunsAgain | None = None,
        *,
        finished: int = 0,
        failed: int = 0,
        running: int = 0,
        skipped: int = 0,
    ) -> None:
        now = self.progress
        total = None if now.total is None else now.total - skipped
        self.progress = Progress(
            self._count if self._has_all else total,
            now.finished + finished,
            now.failed + failed,
            now.running + running,
            now.skipped + skipped,
            tuple(map(self._name, self._running)),
        )
        self._on_change(self.progress, entry)

    def _name(self, number: int) -> str:
        job = self._jobs[number]
        return job.name or os.fsdecode(job.text)


def _empty(path: str) -> None:
    """Make a file empty, if it exists; a job's shim makes it, when the job starts."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(path, 0)


def _unreadable(line: int, trouble: str) -> Entry:
    return Entry(
        id=f"line-{line}",
        line=line,
        command="",
        outcome="failed",
        status=2,
        gpu="",
        started_at=0.0,
        duration_s=0.0,
        attempts=0,
        peak_bytes=None,
        log="",
        trouble=trouble,
    )
