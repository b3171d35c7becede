"""Decide which places are asked for the lease of a job. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from msgspec import Struct

from grn.queue.jobs.job import JobSpec

LOCAL = "local"
UNKNOWN_S = 600.0  # of a job of which no run is known
Rank = tuple[float, float, float]
MAX_ASKED = 4  # each request costs the queue and a negotiator about half a millisecond


class CandidateNode(Struct, frozen=True):
    """This machine or a node, at one moment."""

    name: str
    site: str
    is_up: bool
    gpu_bytes: tuple[int, ...]  # memory of each GPU, largest first; empty if not known
    busy: int  # attempts there, and requests that wait there
    left_s: float | None = None  # until its engine takes it back; None: it stays
    work_s: float = 0.0  # how long one GPU would take for what runs and waits there

    @property
    def rank(self) -> Rank:
        """Return how soon a job could start: 1 without a GPU for itself, and then the wait."""
        gpus = max(1, len(self.gpu_bytes))
        crowd = self.busy / gpus
        return min(1.0, crowd), self.work_s / gpus if crowd >= 1 else 0.0, crowd


class CandidateNodes(Struct, frozen=True):
    """All places at one moment, the soonest start first; sorted once for many requests."""

    in_order: tuple[CandidateNode, ...]
    ranks: dict[str, Rank]

    def has_free_gpu(self, name: str) -> bool:
        """True where there are fewer jobs than GPUs, and for a place that is not there any more."""
        return self.ranks.get(name, _FIRST)[0] < 1

    @classmethod
    def of(cls, places: Iterable[CandidateNode]) -> CandidateNodes:
        """Sort places; this machine comes before others that are as good."""
        ranked = sorted((place.rank, place.name != LOCAL, at, place)
                        for at, place in enumerate(places))  # fmt: skip
        return cls(
            tuple(place for *_, place in ranked),
            {place.name: rank for rank, *_, place in ranked},
        )


_FIRST: Rank = (0.0, 0.0, 0.0)


class PilotSite(Struct, frozen=True):
    """A site whose engine places nodes when they are needed, at one moment."""

    name: str
    gpus: int  # of each node
    time_s: float  # of each node
    text: str  # why it has no node that is up


class Demand(Struct, frozen=True):
    """The jobs that wait for one more node, and the GPUs of the largest."""

    jobs: int = 0
    gpus: int = 0

    def pilots(self, gpus: int) -> int:
        """Return how many more pilots of `gpus` GPUs the jobs could use if none shared a GPU."""
        return math.ceil(self.jobs / max(1, gpus // max(1, self.gpus)))


class Choice(Struct, frozen=True):
    """The places to ask, and those whose requests are withdrawn for it."""

    ask: tuple[str, ...] = ()
    withdraw: tuple[str, ...] = ()


def is_meant(at: str, place: CandidateNode) -> bool:
    """True when a job may run at a place: by the name of a node or of a site."""
    return not at or at in (place.name, place.site)


def may_grow_for(spec: JobSpec, site: PilotSite, usual_s: float | None) -> bool:
    """True when one more node of a site could run a job."""
    fits = spec.gpus <= site.gpus and ends_within(usual_s, site.time_s)
    return spec.at in ("", site.name) and fits


def ends_within(usual_s: float | None, left_s: float | None) -> bool:
    """True unless a job is known to take longer than a place is there."""
    return usual_s is None or left_s is None or usual_s <= left_s


def choose(
    spec: JobSpec,
    places: CandidateNodes,
    asked: Collection[str],
    refused: Collection[str],
    usual_s: float | None = None,
) -> Choice:
    """Choose the places to ask next: up, there for long enough, large enough, soonest start first.

    At most `MAX_ASKED` have a request at once. One that has a free GPU then replaces the one of
    them with the latest start.
    """
    room = MAX_ASKED - len(asked)
    latest = max(asked, key=lambda name: places.ranks.get(name, _FIRST)) if room <= 0 else ""
    if latest and places.has_free_gpu(latest):
        return Choice()
    large: list[str] = []
    small: list[str] = []  # such a place refuses in its own words, if no other takes the job
    for place in places.in_order:
        if len(large) == max(1, room) or (latest and not places.has_free_gpu(place.name)):
            break
        if (
            place.is_up
            and place.name not in asked
            and place.name not in refused
            and is_meant(spec.at, place)
            and ends_within(usual_s, place.left_s)
        ):
            (large if _is_large_enough(spec, place) else small).append(place.name)
    if latest:
        return Choice(tuple(large), (latest,)) if large else Choice()
    return Choice(tuple((large + small)[:room]))


def _is_large_enough(spec: JobSpec, place: CandidateNode) -> bool:
    """True unless a place is known to be too small."""
    if not place.gpu_bytes or not spec.gpus:
        return True
    if spec.gpus > len(place.gpu_bytes):
        return False
    return spec.mem_bytes is None or spec.mem_bytes <= place.gpu_bytes[spec.gpus - 1]
