"""The negotiator of this machine: finding it, whether it is trusted, questions, and restarts.

A process that has reached a negotiator waits for the next one while it is restarted. A process
that never has is told at once that none runs.
"""

from __future__ import annotations

import os
import socket
import warnings

from grn import paths
from grn.client.connection import ANSWER_S, Connection, drive
from grn.errors import DaemonError, DaemonNotRunning, NotTrusted, ProtocolError
from grn.proc import pidfd, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from grn.client.connection import Result, Steps
    from grn.wire import Message

    Row = dict[str, Any]

PATIENCE_S = 60.0
MAX_PAUSE_S = 1.0
# Raised by code that reads a reply without its fields.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
_UNMAPPED = 65534  # shown for a user outside the user namespace

_others: list[tuple[str, int]] = []  # the last negotiator that is another user's: where, whose
_met: set[str] = set()  # where this process, or one it was forked from, has reached a negotiator


# --- finding it ----------------------------------------------------------------------------


def connect() -> Connection:
    """Connect to the negotiator of this machine."""
    return Connection(call())


def call() -> socket.socket:
    """Return a socket to the negotiator of this machine, unless it is an impostor's."""
    doubts: NotTrusted | None = None
    for path in paths.sockets_to_try():
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(path)
        except OSError:
            sock.close()
            continue
        _, user = pidfd.credentials(sock)
        doubt = _doubt(user, path)
        if doubt is None:
            _others[:] = [] if user in (0, os.getuid()) else [(path, user)]
            _met.add(paths.own_socket())
            return sock
        doubts = doubts or doubt
        sock.close()
    raise doubts or DaemonNotRunning(paths.own_socket())


def has_met() -> bool:
    """True when a negotiator has answered here before: one that is away now may come back."""
    return paths.own_socket() in _met


def _doubt(user: int, path: str) -> NotTrusted | None:
    """Return why the user who answers at a path is not trusted.

    In a shared folder any user can make a socket of any name.
    """
    if user in (0, os.getuid()):
        return None
    trusted = os.environ.get("GRN_TRUSTED_USERS")
    if trusted is not None and not _is_among(user, trusted):
        return NotTrusted(path, paths.user_name(user), "a user that GRN_TRUSTED_USERS names")
    named = os.path.basename(path).removesuffix(".sock")
    if named.isdecimal() and int(named) != user and not _is_hidden(user):
        owner = f"{paths.user_name(int(named))}, whom it is named after"
        return NotTrusted(path, paths.user_name(user), owner)
    return None


def _is_among(user: int, trusted: str) -> bool:
    words = {word.strip() for word in trusted.split(",")}
    return str(user) in words or paths.user_name(user) in words


def _is_hidden(user: int) -> bool:
    """True when a user namespace hides the peer's user."""
    return user == _UNMAPPED and not processes.maps_all_users()


def garbled() -> ProtocolError | None:
    """Return what to tell of a malformed reply, if a negotiator of another user's has answered.

    One's own and root's say what they should: with these it is a bug, and not to be hidden.
    """
    if not _others:
        return None
    path, user = _others[0]
    return ProtocolError(
        f"the negotiator at {path} (user {paths.user_name(user)})"
        " does not speak the protocol of this grn.",
        "It may be of another version, or none of grn's: see GRN_TRUSTED_USERS.",
    )


# --- questions -----------------------------------------------------------------------------


def ask_once(message: Message) -> Message:
    """Ask one question over a new connection, once."""
    try:
        return drive(_ask(message))
    except DaemonNotRunning:
        raise
    except (ConnectionError, TimeoutError) as error:
        raise _given_up(error, ANSWER_S) from error


def ask(message: Message) -> Message:
    """Ask one question, again if the negotiator is lost before it has answered."""
    return drive(through_restarts(lambda: _ask(message), Retry()))


def _ask(message: Message) -> Steps[Message]:
    line = connect()
    try:
        answer = yield from line.ask(dict(message))
    finally:
        line.close()
    return answer


def ask_all(message: Message, ask: Callable[[Message], Message] = ask_once) -> Message:
    """Request a listing and join its pages; a row that moved between two pages appears once.

    The pages are documented in docs/protocol.md.
    """
    answer = ask(dict(message))
    more = answer.pop("more", None)
    while more:
        page = ask({**message, "after": more})
        more = page.pop("more", None)
        _join(answer, page)
    return answer


def status(ask: Callable[[Message], Message] = ask_once) -> Message:
    """Return GPUs, all leases and all waiting requests."""
    whole: Message = ask_all({"op": "status"}, ask)["status"]
    return whole


def expected_at(now: float) -> dict[str, tuple[float, float]]:
    """Return when the first leases end and the first requests start: earliest and latest, by id."""
    page = ask_once({"op": "status"})["status"]
    ranges = {row["id"]: row.get("ends_in_s") for row in page["leases"]}
    ranges |= {row["id"]: row.get("starts_in_s") for row in page["waiting"]}
    return {key: (now + one[0], now + one[1]) for key, one in ranges.items() if one is not None}


def _join(answer: Message, page: Message) -> None:
    if "status" in page:
        whole, part = answer["status"], page["status"]
        leases = _joined(whole["leases"], part["leases"])
        running = {row["id"] for row in leases}
        waiting = _joined(whole["waiting"], part["waiting"])
        whole["leases"] = leases
        whole["waiting"] = sorted(
            (row for row in waiting if row["id"] not in running), key=lambda row: row["place"]
        )
    for name in ("why", "profiles"):
        if name in page:
            answer[name] = _joined(answer[name], page[name])


def _joined(rows: list[Row], more: list[Row]) -> list[Row]:
    return list({_identity(row): row for row in (*rows, *more)}.values())


def _identity(row: Row) -> tuple[Any, ...]:
    return (row["id"],) if "id" in row else (row["type"], row["model"])


# --- restarts ------------------------------------------------------------------------------


class Retry:
    """The tries of one conversation, and how long the negotiator has been away."""

    def __init__(self, is_expected: bool | None = None) -> None:
        self._is_expected = is_expected  # whether there was a negotiator; None: look it up
        self.waited_s = 0.0

    def reached(self) -> None:
        """Take note of an answer: the next loss has the whole patience again."""
        self.waited_s = 0.0

    def after(self, error: OSError) -> Steps[None]:
        """Wait before the next try; raise when the wait is over or there is nothing to wait for."""
        if not self.waited_s:
            is_expected = has_met() if self._is_expected is None else self._is_expected
            if isinstance(error, DaemonNotRunning) and not is_expected:
                raise error
            warnings.warn("grn: lost the negotiator, asking again", stacklevel=2)
        if isinstance(error, TimeoutError):
            self.waited_s += ANSWER_S
        if self.waited_s >= PATIENCE_S:
            _met.discard(paths.own_socket())  # the next call is told at once
            raise _given_up(error, PATIENCE_S)
        pause_s = min(MAX_PAUSE_S, 0.02 + self.waited_s / 4)
        self.waited_s += pause_s
        yield ("sleep", None, pause_s)


def through_restarts(attempt: Callable[[], Steps[Result]], retry: Retry) -> Steps[Result]:
    """Do the steps of `attempt` until it succeeds, through restarts of the negotiator.

    What it asks may be heard twice: that must be the same as once.
    """
    while True:
        try:
            result = yield from attempt()
            return result
        except (ConnectionError, TimeoutError) as error:
            yield from retry.after(error)


def _given_up(error: OSError, waited_s: float) -> DaemonError:
    if isinstance(error, DaemonNotRunning):
        return error
    if isinstance(error, TimeoutError):
        return DaemonError(
            f"the negotiator did not answer within {waited_s:.0f} s.",
            "It may be stopped or overloaded; `grn doctor` tells more.",
        )
    return DaemonNotRunning(paths.own_socket())
