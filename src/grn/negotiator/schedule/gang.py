"""Choose among GPUs that can take a request; for several, a gang of alike and well-linked GPUs.

The room and the slowdown on each GPU are computed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import comb

from grn.model.gpu import Gpu, LinkKind
from grn.model.job import Policy, Request
from grn.negotiator.schedule.room.ledger import Book

_WORTH = {LinkKind.NVLINK: 100_000, LinkKind.SWITCH: 1_000, LinkKind.SOCKET: 10}
_LANES = 1_000  # lanes count less than the kind of link
_MAX_SETS = 128  # up to this many sets all are tried; beyond, sets are grown from seeds
_MAX_GPUS = 64  # only the first are considered
_MAX_SEEDS = 16  # GPUs to grow a set from

Grades = Mapping[str, Mapping[str, int]]  # from each GPU to each linked GPU
Grade = tuple[int, int]  # the weakest link of a set, and the sum of all


@dataclass(slots=True)
class Candidate:
    """A GPU that can take the request: its free memory and the reservation."""

    book: Book
    free_bytes: int
    reserve_bytes: int
    is_probe: bool
    slowed: float = 1.0


def choose(request: Request, fits: Sequence[Candidate]) -> list[Candidate]:
    """Return the best GPUs, as many as requested, or none."""
    ranked = sorted(fits, key=partial(_taste, request.policy))
    if request.gpus == 1 or len(ranked) < request.gpus:
        return ranked[:1] if request.gpus == 1 else []
    return _gang(request, ranked)


def _gang(request: Request, ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return a set of GPUs: preferably of one model, then the least busy, then the best linked."""
    best: list[Candidate] = []
    rank, count = None, request.gpus
    for pool in _pools(ranked, count):
        # A gang is as slow as its slowest GPU.
        calm = max(_calmness(request.policy, fit) for fit in pool[:count])
        pool = [fit for fit in pool if _calmness(request.policy, fit) <= calm]
        places, (weakest, total) = best_linked([fit.book.gpu for fit in pool], count)
        found = (calm, -weakest, -total)
        if rank is None or found < rank:
            best, rank = [pool[place] for place in places], found
    return _equal(best)


def _pools(ranked: Sequence[Candidate], count: int) -> list[list[Candidate]]:
    """Return the GPUs of each model that has enough, else all without first runs."""
    models: dict[str, list[Candidate]] = {}
    for fit in ranked:
        models.setdefault(fit.book.gpu.model, []).append(fit)
    known = [fit for fit in ranked if not fit.is_probe]
    apart = [fit for fit in ranked if not fit.book.has_probe]
    alike = [pool for pool in models.values() if len(pool) >= count]
    mixed = known if len(known) >= count else apart
    return alike or ([mixed] if len(mixed) >= count else [])


def _equal(gang: list[Candidate]) -> list[Candidate]:
    """Reserve the same on all GPUs of a gang: any of them may get the largest part."""
    if not gang or any(fit.is_probe for fit in gang):
        return gang
    most = max(fit.reserve_bytes for fit in gang)
    return [replace(fit, reserve_bytes=min(most, fit.free_bytes)) for fit in gang]


def _calmness(policy: Policy, fit: Candidate) -> tuple[float, ...]:
    """Return the part of the preference that outranks links: no link makes up for a busy GPU."""
    return () if policy is Policy.PACK and not fit.is_probe else _taste(policy, fit)[:2]


def _taste(policy: Policy, fit: Candidate) -> tuple[float, ...]:
    """Return the sort key of a GPU: spread prefers empty and roomy GPUs, pack the fullest."""
    index = fit.book.gpu.index
    if policy is Policy.PACK and not fit.is_probe:
        return (0, fit.free_bytes, index)
    return (fit.slowed, 1 if fit.book.leases else 0, -fit.free_bytes, index)


# --- topology: the links between GPUs --------------------------------------------------------


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
