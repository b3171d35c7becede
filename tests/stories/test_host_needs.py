"""Stated cores and host memory: what cannot be is refused with what the machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.queue.daemon import Queue, a_queue


@pytest.fixture(scope="module")
def queue() -> Iterator[Queue]:
    with a_queue("virtual:1x512MiB", GRN_HOST="2x1GiB") as begun:
        begun.wake()
        yield begun


@pytest.mark.parametrize("verb", ["submit", "exec"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--cpus", "0"), "hint: Give more than 0"),
        (("--cpus", "many"), "'many' is not a number of cores"),
        (("--cpus", "3"), "you asked for 3 cores; this machine has 2."),
        (("--ram", "0"), "the size '0' is out of range"),
        (("--ram", "8"), "Did you mean 8GiB?"),
        (("--ram", "2GiB"), "you asked for 2.0 GiB of host memory; this machine has 1.0 GiB."),
    ],
)
def test_needs_that_cannot_be_are_refused_with_what_to_do(
    queue: Queue, verb: str, words: tuple[str, ...], text: str
) -> None:
    ended = queue(verb, *words, "--mem", "16MiB", "--", "true")

    assert ended.code not in (0, 1)
    assert text in ended.err
    assert len(ended.err.splitlines()) <= 2  # what is wrong, and what to do


def test_a_job_that_waits_takes_other_needs_and_refuses_those_that_cannot_be(queue: Queue) -> None:
    job = str(queue.sh("true", "--hold", "--cpus", "1"))

    queue.fine("edit", job, "--cpus", "2", "--ram", "512MiB")
    assert "this machine has 2" in queue("edit", job, "--cpus", "3").err
    queue.fine("edit", job, "--cpus", "0", "--ram", "0")  # learned again, as `--mem 0`
    queue.fine("release", job)
    queue.fine("wait", job)
