"""The line that shows how far many jobs are."""

from __future__ import annotations

import pytest

from grn.cli.output import progress
from grn.cli.output.style import paint, plain
from grn.group.roles import Progress
from grn.model.text import columns_of


def drawn(now: Progress, passed_s: float = 10.0, columns: int = 100, **more: str) -> str:
    return plain(progress.line(now, passed_s, columns, **more))


def test_a_bar_grows_by_half_a_column() -> None:
    assert plain(progress.bar(3, 0, 8, 4)) == "━╸━━"
    assert plain(progress.bar(8, 0, 8, 4)) == "━━━━"


@pytest.mark.parametrize("total", [0, 1, 7, 1000])
def test_a_bar_has_its_size_whatever_failed(total: int) -> None:
    for done in {0, total // 3, total}:
        for failed in {0, done // 2, done}:
            assert columns_of(plain(progress.bar(done, failed, total, 9))) == 9, (done, failed)


def test_what_failed_is_red_in_the_bar() -> None:
    assert progress.bar(5, 1, 10, 10) == (
        paint("━" * 4, "good") + paint("━", "failed") + paint("━" * 5, "free")
    )


def test_without_such_characters_the_bar_is_ascii() -> None:
    assert progress.bar(5, 1, 10, 10, is_ascii=True) == "[#####.....]"


def test_the_line_tells_how_many_how_long_and_what_runs() -> None:
    now = Progress(20, finished=4, failed=1, running=2, names=("lr=1e-3", "lr=1e-4"))

    assert drawn(now, best="loss 0.667 (lr=1.8e-4)", columns=140).split("  ")[1:] == [
        "5/20", "1 failed", "30s left", "best loss 0.667 (lr=1.8e-4)", "2 running", "30.0/min",
        "lr=1e-3, lr=1e-4",
    ]  # fmt: skip


def test_one_job_needs_no_bar() -> None:
    assert drawn(Progress(1, running=1, names=("41 train.py",))) == "10s  1 running  41 train.py"


def test_names_that_find_no_room_are_counted() -> None:
    now = Progress(1, running=9, names=tuple(f"python train.py --seed {n}" for n in range(9)))

    assert drawn(now, columns=55).endswith("9 running  python train.py --seed 0 +8")


def test_while_nothing_runs_the_line_says_why() -> None:
    assert drawn(Progress(5), reason="no GPU is free").endswith("0/5  10s  waiting: no GPU is free")


@pytest.mark.parametrize("columns", range(1, 160, 7))
def test_the_line_never_wraps(columns: int) -> None:
    now = Progress(20, finished=4, failed=1, running=2, names=("模型" * 9, "b"))

    assert columns_of(drawn(now, columns=columns, best="loss 1")) <= max(0, columns)
    assert columns_of(drawn(now, columns=columns, reason="r" * 200)) <= max(0, columns)


@pytest.mark.parametrize(
    ("done", "passed_s", "shown"), [(30, 10.0, "3.0/s"), (3, 60.0, "3.0/min"), (1, 7200.0, "0.5/h")]
)
def test_slow_rates_are_told_by_the_minute_or_hour(done: int, passed_s: float, shown: str) -> None:
    assert progress.rate(done, passed_s) == shown
