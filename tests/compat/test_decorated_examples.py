"""The two examples of the older tool, word for word, on stand-in and on virtual GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Negotiators
from tests.gpus.standin.build import MiB, StandIn, gpu
from tests.harness import Story

EXAMPLES = re.findall(
    r"```python\n(.*?)```", Path(__file__).with_name("decorated.md").read_text(), re.DOTALL
)
JOB, LONG_AND_SHORT = EXAMPLES
# Makes a test of ten seconds one of none: the example says `sleep`, and is believed.
NO_SLEEP = """
    import time
    from act import say
    time.sleep = lambda seconds: say("slept", seconds)
"""
# Stands in for torch where GPUs are virtual: takes no memory, tells who called.
TORCH = """
    import sys
    from act import say

    def randn(size, device):
        caller = sys._getframe(1)
        arguments = caller.f_locals.get("args", caller.f_locals.get("sleep", ""))
        say(caller.f_code.co_name, arguments, size, device)
"""


@pytest.fixture
def virtual(story: Story, negotiator: Negotiators) -> Story:
    story.write("site/sitecustomize.py", NO_SLEEP)
    story.write("site/torch.py", TORCH)
    story.prepend_path(story.folder / "site")
    negotiator()
    return story


def test_the_first_example_runs_on_virtual_gpus(virtual: Story) -> None:
    ended = virtual.run_script(JOB)

    assert (ended.out, ended.err) == ("", "")
    assert virtual.said() == ["job  1000 cuda:0"]


def test_the_profiler_runs_once_before_the_first_long_job_and_gets_its_arguments(
    virtual: Story,
) -> None:
    first = virtual.run_script(LONG_AND_SHORT)

    assert virtual.said() == ["short_job (10,) 1000 cuda:0", "long_job 10 1000 cuda:0", "slept 10"]
    second = virtual.run_script(LONG_AND_SHORT)
    assert virtual.said()[3:] == ["long_job 10 1000 cuda:0", "slept 10"]
    assert first.err == second.err == ""


def test_the_older_name_does_the_same(virtual: Story) -> None:
    text = JOB.replace("import grn ", "import glb ").replace(
        "@grn.job()", "@glb.gpu_load_balance()"
    )
    assert "grn.job" not in text

    assert virtual.run_script(text).err == ""
    assert virtual.said() == ["job  1000 cuda:0"]


def test_the_first_example_is_measured_on_a_gpu(
    story: Story, standin: StandIn, negotiator: Negotiators
) -> None:
    standin.write(gpu("GPU-aaaa"), gpu("GPU-bbbb"))
    here = negotiator(None)
    ended = story.run_script(JOB)

    assert (ended.out, ended.err) == ("", "")
    (profile,) = here.profiles()
    assert profile["label"] == "job.py::job"
    # The driver shows a context and the tensor; torch's own figure has the usual context added.
    assert 300 * MiB < profile["largest_bytes"] <= 513 * MiB


def test_the_second_example_is_measured_by_its_profiler(
    story: Story, standin: StandIn, negotiator: Negotiators
) -> None:
    story.write("site/sitecustomize.py", NO_SLEEP)
    story.prepend_path(story.folder / "site")
    standin.write(gpu("GPU-aaaa"), gpu("GPU-bbbb"))
    here = negotiator(None)

    story.run_script(LONG_AND_SHORT)
    assert [run["outcome"] for run in here.history()] == ["profiled", "ok"]
    story.run_script(LONG_AND_SHORT)
    assert [run["outcome"] for run in here.history()] == ["profiled", "ok", "ok"]
    assert [run["args"] for run in here.history()] == [{"sleep": 10.0}] * 3
    assert story.said() == ["slept 10", "slept 10"]
