"""`grn report`: a period as one file."""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.harness import GRN, wait_for

pytestmark = pytest.mark.submits
HOSTILE = "<script>alert(1)</script>\u202e"


@pytest.fixture
def report(story):
    yield lambda *words: story.start(*GRN, "report", *words, cwd=story.folder).wait()
    story.start(*GRN, "queue", "stop").wait()


def test_jobs_of_the_period_are_in_it_and_hostile_names_are_only_text(
    negotiator, story, script, report
):
    negotiator("virtual:2x1GiB")
    for command in (("true",), ("false",)):
        words = ("submit", "--name", HOSTILE, "--type", HOSTILE, "--", *command)
        story.start(*GRN, *words).ended_well()
    story.start(*GRN, "wait", "--all").wait()

    ended = report("--since", "1h")

    assert (ended.code, ended.out) == (0, "grn-report.html\n")
    text = (story.folder / "grn-report.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "\u202e" not in text
    assert re.search(r"<b>2</b>jobs", text)
    assert re.search(r"<b>1</b>failed", text)
    assert "http" not in re.sub(r"http-equiv", "", text)

    assert ended.err == ""
    story.start(*GRN, "queue", "stop").ended_well()
    assert report("--since", "1h").err.startswith("warning: Your queue does not run")


def test_jobs_are_counted_and_not_leases_and_what_was_cancelled_has_not_failed(
    negotiator, story, report
):
    negotiator("virtual:2x1GiB")

    def grn(*words):
        return story.start(*GRN, *words, cwd=story.folder)

    small = ("--mem", "16MiB")
    grn("submit", *small, "--name", "grid", "--array", "0-19", "--", "true").ended_well()
    grn("submit", *small, "--time-limit", "0.1", "--", "sleep", "60").ended_well()
    again = 'test "$GRN_ATTEMPT" = 3'
    grn("submit", *small, "--type", "again", "--retry", "2", "--shell", "--", again).ended_well()
    grn("submit", *small, "--type", "bad", "--", "false").ended_well()
    grn("wait", "--all").wait()
    number = grn("submit", *small, "--", "sleep", "60").ended_well().out.strip()
    wait_for(lambda: json.loads(grn("show", number, "--json").wait().out)["job"]["state"]
             == "running", "it to run")  # fmt: skip
    grn("cancel", number).ended_well()
    grn("wait", number).wait()
    grn("exec", *small, "--", "true").ended_well()
    stopped = grn("exec", *small, "--", "sh", "-c", "echo up; exec sleep 60")
    wait_for(lambda: stopped.out, "it to run")
    stopped.signal(signal.SIGINT)
    stopped.wait()

    assert report("--since", "1h").err == ""
    text = (story.folder / "grn-report.html").read_text()

    tiles = re.findall(r"<b>(\d+)</b>(jobs|failed|cancelled or interrupted)<", text)
    assert {name: int(value) for value, name in tiles} == {
        "jobs": 20 + 6, "failed": 2, "cancelled or interrupted": 2,
    }  # fmt: skip
    cells = re.findall(r"<tr><td>([^<]*)</td><td class=n>(\d+)</td><td class=n>(\d+)</td>"
                       r"<td class=n>(\d+)</td>", text)  # fmt: skip
    types = {name: tuple(map(int, rest)) for name, *rest in cells}
    assert types["true"] == (21, 0, 0)  # the array is of the type of its program
    assert "grid" not in types
    assert types["sleep"] == (3, 1, 2)  # one of them in a line of `sh`
    assert types["again"] == (1, 0, 0)
    assert types["bad"] == (1, 1, 0)
    assert "timed-out" in text


def test_without_anything_it_is_a_report_all_the_same(story, report):
    ended = report()
    assert (ended.code, ended.err) == (0, "")
    assert "None." in (story.folder / "grn-report.html").read_text()


@pytest.mark.parametrize("since", ["yesterday", "0d", "7", "d", "-1h"])
def test_a_strange_time_is_one_clear_line(report, since):
    ended = report(f"--since={since}")

    assert ended.code == 2
    assert "invalid time" in ended.err


def test_a_file_that_cannot_be_written_is_one_clear_line(report):
    ended = report("--out", "no/such/folder.html")

    assert ended.code == 4
    assert "cannot be written" in ended.err


def test_a_sweep_is_a_report_too(negotiator, story, report):
    negotiator("virtual:2x1GiB")
    command = """python3 -c "print('{{\\"loss\\": {lr}}}')\""""
    words = ("sweep", command, "-p", "lr", "1", "2", "--out", "here", "-q")
    story.start(*GRN, *words, cwd=story.folder).ended_well()

    assert report("--sweep", "here", "--out", "sweep.html").code == 0
    assert "loss" in (story.folder / "sweep.html").read_text()
