"""The page for those who come from simple_gpu_scheduler: its examples run, and say what it says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.conftest import Scripts
from tests.harness import Story, wait_for

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-simple-gpu-scheduler.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SHELL = [text for kind, text in BLOCKS if kind == "bash" and "pip" not in text]
STARTS = next(text for kind, text in BLOCKS if kind == "text")
# A command and all it says, up to the next.
SESSIONS = [
    (found[1], found[2])
    for kind, text in BLOCKS
    if kind == "console"
    for found in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)
]


@pytest.fixture
def page(story: Story, script: Scripts) -> Story:
    """A folder with the scripts that the page speaks of, and our commands first in the PATH."""
    for name in ("train_model.py", "train_dnn.py"):
        story.write(name, "import sys; open('ran', 'a').write(' '.join(sys.argv) + '\\n')")
    folder = script("simple_gpu_scheduler").parent
    story.env["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return story


def test_the_page_has_its_examples() -> None:
    assert len(SHELL) == 4
    assert len(SESSIONS) == 5


@pytest.mark.parametrize(("command", "expected"), SESSIONS)
def test_a_command_says_what_the_page_says(page: Story, command: str, expected: str) -> None:
    job = page.start("/bin/sh", "-c", f"({command}) 2>&1")

    assert job.wait().out == expected


def test_the_file_of_commands_runs(page: Story) -> None:
    commands = re.findall(r"`(.*)`", STARTS)
    page.write("gpu_commands.txt", "\n".join(commands) + "\n")
    ended = page.start("/bin/sh", "-c", SHELL[0]).ended_well()

    assert ended.out == STARTS
    ran = (page.folder / "ran").read_text().splitlines()
    assert sorted(ran) == sorted(command.removeprefix("python ") for command in commands)


def test_the_queue_in_a_file_runs_what_is_appended(page: Story) -> None:
    holder = page.start("sleep", "1000")
    # `tail` has to end with the test, and can be told to end with a process.
    job = page.start("/bin/sh", "-c", SHELL[1].replace("tail -f", f"tail --pid={holder.pid} -f"))
    wait_for((page.folder / "gpu.queue").exists, "the queue")

    def appended() -> bool:
        page.start("/bin/sh", "-c", SHELL[2]).ended_well()
        return (page.folder / "ran").exists()

    wait_for(appended, "an appended command to run")
    holder.kill()
    job.ended_well()
    assert "Processing command `python train_model.py --lr 0.001` on gpu 2" in job.out


def test_the_search_runs_nine_commands(page: Story) -> None:
    ended = page.start("/bin/sh", "-c", SHELL[3]).ended_well()

    assert len(set((page.folder / "ran").read_text().splitlines())) == 9
    assert ended.out.count("Processing command") == 9
