"""The channel between the queue and a shim: orders one way, a line for each completed one back.

An order is to start the command of an attempt, or to stop it, as a frame of `wire.py`. Paths, words
and variables are spelled as in the journal (`wire.meant` gives the bytes). Plain classes: importing
dataclasses would take half as long again as the start of the forker.
"""

from __future__ import annotations

import os
import select

from grn import wire
from grn.proc import services

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

MAX_ORDER_BYTES = (1 << 32) - 1  # what a frame can hold: the queue has checked each job
MAX_SAID = 16 << 10  # of a record; up to this size it arrives in one piece


class StartOrder:
    """Everything that a shim must know of one attempt."""

    __slots__ = (
        "again", "argv", "begun", "cap", "cwd", "environment_id", "extra", "folder", "grace_s",
        "lease", "log", "log_bytes", "new_environment", "queue_lock", "ram", "spare", "stop_signal",
        "time_limit_s", "umask", "visible",
    )  # fmt: skip

    def __init__(
        self,
        *,
        folder: str,
        argv: tuple[str, ...],
        cwd: str,
        environment_id: int,
        new_environment: dict[str, str] | None,
        extra: dict[str, str],
        umask: int,
        lease: str,
        visible: str,
        grace_s: float,
        log_bytes: int,
        queue_lock: str,
        begun: str,
        time_limit_s: float | None = None,
        log: str = "",
        spare: str = "",
        stop_signal: int = 0,
        again: bool = False,
        ram: int | None = None,
        cap: float | None = None,
    ) -> None:
        self.folder: Final = folder  # of the attempt's files
        self.argv: Final = argv
        self.cwd: Final = cwd
        self.environment_id: Final = environment_id  # environments are shared by many jobs
        self.new_environment: Final = new_environment  # None when this shim was sent it before
        self.extra: Final = extra  # variables of this attempt alone
        self.umask: Final = umask
        self.lease: Final = lease
        self.visible: Final = visible  # the GPUs of the lease
        self.grace_s: Final = grace_s  # between the request to end and the kill
        self.log_bytes: Final = log_bytes  # the size at which a log is cut
        self.queue_lock: Final = queue_lock  # held while the queue lives
        self.begun: Final = begun  # the file that lists attempts that began
        self.time_limit_s: Final = time_limit_s
        self.log: Final = log  # a file of the user for all output, instead of the attempt's log
        self.stop_signal: Final = stop_signal  # that asks it to end; 0: SIGTERM
        self.again: Final = again  # at its time limit it gives way and is run again
        self.cap: Final = cap  # the part of its GPUs that its framework may take
        self.ram: Final = ram  # the stated host memory, in bytes: a limit where one is possible
        self.spare: Final = spare  # folder of an attempt whose record can be reused

    @property
    def tag(self) -> str:
        """The mark that all processes of the attempt carry in their environment."""
        return self.extra.get(services.TAG, "")

    def to_json(self) -> dict[str, Any]:
        """Return the message of this order."""
        message = {name: getattr(self, name) for name in self.__slots__}
        base, new = message.pop("environment_id"), message.pop("new_environment")
        return {**message, "base": base, "new": {} if new is None else {base: new}}


class StopOrder:
    """End the command of an attempt: with a grace period, or at once."""

    __slots__ = ("folder", "is_now", "is_yield")

    def __init__(self, folder: str, is_now: bool, is_yield: bool = False) -> None:
        self.folder: Final = folder
        self.is_now: Final = is_now
        self.is_yield: Final = is_yield  # the command is run again

    def to_json(self) -> dict[str, Any]:
        """Return the message of this order."""
        return {"stop": self.folder, "now": self.is_now, "yield": self.is_yield}


def from_json(message: dict[str, Any]) -> StartOrder | StopOrder:
    """Read an order; fields that a newer queue added are left out."""
    if "stop" in message:
        return StopOrder(message["stop"], message["now"], bool(message.get("yield")))
    known = {name: message[name] for name in StartOrder.__slots__ if name in message}
    known["argv"] = tuple(known["argv"])
    base = message["base"]
    return StartOrder(**known, environment_id=base, new_environment=message["new"].get(str(base)))


class Channel:
    """The shim's end: orders in, a line out for each completed order."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_open = True
        self._frames = wire.Frames(MAX_ORDER_BYTES)
        self._bodies: list[bytes] = []  # complete orders, not read yet
        os.set_blocking(fd, False)

    def next(self) -> StartOrder | StopOrder | None:
        """Return the next complete order; note when the queue is gone."""
        while self.is_open and (data := read_some(self.fd)) is not None:
            self.is_open = bool(data)
            self._bodies += self._frames.feed(data)
        return from_json(wire.decode(self._bodies.pop(0))) if self._bodies else None

    def wait(self) -> None:
        """Wait for something to read."""
        select.select([self.fd], [], [])

    def say_done(self, record: bytes) -> None:
        """Report to the queue that the order is done; a queue that is gone is ignored."""
        try:
            os.write(self.fd, record if len(record) <= MAX_SAID else b"\n")
        except OSError:
            self.is_open = False


def read_some(fd: int) -> bytes | None:
    """Read available bytes: empty at the end, None when there are none yet."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None
