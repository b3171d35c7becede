"""How GPUs are joined, as the real nvidia-ml-py reads it from a stand-in for the driver."""

from __future__ import annotations

import asyncio

import pytest

from grn.gpus.nvml import NvmlProbe
from grn.gpus.probe import Inventory
from grn.model.gpu import GpuHealth, Link, LinkKind
from tests.gpus.conftest import Machines
from tests.gpus.standin.build import StandIn, fail, gpu, hang, link, mig

A, B, C, D = "GPU-aaaa", "GPU-bbbb", "GPU-cccc", "GPU-dddd"
ASKED = (
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetTopologyCommonAncestor",
)


def started(machine: StandIn, *lines: str, deadline_s: float = 10.0) -> Inventory:
    async def run() -> Inventory:
        probe = NvmlProbe(env=machine.env(), deadline_s=deadline_s)
        try:
            inventory = await probe.start()
            assert {r.health for r in await probe.sample([])} == {GpuHealth.OK}
            return inventory
        finally:
            await probe.close()

    machine.write(*lines)
    return asyncio.run(run())


def links(inventory: Inventory) -> dict[str, dict[str, tuple[str, int]]]:
    return {
        gpu.uuid: {link.to: (link.kind.value, link.lanes) for link in gpu.links}
        for gpu in inventory.gpus
    }


def test_bridges_switches_and_sockets_are_told_apart(machine: Machines) -> None:
    inventory = started(
        machine(), gpu(A), gpu(B), gpu(C), gpu(D),
        link(A, B, 4, 30), link(C, D, 0, 10), link(A, C, 0, 40), link(B, D, 0, 50),
    )  # fmt: skip

    assert links(inventory) == {
        A: {B: ("nvlink", 4), C: ("socket", 0)},
        B: {A: ("nvlink", 4)},
        C: {A: ("socket", 0), D: ("switch", 0)},
        D: {C: ("switch", 0)},
    }


def test_gpus_behind_an_nvlink_switch_are_joined_by_all_their_lanes(machine: Machines) -> None:
    inventory = started(machine(), gpu(A), gpu(B), link(A, B, "switched", 30))

    assert inventory.gpus[0].links == (Link(B, LinkKind.NVLINK, 18),)


def test_slices_of_one_gpu_have_no_links(machine: Machines) -> None:
    inventory = started(
        machine(), gpu(A), mig(A, 0, "MIG-1"), mig(A, 1, "MIG-2"), gpu(B), link(A, B, 4, 30)
    )

    assert [gpu.links for gpu in inventory.gpus] == [(), (), ()]


@pytest.mark.parametrize("function", ASKED)
def test_a_driver_that_does_not_say_one_thing_is_believed_in_the_others(
    machine: Machines, function: str
) -> None:
    inventory = started(machine(), gpu(A), gpu(B), link(A, B, 4, 10), fail(function, 3))

    found = links(inventory)
    assert found[A].keys() == {B}
    lanes = {"nvmlDeviceGetNvLinkState": 0, "nvmlDeviceGetNvLinkRemotePciInfo_v2": 0}
    assert found[A][B] == ("nvlink", lanes.get(function, 4))


def test_without_any_answer_there_are_gpus_and_no_links(machine: Machines) -> None:
    inventory = started(machine(), gpu(A), gpu(B))

    assert links(inventory) == {A: {}, B: {}}


@pytest.mark.parametrize("function", ["nvmlDeviceGetP2PStatus", "nvmlDeviceGetNvLinkState"])
def test_a_hang_over_links_costs_the_links_and_no_gpu(machine: Machines, function: str) -> None:
    lines = [gpu(A), gpu(B), link(A, B, 0, 10), hang(function)]
    inventory = started(machine(), *lines, deadline_s=2.0)

    assert links(inventory) == {A: {}, B: {}}
    assert inventory.notes == ()
