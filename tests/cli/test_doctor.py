"""`grn doctor`: what it finds on machines that are well and on those that are not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from tests.cli.live import Shell
from tests.harness import Negotiator, Story

Start = Callable[..., Negotiator]


def findings(grn: Shell, **env: str | None) -> tuple[int, list[tuple[str, str]]]:
    ended = grn("doctor", "--json", env=env)
    assert ended.err == ""
    report = json.loads(ended.out)
    assert report.keys() == {"schema", "findings"}
    assert all(one.keys() == {"verdict", "text"} for one in report["findings"])
    return ended.code, [(one["verdict"], one["text"]) for one in report["findings"]]


def bad(found: list[tuple[str, str]]) -> list[str]:
    return [text for verdict, text in found if verdict == "BAD"]


def test_a_machine_that_is_well_has_nothing_bad(grn: Shell, negotiator: Start) -> None:
    started = negotiator()

    code, found = findings(grn)

    assert code == 0
    assert bad(found) == []
    assert {verdict for verdict, _ in found} <= {"ok", "note"}
    assert any(f"answers (pid {started.pid}): 2 GPUs" in text for _, text in found)


def test_for_people_each_finding_is_a_line(grn: Shell, negotiator: Start) -> None:
    negotiator()

    *lines, blank, summary = grn("doctor").out.splitlines()

    assert (blank, summary[:13]) == ("", "no problems; ")
    assert len(lines) == len(findings(grn)[1])
    assert all(line[:6] in ("ok    ", "note  ") for line in lines)


def test_without_a_negotiator_it_says_how_to_start_one(grn: Shell) -> None:
    code, found = findings(grn)

    assert code == 0
    assert any(verdict == "note" and "`grn start`" in text for verdict, text in found)


def test_a_wrong_setting_is_bad_and_named(grn: Shell, story: Story) -> None:
    (story.folder / "config.toml").write_text("flat_s = 'x'")

    code, found = findings(grn)

    assert code == 1
    (text,) = bad(found)
    assert "flat_s is 'x' (in " in text


@pytest.mark.parametrize("name", ["GRN_RUNTIME_DIR", "GRN_STATE_DIR"])
def test_a_folder_that_cannot_be_made_is_bad(grn: Shell, story: Story, name: str) -> None:
    (story.folder / "file").touch()

    code, found = findings(grn, **{name: str(story.folder / "file" / "x")})

    assert code == 1
    assert any(str(story.folder / "file" / "x") in text for text in bad(found))


def test_a_folder_that_cannot_be_written_is_bad(grn: Shell, story: Story) -> None:
    if os.getuid() == 0:
        pytest.skip("root can write everywhere: run the tests as another user for this one")
    closed = story.folder / "closed"
    closed.mkdir(mode=0o500)

    code, found = findings(grn, GRN_STATE_DIR=str(closed / "x"))

    assert code == 1
    assert any("cannot be written" in text for text in bad(found))


def test_a_restriction_to_some_gpus_is_noted(grn: Shell) -> None:
    _, found = findings(grn, CUDA_VISIBLE_DEVICES="1")

    assert ("note", "CUDA_VISIBLE_DEVICES='1' restricts `grn start`") in found
