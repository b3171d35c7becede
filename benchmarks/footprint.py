"""What the negotiator itself takes: CPU time and memory with 8 GPUs and 50 leases held.

Each lease is held by a real sleeping process. Measured on virtual GPUs, and where there is a C
compiler also through NVML, with the tests' stand-in for the driver and the helper process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import rig
from rig import build

import grn

GPUS, LEASES = 8, 50
WATCHED_S, SETTLE_S = 20.0, 2.0
TARGET_PCT, TARGET_MB = 1.0, 60.0


def measure() -> list[rig.Figure]:
    """Watch a negotiator of each kind at the usual pace of two looks a second."""
    with rig.negotiator(f"virtual:{GPUS}x8GiB") as process, _holders():
        figures = _watch("virtual", [process.pid])
    with rig.stand_in(GPUS) as machine:
        if machine is None:
            return figures
        with rig.negotiator("nvml", machine.env()) as process, _holders() as pids:
            # Sticky: the stand-in need not look whether they live, as no driver would.
            uses = [
                build.process(rig.stand_in_uuid(place % GPUS), pid, 128 << 20, is_sticky=True)
                for place, pid in enumerate(pids)
            ]
            machine.write(*rig.stand_in_gpus(GPUS), *uses)
            figures += _watch("stand-in NVML", [process.pid, *_children(process.pid)])
    return figures


def _watch(where: str, pids: Sequence[int]) -> list[rig.Figure]:
    time.sleep(SETTLE_S)
    began, before = time.monotonic(), [_cpu_s(pid) for pid in pids]
    time.sleep(WATCHED_S)
    share = 100 / (time.monotonic() - began)
    pcts = [share * (_cpu_s(pid) - spent) for pid, spent in zip(pids, before, strict=True)]
    figures = [
        rig.Figure(f"{where}: CPU, % of a core", pcts[0], TARGET_PCT, "%"),
        rig.Figure(f"{where}: resident memory", _resident_mb(pids[0]), TARGET_MB, "MB"),
    ]
    for pid, pct in zip(pids[1:], pcts[1:], strict=True):
        figures += [
            rig.Figure(f"{where}, helper too: CPU", pcts[0] + pct, TARGET_PCT, "%"),
            rig.Figure(
                f"{where}, helper too: memory",
                _resident_mb(pids[0]) + _resident_mb(pid),
                TARGET_MB,
                "MB",
            ),
        ]
    return figures


@contextlib.contextmanager
def _holders() -> Iterator[list[int]]:
    """Hold 50 leases in as many processes."""
    pids: list[int] = []
    listening, speaking = os.pipe()
    try:
        for _ in range(LEASES):
            pids.append(os.fork())
            if not pids[-1]:
                _hold(speaking)
        for _ in pids:
            os.read(listening, 1)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(listening)
        os.close(speaking)


def _hold(speaking: int) -> None:
    try:
        with grn.lease(mem="256MiB", type="benchmark::footprint"):
            os.write(speaking, b"x")
            signal.pause()
    finally:
        os._exit(1)


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


if __name__ == "__main__":
    rig.main("footprint: 8 GPUs, 50 leases", measure)
