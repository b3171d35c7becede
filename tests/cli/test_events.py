"""`grn events`: what programs read of what happens, held against the documents."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from grn.cli.commands import events
from tests.cli.live import GRN, Shell
from tests.conftest import Negotiators
from tests.harness import Story, wait_for

ROOT = Path(__file__).resolve().parents[2]


def test_without_a_negotiator_both_say_so_and_exit_three(story: Story) -> None:
    for command in ("metrics", "events"):
        ended = Shell(story)(command)
        assert (ended.code, ended.out) == (3, "")
        assert "no grn negotiator answers" in ended.err


def test_events_are_lines_of_json_that_end_unless_followed(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    ended = Shell(story)("events")

    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert {(line["source"], line["ev"]) for line in lines} == {
        ("negotiator", "snapshot"),
        ("queue", "lost"),
    }
    assert all(line["schema"] == 1 and line["at"] <= time.time() for line in lines)


def test_events_are_followed_through_a_restart(story: Story, negotiator: Negotiators) -> None:
    first = negotiator()
    only = [word for name in ("snapshot", "granted", "ended") for word in ("--only", name)]
    following = story.start(*GRN, "events", "--follow", *only)
    wait_for(lambda: '"snapshot"' in following.out, lambda: following.err)
    story.hold("a")
    story.hear("a runs")
    wait_for(lambda: '"granted"' in following.out, lambda: following.err)
    first.kill()
    first.start()
    story.gate("a").open()
    wait_for(lambda: '"ended"' in following.out, lambda: following.err)
    following.kill()

    names = [json.loads(line)["ev"] for line in following.out.splitlines()]
    assert [name for name in names if name != "snapshot"] == ["granted", "ended"]


def test_every_event_is_documented() -> None:
    page = (ROOT / "docs" / "json.md").read_text().partition("## grn events")[2]
    listed = re.findall(r"^\| `([\w-]+)` \| (?:both|negotiator|queue) \|", page, re.MULTILINE)

    assert sorted(listed) == sorted(events.NAMES)
