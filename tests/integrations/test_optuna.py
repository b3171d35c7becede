"""The Optuna example and its page against Optuna itself: trials in parallel, each a job."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.conftest import Negotiators, Scripts
from tests.harness import Story
from tests.integrations.pages import ROOT, blocks, commands

pytest.importorskip("optuna", minversion="4")
pytestmark = pytest.mark.submits
SEARCH = ROOT / "examples" / "optuna" / "search.py"


@pytest.mark.slow
def test_the_example_runs_as_its_page_says(
    story: Story, negotiator: Negotiators, script: Scripts
) -> None:
    here = negotiator("virtual:2x512MiB")
    story.write("search.py", SEARCH.read_text())
    story.env["PATH"] = f"{script('grn').parent}:/usr/bin:/bin"
    first, second = commands("examples/optuna/README.md")[1:]
    for line, told, trials in ((first, 12, 4), (second, 20, 8)):  # fewer than the page has
        command = line.replace(f"--trials {told}", f"--trials {trials}")
        assert command != line
        said = story.start(*shlex.split(command)).ended_well().out
        assert re.fullmatch(rf"{trials} trials on GPUs [\d, ]+; best 0\.\d+\n", said)
    (profile,) = here.profiles()
    assert profile["label"] == "__main__::train"
    assert profile["runs"] == 8
    assert {run["args"]["batch_size"] for run in profile["history"]} <= {16, 32, 64}
    assert here.leases() == []


def test_the_page_shows_the_heart_of_the_example() -> None:
    heart = [line for line in blocks("integrations/optuna.md", "text")[0].splitlines() if line]
    lines = SEARCH.read_text().splitlines()
    assert [line.strip() for line in heart if line not in lines] == ["..."]


def test_ask_and_tell_run_as_printed(story: Story, negotiator: Negotiators) -> None:
    here = negotiator()
    done = story.run_script(blocks("integrations/optuna.md", "python")[0])
    assert done.out == blocks("integrations/optuna.md", "text")[1]
    assert [profile["runs"] for profile in here.profiles()] == [12]
