"""Bounds on remembered job types, per user and in total, and the order of eviction.

Counts the size of profiles, about the same in memory and in the file; the caller evicts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from grn.model.job import Argument, Profile, Run
from grn.negotiator.learn.memory.profiling import RUNS_KEPT

MAX_TYPES_PER_USER = 2000
MAX_TYPES = 10_000
MAX_BYTES_PER_USER = 24 << 20
MAX_BYTES = 48 << 20
MAX_ARGUMENTS_BYTES = 1024  # of one run
_TYPE_BYTES = 2048  # cached estimates
_RUN_BYTES = 320
_ARGUMENT_BYTES = 140  # beside its letters
_MAX_TRIED = 16  # types that are in use, before the rest waits for the next eviction
_SHARE_OF_NEW = 4  # one part in this many is for types that ran once


def kept_arguments(arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    """Return the first arguments within `MAX_ARGUMENTS_BYTES`."""
    kept: list[Argument] = []
    left = MAX_ARGUMENTS_BYTES
    for name, value in arguments:
        left -= _length(name) + (_length(value) if isinstance(value, str) else 8)
        if left < 0:
            break
        kept.append((name, value))
    return tuple(kept)


@dataclass(slots=True)
class _Type:
    """The size of one type, on all GPU models."""

    owner: int
    runs: int = 0
    size: float = _TYPE_BYTES


class TypeQuota:
    """The size of all types by user; each user's types, the least recently used first.

    Types that ran once are evicted before types that ran again, so that a flood of new types costs
    a user none of the others; some room is always left for new types.
    """

    def __init__(self) -> None:
        self._types: dict[str, _Type] = {}
        self._once: dict[int, dict[str, None]] = {}
        self._again: dict[int, dict[str, None]] = {}
        self._count: Counter[int] = Counter()
        self._size: Counter[int] = Counter()
        self.dropped: Counter[int] = Counter()  # types of each user

    def __len__(self) -> int:
        return len(self._types)

    def load(self, profiles: Iterable[Profile]) -> None:
        """Count saved profiles, the least recently used first."""
        used = [profile for profile in profiles if profile.runs]
        for profile in sorted(used, key=lambda one: one.runs[-1].ended_at):
            for count, run in enumerate(profile.runs, 1):
                self.ran(profile.job_type, profile.owner, run, count)

    def ran(self, job_type: str, owner: int, run: Run, runs_of_model: int) -> None:
        """Count a run; a full profile has dropped its oldest run for it."""
        known = self._types.get(job_type)
        if known is None:
            known = self._types[job_type] = _Type(owner)
            self._count[owner] += 1
            self._add(known, known.size + _length(job_type))
            known.size += _length(job_type)
        more = float(_size_of(job_type, run))
        if runs_of_model >= RUNS_KEPT and known.runs:
            more -= (known.size - _TYPE_BYTES) / known.runs
        else:
            known.runs += 1
        known.size += more
        self._add(known, more)
        self._once.get(known.owner, {}).pop(job_type, None)
        self._again.get(known.owner, {}).pop(job_type, None)
        segment = self._once if known.runs == 1 else self._again
        segment.setdefault(known.owner, {})[job_type] = None

    def forget(self, job_type: str) -> None:
        """Stop counting a type."""
        known = self._types.pop(job_type, None)
        if known is None:
            return
        self._count[known.owner] -= 1
        self._add(known, -known.size)
        for segment in (self._once, self._again):
            types = segment.get(known.owner, {})
            types.pop(job_type, None)
            if not types:
                segment.pop(known.owner, None)
        if not self._count[known.owner]:
            del self._count[known.owner], self._size[known.owner]

    def is_over(self) -> bool:
        """True when a bound is exceeded."""
        return self._user_over() is not None

    def excess(self, is_in_use: Callable[[str], bool]) -> list[str]:
        """Stop counting the types to evict, and return them; types in use are kept."""
        chosen: list[str] = []
        while (user := self._user_over()) is not None:
            job_type = self._first_to_go(user, is_in_use)
            if job_type is None:
                break
            self.forget(job_type)
            self.dropped[user] += 1
            chosen.append(job_type)
        return chosen

    def _user_over(self) -> int | None:
        """Return a user above its bound, or the largest user when the total is above its bound."""
        for user, size in self._size.items():
            if size > MAX_BYTES_PER_USER or self._count[user] > MAX_TYPES_PER_USER:
                return user
        if len(self._types) > MAX_TYPES:
            return max(self._count, key=lambda user: self._count[user])
        if self._size.total() > MAX_BYTES:
            return max(self._size, key=lambda user: self._size[user])
        return None

    def _first_to_go(self, user: int, is_in_use: Callable[[str], bool]) -> str | None:
        """Return the type to evict, None when the first ones are in use: they go to the end."""
        once, again = self._once.get(user, {}), self._again.get(user, {})
        is_new_crowded = len(once) * _SHARE_OF_NEW > self._count[user]
        segments = (once, again) if is_new_crowded else (again, once)
        for types in segments:
            for job_type in list(islice(types, _MAX_TRIED)):
                if not is_in_use(job_type):
                    return job_type
                types[job_type] = types.pop(job_type)
        return None

    def _add(self, known: _Type, size: float) -> None:
        self._size[known.owner] += round(size)


def _size_of(job_type: str, run: Run) -> int:
    """Return the size of a run; its row has the name of its type twice, for the index."""
    size = _RUN_BYTES + 2 * _length(job_type) + len(run.note)
    for name, value in run.arguments:
        size += _ARGUMENT_BYTES + _length(name) + (_length(value) if isinstance(value, str) else 0)
    return size + sum(_ARGUMENT_BYTES + _length(other) for other, _ in run.beside)


def _length(text: str) -> int:
    """Return the size of a text: Python stores each letter as wide as the widest."""
    return len(text) if text.isascii() else 4 * len(text)
