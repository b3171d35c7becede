"""Sums over what ran in a period."""

from __future__ import annotations

import pytest

from grn.cli.report.period_page import page
from grn.cli.report.usage import (
    IdleUse,
    Period,
    Span,
    gpu_hours,
    held_share,
    idle_hours,
    inside,
    is_bad,
    memory_used,
    shares,
    slices,
)
from grn.model.units import GiB

HOUR = 3600.0
DAY = Period(0.0, 24 * HOUR)


def a_span(begin, end, gpus=(0,), **changes):
    ended_at = None if end is None else end * HOUR
    plain = {"label": "train", "type": "train", "user": "ada", "outcome": "ok", "lease": "a"}
    plain |= {"reserved_bytes": 4 * GiB, "peak_bytes": GiB}
    return Span(gpus=tuple(gpus), began_at=begin * HOUR, ended_at=ended_at, **{**plain, **changes})


def test_only_what_touches_the_period_counts():
    period = Period(10 * HOUR, 20 * HOUR)
    early, across, within, late = a_span(1, 9), a_span(9, 11), a_span(12, 13), a_span(21, 22)

    assert inside([late, within, across, early], period) == [across, within]
    assert gpu_hours(across, period) == 1.0


def test_each_gpu_counts_and_what_runs_still_counts_until_now():
    assert gpu_hours(a_span(1, 3, gpus=(0, 1)), DAY) == 4.0
    assert gpu_hours(a_span(20, None), DAY) == 4.0


def test_memory_used_is_the_share_of_reserved_memory_by_time():
    half = a_span(0, 2, peak_bytes=2 * GiB, reserved_bytes=4 * GiB)
    full = a_span(0, 2, peak_bytes=9 * GiB, reserved_bytes=4 * GiB)
    assert memory_used([half], DAY) == 0.5
    assert memory_used([half, full], DAY) == 0.75
    assert memory_used([a_span(0, 2, peak_bytes=None)], DAY) is None


def test_shares_add_up_by_user_the_most_hours_first():
    spans = [a_span(0, 1), a_span(1, 4, user="bob", outcome="oom"), a_span(2, 3, outcome="failed")]

    found = shares(spans, DAY, "user")

    assert [(one.name, one.jobs, one.failed, one.gpu_hours) for one in found] == [
        ("bob", 1, 1, 3.0),
        ("ada", 2, 1, 2.0),
    ]


def test_a_second_lease_of_a_job_adds_hours_and_no_job():
    spans = [a_span(0, 1, outcome="oom", is_job=False), a_span(1, 3, outcome="ok")]

    (share,) = shares(spans, DAY, "user")

    assert (share.jobs, share.failed, share.gpu_hours) == (1, 0, 3.0)
    assert not any(is_bad(span) for span in spans)


def test_what_was_cancelled_or_interrupted_has_not_failed():
    outcomes = ["cancelled", "interrupted", "requeued", "failed", "timed-out", "ok", ""]

    (share,) = shares([a_span(0, 1, outcome=one) for one in outcomes], DAY, "user")

    assert (share.jobs, share.failed, share.cancelled) == (7, 2, 3)


def test_jobs_side_by_side_do_not_make_a_gpu_twice_as_busy():
    spans = [a_span(0, 6), a_span(3, 9), a_span(4, 5), a_span(12, 15), a_span(0, 24, gpus=(1,))]

    assert held_share(spans, 0, DAY) == pytest.approx(12 / 24)
    assert held_share(spans, 1, DAY) == 1.0
    assert held_share(spans, 2, DAY) == 0.0


def test_idle_hours_add_up_by_user_over_all_gpus():
    uses = [IdleUse("ada", HOUR, 2), IdleUse("bob", 3 * HOUR), IdleUse("ada", HOUR / 2)]

    assert idle_hours([*uses, IdleUse("eve", 0.0)]) == [("bob", 3.0), ("ada", 2.5)]


def test_slices_cover_the_period():
    parts = slices(DAY, 24)

    assert len(parts) == 24
    assert (parts[0].since, parts[-1].until) == (0.0, 24 * HOUR)
    assert sum(part.length_s for part in parts) == pytest.approx(DAY.length_s)


def test_a_gpu_of_a_node_is_not_the_one_of_that_number_here():
    spans = [a_span(0, 12, gpus=(0,)), a_span(0, 24, gpus=(0,), where="gpu2")]

    assert held_share(spans, 0, DAY) == pytest.approx(12 / 24)
    assert held_share(spans, "gpu2:0", DAY) == 1.0


def test_a_job_that_failed_on_a_node_is_told_with_its_node():
    here = a_span(0, 1, outcome="failed", label="here")
    there = a_span(0, 1, outcome="failed", label="there", where="gpu2")

    assert "gpu2</td>" in page([here, there], [0], DAY, "host")
    assert ">Where<" not in page([here], [0], DAY, "host")


def test_thousands_of_short_jobs_hide_no_long_one_in_the_report():
    short = [a_span(2 + n / 10_000, 2 + (n + 1) / 10_000, label="short") for n in range(5000)]
    text = page([a_span(0, 3, label="long"), *short], [0], DAY, "host", ["others are not known"])

    assert ">long</text>" in text
    assert "<b>5,001</b>jobs" in text
    assert "<h2>Not known</h2>" in text
    assert len(text) < 100_000
