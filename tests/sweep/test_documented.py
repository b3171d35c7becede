"""docs/sweeps.md: every example on the page runs, as it stands, in a folder of its own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Negotiators, Scripts
from tests.harness import Story

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sweeps.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TRAIN, SWEEP = (text for kind, text in BLOCKS if kind == "python")
(TOML,) = (text for kind, text in BLOCKS if kind == "toml")
SHELL = [text for kind, text in BLOCKS if kind == "sh"]
SEARCH, DRAW = (next(text for text in SHELL if word in text) for word in ("--trials", "sweep plot"))
ALONE = [text for text in SHELL if text not in (SEARCH, DRAW)]

pytestmark = [pytest.mark.slow, pytest.mark.submits]


@pytest.fixture
def place(story: Story, negotiator: Negotiators, script: Scripts) -> Story:
    negotiator("virtual:2x512MiB")
    story.write("train.py", TRAIN)
    story.write("sweep.toml", TOML)
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    story.env["PATH"] = here if script("grn").exists() else ""
    return story


# The pictures are of the search, so the two go together.
@pytest.mark.parametrize("block", [*ALONE, SEARCH + DRAW], ids=lambda block: block[:50])
def test_every_line_of_shell_on_the_page_runs(place: Story, block: str) -> None:
    ended = place.start("/bin/sh", "-ec", block).wait(200)
    assert ended.code == 0, ended.err


def test_the_program_on_the_page_runs(place: Story) -> None:
    said = place.run_script(SWEEP, name="mine.py").out.splitlines()
    assert said[0].startswith("6 runs, columns run state lr bs loss duration_s")
    assert said[1].startswith("best ")
    assert (place.folder / "mine.csv").exists()


def test_the_first_table_on_the_page_is_what_comes_out(place: Story) -> None:
    ended = place.start("/bin/sh", "-ec", SHELL[0]).ended_well()
    (shown,) = (text for _, text in BLOCKS if text.startswith("by loss"))
    told = [line.split()[:6] for line in shown.splitlines()[:8]]
    assert [line.split()[:6] for line in ended.out.splitlines()[:8]] == told
    assert ended.err.splitlines()[-2].strip() == shown.splitlines()[-2]


def test_what_is_said_of_running_again_is_true(place: Story) -> None:
    block = next(text for text in SHELL if "--rerun" in text)
    ended = place.start("/bin/sh", "-ec", block).ended_well()
    told = [line for line in ended.err.splitlines() if " finished" in line and "[" not in line]
    assert told == ["2 finished", "1 finished, 2 had finished before", "1 finished"]
