"""Which runs still tell something of the next one: not those before a change of the job.

A job changes when its code does, or when all its latest peaks lie apart from all before. Nothing is
thrown away: runs of an older code count again for whoever runs that code again.
"""

from __future__ import annotations

from collections.abc import Sequence

from grn.model.job import Argument
from grn.model.profile import Run
from grn.negotiator.learn.arguments import are_spread, mattering

LAST = 5  # so many runs of an older code still count, and so many show that peaks have changed
APART = 1.1  # how many times larger all peaks on one side of a change are


def counted(runs: Sequence[Run], is_full: Sequence[bool], code: str) -> list[int]:
    """Return the places of the runs that count for a job of this code; runs are oldest first.

    Runs of an unknown code, or for a job whose code is unknown, are taken for the same code. Runs
    are only held against others with the same arguments, as far as those may matter.
    """
    alike: dict[tuple[Argument, ...], list[int]] = {}
    for place, run in enumerate(runs):
        alike.setdefault(mattering(run.arguments), []).append(place)
    own = [not code or run.code in ("", code) for run in runs]
    found: list[int] = []
    for places in alike.values():
        full = [place for place in places if is_full[place]]
        since = full[-LAST] if len(full) >= LAST else -1
        own_full = [place for place in full if own[place]]
        begins = _shift([runs[place].peak_bytes for place in own_full])
        shifted = own_full[begins] if begins else 0
        for place in places:
            if place >= since or (own[place] and place >= shifted):
                found.append(place)
    return sorted(found)


def _shift(peaks: Sequence[int]) -> int:
    """Return where the latest stretch begins whose peaks all lie apart from all before it."""
    if len(peaks) < 2 * LAST or not are_spread(peaks):
        return 0
    least, most = list(peaks), list(peaks)  # from each run to the last
    for at in range(len(peaks) - 2, -1, -1):
        least[at], most[at] = min(least[at], least[at + 1]), max(most[at], most[at + 1])
    begins, low, high = 0, min(peaks[:LAST]), max(peaks[:LAST])
    for at in range(LAST, len(peaks) - LAST + 1):
        if APART * most[at] < low or least[at] > APART * high:
            begins = at
        low, high = min(low, peaks[at]), max(high, peaks[at])
    return begins
