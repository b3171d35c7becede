"""Stories of jobs that outgrow their reservation: their GPU is closed to other jobs."""

from __future__ import annotations

import pytest

from grn.model.units import GiB
from grn.negotiator.actions import SaveRun
from grn.negotiator.learn.memory import profiling
from tests.builders import MODEL, PLAIN_RULES, Story, a_profile, a_request, a_run


def grows(story: Story, key: str, from_gib: float, to_gib: float, steps: int = 12) -> None:
    """Let a job grow evenly, with a sample every five seconds."""
    for step in range(steps + 1):
        story.memory[key] = int((from_gib + (to_gib - from_gib) * step / steps) * GiB)
        story.looks(5.0)


def test_a_gpu_is_closed_while_somebody_outgrows_its_reservation_there() -> None:
    story = Story(rules=PLAIN_RULES)
    story.asks("known", job_type="known.py", label="known.py", mem_bytes=4 * GiB)
    grows(story, "known", 3, 6)
    assert story.free() == 0
    story.asks("x", job_type="x.py", mem_bytes=GiB)
    assert "closed" in story.text("x")

    assert story.passes(61) == ["x"], "it grows no more"


def test_one_jump_closes_nothing() -> None:
    story = Story()
    story.asks("known", job_type="known.py", label="known.py", mem_bytes=4 * GiB)
    story.memory["known"] = 6 * GiB
    story.passes(10)

    assert story.asks("x", job_type="x.py", mem_bytes=GiB) == ["x"]


def test_a_run_that_outgrows_what_was_believed_is_believed_of_its_like_at_once() -> None:
    story = Story()
    story.asks("a", mem_bytes=4 * GiB, arguments=(("batch", 8.0),))
    story.memory["a"] = 10 * GiB
    story.looks()
    like, other = (("batch", 8.0),), (("batch", 4.0),)

    def need(arguments: tuple[tuple[str, float], ...]) -> int:
        wish = a_request(mem_bytes=4 * GiB, arguments=arguments)
        return story.engine.view.needs(wish)[MODEL].need_bytes

    assert (need(like), need(other)) == (11 * GiB, 4 * GiB)


# --- growers -------------------------------------------------------------------------------


def seen(*samples: tuple[float, float]) -> profiling.RunWatch:
    watch = profiling.RunWatch(0.0)
    for at, used_gib in samples:
        watch = watch.seen(at, int(used_gib * GiB))
    return watch


@pytest.mark.parametrize(
    ("samples", "share"),
    [
        ([], None),
        ([(10, 4), (50, 4)], 0.1),
        ([(10, 4), (60, 8)], 0.6),
        ([(10, 4), (60, 8), (80, 8.2)], 0.6),  # that was nearly all
        ([(n, n / 10) for n in range(10, 100)], 0.95),  # it grew to its end
    ],
)
def test_it_is_known_after_which_part_of_its_run_a_job_had_nearly_all(
    samples: list[tuple[float, float]], share: float | None
) -> None:
    watch = seen(*samples)

    assert watch.grown_share(100.0) == (None if share is None else pytest.approx(share, abs=0.01))
    assert len(watch.rises) <= 7


@pytest.mark.parametrize(
    ("shares", "is_grower"),
    [([], False), ([0.1, 0.2], False), ([0.5], True), ([0.5, 0.1], False), ([0.5, 0.1, 0.9], True),
     ([None, 0.9], True)],
)  # fmt: skip
def test_a_type_is_a_grower_when_most_of_its_runs_were(
    shares: list[float | None], is_grower: bool
) -> None:
    assert profiling.is_grower(a_profile(*[a_run(grown=share) for share in shares])) is is_grower


@pytest.mark.parametrize(("grown", "least_gib"), [(0.1, 4), (0.5, 10)])
def test_a_first_run_of_a_grower_that_seems_flat_keeps_what_it_was_guessed_to_need(
    grown: float, least_gib: int
) -> None:
    run = a_run(6 * GiB, arguments=(("batch", 8.0),), grown=grown)
    story = Story(profiles=(a_profile(run),))
    story.asks("larger", arguments=(("batch", 16.0),))
    assert story.leases["larger"].is_probe
    story.memory["larger"] = 4 * GiB
    story.passes(70)

    assert least_gib * GiB <= story.reserved("larger") <= 2 * least_gib * GiB
    story.ends("larger")
    (saved,) = [action.run for action in story.actions if isinstance(action, SaveRun)]
    assert saved.grown is not None
    assert saved.grown < 0.3
