"""Input of a shim: orders from the queue over a socket, signals as bytes on a pipe."""

from __future__ import annotations

import json
import os
import select
import signal
import struct

from grn.proc import terminate
from grn.queue.local import order

HEADER = struct.Struct(">I")
MAX_SAID = 16 << 10  # of a record; up to this size it arrives in one piece


class Channel:
    """The connection to the queue: orders in, a line out for each completed order."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_open = True
        self._buffer = b""
        os.set_blocking(fd, False)

    def next(self) -> order.StartOrder | order.StopOrder | None:
        """Return the next complete order; note when the queue is gone."""
        while self.is_open and (data := read_some(self.fd)) is not None:
            self.is_open = bool(data)
            self._buffer += data
        if len(self._buffer) < HEADER.size:
            return None
        end = HEADER.size + HEADER.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        message = json.loads(self._buffer[HEADER.size : end])
        self._buffer = self._buffer[end:]
        return order.from_json(message)

    def wait(self) -> None:
        """Wait for something to read."""
        select.select([self.fd], [], [])

    def say_done(self, record: bytes) -> None:
        """Report to the queue that the order is done; a queue that is gone is ignored."""
        try:
            os.write(self.fd, record if len(record) <= MAX_SAID else b"\n")
        except OSError:
            self.is_open = False


def listen_for_signals() -> int:
    """Turn signals into bytes on a pipe: TERM stops the command, USR1 kills it at once."""
    terminate.adopt_orphans()
    wake, wake_end = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    return wake


def read_some(fd: int) -> bytes | None:
    """Read available bytes: empty at the end, None when there are none yet."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None
