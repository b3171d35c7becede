"""The states of a job as a table: which event moves a job from which state to which."""

from __future__ import annotations

from collections.abc import Mapping

from grn.queue.events import (
    ActionFailed,
    AttemptStarted,
    CancelAsked,
    Exited,
    JobState,
    LeaseGranted,
    LeaseRefused,
    ShimLost,
)

NEXT: Mapping[tuple[JobState, type], JobState] = {
    (JobState.QUEUED, LeaseGranted): JobState.STARTING,
    (JobState.QUEUED, LeaseRefused): JobState.ENDED,
    (JobState.QUEUED, CancelAsked): JobState.ENDED,
    (JobState.QUEUED, ActionFailed): JobState.ENDED,
    (JobState.STARTING, AttemptStarted): JobState.RUNNING,
    (JobState.STARTING, Exited): JobState.ENDED,  # over before we saw it run
    (JobState.STARTING, ShimLost): JobState.ENDED,
    (JobState.STARTING, ActionFailed): JobState.ENDED,
    (JobState.STARTING, CancelAsked): JobState.STOPPING,
    (JobState.RUNNING, Exited): JobState.ENDED,
    (JobState.RUNNING, ShimLost): JobState.ENDED,
    (JobState.RUNNING, CancelAsked): JobState.STOPPING,
    (JobState.STOPPING, AttemptStarted): JobState.STOPPING,  # cancel overtook the start
    (JobState.STOPPING, CancelAsked): JobState.STOPPING,  # asked twice: now in earnest
    (JobState.STOPPING, Exited): JobState.ENDED,
    (JobState.STOPPING, ShimLost): JobState.ENDED,
    (JobState.STOPPING, ActionFailed): JobState.ENDED,
}
"""Events that are not listed change no state.

Ended by `Exited` or `ShimLost` may mean: queued once more.
"""


def moved(state: JobState, event: object) -> JobState | None:
    """Return the state after an event, None when the event does not apply."""
    return NEXT.get((state, type(event)))
