"""Decide which places are asked for the lease of a job. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from grn.queue.job import JobSpec

LOCAL = "local"
MAX_ASKED = 4  # each request costs the queue and a negotiator about half a millisecond


@dataclass(frozen=True, slots=True)
class Place:
    """This machine or a node, at one moment."""

    name: str
    site: str
    is_up: bool
    gpu_bytes: tuple[int, ...]  # memory of each GPU, largest first; empty if not known
    busy: int  # attempts there, and requests that wait there
    left_s: float | None = None  # until its engine takes it back; None: it stays

    @property
    def crowd(self) -> float:
        """Return how many jobs there are for each GPU."""
        return self.busy / max(1, len(self.gpu_bytes))


@dataclass(frozen=True, slots=True)
class PilotSite:
    """A site whose engine places nodes when they are needed, at one moment."""

    name: str
    gpus: int  # of each node
    time_s: float  # of each node
    text: str  # why it has no node that is up


@dataclass(frozen=True, slots=True)
class Choice:
    """The places to ask, and those whose requests are withdrawn for it."""

    ask: tuple[str, ...] = ()
    withdraw: tuple[str, ...] = ()


def node_of(lease: str | None) -> str:
    """Return the node that a lease is of; empty for this machine."""
    parts = (lease or "").split("/")
    return parts[0] if len(parts) == 3 else ""


def is_meant(at: str, place: Place) -> bool:
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
    places: Sequence[Place],
    asked: Collection[str],
    refused: Collection[str],
    usual_s: float | None = None,
) -> Choice:
    """Choose the places to ask next: up, there for long enough, large enough, least crowded first.

    At most `MAX_ASKED` have a request at once. One that has a free GPU then replaces the most
    crowded of them.
    """
    could = [
        place
        for place in places
        if place.is_up
        and place.name not in asked
        and place.name not in refused
        and is_meant(spec.at, place)
        and ends_within(usual_s, place.left_s)
    ]
    # A place that is too small refuses in its own words, if no other takes the job.
    could.sort(key=lambda one: (not _is_large_enough(spec, one), one.crowd, one.name != LOCAL))
    room = MAX_ASKED - len(asked)
    if room > 0:
        return Choice(tuple(place.name for place in could[:room]))
    crowded = max((place for place in places if place.name in asked), key=lambda one: one.crowd)
    if could and could[0].crowd < 1 <= crowded.crowd and _is_large_enough(spec, could[0]):
        return Choice((could[0].name,), (crowded.name,))
    return Choice()


def _is_large_enough(spec: JobSpec, place: Place) -> bool:
    """True unless a place is known to be too small."""
    if not place.gpu_bytes:
        return True
    if spec.gpus > len(place.gpu_bytes):
        return False
    return spec.mem_bytes is None or spec.mem_bytes <= place.gpu_bytes[spec.gpus - 1]
