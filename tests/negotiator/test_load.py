"""How busy jobs keep a GPU: what is learned of it and what follows."""

from __future__ import annotations

import pytest

from grn.model.gpu import Gpu, Reading
from grn.model.sizes import GiB
from grn.negotiator.events import SaveRun, WaitReason
from grn.negotiator.rules import Rules
from tests.builders import NO_GUARD, Story, a_profile, a_run, some_gpus

CAPPED = Rules(NO_GUARD, load_cap=1.4)


class BusyStory(Story):
    """A story in which each job keeps its GPUs as busy as its type does."""

    types: dict[str, float]

    def reading(self, gpu: Gpu) -> Reading:
        plain = super().reading(gpu)
        busy = [
            self.types[lease.request.job_type]
            for lease in self.engine.leases.values()
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


def test_a_job_alone_shows_its_load() -> None:
    story = a_story(light=0)
    story.types = {"light": 0.3}
    story.asks("a", job_type="light", mem_bytes=GiB)
    story.memory["a"] = GiB
    story.passes(60)
    story.ends("a")

    (saved,) = [action for action in story.actions if isinstance(action, SaveRun)]
    assert saved.run.load == pytest.approx(0.3, abs=0.01)
    assert story.engine.loads.of("light", "Card 24") == pytest.approx(0.3, abs=0.01)


def test_beside_a_known_job_it_has_what_the_other_leaves() -> None:
    story = a_story(known=0.5, new=0)
    story.asks("a", job_type="known", mem_bytes=GiB)
    story.asks("b", job_type="new", mem_bytes=GiB)
    story.memory.update(a=GiB, b=GiB)
    story.types = {"known": 0.5, "new": 0.2}
    story.passes(60)

    assert story.engine.loads.of("new", "Card 24") == pytest.approx(0.2, abs=0.01)


def test_a_short_run_shows_no_load() -> None:
    story = a_story(new=0)
    story.asks("a", job_type="new", mem_bytes=GiB)
    story.passes(10)
    story.ends("a")

    assert story.engine.loads.of("new", "Card 24") is None


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
