"""Jobs nobody knows yet: one of a type is measured at a time, other types go on elsewhere."""

from __future__ import annotations

import sys

from tests.conftest import Negotiators
from tests.harness import Story


def test_the_second_of_two_unknown_jobs_of_a_type_waits_for_the_first(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    story.hold("a")
    story.hear("a runs")
    second = story.hold("b")
    (waiting,) = here.wait_for_waiting(1)
    assert waiting["pid"] == second.pid
    assert waiting["reason"] == "first-run-elsewhere"
    assert "the first run of job is being measured on GPU" in waiting["why"]

    story.gate("a").open()
    story.hear("b runs")
    third = story.hold("c")
    story.hear("c runs")  # the type is known by now: no need to wait
    for name in "bc":
        story.gate(name).open()
    second.ended_well()
    third.ended_well()
    assert story.said()[:3] == ["a runs", "a ends", "b runs"]


def test_first_runs_of_two_types_overlap_each_on_a_gpu_of_its_own(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    jobs = [story.hold(name, type=name) for name in "ab"]
    story.hear("a runs", "b runs")
    assert sorted(lease["gpus"] for lease in here.leases()) == [[0], [1]]
    assert all(lease["first_run"] for lease in here.leases())

    jobs.append(story.hold("c", type="c"))
    (waiting,) = here.wait_for_waiting(1)
    assert waiting["reason"] == "no-room-for-first-run"
    for name in "abc":
        story.gate(name).open()
    for job in jobs:
        job.ended_well()


def test_a_job_that_raises_locks_nothing(story: Story, negotiator: Negotiators) -> None:
    here = negotiator()
    first = story.hold("a", fails=True)
    story.gate("a").open()
    assert first.wait().code == 1
    assert "ValueError: a fails" in first.err

    assert here.status()["waiting"] == here.status()["leases"] == []
    story.gate("b").open()
    story.hold("b").ended_well()


def test_failing_jobs_of_an_unknown_type_run_one_at_a_time(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    jobs = [story.hold(name, fails=True) for name in "abc"]
    for name in "abc":
        story.gate(name).open()
    assert [job.wait().code for job in jobs] == [1, 1, 1]

    said = story.said()
    for begun, ended in zip(said[::2], said[1::2], strict=True):
        assert begun.split()[1] == "runs"
        assert ended == begun.replace("runs", "ends")


def test_a_long_first_run_lets_others_in_once_its_memory_is_flat(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator(GRN_FLAT_S="0.3")
    first = story.hold("a", take=50)
    story.hear("a runs")
    second = story.hold("b", take=50)
    story.hear("b runs")
    assert first.is_running
    leases = here.leases()
    assert [lease["first_run"] for lease in leases] == [False, False]
    assert all(lease["reserved_bytes"] < 200 << 20 for lease in leases)
    for name in "ab":
        story.gate(name).open()
    first.ended_well()
    second.ended_well()


def test_what_was_learned_lets_jobs_share_a_gpu(story: Story, negotiator: Negotiators) -> None:
    here = negotiator("virtual:1x512MiB")
    story.gate("first").open()
    story.hold("first", take=60).ended_well()

    jobs = [story.hold(name, take=60) for name in "abc"]
    story.hear("a runs", "b runs", "c runs")
    (gpu,) = here.status()["gpus"]
    assert gpu["reserved_bytes"] + gpu["guard_bytes"] <= gpu["total_bytes"]
    for name in "abc":
        story.gate(name).open()
    for job in jobs:
        job.ended_well()


def test_the_type_is_shown_as_it_was_started(story: Story, negotiator: Negotiators) -> None:
    here = negotiator()
    story.gate("go")
    path = story.write(
        "tests/gpu_job_test.py",
        """
        import grn
        from act import gate

        @grn.job()
        def gpu_job():
            gate("go")

        gpu_job()
        """,
    )
    started = story.start(sys.executable, "tests/gpu_job_test.py")
    (lease,) = here.wait_for_leases(1)
    assert lease["label"] == "tests/gpu_job_test.py::gpu_job"
    assert lease["type"] == f"{path}::gpu_job"
    story.gate("go").open()
    started.ended_well()
