"""Stories of a negotiator that comes up again."""

import pytest

from grn.model.units import GiB
from grn.negotiator.actions import DropLease, DropWaiting, SaveWaiting
from grn.negotiator.engine import Engine
from grn.negotiator.events import JobStarted, LeaseState, Requested, WaitReason
from grn.negotiator.schedule.room.ledger import Rules
from tests.builders import (
    NO_GUARD,
    Story,
    a_gpu,
    a_lease,
    a_profile,
    a_reading,
    a_request,
    a_use,
    an_engine,
    some_gpus,
)

BIG, SMALL = {"mem_bytes": 20 * GiB}, {"mem_bytes": 4 * GiB}


# --- leases --------------------------------------------------------------------------------


def test_leases_are_adopted_with_their_room():
    story = Story(leases=(a_lease("a", 20 * GiB),))

    assert story.free() == 4 * GiB
    assert story.asks("b", **BIG) == []
    assert story.ends("a") == ["b"]


def test_a_client_that_comes_back_for_an_adopted_lease_has_it():
    story = Story(leases=(a_lease("a", 20 * GiB),))

    assert story.asks("a", lease="lease-new", **BIG) == ["a"]
    assert story.leases["a"].id == "lease-a"


def test_an_adopted_job_that_has_grown_is_counted_as_it_is_from_the_start():
    readings = (a_reading(0, a_use(5, 15 * GiB, "lease-a")),)
    story = Story(leases=(a_lease("a", 4 * GiB),), readings=readings)

    assert story.free() == 24 * GiB - 15 * GiB * 11 // 10
    assert story.asks("b", mem_bytes=10 * GiB) == []


def test_an_adopted_lease_of_a_dead_holder_still_drains():
    draining = a_lease("a", 0, state=LeaseState.DRAINING)
    readings = (a_reading(0, a_use(5, 15 * GiB, "lease-a")),)
    story = Story(leases=(draining,), readings=readings)

    assert story.asks("b", mem_bytes=10 * GiB) == []
    assert story.looks() == ["b"]


def test_a_holder_that_died_while_the_negotiator_was_down_is_freed():
    story = Story(leases=(a_lease("a", 20 * GiB),))
    story.asks("b", **BIG)

    assert story.dies("a") == []
    assert story.looks() == ["b"]


def test_a_lease_on_a_gpu_that_is_not_managed_any_more_is_dropped():
    gone = a_lease("a", gpus=("GPU-0", "GPU-9"))
    story = Story(leases=(gone, a_lease("b")))

    assert list(story.engine.view.leases) == ["lease-b"]
    engine = an_engine(gpus=some_gpus(1))
    assert DropLease("lease-a") not in engine.handle(Requested(1.0, a_request(**SMALL)))


def test_an_adopted_first_run_still_keeps_its_siblings_waiting():
    story = Story(leases=(a_lease("a", 24 * GiB, is_probe=True),))

    assert story.asks("b") == []
    assert story.why("b") is WaitReason.FIRST_RUN_ELSEWHERE
    story.memory["a"] = 4 * GiB
    assert story.passes(60) == []
    assert story.passes(20) == ["b"]


def test_what_was_learned_is_remembered():
    story = Story(profiles=(a_profile(4 * GiB),))

    assert story.asks("a") == ["a"]
    assert story.asks("b") == ["b"]


# --- those who waited ----------------------------------------------------------------------


def test_nobody_is_granted_before_those_who_waited_are_back():
    story = Story(waiting=("a", "b"))

    assert story.asks("new", after_s=0.5, **BIG) == []
    assert story.why("new") is WaitReason.RESTARTING
    assert story.asks("b", after_s=0.1, **BIG) == []
    assert story.asks("a", after_s=0.1, **BIG) == ["a"]
    assert story.ends("a") == ["b"]
    assert story.ends("b") == ["new"]


def test_all_are_served_as_soon_as_everybody_is_back():
    story = Story(waiting=("a", "b"))
    story.asks("b", after_s=0.1, mem_bytes=12 * GiB)

    assert story.asks("a", after_s=0.1, mem_bytes=12 * GiB) == ["a", "b"]
    assert story.at < 1.0


def test_those_who_do_not_come_back_in_time_lose_their_place():
    story = Story(waiting=("a", "b"))
    story.asks("new", after_s=0.5, **BIG)
    story.asks("b", after_s=0.1, **BIG)

    assert story.looks(2.0) == ["b"]
    assert DropWaiting("a") in story.actions
    story.asks("a", after_s=5.0, **BIG)
    assert story.ends("b") == ["new"]
    assert story.ends("new") == ["a"]


def test_a_newcomer_right_after_the_grace_does_not_pass_those_who_came_back():
    story = Story(waiting=("a", "b"))
    story.asks("b", after_s=0.1, **BIG)

    assert story.asks("new", after_s=3.0, job_type="new.py", **BIG) == ["b"]


def test_one_who_waited_and_left_is_not_waited_for():
    story = Story(waiting=("a", "b"))
    story.asks("b", after_s=0.1, **BIG)
    story.gives_up("a")

    assert DropWaiting("a") in story.actions
    assert story.looks(2.0) == ["b"]


def test_without_anybody_to_wait_for_there_is_no_grace():
    assert Story().asks("a", **BIG) == ["a"]


@pytest.mark.parametrize("after_s", [0.1, 0.4])
def test_the_grace_is_a_setting(after_s):
    story = Story(rules=Rules(NO_GUARD, grace_s=0.3), waiting=("gone",))

    assert story.asks("a", after_s=after_s, **BIG) == ([] if after_s < 0.3 else ["a"])


def test_releases_and_deaths_during_the_grace_grant_nothing():
    story = Story(waiting=("gone",), leases=(a_lease("x", 20 * GiB), a_lease("y", 4 * GiB)))
    story.asks("a", after_s=0.1, **BIG)

    assert story.ends("x", after_s=0.1) == []
    assert story.dies("y", after_s=0.1) == []
    assert story.looks(0.1) == []
    assert story.looks(2.0) == ["a"]


def test_one_who_comes_back_is_saved_in_its_place_again():
    story = Story(waiting=("a", "b"), leases=(a_lease("x", 20 * GiB),))
    story.asks("b", after_s=0.1, **BIG)
    places = {a.key: a.sequence for a in story.actions if isinstance(a, SaveWaiting)}
    story.asks("new", after_s=0.1, **BIG)
    places |= {a.key: a.sequence for a in story.actions if isinstance(a, SaveWaiting)}
    story.asks("a", after_s=0.1, **BIG)
    places |= {a.key: a.sequence for a in story.actions if isinstance(a, SaveWaiting)}

    assert sorted(places, key=places.__getitem__) == ["a", "b", "new"]


def test_a_second_restart_keeps_the_places_of_those_who_are_still_away():
    story = Story(waiting=("a", "b", "c"))
    story.asks("c", after_s=0.1, **BIG)
    saved = {action.key: action.sequence for action in story.actions if type(action) is SaveWaiting}

    assert saved == {"c": 2}  # behind those who are not back yet, also in the file


def test_places_are_kept_as_they_were_saved():
    engine = Engine()
    engine.handle(
        JobStarted(0.0, (a_gpu(),), (a_reading(a_gpu()),), (), (("old", 7), ("older", 3)))
    )

    actions = engine.handle(Requested(0.1, a_request("new", **BIG)))
    assert [action.sequence for action in actions if type(action) is SaveWaiting] == [8]
    actions = engine.handle(Requested(0.2, a_request("old", **BIG)))
    assert [action.sequence for action in actions if type(action) is SaveWaiting] == [7]
