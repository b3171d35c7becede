"""Find attempts again after a restart of the queue, and watch those whose shim still runs."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable

from grn.errors import MachineError
from grn.model.job import Holder
from grn.proc import pidfd, processes, services
from grn.proc.tree import Process
from grn.proc.watch import Watches
from grn.queue.jobs import finish
from grn.queue.jobs.job import AttemptFate
from grn.queue.local import attempt_files as folders
from grn.queue.local.workers import LaunchSettings
from grn.queue.site import Attempt, Found

log = logging.getLogger(__name__)
LOOK_AGAIN_S = 0.001
_OF_ITS_FILES = {  # errors that concern one attempt; the others concern the disk
    errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.ELOOP,
}  # fmt: skip


class Evidence:
    """Traces at one moment of attempts of this boot: their processes, notes of shims, output.

    They decide whether an attempt without a record has begun: such an attempt must not run twice.
    """

    def __init__(self, path: str) -> None:
        self._noted = folders.read_begun(path)
        self._alive: set[bytes] = set()  # tags of living processes
        self._shims: dict[str, Process] = {}  # by the folder of the attempt
        for one in processes.everyone():
            self._alive |= services.tags_of(one.pid)
            for folder in services.attempts_of(one.pid):
                self._shims[folder] = one

    def shim_of(self, folder: str) -> Process | None:
        """Return the shim that holds the lock of a record, which may be removed."""
        return self._shims.get(os.path.realpath(folder))

    def has_begun(self, folder: str, tag: str) -> bool:
        """True when an attempt is known to have begun."""
        if tag in self._noted or f"{services.TAG}={tag}".encode() in self._alive:
            return True
        return any(os.path.exists(os.path.join(folder, name)) for name in ("log", "err"))


class Recovery:
    """The attempts of earlier queues: their fate, and the shims that still run."""

    def __init__(self, settings: LaunchSettings, ended: Callable[[Attempt], None]) -> None:
        self._settings = settings
        self.adopted = Watches[Attempt](ended)  # these shims exit when their attempt has ended
        self._evidence: Evidence | None = None

    def find(self, attempt: Attempt, is_same_boot: bool) -> Found:
        """Find the fate of an attempt of before a restart; watch it if it lives.

        Where its files cannot be used, its processes alone show whether it lives.
        """
        try:
            while (fate := self._look(attempt, is_same_boot)) is None:
                time.sleep(LOOK_AGAIN_S)
        except OSError as error:
            folder = self._settings.folder(attempt)
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
        """Look at an attempt once; None when it changed meanwhile."""
        folder = self._settings.folder(attempt)
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        # In this order: a record has claim and lock when it gets its name, and its end before it is
        # unlocked.
        claim = folders.read_claim(folder)
        is_locked = folders.is_locked(folder)
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
        """Look at an attempt whose record is missing or empty."""
        if self._adopt_by_lock(attempt):
            return AttemptFate.ALIVE
        if self._has_begun(attempt):
            log.error("action=recover job=%d reason='its record is gone'", attempt.job)
            return AttemptFate.LOST
        if claim is None:  # the first to make the record decides; a shim may be about to
            return AttemptFate.NOT_BEGUN if folders.forbid(self._settings.folder(attempt)) else None
        return None if is_locked else AttemptFate.NOT_BEGUN

    def _look_around(self) -> Evidence:
        if self._evidence is None:
            self._evidence = Evidence(self._settings.begun)
        return self._evidence

    def has_begun_by_now(self, attempt: Attempt) -> bool:
        """True when the record of an attempt, or evidence of this moment, shows that it began."""
        if folders.read_claim(self._settings.folder(attempt)) is not None:
            return True
        self._evidence = None  # of an earlier moment
        return self._has_begun(attempt)

    def _has_begun(self, attempt: Attempt) -> bool:
        return self._look_around().has_begun(
            self._settings.folder(attempt), self._settings.tag(attempt)
        )

    def _adopt(self, attempt: Attempt, claim: str) -> bool:
        """Watch a shim of an earlier queue; False when it has ended meanwhile."""
        try:
            pid, ticks = map(int, claim.split(" "))
        except ValueError:  # damaged
            return self._adopt_by_lock(attempt)
        fd = pidfd.open_pidfd(Holder(pid, ticks))
        return self._adopt_if(
            attempt, fd, lambda: folders.is_locked(self._settings.folder(attempt))
        )

    def _adopt_by_lock(self, attempt: Attempt) -> bool:
        """Watch the shim that holds the lock of a damaged record; False when there is none."""
        folder = self._settings.folder(attempt)
        shim = self._look_around().shim_of(folder)
        if shim is None:
            return False
        pid, record = shim.pid, os.path.realpath(folder)
        fd = pidfd.open_pidfd(shim)
        return self._adopt_if(attempt, fd, lambda: record in services.attempts_of(pid))

    def _adopt_if(self, attempt: Attempt, fd: int | None, is_running: Callable[[], bool]) -> bool:
        """Watch the shim of a pidfd if a look after opening shows that it runs this attempt."""
        if fd is None:
            return False
        if not is_running():
            os.close(fd)
            return False
        self.adopted.add(attempt, fd)
        return True

    def keep_only(self, busy: Iterable[Attempt]) -> None:
        """Shorten the list of begun attempts to these and the adopted ones."""
        self._evidence = None
        tags = map(self._settings.tag, [*busy, *self.adopted])
        folders.keep_begun(self._settings.begun, tags)
