"""Run many commands on slots, in one thread: starts, ends, process trees.

A source decides what runs, slots decide where, and a listener receives the ends. Stopping ends
whole trees, also what left them by setsid or a double fork; when the runner itself is killed a
watchdog does that.
"""

from __future__ import annotations

import os
import select
import time

from grn.fixed_slots.watchdog import Watchdog
from grn.group.task import CommandEnd, Slot
from grn.proc import pidfd, processes, services, spawn, terminate
from grn.proc.terminate import StopSignals
from grn.proc.tree import ASK, Escalation, Process, below, family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from grn.group.roles import RunListener, Slots, Source
    from grn.group.task import SlotGrant, Task

GRACE_S = 5.0
LOOK_S = 0.02
_REAP_S = 1.0


class _Run:
    """One command that runs."""

    __slots__ = ("began", "pid", "slot", "started_at", "task")

    def __init__(self, task: Task, slot: Slot, pid: int, started_at: float, began: float) -> None:
        self.task = task
        self.slot = slot
        self.pid = pid
        self.started_at = started_at
        self.began = began


class _Later:
    """A command that the machine has no room to start at this moment."""

    __slots__ = ("at", "pauses", "slot", "task")

    def __init__(self, task: Task, slot: Slot) -> None:
        self.task = task
        self.slot = slot
        self.pauses = spawn.pauses()
        self.at = 0.0

    def put_off(self) -> bool:
        """Choose when to try again; False when it has been tried for long enough."""
        pause = next(self.pauses, None)
        self.at = time.monotonic() + (pause or 0.0)
        return pause is not None


class Runner:
    """Runs all tasks of a source; `run` returns when the last has ended."""

    _running_here = 0  # runners in this process: they share its children

    def __init__(
        self,
        slots: Slots,
        source: Source,
        listener: RunListener,
        grace_s: float = GRACE_S,
        mark: str = "",
        retries: int = 0,
    ) -> None:
        """Take a `mark` where other code of this process starts children too.

        It is a variable, `NAME=value`, that all tasks have and no other process.
        """
        self._slots = slots
        self._source = source
        self._listener = listener
        self._grace_s = grace_s
        self._steps = Escalation(grace_s)
        self._mark = os.fsencode(mark)
        self._groups: set[int] = set()  # of all our commands, if there is a mark
        self._retries = retries
        self._failures: dict[int, int] = {}  # by number of the task
        self._again: list[Task] = []
        self._later: list[_Later] = []
        self._runs: dict[int, _Run] = {}  # by pidfd
        self._pending = 0  # requested and not granted yet
        self._unsettled = 0  # returned, and not settled yet
        self._reap_at = 0.0
        self.is_draining = False  # no task is started any more; running ones may finish
        self.is_stopping = False  # running tasks are being ended
        self.stopped_by = 0  # the signal that stopped the runner

    # --- control by listeners -----------------------------------------------------

    def again(self, task: Task) -> bool:
        """Run a task again that failed with exit status 0; False if no retry is left."""
        failures = self._failures[task.number] = self._failures.get(task.number, 0) + 1
        if failures > self._retries or self.is_draining:
            return False
        self._again.append(task)
        return True

    def cancel(self, numbers: Collection[int], *, is_queued_only: bool = False) -> None:
        """End the trees of some running tasks; a waiting task is not withdrawn."""
        pids = [run.pid for run in self._runs.values() if run.task.number in numbers]
        if pids and not is_queued_only:
            terminate.take(ASK, family(self._trees(), pids))

    def drain(self) -> None:
        """Start no more tasks and let running ones finish."""
        self.is_draining = True

    def stop(self) -> None:
        """End all running tasks, with SIGTERM first; kill them at the second call."""
        now = time.monotonic()
        if self.is_stopping:
            self._steps.hurry(now)
            return
        self.is_draining = self.is_stopping = True
        self._steps.begin(now)
        self._take_step(now)

    @property
    def running(self) -> int:
        """How many commands run now."""
        return len(self._runs)

    # --- the loop ------------------------------------------------------------------------

    def run(self) -> None:
        """Run all tasks; return when the last has ended or all were stopped."""
        signals = StopSignals()
        terminate.adopt_orphans()
        Runner._running_here += 1
        self._environment = dict(os.environb)
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._elders = processes.children()  # they are no commands of ours
        self._watchdog = Watchdog(self._grace_s, self._elders, self._mark)
        self._poll = select.poll()
        self._poll.register(signals.fd, select.POLLIN)
        try:
            self._loop(signals)
        except BaseException:
            # A listener or a source broke: nothing may be left running.
            terminate.end(self._trees, Escalation(0.0), LOOK_S)
            raise
        finally:
            self._slots.close()
            self._reap_orphans()
            self._watchdog.close()
            os.close(self._null)
            Runner._running_here -= 1
            if not Runner._running_here:
                terminate.adopt_orphans(False)
            signals.close()

    def _loop(self, signals: StopSignals) -> None:
        while True:
            self._start_what_can()
            if self._is_finished():
                return
            speakers = self._listen()
            events = self._poll.poll(self._patience_ms())
            for fd in speakers:
                self._poll.unregister(fd)
            for fd, _ in events:
                if fd in self._runs:
                    self._notice_end(fd)
                elif fd == signals.fd:
                    self._hear_signals(signals)
                elif fd in speakers:
                    speakers[fd].hear()
            self._keep_time()

    def _listen(self) -> dict[int, Slots | Source]:
        """Wait on the slots, and on the source if there is room for a task."""
        speakers: list[Slots | Source] = [self._slots]
        if not self.is_draining and not self._source.is_over and self._slots.has_room():
            speakers.append(self._source)
        listening = {fd: one for one in speakers if (fd := one.fileno()) is not None}
        for fd in listening:
            self._poll.register(fd, select.POLLIN)
        return listening

    def _patience_ms(self) -> float | None:
        now = time.monotonic()
        times = [at for at in (self._steps.next_at, self._slots.wake_at) if at is not None]
        times += [later.at for later in self._later]
        if self.is_stopping and not self._runs:
            times.append(now + LOOK_S)  # no pidfd shows the end of a process that left its tree
        return max(0.0, (min(times) - now) * 1000 + 1) if times else None

    def _keep_time(self) -> None:
        now = time.monotonic()
        if self._slots.wake_at is not None and now >= self._slots.wake_at:
            self._slots.hear()
        self._take_step(now)
        self._start_later(now)

    def _start_later(self, now: float) -> None:
        """Retry postponed starts; return the slots of tasks that are not wanted any more."""
        due = [one for one in self._later if self.is_draining or now >= one.at]
        self._later = [one for one in self._later if one not in due]
        for later in due:
            if self.is_draining:
                self._slots.unused(later.slot)
            else:
                self._spawn(later)

    def _is_finished(self) -> bool:
        if self._runs or self._unsettled or self._later:
            return False
        if self.is_stopping:
            return self._steps.has_given_up(time.monotonic()) or not self._trees()
        if self.is_draining:
            return True
        return self._source.is_over and not self._pending and not self._again

    def _hear_signals(self, signals: StopSignals) -> None:
        for signum in signals.read():
            self.stopped_by = self.stopped_by or signum
            self.stop()

    # --- starting ------------------------------------------------------------------------

    def _start_what_can(self) -> None:
        """Report ends, request slots while there is room, start tasks with a slot."""
        while True:
            self._tell_of_ends()  # first: a listener may stop the runner on a failure
            if self.is_draining and self._pending:
                self._slots.withdraw()
                self._pending = 0
            while not self.is_draining and self._slots.has_room():
                task = self._again.pop(0) if self._again else self._source.next_task()
                if task is None:
                    break
                self._pending += 1
                self._slots.ask(task)
            grants = self._slots.grants()
            if not grants:
                return
            for grant in grants:
                self._use(grant)

    def _use(self, grant: SlotGrant) -> None:
        self._pending -= 1
        if grant.slot is None:
            nowhere = Slot("", {})
            trouble = grant.refusal
            now = time.time()
            status = spawn.NOT_RUNNABLE
            ended = CommandEnd(grant.task, nowhere, status, now, 0.0, trouble=trouble)
            self._listener.ended(self, ended)
            return
        if self.is_draining:  # it came too late
            self._slots.unused(grant.slot)
            return
        self._start(grant.task, grant.slot)

    def _start(self, task: Task, slot: Slot) -> None:
        self._listener.starting(self, task, slot)
        if self.is_stopping:
            self._slots.unused(slot)
            return
        self._spawn(_Later(task, slot))

    def _spawn(self, later: _Later) -> None:
        task, slot = later.task, later.slot
        started_at, began = time.time(), time.monotonic()
        self._watchdog.expect()
        try:
            pid = self._spawn_now(task, slot)
        except spawn.NotStarted as error:
            self._watchdog.add(None)
            if error.is_passing and later.put_off():
                self._later.append(later)
                return
            ended = CommandEnd(task, slot, error.status, started_at, 0.0, trouble=error.trouble)
            self._give(ended)
            return
        self._watchdog.add(pid)
        if self._mark:
            self._groups.add(pid)
        fd = pidfd.open_child(pid)
        self._runs[fd] = _Run(task, slot, pid, started_at, began)
        self._poll.register(fd, select.POLLIN)
        self._slots.started(slot, pid)

    def _spawn_now(self, task: Task, slot: Slot) -> int:
        """Start a command as the leader of a process group and return its pid; raise NotStarted.

        Not of a session: the kernel shares the CPU out among sessions, and on a busy machine short
        commands would take nearly twice as long.
        """
        log = home = -1
        try:
            environment = self._environment.copy()
            for changes in (task.environment, slot.environment):
                for name, value in changes.items():
                    environment[os.fsencode(name)] = os.fsencode(value)
            if task.log_path is not None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                log = os.open(task.log_path, flags, 0o666)
            if task.folder is not None:
                home = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                os.chdir(task.folder)
            return spawn.command(task.argv, environment, (self._null, log, log), setpgroup=0)
        except (OSError, ValueError) as error:
            raise spawn.not_started(task.argv, error) from error
        finally:
            if home >= 0:
                os.fchdir(home)
                os.close(home)
            if log >= 0:
                os.close(log)

    # --- ends ----------------------------------------------------------------------------

    def _notice_end(self, fd: int) -> None:
        run = self._runs.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        _, raw = os.waitpid(run.pid, 0)
        self._watchdog.remove(run.pid)
        status = os.waitstatus_to_exitcode(raw)
        took_s = time.monotonic() - run.began
        ended = CommandEnd(run.task, run.slot, status, run.started_at, took_s)
        self._give(ended)
        if time.monotonic() >= self._reap_at:
            self._reap_orphans()

    def _give(self, ended: CommandEnd) -> None:
        self._unsettled += 1
        self._slots.give(ended)

    def _tell_of_ends(self) -> int:
        """Report ends to the listener; return their number."""
        ends = self._slots.settled()
        for ended in ends:
            self._unsettled -= 1
            runs_again = bool(ended.status) and self.again(ended.task)
            self._listener.ended(self, ended.but(runs_again=runs_again, is_counted=runs_again))
        return len(ends)

    # --- whole trees ---------------------------------------------------------------------

    def _trees(self) -> list[Process]:
        """Return all processes that the commands have started, also those that left their tree.

        Each command has its own process group, so a process in ours was started by other code of
        this process.
        """
        own = os.getpgrp()
        candidates = below(processes.everyone(), os.getpid(), {self._watchdog.pid, *self._elders})
        seeds = [one.pid for one in candidates if one.group != own and self._is_ours(one)]
        found = [one for one in family(candidates, seeds) if one.group != own and not one.is_over]
        served = services.spared(found)  # daemons serve others as well
        return [one for one in found if one.pid not in served]

    def _is_ours(self, one: Process) -> bool:
        """True for processes of the commands; without a mark this process starts no others."""
        if not self._mark or one.group in self._groups:
            return True
        return processes.has_variable(one.pid, self._mark)

    def _take_step(self, now: float) -> None:
        step = self._steps.due(now)
        if step:
            terminate.take(step, self._trees())

    def _reap_orphans(self) -> None:
        """Reap orphans of the commands, once in a while."""
        self._reap_at = time.monotonic() + _REAP_S
        known = {self._watchdog.pid, *self._elders, *(run.pid for run in self._runs.values())}
        own = os.getpgrp()
        for pid in processes.children():
            found = processes.look(pid) if pid not in known else None
            if found is not None and found.is_over and found.group != own and self._is_ours(found):
                os.waitpid(pid, os.WNOHANG)
