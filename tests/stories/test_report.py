"""`grn report`: a period as one file."""

from __future__ import annotations

import re

import pytest

HOSTILE = "<script>alert(1)</script>\u202e"


@pytest.fixture
def report(story, script):
    yield lambda *words: story.start(script("grn"), "report", *words, cwd=story.folder).wait()
    story.start(script("grn"), "queue", "stop").wait()


def test_jobs_of_the_period_are_in_it_and_hostile_names_are_only_text(
    negotiator, story, script, report
):
    negotiator("virtual:2x1GiB")
    for command in (("true",), ("false",)):
        words = ("submit", "--name", HOSTILE, "--type", HOSTILE, "--", *command)
        story.start(script("grn"), *words).ended_well()
    story.start(script("grn"), "wait", "--all").wait()

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
    story.start(script("grn"), "queue", "stop").ended_well()
    assert report("--since", "1h").err.startswith("warning: Your queue does not run")


def test_without_anything_it_is_a_report_all_the_same(story, report):
    ended = report()
    assert (ended.code, ended.err) == (0, "")
    assert "None." in (story.folder / "grn-report.html").read_text()


@pytest.mark.parametrize("since", ["yesterday", "0d", "7", "d", "-1h"])
def test_a_strange_time_is_one_clear_line(report, since):
    ended = report(f"--since={since}")

    assert ended.code == 2
    assert "is no length of time" in ended.err


def test_a_file_that_cannot_be_written_is_one_clear_line(report):
    ended = report("--out", "no/such/folder.html")

    assert ended.code == 4
    assert "cannot be written" in ended.err


def test_a_sweep_is_a_report_too(negotiator, story, script, report):
    negotiator("virtual:2x1GiB")
    command = """python3 -c "print('{{\\"loss\\": {lr}}}')\""""
    words = ("sweep", command, "-p", "lr", "1", "2", "--out", "here", "-q")
    story.start(script("grn"), *words, cwd=story.folder).ended_well()

    assert report("--sweep", "here", "--out", "sweep.html").code == 0
    assert "loss" in (story.folder / "sweep.html").read_text()
