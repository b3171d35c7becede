"""The states of a job, and a table of every step between them.

A job changes its state through `after` only: a step that the table does not list is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class JobState(Enum):
    """The state of a job."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Step(Enum):
    """A change of state; the engine translates events into steps."""

    BEGIN = "begin"  # an attempt, under a granted lease or one that another job passed on
    RUN = "run"  # a shim has the attempt, or was found alive after a restart
    STOP = "stop"
    REQUEUE = "requeue"  # the attempt is over and another follows
    END = "end"


NEXT: Mapping[tuple[JobState, Step], JobState] = {
    (JobState.QUEUED, Step.BEGIN): JobState.STARTING,
    (JobState.QUEUED, Step.END): JobState.ENDED,
    (JobState.STARTING, Step.RUN): JobState.RUNNING,
    (JobState.STARTING, Step.STOP): JobState.STOPPING,
    (JobState.STARTING, Step.REQUEUE): JobState.QUEUED,
    (JobState.STARTING, Step.END): JobState.ENDED,  # over before it was seen to run
    (JobState.RUNNING, Step.RUN): JobState.RUNNING,  # its first shim died before its claim
    (JobState.RUNNING, Step.STOP): JobState.STOPPING,
    (JobState.RUNNING, Step.REQUEUE): JobState.QUEUED,
    (JobState.RUNNING, Step.END): JobState.ENDED,
    (JobState.STOPPING, Step.RUN): JobState.STOPPING,  # the cancel overtook the start
    (JobState.STOPPING, Step.STOP): JobState.STOPPING,  # asked twice: kill at once
    (JobState.STOPPING, Step.END): JobState.ENDED,
}
BUSY = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})


def after(state: JobState, step: Step) -> JobState:
    """Return the state that a step leads to; raise KeyError for a step that does not exist."""
    return NEXT[state, step]
