"""Searches by the real Optuna: asked, told, in parallel, and taken up again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from grn.errors import UsageError
from grn.fixed_slots.slots import FixedSlots
from grn.sweep.manifest import RunManifest, RunState
from grn.sweep.plan import Plan, make
from grn.sweep.sampler import OptunaFeed
from grn.sweep.space import Point
from grn.sweep.sweep import Sweep
from grn.sweep.sweep_run import Study
from grn.sweep.values import fingerprint, folder_name

CODE = "import json,sys; x=float(sys.argv[1]); print(json.dumps(dict(y=(x-3)**2)))"


def a_plan(**options: Any) -> Plan:
    given: dict[str, Any] = {
        "command": "c {x} {o}",
        "parameters": {"x": "uniform:-10..10", "o": ["a", "b"]},
        "sampler": "optuna",
        "minimize": "y",
        "trials": 10,
    }
    return make({**given, **options})


def a_run(point: Point, y: float | None, state: RunState = RunState.FINISHED) -> RunManifest:
    result = {} if y is None else {"y": y}
    return RunManifest(folder_name(point), fingerprint(point), 1, dict(point), state, result=result)


def all_of(feed: OptunaFeed) -> list[Point]:
    """Run a search in this process."""
    found: list[Point] = []
    while (point := feed.next_point()) is not None:
        found.append(point)
        feed.heard(a_run(point, (float(str(point["x"])) - 3) ** 2))
    return found


def test_a_search_comes_near_the_best_point() -> None:
    found = all_of(OptunaFeed(a_plan(trials=60), [], lambda: 1))
    assert len(found) == 60
    assert min(abs(float(str(point["x"])) - 3) for point in found) < 0.5
    late = [abs(float(str(point["x"])) - 3) for point in found[30:]]
    early = [abs(float(str(point["x"])) - 3) for point in found[:10]]
    assert sorted(late)[15] < sorted(early)[5]


def test_the_same_seed_gives_the_same_search() -> None:
    one = all_of(OptunaFeed(a_plan(seed=5), [], lambda: 1))
    assert one == all_of(OptunaFeed(a_plan(seed=5), [], lambda: 1))
    assert one != all_of(OptunaFeed(a_plan(seed=6), [], lambda: 1))


def test_no_more_trials_are_out_than_may_run_at_once() -> None:
    feed = OptunaFeed(a_plan(), [], lambda: 3)
    out = [feed.next_point() for _ in range(5)]
    assert [point is not None for point in out] == [True, True, True, False, False]
    assert not feed.is_over
    assert out[0] is not None
    feed.heard(a_run(out[0], 1.0))
    assert feed.next_point() is not None
    assert feed.next_point() is None


def test_a_search_goes_on_with_what_it_knew() -> None:
    plan = a_plan(trials=10)
    known = [a_run({"x": str(x), "o": "a"}, float(x)) for x in range(6)]
    feed = OptunaFeed(plan, known, lambda: 1)
    assert feed.left == 4
    assert len(all_of(feed)) == 4
    assert OptunaFeed(a_plan(trials=6), known, lambda: 1).is_over


def test_an_interrupted_trial_is_run_first_and_a_failed_one_is_not_counted() -> None:
    left, bad = {"x": "1.5", "o": "b"}, {"x": "2", "o": "b"}
    known = [a_run(left, None, RunState.INTERRUPTED), a_run(bad, None, RunState.FAILED)]
    feed = OptunaFeed(a_plan(trials=2), known, lambda: 1)
    assert feed.left == 2
    assert feed.next_point() == left


def test_a_trial_without_the_metric_has_failed() -> None:
    feed = OptunaFeed(a_plan(trials=3), [], lambda: 3)
    point = feed.next_point()
    assert point is not None
    told = feed.heard(a_run(point, None))
    assert (told.state, told.trouble) == (RunState.FAILED, "it gave no number 'y'")


def test_a_small_space_is_not_run_twice() -> None:
    plan = a_plan(parameters={"x": [1, 2], "o": ["a", "b"]}, trials=40)
    found = all_of(OptunaFeed(plan, [], lambda: 1))
    assert len(found) == len({fingerprint(point) for point in found}) <= 4


def test_conditions_hold_for_searches_too() -> None:
    found = all_of(OptunaFeed(a_plan(**{"if": "x > 5"}), [], lambda: 1))
    assert len(found) == 10
    assert all(float(str(point["x"])) > 5 for point in found)
    with pytest.raises(UsageError, match="hardly any"):
        OptunaFeed(a_plan(**{"if": "x > 50"}), [], lambda: 1).next_point()


@pytest.mark.process
def test_trials_run_fail_and_are_taken_up_again(tmp_path: Path) -> None:
    code = f"import sys; sys.exit('bad') if float(sys.argv[1]) < 0 else None; {CODE}"

    def ran(trials: int) -> Study:
        sweep = Sweep(
            [sys.executable, "-S", "-c", code, "{x}"], {"x": "uniform:-10..10"}, trials=trials,
            sampler="optuna", minimize="y", out=tmp_path / "out", parallel=2,
        )  # fmt: skip
        return sweep.study(slots=FixedSlots("01"))

    study = ran(12)
    states = [row["state"] for row in study.table()]
    assert len(states) == 12
    assert states.count("failed") == study.progress.failed > 0
    assert all((float(row["x"]) < 0) == (row["state"] == "failed") for row in study.table())
    more = ran(12)
    assert more.progress.total == states.count("failed")
    about = more.folder.about()
    assert about is not None
    assert (about.metric, about.is_maximized) == ("y", False)
