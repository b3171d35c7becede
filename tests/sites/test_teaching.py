"""What one place has measured is told to the others once, before they are asked."""

from __future__ import annotations

import pytest

from grn.queue.sites.teaching import MAX_RUNS, Teacher


def a_run(ended_at: float, peak: int = 100) -> dict[str, object]:
    return {"outcome": "ok", "ended_at": ended_at, "peak_bytes": peak, "duration_s": 1.0}


def told(
    *runs: dict[str, object], model: str = "A100", job_type: str = "t.py"
) -> dict[str, object]:
    return {"runs": [{"type": job_type, "label": "t", "model": model, "runs": list(runs)}]}


def test_a_place_that_has_no_runs_is_taught_those_of_another() -> None:
    teacher = Teacher()
    teacher.heard("gpu2", told(a_run(1), a_run(2)))

    (lesson,) = teacher.lessons("gpu3", "t.py")

    assert (lesson["op"], lesson["type"], lesson["model"]) == ("learn", "t.py", "A100")
    assert [run["ended_at"] for run in lesson["runs"]] == [1, 2]


def test_a_place_is_not_taught_what_it_has_told_itself() -> None:
    teacher = Teacher()
    teacher.heard("gpu2", told(a_run(1)))

    assert teacher.lessons("gpu2", "t.py") == []


def test_a_place_is_taught_once_and_again_after_a_new_run_elsewhere() -> None:
    teacher = Teacher()
    teacher.heard("gpu2", told(a_run(1)))
    assert teacher.lessons("gpu3", "t.py")
    assert teacher.lessons("gpu3", "t.py") == []

    teacher.heard("gpu2", told(a_run(1), a_run(2)))

    assert teacher.lessons("gpu3", "t.py")


def test_a_place_with_another_negotiator_is_taught_again() -> None:
    teacher = Teacher()
    teacher.heard("gpu2", told(a_run(1)))
    teacher.lessons("gpu3", "t.py")

    teacher.forget("gpu3")

    assert teacher.lessons("gpu3", "t.py")


def test_runs_on_all_models_are_taught_and_only_the_newest_of_each() -> None:
    teacher = Teacher()
    teacher.heard("gpu2", told(*map(a_run, range(MAX_RUNS + 5))))
    teacher.heard("gpu4", told(a_run(7), model="H100"))

    lessons = {one["model"]: one["runs"] for one in teacher.lessons("gpu3", "t.py")}

    assert set(lessons) == {"A100", "H100"}
    assert [run["ended_at"] for run in lessons["A100"]] == list(range(5, MAX_RUNS + 5))


def test_a_type_that_no_place_has_run_has_no_lessons() -> None:
    assert Teacher().lessons("gpu3", "t.py") == []


@pytest.mark.parametrize(
    "reply",
    [{}, {"runs": 3}, {"runs": [7]}, {"runs": [{"type": 1}]}, told({"ended_at": "x"}), told(7)],  # type: ignore[arg-type]
)
def test_malformed_answers_of_a_node_teach_nothing(reply: dict[str, object]) -> None:
    teacher = Teacher()
    teacher.heard("gpu2", reply)

    assert not any(lesson["runs"] for lesson in teacher.lessons("gpu3", "t.py"))
