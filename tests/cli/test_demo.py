"""`grn demo`: real jobs on virtual GPUs, to the end."""

from __future__ import annotations

import re

import pytest

from tests.cli.live import GRN, Shell
from tests.harness import Ended, Story

pytestmark = pytest.mark.slow


def is_good(ended: Ended) -> None:
    assert ended.code == 0, ended
    assert "14 of 14 jobs done" in ended.out
    assert "what was learned" in ended.out
    assert "\nnext\n  grn start" in ended.out
    for name in ("tokenize", "finetune", "pretrain"):
        assert name in ended.out
    assert "failed" not in ended.out
    assert "\x1b" not in ended.out
    assert "\\x1b" not in ended.out
    assert re.search(r"^tokenize +GPU \d +[\d.]+s +[\d.]+s  +━+$", ended.out, re.MULTILINE)
    assert ended.err == ""


def test_two_demos_at_once_do_not_disturb_each_other_one_shows_gpus_live_on_its_terminal(
    story: Story, grn: Shell
) -> None:
    before = set(story.folder.iterdir())
    other = story.start(*GRN, "demo")
    code, text = grn.on_terminal("demo", columns=120)

    is_good(other.wait())
    left = {path.name for path in set(story.folder.iterdir()) - before}
    assert left == {"1.out", "1.err"}  # their own folders are gone
    assert code == 0
    assert "used by jobs" in text
    assert "running," in text
    assert "14 of 14 jobs done" in text
    assert "\\x1b" not in text
