"""Short stories of asking, waiting and being granted."""

import pytest

from grn.model.gpu import ComputeMode, GpuHealth, GpuKind
from grn.model.host import HostSize
from grn.model.job import Outcome, Policy
from grn.model.units import GiB
from grn.negotiator.actions import (
    Defer,
    DropLease,
    DropProfile,
    DropWaiting,
    Grant,
    LookSoon,
    SaveLease,
    SaveRun,
    SaveWaiting,
    Settle,
    TellWaiting,
)
from grn.negotiator.events import (
    Booking,
    BookingMade,
    HolderChanged,
    HolderGone,
    ProfileForgotten,
    Released,
    Resumed,
    WaitReason,
)
from grn.negotiator.queries.views import gpu as gpu_view
from grn.negotiator.queries.views import used_by
from grn.negotiator.schedule.room.ledger import Guard, Rules
from tests.builders import (
    MODEL,
    Story,
    a_gpu,
    a_holder,
    a_profile,
    a_request,
    a_run,
    a_use,
    a_virtual_gpu,
    some_gpus,
)

BIG, SMALL = {"mem_bytes": 20 * GiB}, {"mem_bytes": 4 * GiB}


def kinds(actions):
    return [type(action) for action in actions]


# --- the shape of an answer ----------------------------------------------------------------


def test_a_grant_is_saved_before_it_is_told():
    story = Story()

    assert story.asks("a", **SMALL) == ["a"]
    saved, granted = story.actions
    assert isinstance(saved, SaveLease)
    assert isinstance(granted, Grant)
    assert saved.lease == granted.lease == story.engine.view.leases["lease-a"]
    assert granted.gpus == (a_gpu(0),)
    assert granted.lease.reserved == (4 * GiB,)


def test_a_wait_is_saved_and_told_with_its_reason():
    story = Story()
    story.asks("a", **BIG)

    assert story.asks("b", **BIG) == []
    saved, told = story.actions
    assert isinstance(saved, SaveWaiting)
    assert isinstance(told, TellWaiting)
    assert (saved.key, told.key, told.wait.reason) == ("b", "b", WaitReason.NO_ROOM)


def test_one_who_waited_is_taken_off_the_list_when_granted():
    story = Story()
    story.asks("a", **BIG)
    story.asks("b", **BIG)

    assert story.ends("a") == ["b"]
    assert kinds(story.actions) == [Settle, DropLease, DropWaiting, SaveLease, Grant, Defer]
    assert story.why("b") is None


def test_a_run_is_saved_with_what_it_showed():
    story = Story(wall_offset_s=1000.0)
    story.asks("a", **SMALL, arguments=(("batch", 32.0),))
    story.ends("a", after_s=50.0, peak_bytes=3 * GiB)

    (saved,) = [action for action in story.actions if isinstance(action, SaveRun)]
    assert (saved.job_type, saved.model, saved.owner) == ("train.py", MODEL, 1000)
    assert (saved.run.peak_bytes, saved.run.duration_s, saved.run.ended_at) == (3 * GiB, 50, 1050)
    assert saved.run.arguments == (("batch", 32.0),)


# --- what runs teach when nobody waits -----------------------------------------------------


def a_story_of_runs(count: int) -> Story:
    story = Story()
    for number in range(count):
        story.asks(f"run-{number}")
        story.ends(f"run-{number}", after_s=50.0, peak_bytes=3 * GiB)
    return story


def ends_quietly(story: Story, key: str) -> list[type]:
    story.tell(Released(story.at + 1.0, f"lease-{key}", Outcome.OK, 3 * GiB, is_awaited=False))
    return kinds(story.actions)


def runs_in(story: Story) -> int:
    (profile,) = story.engine.view.memory.profiles()
    return len(profile.runs)


def test_one_more_run_of_a_known_type_is_learned_from_after_the_next_request():
    story = a_story_of_runs(5)
    story.asks("a")

    assert ends_quietly(story, "a") == [Settle, DropLease, Defer]
    assert story.asks("b") == ["b"]
    assert kinds(story.actions) == [SaveLease, Grant]
    assert runs_in(story) == 5
    story.tell(Resumed(story.at))
    assert SaveRun in kinds(story.actions)
    assert runs_in(story) == 6


def test_any_other_event_finds_it_learned():
    story = a_story_of_runs(5)
    story.asks("a")
    ends_quietly(story, "a")
    story.looks()
    assert SaveRun in kinds(story.actions)
    assert runs_in(story) == 6


def test_ends_in_a_row_are_learned_from_together():
    story = a_story_of_runs(5)
    for key in "ab":
        story.asks(key)
    assert SaveRun not in [*ends_quietly(story, "a"), *ends_quietly(story, "b")]
    story.tell(Resumed(story.at))
    assert kinds(story.actions).count(SaveRun) == 2
    assert runs_in(story) == 7


@pytest.mark.parametrize("known", [0, 1, 4])
def test_a_type_of_few_runs_is_learned_from_at_once(known):
    story = a_story_of_runs(known)
    story.asks("a")
    assert SaveRun in ends_quietly(story, "a")


def test_who_waits_gets_the_room_before_a_known_type_is_learned_from():
    story = a_story_of_runs(5)
    for key in "ab":
        story.asks(key, **BIG)
    story.tell(Released(story.at + 1.0, "lease-a", Outcome.OK, 3 * GiB))
    assert [kind for kind in kinds(story.actions) if kind in (Grant, SaveRun)] == [Grant]
    story.tell(Resumed(story.at))
    assert runs_in(story) == 6


@pytest.mark.parametrize(("outcome", "peak"), [(Outcome.OK, 30 * GiB), (Outcome.FAILED, 3 * GiB)])
def test_an_end_out_of_the_ordinary_is_learned_from_before_others_start(outcome, peak):
    story = a_story_of_runs(5)
    story.asks("a", mem_bytes=20 * GiB)
    story.asks("b", **BIG)
    story.tell(Released(story.at + 1.0, "lease-a", outcome, peak))
    assert [kind for kind in kinds(story.actions) if kind in (Grant, SaveRun)] == [SaveRun, Grant]


def test_who_waited_for_the_answer_to_an_end_asks_again_with_it_learned():
    story = a_story_of_runs(5)
    story.asks("a")
    story.tell(Released(story.at + 1.0, "lease-a", Outcome.OK, 3 * GiB))
    assert runs_in(story) == 5
    story.asks("b")
    assert runs_in(story) == 6


# --- room ----------------------------------------------------------------------------------


def test_jobs_share_a_gpu_while_there_is_room():
    story = Story()
    granted = [story.asks(key, mem_bytes=10 * GiB) for key in "abc"]

    assert granted == [["a"], ["b"], []]
    assert story.free() == 4 * GiB
    assert story.why("c") is WaitReason.NO_ROOM


def test_a_job_that_starts_slowly_keeps_its_room():
    story = Story()
    story.asks("a", **BIG)
    story.memory["a"] = 0
    story.passes(3000)

    assert story.asks("b", **BIG) == []


def test_a_job_that_grows_over_its_reservation_is_counted_as_it_is_and_a_tenth_more():
    story = Story()
    story.asks("a", **SMALL)
    story.memory["a"] = 15 * GiB
    story.looks()

    assert story.free() == 24 * GiB - 15 * GiB * 11 // 10
    assert story.asks("b", job_type="b.py", mem_bytes=8 * GiB) == []
    assert story.asks("c", job_type="c.py", mem_bytes=7 * GiB) == ["c"]


def test_what_was_seen_of_a_running_job_can_be_asked():
    story = Story()
    story.asks("a", **SMALL)
    assert story.engine.view.watch("lease-a").rose_at is None
    story.memory["a"] = 3 * GiB
    story.looks()

    assert story.engine.view.watch("lease-a").peak_bytes == 3 * GiB


def test_the_guard_is_never_promised():
    story = Story(rules=Rules(guard=Guard(0.0, 512 * 1024**2)))

    assert story.asks("a", mem_bytes=20 * GiB) == ["a"]
    assert story.asks("b", mem_bytes=4 * GiB) == []
    assert story.asks("c", mem_bytes=7 * GiB // 2) == ["c"]


def test_all_of_a_gpu_means_all_that_can_be_promised():
    story = Story(rules=Rules())

    assert story.asks("a", mem_bytes=24 * GiB) == ["a"]
    assert story.reserved("a") == story.engine.view.books["GPU-0"].capacity_bytes < 24 * GiB


def test_all_of_a_gpu_is_had_beside_a_desktop_too():
    story = Story(rules=Rules())
    story.asks("x", **SMALL)
    story.strangers[0] = [a_use(9, GiB // 4)]
    story.unexplained[0] = GiB // 2
    story.looks()
    story.asks("a", mem_bytes=24 * GiB)
    story.asks("b", **SMALL, attempt=2)

    assert story.ends("x") == ["b"]  # a retry comes first
    assert story.ends("b") == ["a"]


def test_what_was_stated_and_is_less_than_was_measured_is_raised():
    story = Story(profiles=(a_profile(10 * GiB),))

    story.asks("a", mem_bytes=GiB)
    assert story.reserved("a") > 10 * GiB


def test_what_was_stated_is_a_promise_to_others():
    story = Story()
    story.asks("a", mem_bytes=20 * GiB)
    story.memory["a"] = GiB
    story.passes(100)

    assert story.reserved("a") == 20 * GiB
    assert story.asks("b", **SMALL) == ["b"]  # of the same type, which is not measured


# --- strangers -----------------------------------------------------------------------------


def test_the_memory_of_strangers_is_respected():
    story = Story()
    story.strangers[0] = [a_use(9, 10 * GiB)]
    story.looks()

    assert story.asks("a", mem_bytes=15 * GiB) == []
    assert "10.0 GiB is used by processes without a lease" in story.text("a")
    story.strangers[0] = []
    assert story.looks() == ["a"]


def test_memory_that_nobody_explains_is_respected():
    story = Story()
    story.unexplained[0] = 10 * GiB
    story.looks()

    assert story.asks("a", mem_bytes=15 * GiB) == []
    assert story.asks("b", mem_bytes=14 * GiB) == ["b"]


def test_memory_the_driver_hides_is_not_counted_twice():
    story = Story()
    story.asks("a", mem_bytes=10 * GiB)
    story.memory["a"] = None
    story.unexplained[0] = 9 * GiB
    story.looks()

    assert story.free() == 14 * GiB
    story.unexplained[0] = 12 * GiB
    story.looks()
    assert story.free() == 12 * GiB


def test_hidden_memory_of_strangers_is_not_taken_for_that_of_a_job_that_has_not_begun():
    story = Story()
    story.strangers[0] = [a_use(9, None)]
    story.unexplained[0] = 10 * GiB
    story.looks()

    assert story.asks("a", mem_bytes=12 * GiB) == ["a"]
    assert story.asks("b", mem_bytes=4 * GiB) == []


# --- silence -------------------------------------------------------------------------------


@pytest.mark.parametrize("health", [GpuHealth.UNKNOWN, GpuHealth.LOST])
def test_a_silent_gpu_gets_no_new_job_and_its_running_ones_are_left_alone(health):
    story = Story()
    story.asks("a", **SMALL)
    story.memory["a"] = 3 * GiB
    story.looks()
    story.health[0] = health
    story.looks()

    assert story.asks("b", **SMALL) == []
    assert story.why("b") is WaitReason.GPU_SILENT
    assert "GPU 0" in story.text("b")
    assert story.reserved("a") == 4 * GiB
    story.health[0] = GpuHealth.OK
    assert story.looks() == ["b"]


def test_a_gpu_that_was_never_read_gets_no_job():
    story = Story(readings=())

    assert story.asks("a", **SMALL) == []
    assert story.why("a") is WaitReason.GPU_SILENT
    assert story.looks() == ["a"]


def test_a_silent_gpu_does_not_stop_the_others():
    story = Story(some_gpus(2))
    story.health[0] = GpuHealth.LOST
    story.looks()

    assert story.asks("a", **BIG) == ["a"]
    assert story.gpus("a") == [1]


# --- alone ---------------------------------------------------------------------------------


def test_an_exclusive_job_waits_for_an_empty_gpu_and_has_it_to_itself():
    story = Story()
    story.asks("a", **SMALL)

    assert story.asks("b", is_exclusive=True, **SMALL) == []
    assert story.why("b") is WaitReason.NO_EMPTY_GPU
    assert story.ends("a") == ["b"]
    assert story.asks("c", mem_bytes=GiB) == []
    assert story.ends("b") == ["c"]


def test_exclusive_jobs_of_an_unknown_type_do_not_wait_for_each_other():
    story = Story(some_gpus(2))

    assert story.asks("a", is_exclusive=True) == ["a"]
    assert story.asks("b", is_exclusive=True) == ["b"]


def test_a_process_may_have_its_exclusive_gpu_again_though_its_memory_is_still_there():
    story = Story()
    story.asks("a", is_exclusive=True, pid=5)
    story.memory["a"] = 10 * GiB
    story.looks()
    story.ends("a")
    story.looks()

    assert story.asks("b", is_exclusive=True, pid=5) == ["b"]


def test_a_gpu_that_lets_only_one_process_in_gets_one_job():
    story = Story([a_gpu(0, is_exclusive=True)], profiles=(a_profile(GiB),))

    assert story.asks("a") == ["a"]
    assert story.asks("b") == []
    assert story.why("b") is WaitReason.NO_EMPTY_GPU
    assert story.ends("a") == ["b"]


def test_a_gpu_that_lets_only_one_process_in_is_used_when_shared_ones_are_full():
    story = Story([a_gpu(0, is_exclusive=True), a_gpu(1)])
    where = [story.asks(key, **BIG) and story.gpus(key) for key in "abc"]

    assert where == [[0], [1], []]


def test_a_gpu_that_becomes_exclusive_gets_no_job_beside_another():
    story = Story(profiles=(a_profile(GiB),))
    story.asks("a")
    story.asks("b")
    story.modes[0] = ComputeMode.EXCLUSIVE
    story.looks()

    assert story.asks("c") == []
    assert (story.why("c"), story.text("c")) == (
        WaitReason.NO_EMPTY_GPU,
        "needs a GPU to itself (compute mode of GPU 0);"
        " GPU 0 has train.py (lease lease-a) and 1 other job",
    )
    assert story.ends("a") == []
    assert story.ends("b") == ["c"]
    story.modes[0] = ComputeMode.SHARED
    story.looks()
    story.ends("c")
    assert (story.asks("d"), story.asks("e")) == (["d"], ["e"])


def test_a_gpu_that_becomes_prohibited_gets_no_job_and_its_running_one_is_still_followed():
    story = Story()
    story.asks("a", mem_bytes=2 * GiB)
    story.modes[0] = ComputeMode.PROHIBITED
    story.memory["a"] = GiB
    story.looks()

    assert story.asks("b", mem_bytes=GiB) == []
    assert (story.why("b"), story.text("b")) == (
        WaitReason.GPU_SILENT,
        "the driver lets no job start on GPU 0 (compute mode)",
    )
    assert story.engine.view.watch(story.leases["a"].id).peak_bytes == GiB
    assert gpu_view(story.engine.view.books["GPU-0"])["health"] == "prohibited"
    story.dies("a")
    del story.memory["a"]
    assert story.looks() == []
    assert not story.engine.view.leases
    story.modes.clear()  # the driver does not say: as it was
    assert story.looks() == []
    story.modes[0] = ComputeMode.SHARED
    assert story.looks() == ["b"]


def test_a_driver_without_process_lists_shows_no_job_that_uses_nothing():
    story = Story()
    story.lists_processes = False
    story.asks("a", mem_bytes=4 * GiB)
    story.memory["a"] = 3 * GiB
    free = story.free()
    story.passes(600.0)

    assert story.free() == free, "what the job uses is within what it reserved"
    assert used_by(story.engine.view, story.engine.view.leases[story.leases["a"].id]) is None
    assert not story.engine.view.watch(story.leases["a"].id).blanks
    del story.memory["a"]
    story.ends("a")
    assert not story.engine.view.memory.profiles(), "nothing was measured, so nothing is learned"


def test_a_first_run_keeps_its_gpu_while_the_driver_lists_no_processes():
    story = Story()
    story.lists_processes = False
    story.asks("a")
    story.memory["a"] = GiB
    story.passes(600.0)

    assert story.asks("b", job_type="other.py") == []
    story.dies("a")
    del story.memory["a"]
    assert story.looks() == ["b"]


# --- where ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "where"), [(Policy.SPREAD, [0, 1, 0, 1]), (Policy.PACK, [0, 0, 0, 1])]
)
def test_spread_fills_gpus_evenly_and_pack_one_after_the_other(policy, where):
    story = Story(some_gpus(2))
    for key in "abcd":
        assert story.asks(key, mem_bytes=8 * GiB, policy=policy) == [key]

    assert [story.gpus(key)[0] for key in "abcd"] == where


def test_slots_keep_a_job_on_its_gpus():
    story = Story(some_gpus(3))

    assert story.asks("a", slots=("1",), **BIG) == ["a"]
    assert story.asks("b", slots=("GPU-1",), **BIG) == []
    assert story.asks("c", slots=("0", "2"), gpus=2, **BIG) == ["c"]
    assert (story.gpus("a"), story.gpus("c")) == ([1], [0, 2])


def test_several_gpus_are_granted_at_once_or_not_at_all():
    story = Story(some_gpus(2))
    story.asks("a", **BIG)

    assert story.asks("b", gpus=2, **BIG) == []
    assert story.why("b") is WaitReason.NOT_ENOUGH_GPUS
    assert story.free(1) == 24 * GiB
    assert story.ends("a") == ["b"]
    assert story.gpus("b") == [0, 1]
    assert story.leases["b"].reserved == (20 * GiB, 20 * GiB)


def test_a_job_on_several_gpus_frees_them_all():
    story = Story(some_gpus(2))
    story.asks("a", gpus=2, **BIG)
    story.ends("a")

    assert (story.free(0), story.free(1)) == (24 * GiB, 24 * GiB)


def test_two_models_are_learned_apart():
    old = a_gpu(0, 12 * GiB, model="Old")
    story = Story([old, a_gpu(1)], profiles=(a_profile(5 * GiB, model="Old"),))

    needs = story.engine.view.needs(a_request())
    assert (needs["Old"].is_probe, needs[MODEL].is_probe) == (False, True)
    assert needs[MODEL].need_bytes == pytest.approx(needs["Old"].need_bytes, rel=0.05)


def test_a_need_too_large_for_one_model_waits_for_the_other():
    story = Story([a_gpu(0, 8 * GiB, model="Old"), a_gpu(1)])
    story.asks("a", slots=("1",), **BIG)

    assert story.asks("b", **BIG) == []
    assert story.ends("a") == ["b"]
    assert story.gpus("b") == [1]


# --- never ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wish", [{"mem_bytes": 25 * GiB}, {"gpus": 2}, {"slots": ("3",)}, {"gpus": 2, "pid": 5}]
)
def test_what_can_never_be_granted_is_refused_at_once_and_not_kept(wish):
    story = Story()

    assert story.asks("a", **wish) == []
    (refused,) = story.refusals
    assert refused.key == "a"
    assert "a" not in story.engine.view.waitlist
    assert not any(isinstance(action, SaveWaiting) for action in story.actions)


def test_one_who_waits_and_then_asks_for_too_much_is_refused_and_forgotten():
    story = Story()
    story.asks("x", **BIG)
    story.asks("a", **BIG)
    story.asks("a", mem_bytes=25 * GiB)

    assert story.refusals
    assert DropWaiting("a") in story.actions
    assert story.ends("x") == []


# --- coming back, leaving, handing over ----------------------------------------------------


def test_one_who_asks_again_with_the_same_key_keeps_its_place():
    story = Story()
    story.asks("x", **BIG)
    story.asks("a", **BIG)
    story.asks("b", **BIG)
    story.asks("a", after_s=100.0, lease="lease-a2", **BIG)

    assert story.ends("x") == ["a"]
    assert story.leases["a"].id == "lease-a2"
    assert story.ends("a") == ["b"]


def test_one_who_asks_again_for_what_it_holds_is_told_again():
    story = Story()
    story.asks("a", **SMALL)
    first = story.leases["a"]

    assert story.asks("a", lease="lease-a2", **SMALL) == ["a"]
    assert kinds(story.actions) == [Grant]
    assert story.leases["a"] == first
    assert list(story.engine.view.leases) == ["lease-a"]


def test_a_key_may_ask_anew_while_the_memory_of_its_dead_job_drains():
    story = Story()
    story.asks("a", **BIG)
    story.memory["a"] = 20 * GiB
    story.looks()
    story.dies("a")

    assert story.asks("a", lease="lease-a2", **BIG) == []
    del story.memory["a"]
    assert story.looks() == ["a"]
    assert list(story.engine.view.leases) == ["lease-a2"]


def test_one_who_leaves_is_forgotten_and_lets_others_pass():
    story = Story()
    story.asks("x", **BIG)
    story.asks("a", **BIG)
    story.asks("b", **BIG)
    story.gives_up("a")

    assert story.actions == [DropWaiting("a")]
    assert story.why("a") is None
    assert story.ends("x") == ["b"]
    assert story.gives_up("never-there") == []


def test_a_lease_is_handed_to_the_process_that_runs_the_job():
    story = Story(some_gpus(2))
    story.asks("a", pid=5, **SMALL)
    story.tell(HolderChanged(story.at, "lease-a", a_holder(6)))

    (saved,) = story.actions
    assert saved.lease.request.holder == a_holder(6)
    assert saved.lease.reserved == (4 * GiB,)
    story.asks("b", pid=5, **SMALL)
    story.asks("c", pid=6, **SMALL)
    assert (story.gpus("b"), story.gpus("c")) == ([1], [0])  # the new holder cannot move


@pytest.mark.parametrize(
    "event",
    [
        Released(1.0, "nobody", Outcome.OK, peak_bytes=GiB),
        HolderGone(1.0, "nobody"),
        HolderChanged(1.0, "nobody", a_holder()),
        ProfileForgotten(1.0, "nobody.py"),
    ],
)
def test_news_of_what_is_not_known_changes_nothing(event):
    story = Story()

    assert story.tell(event) == []
    assert story.actions == []


def test_a_forgotten_type_is_measured_anew():
    story = Story(profiles=(a_profile(4 * GiB),))
    story.asks("a")
    story.tell(ProfileForgotten(story.at, "train.py"))

    assert DropProfile("train.py") in story.actions
    assert story.asks("b") == ["b"]
    assert story.leases["b"].is_probe
    assert story.asks("c") == []


def test_forgetting_a_type_that_needed_a_whole_gpu_lets_it_try_with_less():
    story = Story(profiles=(a_profile(23 * GiB),))
    story.asks("x", job_type="other.py", mem_bytes=6 * GiB)
    assert story.asks("a") == []

    assert story.tell(ProfileForgotten(story.at, "train.py")) == ["a"]


# --- looking -------------------------------------------------------------------------------


def test_looks_are_quick_while_somebody_waits_for_memory_to_be_gone():
    story = Story()
    story.asks("a", **BIG)
    story.memory["a"] = 20 * GiB
    story.looks()
    assert LookSoon() not in story.actions
    story.asks("b", **BIG)
    assert LookSoon() not in story.actions
    story.dies("a")

    assert LookSoon() in story.actions
    story.looks()
    assert LookSoon() in story.actions
    del story.memory["a"]
    story.looks()
    assert LookSoon() not in story.actions


@pytest.mark.parametrize(("kind", "is_quick"), [(GpuKind.CARD, True), (GpuKind.VIRTUAL, False)])
def test_looks_are_quick_for_a_while_after_a_release_unless_memory_goes_with_the_lease(
    kind, is_quick
):
    gpu = a_virtual_gpu() if kind is GpuKind.VIRTUAL else a_gpu()
    story = Story([gpu])
    story.asks("a", **SMALL)
    story.asks("b", **BIG)
    story.asks("c", **BIG)
    story.ends("a")

    assert (LookSoon() in story.actions) is is_quick
    story.passes(10)
    assert LookSoon() not in story.actions


# --- all reasons ---------------------------------------------------------------------------


def reasons_seen():
    """Tell a short story for each reason and return the reasons that came out."""
    seen = {}

    def note(story, key):
        seen[story.why(key)] = story.text(key)

    busy = Story()
    busy.asks("x", **BIG)
    busy.asks("room", **BIG)
    busy.asks("first", job_type="new.py")
    busy.asks("empty", is_exclusive=True)
    for key in ("room", "first", "empty"):
        note(busy, key)

    sibling = Story()
    sibling.asks("x")
    sibling.asks("sibling")
    note(sibling, "sibling")

    pair = Story(some_gpus(2))
    pair.asks("x", pid=5, **BIG)
    pair.asks("gang", gpus=2, **BIG)
    pair.asks("stays", pid=5, **BIG)
    note(pair, "gang")
    note(pair, "stays")

    silent = Story(readings=())
    silent.asks("silent")
    note(silent, "silent")

    patient = Story(rules=Rules(guard=Guard(0.0, 0), patience_s=10.0))
    patient.asks("x", **SMALL)
    patient.asks("old", mem_bytes=24 * GiB)
    patient.passes(10)
    patient.asks("late", **SMALL)
    note(patient, "late")

    busy = Story(profiles=(a_profile(a_run(GiB, load=1.0)),))
    busy.asks("x", **SMALL)
    busy.asks("busy", **SMALL)
    note(busy, "busy")

    yielding = Story()
    yielding.asks("x", yields=True, **BIG)
    yielding.asks("urgent", is_urgent=True, **BIG)
    note(yielding, "urgent")

    small = Story(host=HostSize(4, 8 * GiB))
    small.asks("x", **SMALL, cpus=4.0, ram_bytes=4 * GiB)
    small.asks("ram", **SMALL, ram_bytes=6 * GiB)
    note(small, "ram")
    small.asks("cpus", **SMALL, cpus=2.0, ram_bytes=GiB)
    note(small, "cpus")

    back = Story(waiting=("old",))
    back.asks("new")
    note(back, "new")

    taken = Story()
    wish = Booking(0, 2000, "ada", 1, 0.0, 3600.0)
    taken.tell(BookingMade(taken.at, taken.engine.view.admitted(wish, taken.at)))
    taken.asks("booked", **SMALL)
    note(taken, "booked")
    return seen


def test_every_reason_to_wait_is_given_by_some_story_with_a_sentence():
    seen = reasons_seen()

    assert set(seen) == set(WaitReason)
    assert all(text and text == text.strip() for text in seen.values())
    assert len(set(seen.values())) == len(seen)
