"""Run a sweep: each point becomes a run in its folder, and its result is kept.

Finished runs are never repeated; failed and interrupted ones are. A feed decides the next point: a
walk through all of them, or a search that learns from results.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from grn.client import remote_call
from grn.errors import MachineError, UsageError
from grn.group.choose_runner import runner_for
from grn.group.roles import Progress, RunControl, Slots
from grn.group.task import CommandEnd, Slot, Task
from grn.sweep.manifest import LOG_FILE, About, RunManifest, RunState, SweepFolder, git_commit
from grn.sweep.plan import Plan
from grn.sweep.results import Table, judged
from grn.sweep.space import Point
from grn.sweep.values import fingerprint, folder_name, spelled

WRITE_EVERY_S = 2.0
AHEAD = 64  # folders made in advance
_UNDER_WAY = (RunState.RUNNING, RunState.REQUEUED)

_MARK = "GRN_SWEEP"  # marks all processes of one sweep


class Feed(Protocol):
    """The points to run."""

    @property
    def is_over(self) -> bool:
        """True when there are no more points."""

    def next_point(self) -> Point | None:
        """Return the next point, None if there is none yet."""

    def heard(self, run: RunManifest) -> RunManifest:
        """Learn from a run that has ended, and return it as it counts."""


class Walk:
    """A feed of known points."""

    def __init__(self, points: Iterable[Point]) -> None:
        self._points = deque(points)

    @property
    def is_over(self) -> bool:
        """True when all have been taken."""
        return not self._points

    def next_point(self) -> Point | None:
        """Return the next point."""
        return self._points.popleft() if self._points else None

    def heard(self, run: RunManifest) -> RunManifest:
        """Return the run unchanged: a walk does not learn."""
        return run


class Study:
    """One sweep while it runs: the source and the listener of its runner."""

    def __init__(
        self, plan: Plan, on_change: Callable[[Progress, RunManifest | None], None]
    ) -> None:
        self.plan = plan
        self.folder = SweepFolder(plan.out)
        self._on_change = on_change
        self._known: dict[str, RunManifest] = {}  # by fingerprint
        self._names: dict[str, str] = {}  # folder -> fingerprint of its point
        self._in_flight: dict[int, RunManifest] = {}  # by number of the task
        self._last_index = 0
        self._git: str | None = None
        self._write_at = 0.0
        self.progress = Progress(None)
        self._mark = os.urandom(8).hex()
        self.stopped_by = 0

    # --- before and after ----------------------------------------------------------------

    def open(self) -> None:
        """Lock the folder and read earlier runs."""
        self.folder.lock()
        self._git = git_commit(os.getcwd())
        about = self.folder.about()
        if about is not None and (about.command, about.is_shell) != (
            self.plan.text,
            self._is_shell,
        ):
            raise UsageError(
                f"the folder {self.folder.path} holds a sweep of another command: {about.command}.",
                "Choose another with --out or --name.",
            )
        self.folder.write_about(self._about(about))
        self.read()
        for run in list(self._known.values()):
            if run.state in _UNDER_WAY:  # its process is gone: this one has the lock
                self._keep(replace(run, state=RunState.INTERRUPTED))

    def read(self) -> None:
        """Read earlier runs, and change nothing."""
        for run in self.folder.runs():
            self._last_index = max(self._last_index, run.index)
            self._known[run.fingerprint] = run
            self._names[run.run] = run.fingerprint

    def close(self) -> None:
        """Unlock the folder."""
        self.folder.unlock()

    def known(self) -> list[RunManifest]:
        """Return the runs, in order."""
        return sorted(self._known.values(), key=lambda run: run.index)

    def is_finished(self, point: Point) -> bool:
        """True when a point has finished and need not run again."""
        run = self._known.get(fingerprint(point))
        return run is not None and run.state is RunState.FINISHED and not self.plan.is_rerun

    def table(self) -> Table:
        """Return all results so far."""
        return Table(self.known(), self.plan.space.names)

    def run(
        self,
        feed: Feed,
        total: int | None,
        skipped: int = 0,
        on_wait: Callable[[Task, str], None] | None = None,
        slots: Slots | None = None,
    ) -> None:
        """Run all points of a feed; return when they have ended or were stopped."""
        self._feed = feed
        self.progress = Progress(total, skipped=skipped)
        # The mark keeps other children of the calling script out of the sweep.
        runner = runner_for(
            self, self, self.plan.name, slots=slots, retries=self.plan.retries,
            is_fail_fast=self.plan.is_fail_fast, on_wait=on_wait, ahead=AHEAD,
            mark=f"{_MARK}={self._mark}", may_nest=not self.plan.needs.is_elsewhere,
        )  # fmt: skip
        try:
            runner.run()
        finally:
            self.stopped_by = runner.stopped_by
            for run in self._in_flight.values():  # none of the runs is alive any more
                if run.state in _UNDER_WAY:
                    self._keep(replace(run, state=RunState.INTERRUPTED))
            self._write_table()

    # --- the source ----------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True when no more points will come."""
        return self._feed.is_over

    def next_task(self) -> Task | None:
        """Make the task of the next point."""
        if self.plan.parallel is not None and len(self._in_flight) >= self.plan.parallel:
            return None
        point = self._feed.next_point()
        if point is None:
            return None
        run = self.run_of(point)
        self._in_flight[run.index] = run
        folder = self.folder.run_dir(run.run)
        _set_aside(self.plan, folder, run.attempt - 1)
        _prepare(self.plan, folder, run)
        return Task(
            number=run.index,
            argv=run.command,
            label=run.run,
            environment={"GRN_RUN_DIR": folder, _MARK: self._mark},
            log_path=os.path.join(folder, LOG_FILE),
            needs=self.plan.needs,
        )

    def fileno(self) -> int | None:
        """Return None: points need no input."""
        return None

    def hear(self) -> None:
        """Do nothing: there is no input to read."""

    # --- the listener --------------------------------------------------------------------

    def starting(self, runner: RunControl, task: Task, slot: Slot) -> None:
        """Record that a run has started."""
        run = replace(
            self._in_flight[task.number],
            state=RunState.RUNNING,
            started_at=time.time(),
            gpu=slot.name,
        )
        self._in_flight[task.number] = run
        self._keep(run)
        self._change(run, running=1)

    def ended(self, runner: RunControl, ended: CommandEnd) -> None:
        """Record how a run ended, or repeat it."""
        run = self._in_flight[ended.task.number]
        was_running = run.state is RunState.RUNNING
        run = judged(self.plan, self.folder.run_dir(run.run), run, ended)
        if runner.is_stopping or ended.is_cancelled:
            run = replace(run, state=RunState.INTERRUPTED)
        # A run without its result has failed, also with exit status 0.
        lacks_result = run.state is RunState.FAILED and ended.status == 0
        if ended.runs_again or (lacks_result and runner.again(ended.task)):
            self._change(self._to_run_again(run, ended), running=-was_running)
            return
        del self._in_flight[ended.task.number]
        run = self._feed.heard(run)
        self._keep(run)
        is_good = run.state is RunState.FINISHED
        is_bad = run.state is RunState.FAILED
        self._change(run, running=-was_running, finished=is_good, failed=is_bad)
        if is_bad and self.plan.is_fail_fast:
            runner.drain()
        if time.monotonic() >= self._write_at:
            self._write_table()

    def _to_run_again(self, run: RunManifest, ended: CommandEnd) -> RunManifest:
        """Record how an attempt ended and prepare the folder for the next; return the run."""
        if ended.runs_again and not ended.is_counted:
            run = replace(run, past=ended.past(run.attempt, run.past))
        self._keep(run)
        folder = self.folder.run_dir(run.run)
        _set_aside(self.plan, folder, run.attempt)
        _prepare(self.plan, folder, run)
        self._in_flight[ended.task.number] = replace(run, attempt=run.attempt + 1)
        return run

    # --- runs ----------------------------------------------------------------------------

    def run_of(self, point: Point) -> RunManifest:
        """Make the run of a point, in the folder it had before if there is one."""
        mark = fingerprint(point)
        before = self._known.get(mark)
        if before is not None:
            index, name, tried = before.index, before.run, before.attempt + 1
        else:
            index = self._last_index = self._last_index + 1
            name, tried = folder_name(point), 1
            if self._names.get(name, mark) != mark:
                name = f"{name}~{mark[:8]}"
        self._names[name] = mark
        params = dict(point)
        run = RunManifest(
            run=name,
            fingerprint=mark,
            index=index,
            params=params,
            state=RunState.INTERRUPTED,
            seed=params.get("seed"),
            attempt=tried,
            git=self._git,
        )
        return replace(run, command=self._argv(run))

    def _argv(self, run: RunManifest) -> tuple[str, ...]:
        folder = self.folder.run_dir(run.run)
        if self.plan.command is None:
            return (sys.executable, "-m", "grn.client.remote_call", folder)
        return self.plan.command.fill(filling(run.params, run.run, folder, run.index))

    # --- reporting -------------------------------------------------------------------------

    def _keep(self, run: RunManifest) -> None:
        self._known[run.fingerprint] = run
        self.folder.write_run(run)

    def _write_table(self) -> None:
        began = time.monotonic()
        table = self.table()
        table.to_csv(os.path.join(self.folder.path, "results.csv"))
        table.to_json_lines(os.path.join(self.folder.path, "results.jsonl"))
        now = time.monotonic()
        self._write_at = now + max(WRITE_EVERY_S, 20 * (now - began))  # large tables are slow

    def _change(self, run: RunManifest, **counts: int) -> None:
        running = (one.run for one in self._in_flight.values() if one.state is RunState.RUNNING)
        self.progress = replace(self.progress.plus(**counts), names=tuple(running))
        self._on_change(self.progress, run)

    @property
    def _is_shell(self) -> bool:
        return self.plan.command is not None and self.plan.command.is_shell

    def _about(self, before: About | None) -> About:
        return About(
            name=self.plan.name,
            command=self.plan.text,
            is_shell=self._is_shell,
            parameters=self.plan.space.names,
            created_at=before.created_at if before else time.time(),
            metric=self.plan.metric or (before.metric if before else ""),
            is_maximized=self.plan.is_maximized if self.plan.metric or not before
            else before.is_maximized,
            git=self._git,
        )  # fmt: skip


def filling(params: Mapping[str, object], run: str, run_dir: str, index: int) -> dict[str, str]:
    """Return the texts for the holes of a command."""
    texts = {name: spelled(value) for name, value in params.items()}
    own = {"run": run, "run_dir": run_dir, "index": str(index), "params": json.dumps(dict(params))}
    return {**texts, **own}


def left_to_run(study: Study, points: Sequence[Point]) -> list[Point]:
    """Return the points that have not finished yet."""
    return [point for point in points if not study.is_finished(point)]


def _set_aside(plan: Plan, folder: str, attempt: int) -> None:
    """Rename the log of an attempt and remove its result, so that the next cannot be mistaken."""
    log = os.path.join(folder, LOG_FILE)
    try:
        if os.path.exists(log):
            os.replace(log, os.path.join(folder, f"log.{attempt}.txt"))
        for name in filter(None, (remote_call.REPLY_FILE, plan.result_file)):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                os.unlink(path)
    except OSError as error:
        raise MachineError(f"{folder} cannot be used: {error.strerror}.") from error


def _prepare(plan: Plan, folder: str, run: RunManifest) -> None:
    """Make the folder of a run; for a function, write the call into it."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise MachineError(f"{folder} cannot be made: {error.strerror}.") from error
    if plan.function is not None:
        remote_call.leave_call(folder, plan.function, (), dict(run.params))
