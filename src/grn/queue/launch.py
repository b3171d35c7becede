"""Starting, watching and finding attempts: the queue's only hands on processes and their folders.

Starts shims through the forker, learns of their end by pidfd, and after a restart of the queue
finds what became of each attempt. It decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from grn.queue import attempt as folders
from grn.queue import finish, forker
from grn.queue.events import EndReason, Exit, Found
from grn.queue.journal import Command

log = logging.getLogger(__name__)
TAG = "GRN_JOB_TAG"
CLAIMED_BY_QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, by its numbers."""

    job: int
    number: int


@dataclass(frozen=True, slots=True)
class Manners:
    """How commands are run: where their files go, how long they get to end, how much they log."""

    root: str  # of all attempts' folders
    queue_id: str
    queue_lock: str
    grace_s: float = 10.0
    log_bytes: int = 64 << 20


class Launcher(asyncio.Protocol):
    """The forker's other end, and the pidfds of all living shims."""

    def __init__(
        self,
        manners: Manners,
        on_started: Callable[[Attempt], None],
        on_gone: Callable[[Attempt], None],
    ) -> None:
        self._manners = manners
        self._on_started = on_started
        self._on_gone = on_gone
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ordered: deque[Attempt] = deque()
        self._replies = b""
        self._pidfds: dict[Attempt, int] = {}
        self._is_closing = False

    # --- starting ------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the forker."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _FORKER_CODE, *sys.path],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,
            )
        ours.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)

    def close(self) -> None:
        """Let the forker go; shims and their commands live on."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.close()
        for fd in self._pidfds.values():
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._pidfds.clear()

    def start(self, attempt: Attempt, command: Command, lease: str, visible: str) -> None:
        """Order a shim for one attempt."""
        manners = self._manners
        numbers = {"GRN_JOB_ID": str(attempt.job), "GRN_ATTEMPT": str(attempt.number)}
        order = {
            "folder": self.folder(attempt),
            "argv": command.argv,
            "cwd": command.cwd,
            "env": {**command.environment, **numbers, TAG: self.tag(attempt)},
            "umask": command.umask,
            "lease": lease,
            "visible": visible,
            "grace_s": manners.grace_s,
            "log_bytes": manners.log_bytes,
            "time_limit_s": command.time_limit_s,
            "queue_lock": manners.queue_lock,
        }
        body = json.dumps(order).encode()
        self._ordered.append(attempt)
        if self._transport is not None:
            self._transport.write(forker.HEADER.pack(len(body)) + body)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._replies += data
        while len(self._replies) >= forker.HEADER.size:
            (pid,) = forker.HEADER.unpack_from(self._replies)
            self._replies = self._replies[forker.HEADER.size :]
            attempt = self._ordered.popleft()
            self._on_started(attempt)
            self._watch(attempt, pid)

    def connection_lost(self, exc: Exception | None) -> None:
        """Start another forker: this one was killed. What it had not begun is begun anew."""
        self._transport = None
        if self._process is not None:
            self._process.poll()
        if self._is_closing:
            return
        log.error("action=restart-forker")
        lost, self._ordered = list(self._ordered), deque()
        asyncio.get_running_loop().create_task(self._reopen(lost))

    async def _reopen(self, lost: list[Attempt]) -> None:
        await self.open()
        for attempt in lost:
            self._on_gone(attempt)

    # --- watching ------------------------------------------------------------------------

    def _watch(self, attempt: Attempt, pid: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # over already
            asyncio.get_running_loop().call_soon(self._on_gone, attempt)
            return
        self._pidfds[attempt] = fd
        asyncio.get_running_loop().add_reader(fd, self._gone, attempt)

    def _gone(self, attempt: Attempt) -> None:
        fd = self._pidfds.pop(attempt)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._on_gone(attempt)

    def stop(self, attempt: Attempt, is_now: bool) -> None:
        """Ask the shim to end its command's whole tree."""
        fd = self._pidfds.get(attempt)
        if fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGUSR1 if is_now else signal.SIGTERM)

    # --- finding -------------------------------------------------------------------------

    def folder(self, attempt: Attempt) -> str:
        """Return where an attempt's files are."""
        return folders.folder_of(self._manners.root, attempt.job, attempt.number)

    def tag(self, attempt: Attempt) -> str:
        """Return the mark that all processes of an attempt carry in their environment."""
        return f"{self._manners.queue_id}.{attempt.job}.{attempt.number}"

    def find(self, attempt: Attempt, is_same_boot: bool) -> Found:
        """Find what became of an attempt that was begun before a restart; watch it if it lives."""
        folder = self.folder(attempt)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        is_locked = folders.is_locked(folder)
        claim = folders.read_claim(folder)
        has_exit = folders.read_exit(folder) is not None
        result = finish.found(
            has_claim=claim not in (None, CLAIMED_BY_QUEUE),
            is_locked=is_locked,
            has_exit=has_exit,
            is_same_boot=is_same_boot,
        )
        if result is Found.NOT_BEGUN and claim is None:
            if not folders.claim(folder, CLAIMED_BY_QUEUE):  # it began just now
                return self.find(attempt, is_same_boot)
        elif result is Found.ALIVE and not self._adopt(attempt, claim or ""):
            return self.find(attempt, is_same_boot)
        return result

    def _adopt(self, attempt: Attempt, claim: str) -> bool:
        """Watch a shim of an earlier queue; False when it ended while we looked."""
        pid = claim.split(" ")[0]
        try:
            fd = os.pidfd_open(int(pid))
        except (OSError, ValueError):
            return False  # gone, or between its lock and its claim: look again
        if not folders.is_locked(self.folder(attempt)):  # checked after opening: it is that shim
            os.close(fd)
            return False
        self._pidfds[attempt] = fd
        asyncio.get_running_loop().add_reader(fd, self._gone, attempt)
        return True

    def exit_of(self, attempt: Attempt) -> Exit | None:
        """Return the exit record of an attempt, None when its shim left none."""
        record = folders.read_exit(self.folder(attempt))
        return None if record is None else _exit(record)

    def end_leftovers(self, attempt: Attempt) -> int:
        """Kill what a killed shim left behind: all processes that carry the attempt's mark."""
        mark = f"{TAG}={self.tag(attempt)}".encode()
        killed = 0
        for name in os.listdir("/proc"):
            if name.isdigit() and _kill_marked(int(name), mark):
                killed += 1
        return killed

    def remove(self, job: int, attempts: int) -> None:
        """Delete the folders of a job."""
        for number in range(1, attempts + 1):
            shutil.rmtree(self.folder(Attempt(job, number)), ignore_errors=True)


_FORKER_CODE = "import sys; sys.path[:] = sys.argv[1:]; from grn.queue import forker; forker.main()"


def _kill_marked(pid: int, mark: bytes) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # read after opening the pidfd
            if mark not in file.read().split(b"\0"):
                return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


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
