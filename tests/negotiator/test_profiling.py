"""What is learned from runs, and what is believed of the next one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.model.job import Outcome
from grn.model.units import GiB, MiB
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.profiling import RunEnd, RunWatch
from tests.builders import a_profile, a_run

CAPACITY = 24 * GiB
PAD = 256 * MiB
OK, FAILED, OOM, KILLED = Outcome.OK, Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.KILLED


def watched(*samples, began_at=0.0):
    """Return what is known after samples of (at, GiB)."""
    watch = RunWatch(began_at)
    for at, used_gib in samples:
        watch = watch.seen(at, int(used_gib * GiB))
    return watch


# --- one run, while it goes ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "peak_gib", "rose_at"),
    [
        ([], 0, None),
        ([(1, 0)], 0, None),
        ([(1, 4)], 4, 1),
        ([(1, 4), (2, 8)], 8, 2),
        ([(1, 8), (2, 4)], 8, 1),
        ([(1, 8), (2, 0), (3, 8)], 8, 1),
        ([(1, 100), (2, 100.5)], 100.5, 1),
        ([(1, 100), (2, 100.5), (3, 101.2)], 101.2, 3),
        ([(1, 100), (2, 102)], 102, 2),
    ],
)
def test_the_peak_is_kept_and_only_a_rise_by_more_than_one_percent_counts_as_one(
    samples, peak_gib, rose_at
):
    watch = watched(*samples)

    assert (watch.peak_bytes, watch.rose_at) == (int(peak_gib * GiB), rose_at)


@pytest.mark.parametrize(
    ("samples", "at", "is_flat"),
    [
        ([], 1000, False),
        ([(1, 0)], 1000, False),
        ([(10, 4)], 69, False),
        ([(10, 4)], 70, True),
        ([(10, 4), (50, 5)], 100, False),
        ([(10, 4), (50, 5)], 110, True),
        ([(10, 4), (1000, 5)], 1060, False),  # a run this long must be quiet for a fifth of it
        ([(10, 4), (1000, 5)], 1250, True),
    ],
)
def test_a_run_is_flat_after_a_minute_or_a_fifth_of_it_without_a_rise(samples, at, is_flat):
    assert watched(*samples).is_flat(at, flat_s=60.0) is is_flat


def test_what_a_first_run_keeps_shrinks_with_the_time_it_was_quiet():
    watch = watched((10, 4))
    kept = [profiling.shrunk_bytes(watch, at, CAPACITY) for at in (10, 40, 70, 1000)]

    assert kept == sorted(kept, reverse=True)
    assert kept[0] == 6 * GiB + PAD
    assert kept[2] == pytest.approx(4 * GiB * (1.1 + 0.4 * math.exp(-2)) + PAD, abs=2)
    assert kept[-1] == pytest.approx(4.4 * GiB + PAD, abs=2)


def test_what_a_first_run_keeps_is_never_more_than_a_gpu_has():
    assert profiling.shrunk_bytes(watched((1, 23)), 61, CAPACITY) == CAPACITY


def test_margins_scale_down_on_small_gpus():
    assert (profiling.pad_bytes(CAPACITY), profiling.pad_bytes(960 * MiB)) == (PAD, 10 * MiB)
    assert (profiling.growth_bytes(CAPACITY), profiling.growth_bytes(960 * MiB)) == (GiB, 40 * MiB)


# --- the end of a run ----------------------------------------------------------------------


def an_end(outcome=OK, at=100.0, **changes):
    values = {"peak_bytes": None, "asked_bytes": None, "reserved_bytes": 10 * GiB}
    return RunEnd(outcome, at, **values | {"was_sharing": True} | changes)


LONG = [(1, 4)]  # flat from its first second
SHORT = [(95, 4)]  # flat only for the last five


@pytest.mark.parametrize(
    ("end", "samples", "outcome", "peak_gib", "is_full"),
    [
        (an_end(), LONG, OK, 4, False),
        (an_end(), SHORT, OK, 4, False),
        (an_end(peak_bytes=6 * GiB), LONG, OK, 6, False),  # the framework saw more than we
        (an_end(peak_bytes=3 * GiB), LONG, OK, 4, False),  # it does not count its context
        (an_end(peak_bytes=6 * GiB), [], OK, 6, False),  # too short for a sample
        (an_end(Outcome.PROFILED), LONG, Outcome.PROFILED, 4, False),
        (an_end(FAILED), SHORT, FAILED, 4, False),
        (an_end(FAILED), LONG, FAILED, 4, True),
        (an_end(Outcome.CANCELLED), SHORT, Outcome.CANCELLED, 4, False),
        (an_end(Outcome.CANCELLED), LONG, Outcome.CANCELLED, 4, True),
        (an_end(KILLED), LONG, KILLED, 4, False),
        (an_end(OOM), LONG, OOM, 4, False),
        (an_end(OOM, asked_bytes=8 * GiB), LONG, OOM, 12, False),
        (an_end(OOM, peak_bytes=9 * GiB, asked_bytes=2 * GiB), LONG, OOM, 11, False),
        (an_end(OOM, was_sharing=False), LONG, FAILED, 4, False),  # alone: its own fault
        (an_end(OOM, was_sharing=False, asked_bytes=22 * GiB), LONG, FAILED, 26, False),
        (an_end(OOM), [], OOM, 0, False),
    ],
)
def test_the_end_of_a_run_is_remembered_for_what_it_shows(end, samples, outcome, peak_gib, is_full):
    run = profiling.finished_run(end, watched(*samples), None, flat_s=60.0)

    assert run is not None
    assert (run.outcome, run.peak_bytes, run.is_full) == (outcome, peak_gib * GiB, is_full)
    assert (run.duration_s, run.ended_at, run.reserved_bytes) == (100.0, 100.0, 10 * GiB)


@pytest.mark.parametrize(
    ("end", "samples"),
    [
        (an_end(), []),  # nothing was seen, and nothing is not zero
        (an_end(FAILED), []),
        (an_end(KILLED), [(5, 0)]),
        (an_end(OOM, asked_bytes=GiB), LONG),  # inside its reservation: a victim of others
        (an_end(OOM, asked_bytes=6 * GiB), LONG),
    ],
)
def test_a_run_that_shows_nothing_of_the_need_is_not_remembered(end, samples):
    assert profiling.finished_run(end, watched(*samples), None, flat_s=60.0) is None


@pytest.mark.parametrize("outcome", [FAILED, Outcome.CANCELLED])
@pytest.mark.parametrize(("usual_s", "is_full"), [(None, True), (200.0, True), (201.0, False)])
def test_a_cut_run_counts_in_full_only_after_half_the_usual_time(outcome, usual_s, is_full):
    run = profiling.finished_run(an_end(outcome), watched(*LONG), usual_s, flat_s=60.0)

    assert run is not None
    assert run.is_full is is_full


def test_a_clock_that_seems_to_go_back_gives_no_negative_duration():
    run = profiling.finished_run(an_end(at=50.0), watched((60, 4), began_at=55.0), None, 60.0)

    assert run is not None
    assert run.duration_s == 0.0


@pytest.mark.parametrize(
    ("runs", "usual_s"),
    [
        ([], None),
        ([a_run(outcome=FAILED, duration_s=5)], None),
        ([a_run(duration_s=9)], 9),
        ([a_run(duration_s=d) for d in (30, 10, 20)], 20),
        ([a_run(duration_s=30), a_run(outcome=KILLED, duration_s=1)], 30),
    ],
)
def test_the_usual_time_is_the_median_of_good_runs(runs, usual_s):
    assert profiling.usual_duration_s(a_profile(*runs)) == usual_s
    assert profiling.usual_duration_s(None) is None


# --- the next run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "is_known"),
    [
        ([], False),
        ([a_run(outcome=FAILED)], False),
        ([a_run(outcome=KILLED)], False),
        ([a_run(outcome=OOM)], False),
        ([a_run(outcome=FAILED, is_full=True)], True),
        ([a_run(outcome=Outcome.PROFILED)], True),
        ([a_run(outcome=FAILED), a_run()], True),
    ],
)
def test_a_type_is_known_once_one_run_counts_in_full(runs, is_known):
    profile = a_profile(*runs)

    assert profiling.is_known(profile) is is_known
    assert (profiling.estimate(profile, CAPACITY) is not None) is is_known
    assert not profiling.is_known(None)


def headroom(*peaks):
    estimate = profiling.estimate(a_profile(*peaks), CAPACITY)
    assert estimate is not None
    return (estimate.need_bytes - PAD) / max(peaks) - 1


def test_headroom_is_wide_after_one_run_and_five_percent_after_many_alike():
    by_count = [headroom(*[4 * GiB] * count) for count in (1, 2, 5, 20, 50, 100)]

    assert by_count[0] == pytest.approx(0.36, abs=0.01)
    assert by_count == sorted(by_count, reverse=True)
    assert by_count[-1] == pytest.approx(0.05, abs=0.001)


def test_an_estimate_says_why():
    one = profiling.estimate(a_profile(4 * GiB), CAPACITY)
    two = profiling.estimate(a_profile(4 * GiB, 3 * GiB), CAPACITY)

    assert one is not None
    assert two is not None
    assert one.because == "4.0 GiB at most in 1 run, 36% headroom"
    assert "in 2 runs" in two.because
    assert (two.runs, two.largest_bytes) == (2, 4 * GiB)


def test_an_estimate_never_exceeds_what_a_gpu_can_promise():
    estimate = profiling.estimate(a_profile(23 * GiB), CAPACITY)

    assert estimate is not None
    assert estimate.need_bytes == CAPACITY


def test_a_failed_run_that_needed_more_than_the_good_ones_raises_the_estimate():
    profile = a_profile(4 * GiB, a_run(15 * GiB, FAILED))
    estimate = profiling.estimate(profile, CAPACITY)

    assert estimate is not None
    assert estimate.need_bytes == 15 * GiB + PAD
    assert estimate.largest_bytes == 4 * GiB  # a lower bound is never a maximum
    assert "failed run" in estimate.because


@pytest.mark.parametrize(
    ("runs", "floor_gib"),
    [
        ([], 0),
        ([a_run(20 * GiB)], 0),
        ([a_run(20 * GiB, FAILED, is_full=True)], 0),
        ([a_run(4 * GiB, FAILED)], 4.25),
        ([a_run(4 * GiB, KILLED), a_run(2 * GiB, KILLED)], 4.25),
        ([a_run(4 * GiB, OOM)], 5),
        ([a_run(20 * GiB, OOM)], 22),
        ([a_run(4 * GiB, OOM, reserved_bytes=8 * GiB)], 9),  # all it had been given was too little
        ([a_run(23 * GiB, OOM)], 24),
    ],
)
def test_runs_that_failed_prove_a_lower_bound(runs, floor_gib):
    assert profiling.lower_bound_bytes(a_profile(*runs), CAPACITY) == floor_gib * GiB


@pytest.mark.parametrize(
    ("believed_gib", "attempt", "room_gib"),
    [(8, 1, 12), (1, 1, 2), (20, 1, 24), (8, 2, 24), (8, 3, 24)],
)
def test_a_job_that_ran_out_of_memory_gets_half_as_much_again_then_a_whole_gpu(
    believed_gib, attempt, room_gib
):
    assert profiling.after_out_of_memory(believed_gib * GiB, attempt, CAPACITY) == room_gib * GiB


def test_only_the_latest_runs_are_kept():
    profile = a_profile()
    for number in range(profiling.RUNS_KEPT + 5):
        profile = profiling.add_run(profile, a_run(ended_at=float(number)))

    assert [run.ended_at for run in profile.runs] == list(range(5, profiling.RUNS_KEPT + 5))


PEAKS = st.lists(st.integers(min_value=1, max_value=30 * GiB), min_size=1, max_size=20)


@given(PEAKS, PEAKS)
def test_an_estimate_covers_every_peak_seen_up_to_the_whole_gpu(good, bad):
    runs = [a_run(peak) for peak in good] + [a_run(peak, FAILED) for peak in bad]
    estimate = profiling.estimate(a_profile(*runs), CAPACITY)

    assert estimate is not None
    assert min(max(*good, *bad), CAPACITY) <= estimate.need_bytes <= CAPACITY


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 30 * GiB)), max_size=30))
def test_what_a_first_run_keeps_covers_all_it_was_seen_to_use(steps):
    watch, at = RunWatch(0.0), 0.0
    for step_s, used in steps:
        at += step_s
        watch = watch.seen(at, used)
    highest = max((used for _, used in steps), default=0)

    assert watch.peak_bytes == highest
    assert min(CAPACITY, highest) <= profiling.shrunk_bytes(watch, at, CAPACITY) <= CAPACITY
