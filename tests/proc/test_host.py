"""The load of the machine beside its GPUs."""

from __future__ import annotations

from pathlib import Path

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
