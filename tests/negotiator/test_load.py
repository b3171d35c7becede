"""How busy jobs keep a GPU: what is learned of it and what follows."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from grn.model.gpu import Gpu, Reading
from grn.model.job import Outcome, Run
from grn.model.units import GiB
from grn.negotiator.actions import Defer, SaveRun
from grn.negotiator.events import Released, Resumed, Sampled, WaitReason
from grn.negotiator.learn.interference import slowdown
from grn.negotiator.learn.load import Loads
from grn.negotiator.schedule.room.ledger import Rules
from tests.builders import NO_GUARD, Story, a_profile, a_run, some_gpus

CAPPED = Rules(NO_GUARD, load_cap=1.4)


class BusyStory(Story):
    """A story in which each job keeps its GPUs as busy as its type does."""

    types: dict[str, float]

    def reading(self, gpu: Gpu) -> Reading:
        plain = super().reading(gpu)
        busy = [
            self.types[lease.request.job_type]
            for lease in self.engine.view.leases.values()
            if gpu.uuid in lease.gpus
        ]
        return Reading(gpu.uuid, plain.health, plain.used_bytes, min(100.0, 100 * sum(busy)),
                       plain.uses)  # fmt: skip


def a_story(gpus: int = 1, **types: float) -> BusyStory:
    """Return a story; types are known by runs with these loads, 0 for unknown ones."""
    known = [
        a_profile(a_run(GiB, load=load), job_type=name) for name, load in types.items() if load
    ]
    story = BusyStory(some_gpus(gpus), CAPPED, profiles=tuple(known))
    story.types = types
    return story


def test_jobs_that_end_while_a_sample_is_applied_are_learned_with_it() -> None:
    story = a_story(100, light=0)
    story.types = {"light": 0.3}
    keys = [f"{number}" for number in range(100)]
    for key in keys:
        story.asks(key, job_type="light", mem_bytes=20 * GiB)
        story.memory[key] = GiB
    story.passes(60)
    story.memory = dict.fromkeys(keys, 3 * GiB)
    readings = tuple(story.reading(book.gpu) for book in story.engine.view.books.values())
    readings = tuple(replace(reading, load_pct=90.0) for reading in readings)
    actions = story.engine.handle(Sampled(story.at + 60.0, readings))
    assert Defer(is_soon=True) in actions

    for key in keys:
        ended = Released(story.at + 61.0, f"lease-{key}", Outcome.OK)
        actions = story.engine.handle(ended) + story.engine.handle(Resumed(ended.at))
        (saved,) = [action for action in actions if isinstance(action, SaveRun)]
        assert saved.run.peak_bytes == 3 * GiB
        assert saved.run.load == pytest.approx((50 * 0.3 + 60 * 0.9) / 110)
    story.engine.check()


def test_a_job_alone_shows_its_load() -> None:
    story = a_story(light=0)
    story.types = {"light": 0.3}
    story.asks("a", job_type="light", mem_bytes=GiB)
    story.memory["a"] = GiB
    story.passes(60)
    story.ends("a")

    (saved,) = [action for action in story.actions if isinstance(action, SaveRun)]
    assert saved.run.load == pytest.approx(0.3, abs=0.01)
    assert story.engine.view.loads.of("light", "Card 24") == pytest.approx(0.3, abs=0.01)


def test_beside_a_known_job_it_has_what_the_other_leaves() -> None:
    story = a_story(known=0.5, new=0)
    story.asks("a", job_type="known", mem_bytes=GiB)
    story.asks("b", job_type="new", mem_bytes=GiB)
    story.memory.update(a=GiB, b=GiB)
    story.types = {"known": 0.5, "new": 0.2}
    story.passes(60)

    assert story.engine.view.loads.of("new", "Card 24") == pytest.approx(0.2, abs=0.01)


def test_a_short_run_shows_no_load() -> None:
    story = a_story(new=0)
    story.asks("a", job_type="new", mem_bytes=GiB)
    story.passes(10)
    story.ends("a")

    assert story.engine.view.loads.of("new", "Card 24") is None


def test_a_short_run_after_an_idle_time_shows_no_load_either() -> None:
    """The time before it began is none of its own."""
    story = a_story(new=0, other=0.1)
    story.asks("o", job_type="other", mem_bytes=GiB)
    story.passes(10)
    story.ends("o")
    story.passes(40)
    story.asks("a", job_type="new", mem_bytes=GiB)
    story.memory["a"] = GiB
    story.types = {"new": 0.3}
    story.passes(3, every_s=1)
    story.ends("a")

    (saved,) = [action for action in story.actions if isinstance(action, SaveRun)]
    assert (saved.run.load, saved.run.crowd) == (None, None)


@pytest.mark.parametrize(("load", "is_shared"), [(0.02, True), (0.25, True), (0.6, False)])
def test_jobs_with_little_load_share_whatever_was_concluded_of_their_types(
    load: float, is_shared: bool
) -> None:
    slow = [
        replace(a_run(GiB, load=load, crowd=0.0), duration_s=duration_s, beside=beside)
        for _ in range(8)
        for duration_s, beside in ((1000.0, ()), (3500.0, (("pa", 1.0), ("pb", 1.0))))
    ]
    known = tuple(a_profile(*slow, job_type=name) for name in ("pa", "pb"))
    story = BusyStory(some_gpus(1), Rules(NO_GUARD), profiles=known)
    story.types = {"pa": load, "pb": load}
    assert story.engine.view.loads.slower_beside("pa", "Card 24")
    assert story.asks("a", job_type="pa", mem_bytes=GiB) == ["a"]
    assert story.asks("b", job_type="pb", mem_bytes=GiB) == (["b"] if is_shared else [])


def test_a_smoke_test_before_long_runs_keeps_no_types_apart() -> None:
    story = a_story(2, pa=0, pb=0)
    story.types = {"pa": 0.02, "pb": 0.02}

    def runs(seconds: float, *names: str) -> None:
        for name in names:
            assert story.asks(name, job_type=name[:2], mem_bytes=GiB)
            story.memory[name] = GiB
        story.passes(seconds, every_s=1)
        for name in names:
            del story.memory[name]
            story.ends(name, after_s=0)

    for number in range(2):
        runs(3, f"pa smoke {number}")
        story.passes(40)
        runs(3, f"pb smoke {number}")
        story.passes(40)
    for number in range(3):
        runs(150, *(f"{name} {number}{one}" for name in ("pa", "pb") for one in "ab"))
    assert not story.engine.view.loads.slower_beside("pa", "Card 24")
    assert story.asks("a", job_type="pa", mem_bytes=GiB)
    assert story.asks("b", job_type="pa", mem_bytes=GiB)
    assert story.asks("c", job_type="pb", mem_bytes=GiB)


def test_busy_jobs_do_not_crowd_one_gpu_though_memory_is_there() -> None:
    story = a_story(heavy=0.8)
    assert story.asks("a", job_type="heavy", mem_bytes=GiB) == ["a"]

    assert story.asks("b", job_type="heavy", mem_bytes=GiB) == []
    assert story.why("b") is WaitReason.GPUS_BUSY
    assert "80%" in story.text("b")
    assert story.ends("a") == ["b"]


def test_light_jobs_share_a_gpu_beside_a_busy_one() -> None:
    story = a_story(heavy=0.8, light=0.2)
    story.asks("a", job_type="heavy", mem_bytes=GiB)
    for number in range(3):
        assert story.asks(f"l{number}", job_type="light", mem_bytes=GiB)

    assert story.asks("l3", job_type="light", mem_bytes=GiB) == []


def test_a_load_nobody_knows_keeps_nobody_out() -> None:
    story = a_story(heavy=0.8, new=0)
    story.asks("a", job_type="heavy", mem_bytes=GiB)

    assert story.asks("b", job_type="new", mem_bytes=GiB) == ["b"]
    assert story.asks("c", job_type="new", mem_bytes=GiB) == ["c"]


def test_a_job_goes_where_it_slows_least() -> None:
    """GPU 0 has more memory left, GPU 1 more time."""
    story = a_story(2, heavy=0.9, light=0.1)
    story.asks("a", job_type="heavy", mem_bytes=GiB)
    story.asks("b", job_type="light", mem_bytes=10 * GiB)
    story.asks("c", job_type="light", mem_bytes=GiB)
    assert [story.gpus(key) for key in "ab"] == [[0], [1]]

    story.asks("d", job_type="heavy", mem_bytes=GiB)

    assert story.gpus("d") == [1]


def test_a_load_that_was_forgotten_counts_no_more() -> None:
    from grn.negotiator.events import ProfileForgotten

    story = a_story(heavy=0.8)
    story.asks("a", job_type="heavy", mem_bytes=GiB)
    story.asks("b", job_type="heavy", mem_bytes=GiB)

    assert story.tell(ProfileForgotten(story.at, "heavy")) == ["b"]


def test_an_empty_gpu_takes_any_load() -> None:
    story = BusyStory(some_gpus(1), Rules(NO_GUARD, load_cap=0.5),
                      profiles=(a_profile(a_run(GiB, load=0.9), job_type="heavy"),))  # fmt: skip

    assert story.asks("a", job_type="heavy", mem_bytes=GiB) == ["a"]


def test_who_waits_for_time_goes_when_there_is_some() -> None:
    """The no is remembered for all alike; it may not outlive its cause."""
    story = a_story(heavy=0.8, light=0.5)
    story.asks("a", job_type="heavy", mem_bytes=GiB)
    story.asks("b", job_type="light", mem_bytes=GiB)
    for number in range(4):
        assert story.asks(f"h{number}", job_type="heavy", mem_bytes=GiB) == []
    assert story.ends("b") == []
    assert story.ends("a") == ["h0"]
    assert story.ends("h0") == ["h1"]


def test_loads_differ_by_arguments() -> None:
    small, large = (("batch", 32.0),), (("batch", 128.0),)
    loads = Loads()
    runs = [a_run(GiB, load=load, arguments=given) for given, load in ((small, 0.3), (large, 0.8))]
    loads.load([a_profile(*runs * 3, job_type="train")])

    assert loads.of("train", "Card 24", small) == pytest.approx(0.3)
    assert loads.of("train", "Card 24", large) == pytest.approx(0.8)
    assert loads.of("train", "Card 24", (("batch", 64.0),)) == loads.of("train", "Card 24")


def test_a_seed_makes_no_difference_to_the_load() -> None:
    loads = Loads()
    loads.load([a_profile(a_run(GiB, load=0.3, arguments=(("batch", 32.0), ("seed", 1.0))))])

    assert loads.of("train.py", "Card 24", (("batch", 32.0), ("seed", 2.0))) == pytest.approx(0.3)


def past(power: float) -> tuple[Run, ...]:
    """Return runs alone and beside others, on a GPU that slows down by that power."""
    loads = (0.5, 1.2, 1.5, 1.8) * 10
    return tuple(
        a_run(GiB, duration_s=600 * slowdown(load, power), load=0.5, crowd=math.log(max(1.0, load)))
        for load in loads
    )


def crowded(rules: Rules, power: float) -> int:
    """Return how many jobs with half a GPU's load go on one GPU of a model with such a past."""
    profile = a_profile(*past(power), job_type="half")
    story = BusyStory(some_gpus(1), rules, profiles=(profile,))
    story.types = {"half": 0.5}
    return sum(len(story.asks(f"job{n}", job_type="half", mem_bytes=GiB)) for n in range(10))


def test_gpus_that_overlap_well_are_shared_by_more() -> None:
    shared = [crowded(Rules(NO_GUARD), power) for power in (0.4, 1.0, 1.6)]

    assert shared == sorted(shared, reverse=True)
    assert shared[0] > shared[1] > shared[2]


def test_a_cap_that_was_set_is_not_learned() -> None:
    assert [crowded(Rules(NO_GUARD, load_cap=1.5), power) for power in (0.4, 1.6)] == [3, 3]


def test_it_is_said_where_the_cap_comes_from() -> None:
    story = a_story(heavy=0.8)
    story.asks("a", job_type="heavy", mem_bytes=GiB)
    story.asks("b", job_type="heavy", mem_bytes=GiB)

    wait = story.engine.view.why("b", story.at)
    assert wait is not None
    assert "of at most 140% (as set)" in wait.text


def test_a_run_beside_others_remembers_them() -> None:
    story = a_story(heavy=0.9, light=0.3)
    story.asks("a", job_type="heavy", mem_bytes=GiB)
    story.asks("b", job_type="light", mem_bytes=GiB)
    story.memory.update(a=GiB, b=GiB)
    story.passes(100)
    story.ends("a")

    (saved,) = [action for action in story.actions if isinstance(action, SaveRun)]
    assert saved.run.crowd == pytest.approx(math.log(1.2), abs=0.02)
    assert saved.run.beside == (("light", pytest.approx(1.0)),)


def a_clashing_story() -> BusyStory:
    """Return a story on two GPUs, after runs in which `one` and `other` slowed each other."""
    alone = a_run(GiB, duration_s=600.0, load=0.5, crowd=0.0)
    pairs = [("one", "other"), ("other", "one")]
    profiles = []
    for job_type, beside in pairs:
        slow = replace(alone, duration_s=1800, beside=((beside, 1.0),))
        profiles.append(a_profile(*(alone, slow) * 6, job_type=job_type))
    profiles.append(a_profile(alone, job_type="third"))
    story = BusyStory(some_gpus(2), Rules(NO_GUARD), profiles=tuple(profiles))
    story.types = {"one": 0.5, "other": 0.5, "third": 0.5}
    return story


def test_types_that_slow_each_other_are_kept_apart() -> None:
    story = a_clashing_story()
    story.asks("a", job_type="one", mem_bytes=GiB)
    story.asks("b", job_type="third", mem_bytes=2 * GiB)
    story.asks("c", job_type="other", mem_bytes=GiB)

    assert [story.gpus(key) for key in "abc"] == [[0], [1], [1]]


def test_who_waits_for_another_to_end_is_told_so() -> None:
    story = a_clashing_story()
    story.asks("a", job_type="one", mem_bytes=GiB)
    story.asks("b", job_type="one", mem_bytes=GiB)
    assert story.asks("c", job_type="other", mem_bytes=GiB) == []

    wait = story.engine.view.why("c", story.at)
    assert wait is not None
    assert wait.reason is WaitReason.GPUS_BUSY
    assert "sharing GPU 0 with train.py would slow both down too much" in wait.text
    assert story.ends("b") == ["c"]


def test_of_two_models_a_job_goes_where_it_ends_sooner() -> None:
    """The slow GPU is empty and has more memory; the fast one is shared and still faster."""
    slow = Gpu("GPU-slow", 0, "slow", 24 * GiB)
    fast = Gpu("GPU-fast", 1, "fast", 16 * GiB)
    times = {"slow": 900.0, "fast": 300.0}
    profiles = tuple(
        a_profile(a_run(GiB, duration_s=time, load=0.8, crowd=0.0), model=model)
        for model, time in times.items()
    )
    story = BusyStory([slow, fast], Rules(NO_GUARD), profiles=profiles)
    story.types = {"train.py": 0.8}
    for key in "abc":
        story.asks(key)

    assert [story.gpus(key) for key in "abc"] == [[1], [1], [0]]
