"""Watching negotiator and queue: one picture, through restarts of both, blocking and awaited."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from grn.client.state_mirror import StateMirror
from grn.protocol.snapshot import NEGOTIATOR, QUEUE, Event
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
        return job in watch.picture.jobs and watch.picture.jobs[job].state == state

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
        states = {job: row.state for job, row in watch.picture.jobs.items()}
        queue.gate("x").open()
        ended = until(watch, "job-ended", id=first)
        wait_for(lambda: (watch.wait(0.1), watch.picture.ends)[1], "the end of the lease")

        assert states == {first: "running", held: "held"}
        assert (ended.data["status"], ended.data["reason"]) == (3, "failed")
        assert list(watch.picture.jobs) == [held]
        assert list(watch.picture.ended) == [first]
        assert watch.picture.queue.counts == {"running": 0, "queued": 0, "held": 1, "ended": 1}
        assert watch.picture.ends[-1].id == lease.id
        assert watch.picture.ends[-1].outcome == "failed"
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
        tag = watch.picture.jobs[late].tag
        queue.gate("x").open()
        until(watch, "job-ended", id=late)

    assert request.tag == tag
    assert request.reason == "no-empty-gpu"


def test_both_may_be_killed_and_the_picture_comes_back(queue: Queue) -> None:
    queue.gate("x")
    job = queue.sh("gate x")
    with StateMirror() as watch:
        seen(watch, job, "running")
        lease = queue.in_state(job, "running")["lease"]
        wait_for(lambda: (watch.wait(0.1), lease in watch.picture.leases)[1], "the lease")
        pid = watch.picture.negotiator.pid
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
        assert watch.picture.negotiator.pid != pid
        assert watch.picture.jobs[job].state == "running"
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
