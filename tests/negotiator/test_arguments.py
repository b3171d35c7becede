"""What arguments tell of memory, and what they do not."""

from __future__ import annotations

import random

import pytest

from grn.model.job import Outcome
from grn.model.units import GiB, MiB
from grn.negotiator.events import WaitReason
from grn.negotiator.learn import arguments
from grn.negotiator.learn.least_squares import fit
from grn.negotiator.learn.memory.estimate import Known
from grn.negotiator.queries import views
from tests.builders import Story, a_profile, a_run, some_gpus


def runs(*pairs: tuple[float, dict[str, float | str]]):
    return [a_run(int(gib * GiB), arguments=tuple(given.items())) for gib, given in pairs]


def batches(*pairs: tuple[float, float | str]):
    return runs(*((gib, {"batch": batch}) for gib, batch in pairs))


LINEAR = runs(*((1 + 0.1 * batch, {"batch": batch}) for batch in (16.0, 32.0, 32.0, 64.0, 80.0)))


def test_a_line_through_batch_sizes_foretells_one_between_them() -> None:
    line = arguments.line(LINEAR)

    assert line is not None
    assert line.names == ("batch",)
    assert line.bound_bytes([48]) == pytest.approx((1 + 4.8) * 1.05 * GiB, rel=0.01)


def test_below_what_was_seen_a_line_is_not_followed() -> None:
    line = arguments.line(LINEAR)

    assert line is not None
    assert line.bound_bytes([1]) == line.bound_bytes([16])


@pytest.mark.parametrize(
    "few",
    [
        LINEAR[:3],
        batches((4, 8.0), (4.1, 16.0), (4, 32.0), (4.2, 64.0)),
        batches((9, 8.0), (7, 16.0), (5, 32.0), (3, 64.0)),
        batches((2, 8.0), (9, 16.0), (3, 32.0), (8, 64.0)),
        runs(*((gib, {}) for gib in (1, 2, 3, 4))),
        batches((1, 8.0), (2, "big"), (3, 32.0), (4, 64.0)),
    ],
    ids=["few", "all the same", "falling", "scattered", "no arguments", "words among numbers"],
)  # fmt: skip
def test_where_a_line_does_not_fit_there_is_none(few) -> None:
    assert arguments.line(few) is None


def test_a_staircase_is_no_line_but_has_groups() -> None:
    stairs = runs(*((gib, {"batch": b}) for b, gib in
                    ((8.0, 2), (8.0, 2), (16.0, 2), (32.0, 9), (32.0, 9), (64.0, 9))))  # fmt: skip
    found = arguments.groups(stairs)

    assert found is not None
    assert found.largest_bytes[32.0] == 9 * GiB
    assert found.largest_bytes[8.0] == 2 * GiB


def test_words_explain_as_numbers_do() -> None:
    found = arguments.groups(runs(
        (2, {"model": "small", "seed": 1.0}), (2.1, {"model": "small", "seed": 2.0}),
        (9, {"model": "large", "seed": 3.0}), (9.1, {"model": "large", "seed": 4.0})))  # fmt: skip

    assert found is not None
    assert found.name == "model"


@pytest.mark.parametrize("name", ["seed", "lr", "run_id", "x"])
def test_what_is_drawn_by_lot_explains_nothing(name: str) -> None:
    draw = random.Random(5)
    some = [a_run(int(draw.uniform(1, 9) * GiB), arguments=((name, float(n)),)) for n in range(30)]
    draw.shuffle(some)

    assert arguments.line(some) is None
    assert arguments.groups(some) is None


def test_only_what_may_matter_and_is_larger_goes_beyond() -> None:
    seen = [{"batch": 32.0, "seed": 1.0, "model": "small"}]

    assert arguments.exceeds((("batch", 32.0), ("seed", 99.0)), seen) is None
    assert arguments.exceeds((("batch", 16.0),), seen) is None
    beyond = arguments.exceeds((("batch", 128.0),), seen)
    assert beyond is not None
    assert (beyond.name, beyond.times) == ("batch", 4.0)
    assert arguments.exceeds((("model", "large"),), seen) is not None
    assert arguments.exceeds((("colour", 5.0),), seen) is None


# --- stories -------------------------------------------------------------------------------


def a_story(*known, gpus: int = 1) -> Story:
    return Story(some_gpus(gpus), profiles=(a_profile(*known),))


def test_a_small_batch_reserves_less_than_a_large_one() -> None:
    story = a_story(*LINEAR)
    story.asks("small", arguments=(("batch", 16.0),))
    story.asks("large", arguments=(("batch", 80.0),))

    assert story.reserved("small") < 3.6 * GiB
    assert 9 * GiB < story.reserved("large") < 10.5 * GiB


def test_a_batch_larger_than_any_seen_is_measured_as_a_first_run() -> None:
    story = a_story(a_run(2 * GiB, arguments=(("batch", 16.0),)), gpus=2)
    story.asks("large", arguments=(("batch", 64.0),))
    assert story.leases["large"].is_probe

    story.asks("small", arguments=(("batch", 16.0),))  # need not wait for it
    assert not story.leases["small"].is_probe
    story.asks("larger", arguments=(("batch", 64.0), ("seed", 2.0)))
    assert story.why("larger") is WaitReason.FIRST_RUN_ELSEWHERE

    assert story.ends("large", peak_bytes=7 * GiB) == ["larger"]
    assert 7 * GiB < story.reserved("larger") < 11 * GiB


def test_a_large_batch_that_is_flat_lets_its_siblings_start() -> None:
    story = a_story(a_run(2 * GiB, arguments=(("batch", 16.0),)), gpus=2)
    story.asks("large", arguments=(("batch", 64.0),))
    story.asks("larger", arguments=(("batch", 64.0),))
    story.memory["large"] = 7 * GiB

    assert story.passes(120) == ["larger"]
    assert story.reserved("larger") < 9 * GiB


def test_the_guess_for_a_larger_batch_grows_with_it() -> None:
    story = a_story(a_run(4 * GiB, arguments=(("batch", 16.0),)))
    story.asks("x", job_type="other", mem_bytes=12 * GiB)

    assert story.asks("four times", arguments=(("batch", 64.0),)) == []
    assert "no run had such a batch" in story.text("four times") or "first run" in story.text(
        "four times"
    )
    assert story.asks("the same", arguments=(("batch", 16.0),)) == ["the same"]


def test_a_failed_run_is_not_forgotten_over_its_arguments() -> None:
    died = a_run(
        6 * GiB, Outcome.OUT_OF_MEMORY, arguments=(("batch", 16.0),), reserved_bytes=6 * GiB
    )
    story = a_story(*LINEAR, died)
    story.asks("small", arguments=(("batch", 16.0),))

    assert story.reserved("small") > 6 * GiB


def test_requests_with_other_seeds_are_alike() -> None:
    story = a_story(a_run(20 * GiB))
    story.asks("x", mem_bytes=20 * GiB)
    for number in range(5):
        story.asks(f"s{number}", arguments=(("seed", float(number)), ("batch", 8.0)))

    assert len(list(story.engine.view.waitlist.in_turn())) == 1


# --- slow growth and jobs that may pass ----------------------------------------------------


def test_slow_growth_is_not_flat() -> None:
    """Half a percent at each look never is a rise by itself."""
    story = Story()
    story.asks("a")
    size = 4.0 * GiB
    for _ in range(40):
        story.memory["a"] = int(size)
        story.looks(5.0)
        size *= 1.005

    assert story.reserved("a") > 1.25 * size


def test_a_job_that_ends_in_time_passes_one_that_waits_for_a_gpu() -> None:
    """A gang of two waits for the second GPU; the first need not stand idle meanwhile."""
    known = (
        a_profile(a_run(20 * GiB, duration_s=5000.0), job_type="long"),
        a_profile(a_run(8 * GiB, duration_s=300.0), job_type="short"),
        a_profile(a_run(8 * GiB, duration_s=50000.0), job_type="endless"),
    )
    story = Story(some_gpus(2), profiles=known)
    story.asks("long", job_type="long")
    story.asks("gang", gpus=2, mem_bytes=20 * GiB, job_type="gang")
    story.passes(700, every_s=50.0)

    assert story.asks("endless", job_type="endless") == []
    assert story.why("endless") is WaitReason.YIELDS_TO_OLDER
    assert story.asks("unknown", job_type="unknown") == []
    assert story.asks("short", job_type="short") == ["short"]
    story.ends("short", after_s=200)
    assert story.ends("long") == ["gang"]


def test_after_long_enough_nobody_passes_any_more() -> None:
    known = (
        a_profile(a_run(20 * GiB, duration_s=50000.0), job_type="long"),
        a_profile(a_run(8 * GiB, duration_s=300.0), job_type="short"),
    )
    story = Story(some_gpus(2), profiles=known)
    story.asks("long", job_type="long")
    story.asks("gang", gpus=2, mem_bytes=20 * GiB, job_type="gang")
    story.passes(2500, every_s=50.0)

    assert story.asks("short", job_type="short") == []


def test_small_values_do_not_break_the_sums() -> None:
    assert arguments.line(runs(*((0, {"batch": float(n)}) for n in range(5)))) is None
    tiny = [a_run(n * MiB, arguments=(("batch", 0.0),)) for n in range(1, 6)]
    assert arguments.line(tiny) is None


def test_what_arguments_tell_is_said_in_words() -> None:
    story = a_story(*LINEAR)

    (row,) = views.profiles(story.engine.view, None)

    assert any("line over batch" in text for text in row["by_arguments"])
    (plain,) = views.profiles(a_story(a_run(GiB), a_run(GiB)).engine.view, None)
    assert plain["by_arguments"] == []


# --- two numbers ---------------------------------------------------------------------------


def grid(memory, noise: float = 0.0, firsts=(8, 16, 32, 64), seconds=(128, 256, 512)):
    draw = random.Random(7)
    return runs(*(
        (memory(one, two) * (1 + draw.uniform(-noise, noise)),
         {"batch": float(one), "length": float(two), "seed": float(one * two)})
        for one in firsts for two in seconds
    ))  # fmt: skip


PRODUCT = grid(lambda batch, length: 1 + batch * length / 4096, 0.01)
SUM = grid(lambda batch, length: 1 + batch / 16 + length / 64, 0.01)


def test_memory_may_rise_with_a_product() -> None:
    line = arguments.line(PRODUCT)

    assert line is not None
    assert line.terms == (("batch", "length"),)
    values = line.values({"batch": 48.0, "length": 256.0})
    assert values is not None
    assert line.bound_bytes(values) == pytest.approx(4 * 1.06 * GiB, rel=0.03)
    assert line.values({"batch": 48.0}) is None
    assert line.values({"batch": 48.0, "length": "long"}) is None


def test_memory_may_rise_with_two_numbers_each_for_itself() -> None:
    line = arguments.line(SUM)

    assert line is not None
    assert line.terms == (("batch",), ("length",))
    assert line.bound_bytes([48.0, 256.0]) == pytest.approx(8 * 1.06 * GiB, rel=0.03)


def test_one_number_is_enough_where_it_tells_all() -> None:
    line = arguments.line(grid(lambda batch, length: 1 + batch / 8, 0.01))

    assert line is not None
    assert line.names == ("batch",)


def test_few_runs_are_not_enough_for_two_numbers() -> None:
    assert arguments.line(PRODUCT[:5]) is None or len(arguments.line(PRODUCT[:5]).names) == 1


def test_two_numbers_seen_apart_but_never_together_are_measured_anew() -> None:
    """Each is within what was seen, their product is not."""
    seen = [run for run in PRODUCT if dict(run.arguments)["batch"] * dict(run.arguments)["length"]
            <= 8192]  # fmt: skip
    story = a_story(*seen, gpus=2)
    story.asks("both", arguments=(("batch", 64.0), ("length", 512.0)))
    assert story.leases["both"].is_probe

    story.asks("between", arguments=(("batch", 24.0), ("length", 256.0)))
    assert not story.leases["between"].is_probe
    assert 2.5 * GiB < story.reserved("between") < 3.3 * GiB


@pytest.mark.parametrize("memory", [PRODUCT, SUM], ids=["product", "sum"])
def test_a_line_over_two_numbers_is_said_in_words(memory) -> None:
    (row,) = views.profiles(a_story(*memory).engine.view, None)

    text = row["by_arguments"][0]
    assert "batch" in text
    assert "length" in text
    assert "seen from" in text


def test_predicting_each_point_from_all_others_is_what_leaving_it_out_gives() -> None:
    draw = random.Random(1)
    columns = [[draw.uniform(0, 9) for _ in range(12)] for _ in range(2)]
    ys = [3 + 2 * a + 5 * b + draw.gauss(0, 1) for a, b in zip(*columns, strict=True)]
    whole = fit(columns, ys)
    assert whole is not None

    for place in range(12):
        without = [column[:place] + column[place + 1 :] for column in columns]
        part = fit(without, ys[:place] + ys[place + 1 :])
        assert part is not None
        told = part.base + sum(s * c[place] for s, c in zip(part.slopes, columns, strict=True))
        assert ys[place] - told == pytest.approx(whole.predicted[place])


@pytest.mark.parametrize("columns", [[[1, 1, 1]], [[1, 2, 3], [2, 4, 6]]])
def test_columns_that_say_nothing_or_the_same_have_no_line(columns) -> None:
    assert fit(columns, [1, 2, 3]) is None


def test_a_line_is_drawn_anew_after_some_runs_or_one_that_was_not_foretold() -> None:
    known = Known(a_profile(*LINEAR))
    line = known.by_arguments.line
    (usual,) = runs((4.2, {"batch": 32.0}))
    (odd,) = runs((9, {"batch": 32.0}))
    for _ in range(10):
        known.add(usual)
        assert known.by_arguments.line is line
    known.add(usual)
    assert known.by_arguments.line is not line

    line = known.by_arguments.line
    known.add(odd)
    assert known.by_arguments.line is not line
