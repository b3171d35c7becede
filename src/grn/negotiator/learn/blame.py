"""The cause of running out of memory: the job, a neighbour, a stranger, or none of them.

A function of each job's reservation and use; the consequences are decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

from grn.model.units import show_size


class Fault(Enum):
    """The cause of the missing memory."""

    OWN = "own"  # the job was alone: no more room is available
    ABOVE = "above"  # the job used, or requested, more than its reservation
    NEIGHBOUR = "neighbour"  # a job beside it used more than its reservation
    STRANGER = "stranger"  # processes without a lease used more than the guard
    LIMIT = "limit"  # the job reached a limit of its own
    NOBODY = "nobody"  # all kept within their reservations


class Participant(Struct, frozen=True):
    """One job's reservation on a GPU, and its use there."""

    lease: str
    label: str
    reserved_bytes: int
    used_bytes: int

    @property
    def is_above(self) -> bool:
        return self.used_bytes > self.reserved_bytes


class Scene(Struct, frozen=True):
    """A GPU, all GPUs of a job together, or the host at the moment a job ran out of memory."""

    job: Participant
    asked_bytes: int | None  # the allocation that failed, None where no message names it
    neighbours: Sequence[Participant] = ()
    strangers_bytes: int = 0
    guard_bytes: int = 0
    where: str = "its GPU"
    is_host: bool = False
    spare_bytes: int = 0  # memory that no job had reserved: strangers may have as much


class Verdict(Struct, frozen=True):
    """The cause, the neighbours above their reservations, and a sentence for people."""

    fault: Fault
    offenders: tuple[Participant, ...] = ()
    text: str = ""
    has_larger: bool = False  # the job was alone, and there is a GPU with more memory

    @property
    def is_innocent(self) -> bool:
        """True when the job kept within its reservation: its type's estimate does not grow."""
        return self.is_victim or self.fault is Fault.NOBODY

    @property
    def is_victim(self) -> bool:
        """True when others took its memory: without them the same reservation is enough."""
        return self.fault in (Fault.NEIGHBOUR, Fault.STRANGER)


def judge(scene: Scene) -> Verdict:
    """Decide the cause.

    Where the failed allocation is unknown, the job counts as within its reservation only if
    another process is found that used too much.
    """
    job, has_strangers = scene.job, scene.strangers_bytes > scene.guard_bytes
    offenders = tuple(part for part in scene.neighbours if part.is_above)
    if not scene.neighbours and not has_strangers:
        memory = "host memory" if scene.is_host else "GPU memory"
        text = f"ran out of {memory} although it was alone on {scene.where}"
        return Verdict(Fault.OWN, text=text)
    wanted = job.used_bytes + (scene.asked_bytes or 0)
    is_taken = has_strangers and scene.strangers_bytes > scene.spare_bytes
    is_explained = bool(offenders) or is_taken
    ran_out = "ran out of host memory" if scene.is_host else "ran out of memory"
    if wanted > job.reserved_bytes or (scene.asked_bytes is None and not is_explained):
        return Verdict(Fault.ABOVE, offenders, f"{ran_out}: {_above(job, wanted)}")
    if offenders:
        return Verdict(Fault.NEIGHBOUR, offenders, f"{ran_out} because {_beside(offenders)}")
    if is_taken:
        had = f"{show_size(scene.strangers_bytes)} of {'it' if scene.is_host else 'its GPU'}"
        return Verdict(Fault.STRANGER, (), f"{ran_out} because processes without a lease had {had}")
    text = f"{ran_out} with {show_size(wanted)} of {show_size(job.reserved_bytes)} reserved"
    return Verdict(Fault.NOBODY, (), f"{text}, and no job beside it had too much")


def _above(job: Participant, wanted: int) -> str:
    if wanted <= job.reserved_bytes:
        return f"{show_size(job.reserved_bytes)} were not enough"
    return f"it needed {show_size(wanted)} where {show_size(job.reserved_bytes)} were reserved"


def _beside(offenders: Sequence[Participant]) -> str:
    worst = max(offenders, key=lambda part: part.used_bytes - part.reserved_bytes)
    more = f" and {len(offenders) - 1} more" if len(offenders) > 1 else ""
    had = f"{show_size(worst.used_bytes)} of {show_size(worst.reserved_bytes)}"
    return f"{worst.label} (lease {worst.lease}){more} beside it grew beyond what it had ({had})"
