"""Start and watch attempts, and find them again after a restart of the queue.

Starts shims through the forker and learns of their end by pidfd. Decides nothing.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grn.errors import MachineError
from grn.interpreter import SERVICE
from grn.model.job import Holder
from grn.proc import pidfd, services, spawn, terminate
from grn.proc.watch import Watches
from grn.queue import finish
from grn.queue.job import AttemptFate, EndReason, Exit
from grn.queue.journal.rows import Command
from grn.queue.local import attempt_files as folders
from grn.queue.local import evidence
from grn.queue.local.channel import MAX_SAID
from grn.queue.local.evidence import Evidence
from grn.queue.local.workers import LaunchTask, Postponed, Record, Spares, Worker
from grn.queue.site import Attempt, Found, SiteListener

if TYPE_CHECKING:
    import subprocess

log = logging.getLogger(__name__)
IDLE_S = 2.0
START_AGAIN_S = 0.5
LOOK_AGAIN_S = 0.001
MAX_NOTED = 10_000


_OF_ITS_FILES = {  # errors that concern one attempt; the others concern the disk
    errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.ELOOP,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """How commands are run: where their files go, how long they get to end, how much they log."""

    root: str  # of all attempts' folders
    queue_id: str
    queue_lock: str
    grace_s: float = 10.0
    log_bytes: int = 64 << 20


class Launcher:
    """The forker, the shims it has forked, and the shims of earlier queues."""

    def __init__(
        self,
        manners: LaunchSettings,
        listener: SiteListener,
    ) -> None:
        self._manners = manners
        self._listener = listener
        self._forker: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._busy: dict[Attempt, Worker] = {}
        self._idle: list[Worker] = []
        self._spares = Spares()
        self._postponed = Postponed()
        self._is_postponing = False
        self._is_sweeping = False
        # Shims of earlier queues; they exit when their attempt has ended.
        self._adopted = Watches[Attempt](self.report)
        self._begun = evidence.path_beside(manners.queue_lock)
        self._noted = 0  # attempts given to shims since that file was shortened
        self._evidence: Evidence | None = None

    # --- starting ------------------------------------------------------------------------

    def open(self) -> None:
        """Start the forker."""
        self._line, theirs = socket.socketpair()
        with theirs:
            self._forker = spawn.child(
                [sys.executable, "-S", "-E", "-c", _FORKER_CODE, *sys.path],
                stdin=theirs.fileno(),
                start_new_session=True,
                env={**os.environ, SERVICE: "shims"},
            )

    def close(self) -> None:
        """Hang up; shims and their commands live on."""
        loop = asyncio.get_running_loop()
        for worker in [*self._idle, *self._busy.values()]:
            loop.remove_reader(worker.channel)
            worker.channel.close()
        self._adopted.close()
        if self._line is not None:
            self._line.close()

    def start(self, attempt: Attempt, command: Command, lease: str, visible: str) -> None:
        """Give an attempt to an idle shim, or to a new one."""
        self._start(LaunchTask(attempt, command, lease, visible))

    def _start(self, task: LaunchTask) -> None:
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
        manners, attempt, command = self._manners, task.attempt, task.command
        base = command.environment_id
        order = {
            "folder": self.folder(attempt),
            "argv": command.argv,
            "cwd": command.cwd,
            "log": command.log,
            "new": {} if base in worker.knows else {base: command.environment},
            "base": base,
            "extra": {
                **command.extra,
                "GRN_JOB_ID": str(attempt.job),
                "GRN_ATTEMPT": str(attempt.number),
                services.TAG: self.tag(attempt),
            },
            "umask": command.umask,
            "spare": self._spares.take(),
            "lease": task.lease,
            "visible": task.visible,
            "grace_s": manners.grace_s,
            "log_bytes": manners.log_bytes,
            "time_limit_s": command.time_limit_s,
            "queue_lock": manners.queue_lock,
            "begun": self._begun,
        }
        if not worker.order(order):
            self._drop(worker)
            return False
        worker.knows.add(base)
        worker.task = task
        self._busy[attempt] = worker
        self._noted += 1
        if self._noted >= MAX_NOTED:
            self.tidy()
        self._listener.attempt_started(attempt)
        return True

    def _new_worker(self) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._send_channel(theirs)
            except OSError:  # the forker was killed: shims live on, a new one makes more
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
        """A shim says that it is done, or is gone."""
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
        if not said and folders.read_claim(self.folder(task.attempt)) is None:
            self._evidence = None  # of earlier moments
            if not self._has_begun(task.attempt):
                self._start_later(task)
                return
        record = folders.exit_in(said)
        if record is not None:
            self._spares.ended(task.attempt, record)
        self.report(task.attempt, record)
        if self._idle and self._postponed.tasks:  # this shim is free, and so is its command's place
            self._start(self._postponed.tasks.popleft())

    def written(self, attempt: Attempt) -> None:
        """Note that the end of an attempt is in the journal."""
        self._spares.settled(attempt, self.folder(attempt))

    def _sweep_later(self) -> None:
        if not self._is_sweeping:
            self._is_sweeping = True
            asyncio.get_running_loop().call_later(IDLE_S, self._sweep)

    def _sweep(self) -> None:
        """End shims that have had nothing to do for a while; the last used is used first."""
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

    def stop(self, attempt: Attempt, is_now: bool) -> None:
        """Ask the shim to end its command's whole tree."""
        worker = self._busy.get(attempt)
        if worker is not None:
            worker.order({"stop": self.folder(attempt), "now": is_now})
            return
        self._adopted.send(attempt, signal.SIGUSR1 if is_now else signal.SIGTERM)

    # --- finding -------------------------------------------------------------------------

    def folder(self, attempt: Attempt) -> str:
        """Return where an attempt's files are."""
        return folders.folder_of(self._manners.root, attempt.job, attempt.number)

    def tag(self, attempt: Attempt) -> str:
        """Return the mark that all processes of an attempt carry in their environment."""
        return f"{self._manners.queue_id}.{attempt.job}.{attempt.number}"

    def find(self, attempt: Attempt, is_same_boot: bool) -> Found:
        """Find what became of an attempt that was begun before a restart; watch it if it lives.

        Where its files cannot be used, its processes alone tell whether it lives.
        """
        try:
            while (fate := self._look(attempt, is_same_boot)) is None:
                time.sleep(LOOK_AGAIN_S)
        except OSError as error:
            folder = self.folder(attempt)
            if error.errno not in _OF_ITS_FILES:
                raise MachineError(
                    f"the folder {folder} cannot be used: {error.strerror}.",
                    "Make room on that disk, or make it writable; nothing is lost.",
                ) from error
            fault = f"its files {folder}* cannot be used: {error.strerror}: it is not run again"
            log.error("action=set-aside job=%d reason=%r", attempt.job, fault)
            fate = AttemptFate.ALIVE if self._adopt_by_lock(attempt) else AttemptFate.LOST
            return Found(fate, fault)
        return Found(fate)

    def _look(self, attempt: Attempt, is_same_boot: bool) -> AttemptFate | None:
        """Look at an attempt once; None when it changed while we looked."""
        folder = self.folder(attempt)
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        is_locked = folders.is_locked(folder)
        claim = folders.read_claim(folder)
        if not claim and is_same_boot:
            return self._look_without_claim(attempt, claim, is_locked)
        result = finish.found(
            has_claim=bool(claim) and claim != folders.FORBIDDEN,
            is_locked=is_locked and claim != folders.FORBIDDEN,
            has_exit=folders.read_exit(folder, is_same_boot=is_same_boot) is not None,
            is_same_boot=is_same_boot,
        )
        if result is AttemptFate.ALIVE and not self._adopt(attempt, claim or ""):
            return None
        return result

    def _look_without_claim(
        self, attempt: Attempt, claim: str | None, is_locked: bool
    ) -> AttemptFate | None:
        """Look at an attempt whose record is not there, or is empty."""
        if self._adopt_by_lock(attempt):
            return AttemptFate.ALIVE
        if self._has_begun(attempt):
            log.error("action=recover job=%d reason='its record is gone'", attempt.job)
            return AttemptFate.LOST
        if claim is None:  # whoever makes the record decides, also a shim that is about to
            return AttemptFate.NOT_BEGUN if folders.forbid(self.folder(attempt)) else None
        return None if is_locked else AttemptFate.NOT_BEGUN

    def _look_around(self) -> Evidence:
        if self._evidence is None:
            self._evidence = Evidence(self._begun)
        return self._evidence

    def _has_begun(self, attempt: Attempt) -> bool:
        return self._look_around().has_begun(self.folder(attempt), self.tag(attempt))

    def _adopt(self, attempt: Attempt, claim: str) -> bool:
        """Watch a shim of an earlier queue; False when it ended while we looked."""
        try:
            pid, ticks = map(int, claim.split(" "))
        except ValueError:  # damaged
            return self._adopt_by_lock(attempt)
        fd = pidfd.open_pidfd(Holder(pid, ticks))
        return self._adopt_if(attempt, fd, lambda: folders.is_locked(self.folder(attempt)))

    def _adopt_by_lock(self, attempt: Attempt) -> bool:
        """Watch the shim that holds the lock of a damaged record; False when there is none."""
        folder = self.folder(attempt)
        shim = self._look_around().shim_of(folder)
        if shim is None:
            return False
        pid, record = shim.pid, os.path.realpath(folder)
        fd = pidfd.open_pidfd(shim)
        return self._adopt_if(attempt, fd, lambda: record in services.attempts_of(pid))

    def _adopt_if(self, attempt: Attempt, fd: int | None, is_it: Callable[[], bool]) -> bool:
        """Watch the shim of a pidfd if a look after opening shows that it runs this attempt."""
        if fd is None:
            return False
        if not is_it():
            os.close(fd)
            return False
        self._adopted.add(attempt, fd)
        return True

    def tidy(self) -> None:
        """Keep what shims noted of attempts that are under way only."""
        self._evidence = None
        self._noted = 0
        evidence.keep_only(self._begun, map(self.tag, [*self._busy, *self._adopted]))

    def report(self, attempt: Attempt, said: Record | None = None) -> None:
        """Report how an attempt ended; end what a killed shim left behind first."""
        exit = self.exit_of(attempt, said)
        if exit is None:
            killed = self.end_leftovers(attempt)
            log.warning(
                "action=shim-lost job=%d attempt=%d killed=%d", attempt.job, attempt.number, killed
            )
        self._listener.attempt_ended(attempt, exit)

    def exit_of(self, attempt: Attempt, said: Record | None = None) -> Exit | None:
        """Return how an attempt ended, as its shim said or left it; None: neither, or damaged."""
        try:
            record = said or folders.read_exit(self.folder(attempt))
            return None if record is None else _exit(record)
        except (OSError, TypeError, ValueError):
            log.exception(
                "action=read-exit result=failed job=%d attempt=%d", attempt.job, attempt.number
            )
            return None

    def end_leftovers(self, attempt: Attempt) -> int:
        """Kill what a killed shim left behind; return how many processes that were."""
        return terminate.end_marked(self.tag(attempt))

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        """Delete the folders of jobs, given how often each was tried."""
        for job, attempts in jobs:
            for number in range(1, attempts + 1):
                folders.remove(self.folder(Attempt(job, number)))


_FORKER_CODE = (
    "import sys; sys.path[:] = sys.argv[1:]; from grn.queue.local import forker; forker.main()"
)


def _exit(record: dict[str, Any]) -> Exit:
    because = record.get("because")
    return Exit(
        status=record.get("status"),
        signal=record.get("signal"),
        because=EndReason(because) if because else None,
        text=record.get("text", ""),
        resident_bytes=record.get("resident"),
        asked_bytes=record.get("asked"),
        ran_s=record.get("ran_s", 0.0),
        ended_at=record.get("ended_at", 0.0),
    )
