"""Stories of jobs that run out of memory: whose fault it was, and what they get next."""

import pytest

from grn.model.job import Outcome
from grn.model.units import GiB
from grn.negotiator.actions import SaveRun
from grn.negotiator.schedule.room.ledger import Rules
from tests.builders import (
    MODEL,
    Story,
    a_gpu,
    a_profile,
    a_request,
    a_use,
    a_virtual_gpu,
    some_gpus,
)

OOM = Outcome.OUT_OF_MEMORY


def saved_run(story):
    """Return the run the latest step remembered, None when it remembered none."""
    saved = [action.run for action in story.actions if isinstance(action, SaveRun)]
    return saved[0] if saved else None


def a_shared_gpu(gpu=None):
    """Return a story with a (4 GiB) beside b (10 GiB) on one GPU."""
    story = Story([gpu or a_gpu()])
    story.asks("a", mem_bytes=4 * GiB)
    story.asks("b", job_type="b.py", label="b.py", mem_bytes=10 * GiB)
    return story


def test_a_retry_gets_half_as_much_again_and_then_a_whole_gpu():
    story = Story(some_gpus(3), profiles=(a_profile(8 * GiB),))
    for attempt in (0, 1, 2):
        story.asks(str(attempt), attempt=attempt)
    first, second, third = (story.reserved(key) for key in "012")

    assert second == first * 3 // 2
    assert third == 24 * GiB


def test_a_job_that_died_for_memory_while_sharing_raises_what_its_type_is_given():
    story = a_shared_gpu()
    story.ends("a", OOM, asked_bytes=5 * GiB)

    run = saved_run(story)
    assert (run.outcome, run.peak_bytes) == (OOM, 5 * GiB)
    story.asks("c")
    assert story.leases["c"].is_probe  # nobody knows yet how much is enough
    assert story.reserved("c") == 14 * GiB


@pytest.mark.parametrize(
    ("beside_gib", "word"), [(21, "b.py (lease lease-b) beside it grew"), (9, "no job beside it")]
)
def test_who_kept_to_what_it_had_is_not_blamed(beside_gib, word):
    story = a_shared_gpu()
    story.memory = {"a": 2 * GiB, "b": beside_gib * GiB}
    story.looks()
    story.ends("a", OOM, asked_bytes=GiB)  # 3 of its 4 GiB

    run = saved_run(story)
    assert (run.outcome, run.peak_bytes) == (Outcome.FAILED, 2 * GiB)
    assert word in run.note
    assert story.engine.view.needs(a_request(mem_bytes=4 * GiB))[MODEL].need_bytes == 4 * GiB


def test_the_type_of_who_took_the_room_of_others_is_raised_while_it_runs_and_after():
    story = a_shared_gpu()
    story.memory = {"a": 2 * GiB, "b": 12 * GiB}
    story.looks()
    story.ends("a", OOM, asked_bytes=GiB)
    del story.memory["a"]
    like_b = a_request(job_type="b.py", mem_bytes=10 * GiB)

    need = story.engine.view.needs(like_b)[MODEL]
    assert need.need_bytes == 12 * GiB * 11 // 10
    assert need.because == "a run that is still going has grown to 12.0 GiB"
    story.ends("b")
    assert saved_run(story).note == "took the room of train.py, which ran out of memory"
    assert story.engine.view.needs(like_b)[MODEL].need_bytes > 12 * GiB


def test_without_a_word_on_what_it_asked_for_a_victim_is_known_by_its_neighbour():
    story = a_shared_gpu()
    story.memory = {"a": 2 * GiB, "b": 21 * GiB}
    story.looks()
    story.ends("a", OOM)

    assert saved_run(story).outcome is Outcome.FAILED


def test_both_who_had_too_much_are_raised():
    story = a_shared_gpu()
    story.memory = {"a": 6 * GiB, "b": 12 * GiB}
    story.looks()
    story.ends("a", OOM, asked_bytes=GiB)
    del story.memory["a"]

    assert (saved_run(story).outcome, saved_run(story).peak_bytes) == (OOM, 7 * GiB)
    like_b = a_request(job_type="b.py", mem_bytes=10 * GiB)
    assert story.engine.view.needs(like_b)[MODEL].need_bytes > 12 * GiB


def test_who_was_spared_goes_first_with_the_room_it_had():
    story = Story()
    story.asks("x", mem_bytes=20 * GiB)
    story.asks("old", mem_bytes=20 * GiB, priority=5)
    story.asks("spared", mem_bytes=16 * GiB, is_spared=True)

    assert story.ends("x") == ["spared"]
    assert story.reserved("spared") == 16 * GiB


def test_an_offender_is_blamed():
    story = a_shared_gpu()
    story.memory["a"] = 4 * GiB
    story.looks()
    story.ends("a", OOM, asked_bytes=GiB)

    assert saved_run(story).peak_bytes == 5 * GiB


def test_alone_it_is_the_jobs_own_fault():
    story = Story()
    story.asks("a", mem_bytes=4 * GiB)
    story.ends("a", OOM, asked_bytes=30 * GiB)

    assert saved_run(story).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("stranger_bytes", "outcome"), [(GiB // 2, Outcome.FAILED), (8 * GiB, OOM)]
)
def test_a_desktop_is_no_excuse_and_a_large_stranger_is(stranger_bytes, outcome):
    story = Story(rules=Rules())
    story.strangers[0] = [a_use(9, stranger_bytes)]
    story.looks()
    story.asks("a", mem_bytes=4 * GiB)
    story.ends("a", OOM, asked_bytes=30 * GiB)

    assert saved_run(story).outcome is outcome


def test_a_holder_killed_for_memory_is_remembered_so():
    story = a_shared_gpu(a_virtual_gpu())
    story.memory["b"] = 16 * GiB
    story.looks()
    story.memory["a"] = 9 * GiB  # more than the virtual GPU has left
    story.looks()
    story.dies("a")

    run = saved_run(story)
    assert (run.outcome, run.peak_bytes, run.reserved_bytes) == (OOM, 9 * GiB, 4 * GiB)


def test_a_death_for_memory_never_lowers_what_is_believed():
    story = Story(profiles=(a_profile(8 * GiB),))
    before = story.engine.view.needs(a_request())[MODEL].need_bytes
    story.asks("a")
    story.asks("x", job_type="x.py", mem_bytes=4 * GiB)
    story.ends("a", OOM, peak_bytes=before, asked_bytes=GiB)

    assert story.engine.view.needs(a_request())[MODEL].need_bytes > before


def test_retries_pass_all_others():
    story = Story()
    story.asks("x", mem_bytes=20 * GiB)
    story.asks("old", mem_bytes=20 * GiB, priority=5)
    story.asks("retry", mem_bytes=16 * GiB, attempt=1)

    assert story.ends("x") == ["retry"]
    assert story.reserved("retry") == 24 * GiB


def test_a_job_that_stated_its_need_gets_more_than_that_when_it_died_for_memory():
    story = Story()
    story.asks("a", mem_bytes=8 * GiB, attempt=1)

    assert story.reserved("a") == 12 * GiB
