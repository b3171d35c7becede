"""Every cell of states × events: what moves a job, and what means nothing in its state."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from grn.queue import events
from grn.queue.engine import QueueEngine
from grn.queue.events import (
    ActionFailed,
    ArraySubmitted,
    AttemptFound,
    AttemptStarted,
    CancelAsked,
    CancelContinued,
    ClockRead,
    DrainAsked,
    Edited,
    Event,
    Exited,
    HoldAsked,
    IdleReported,
    LeaseAwaited,
    LeaseGranted,
    LeaseRefused,
    MembersNamed,
    MoveAsked,
    NegotiatorFound,
    NegotiatorLost,
    Recovered,
    ShimLost,
    Submitted,
    SubmitterGone,
    YieldAsked,
)
from grn.queue.jobs.job import AttemptFate, Exit, JobState, KeptArray, Step, after
from tests.queue.builders import Line, a_spec

QUEUE = Path(__file__).resolve().parents[2] / "src" / "grn" / "queue"
QUEUED, STARTING, RUNNING, STOPPING, ENDED = JobState

EVENTS: dict[type, Event] = {
    type(event): event
    for event in (
        Recovered(1.0, ()),
        Submitted(1.0, ()),
        ArraySubmitted(1.0, KeptArray(a_spec(50), ((50, 59),))),
        MembersNamed(1.0, (1,)),
        LeaseGranted(1.0, 1, "lease-1", "0", (0,), 1 << 30),
        LeaseAwaited(1.0, 1, "no room"),
        LeaseRefused(1.0, 1, "it never fits"),
        NegotiatorLost(1.0),
        NegotiatorFound(1.0),
        AttemptStarted(1.0, 1, 1),
        Exited(1.0, 1, 1, Exit(0)),
        ShimLost(1.0, 1, 1),
        AttemptFound(1.0, 1, 1, AttemptFate.INTERRUPTED, "gpu2 went down"),
        ActionFailed(1.0, 1, 1, "its record is damaged"),
        CancelAsked(1.0, (1,)),
        CancelContinued(1.0),
        YieldAsked(1.0, "lease-1"),
        HoldAsked(1.0, (1,)),
        MoveAsked(1.0, (1,), priority=3),
        Edited(1.0, a_spec(1, priority=3)),
        IdleReported(1.0, "lease-1", 1800.0),
        DrainAsked(1.0),
        ClockRead(1.0, 1e9),
        SubmitterGone(1.0, "another process"),
    )
}

# What each event means to a job that it names; every other cell changes nothing.
MOVES = {
    (QUEUED, LeaseGranted): STARTING,
    (QUEUED, LeaseRefused): ENDED,
    (QUEUED, CancelAsked): ENDED,
    (QUEUED, ActionFailed): ENDED,
    (STARTING, AttemptStarted): RUNNING,
    (STARTING, Exited): ENDED,
    (STARTING, ShimLost): ENDED,
    (STARTING, AttemptFound): ENDED,
    (STARTING, ActionFailed): ENDED,
    (STARTING, CancelAsked): STOPPING,
    (RUNNING, Exited): ENDED,
    (RUNNING, ShimLost): ENDED,
    (RUNNING, AttemptFound): ENDED,
    (RUNNING, CancelAsked): STOPPING,
    (STOPPING, AttemptStarted): STOPPING,
    (STOPPING, CancelAsked): STOPPING,
    (STOPPING, Exited): ENDED,
    (STOPPING, ShimLost): ENDED,
    (STOPPING, AttemptFound): ENDED,
    (STOPPING, ActionFailed): ENDED,
}
STEPS = {
    (QUEUED, Step.BEGIN): STARTING,
    (QUEUED, Step.END): ENDED,
    (STARTING, Step.RUN): RUNNING,
    (STARTING, Step.STOP): STOPPING,
    (STARTING, Step.REQUEUE): QUEUED,
    (STARTING, Step.END): ENDED,
    (RUNNING, Step.RUN): RUNNING,
    (RUNNING, Step.STOP): STOPPING,
    (RUNNING, Step.REQUEUE): QUEUED,
    (RUNNING, Step.END): ENDED,
    (STOPPING, Step.RUN): STOPPING,
    (STOPPING, Step.STOP): STOPPING,
    (STOPPING, Step.END): ENDED,
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


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("step", Step)
def test_a_cell_of_the_table(state: JobState, step: Step) -> None:
    if (state, step) in STEPS:
        assert after(state, step) is STEPS[state, step]
    else:
        with pytest.raises(KeyError):
            after(state, step)


def test_a_state_is_assigned_in_one_place_only() -> None:
    """`QueuedJob.step` asks the table; nothing else writes a state."""
    found = []
    for path in sorted(QUEUE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            flat = [one for target in targets for one in ast.walk(target)]
            names = [one.attr for one in flat if isinstance(one, ast.Attribute)]
            found += [path.name for name in names if name in ("state", "_state")]
    assert found == ["queued_job.py"]


def test_only_events_change_the_engine() -> None:
    public = {name for name in vars(QueueEngine) if not name.startswith("_")}
    assert public == {"handle", "is_drained", "counts", "check"}
    line = in_state(RUNNING)
    with pytest.raises(AttributeError):
        line.engine.jobs[1].state = QUEUED  # type: ignore[misc]
    with pytest.raises(TypeError):
        del line.engine.jobs[1]  # type: ignore[attr-defined]


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
