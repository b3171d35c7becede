"""Try again while the negotiator is away: it was killed or is being restarted, and comes back.

A process that has reached a negotiator waits for the next one. A process that never has is told
at once that none runs. Decides when to try again; what is asked is the caller's.
"""

from __future__ import annotations

import warnings

from grn import paths
from grn.client import connection
from grn.errors import DaemonError, DaemonNotRunning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.client.connection import Result, Steps
    from grn.wire import Message

PATIENCE_S = 60.0
MAX_PAUSE_S = 1.0


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
            if isinstance(error, DaemonNotRunning) and not self._knows_negotiator():
                raise error
            warnings.warn("grn: lost the negotiator, asking again", stacklevel=2)
        if isinstance(error, TimeoutError):
            self.waited_s += connection.ANSWER_S
        if self.waited_s >= PATIENCE_S:
            connection.forget_met()  # the next call is told at once
            raise _given_up(error)
        pause_s = min(MAX_PAUSE_S, 0.02 + self.waited_s / 4)
        self.waited_s += pause_s
        yield ("sleep", None, pause_s)

    def _knows_negotiator(self) -> bool:
        return connection.has_met() if self._is_expected is None else self._is_expected


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


def ask(message: Message) -> Message:
    """Ask the negotiator one question, again if it is lost before it has answered."""
    return connection.drive(through_restarts(lambda: _ask(message), Retry()))


def _ask(message: Message) -> Steps[Message]:
    line = connection.connect()
    try:
        answer = yield from line.ask(dict(message))
    finally:
        line.close()
    return answer


def _given_up(error: OSError) -> DaemonError:
    if isinstance(error, DaemonNotRunning):
        return error
    if isinstance(error, TimeoutError):
        return DaemonError(
            f"the negotiator did not answer within {PATIENCE_S:.0f} s.",
            "It may be stopped or overloaded; `grn doctor` tells more.",
        )
    return DaemonNotRunning(paths.own_socket())
