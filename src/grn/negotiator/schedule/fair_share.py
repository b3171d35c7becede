"""Fair share: the user with the least decayed GPU usage is next.

A user's level is read from its account now and then. In between, a request is placed after its
user's earlier requests, by their expected cost. A grant removes a request from the line and adds
its cost to the account, so that no other request moves and turns stay sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from grn.negotiator.schedule.limits import Rules
from grn.negotiator.schedule.order import Turn, Waiting, turn
from grn.negotiator.schedule.usage import Usage

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

    def join(self, waiting: Waiting, at: float, before_h: float | None = None) -> Waiting:
        """Append a request to its user's line, or return it to its position before a restart."""
        chain = self._chain(waiting, at)
        chain.count += 1
        if before_h is not None:
            return replace(waiting, place_h=before_h, cost_h=0.0)
        placed = replace(waiting, place_h=chain.tail_h)
        chain.tail_h += waiting.cost_h
        return placed

    def given(self, waiting: Waiting) -> None:
        """Note that a request was granted: its cost is now in its user's account."""
        chain = self._left(waiting)
        if chain is not None:
            chain.served_h = max(chain.served_h, waiting.place_h + waiting.cost_h)

    def gave_up(self, waiting: Waiting) -> None:
        """Note that a request was withdrawn: its user's later requests move up."""
        chain = self._left(waiting)
        if chain is None:
            return
        if waiting.place_h + waiting.cost_h >= chain.tail_h:
            chain.tail_h = waiting.place_h
        elif waiting.place_h >= chain.served_h:
            chain.served_h += waiting.cost_h

    def becomes(self, waiting: Waiting, is_short: bool) -> Waiting:
        """Move a request to the end of its user's short requests, or of the others."""
        moved = self.join(replace(waiting, is_short=is_short), waiting.since)
        self.gave_up(waiting)
        return moved

    def turn(self, waiting: Waiting) -> Turn:
        """Return the turn of a request by its user's present level."""
        return next(self.turns((waiting,)))

    def turns(self, many: Iterable[Waiting]) -> Iterator[Turn]:
        """Return the turns of requests, quickly where users and classes seldom alternate."""
        last: tuple[int, Class] | None = None
        stand: _Stand | None = None
        chain: _Chain | None = None
        weight = 1.0
        for waiting in many:
            user, kind = waiting.request.user, class_of(waiting)
            if (user, kind) != last:
                last, stand, weight = (user, kind), self._stands.get(user), self._usage.weight(user)
                chain = stand.chains.get(kind) if stand is not None else None
            if stand is None or chain is None:
                yield turn(waiting)
                continue
            key = chain.base + waiting.place_h / weight
            # Rounded: equal levels with different rounding errors are decided by age.
            yield turn(waiting, stand.is_over, round(max(stand.level, key), 9))

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

    def _chain(self, waiting: Waiting, at: float) -> _Chain:
        user, kind = waiting.request.user, class_of(waiting)
        stand = self._stands.get(user)
        if stand is None:
            stand = self._stands[user] = _Stand(self._usage.level(user, at))
        chain = stand.chains.get(kind)
        if chain is None:
            chain = stand.chains[kind] = _Chain(stand.level)
        return chain

    def _left(self, waiting: Waiting) -> _Chain | None:
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


def class_of(waiting: Waiting) -> Class:
    """Return the sort keys that precede fair share: it orders only requests of equal class."""
    return (waiting.request.attempt > 0, waiting.request.priority, waiting.is_short)


def _has_moved(stand: _Stand, level: float, weight: float) -> bool:
    step = _STEP_H + _STEP * stand.level
    return any(
        abs(level - chain.served_h / weight - chain.base) > step for chain in stand.chains.values()
    )
