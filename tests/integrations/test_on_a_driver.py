"""The integrations on the stand-in for a driver, with a fake torch: what GPUs show, not hosts."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import Negotiators, Scripts
from tests.gpus.standin.build import GiB, StandIn, gpu
from tests.harness import Negotiator, Story, wait_for

pytestmark = pytest.mark.submits
MiB = 1 << 20
A, B = "GPU-aaaa", "GPU-bbbb"
CONTEXT_BYTES = 300 * MiB  # of the fake torch
REPORTED_CONTEXT_BYTES = 512 * MiB  # added to a peak that torch reports
TAKE = "torch.empty(2**30, dtype=torch.uint8, device='cuda')"


@pytest.fixture
def here(story: Story, standin: StandIn, negotiator: Negotiators) -> Negotiator:
    standin.write(gpu(A), gpu(B))
    return negotiator(None)


def test_what_runs_on_a_selected_gpu_is_measured_as_the_callers(
    story: Story, here: Negotiator, script: Scripts
) -> None:
    story.gate("go")
    story.write("train.py", f"import torch, act\nx = {TAKE}\nact.say('taken')\nact.gate('go')")
    grn, python = script("grn"), sys.executable
    text = f"CUDA_VISIBLE_DEVICES=$({grn} select --mem 3GiB --uuid) {python} $STORY/train.py\n:"
    job = story.start("bash", story.write("run.sh", text))
    story.hear("taken")
    wait_for(lambda: here.leases()[0]["used_bytes"] == GiB + CONTEXT_BYTES, lambda: here.leases())
    (lease,) = here.leases()
    assert lease["pid"] == job.pid
    used = here.status()["gpus"][lease["gpus"][0]]
    assert (used["used_bytes"] >= GiB, used["strangers_bytes"]) == (True, 0)
    story.gate("go").open()
    job.ended_well()
    here.wait_for_leases(0)


def test_calls_of_joblib_have_gpus_of_their_own_and_report_their_peaks(
    story: Story, here: Negotiator
) -> None:
    pytest.importorskip("joblib")
    done = story.run_script(f"""
        import os
        import joblib
        import grn.integrations.joblib

        def train(number):
            import torch
            x = {TAKE}
            return os.environ["CUDA_VISIBLE_DEVICES"]

        with joblib.parallel_config("grn", n_jobs=2, mem="5GiB"):
            print(sorted(set(joblib.Parallel()(joblib.delayed(train)(n) for n in range(4)))))
    """)  # fmt: skip
    assert done.out in (f"['{A}', '{B}']\n", f"['{A}']\n", f"['{B}']\n")
    wait_for(lambda: not here.leases(), lambda: here.leases())
    assert {run["peak_bytes"] for run in here.history()} == {GiB + REPORTED_CONTEXT_BYTES}


def test_a_call_that_ran_out_of_memory_beside_others_gets_more_room(
    story: Story, here: Negotiator
) -> None:
    """The class of the error is torch's; it travels, is understood, and the call is made again."""
    pytest.importorskip("joblib")
    done = story.run_script("""
        import joblib
        import grn.integrations.joblib
        from act import say

        def train():
            import os, torch
            say("try")
            tries = open(os.environ["STORY"] + "/said").read().count("try")
            torch.empty((9 if tries == 1 else 1) * 2**30, dtype=torch.uint8, device="cuda")
            return tries

        joblib.parallel_config("grn", n_jobs=2, mem="1GiB", retry_oom=1)
        print(joblib.Parallel()([joblib.delayed(train)()]))
    """)  # fmt: skip
    assert done.out == "[2]\n"


def test_tests_of_one_process_stay_on_the_gpu_that_it_has_touched(
    story: Story, here: Negotiator
) -> None:
    story.write("pytest.ini", "[pytest]\n")
    story.write("test_it.py", f"""
        import os
        import pytest

        @pytest.mark.grn_gpu(mem="3GiB")
        @pytest.mark.parametrize("number", range(3))
        def test_it(number):
            import torch
            x = {TAKE}
            print("on", os.environ["CUDA_VISIBLE_DEVICES"])
            del x
            torch.cuda.empty_cache()
    """)  # fmt: skip
    words = ("-m", "pytest", "-p", "no:cacheprovider", "-q", "-s", "test_it.py")
    env = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "grn.integrations.pytest_plugin",
    }
    out = story.start(sys.executable, *words, env=env).ended_well().out
    assert "3 passed" in out
    assert len({gpu for gpu in (A, B) if f"on {gpu}\n" in out}) == 1
    assert {run["outcome"] for run in here.history()} == {"ok"}
