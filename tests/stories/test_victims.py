"""Jobs that ran out of memory since others took their room."""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import Negotiators
from tests.harness import GRN, Negotiator, Story, wait_for

MiB = 1 << 20
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 MiB."
ONCE = f"""\
echo try >> tries
[ $(wc -l < tries) = 1 ] && echo '{OOM}' >&2 && exit 1
echo '{{"fine": 1}}'
"""
CALL = f"""
    import os, sys
    import grn
    from act import say

    def train():
        say("try")
        if open(os.environ["STORY"] + "/said").read().count("try") < 2:
            raise RuntimeError("{OOM}")
        return "trained"
"""


@pytest.fixture
def beside(story: Story, negotiator: Negotiators) -> Negotiator:
    """Start a negotiator with one GPU, where a job has more than it reserved."""
    here = negotiator("virtual:1x512MiB", GRN_FLAT_S="0.2")
    story.hold("offender", type="offender", mem="40MiB", take=160)
    story.hear("offender runs")
    wait_for(lambda: (here.leases()[0]["used_bytes"] or 0) > 150 * MiB, "its memory to be seen")
    story.write("once.sh", ONCE)
    return here


def given(here: Negotiator, label: str) -> list[int]:
    """Return what each try of a type was given."""
    found = re.findall(rf"action=grant lease=\w+ type='{label}' gpus=0 reserved=(\d+)", here.log)
    return [int(size) for size in found]


def test_a_victim_in_a_batch_runs_again_as_it_is(story: Story, beside: Negotiator) -> None:
    line = "[mem=100MiB type=victim] sh once.sh"
    job = story.start(*GRN, "batch", story.write("jobs", line), cwd=story.folder)
    ended = job.ended_well()

    assert given(beside, "victim") == [100 * MiB] * 2
    assert "beside it grew beyond what it had" in ended.err
    assert "; runs again as it is\n" in ended.err
    (row,) = json.loads((story.folder / "jobs.grn/report.json").read_text())["jobs"]
    assert (row["outcome"], row["attempts"], row["because"]) == ("ok", 2, "")
    assert row["past"].startswith("attempt 1: out-of-memory, ran out of memory because offender")
    story.gate("offender").open()


def test_a_victim_in_a_sweep_runs_again_as_it_is(story: Story, beside: Negotiator) -> None:
    words = ["sweep", "sh once.sh {x}", "-p", "x", "1", "--mem", "100MiB", "--type", "victim"]
    words += ["--out", "out"]
    ended = story.start(*GRN, *words, cwd=story.folder).ended_well()

    assert given(beside, "victim") == [100 * MiB] * 2
    assert "failed: it ran out of memory because offender" in ended.err
    row = json.loads((story.folder / "out/results.jsonl").read_text())
    assert (row["state"], row["attempt"], row["fine"]) == ("finished", 2, 1)
    assert row["past"].startswith("attempt 1: out-of-memory, ran out of memory because offender")
    story.gate("offender").open()


def test_a_victim_of_exec_runs_again_as_it_is_and_is_not_counted(
    story: Story, beside: Negotiator
) -> None:
    command = ["exec", "--retry-oom", "1", "--mem", "100MiB", "--type", "victim", "--", "sh"]
    text = ONCE.replace("= 1 ]", "-lt 3 ]")
    ended = story.start(*GRN, *command, story.write("twice.sh", text)).ended_well()

    assert given(beside, "victim") == [100 * MiB] * 3
    assert ended.err.count("grew beyond what it had") == 2
    assert ended.err.count("; it runs again as it is\n") == 2
    story.gate("offender").open()


@pytest.mark.parametrize("retries", [0, 1])
def test_a_call_that_was_a_victim_is_repeated_as_it_is_if_asked_for(
    story: Story, beside: Negotiator, retries: int
) -> None:
    text = CALL + f'    print(grn.job("victim", mem="100MiB", retry_oom={retries})(train)())\n'
    ended = story.start_script(text, name="call.py").wait()

    assert given(beside, "victim") == [100 * MiB] * (1 + retries)
    assert ended.out == "trained\n" * retries
    story.gate("offender").open()


def test_a_call_in_a_worker_that_was_a_victim_is_made_again_as_it_is(
    story: Story, beside: Negotiator
) -> None:
    pytest.importorskip("cloudpickle")
    text = """
    from grn.group.call_group import CallGroup
    from grn.group.executor import kind_of

    if __name__ == "__main__":
        group = CallGroup(mem="100MiB", oom_retries=1, is_reusing=True)
        print(group.submit(train, (), {}, kind_of(train)).result())
        group.shut()
        group.join()
    """
    assert story.start_script(CALL + text, name="call.py").ended_well().out == "trained\n"

    assert given(beside, "call.py::train") == [100 * MiB] * 2
    story.gate("offender").open()
