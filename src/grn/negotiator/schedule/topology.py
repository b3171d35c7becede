"""Choose the best-linked set of GPUs for a job that needs several.

Compares links only; the room on each GPU is checked before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import comb

from grn.model.gpu import Gpu, LinkKind

_WORTH = {LinkKind.NVLINK: 100_000, LinkKind.SWITCH: 1_000, LinkKind.SOCKET: 10}
_LANES = 1_000  # lanes count less than the kind of link
_MAX_SETS = 128  # up to this many sets all are tried; beyond, sets are grown from seeds
_MAX_GPUS = 64  # only the first are considered
_MAX_SEEDS = 16  # GPUs to grow a set from

Grades = Mapping[str, Mapping[str, int]]  # from each GPU to each linked GPU
Grade = tuple[int, int]  # the weakest link of a set, and the sum of all


def best_linked(gpus: Sequence[Gpu], count: int) -> tuple[list[int], Grade]:
    """Return the indices of the best-linked set and its grade; the first set if all tie.

    The weakest link counts first: it limits communication around a ring.
    """
    gpus = gpus[: max(_MAX_GPUS, count)]
    known = _grades(gpus)
    names = [gpu.uuid for gpu in gpus]
    if count >= len(gpus) or not any(known.values()):
        return list(range(count)), _grade(known, names[:count])
    if comb(len(gpus), count) <= _MAX_SETS:
        sets: Iterable[Sequence[int]] = combinations(range(len(gpus)), count)
    else:
        sets = (_grown(known, names, seed, count) for seed in range(min(len(names), _MAX_SEEDS)))
    best: list[int] = []
    grade: Grade = (-1, -1)
    no_better = max(link for links in known.values() for link in links.values())
    for places in sets:
        if grade[0] == no_better:
            break  # as on a machine where a switch links all to all
        found = _grade(known, [names[place] for place in places])
        if found > grade:
            best, grade = sorted(places), found
    return best, grade


def _grades(gpus: Sequence[Gpu]) -> dict[str, dict[str, int]]:
    """Return the grade of each link between GPUs."""
    return {
        gpu.uuid: {link.to: _WORTH[link.kind] + _LANES * min(link.lanes, 50) for link in gpu.links}
        for gpu in gpus
    }


def _grade(known: Grades, names: Sequence[str]) -> Grade:
    pairs = [known[one].get(other, 0) for one, other in combinations(names, 2)]
    return (min(pairs, default=0), sum(pairs))


def _grown(known: Grades, names: Sequence[str], seed: int, count: int) -> list[int]:
    """Grow a set from one GPU: add the GPU with the best links to the set, until it is full."""
    to_seed = known[names[seed]]
    weakest = {place: to_seed.get(name, 0) for place, name in enumerate(names) if place != seed}
    near = {place: link for place, link in weakest.items() if link}
    weakest = near if len(near) >= count - 1 else weakest
    chosen, sums = [seed], dict(weakest)
    while len(chosen) < count:
        best = max(weakest, key=lambda place: (weakest[place], sums[place], -place))
        del weakest[best]
        chosen.append(best)
        to_best = known[names[best]]
        for place, before in weakest.items():
            link = to_best.get(names[place], 0)
            weakest[place] = min(before, link)
            sums[place] += link
    return chosen
