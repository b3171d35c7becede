"""Watching negotiator and queue: one picture, through restarts of both, blocking and awaited."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from grn.client import state_mirror
from grn.client.state_mirror import NEGOTIATOR, QUEUE, Event, Samples, Snapshot, StateMirror
from tests.conftest import Negotiators
from tests.harness import Negotiator, is_running, wait_for
from tests.queue.daemon import Queue, a_queue


@pytest.fixture
def queue() -> Iterator[Queue]:
    with a_queue() as made:
        yield made


def seen(watch: StateMirror, job: int, state: str) -> None:
    """Wait until the picture has a job in a state; whether it was told as a change is chance."""

    def is_there() -> bool:
        watch.wait(0.1)
        return bool(watch.picture.jobs.get(job, {}).get("state") == state)

    wait_for(is_there, lambda: f"{job} {state}; {watch.picture.jobs} {watch.picture.trouble}")


def until(watch: StateMirror, name: str, **wanted: Any) -> Event:
    """Wait for an event of this name with these values among its data."""
    found: list[Event] = []

    def is_there() -> bool:
        found.extend(
            event
            for event in watch.wait(0.1)
            if event.name == name and wanted.items() <= event.data.items()
        )
        return bool(found)

    wait_for(is_there, lambda: f"{name} {wanted}; {watch.picture.trouble}")
    return found[0]


def test_a_job_is_seen_from_its_submit_to_its_end(queue: Queue) -> None:
    with StateMirror() as watch:
        queue.gate("x")
        first = queue.sh("gate x; exit 3")
        held = queue.sh("true", "--hold")
        seen(watch, first, "running")
        seen(watch, held, "held")
        wait_for(lambda: (watch.wait(0.1), watch.picture.leases)[1], "a lease")
        (lease,) = watch.picture.leases.values()
        states = {job: row["state"] for job, row in watch.picture.jobs.items()}
        queue.gate("x").open()
        ended = until(watch, "job-ended", id=first)
        wait_for(lambda: (watch.wait(0.1), watch.picture.ends)[1], "the end of the lease")

        assert states == {first: "running", held: "held"}
        assert (ended.data["status"], ended.data["reason"]) == (3, "failed")
        assert list(watch.picture.jobs) == [held]
        assert list(watch.picture.ended) == [first]
        assert watch.picture.queue["counts"] == {"running": 0, "queued": 1, "ended": 1}
        assert watch.picture.ends[-1]["id"] == lease["id"]
        assert watch.picture.ends[-1]["outcome"] == "failed"
        assert len(watch.picture.gpus) == len(watch.picture.samples) == 4


def test_a_job_that_waits_for_the_negotiator_is_known_to_both_by_one_tag(queue: Queue) -> None:
    queue.gate("x")
    line = "flock -s $STORY/gates/x true"
    first = queue.submit("--exclusive", "--gpus", "4", "--shell", "--", line)
    queue.in_state(first, "running")
    late = queue.submit("--exclusive", "--", "true")
    with StateMirror() as watch:
        seen(watch, late, "queued")
        wait_for(lambda: (watch.wait(0.1), watch.picture.waiting)[1], "somebody who waits")
        (request,) = watch.picture.in_turn()
        tag = watch.picture.jobs[late]["tag"]
        queue.gate("x").open()
        until(watch, "job-ended", id=late)

    assert request["tag"] == tag
    assert request["reason"] == "no-empty-gpu"


def test_both_may_be_killed_and_the_picture_comes_back(queue: Queue) -> None:
    queue.gate("x")
    job = queue.sh("gate x")
    with StateMirror() as watch:
        seen(watch, job, "running")
        lease = queue.in_state(job, "running")["lease"]
        wait_for(lambda: (watch.wait(0.1), lease in watch.picture.leases)[1], "the lease")
        pid = watch.picture.negotiator["pid"]
        queue.kill()
        until(watch, "lost")
        assert watch.picture.trouble[QUEUE]
        assert job in watch.picture.jobs, "what was known is kept"
        queue("stop")
        wait_for(lambda: not is_running(pid), "the negotiator to leave")
        wait_for(lambda: (watch.wait(0.1), watch.picture.trouble[NEGOTIATOR])[1], "its loss")
        queue("queue", "start")
        wait_for(
            lambda: (watch.wait(0.1), not any(watch.picture.trouble.values()))[1],
            lambda: watch.picture.trouble,
        )
        assert watch.picture.negotiator["pid"] != pid
        assert watch.picture.jobs[job]["state"] == "running"
        assert lease in watch.picture.leases
        queue.gate("x").open()
        until(watch, "job-ended", id=job, reason="ok")


def test_watching_starts_nothing_and_says_why_there_is_nothing_to_see() -> None:
    with StateMirror() as watch:
        first = watch.wait(5)
        again = watch.wait(0.05)

    assert {event.source for event in first} == {NEGOTIATOR, QUEUE}
    assert {event.name for event in first} == {"lost"}
    assert again == [], "the same trouble is told once"
    assert "no grn negotiator answers" in watch.picture.trouble[NEGOTIATOR]


def test_it_can_be_awaited_beside_other_things(here: Negotiator) -> None:
    async def look() -> tuple[list[str], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        with StateMirror(with_queue=False) as watch:
            events = await watch.wait_async(10)
            await watch.wait_async(0.05)
        ticking.cancel()
        return [event.name for event in events], ticks

    names, ticks = asyncio.run(look())
    assert names[0] == "snapshot"  # and on a busy machine what has changed since
    assert ticks > 1


@pytest.mark.slow
def test_a_stopped_negotiator_is_told_as_silent_and_heard_again_afterwards(
    negotiator: Negotiators,
) -> None:
    made = negotiator()
    with StateMirror(with_queue=False, silent_s=7.0) as watch:
        watch.look()
        os.kill(made.pid, signal.SIGSTOP)
        wait_for(lambda: (watch.wait(0.5), watch.picture.trouble[NEGOTIATOR])[1], "silence")
        assert "silent" in watch.picture.trouble[NEGOTIATOR]
        assert len(watch.picture.gpus) == 2, "what was known is kept"
        os.kill(made.pid, signal.SIGCONT)
        wait_for(lambda: (watch.wait(0.5), not watch.picture.trouble[NEGOTIATOR])[1], "a word")


def test_a_lease_too_short_to_be_seen_is_told_as_granted_and_ended() -> None:
    picture = Snapshot()
    picture.take(NEGOTIATOR, _whole())
    row = {"id": "ab", "label": "x", "outcome": "ok", "ended_at": 2.0, "peak_bytes": None}

    events = picture.take(NEGOTIATOR, {"ev": "changes", "at": 2.0, "ended": [row]})

    assert [(event.name, event.data["id"]) for event in events] == [
        ("granted", "ab"),
        ("ended", "ab"),
    ]
    assert "outcome" not in events[0].data


def test_a_request_that_is_taken_back_and_memory_that_is_gone_at_last_are_told() -> None:
    picture = Snapshot()
    whole = _whole() | {"leases": [{"id": "a"}], "waiting": [{"id": "b", "turn": [1, 0, 1]}]}
    picture.take(NEGOTIATOR, whole)

    events = picture.take(NEGOTIATOR, {"ev": "changes", "at": 2.0, "gone": ["a", "b"]})

    assert [(event.name, event.data) for event in events] == [
        ("freed", {"id": "a"}),
        ("withdrawn", {"id": "b"}),
    ]


def test_a_large_snapshot_that_comes_in_parts_is_told_once_it_is_whole() -> None:
    picture = Snapshot()
    first = {**_whole(), "waiting": [{"id": "a", "turn": [1]}], "more": True}
    part = {"ev": "changes", "at": 1.1, "waiting": [{"id": "b", "turn": [2]}]}

    assert picture.take(NEGOTIATOR, first) == []
    assert picture.take(NEGOTIATOR, {**part, "more": True}) == []
    (event,) = picture.take(NEGOTIATOR, {**part, "waiting": [{"id": "c", "turn": [0]}]})
    assert event.name == "snapshot"
    assert [row["id"] for row in event.data["waiting"]] == ["a", "b", "c"]
    assert [event.name for event in picture.take(NEGOTIATOR, part)] == ["waiting"]


def test_samples_go_on_at_their_pace_and_gaps_are_unknown() -> None:
    samples = Samples({"step_s": 1.0, "until_at": 100.0, "used_bytes": [1], "load_pct": [9.0]})
    for at in (100.5, 101.0, 101.5, 102.0, 105.0):
        samples.add(at, 2, 50.0)

    assert list(samples.used_bytes) == [1, 2, 2, None, None, 2]
    assert len(samples.load_pct) == 6


def test_the_past_is_bounded() -> None:
    samples = Samples({"step_s": 1.0, "until_at": 0.0})
    for at in range(1, 1000):
        samples.add(float(at), 1, 1.0)
    picture = Snapshot()
    picture.take(QUEUE, {"ev": "snapshot", "at": 1.0, "jobs": [], "ended": []})
    for number in range(1000):
        row = {"id": number, "argv": [], "cwd": ""}
        picture.take(QUEUE, {"ev": "changes", "at": 1.0, "ended": [row]})

    assert len(samples.used_bytes) == state_mirror.SAMPLES_KEPT
    assert list(picture.ended)[-1] == 999
    assert len(picture.ended) == state_mirror.MAX_ENDS


def _whole() -> dict[str, Any]:
    empty: dict[str, Any] = {"gpus": [], "leases": [], "waiting": [], "ends": [], "samples": []}
    return {"ev": "snapshot", "at": 1.0, **empty}
