"""The load of the machine beside its GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grn.proc import host
from grn.proc.host import CpuTicks

MEMINFO = "MemTotal:  8388608 kB\nMemFree:  1 kB\nMemAvailable:  2097152 kB\nHugePages_Total: 0\n"


def test_load_is_busy_time_between_two_readings(tmp_path: Path) -> None:
    stat, meminfo = tmp_path / "stat", tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    stat.write_text("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 1 1 1 1 1 1 1\n")
    before = host.cpu_ticks(str(stat))
    stat.write_text("cpu  30 0 20 130 20 0 0 0 9 0\n")

    use = host.use(before, host.cpu_ticks(str(stat)), str(meminfo))

    assert before == CpuTicks(20, 100)
    assert use.cpu_pct == 30.0
    assert (use.used_bytes, use.total_bytes) == (6 << 30, 8 << 30)


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")

    use = host.use(None, host.cpu_ticks(missing), missing)

    assert (use.cpu_pct, use.used_bytes, use.total_bytes) == (None, None, None)


def test_this_machine_has_memory_in_use() -> None:
    use = host.use(None, host.cpu_ticks())

    assert use.used_bytes is not None
    assert use.total_bytes is not None
    assert 0 < use.used_bytes < use.total_bytes


def test_kills_of_the_kernel_are_those_of_the_machine_and_in_a_container_its_own(
    tmp_path: Path,
) -> None:
    vmstat, missing = tmp_path / "vmstat", str(tmp_path / "missing")
    vmstat.write_text("oom_kill_of_another_kind 9\noom_kill 3\n")

    assert host.oom_kills(str(vmstat), str(tmp_path)) == 3
    assert host.oom_kills(missing, str(tmp_path)) is None
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert host.oom_kills(str(vmstat), str(tmp_path)) == 0


def test_memory_is_the_proportional_size_and_without_it_what_is_not_shared(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    assert host.proportional_bytes(7, str(tmp_path)) is None  # it is gone
    (folder / "statm").write_text("900 500 200 1 0 300 0\n")
    assert host.proportional_bytes(7, str(tmp_path)) == 300 * os.sysconf("SC_PAGE_SIZE")
    (folder / "smaps_rollup").write_text("a-b ---p 00 [rollup]\nRss: 9 kB\nPss:  4 kB\n")
    assert host.proportional_bytes(7, str(tmp_path)) == 4 << 10
    (folder / "smaps_rollup").write_text("")  # of another user, or a kernel that hides it
    assert host.proportional_bytes(7, str(tmp_path)) == 300 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"memory.max": "max", "memory.current": "5"}, None),
        (
            {"memory.max": "100", "memory.current": "50", "memory.stat": "inactive_file 20\n"},
            (100, 30),
        ),
        (  # version 1
            {"memory/memory.limit_in_bytes": "100", "memory/memory.usage_in_bytes": "50",
             "memory/memory.stat": "cache 9\ntotal_inactive_file 10\n"},
            (100, 40),
        ),
        (  # version 1 without a limit
            {"memory/memory.limit_in_bytes": str(1 << 63), "memory/memory.usage_in_bytes": "50"},
            None,
        ),
    ],
)  # fmt: skip
def test_the_limit_of_a_container_is_read_in_both_versions(
    tmp_path: Path, files: dict[str, str], limit: tuple[int, int] | None
) -> None:
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = host.container_limit(str(tmp_path))

    assert (found and (found.total_bytes, found.used_bytes)) == limit
