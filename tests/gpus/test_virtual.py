"""Virtual GPUs: host memory of real processes, read as a driver would read a card."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from grn.errors import BadSetting
from grn.gpus.probe import Placement
from grn.gpus.virtual import MAX_GPUS, VirtualProbe, parse_virtual
from grn.model.gpu import GpuHealth, GpuKind
from grn.model.job import Holder
from grn.model.units import GiB, MiB
from grn.proc.identity import holder_of
from grn.proc.processes import MemoryFiles

SIZE = 64 * MiB
SLACK = 24 * MiB  # what an interpreter needs itself

# Takes and gives memory as told, a line each, and says when it is done.
WORKER = """
import subprocess, sys
kept, children = [], []
for line in sys.stdin:
    verb, _, number = line.strip().partition(" ")
    if verb == "take":
        kept.append(b"x" * int(number))
    elif verb == "give":
        kept.clear()
    elif verb == "spin":
        sum(range(int(number)))
    elif verb == "child":
        child = [sys.executable, "-c", sys.argv[1], sys.argv[1]]
        pipe = subprocess.PIPE
        children.append(subprocess.Popen(child, stdin=pipe, stdout=pipe, text=True))
        children[-1].stdin.write(f"take {number}\\n")
        children[-1].stdin.flush()
        children[-1].stdout.readline()
    print("done", flush=True)
"""


class Worker:
    """A real process that uses memory as it is told."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.does("give")
        found = holder_of(self._process.pid)
        assert found is not None
        self.holder = found

    def does(self, verb: str, number: int = 0) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{verb} {number}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"

    def end(self) -> None:
        self._process.communicate()

    def placed(self, *gpus: int, lease: str = "L") -> Placement:
        return Placement(lease, self.holder, tuple(f"VIRTUAL-{gpu}" for gpu in gpus))


@pytest.fixture
def worker() -> Iterator[Callable[[], Worker]]:
    made: list[Worker] = []

    def make() -> Worker:
        made.append(Worker())
        return made[-1]

    yield make
    for one in made:
        one.end()


def sample(probe: VirtualProbe, *placements: Placement) -> list[Any]:
    return list(asyncio.run(probe.sample(placements)))


# --- what there is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ("1x8GiB", [8 * GiB]),
        ("4x512MiB", [512 * MiB] * 4),
        (" 2 X 1.5g ", [3 * GiB // 2] * 2),
        ("2x8GiB+1x4GiB", [8 * GiB, 8 * GiB, 4 * GiB]),
        (f"{MAX_GPUS}x1MiB", [MiB] * MAX_GPUS),
    ],
)
def test_a_description_gives_gpus_of_these_sizes(spec: str, sizes: list[int]) -> None:
    gpus = parse_virtual(spec)

    assert [gpu.total_bytes for gpu in gpus] == sizes
    assert [gpu.index for gpu in gpus] == list(range(len(sizes)))
    assert len({gpu.uuid for gpu in gpus}) == len(sizes)
    assert {gpu.kind for gpu in gpus} == {GpuKind.VIRTUAL}


@pytest.mark.parametrize(
    ("spec", "partners"),
    [
        ("4x1GiB", [[], [], [], []]),
        ("4x1GiB/nvlink=2", [[1], [0], [3], [2]]),
        ("1x1GiB+3x2GiB/nvlink=2", [[], [2], [1], []]),
        ("3x1GiB/nvlink=8", [[1, 2], [0, 2], [0, 1]]),
        ("2x1GiB/nvlink=0", [[], []]),
    ],
)
def test_gpus_in_a_row_can_be_linked(spec: str, partners: list[list[int]]) -> None:
    gpus = parse_virtual(spec)

    uuids = [[gpus[other].uuid for other in others] for others in partners]
    assert [[link.to for link in gpu.links] for gpu in gpus] == uuids
    assert "/" not in gpus[0].model


def test_gpus_of_different_sizes_are_different_models() -> None:
    """What was learned on one says little about the other."""
    large, small = parse_virtual("1x8GiB+1x4GiB")

    assert large.model != small.model
    assert parse_virtual("1x8GiB")[0].model == large.model


@pytest.mark.parametrize(
    "spec",
    [
        "", "x", "4", "8GiB", "4x", "x8GiB", "0x8GiB", "-1x8GiB", "1.5x8GiB", "4x8Gib/s", "4x-8GiB",
        "4x0", "4x8GiB+", "+4x8GiB", "4x8GiB,2x4GiB", f"{MAX_GPUS + 1}x1MiB",
        f"{MAX_GPUS}x1MiB+1x1MiB", "99999x1MiB", "1x" + "9" * 400, "1xnanGiB", "1x\x1b[31m",
    ],
)  # fmt: skip
def test_what_describes_no_gpus_is_refused_with_an_example(spec: str) -> None:
    with pytest.raises(BadSetting) as caught:
        parse_virtual(spec)

    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_in_the_beginning_they_are_empty_and_well() -> None:
    inventory = asyncio.run(VirtualProbe(parse_virtual("2x1GiB")).start())

    assert [gpu.index for gpu in inventory.gpus] == [0, 1]
    assert all(reading.used_bytes == 0 for reading in inventory.readings)
    assert all(reading.health is GpuHealth.OK for reading in inventory.readings)


# --- what is used --------------------------------------------------------------------------


def test_without_leases_nothing_is_used() -> None:
    readings = sample(VirtualProbe(parse_virtual("2x1GiB")))

    assert [(reading.used_bytes, reading.uses) for reading in readings] == [(0, ()), (0, ())]


def test_a_job_uses_the_memory_of_its_whole_tree(worker: Callable[[], Worker]) -> None:
    probe, job = VirtualProbe(parse_virtual("2x1GiB")), worker()
    job.does("take", SIZE)
    job.does("child", SIZE)

    used, other = sample(probe, job.placed(0))

    assert 2 * SIZE <= used.used_bytes <= 2 * (SIZE + SLACK)
    assert len(used.uses) == 2
    assert all(use.leases == ("L",) for use in used.uses)
    assert other.used_bytes == 0


def test_a_job_on_several_gpus_is_split_evenly(worker: Callable[[], Worker]) -> None:
    probe, job = VirtualProbe(parse_virtual("3x1GiB")), worker()
    job.does("take", SIZE)

    first, second, third = sample(probe, job.placed(0, 2))

    assert first.used_bytes == third.used_bytes
    assert SIZE // 2 <= first.used_bytes <= (SIZE + SLACK) // 2
    assert second.used_bytes == 0


def test_what_a_job_gives_back_is_free_again(worker: Callable[[], Worker]) -> None:
    probe, job = VirtualProbe(parse_virtual("1x1GiB")), worker()
    job.does("take", SIZE)
    (before,) = sample(probe, job.placed(0))
    job.does("give")

    (after,) = sample(probe, job.placed(0))

    assert after.used_bytes < before.used_bytes - SIZE // 2


def test_processes_without_a_lease_use_nothing(worker: Callable[[], Worker]) -> None:
    probe, job, stranger = VirtualProbe(parse_virtual("1x1GiB")), worker(), worker()
    stranger.does("take", SIZE)

    (reading,) = sample(probe, job.placed(0))

    assert [use.pid for use in reading.uses] == [job.holder.pid]


def test_load_is_the_cpu_time_between_two_looks(worker: Callable[[], Worker]) -> None:
    probe, job, idle = VirtualProbe(parse_virtual("2x1GiB")), worker(), worker()
    placements = [job.placed(0, lease="A"), idle.placed(1, lease="B")]
    sample(probe, *placements)
    job.does("spin", 10_000_000)

    busy, quiet = sample(probe, *placements)

    assert 0 < busy.load_pct <= 100
    assert quiet.load_pct < busy.load_pct


# --- peaks ---------------------------------------------------------------------------------


def test_a_peak_between_two_looks_is_found_at_the_end(worker: Callable[[], Worker]) -> None:
    """A job shorter than the pace of looking still gets a true profile."""
    probe, job = VirtualProbe(parse_virtual("1x1GiB")), worker()
    probe.begin(job.placed(0))
    job.does("take", SIZE)
    job.does("give")

    peak = probe.peak_at_once(job.placed(0))

    assert peak is not None
    assert SIZE <= peak <= SIZE + SLACK


def test_the_peak_on_several_gpus_is_that_of_each(worker: Callable[[], Worker]) -> None:
    probe, job = VirtualProbe(parse_virtual("2x1GiB")), worker()
    probe.begin(job.placed(0, 1))
    job.does("take", SIZE)

    peak = probe.peak_at_once(job.placed(0, 1))

    assert peak is not None
    assert SIZE // 2 <= peak <= (SIZE + SLACK) // 2


def test_a_peak_from_before_a_lease_does_not_count_for_it(worker: Callable[[], Worker]) -> None:
    probe, job = VirtualProbe(parse_virtual("1x1GiB")), worker()
    job.does("take", SIZE)
    job.does("give")
    probe.begin(job.placed(0))

    peak = probe.peak_at_once(job.placed(0))

    assert peak is not None
    assert peak < SIZE  # what it has now


def test_the_peak_of_a_process_that_is_gone_is_unknown(worker: Callable[[], Worker]) -> None:
    probe, job = VirtualProbe(parse_virtual("1x1GiB")), worker()
    probe.begin(job.placed(0))
    reused = Placement("L", Holder(job.holder.pid, job.holder.started_ticks - 1), ("VIRTUAL-0",))

    assert probe.peak_at_once(reused) is None
    probe.begin(job.placed(0))
    job.end()
    assert probe.peak_at_once(job.placed(0)) is None
    assert probe.peak_at_once(job.placed(0)) is None  # nothing was begun


def test_more_jobs_than_files_are_kept_open_are_all_measured(
    worker: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryFiles, "MAX_OPEN", 1)
    probe, jobs = VirtualProbe(parse_virtual("1x1GiB")), {"one": worker(), "other": worker()}
    before = len(os.listdir("/proc/self/fd"))
    for lease, job in jobs.items():
        probe.begin(job.placed(0, lease=lease))
        job.does("take", SIZE)

    peaks = [probe.peak_at_once(job.placed(0, lease=lease)) for lease, job in jobs.items()]

    assert all(peak is not None and SIZE <= peak <= SIZE + SLACK for peak in peaks)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    asyncio.run(probe.close())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lease_that_is_gone_without_a_word_leaves_nothing_behind(
    worker: Callable[[], Worker],
) -> None:
    probe, job = VirtualProbe(parse_virtual("1x1GiB")), worker()
    probe.begin(job.placed(0, lease="gone"))
    sample(probe, job.placed(0, lease="other"))

    assert probe.peak_at_once(job.placed(0, lease="gone")) is None
