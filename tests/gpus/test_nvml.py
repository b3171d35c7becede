"""NVIDIA GPUs through the real nvidia-ml-py, with a stand-in for the driver's library."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from grn.errors import MachineError
from grn.gpus.nvml import NvmlProbe
from grn.gpus.probe import Inventory, Placement
from grn.model.gpu import ComputeMode, GpuHealth, GpuKind, ProcessUse, Reading
from grn.model.job import Holder
from grn.proc import identity
from grn.proc.identity import holder_of
from tests.gpus.conftest import Machines
from tests.gpus.standin.build import (
    GiB,
    MiB,
    StandIn,
    busy,
    crash,
    fail,
    gpu,
    hang,
    mig,
    null,
    process,
)

SHARED, EXCLUSIVE, PROHIBITED = ComputeMode
A, B, C = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"
ME, PARENT, INIT = os.getpid(), os.getppid(), 1  # three processes that live
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
DEADLINE_S = 60.0

Story = Callable[[NvmlProbe, Inventory], Awaitable[None]]


def play(machine: StandIn, story: Story, **options: float) -> None:
    """Run a story with a probe on a machine."""

    async def run() -> None:
        quick = {"deadline_s": 10.0, "restart_s": 0.05, "longest_restart_s": 0.2, **options}
        probe = NvmlProbe(env=machine.env(), **quick)
        try:
            await story(probe, await probe.start())
        finally:
            await probe.close()

    asyncio.run(run())


def refusal(env: Mapping[str, str], **options: float) -> str:
    """Return why a probe does not start."""

    async def run() -> str:
        probe = NvmlProbe(env=env, **options)
        with pytest.raises(MachineError) as refused:
            await probe.start()
        await probe.close()
        return str(refused.value)

    return asyncio.run(run())


def first_reading(machine: StandIn, *lines: str) -> dict[str, Reading]:
    """Return the second look at a machine, which is the first by `sample`."""
    readings: dict[str, Reading] = {}

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        readings.update(await look(probe))

    machine.write(*lines)
    play(machine, story)
    return readings


def start_only(machine: StandIn, *lines: str) -> Inventory:
    found: list[Inventory] = []

    async def story(_: NvmlProbe, inventory: Inventory) -> None:
        found.append(inventory)

    machine.write(*lines)
    play(machine, story)
    return found[0]


async def look(probe: NvmlProbe) -> dict[str, Reading]:
    return {reading.uuid: reading for reading in await probe.sample([])}


async def healths(probe: NvmlProbe) -> dict[str, GpuHealth]:
    return {uuid: reading.health for uuid, reading in (await look(probe)).items()}


async def until_healths(probe: NvmlProbe, **wanted: GpuHealth) -> None:
    """Sample until the GPUs are as wanted (a=…, b=…), within a deadline."""
    names = {"a": A, "b": B, "c": C}
    expected = {names[key]: health for key, health in wanted.items()}

    async def wait() -> None:
        while await healths(probe) != expected:
            await asyncio.sleep(0.02)

    await asyncio.wait_for(wait(), DEADLINE_S)


# --- what a healthy driver says ----------------------------------------------------------


def test_the_inventory_has_the_facts_of_each_gpu(machine: Machines) -> None:
    inventory = start_only(
        machine(),
        gpu(A, total=24 * GiB, reserve=GiB, base=2 * GiB, util=37, name="NVIDIA Stand-in 24"),
        gpu(B, total=8 * GiB),
    )

    a, b = inventory.gpus
    assert (a.uuid, a.index, a.model) == (A, 0, "NVIDIA Stand-in 24")
    assert (a.kind, a.is_exclusive) == (GpuKind.CARD, False)
    assert a.total_bytes == 23 * GiB  # the reserve of the driver is nobody's to use
    assert (b.uuid, b.index, b.total_bytes) == (B, 1, 8 * GiB)
    assert inventory.readings[0] == Reading(A, used_bytes=2 * GiB, load_pct=37.0, mode=SHARED)
    assert inventory.notes == ()


def test_a_process_in_several_lists_counts_once_with_its_largest_figure(
    machine: Machines,
) -> None:
    readings = first_reading(
        machine(),
        gpu(A, base=GiB),
        gpu(B),
        process(A, ME, 2 * GiB),
        process(A, ME, 2 * GiB, "graphics"),
        process(A, PARENT, GiB, "graphics"),
        process(A, INIT, 3 * MiB, "mps"),
        process(B, ME, 5 * MiB),
    )

    uses = {ME: 2 * GiB, PARENT: GiB, INIT: 3 * MiB}
    assert readings[A].uses == tuple(ProcessUse(pid, uses[pid]) for pid in sorted(uses))
    assert readings[A].used_bytes == 4 * GiB + 3 * MiB
    assert readings[B].uses == (ProcessUse(ME, 5 * MiB),)


def test_memory_of_a_process_that_the_driver_hides_is_unknown(machine: Machines) -> None:
    readings = first_reading(
        machine(),
        gpu(A, base=GiB),
        process(A, ME, None),
        process(A, PARENT, None),
        process(A, PARENT, 5 * MiB, "graphics"),
    )

    assert set(readings[A].uses) == {ProcessUse(ME, None), ProcessUse(PARENT, 5 * MiB)}
    assert readings[A].used_bytes == GiB + 5 * MiB


def test_processes_are_attributed_to_the_lease_of_their_tree(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), process(A, ME, GiB), process(A, INIT, MiB))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        (reading,) = await probe.sample([Placement("lease", holder_of(ME), (A,))])
        assert set(reading.uses) == {ProcessUse(ME, GiB, ("lease",)), ProcessUse(INIT, MiB)}

    play(here, story)


def test_an_ended_process_drops_out_and_a_lingering_one_stays(machine: Machines) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    readings = first_reading(
        machine(), gpu(A), process(A, ended.pid, GiB), process(A, INIT, MiB, is_sticky=True)
    )

    assert readings[A].uses == (ProcessUse(INIT, MiB),)


def test_live_allocations_of_a_folder_are_seen(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A, base=GiB))
    here.allocate(A, ME, 2 * GiB)

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        reading = (await look(probe))[A]
        assert (reading.used_bytes, reading.uses) == (3 * GiB, (ProcessUse(ME, 2 * GiB),))

    play(here, story)


# --- older and odd drivers ---------------------------------------------------------------

TWO_PROCESSES = (gpu(A, reserve=GiB), process(A, ME, 3 * GiB), process(A, PARENT, 2 * GiB))


@pytest.mark.parametrize("flag", ["NO_V3", "LONG_V3", "SHORT_V3", "NO_MEMORY_V2"])
def test_each_generation_of_drivers_gives_the_same_processes_and_the_same_free_memory(
    machine: Machines, flag: str
) -> None:
    here = machine(flag)
    here.write(*TWO_PROCESSES)

    async def story(probe: NvmlProbe, inventory: Inventory) -> None:
        reading = (await look(probe))[A]
        assert {use.pid: use.used_bytes for use in reading.uses} == {
            ME: 3 * GiB,
            PARENT: 2 * GiB,
        }
        assert inventory.gpus[0].total_bytes - (reading.used_bytes or 0) == 2 * GiB

    play(here, story)


def test_without_memory_v2_the_reserve_counts_as_used(machine: Machines) -> None:
    here = machine("NO_MEMORY_V2")
    inventory = start_only(here, gpu(A, total=8 * GiB, reserve=GiB, base=MiB))

    assert inventory.gpus[0].total_bytes == 8 * GiB
    assert inventory.readings[0].used_bytes == GiB + MiB


def test_a_driver_that_refuses_memory_v2_is_asked_the_older_way(machine: Machines) -> None:
    readings = first_reading(machine(), gpu(A, base=GiB), fail(MEMORY, 25))

    assert readings[A].used_bytes == GiB


def test_lists_that_grow_while_they_are_read_are_read_again(machine: Machines) -> None:
    inventory = start_only(machine(), gpu(A), process(A, ME, GiB), "burst 3")

    assert inventory.readings[0].uses == (ProcessUse(ME, GiB),)


def test_a_failing_list_does_not_take_the_others_with_it(machine: Machines) -> None:
    readings = first_reading(
        machine(),
        gpu(A),
        process(A, ME, GiB),
        fail("nvmlDeviceGetGraphicsRunningProcesses_v3", 4),
        fail("nvmlDeviceGetGraphicsRunningProcesses_v2", 4),
        fail("nvmlDeviceGetMPSComputeRunningProcesses_v3", 3),
        fail("nvmlDeviceGetMPSComputeRunningProcesses_v2", 3),
    )

    assert readings[A].uses == (ProcessUse(ME, GiB),)
    assert readings[A].health is GpuHealth.OK


@pytest.mark.parametrize(
    ("flags", "faults"),
    [
        (("NO_LISTS",), ()),
        ((), tuple(fail(f"nvmlDeviceGetComputeRunningProcesses_{v}", 3) for v in ("v2", "v3"))),
    ],
    ids=["an-old-driver", "refused"],
)
def test_without_a_process_list_nobody_is_said_to_use_nothing(
    machine: Machines, flags: tuple[str, ...], faults: tuple[str, ...]
) -> None:
    inventory = start_only(machine(*flags), gpu(A), gpu(B), process(A, ME, GiB), *faults)
    reading = inventory.readings[0]

    assert (reading.health, reading.used_bytes) == (GpuHealth.OK, GiB)
    assert (reading.uses, reading.lists_processes) == ((), False)
    assert len(inventory.notes) == 1
    assert "does not list the processes on GPU 0, 1" in inventory.notes[0]


def test_impossible_pids_are_dropped_and_sizes_beside_them_are_not_believed(
    machine: Machines,
) -> None:
    readings = first_reading(
        machine(),
        gpu(A, base=GiB),
        process(A, 4_000_000_000, 5, is_sticky=True),
        process(A, ME, MiB),
        process(A, 0, MiB, "graphics", is_sticky=True),
    )

    assert readings[A].uses == (ProcessUse(ME, None),)
    assert readings[A].health is GpuHealth.OK


def test_a_process_larger_than_its_gpu_has_unknown_memory(machine: Machines) -> None:
    readings = first_reading(machine(), gpu(A, total=8 * GiB), process(A, ME, 9 * GiB))

    assert readings[A].uses == (ProcessUse(ME, None),)


def test_loads_beyond_all_reason_are_unknown(machine: Machines) -> None:
    readings = first_reading(
        machine(), gpu(A, util=2_147_483_632), gpu(B, util="none"), gpu(C, util=100)
    )

    assert [readings[uuid].load_pct for uuid in (A, B, C)] == [None, None, 100.0]


def test_the_loads_of_processes_are_asked_for_where_the_whole_does_not_tell_them(
    machine: Machines,
) -> None:
    two = (process(A, ME, GiB), process(A, PARENT, GiB))
    here = machine()
    found = first_reading(here, gpu(A, util=60), *two, busy(A, ME, 58))[A]
    assert dict(found.process_loads) == {ME: 58.0, PARENT: 0.0}

    for lines in (
        (gpu(A, util=60), *two),  # the driver says nothing
        (gpu(A, util=60), *two, busy(A, ME, 3)),  # the list lacks whoever works
        (gpu(A, util=60), *two, busy(A, INIT, 58)),
        (gpu(A, util=60), *two, busy(A, ME, 4000)),
        (gpu(A, util=60), *two, busy(A, ME, 58), fail("nvmlDeviceGetProcessUtilization", 3)),
        (gpu(A, util=60), process(A, ME, GiB), busy(A, ME, 58)),  # the whole tells it
        (gpu(A, util=3), *two, busy(A, ME, 3)),
    ):
        assert first_reading(here, *lines)[A].process_loads == ()


def test_the_latest_load_of_a_process_counts(machine: Machines) -> None:
    stamps = (busy(A, ME, 90, 1_000_000), busy(A, ME, 55, 9_000_000), busy(A, PARENT, 7, 1_000_000))
    two = (process(A, ME, GiB), process(A, PARENT, GiB))
    found = first_reading(machine(), gpu(A, util=60), *two, *stamps)[A]

    assert dict(found.process_loads) == {ME: 55.0, PARENT: 0.0}


def test_names_are_made_printable(machine: Machines) -> None:
    inventory = start_only(
        machine(), gpu(A, name=r"Evil\x1b[31m\x0aGPU  9"), gpu(B, name=r"\xff\xfe"), gpu(C, name="")
    )

    assert [found.model for found in inventory.gpus] == [
        "Evil [31m GPU 9",
        "NVIDIA GPU",
        "NVIDIA GPU",
    ]


def test_unsupported_memory_leaves_a_gpu_out_with_a_note(machine: Machines) -> None:
    inventory = start_only(
        machine(), gpu(A), gpu(B), fail(MEMORY, 3, A), fail("nvmlDeviceGetMemoryInfo", 3, A)
    )

    assert [found.uuid for found in inventory.gpus] == [B]
    assert inventory.notes == ("GPU 0 is left out (Not Supported, NVML code 3).",)


def test_memory_figures_that_contradict_each_other_are_no_reading(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A, total=0), gpu(B))
        readings = await look(probe)
        assert (readings[A].health, readings[A].used_bytes) == (GpuHealth.UNKNOWN, None)
        assert readings[B].health is GpuHealth.OK

    play(here, story)


# --- compute modes and MIG ---------------------------------------------------------------


def test_an_exclusive_gpu_is_marked_and_a_prohibited_one_is_left_out(machine: Machines) -> None:
    inventory = start_only(machine(), gpu(A, mode=3), gpu(B, mode=2), gpu(C, mode=0))

    assert [(found.uuid, found.is_exclusive) for found in inventory.gpus] == [(A, True), (C, False)]
    assert [reading.uuid for reading in inventory.readings] == [A, C]
    assert inventory.notes == ("GPU 1 is in compute mode PROHIBITED and is left out.",)


def test_a_compute_mode_that_changes_is_in_the_next_reading(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A, mode=0), gpu(B, mode=3))

    async def story(probe: NvmlProbe, inventory: Inventory) -> None:
        assert [reading.mode for reading in inventory.readings] == [SHARED, EXCLUSIVE]
        here.write(gpu(A, mode=2), gpu(B, mode=0))
        assert [reading.mode for reading in await probe.sample([])] == [PROHIBITED, SHARED]
        here.write(gpu(A, mode=1), gpu(B), fail("nvmlDeviceGetComputeMode", 3))
        assert [reading.mode for reading in await probe.sample([])] == [None, None]
        here.write(gpu(A, mode=1), gpu(B))
        assert [reading.mode for reading in await probe.sample([])] == [EXCLUSIVE, SHARED]

    play(here, story)


def test_mig_slices_stand_for_their_card_and_holes_between_them_are_normal(
    machine: Machines,
) -> None:
    here = machine()
    here.write(
        gpu(A, total=40 * GiB),
        mig(A, 1, "MIG-one", total=5 * GiB, base=MiB, name="Stand-in MIG 1g.5gb"),
        mig(A, 4, "MIG-four", total=10 * GiB),
        gpu(B),
        process("MIG-four", ME, 2 * GiB),
    )

    async def story(probe: NvmlProbe, inventory: Inventory) -> None:
        found = [(one.uuid, one.index, one.kind, one.total_bytes) for one in inventory.gpus]
        assert found == [
            ("MIG-one", 0, GpuKind.MIG, 5 * GiB),
            ("MIG-four", 0, GpuKind.MIG, 10 * GiB),
            (B, 1, GpuKind.CARD, 8 * GiB),
        ]
        assert inventory.gpus[0].model == "Stand-in MIG 1g.5gb"
        readings = await look(probe)
        assert readings["MIG-four"].uses == (ProcessUse(ME, 2 * GiB),)
        assert (readings["MIG-one"].used_bytes, readings["MIG-one"].load_pct) == (MiB, None)

    play(here, story)


def test_a_card_with_mig_on_but_no_slices_is_left_out_with_a_note(machine: Machines) -> None:
    inventory = start_only(machine(), gpu(A, mig="on"), gpu(B))

    assert [found.uuid for found in inventory.gpus] == [B]
    assert inventory.notes == ("GPU 0 is left out (MIG is on but has no slices).",)


# --- lost GPUs ---------------------------------------------------------------------------


@pytest.mark.parametrize("health", ["lost", "unknown"])
def test_a_gpu_lost_before_the_start_is_left_out_and_the_others_serve(
    machine: Machines, health: str
) -> None:
    inventory = start_only(machine(), gpu(A), gpu(B, health=health), gpu(C))

    assert [(found.uuid, found.index) for found in inventory.gpus] == [(A, 0), (C, 2)]
    assert len(inventory.notes) == 1
    assert inventory.notes[0].startswith("GPU 1 is left out (")


def test_a_handle_that_points_nowhere_is_never_used(machine: Machines) -> None:
    inventory = start_only(machine(), gpu(A), gpu(B), null("nvmlDeviceGetHandleByIndex_v2", A))

    assert [found.uuid for found in inventory.gpus] == [B]
    assert inventory.notes == ("GPU 0 is left out (GPU is lost, NVML code 15).",)


@pytest.mark.parametrize("health", ["lost", "unknown"])
def test_a_gpu_lost_later_is_lost_and_can_come_back(machine: Machines, health: str) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A), gpu(B, health=health, base=GiB))
        readings = await look(probe)
        assert readings[A].health is GpuHealth.OK
        assert readings[B] == Reading(B, GpuHealth.LOST)
        assert not probe.indices_hold
        here.write(gpu(A), gpu(B, base=GiB))
        await until_healths(probe, a=GpuHealth.OK, b=GpuHealth.OK)
        assert probe.indices_hold
        assert (await look(probe))[B].used_bytes == GiB

    play(here, story)


def test_a_gpu_that_vanishes_is_lost_and_shifted_indices_do_not_mix_up_the_others(
    machine: Machines,
) -> None:
    here = machine()
    here.write(gpu(A, base=1 * GiB), gpu(B, base=2 * GiB), gpu(C, base=3 * GiB))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(B, base=2 * GiB), gpu(C, base=3 * GiB))
        os.kill(probe.helper_pid or 0, signal.SIGKILL)  # the next one sees the new order
        await until_healths(probe, a=GpuHealth.LOST, b=GpuHealth.OK, c=GpuHealth.OK)
        readings = await look(probe)
        assert [readings[uuid].used_bytes for uuid in (A, B, C)] == [None, 2 * GiB, 3 * GiB]
        assert not probe.indices_hold
        here.write(gpu(C, base=3 * GiB), gpu(A, base=1 * GiB), gpu(B, base=2 * GiB))
        await until_healths(probe, a=GpuHealth.OK, b=GpuHealth.OK, c=GpuHealth.OK)
        readings = await look(probe)
        assert [readings[uuid].used_bytes for uuid in (A, B, C)] == [GiB, 2 * GiB, 3 * GiB]

    play(here, story)


def test_a_gpu_that_is_plugged_in_later_is_not_ours(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(B), gpu(A))
        os.kill(probe.helper_pid or 0, signal.SIGKILL)
        await until_healths(probe, a=GpuHealth.OK)

    play(here, story)


def test_an_error_of_its_own_makes_a_gpu_unknown(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A), gpu(B), fail(MEMORY, 16, B), fail("nvmlDeviceGetMemoryInfo", 16, B))
        assert await healths(probe) == {A: GpuHealth.OK, B: GpuHealth.UNKNOWN}

    play(here, story)


# --- hangs -------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [MEMORY, "nvmlDeviceGetComputeRunningProcesses_v3", "*"])
def test_a_call_that_hangs_on_one_gpu_costs_only_that_gpu(machine: Machines, function: str) -> None:
    here = machine()
    here.write(gpu(A, base=GiB), gpu(B), gpu(C, base=3 * GiB))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        first = probe.helper_pid
        here.write(gpu(A, base=GiB), gpu(B), gpu(C, base=3 * GiB), hang(function, B))
        readings = await look(probe)
        assert readings[B] == Reading(B, GpuHealth.UNKNOWN)
        assert [readings[uuid].used_bytes for uuid in (A, C)] == [GiB, 3 * GiB]
        assert probe.helper_pid != first
        for _ in range(20):  # retries of the hanging one do not disturb the others
            readings = await look(probe)
            assert [readings[uuid].health.value for uuid in (A, B, C)] == ["ok", "unknown", "ok"]
        here.write(gpu(A, base=GiB), gpu(B, base=2 * GiB), gpu(C, base=3 * GiB))
        await until_healths(probe, a=GpuHealth.OK, b=GpuHealth.OK, c=GpuHealth.OK)
        assert (await look(probe))[B].used_bytes == 2 * GiB

    play(here, story, deadline_s=2.0)


def test_a_hanging_gpu_is_left_alone_until_its_time_has_come(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A), gpu(B), hang(MEMORY, B))
        await look(probe)
        helper = probe.helper_pid
        here.write(gpu(A), gpu(B))
        for _ in range(20):
            assert await healths(probe) == {A: GpuHealth.OK, B: GpuHealth.UNKNOWN}
        assert probe.helper_pid == helper

    play(here, story, deadline_s=5.0, restart_s=600.0, longest_restart_s=600.0)


def test_the_parent_stays_responsive_while_a_call_hangs(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A), gpu(B), hang(MEMORY, A))
        sampling = asyncio.ensure_future(probe.sample([]))
        turns = 0
        while not sampling.done():
            await asyncio.sleep(0.005)
            turns += 1
        assert turns > 10
        assert (await sampling)[0].health is GpuHealth.UNKNOWN

    play(here, story, deadline_s=1.0)


def test_all_gpus_hanging_at_once_are_all_unknown_within_twice_the_deadline(
    machine: Machines,
) -> None:
    here = machine()
    gpus = [gpu(A), gpu(B), gpu(C), *(gpu(f"GPU-{number}") for number in range(12))]
    here.write(*gpus)

    async def until_well(probe: NvmlProbe) -> None:
        while set((await healths(probe)).values()) != {GpuHealth.OK}:
            await asyncio.sleep(0.02)

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(*gpus, hang("*"))
        began = asyncio.get_running_loop().time()
        assert set((await healths(probe)).values()) == {GpuHealth.UNKNOWN}
        # Two seconds, and time for a busy machine; one after the other they would take 15.
        assert asyncio.get_running_loop().time() - began < 2 * 1.0 + 8.0
        assert set((await healths(probe)).values()) == {GpuHealth.UNKNOWN}
        here.write(*gpus)
        await asyncio.wait_for(until_well(probe), DEADLINE_S)

    play(here, story, deadline_s=1.0)


def test_a_gpu_that_hangs_at_the_start_is_left_out_with_a_note(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B), hang("*", A))

    async def story(probe: NvmlProbe, inventory: Inventory) -> None:
        assert [found.uuid for found in inventory.gpus] == [B]
        assert inventory.notes == ("GPU 0 did not answer in time and is left out.",)
        assert await healths(probe) == {B: GpuHealth.OK}

    play(here, story, deadline_s=5.0, open_s=5.0)


def test_a_driver_that_hangs_at_the_start_is_refused_in_time(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), hang("nvmlInitWithFlags"))

    assert "the NVIDIA driver did not answer within 0.5 s." in refusal(here.env(), open_s=0.5)


def test_a_hanging_gpu_that_is_unplugged_is_lost(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A), gpu(B), hang(MEMORY, B))
        assert await healths(probe) == {A: GpuHealth.OK, B: GpuHealth.UNKNOWN}
        here.write(gpu(A))
        await until_healths(probe, a=GpuHealth.OK, b=GpuHealth.LOST)

    play(here, story, deadline_s=2.0)


def test_a_sample_that_is_cancelled_does_not_confuse_the_next(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A, base=GiB), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A, base=GiB), gpu(B), hang(MEMORY, B))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(probe.sample([]), 0.2)
        here.write(gpu(A, base=2 * GiB), gpu(B))
        readings = await look(probe)
        assert [readings[uuid].used_bytes for uuid in (A, B)] == [2 * GiB, 0]

    play(here, story)


# --- helpers that die, drivers that fail -------------------------------------------------


def test_a_killed_helper_is_replaced_within_the_same_sample(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A, base=GiB))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        for _ in range(3):
            first = probe.helper_pid
            os.kill(first or 0, signal.SIGKILL)
            await until_healths(probe, a=GpuHealth.OK)
            assert probe.helper_pid != first
            assert (await look(probe))[A].used_bytes == GiB

    play(here, story)


def test_a_gpu_that_crashes_the_library_costs_only_that_gpu(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A), gpu(B), crash(MEMORY, B))
        assert await healths(probe) == {A: GpuHealth.OK, B: GpuHealth.UNKNOWN}
        here.write(gpu(A), gpu(B))
        await until_healths(probe, a=GpuHealth.OK, b=GpuHealth.OK)

    play(here, story)


@pytest.mark.parametrize("code", [9, 18, 999])
def test_a_driver_that_stops_answering_makes_all_unknown_until_it_is_back(
    machine: Machines, code: int
) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A, base=GiB), gpu(B, base=GiB), fail("*", code))
        for _ in range(3):
            for reading in await probe.sample([]):
                assert reading == Reading(reading.uuid, GpuHealth.UNKNOWN)
        os.kill(probe.helper_pid or 0, signal.SIGKILL)
        for _ in range(3):
            for reading in await probe.sample([]):
                assert reading == Reading(reading.uuid, GpuHealth.UNKNOWN)
        here.write(gpu(A, base=GiB), gpu(B, base=GiB))
        await until_healths(probe, a=GpuHealth.OK, b=GpuHealth.OK)
        assert (await look(probe))[A].used_bytes == GiB

    play(here, story)


def test_a_driver_updated_under_a_running_probe_costs_nothing(machine: Machines) -> None:
    """A new session would fail; the old one still answers, also while a lost GPU is looked for."""
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        helper = probe.helper_pid
        here.write(gpu(A), gpu(B, health="lost"), fail("nvmlInitWithFlags", 18))
        for _ in range(30):
            assert await healths(probe) == {A: GpuHealth.OK, B: GpuHealth.LOST}
            await asyncio.sleep(0.01)
        assert probe.helper_pid == helper

    play(here, story)


def test_a_new_session_that_sees_less_does_not_replace_the_old_one(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        helper = probe.helper_pid
        refused = fail("nvmlDeviceGetHandleByIndex_v2", 4)
        here.write(gpu(A), gpu(B, health="lost"), refused)
        for _ in range(30):
            assert await healths(probe) == {A: GpuHealth.OK, B: GpuHealth.LOST}
            await asyncio.sleep(0.02)
        assert probe.helper_pid == helper

    play(here, story)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_driver_that_stays_broken_is_tried_ever_more_rarely(
    machine: Machines, is_killed: bool
) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A), gpu(B), fail("*", 999))
        if is_killed:
            os.kill(probe.helper_pid or 0, signal.SIGKILL)
        for _ in range(50):
            await probe.sample([])
            await asyncio.sleep(0.01)
        assert here.sessions <= 2  # one at the start, one try after the trouble began

    play(here, story, restart_s=600.0, longest_restart_s=600.0)


def test_a_gpu_that_still_hangs_is_tried_ever_more_rarely(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        here.write(gpu(A), gpu(B), hang(MEMORY, B))
        await look(probe)
        here.write(gpu(A), gpu(B), hang(MEMORY, B), fail("nvmlInitWithFlags", 18))
        began = asyncio.get_running_loop().time()
        for _ in range(50):
            await probe.sample([])
            await asyncio.sleep(0.02)
        took_s = asyncio.get_running_loop().time() - began
        # Its start, the one after the hang, and tries after 0.2, 0.4, 0.8 … s.
        assert here.sessions <= 3 + math.log2(1 + took_s / 0.2)

    play(here, story, deadline_s=1.0, open_s=1.0, restart_s=0.2, longest_restart_s=600.0)


def test_after_the_end_all_is_unknown_and_nothing_is_started(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A))

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        await probe.close()
        assert await healths(probe) == {A: GpuHealth.UNKNOWN}
        assert probe.helper_pid is None
        await probe.close()

    play(here, story)


# --- the start that fails ----------------------------------------------------------------

VIRTUAL = "`grn start --virtual 2x2GiB`"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (9, "the NVIDIA driver is not loaded."),
        (18, "the NVIDIA driver and its library have different versions."),
        (4, "the NVIDIA driver refuses access"),
        (999, "NVML cannot be used: Unknown Error (code 999)."),
    ],
)
def test_a_driver_that_cannot_be_opened_is_named_with_a_way_out(
    machine: Machines, code: int, message: str
) -> None:
    here = machine()
    here.write(gpu(A), fail("nvmlInitWithFlags", code))

    text = refusal(here.env())
    assert message in text
    assert VIRTUAL in text


def test_without_the_library_of_the_driver_virtual_gpus_are_named(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")

    text = refusal({"LD_LIBRARY_PATH": str(tmp_path)})
    assert "libnvidia-ml.so.1 was not found" in text
    assert VIRTUAL in text


@pytest.mark.parametrize("lines", [(), (gpu(A, mode=2),), (gpu(A, health="lost"),)])
def test_without_a_usable_gpu_there_is_no_start(machine: Machines, lines: tuple[str, ...]) -> None:
    here = machine()
    here.write(*lines)

    text = refusal(here.env())
    assert "there is no usable NVIDIA GPU." in text
    assert ("GPU 0" in text) == bool(lines)
    assert VIRTUAL in text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ImportError('no such thing')", "nvidia-ml-py is missing"),
        ("class NVMLError(Exception): pass", "an old fork of pynvml hides"),
        ("print 'hello'", "an old fork of pynvml hides"),
    ],
)
def test_a_missing_or_foreign_pynvml_is_named(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "pynvml.py").write_text(source)
    paths = (tmp_path, Path(identity.__file__).parents[2])

    text = refusal({"PYTHONPATH": ":".join(map(str, paths))})
    assert message in text
    assert "nvidia-ml-py`" in text


def test_modules_of_the_folder_it_is_started_in_do_not_reach_the_helper(
    machine: Machines, tmp_path: Path
) -> None:
    here = machine()
    here.write(gpu(A))
    for name in ("pynvml", "json", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the wrong folder')")
    script = (
        "import asyncio, sys, os\n"
        "from grn.gpus.nvml import NvmlProbe\n"
        "os.chdir(sys.argv[1])\n"
        "async def main():\n"
        "    probe = NvmlProbe()\n"
        "    print((await probe.start()).gpus[0].uuid)\n"
        "    await probe.close()\n"
        "asyncio.run(main())\n"
    )
    root = str(Path(identity.__file__).parents[2])
    env = {**os.environ, **here.env(), "PYTHONPATH": root}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

    assert (done.stdout, done.stderr) == (f"{A}\n", "")


# --- the helper itself -------------------------------------------------------------------


def helper_alone(machine: StandIn) -> subprocess.Popen[str]:
    root = str(Path(identity.__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-m", "grn.gpus.nvml_helper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **machine.env(), "PYTHONPATH": root},
        text=True,
    )


def test_the_helper_ends_with_its_parent_even_from_inside_a_call(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), hang("*", A))
    with helper_alone(here) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        helper.stdin.write('{"id": 1, "do": "open"}\n')
        helper.stdin.flush()
        assert '"at"' in helper.stdout.readline()
        helper.stdin.close()
        assert helper.wait(DEADLINE_S) == 0


def test_ctrl_c_in_the_terminal_does_not_end_the_helper(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A))
    with helper_alone(here) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        helper.stdin.write('{"id": 1, "do": "open"}\n')
        helper.stdin.flush()
        assert '"at"' in helper.stdout.readline()
        helper.send_signal(signal.SIGINT)
        helper.stdin.write('{"id": 2, "do": "sample", "uuids": []}\n')
        helper.stdin.flush()
        while '"id":2' not in helper.stdout.readline():
            assert helper.poll() is None
        helper.stdin.close()
        assert helper.wait(DEADLINE_S) == 0


# --- exact peaks -------------------------------------------------------------------------


def placed(lease: str, *gpus: str) -> Placement:
    return Placement(lease, Holder(ME, 1), gpus or (A,))


@pytest.mark.parametrize("accounting", ["on", "off"])  # off: we may switch it on
def test_with_accounting_a_lease_has_an_exact_peak_on_its_fullest_gpu(
    machine: Machines, accounting: str
) -> None:
    here = machine()
    here.write(
        gpu(A),
        gpu(B),
        gpu(C),
        f"accounting {accounting}",
        f"peak {A} {ME} {2 * GiB}",
        f"peak {B} {ME} {3 * GiB}",
        f"peak {C} {ME} {4 * GiB}",
    )

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        assert probe.keeps_peaks
        probe.begin(placed("lease", A, B))
        assert await probe.peak_in_time(placed("lease", A, B)) == 3 * GiB
        assert await probe.peak_in_time(placed("lease", A, B)) is None  # it has ended

    play(here, story)


@pytest.mark.parametrize("accounting", ["denied", "unsupported"])
def test_without_accounting_the_peak_is_unknown(machine: Machines, accounting: str) -> None:
    here = machine()
    here.write(gpu(A), f"accounting {accounting}", f"peak {A} {ME} {GiB}")

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        assert not probe.keeps_peaks
        probe.begin(placed("lease"))
        assert await probe.peak_in_time(placed("lease")) is None

    play(here, story)


def test_a_lease_that_ended_without_a_word_is_forgotten_and_a_new_one_is_not(
    machine: Machines,
) -> None:
    here = machine()
    here.write(gpu(A), "accounting on", f"peak {A} {ME} {GiB}")

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        probe.begin(placed("old"))
        sampling = asyncio.ensure_future(probe.sample([]))
        await asyncio.sleep(0)
        probe.begin(placed("new"))  # too late for that sample to know of it
        await sampling
        assert await probe.peak_in_time(placed("old")) is None
        assert await probe.peak_in_time(placed("new")) == GiB

    play(here, story)


def test_no_peak_is_had_at_once_and_asking_ends_the_lease(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), "accounting on", f"peak {A} {ME} {GiB}")

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        probe.begin(placed("lease"))
        assert probe.peak_at_once(placed("lease")) is None
        assert await probe.peak_in_time(placed("lease")) is None

    play(here, story)


def test_a_peak_from_before_the_lease_is_not_its_own(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), "accounting on", process(A, ME, GiB), f"peak {A} {ME} {2 * GiB}")

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        await probe.sample([])
        probe.begin(placed("first"))  # the process is on the GPU already
        assert await probe.peak_in_time(placed("first")) is None
        probe.begin(placed("second"))
        assert await probe.peak_in_time(placed("second")) is None  # not higher than before
        probe.begin(placed("third"))
        here.write(gpu(A), "accounting on", process(A, ME, GiB), f"peak {A} {ME} {3 * GiB}")
        assert await probe.peak_in_time(placed("third")) == 3 * GiB

    play(here, story)


def test_the_children_of_a_holder_count_and_are_not_added_up(machine: Machines) -> None:
    here = machine()
    with subprocess.Popen(["sleep", "60"]) as child:
        lines = [gpu(A), "accounting on", process(A, child.pid, GiB)]
        here.write(*lines, f"peak {A} {ME} {2 * GiB}", f"peak {A} {child.pid} {3 * GiB}")

        async def story(probe: NvmlProbe, _: Inventory) -> None:
            placement = Placement("lease", holder_of(ME), (A,))
            probe.begin(placement)
            await probe.sample([placement])
            assert await probe.peak_in_time(placement) == 3 * GiB

        play(here, story)
        child.kill()


def test_a_process_under_two_leases_gives_neither_an_exact_peak(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), "accounting on", process(A, ME, GiB), f"peak {A} {ME} {2 * GiB}")

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        both = [Placement(name, holder_of(ME), (A,)) for name in ("one", "two")]
        for placement in both:
            probe.begin(placement)
        await probe.sample(both)
        assert [await probe.peak_in_time(placement) for placement in both] == [None, None]

    play(here, story)


def test_a_hang_while_peaks_are_read_is_survived(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B), "accounting on", f"peak {A} {ME} {GiB}")

    async def story(probe: NvmlProbe, _: Inventory) -> None:
        lines = [gpu(A), gpu(B), "accounting on", f"peak {A} {ME} {GiB}"]
        here.write(*lines, hang("nvmlDeviceGetAccountingStats", B))
        probe.begin(placed("lease"))
        assert await probe.peak_in_time(placed("lease")) == GiB
        await until_healths(probe, a=GpuHealth.OK, b=GpuHealth.OK)

    play(here, story, deadline_s=1.0)


def test_temperature_power_and_clock_are_read_where_the_driver_has_them(
    machine: Machines,
) -> None:
    found = first_reading(machine(), gpu(A, temp=71, power=250400, clock=1980), gpu(B))

    assert (found[A].temperature_c, found[A].power_w, found[A].clock_mhz) == (71, 250, 1980)
    assert (found[B].temperature_c, found[B].power_w, found[B].clock_mhz) == (None, None, None)
