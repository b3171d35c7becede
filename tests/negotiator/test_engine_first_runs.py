"""Stories of types that nobody has measured yet."""

import pytest

from grn.model.gpu import GpuHealth
from grn.model.job import Outcome, Policy
from grn.model.units import GiB, MiB
from grn.negotiator.actions import SaveLease, SaveRun
from grn.negotiator.events import ProfileForgotten, RunsImported, WaitReason
from grn.negotiator.schedule.room.ledger import Rules
from tests.builders import MODEL, Story, a_gpu, a_profile, a_run, a_use, some_gpus

FAILED, KILLED = Outcome.FAILED, Outcome.KILLED


def probes(story):
    return [lease.request.key for lease in story.engine.view.leases.values() if lease.is_probe]


# --- measured elsewhere ----------------------------------------------------------------------


def test_a_type_that_another_machine_has_measured_needs_no_first_run():
    story = Story(some_gpus(2))
    runs = (a_run(4 * GiB, ended_at=1.0), a_run(4 * GiB, ended_at=2.0))

    story.tell(RunsImported(story.at, 1000, "train.py", "train", MODEL, runs))

    assert [action.run for action in story.actions if isinstance(action, SaveRun)] == list(runs)
    assert story.asks("a") == ["a"]
    assert probes(story) == []
    assert story.reserved("a") < 8 * GiB
    assert story.asks("b") == ["b"]


def test_runs_of_another_machine_count_once_however_often_they_are_told():
    story = Story()
    runs = (a_run(4 * GiB, ended_at=1.0),)
    story.tell(RunsImported(story.at, 1000, "train.py", "train", MODEL, runs))

    story.tell(RunsImported(story.at, 1000, "train.py", "train", MODEL, runs))

    assert not any(isinstance(action, SaveRun) for action in story.actions)
    assert len(story.engine.view.memory.profile("train.py", MODEL).runs) == 1


def test_a_waiting_sibling_starts_when_runs_of_another_machine_are_told():
    story = Story(some_gpus(2))
    story.asks("a")
    assert story.asks("b") == []

    runs = (a_run(4 * GiB, ended_at=1.0),)
    assert story.tell(RunsImported(story.at, 1000, "train.py", "train", MODEL, runs)) == ["b"]


# --- alone first ---------------------------------------------------------------------------


def test_a_first_run_has_all_that_is_free_and_its_siblings_wait():
    story = Story(some_gpus(2))

    assert story.asks("a") == ["a"]
    assert story.reserved("a") == 24 * GiB
    assert probes(story) == ["a"]
    for sibling in "bc":
        assert story.asks(sibling) == []
        assert story.why(sibling) is WaitReason.FIRST_RUN_ELSEWHERE
    assert "train.py" in story.text("b")
    assert "lease-a" in story.text("b")


def test_siblings_start_after_a_short_first_run():
    story = Story(some_gpus(2))
    story.asks("a")
    for sibling in "bcde":
        story.asks(sibling)

    assert story.ends("a", peak_bytes=4 * GiB) == ["b", "c", "d", "e"]
    assert probes(story) == []
    assert sorted(story.gpus(key)[0] for key in "bcde") == [0, 0, 1, 1]
    assert story.reserved("b") == pytest.approx(4 * GiB * 1.36 + 256 * MiB, rel=0.01)


def test_two_unknown_types_overlap_each_alone_on_its_gpu():
    story = Story(some_gpus(2))

    assert story.asks("a", job_type="one.py") == ["a"]
    assert story.asks("b", job_type="two.py") == ["b"]
    assert sorted(story.gpus("a") + story.gpus("b")) == [0, 1]
    assert story.asks("c", job_type="three.py") == []
    assert story.why("c") is WaitReason.NO_ROOM_FOR_FIRST_RUN


def test_a_first_run_takes_what_known_jobs_left():
    story = Story(profiles=(a_profile(4 * GiB, job_type="known.py"),))
    story.asks("a", job_type="known.py")
    before = story.free()

    assert story.asks("b") == ["b"]
    assert story.reserved("b") == before
    assert story.free() == 0


def test_a_first_run_waits_for_as_much_room_as_most_types_need():
    story = Story()
    story.asks("x", job_type="x.py", mem_bytes=13 * GiB)

    assert story.asks("a") == []  # it is guessed at half a GPU
    assert "12.0 GiB" in story.text("a")
    assert story.ends("x", peak_bytes=13 * GiB) == ["a"]


def test_a_profiled_stand_in_makes_the_type_known():
    story = Story()
    story.asks("a")

    story.ends("a", Outcome.PROFILED, peak_bytes=2 * GiB)
    assert story.asks("b") == ["b"]
    assert story.asks("c") == ["c"]


def test_a_first_run_is_spread_even_for_those_who_pack():
    story = Story(some_gpus(2))
    story.asks("x", mem_bytes=4 * GiB, policy=Policy.PACK)

    story.asks("a", job_type="new.py", policy=Policy.PACK)
    assert story.gpus("a") == [1]


def test_one_who_states_its_need_does_not_wait_for_a_first_run():
    story = Story(some_gpus(2))
    story.asks("a")

    assert story.asks("b", mem_bytes=4 * GiB) == ["b"]
    assert story.gpus("b") == [1]


def test_a_first_run_on_two_gpus_takes_both_and_shrinks_on_both():
    story = Story(some_gpus(2))

    assert story.asks("a", gpus=2) == ["a"]
    assert story.leases["a"].reserved == (24 * GiB, 24 * GiB)
    assert story.asks("b", gpus=2) == []
    assert story.why("b") is WaitReason.FIRST_RUN_ELSEWHERE
    story.memory["a"] = 4 * GiB
    assert story.passes(70) == ["b"]
    assert story.engine.view.leases["lease-a"].reserved[0] == story.reserved("a") < 6 * GiB
    assert story.engine.view.leases["lease-a"].reserved[1] == story.reserved("a")


# --- long ones -----------------------------------------------------------------------------


def test_a_long_first_run_goes_flat_and_siblings_start_while_it_runs():
    story = Story()
    story.asks("a")
    story.asks("b")
    story.asks("c")
    story.memory["a"] = 4 * GiB

    assert story.passes(60) == []
    assert story.looks(10.0) == ["b", "c"]
    assert "lease-a" in story.engine.view.leases
    kept = story.reserved("a")
    assert 4.4 * GiB < kept < 5 * GiB
    assert story.reserved("b") == kept


def test_a_first_run_that_shrinks_is_saved_so():
    story = Story()
    story.asks("a")
    story.memory["a"] = 4 * GiB
    story.passes(70)

    (saved,) = [action for action in story.actions if isinstance(action, SaveLease)]
    assert (saved.lease.id, saved.lease.is_probe) == ("lease-a", False)
    assert saved.lease == story.engine.view.leases["lease-a"]


def test_a_first_run_that_still_grows_is_not_believed():
    story = Story()
    story.asks("a")
    story.asks("b")
    for step in range(5, 60):
        story.memory["a"] = step * GiB // 4
        assert story.passes(10) == []
        assert story.reserved("a") >= min(24, 1.25 * step / 4) * GiB

    assert story.passes(300) == ["b"] or story.why("b") is WaitReason.NO_ROOM


def test_a_first_run_that_grows_on_keeps_neither_its_siblings_waiting_nor_a_whole_gpu():
    story = Story(some_gpus(2), profiles=(a_profile(4 * GiB, job_type="known.py"),))
    story.asks("a")
    story.asks("b")
    granted = []
    for step in range(13):
        story.memory["a"] = (10 + step) * GiB // 4
        granted += story.passes(10)

    assert granted == ["b"]
    assert probes(story) == ["a", "b"]
    assert story.gpus("a") != story.gpus("b")
    assert story.reserved("a") < 12 * GiB
    story.asks("c")
    assert story.why("c") is WaitReason.FIRST_RUN_ELSEWHERE
    assert story.asks("d", job_type="known.py") == ["d"]
    assert story.gpus("d") == story.gpus("a")


def test_a_sibling_of_a_first_run_that_grows_on_needs_what_that_has_by_now():
    story = Story(some_gpus(2), profiles=(a_profile(8 * GiB, job_type="known.py"),))
    story.asks("a")
    story.asks("k", job_type="known.py", mem_bytes=8 * GiB)
    story.asks("b")
    for step in range(13):
        story.memory["a"] = (30 + step) * GiB // 2
        assert story.passes(10) == []  # 12 GiB would be enough for a type that nobody has seen

    assert story.ends("k") == ["b"]


# --- known ones ----------------------------------------------------------------------------


def test_a_run_that_is_flat_where_others_were_gives_back_what_it_does_not_need():
    story = Story(profiles=(a_profile(4 * GiB),))
    story.asks("a")
    before = story.reserved("a")
    story.memory["a"] = 4 * GiB

    story.passes(50)
    assert story.reserved("a") == before
    story.passes(20)
    assert 4 * GiB < story.reserved("a") < 4.7 * GiB < before


def test_a_run_that_may_still_grow_to_what_others_had_keeps_room_for_that():
    story = Story(profiles=(a_profile(8 * GiB),))
    story.asks("a")
    story.memory["a"] = 4 * GiB

    story.passes(100)
    assert story.reserved("a") > 8 * GiB


BATCH_4 = (("batch", 4.0),)


@pytest.mark.parametrize("others", [[], [a_run(2 * GiB, arguments=(("batch", 1.0),))]])
def test_a_run_with_other_arguments_than_all_before_it_is_fitted_to_what_it_has(others):
    story = Story(profiles=(a_profile(*others, a_run(9 * GiB, arguments=BATCH_4)),))
    story.asks("a", arguments=(("batch", 3.0),))
    assert story.reserved("a") > 9 * GiB
    story.memory["a"] = 5 * GiB

    story.passes(100)
    assert 5.5 * GiB < story.reserved("a") < 6.2 * GiB


def test_a_sibling_of_a_first_run_that_still_goes_keeps_what_that_one_has_shown():
    story = Story()
    story.asks("first")
    story.memory["first"] = 6 * GiB
    story.passes(100)
    story.asks("a")
    before = story.reserved("a")
    story.memory["a"] = 2 * GiB

    story.passes(100)
    assert story.reserved("a") == before > 6 * GiB
    story.passes(200)  # flat for four times as long as a first run: it has loaded all
    assert story.reserved("a") < 3 * GiB


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        ({"mem_bytes": 10 * GiB}, [4 * GiB]),
        ({"attempt": 1}, [4 * GiB]),
        ({}, [4 * GiB, a_run(4 * GiB, Outcome.OUT_OF_MEMORY)]),
        ({"arguments": (("batch", 3.0),)}, [a_run(9 * GiB, arguments=BATCH_4, grown=0.5)]),
    ],
)
def test_a_run_keeps_what_was_stated_or_what_nobody_can_tell_to_be_too_much(changes, runs):
    story = Story(profiles=(a_profile(*runs),))
    story.asks("a", **changes)
    before = story.reserved("a")
    story.memory["a"] = 2 * GiB

    story.passes(100)
    assert story.reserved("a") == before


def test_a_first_run_without_memory_yet_is_not_flat():
    story = Story()
    story.asks("a")
    story.asks("b")
    story.memory["a"] = 0

    assert story.passes(1000, every_s=100) == []


def test_silence_of_the_driver_shows_nothing_about_a_first_run():
    story = Story(some_gpus(2))
    story.asks("a")
    story.asks("b")
    story.memory["a"] = 4 * GiB
    story.passes(20)
    story.health[0] = GpuHealth.UNKNOWN

    assert story.passes(300) == []
    assert story.leases["a"].is_probe
    story.health[0] = GpuHealth.OK
    assert story.looks() == ["b"]


def test_a_failing_sibling_does_not_take_back_what_a_flat_first_run_shows():
    story = Story()
    story.asks("a")
    story.memory["a"] = 4 * GiB
    story.passes(70)
    story.asks("b")
    story.ends("b", FAILED, peak_bytes=GiB)

    assert story.asks("c") == ["c"]
    assert story.asks("d") == ["d"]
    assert probes(story) == []


def test_when_a_flat_first_run_is_killed_the_type_is_unknown_again():
    story = Story()
    story.asks("a")
    story.memory["a"] = 4 * GiB
    story.passes(70)
    story.dies("a")
    story.memory.clear()
    story.looks()

    assert story.asks("b") == ["b"]
    assert probes(story) == ["b"]


def test_a_flat_first_run_that_grows_later_is_counted_as_it_is():
    story = Story()
    story.asks("a")
    story.memory["a"] = 4 * GiB
    story.passes(70)
    story.memory["a"] = 18 * GiB
    story.looks()

    assert story.free() == 24 * GiB - 18 * GiB * 11 // 10


def test_forgetting_a_type_while_its_flat_first_run_goes_means_measuring_again():
    story = Story()
    story.asks("a")
    story.memory["a"] = 4 * GiB
    story.passes(70)
    story.tell(ProfileForgotten(story.at, "train.py"))

    assert story.asks("b") == ["b"]
    assert probes(story) == ["b"]


# --- failing ones --------------------------------------------------------------------------


def test_failing_first_runs_go_one_at_a_time_and_lock_nothing():
    story = Story(some_gpus(2))
    story.asks("a")
    for key in "bcd":
        assert story.asks(key) == []

    assert story.ends("a", FAILED, peak_bytes=GiB) == ["b"]
    assert story.why("c") is WaitReason.FIRST_RUN_ELSEWHERE
    assert story.dies("b") == ["c"]  # GPU 1 is free of the dead
    assert story.ends("c", peak_bytes=GiB) == ["d"]
    assert probes(story) == []


def test_failed_runs_are_lower_bounds_for_the_next_first_run():
    story = Story()
    story.asks("a")
    story.ends("a", FAILED, peak_bytes=15 * GiB)
    story.asks("x", job_type="x.py", mem_bytes=10 * GiB)

    assert story.asks("b") == []  # 14 GiB are free, but it once needed 15
    assert story.why("b") is WaitReason.NO_ROOM_FOR_FIRST_RUN
    assert story.ends("x") == ["b"]


@pytest.mark.parametrize(("flat_for_s", "is_known"), [(30, False), (80, True)])
def test_a_failed_run_that_was_flat_long_enough_counts_in_full(flat_for_s, is_known):
    story = Story()
    story.asks("a")
    story.memory["a"] = 4 * GiB
    story.passes(flat_for_s)
    story.ends("a", FAILED)

    (saved,) = [action for action in story.actions if isinstance(action, SaveRun)]
    assert saved.run.is_full is is_known
    story.memory.clear()
    story.looks()
    assert story.asks("b") == ["b"]
    assert (probes(story) == []) is is_known


def test_a_first_run_that_showed_nothing_teaches_nothing():
    story = Story()
    story.asks("a")
    story.asks("b")

    assert story.ends("a") == ["b"]
    assert probes(story) == ["b"]
    assert not [action for action in story.actions if isinstance(action, SaveRun)]


def test_a_type_that_failed_with_a_whole_gpu_can_still_be_tried_beside_a_desktop():
    story = Story(rules=Rules(), profiles=(a_profile(a_run(23 * GiB, FAILED)),))
    story.strangers[0] = [a_use(9, GiB // 2)]
    story.looks()

    assert story.asks("a") == ["a"]


# --- several models ------------------------------------------------------------------------


def test_a_type_known_on_one_model_runs_there_while_it_is_measured_on_another():
    old = [a_gpu(0, model="Old"), a_gpu(1, model="Old")]
    story = Story([*old, a_gpu(2)], profiles=(a_profile(4 * GiB),))
    story.asks("x", slots=("2",), mem_bytes=GiB, job_type="x.py")
    story.asks("a")  # measured on an empty GPU of the old model

    assert story.gpus("a") == [0]
    assert probes(story) == ["a"]
    assert story.asks("b") == ["b"]
    assert story.gpus("b") == [2]
    assert probes(story) == ["a"]


def test_room_that_comes_free_on_a_known_model_is_used_while_another_is_measured():
    old = [a_gpu(0, model="Old"), a_gpu(1, model="Old")]
    story = Story([*old, a_gpu(2)], profiles=(a_profile(4 * GiB),))
    story.strangers[2] = [a_use(9, 23 * GiB)]
    story.looks()
    story.asks("a")
    assert probes(story) == ["a"]
    assert story.asks("b") == []
    assert story.why("b") is WaitReason.FIRST_RUN_ELSEWHERE

    story.strangers[2] = []
    assert story.looks() == ["b"]
    assert story.gpus("b") == [2]


def test_a_process_that_stays_does_not_leave_for_a_model_that_is_known():
    story = Story([a_gpu(0, model="Old"), a_gpu(1)], profiles=(a_profile(4 * GiB),))
    story.asks("x", slots=("1",), mem_bytes=GiB, job_type="x.py")
    story.asks("a")
    assert (story.gpus("a"), probes(story)) == ([0], ["a"])
    story.memory["a"] = GiB
    story.looks()

    assert story.asks("b", stay=("GPU-0",)) == []


def test_what_is_learned_goes_to_the_model_it_ran_on():
    story = Story([a_gpu(0, model="Old"), a_gpu(1)])
    story.asks("a", slots=("0",))
    story.ends("a", peak_bytes=4 * GiB)

    assert story.engine.view.memory.knows("train.py", "Old")
    assert not story.engine.view.memory.knows("train.py", MODEL)


# --- jobs without any memory of a GPU ------------------------------------------------------


def test_a_job_that_never_uses_a_gpus_memory_is_known_after_one_good_run():
    story = Story(some_gpus(1))
    for key in "abcd":
        story.asks(key)
    for _ in range(10):
        story.looks(0.5)

    assert story.ends("a") == ["b", "c", "d"]
    assert story.reserved("b") == 256 * MiB


def test_a_short_run_without_memory_teaches_nothing():
    story = Story(some_gpus(1))
    for key in "abc":
        story.asks(key)
    story.looks(0.5)

    assert story.ends("a") == ["b"]
    assert probes(story) == ["b"]


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_driver_that_hides_what_a_job_uses_does_not_make_it_small(is_listed):
    story = Story(some_gpus(1))
    for key in "abc":
        story.asks(key)
    story.memory = {"a": None} if is_listed else {}
    story.unexplained[0] = 5 * GiB
    for _ in range(20):
        story.looks(0.5)

    assert story.ends("a") == ["b"]
    assert probes(story) == ["b"]
