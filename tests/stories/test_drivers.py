"""A negotiator on drivers that change or say little, as its users see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import Negotiators
from tests.gpus.standin.build import GiB, StandIn, gpu
from tests.harness import GRN, Story, wait_for

A = "GPU-aaaa"
LEASE = (
    "import grn; from act import gate, say\nwith grn.lease(mem='1GiB'): say('runs'); gate('end')"
)


def test_a_gpu_that_is_prohibited_meanwhile_gets_no_job_until_it_is_opened_again(
    story: Story, standin: StandIn, negotiator: Negotiators
) -> None:
    standin.write(gpu(A))
    here = negotiator(None)
    story.gate("end").open()
    standin.write(gpu(A, mode=2))
    wait_for(lambda: here.status()["gpus"][0]["health"] == "prohibited", here.status)
    job = story.start_script(LEASE)
    why = "the driver lets no job start on GPU 0 (compute mode)"
    wait_for(lambda: [one["why"] for one in here.status()["waiting"]] == [why], here.status)

    standin.write(gpu(A))
    story.hear("runs")
    job.ended_well()
    assert here.log.count("gpu=0 mode=prohibited") == 1


def test_a_driver_without_process_lists_is_named_once_in_the_log_and_by_the_doctor(
    story: Story, libraries: Callable[..., Path], negotiator: Negotiators
) -> None:
    machine = StandIn(libraries("NO_LISTS"), story.folder / "nvml")
    story.env.update(machine.env())
    machine.write(gpu(A, total=8 * GiB))
    here = negotiator(None)
    story.gate("end")
    job = story.start_script(LEASE)
    story.hear("runs")

    said = "the driver does not list the processes on GPU 0"
    assert said in here.status()["trouble"]
    assert [lease["used_bytes"] for lease in here.leases()] == [None]
    assert said in story.start(*GRN, "doctor").wait().out
    story.gate("end").open()
    job.ended_well()
    assert here.log.count(said) == 1
