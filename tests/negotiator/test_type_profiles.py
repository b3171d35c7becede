"""What is remembered of job types, and what a request is believed to need."""

import pytest

from grn.model.job import Outcome
from grn.model.units import GiB, MiB
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.type_needs import TypeNeeds
from grn.negotiator.learn.memory.type_profiles import TypeProfiles
from grn.negotiator.schedule.placement import Size
from tests.builders import MODEL, a_profile, a_request, a_run

CAPACITY = 24 * GiB
SIZES = {MODEL: Size(CAPACITY, CAPACITY)}
KNOWN = a_profile(4 * GiB)


def a_memory(*profiles):
    memory = TypeProfiles()
    memory.load(profiles)
    return memory


def need(memory, sizes=SIZES, model=MODEL, **wish):
    return TypeNeeds(memory).of(a_request(**wish), sizes)[model]


def believed(profile, capacity=CAPACITY):
    estimate = profiling.estimate(profile, capacity)
    assert estimate is not None
    return estimate.need_bytes


def test_a_type_never_seen_is_a_first_run_of_half_a_gpu():
    unknown = need(a_memory())

    assert (unknown.need_bytes, unknown.is_probe) == (12 * GiB, True)
    assert "never measured" in unknown.because


def test_a_known_type_needs_its_estimate():
    known = need(a_memory(KNOWN))

    assert (known.need_bytes, known.is_probe) == (believed(KNOWN), False)
    assert "4.0 GiB at most in 1 run" in known.because


def test_an_unknown_type_is_guessed_like_the_known_ones():
    others = [a_profile((number + 1) * GiB, job_type=f"other{number}.py") for number in range(19)]
    memory = a_memory(*others)

    unknown = need(memory)
    assert unknown.is_probe
    assert unknown.need_bytes == 17 * GiB


def test_who_asks_for_several_gpus_is_guessed_larger():
    alone, gang = need(a_memory()), need(a_memory(), gpus=2)

    assert gang.is_probe
    assert gang.need_bytes == alone.need_bytes * 3 // 2


def test_failed_runs_make_a_guess_larger_and_leave_the_type_unknown():
    memory = a_memory(a_profile(a_run(15 * GiB, Outcome.FAILED)))

    unknown = need(memory)
    assert (unknown.need_bytes, unknown.is_probe) == (15 * GiB + 256 * MiB, True)
    assert not memory.knows("train.py", MODEL)


# --- what the user says --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profiles", "stated", "needed", "because"),
    [
        ([], 6 * GiB, 6 * GiB, "as stated"),
        ([], 24 * GiB, 24 * GiB, "as stated"),
        ([KNOWN], 10 * GiB, 10 * GiB, "as stated"),
        ([KNOWN], GiB, believed(KNOWN), "in 1 run"),  # measured wins over a promise too small
    ],
)
def test_a_stated_need_makes_a_type_known_and_is_kept_unless_more_was_measured(
    profiles, stated, needed, because
):
    said = need(a_memory(*profiles), mem_bytes=stated)

    assert (said.need_bytes, said.is_probe) == (needed, False)
    assert because in said.because


def test_a_stated_need_of_all_of_a_gpu_means_all_that_can_be_promised():
    sizes = {MODEL: Size(24 * GiB, 22 * GiB)}

    assert need(a_memory(), sizes, mem_bytes=24 * GiB).need_bytes == 22 * GiB


def test_a_stated_need_larger_than_a_model_never_fits_there():
    sizes = SIZES | {"Small": Size(8 * GiB, 7 * GiB)}

    assert need(a_memory(), sizes, "Small", mem_bytes=10 * GiB).need_bytes == 10 * GiB


# --- out of memory -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profiles", "wish", "needed", "is_probe"),
    [
        ([KNOWN], {"attempt": 1}, believed(KNOWN) * 3 // 2, False),
        ([KNOWN], {"attempt": 2}, CAPACITY, False),
        ([], {"attempt": 1}, 18 * GiB, True),
        ([], {"attempt": 2}, CAPACITY, True),
        ([], {"attempt": 1, "mem_bytes": 6 * GiB}, 9 * GiB, False),
        ([], {"attempt": 1, "mem_bytes": 20 * GiB}, CAPACITY, False),
    ],
)
def test_a_retry_gets_more_room_and_then_a_whole_gpu(profiles, wish, needed, is_probe):
    raised = need(a_memory(*profiles), **wish)

    assert (raised.need_bytes, raised.is_probe) == (needed, is_probe)
    assert "ran out of memory" in raised.because


# --- while a first run goes ----------------------------------------------------------------


def test_what_a_first_run_shows_is_believed_until_it_ends():
    memory = a_memory()
    memory.running.settled(a_request(), MODEL, 5 * GiB)

    shown = need(memory)
    assert (shown.need_bytes, shown.is_probe) == (5 * GiB, False)
    assert memory.knows("train.py", MODEL)

    memory.running.ended(a_request(), MODEL)
    assert need(memory).is_probe


def test_the_end_of_another_run_does_not_end_what_a_first_run_shows():
    memory = a_memory()
    memory.running.settled(a_request(), MODEL, 5 * GiB)
    memory.running.ended(a_request("b"), MODEL)
    memory.add(a_request("b"), MODEL, a_run(GiB, Outcome.FAILED))

    assert need(memory).need_bytes == 5 * GiB


def test_a_failed_run_that_needed_more_raises_what_a_first_run_shows():
    memory = a_memory()
    memory.running.settled(a_request(), MODEL, 5 * GiB)
    memory.add(a_request("b"), MODEL, a_run(8 * GiB, Outcome.FAILED))

    shown = need(memory)
    assert (shown.need_bytes, shown.is_probe) == (8 * GiB + 256 * MiB, False)


def test_a_finished_run_counts_more_than_one_that_still_goes():
    memory = a_memory()
    memory.running.settled(a_request(), MODEL, 9 * GiB)
    memory.add(a_request("b"), MODEL, a_run(4 * GiB))

    assert need(memory).need_bytes == believed(KNOWN)


# --- models --------------------------------------------------------------------------------

TWO_SIZES = SIZES | {"Small": Size(8 * GiB, 8 * GiB)}


def test_a_type_known_on_one_model_is_probed_on_another_with_a_good_guess():
    memory = a_memory(KNOWN)

    assert not need(memory, TWO_SIZES).is_probe
    other = need(memory, TWO_SIZES, "Small")
    assert (other.need_bytes, other.is_probe) == (believed(KNOWN), True)


def test_a_guess_from_a_larger_model_is_not_cut_to_the_smaller_gpu():
    memory = a_memory(a_profile(20 * GiB))

    small = need(memory, TWO_SIZES, "Small")
    assert (small.need_bytes >= 20 * GiB, small.is_probe) == (True, False)
    assert small.because == f"as on {MODEL}"


def test_types_on_another_model_say_nothing_of_this_one():
    memory = a_memory(a_profile(2 * GiB, job_type="other.py", model="Small"))

    assert need(memory, TWO_SIZES).need_bytes == 12 * GiB


# --- adding and forgetting -----------------------------------------------------------------


def test_every_run_is_remembered_under_its_type_and_model():
    memory = a_memory()
    memory.add(a_request("a"), MODEL, a_run(4 * GiB))
    memory.add(a_request("b"), MODEL, a_run(5 * GiB))
    memory.add(a_request("c", job_type="other.py", user=7), "Small", a_run(GiB))

    first, second = memory.profiles()
    assert [run.peak_bytes for run in first.runs] == [4 * GiB, 5 * GiB]
    assert (second.job_type, second.model, second.owner) == ("other.py", "Small", 7)
    assert memory.profile("train.py", MODEL) == first
    assert memory.profile("train.py", "Small") is None


def test_forgetting_a_type_forgets_it_on_all_models_and_nothing_else():
    other = a_profile(2 * GiB, job_type="other.py")
    memory = a_memory(KNOWN, a_profile(2 * GiB, model="Small"), other)

    assert memory.forget("train.py")
    assert memory.profiles() == [other]
    assert need(memory).is_probe
    assert not memory.forget("train.py")


def test_forgetting_a_type_forgets_what_its_first_run_shows():
    memory = a_memory()
    memory.running.settled(a_request(), MODEL, 5 * GiB)

    assert memory.forget("train.py")
    assert need(memory).is_probe


@pytest.mark.parametrize(
    "change",
    [
        lambda memory: memory.add(a_request(), MODEL, a_run()),
        lambda memory: memory.running.settled(a_request("x"), MODEL, GiB),
        lambda memory: memory.running.ended(a_request(job_type="b.py"), MODEL),
        lambda memory: memory.forget("train.py"),
        lambda memory: memory.load([a_profile(GiB, job_type="new.py")]),
    ],
)
def test_the_version_rises_whenever_a_need_may_have_changed(change):
    memory = a_memory(KNOWN)
    memory.running.settled(a_request(job_type="b.py"), MODEL, GiB)
    before = memory.version
    change(memory)

    assert memory.version > before


def test_reading_changes_nothing():
    memory = a_memory(KNOWN)
    before = memory.version
    need(memory)
    memory.estimate("train.py", MODEL, CAPACITY)
    memory.running.ended(a_request("x"), MODEL)

    assert memory.version == before
