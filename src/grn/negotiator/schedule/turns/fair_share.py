"""Fair share: the user with the least decayed GPU usage is next.

Usage is in hours of a whole GPU and decays, so that recent use counts more. A job counts on each of
its GPUs by the larger of its shares of memory and load.

A user's level is read from its account now and then. In between, a request is placed after its
user's earlier requests, by their expected cost. A grant removes a request from the line and adds
its cost to the account, so that no other request moves and turns stay sorted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from grn.negotiator.events import SaveUse
from grn.negotiator.schedule.room.ledger import Rules
from grn.negotiator.schedule.turns.order import Turn, WaitingRequest, turn

SAVE_S = 60.0  # a crash loses at most this much usage
_MIN_H = 1e-4  # less than this is forgotten
_LATE = 4  # a job that exceeds its expected time is expected to take a fourth more
_AT_ONCE = 256  # running jobs that are accounted in one sample


@dataclass(slots=True)
class _Account:
    used_h: float  # decayed to the moment of the last update
    at: float
    rate: float = 0.0  # whole GPUs in use since then
    rest_h: float = 0.0  # what its running jobs are expected to use beyond that
    saved_at: float = -math.inf
    is_saved: bool = True  # nothing was used since it was saved

    def settle(self, at: float, half_life_s: float) -> None:
        """Update the account to a moment."""
        passed_s = max(0.0, at - self.at)
        if passed_s:
            self.used_h = _faded(self.used_h, self.rate, passed_s, half_life_s)
            self.at = at


@dataclass(slots=True)
class _RunningUse:
    user: int
    rate: float
    expected_h: float
    at: float
    spent_h: float = 0.0
    rest_h: float = 0.0


class Usage:
    """The accounts of all users."""

    def __init__(self, half_life_s: float = 86400.0, weights: Mapping[int, float] | None = None):
        self._half_life_s = half_life_s
        self._weights = dict(weights or {})
        self._accounts: dict[int, _Account] = {}
        self._runs: dict[str, _RunningUse] = {}  # by lease
        self._wall_offset_s = 0.0
        self._turn = 0

    def load(self, uses: Iterable[SaveUse], wall_offset_s: float) -> None:
        """Load saved accounts."""
        self._wall_offset_s = wall_offset_s
        for use in uses:
            self._accounts[use.user] = _Account(use.used_h, use.at - wall_offset_s)

    def weight(self, user: int) -> float:
        """Return a user's fair-share weight."""
        return self._weights.get(user, 1.0)

    def users(self) -> list[int]:
        """Return all users with an account."""
        return list(self._accounts)

    def used_h(self, user: int, at: float) -> float:
        """Return a user's decayed usage."""
        account = self._accounts.get(user)
        if account is None:
            return 0.0
        return _faded(account.used_h, account.rate, max(0.0, at - account.at), self._half_life_s)

    def rate(self, user: int) -> float:
        """Return how many whole GPUs a user occupies now."""
        account = self._accounts.get(user)
        return account.rate if account is not None else 0.0

    def level(self, user: int, at: float) -> float:
        """Return a user's weighted usage, with what its running jobs are still expected to use."""
        account = self._accounts.get(user)
        rest_h = account.rest_h if account is not None else 0.0
        return (self.used_h(user, at) + rest_h) / self.weight(user)

    def began(self, lease: str, user: int, rate: float, expected_s: float, at: float) -> None:
        """Note that a job started."""
        expected_h = rate * expected_s / 3600
        self._runs[lease] = _RunningUse(user, rate, expected_h, at, rest_h=expected_h)
        account = self._settled(user, at)
        account.rate += rate
        account.rest_h += expected_h
        account.is_saved = False

    def resumed(self, lease: str, user: int, rate: float, since: float, at: float) -> None:
        """Note that a job kept running while no negotiator ran."""
        account = self._accounts.get(user)
        unseen_s = at - max(since, account.at if account is not None else since)
        self.began(lease, user, rate, 0.0, at)
        self._accounts[user].used_h += rate * max(0.0, unseen_s) / 3600

    def follow(self, lease: str, rate: float, at: float) -> None:
        """Update the rate of a running job."""
        run = self._runs.get(lease)
        if run is None:
            return
        account = self._accounts[run.user]
        run.spent_h += run.rate * max(0.0, at - run.at) / 3600
        if run.rate != rate:
            account.settle(at, self._half_life_s)
            account.rate = max(0.0, account.rate + rate - run.rate)
        run.rate, run.at = rate, at
        left_h = run.expected_h - run.spent_h
        rest_h = left_h if left_h > 0 else run.spent_h / _LATE
        account.rest_h = max(0.0, account.rest_h + rest_h - run.rest_h)
        run.rest_h = rest_h

    def advance(self, at: float) -> None:
        """Account the time that has passed to running jobs, at their present rates.

        Of very many a part each time: the rest follows soon, and usage fades by the day.
        """
        more: dict[int, float] = {}
        parts = 1 + len(self._runs) // _AT_ONCE
        self._turn += 1
        for run in islice(self._runs.values(), self._turn % parts, None, parts):
            run.spent_h += run.rate * max(0.0, at - run.at) / 3600
            run.at = at
            left_h = run.expected_h - run.spent_h
            rest_h = left_h if left_h > 0 else run.spent_h / _LATE
            more[run.user] = more.get(run.user, 0.0) + rest_h - run.rest_h
            run.rest_h = rest_h
        for user, rest_h in more.items():
            account = self._accounts[user]
            account.rest_h = max(0.0, account.rest_h + rest_h)

    def ended(self, lease: str, at: float) -> None:
        """Note that a job has ended."""
        run = self._runs.pop(lease, None)
        if run is None:
            return
        account = self._settled(run.user, at)
        account.rate = max(0.0, account.rate - run.rate)
        account.rest_h = max(0.0, account.rest_h - run.rest_h)
        account.is_saved = False

    def to_save(self, at: float, is_last: bool = False) -> Iterator[SaveUse]:
        """Yield the accounts to persist now; forget those that have decayed to nothing."""
        for user, account in list(self._accounts.items()):
            if not is_last and at - account.saved_at < SAVE_S:
                continue
            is_quiet = account.is_saved and not account.rate
            if is_quiet and self.used_h(user, at) > _MIN_H:
                continue
            account.settle(at, self._half_life_s)
            account.saved_at, account.is_saved = at, True
            if account.used_h <= _MIN_H and not account.rate:
                del self._accounts[user]
                yield SaveUse(user, 0.0, at + self._wall_offset_s)
            else:
                yield SaveUse(user, account.used_h, at + self._wall_offset_s)

    def _settled(self, user: int, at: float) -> _Account:
        account = self._accounts.get(user)
        if account is None:
            account = self._accounts[user] = _Account(0.0, at)
        account.settle(at, self._half_life_s)
        return account


def _faded(used_h: float, rate: float, passed_s: float, half_life_s: float) -> float:
    """Return a decayed usage after some time of further use at a constant rate."""
    kept: float = 0.5 ** (passed_s / half_life_s)
    return used_h * kept + rate * half_life_s / 3600 / math.log(2) * (1 - kept)


_STEP_H, _STEP = 0.01, 0.01  # a smaller change of a level, absolute or relative, is ignored

Class = tuple[bool, int, bool]


@dataclass(slots=True)
class _Chain:
    """Waiting requests of one user and class, in order."""

    base: float  # the sort key at place 0
    tail_h: float = 0.0
    served_h: float = 0.0
    count: int = 0


@dataclass(slots=True)
class _Stand:
    """The position of a user with waiting requests."""

    level: float
    is_over: bool = False  # its usage is so far above others' that its short jobs lose precedence
    chains: dict[Class, _Chain] = field(default_factory=dict)


class Shares:
    """The positions of all users with waiting requests."""

    def __init__(self, rules: Rules, usage: Usage) -> None:
        self._short_s = rules.short_s
        self._usage = usage
        self._stands: dict[int, _Stand] = {}
        self.gpus = 1  # how many there are

    def join(
        self, waiting: WaitingRequest, at: float, before_h: float | None = None
    ) -> WaitingRequest:
        """Append a request to its user's line, or return it to its position before a restart."""
        chain = self._chain(waiting, at)
        chain.count += 1
        if before_h is not None:
            return replace(waiting, place_h=before_h, cost_h=0.0)
        placed = replace(waiting, place_h=chain.tail_h)
        chain.tail_h += waiting.cost_h
        return placed

    def given(self, waiting: WaitingRequest) -> None:
        """Note that a request was granted: its cost is now in its user's account."""
        chain = self._left(waiting)
        if chain is not None:
            chain.served_h = max(chain.served_h, waiting.place_h + waiting.cost_h)

    def gave_up(self, waiting: WaitingRequest) -> None:
        """Note that a request was withdrawn: its user's later requests move up."""
        chain = self._left(waiting)
        if chain is None:
            return
        if waiting.place_h + waiting.cost_h >= chain.tail_h:
            chain.tail_h = waiting.place_h
        elif waiting.place_h >= chain.served_h:
            chain.served_h += waiting.cost_h

    def becomes(self, waiting: WaitingRequest, is_short: bool) -> WaitingRequest:
        """Move a request to the end of its user's short requests, or of the others."""
        moved = self.join(replace(waiting, is_short=is_short), waiting.since)
        self.gave_up(waiting)
        return moved

    def turn(self, waiting: WaitingRequest) -> Turn:
        """Return the turn of a request by its user's present level."""
        user = waiting.request.user
        stand = self._stands.get(user)
        chain = stand.chains.get(class_of(waiting)) if stand is not None else None
        if stand is None or chain is None:
            return turn(waiting)
        level = _level(stand, chain, waiting.place_h / self._usage.weight(user))
        return turn(waiting, stand.is_over, level)

    def turn_if_asked(self, waiting: WaitingRequest, at: float) -> Turn:
        """Return the turn that a request would have if it came now."""
        user = waiting.request.user
        stand = self._stands.get(user)
        chain = stand.chains.get(class_of(waiting)) if stand is not None else None
        if chain is not None:
            return self.turn(replace(waiting, place_h=chain.tail_h))
        level = stand.level if stand is not None else self._usage.level(user, at)
        return turn(waiting, stand is not None and stand.is_over, round(level, 9))

    def turns(self, alike: Iterable[WaitingRequest]) -> Iterator[Turn]:
        """Return the turns of requests that differ only by age and by being short, quickly."""
        was_short: bool | None = None
        stand: _Stand | None = None
        chain: _Chain | None = None
        again = priority = is_long = 0
        weight = 1.0
        for waiting in alike:
            if waiting.is_short is not was_short:
                was_short, user = waiting.is_short, waiting.request.user
                stand, weight = self._stands.get(user), self._usage.weight(user)
                chain = stand.chains.get(class_of(waiting)) if stand is not None else None
                again, priority, is_long, _, _ = self.turn(waiting)
            if stand is None or chain is None:
                yield turn(waiting)
            else:
                level = _level(stand, chain, waiting.place_h / weight)
                yield (again, priority, is_long, level, waiting.sequence)

    def are_several(self) -> bool:
        """True when more than one user waits."""
        return len(self._stands) > 1

    def before(self, user: int, at: float) -> int:
        """Return how many waiting users have a lower weighted usage."""
        mine = self._usage.level(user, at)
        return sum(self._usage.level(other, at) < mine for other in self._stands)

    def update(self, at: float) -> list[int]:
        """Read the users' accounts; return the users whose turns have changed."""
        levels = {user: self._usage.level(user, at) for user in self._stands}
        most = min(levels.values(), default=0.0) + self.gpus * self._short_s / 3600
        moved = []
        for user, stand in self._stands.items():
            level, weight = levels[user], self._usage.weight(user)
            is_over = level > most and any(is_short for _, _, is_short in stand.chains)
            if is_over is not stand.is_over or _has_moved(stand, level, weight):
                moved.append(user)
                stand.level, stand.is_over = level, is_over
                for chain in stand.chains.values():
                    chain.base = level - chain.served_h / weight
        return moved

    def _chain(self, waiting: WaitingRequest, at: float) -> _Chain:
        user, kind = waiting.request.user, class_of(waiting)
        stand = self._stands.get(user)
        if stand is None:
            stand = self._stands[user] = _Stand(self._usage.level(user, at))
        chain = stand.chains.get(kind)
        if chain is None:
            chain = stand.chains[kind] = _Chain(stand.level)
        return chain

    def _left(self, waiting: WaitingRequest) -> _Chain | None:
        stand = self._stands.get(waiting.request.user)
        kind = class_of(waiting)
        chain = stand.chains.get(kind) if stand else None
        if stand is None or chain is None:
            return None
        chain.count -= 1
        if not chain.count:
            del stand.chains[kind]
            if not stand.chains:
                del self._stands[waiting.request.user]
        return chain


def class_of(waiting: WaitingRequest) -> Class:
    """Return the sort keys that precede fair share: it orders only requests of equal class."""
    return (waiting.request.attempt > 0, waiting.request.priority, waiting.is_short)


def _level(stand: _Stand, chain: _Chain, before: float) -> float:
    """Return the level of a request behind so much weighted cost of its user's earlier ones.

    Rounded: equal levels with different rounding errors are decided by age.
    """
    level = chain.base + before
    return round(level if level > stand.level else stand.level, 9)


def _has_moved(stand: _Stand, level: float, weight: float) -> bool:
    step = _STEP_H + _STEP * stand.level
    return any(
        abs(level - chain.served_h / weight - chain.base) > step for chain in stand.chains.values()
    )
