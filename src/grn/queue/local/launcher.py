"""Start and watch attempts: shims come from the forker and report each end. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grn import wire
from grn.client import remote_call
from grn.client.leasing import frameworks
from grn.proc import memory_limit, services, spawn, terminate
from grn.proc.spawn import SERVICE
from grn.queue.jobs.job import EndReason, Exit
from grn.queue.journal.rows import Command
from grn.queue.local import attempt_files as folders
from grn.queue.local.channel import MAX_SAID, GoOrder, StartOrder, StopOrder
from grn.queue.local.recovery import Recovery
from grn.queue.local.workers import LaunchSettings, LaunchTask, Postponed, Record, Spares, Worker
from grn.queue.site import Attempt, Found, SiteListener

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

log = logging.getLogger(__name__)
IDLE_S = 2.0
START_AGAIN_S = 0.5
MAX_NOTED = 10_000


class Launcher:
    """The forker, the shims it has forked, and the shims of earlier queues."""

    def __init__(
        self,
        settings: LaunchSettings,
        listener: SiteListener,
        put_back: Callable[[Attempt], bool] = lambda _: False,
    ) -> None:
        """Make a launcher; `put_back` takes an attempt that could not begin, True if it does."""
        self._settings = settings
        self._put_back = put_back
        self.log_bytes = settings.log_bytes
        self._listener = listener
        self._forker: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._busy: dict[Attempt, Worker] = {}
        self._idle: list[Worker] = []
        self._spares = Spares()
        self._postponed = Postponed()
        self._is_postponing = False
        self._is_sweeping = False
        self._recovery = Recovery(settings, self.report)
        self._noted = 0  # attempts given to shims since the list of begun ones was shortened

    # --- starting ------------------------------------------------------------------------

    def open(self) -> None:
        """Start the forker."""
        memory_limit.prepare()
        self._line, theirs = socket.socketpair()
        with theirs:
            self._forker = spawn.child(
                [sys.executable, "-S", "-E", "-c", _FORKER_CODE, *sys.path],
                stdin=theirs.fileno(),
                start_new_session=True,
                env={**os.environ, SERVICE: "shims"},
            )

    def close(self) -> None:
        """Close the channels; shims and their commands continue."""
        loop = asyncio.get_running_loop()
        for worker in [*self._idle, *self._busy.values()]:
            loop.remove_reader(worker.channel)
            worker.channel.close()
        self._recovery.adopted.close()
        if self._line is not None:
            self._line.close()

    def prepare(self, attempt: Attempt, command: Command) -> None:
        """Give an idle shim all that is known of an attempt before its lease."""
        if self._idle and not any(one.is_ready_for(attempt) for one in self._idle):
            worker = self._idle[-1]
            if worker.order(self._order(worker, attempt, command).but(is_ahead=True)):
                worker.knows.add(command.environment_id)
                worker.ahead = attempt, command

    def start(self, attempt: Attempt, command: Command, lease: str, visible: str) -> None:
        """Give an attempt to an idle shim, or to a new one."""
        self._start(LaunchTask(attempt, command, lease, visible))

    def _start(self, task: LaunchTask) -> None:
        self._idle.sort(key=lambda one: one.is_ready_for(task.attempt))
        while self._idle:
            if self._give(self._idle.pop(), task):
                return
        try:
            is_given = self._give(self._new_worker(), task)
        except OSError as error:
            log.error("action=start result=failed job=%d reason=%r", task.attempt.job, str(error))
            is_given = False
        if not is_given:
            self._start_later(task)

    def _start_later(self, task: LaunchTask) -> None:
        """Try again: a shim that is gone without a claim has not begun its attempt."""
        if self._put_back(task.attempt):
            return
        log.warning("action=start-again job=%d", task.attempt.job)
        self._postponed.add(task)
        self._postpone()

    def _postpone(self) -> None:
        if self._postponed.tasks and not self._is_postponing:
            self._is_postponing = True
            asyncio.get_running_loop().call_later(START_AGAIN_S, self._start_postponed)

    def _start_postponed(self) -> None:
        self._is_postponing = False
        for task in self._postponed.take():
            self._start(task)
        self._postpone()

    def _give(self, worker: Worker, task: LaunchTask) -> bool:
        """Order a shim to start an attempt; False when it is gone."""
        attempt, command, spare = task.attempt, task.command, self._spares.take()
        order: StartOrder | GoOrder
        bare = command if command.memory_cap is None else replace(command, memory_cap=None)
        if worker.ahead == (attempt, bare):
            order = GoOrder(task.lease, task.visible, command.memory_cap, spare)
        else:
            order = self._order(worker, attempt, command).but(
                lease=task.lease, visible=task.visible, cap=command.memory_cap, spare=spare
            )
        worker.ahead = None
        if not worker.order(order):
            self._drop(worker)
            return False
        worker.knows.add(command.environment_id)
        worker.task = task
        self._busy[attempt] = worker
        self._noted += 1
        if self._noted >= MAX_NOTED:
            self.tidy()
        self._listener.attempt_started(attempt)
        return True

    def _order(self, worker: Worker, attempt: Attempt, command: Command) -> StartOrder:
        """Return the order of an attempt, with all but what its lease says."""
        settings, folder = self._settings, self._settings.folder(attempt)
        base, stop_signal = command.environment_id, command.ending.signal
        return StartOrder(
            folder=folder,
            argv=command.argv,
            cwd=command.cwd,
            environment_id=base,
            new_environment=None if base in worker.knows else command.environment,
            extra={
                **_reply_path(command, folder),
                **command.extra,
                "GRN_JOB_ID": str(attempt.job),
                "GRN_ATTEMPT": str(attempt.number),
                **({"GRN_STOP_SIGNAL": str(stop_signal)} if stop_signal else {}),
                services.TAG: settings.tag(attempt),
                frameworks.PEAK_FILE: wire.spelled(folders.peak_file_of(folder)),
            },
            umask=command.umask,
            lease="",
            visible="",
            grace_s=settings.grace_s if command.ending.grace_s is None else command.ending.grace_s,
            stop_signal=stop_signal,
            again=command.ending.again,
            log_bytes=self.log_bytes,
            queue_lock=settings.queue_lock,
            begun=settings.begun,
            time_limit_s=command.time_limit_s,
            log=command.log,
            ram=command.ram_bytes,
        )

    def _new_worker(self) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._send_channel(theirs)
            except OSError:  # the forker was killed: its shims live, a new one forks more
                log.error("action=restart-forker")
                self._close_forker()
                self.open()
                self._send_channel(theirs)
        ours.setblocking(False)
        worker = Worker(ours)
        asyncio.get_running_loop().add_reader(ours, self._hear, worker)
        return worker

    def _send_channel(self, theirs: socket.socket) -> None:
        assert self._line is not None
        socket.send_fds(self._line, [b"F"], [theirs.fileno()])

    def _close_forker(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._forker is not None:
            terminate.end_child(self._forker, 0.0)

    # --- watching ------------------------------------------------------------------------

    def _hear(self, worker: Worker) -> None:
        """Handle a shim that is done, or gone."""
        try:
            said = worker.channel.recv(MAX_SAID)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        task, worker.task = worker.task, None
        if not said:
            if worker in self._idle:
                self._idle.remove(worker)
            self._drop(worker)
        elif task is not None:
            worker.idle_since = time.monotonic()
            self._idle.append(worker)
            self._sweep_later()
        if task is None:
            return
        self._busy.pop(task.attempt, None)
        if not said and not self._recovery.has_begun_by_now(task.attempt):
            self._start_later(task)
            return
        record = folders.exit_in(said)
        if record is not None:
            self._spares.ended(task.attempt, record)
        self.report(task.attempt, record)
        if self._idle and self._postponed.tasks:  # a shim and a process slot are free
            self._start(self._postponed.tasks.popleft())

    def written(self, attempt: Attempt) -> None:
        """Note that the end of an attempt is in the journal."""
        self._spares.settled(attempt, self.folder(attempt))

    def _sweep_later(self) -> None:
        if not self._is_sweeping:
            self._is_sweeping = True
            asyncio.get_running_loop().call_later(IDLE_S, self._sweep)

    def _sweep(self) -> None:
        """End shims that have been idle for a while; the last used is reused first."""
        self._is_sweeping = False
        old = time.monotonic() - IDLE_S
        while self._idle and self._idle[0].idle_since <= old:
            self._drop(self._idle.pop(0))
        if self._idle:
            self._sweep_later()

    def _drop(self, worker: Worker) -> None:
        if worker.channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(worker.channel)
            worker.channel.close()

    def stop(self, attempt: Attempt, is_now: bool, *, is_yield: bool = False) -> None:
        """Make the shim end its command's whole tree."""
        worker = self._busy.get(attempt)
        if worker is not None:
            worker.order(StopOrder(self.folder(attempt), is_now, is_yield))
            return
        self._recovery.adopted.send(attempt, signal.SIGUSR1 if is_now else signal.SIGTERM)

    # --- ends and files ------------------------------------------------------------------

    def folder(self, attempt: Attempt) -> str:
        """Return where an attempt's files are."""
        return self._settings.folder(attempt)

    def find(self, attempt: Attempt, is_same_boot: bool, lease: str = "") -> Found:
        """Find an attempt of before a restart; report its end if it lives."""
        return self._recovery.find(attempt, is_same_boot)

    def runs(self, attempt: Attempt) -> bool:
        """True while an attempt has a shim, or waits for one."""
        is_postponed = any(task.attempt == attempt for task in self._postponed.tasks)
        return attempt in self._busy or attempt in self._recovery.adopted or is_postponed

    def attempts(self) -> list[Attempt]:
        """Return the attempts that have a shim."""
        return [*self._busy, *self._recovery.adopted]

    @property
    def has_attempts(self) -> bool:
        """True while any attempt runs or waits for a shim."""
        return bool(self._busy or self._recovery.adopted or self._postponed.tasks)

    def tidy(self) -> None:
        """Shorten the list of begun attempts to those that are under way."""
        self._noted = 0
        self._recovery.keep_only(self._busy)

    def report(self, attempt: Attempt, said: Record | None = None) -> None:
        """Report how an attempt ended; first end the leftovers of a killed shim."""
        exit = self.exit_of(attempt, said)
        if exit is None:
            killed = self.end_leftovers(attempt)
            log.warning(
                "action=shim-lost job=%d attempt=%d killed=%d", attempt.job, attempt.number, killed
            )
        self._listener.attempt_ended(attempt, exit)

    def exit_of(self, attempt: Attempt, said: Record | None = None) -> Exit | None:
        """Return an attempt's end by its shim's message or record; None without a valid one."""
        try:
            record = said or folders.read_exit(self.folder(attempt))
            return None if record is None else _exit(record)
        except (OSError, TypeError, ValueError):
            log.exception(
                "action=read-exit result=failed job=%d attempt=%d", attempt.job, attempt.number
            )
            return None

    def end_leftovers(self, attempt: Attempt) -> int:
        """Kill the processes that a killed shim left; return their number."""
        tag = self._settings.tag(attempt)
        killed = terminate.end_marked(tag)
        memory_limit.remove(tag)
        return killed

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        """Delete the folders of jobs, given their numbers of attempts."""
        for job, attempts in jobs:
            for number in range(1, attempts + 1):
                folders.remove(self.folder(Attempt(job, number)))


_FORKER_CODE = (
    "import sys; sys.path[:] = sys.argv[1:]; from grn.queue.local import forker; forker.main()"
)


def _reply_path(command: Command, folder: str) -> dict[str, str]:
    """Name the file for the reply of a submitted call."""
    if remote_call.CALL not in command.extra:
        return {}
    return {remote_call.REPLY_PATH: wire.spelled(os.path.join(folder, remote_call.REPLY_FILE))}


def _exit(record: dict[str, Any]) -> Exit:
    because = record.get("because")
    return Exit(
        status=record.get("status"),
        signal=record.get("signal"),
        because=EndReason(because) if because else None,
        text=record.get("text", ""),
        resident_bytes=record.get("resident"),
        asked_bytes=record.get("asked"),
        gpu_peak_bytes=record.get("gpu_peak"),
        is_killed=record.get("killed", False),
        is_capped=record.get("capped", False),
        ran_s=record.get("ran_s", 0.0),
        ended_at=record.get("ended_at", 0.0),
    )
