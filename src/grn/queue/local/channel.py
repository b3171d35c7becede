"""The channel between the queue and a shim: orders one way, a line for each completed one back.

An order is to start the command of an attempt, now or when its GPUs are named, or to stop it, as a
frame of `wire.py`. Paths, words and variables are spelled as in the journal (`wire.meant` gives the
bytes).
"""

from __future__ import annotations

import os
import select

from grn import wire
from grn.model.record import Record, fields_of, names_of
from grn.proc import services

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Order: TypeAlias = "StartOrder | GoOrder | StopOrder"

MAX_ORDER_BYTES = (1 << 32) - 1  # what a frame can hold: the queue has checked each job
MAX_SAID = 16 << 10  # of a record; up to this size it arrives in one piece


class StartOrder(Record):
    """Everything that a shim must know of one attempt."""

    folder: str  # of the attempt's files
    argv: tuple[str, ...]
    cwd: str
    environment_id: int  # environments are shared by many jobs
    new_environment: dict[str, str] | None  # None when this shim was sent it before
    extra: dict[str, str]  # variables of this attempt alone
    umask: int
    lease: str
    visible: str  # the GPUs of the lease
    grace_s: float  # between the request to end and the kill
    log_bytes: int  # the size at which a log is cut
    queue_lock: str  # held while the queue lives
    begun: str  # the file that lists attempts that began
    time_limit_s: float | None = None
    log: str = ""  # a file of the user for all output, instead of the attempt's log
    spare: str = ""  # folder of an attempt whose record can be reused
    stop_signal: int = 0  # that asks it to end; 0: SIGTERM
    again: bool = False  # at its time limit it gives way and is run again
    ram: int | None = None  # the stated host memory, in bytes: a limit where one is possible
    cap: float | None = None  # the part of its GPUs that its framework may take
    is_ahead: bool = False  # it starts when a GoOrder names its GPUs, if one comes

    @property
    def tag(self) -> str:
        """The mark that all processes of the attempt carry in their environment."""
        return self.extra.get(services.TAG, "")

    def to_json(self) -> dict[str, Any]:
        """Return the message of this order."""
        message = fields_of(self)
        base, new = message.pop("environment_id"), message.pop("new_environment")
        is_ahead = message.pop("is_ahead")
        message |= {"base": base, "new": {} if new is None else {base: new}}
        return {"ahead": message} if is_ahead else message  # an older shim must not start it


class GoOrder(Record):
    """Start the attempt that was ordered ahead."""

    lease: str
    visible: str
    cap: float | None
    spare: str

    def to_json(self) -> dict[str, Any]:
        """Return the message of this order."""
        return {"go": fields_of(self)}


class StopOrder(Record):
    """End the command of an attempt: with a grace period, or at once."""

    folder: str
    is_now: bool
    is_yield: bool = False  # the command is run again

    def to_json(self) -> dict[str, Any]:
        """Return the message of this order."""
        return {"stop": self.folder, "now": self.is_now, "yield": self.is_yield}


def from_json(message: dict[str, Any]) -> Order:
    """Read an order; fields that a newer queue added are left out."""
    if "go" in message:
        return GoOrder(**{name: message["go"][name] for name in names_of(GoOrder)})
    if "stop" in message:
        return StopOrder(message["stop"], message["now"], bool(message.get("yield")))
    is_ahead, message = "ahead" in message, message.get("ahead", message)
    known = {name: message[name] for name in names_of(StartOrder) if name in message}
    known["argv"] = tuple(known["argv"])
    base = message["base"]
    new = message["new"].get(str(base))
    return StartOrder(**known, environment_id=base, new_environment=new, is_ahead=is_ahead)


class Channel:
    """The shim's end: orders in, a line out for each completed order."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_open = True
        self._frames = wire.Frames(MAX_ORDER_BYTES)
        self._bodies: list[bytes] = []  # complete orders, not read yet
        os.set_blocking(fd, False)

    def next(self) -> Order | None:
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
