"""`grn-start` and `glb-start`: what they print, which GPUs they take, how they end."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import Scripts
from tests.gpus.standin.build import StandIn, fail, gpu
from tests.harness import TWO_SMALL, Job, Negotiator, Story, wait_for

A, B = "GPU-aaaa1111", "GPU-bbbb2222"


@pytest.fixture
def virtual(story: Story) -> Story:
    story.env["GRN_GPUS"] = TWO_SMALL
    return story


def started(story: Story, script: Scripts, name: str = "grn-start", *words: str) -> Job:
    """Start one and wait until it says which GPUs it manages."""
    job = story.start(script(name), *words)
    wait_for(lambda: "Managing GPUs" in job.err or not job.is_running, "the GPUs to be named")
    assert job.is_running, job.err
    return job


@pytest.mark.parametrize("name", ["grn-start", "glb-start"])
def test_it_prints_a_banner_and_the_gpus(virtual: Story, script: Scripts, name: str) -> None:
    job = started(virtual, script, name)
    banner, _, last = job.err.rstrip().rpartition("\n")
    assert "GPU Resource Negotiator" in banner
    assert last.endswith("Managing GPUs {0, 1}")
    job.signal(signal.SIGTERM)
    assert job.wait().code == 0


def test_it_talks_more_when_asked_to(virtual: Story, script: Scripts) -> None:
    job = started(virtual, script, "grn-start", "--debug")
    job.signal(signal.SIGTERM)
    assert job.wait().code == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_well_when_asked_to_and_can_be_started_again(
    virtual: Story, script: Scripts, signum: int
) -> None:
    for _ in range(2):
        job = started(virtual, script)
        virtual.gate("job").open()
        virtual.hold("job").ended_well()
        job.signal(signum)
        ended = job.wait()
        assert ended.code == 0
        assert ended.err.endswith("[GPUMaster] Cleaning up...\n")
        assert "Traceback" not in ended.err
    assert not list((virtual.folder / "run").glob("*.sock"))


def test_it_ends_well_while_jobs_run_and_wait(virtual: Story, script: Scripts) -> None:
    job = started(virtual, script)
    here = Negotiator(virtual, None)
    running, waiting = virtual.hold("a"), virtual.hold("b")
    here.wait_for_leases(1)
    here.wait_for_waiting(1)
    job.signal(signal.SIGINT)
    ended = job.wait()
    assert ended.code == 0
    assert ended.err.endswith("[GPUMaster] Cleaning up...\n")

    again = started(virtual, script)
    for name in "ab":
        virtual.gate(name).open()
    running.ended_well()
    waiting.ended_well()
    again.signal(signal.SIGINT)
    assert again.wait().code == 0


def test_it_can_be_started_again_after_it_was_killed(virtual: Story, script: Scripts) -> None:
    started(virtual, script).kill()
    assert list((virtual.folder / "run").glob("*.sock"))  # what a crash leaves behind
    started(virtual, script)
    virtual.gate("job").open()
    virtual.hold("job").ended_well()


def test_a_second_one_is_refused_with_a_clear_line(virtual: Story, script: Scripts) -> None:
    first = started(virtual, script)
    second = virtual.start(script("grn-start")).wait()
    assert second.code == 3
    assert "a negotiator already runs on this machine" in second.err
    assert "grn stop" in second.err
    assert "Traceback" not in second.err
    assert first.is_running
    assert Negotiator(virtual, None).is_answering()


# Which GPUs


def test_only_the_visible_gpus_are_managed_and_used(virtual: Story, script: Scripts) -> None:
    virtual.env["CUDA_VISIBLE_DEVICES"] = "1"
    job = started(virtual, script)
    assert job.err.rstrip().endswith("Managing GPUs {1}")
    here = Negotiator(virtual, None)
    jobs = [virtual.hold(name, mem="100MiB") for name in "abc"]
    assert {lease["gpus"][0] for lease in here.wait_for_leases(3)} == {1}
    for name in "abc":
        virtual.gate(name).open()
    for one in jobs:
        one.ended_well()


@pytest.mark.parametrize(
    ("visible", "managed"),
    [("0,1", "{0, 1}"), ("1,0", "{1, 0}"), ("1", "{1}"), (B, "{1}"), (f"{B},GPU-aaaa", "{1, 0}")],
)
def test_visible_gpus_are_named_by_index_or_uuid(
    story: Story, standin: StandIn, script: Scripts, visible: str, managed: str
) -> None:
    standin.write(gpu(A), gpu(B))
    story.env["CUDA_VISIBLE_DEVICES"] = visible
    job = started(story, script)
    assert job.err.rstrip().endswith(f"Managing GPUs {managed}")
    job.signal(signal.SIGTERM)
    assert job.wait().code == 0


@pytest.mark.parametrize("visible", ["0,9", ""])
def test_visible_gpus_that_are_not_there_are_an_error_that_names_what_is(
    story: Story, standin: StandIn, script: Scripts, visible: str
) -> None:
    standin.write(gpu(A), gpu(B))
    story.env["CUDA_VISIBLE_DEVICES"] = visible
    ended = story.start(script("grn-start")).wait()
    assert ended.code == 2
    assert f"CUDA_VISIBLE_DEVICES={visible}: " in ended.err
    assert f"GPUs here: 0 ({A}), 1 ({B})." in ended.err
    assert "Traceback" not in ended.err


def test_without_a_driver_it_says_so_and_names_the_way_out(
    story: Story, standin: StandIn, script: Scripts
) -> None:
    standin.write(fail("nvmlInitWithFlags", 9))
    ended = story.start(script("grn-start")).wait()
    assert ended.code == 4
    assert "the NVIDIA driver is not loaded" in ended.err
    assert "grn start --virtual" in ended.err
    assert "Traceback" not in ended.err
