"""What the page and the report know of the past: jobs of one's queue, leases of all else."""

from __future__ import annotations

import os
from dataclasses import replace

from grn.cli.report.period_page import MAX_FAILURES, page
from grn.cli.report.usage import Period, count, inside, shares
from grn.cli.web import queries
from grn.model.outcome import OutcomeKind
from grn.protocol.queue_rows import JobRow
from grn.protocol.rows import read_all
from grn.protocol.snapshot import NEGOTIATOR
from tests.cli.pictures import (
    NOW,
    OTHER,
    a_job,
    a_lease,
    a_node,
    a_picture,
    an_end,
    an_ended_job,
    away,
)

ORIGIN = "0123456789abcdef"
OWN = {"user": os.getuid(), "origin": ORIGIN}
DAY = Period(NOW - 5000, NOW)


def a_past_job(id, **changes):
    return an_ended_job(id, started_at=NOW - 50, reserved_bytes=1 << 30, **changes)


def spans_of(past, **parts):
    picture = a_picture(**parts)
    picture.queue = replace(picture.queue, origin=ORIGIN)
    return queries.spans(picture, DAY.since, read_all(JobRow, past))


def test_jobs_are_counted_and_not_the_leases_of_the_queue():
    past = [
        a_past_job(1, lease="aaaa0001"),
        a_past_job(2, lease="aaaa0001"),  # the lease was passed on
        a_past_job(3, lease="aaaa0003", attempt=2),
        a_past_job(4, lease="aaaa0004", reason="cancelled"),
    ]
    ends = [
        an_end("aaaa0001", **OWN),
        an_end("aaaa0002", **OWN, outcome="oom"),  # the first attempt of job 3
        an_end("aaaa0003", **OWN),
        an_end("aaaa0004", **OWN, outcome="failed"),
        an_end("aaaa0005", **OWN, outcome="not-started"),  # given back unused
        an_end("bbbb0001", user=os.getuid(), origin="f" * 16, outcome="failed"),  # grn exec
        an_end("bbbb0002", user=OTHER, origin=ORIGIN),
        an_end("bbbb0003", user=os.getuid(), origin=None, outcome="cancelled"),  # Ctrl-C
        an_end("bbbb0004", user=OTHER, outcome="cancelled"),  # a job of another's queue
    ]
    running = {"leases": [a_lease("cccc0001", **OWN)], "jobs": [a_job(5, lease="cccc0001")]}

    spans = inside(spans_of(past, ends=ends, **running), DAY)

    assert sorted(span.lease for span in spans if not span.is_job) == ["aaaa0002"]
    assert [span.job for span in spans if span.lease == "cccc0001"] == [5]
    assert count(spans) == len(past) + 5
    assert count(spans, OutcomeKind.BAD) == 1
    assert count(spans, OutcomeKind.CANCELLED) == 3
    assert "aaaa0005" not in {span.lease for span in spans}


def test_the_jobs_of_an_array_are_of_one_type_whatever_their_name():
    past = [a_past_job(1, name="grid"), a_past_job(2, name="grid", lease="dddd0003")]

    (share,) = shares(
        spans_of(past, ends=[an_end("aaaa0009", **OWN, label="train.py")]), DAY, "type"
    )

    assert (share.name, share.jobs) == ("train.py", 2)


def test_a_report_says_what_it_leaves_out():
    failed = [a_past_job(id, reason="failed") for id in range(MAX_FAILURES + 19)]

    text = page(spans_of(failed), [], DAY, "host", ["Of others <nothing> is known."])

    assert f"{MAX_FAILURES} of {MAX_FAILURES + 19} shown." in text
    assert "Of others &lt;nothing&gt; is known." in text
    assert "of 1 shown" not in page(spans_of(failed[:1]), [], DAY, "host")


def test_what_the_negotiator_has_forgotten_is_said():
    few = a_picture(ends=[an_end()])
    few.negotiator = replace(few.negotiator, started_at=DAY.since - 1)
    many = a_picture(ends=[an_end(f"{n:08x}") for n in range(200)])
    many.negotiator = replace(many.negotiator, started_at=DAY.since + 60)

    assert queries.gaps(few, DAY.since) == []
    assert "only the last 200 that ended" in queries.gaps(many, DAY.since)[0]
    assert "negotiator started" in queries.gaps(many, DAY.since)[1]


def test_jobs_on_nodes_have_their_own_rows_in_a_report_and_on_the_timeline():
    running = a_job(5, state="running", lease="gpu2/b/aaaa0005", where="gpu2", gpus=[1])
    past = [a_past_job(1, where="gpu3", lease="gpu3/b/aaaa0001"), a_past_job(2)]
    found = inside(spans_of(past, jobs=[running | {"started_at": NOW - 9}]), DAY)

    assert {span.job: span.places for span in found} == {5: ("gpu2:1",), 1: ("gpu3:0",), 2: (0,)}
    drawn = page(found, [0, "gpu2:1", "gpu3:0"], DAY, "host")
    assert ">GPU 0<" in drawn
    assert ">gpu2:1<" in drawn


def test_the_page_gets_the_nodes_and_does_without_a_negotiator_here():
    picture = a_picture(nodes=[away(), a_node("gpu2", 1, "aaaa0001")])
    picture.lost(NEGOTIATOR, "no negotiator answers", NOW)
    said = queries.now(picture)

    assert [node["node"] for node in said["nodes"]] == ["gpu2", "gpu3"]
    assert said["nodes"][0]["leases"][0]["user_name"] == "", "its users are not those of here"
    assert said["trouble"] == ""
    assert queries.now(a_picture())["nodes"] == []
