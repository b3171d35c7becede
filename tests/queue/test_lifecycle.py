"""Every cell of states × events: what moves a job, and what means nothing in its state."""

from __future__ import annotations

import pytest

from grn.queue import events
from grn.queue.events import (
    ActionFailed,
    AttemptStarted,
    CancelAsked,
    DrainAsked,
    Event,
    Exit,
    Exited,
    HoldAsked,
    JobState,
    LeaseAwaited,
    LeaseGranted,
    LeaseRefused,
    MoveAsked,
    NegotiatorFound,
    NegotiatorLost,
    Recovered,
    ShimLost,
    Submitted,
    SubmitterGone,
)
from grn.queue.lifecycle import NEXT, moved
from tests.queue.builders import Line, a_spec

QUEUED, STARTING, RUNNING, STOPPING, ENDED = JobState

EVENTS: dict[type, Event] = {
    type(event): event
    for event in (
        Recovered(1.0, ()),
        Submitted(1.0, ()),
        LeaseGranted(1.0, 1, "lease-1", "0", (0,), 1 << 30),
        LeaseAwaited(1.0, 1, "no room"),
        LeaseRefused(1.0, 1, "it never fits"),
        NegotiatorLost(1.0),
        NegotiatorFound(1.0),
        AttemptStarted(1.0, 1, 1),
        Exited(1.0, 1, 1, Exit(0)),
        ShimLost(1.0, 1, 1),
        ActionFailed(1.0, 1, 1, "its record is damaged"),
        CancelAsked(1.0, (1,)),
        HoldAsked(1.0, (1,)),
        MoveAsked(1.0, (1,), priority=3),
        DrainAsked(1.0),
        SubmitterGone(1.0, "another process"),
    )
}

# All that moves a job: the table once more, written by hand. Every other cell is illegal.
MOVES = {
    (QUEUED, LeaseGranted): STARTING,
    (QUEUED, LeaseRefused): ENDED,
    (QUEUED, CancelAsked): ENDED,
    (QUEUED, ActionFailed): ENDED,
    (STARTING, AttemptStarted): RUNNING,
    (STARTING, Exited): ENDED,
    (STARTING, ShimLost): ENDED,
    (STARTING, ActionFailed): ENDED,
    (STARTING, CancelAsked): STOPPING,
    (RUNNING, Exited): ENDED,
    (RUNNING, ShimLost): ENDED,
    (RUNNING, CancelAsked): STOPPING,
    (STOPPING, AttemptStarted): STOPPING,
    (STOPPING, CancelAsked): STOPPING,
    (STOPPING, Exited): ENDED,
    (STOPPING, ShimLost): ENDED,
    (STOPPING, ActionFailed): ENDED,
}
CELLS = [(state, kind) for state in JobState for kind in EVENTS]
NAMES = [f"{state.value}-{kind.__name__}" for state, kind in CELLS]


def in_state(state: JobState) -> Line:
    """Return a line with job 1 in a state."""
    line = Line()
    line.submits(a_spec(1))
    if state is not QUEUED:
        line.grants(1)
    if state in (RUNNING, ENDED):
        line.starts(1)
    if state is STOPPING:
        line.cancels(1)
    if state is ENDED:
        line.exits(1)
    assert line.state(1) is state
    return line


def test_every_event_there_is_has_its_column() -> None:
    assert set(EVENTS) == set(events.Event.__args__)


@pytest.mark.parametrize(("state", "kind"), CELLS, ids=NAMES)
def test_a_cell_of_the_table(state: JobState, kind: type) -> None:
    assert moved(state, EVENTS[kind]) is MOVES.get((state, kind))
    assert NEXT.get((state, kind)) is MOVES.get((state, kind))


@pytest.mark.parametrize(("state", "kind"), CELLS, ids=NAMES)
def test_the_engine_goes_by_the_table(state: JobState, kind: type) -> None:
    line = in_state(state)
    ends = dict(line.ends)
    line.tell(EVENTS[kind])
    assert line.state(1) is MOVES.get((state, kind), state)
    if state is ENDED:
        assert line.ends == ends


@pytest.mark.parametrize(
    "late",
    [AttemptStarted(2.0, 1, 1), Exited(2.0, 1, 1, Exit(0)), ShimLost(2.0, 1, 1)],
    ids=lambda event: type(event).__name__,
)
def test_what_is_told_of_an_earlier_attempt_means_nothing(late: Event) -> None:
    line = Line()
    line.submits(a_spec(1, retries=1))
    line.runs(1)
    line.exits(1, Exit(1))
    line.grants(1)
    assert line.attempt(1) == 2
    assert line.tell(late) == []
    assert line.state(1) is STARTING
