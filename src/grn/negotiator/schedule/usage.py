"""GPU usage of each user, decaying with time so that recent use counts more.

In hours of a whole GPU. A job counts on each of its GPUs by the larger of its shares of memory and
load. The order of users is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from grn.negotiator.events import SaveUse

SAVE_S = 60.0  # a crash loses at most this much usage
_MIN_H = 1e-4  # less than this is forgotten
_LATE = 4  # a job that exceeds its expected time is expected to take a fourth more


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
