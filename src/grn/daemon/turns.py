"""How the users of one service share its time and its memory, whatever their connections.

Decides whose request is answered next, and who buffers too much; `connection.py` answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import Protocol

TURN_S = 0.002
_PAUSE_S = 0.0005


class Answering(Protocol):
    """A connection with requests that wait for an answer."""

    def answer_until(self, at: float) -> None:
        """Answer until this time, or until nothing waits."""


class BufferBudget:
    """The bytes that a service buffers for connections: unfinished frames and unread answers."""

    def __init__(self, max_per_user: int, max_in_all: int) -> None:
        self._max_per_user = max_per_user
        self._max_in_all = max_in_all
        self.by_user: Counter[int] = Counter()
        self.in_all = 0

    def change(self, uid: int, by: int) -> None:
        """Add to the buffered bytes of a user, or subtract."""
        self.by_user[uid] += by
        self.in_all += by
        if not self.by_user[uid]:
            del self.by_user[uid]

    def is_over(self, uid: int, of_connection: int) -> bool:
        """True when a connection must be closed: its user is over the limit, not by it alone.

        When all users together exceed the total, only users above an equal share are over.
        """
        of_user = self.by_user[uid]
        if of_user == of_connection:  # one frame of any allowed size always passes
            return False
        is_crowded = self.in_all > self._max_in_all
        equal_part = self._max_in_all // max(1, len(self.by_user))
        return of_user > self._max_per_user or (is_crowded and of_user > equal_part)


class Turns:
    """The order in which requests are answered: users in rotation, and the connections of each.

    A request is answered as it arrives while its user has used less than `TURN_S` in this turn of
    the event loop. Later requests of that user wait in line, so a user with many connections delays
    others by about one answer, or one piece of a long one. A user in line who has used its time
    waits for the next turn: requests of others that arrived meanwhile are read first.
    """

    def __init__(self) -> None:
        self._lines: dict[int, deque[Answering]] = {}  # by user, the next one first
        self._used_s: dict[int, float] = {}  # by user, in this turn
        self._ended_at = 0.0
        self._is_due = False

    def may_answer_now(self, uid: int) -> bool:
        """True while a user has time left in this turn, and none of its connections is in line."""
        return uid not in self._lines and self._used_s.get(uid, 0.0) <= TURN_S

    def has_answered(self, uid: int, began_at: float) -> None:
        """Charge an answer to a user."""
        if began_at - self._ended_at > _PAUSE_S:  # the event loop had nothing to do
            self._used_s.clear()
        self._ended_at = time.monotonic()
        used_s = self._used_s.get(uid, 0.0) + self._ended_at - began_at
        self._used_s[uid] = used_s
        if used_s > TURN_S / 2:
            self._end_turn_soon()

    def join(self, uid: int, connection: Answering, has_begun: bool) -> None:
        """Put a connection last in the line of its user; first when it has begun an answer.

        So a user has at most one unfinished answer in memory, whatever its connections.
        """
        line = self._lines.setdefault(uid, deque())
        if has_begun:
            line.appendleft(connection)
        else:
            line.append(connection)
        self._end_turn_soon()

    def _end_turn_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Begin the next turn; answer users in line that have time left, in rotation."""
        self._is_due = False
        used_s, self._used_s = self._used_s, {}
        users = deque(uid for uid in self._lines if used_s.get(uid, 0.0) <= TURN_S)
        began_at = time.monotonic()
        ends_at = began_at + TURN_S
        while users and began_at <= ends_at:
            uid = users.popleft()
            line = self._lines.pop(uid)
            connection = line.popleft()
            if line:
                self._lines[uid] = line
                users.append(uid)
            connection.answer_until(ends_at)
            self.has_answered(uid, began_at)
            began_at = self._ended_at
        if self._lines:
            self._end_turn_soon()
