"""A GPU that is lost or unplugged never leads a job to another GPU than the one it was promised."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import Negotiators, Scripts
from tests.gpus.standin.build import StandIn, gpu
from tests.harness import Negotiator, Story, wait_for

A, B = "GPU-aaaa", "GPU-bbbb"
WITHOUT_A = {"lost": (gpu(A, health="lost"), gpu(B)), "unplugged": (gpu(B),)}
ON_GPU = "import torch; x = torch.empty(2**30, dtype=torch.uint8, device='cuda')"


@pytest.fixture(params=["lost", "unplugged"])
def without_a(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Return the machine once its first GPU is gone: CUDA counts the second as 0 from then on."""
    return WITHOUT_A[request.param]


@pytest.fixture
def here(story: Story, standin: StandIn, negotiator: Negotiators, script: Scripts) -> Negotiator:
    story.env["PATH"] = f"{script('grn').parent}:/usr/bin:/bin"
    standin.write(gpu(A), gpu(B))
    return negotiator(None)


def is_a_gone(here: Negotiator) -> bool:
    return [row["uuid"] for row in here.status()["gpus"] if row["health"] == "ok"] == [B]


def run(story: Story, text: str) -> str:
    return story.start("bash", story.write("run.sh", text)).ended_well().out


def test_jobs_are_told_uuids_and_run_where_their_memory_is_booked(
    story: Story, standin: StandIn, here: Negotiator, without_a: tuple[str, ...]
) -> None:
    standin.write(*without_a)
    wait_for(lambda: is_a_gone(here), here.status)
    for _ in range(2):
        say = f"import os; print(os.environ['CUDA_VISIBLE_DEVICES'])\n{ON_GPU}"
        story.write("job.py", say)
        assert run(story, f"grn exec --mem 2GiB -- {sys.executable} job.py") == f"{B}\n"
        here.stop()
        here.start()  # a restart forgets neither the loss nor what it means


def test_a_process_that_a_job_starts_later_is_on_the_gpu_of_its_lease(
    story: Story, standin: StandIn, here: Negotiator, without_a: tuple[str, ...]
) -> None:
    for name in ("go", "end"):
        story.gate(name)
    job = story.start_script(
        f"""
        import subprocess, sys
        import grn
        from act import gate, say

        with grn.lease(mem="3GiB") as one:
            say(one.visible_devices)
            gate("go")
            later = "from act import gate, say; {ON_GPU}; say('later runs'); gate('end')"
            subprocess.run([sys.executable, "-c", later], check=True)
        """,
        env={"CUDA_VISIBLE_DEVICES": None},
    )
    other = story.start_script(
        "import grn; from act import gate, say\n"
        "with grn.lease(mem='6GiB') as one: say(one.visible_devices); gate('end')",
        name="other.py",
    )
    story.hear(A, B)  # one on each, whoever came first
    (mine,) = (lease for lease in here.leases() if lease["pid"] == job.pid)
    if mine["gpus"] == [0]:  # its own GPU is the one that goes: the other machine
        standin.write(gpu(A), gpu(B, health="lost"))
    else:
        standin.write(*without_a)
    story.gate("go").open()
    story.hear("later runs")
    wait_for(
        lambda: (
            [lease["used_bytes"] for lease in here.leases() if lease["pid"] == job.pid]
            == [2**30 + (300 << 20)]
        ),
        here.leases,
    )
    story.gate("end").open()
    job.ended_well()
    other.ended_well()


def test_numbers_are_given_only_while_all_gpus_answer(
    story: Story, standin: StandIn, here: Negotiator, without_a: tuple[str, ...]
) -> None:
    assert run(story, "grn select --mem 1GiB --index") in ("0\n", "1\n")
    here.wait_for_leases(0)  # a GPU that is gone does not show the memory of its last job gone
    standin.write(*without_a)
    wait_for(lambda: is_a_gone(here), here.status)
    for _ in range(2):
        assert run(story, "grn select --mem 1GiB") == f"{B}\n"
        refused = story.start("bash", "-c", "grn select --mem 1GiB --index").wait()
        assert (refused.code != 0, refused.out) == (True, "")
        assert "GPU numbers cannot be trusted" in refused.err
        here.wait_for_leases(0)
        here.stop()
        here.start()


def test_slots_of_an_older_tool_become_uuids_when_a_gpu_is_gone(
    story: Story, standin: StandIn, here: Negotiator, without_a: tuple[str, ...]
) -> None:
    tool = f"{sys.executable} -m grn.compat.simple_gpu_scheduler --gpus 1"
    text = f"echo 'echo $CUDA_VISIBLE_DEVICES >> $STORY/said' | {tool}"
    run(story, text)
    standin.write(*without_a)
    wait_for(lambda: is_a_gone(here), here.status)
    run(story, text)
    assert story.said() == ["1", B]
