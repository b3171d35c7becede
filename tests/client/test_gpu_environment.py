"""The environment of a job: set with its lease, put back with it."""

from __future__ import annotations

import os

import pytest

from grn.client.leasing.gpu_environment import GpuEnvironment, for_command
from grn.proc import spawn
from tests.harness import Story

LEFT_TO_THE_USER = ("TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_PREALLOCATE")


def test_a_command_sees_its_gpus_and_its_lease() -> None:
    before = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}

    assert for_command("abc", "0,2", before) == {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0,2",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "GRN_LEASE": "abc",
        "GRN_GPU_COUNT": "2",
    }
    assert before["CUDA_VISIBLE_DEVICES"] == "7"


@pytest.mark.parametrize("name", LEFT_TO_THE_USER)
def test_what_the_user_set_for_a_framework_stays(name: str) -> None:
    assert for_command("abc", "0", {name: "mine"})[name] == "mine"


def test_all_is_put_back_when_the_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    before = dict(os.environ)
    environment = GpuEnvironment()

    environment.enter("abc", "1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert os.environ["GRN_LEASE"] == "abc"
    environment.leave()
    assert dict(os.environ) == before


def test_leases_held_at_once_share_one_setting() -> None:
    before = dict(os.environ)
    environment = GpuEnvironment()

    environment.enter("first", "1")
    environment.enter("second", "1")
    environment.leave()
    assert os.environ["GRN_LEASE"] == "first"
    environment.leave()
    assert dict(os.environ) == before


def test_only_a_lease_from_outside_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = GpuEnvironment()
    assert environment.inherited_lease() is None

    environment.enter("own", "0")
    assert environment.inherited_lease() is None
    environment.leave()

    monkeypatch.setenv("GRN_LEASE", "outer")
    assert environment.inherited_lease() == "outer"
    environment.enter("own", "0")
    assert environment.inherited_lease() == "outer"
    environment.leave()


def test_for_a_forked_child_the_lease_of_its_parent_is_one_from_outside(story: Story) -> None:
    ended = story.run_script(
        """
        import os
        from grn.client.leasing.gpu_environment import GpuEnvironment

        environment = GpuEnvironment()
        environment.enter("parents", "0")
        pid = os.fork()
        if pid == 0:
            print(environment.inherited_lease(), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print(environment.inherited_lease())
        """
    )
    assert ended.out == "parents\nNone\n"


def test_a_service_gets_nothing_of_the_job_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRN_JOB_TAG", "GRN_JOB_ID", "GRN_ATTEMPT", "GRN_LEASE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("GRN_GPUS", "virtual:1x1GiB")
    found = spawn.service_environment("queue")
    assert found["GRN_GPUS"] == "virtual:1x1GiB"
    assert found["GRN_SERVICE"] == "queue"
    assert not {"GRN_JOB_TAG", "GRN_LEASE", "CUDA_VISIBLE_DEVICES"} & found.keys()


def test_gpus_that_a_user_has_chosen_without_a_lease_are_kept_for_a_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRN_LEASE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert spawn.service_environment("negotiator")["CUDA_VISIBLE_DEVICES"] == "1"
