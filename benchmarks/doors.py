"""The older tools' commands: many short ones against xargs, the gap between two, start-up, streams.

Rounds of both sides are interleaved, so that both see the same machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rig

SLOTS = 4
COMMANDS = 1000
ROUNDS = 7
GAPS = 200
STARTS = 30
LINES_READ = 500_000
SCHEDULER = str(Path(sys.executable).with_name("simple_gpu_scheduler"))
SEARCH = str(Path(sys.executable).with_name("simple_hypersearch"))
STAMPS = "date +%s%N >> stamps; date +%s%N >> stamps"
TEN_MILLION = [
    *("{x} {y} {z}", "--sampling-mode", "grid"),
    *("-p", "x", *map(str, range(100))),
    *("-p", "y", *map(str, range(100))),
    *("-p", "z", *map(str, range(1000))),
]
TWO = ["{x}", "--sampling-mode", "grid", "-p", "x", "1", "2"]


def measure() -> list[rig.Figure]:
    """Measure both tools where no negotiator is."""
    with tempfile.TemporaryDirectory(prefix="grn-bench-") as folder:
        os.environ["GRN_RUNTIME_DIR"] = os.environ["GRN_STATE_DIR"] = folder
        return [_throughput(), *_gaps(folder), *_startups(), *_streams()]


def _throughput() -> rig.Figure:
    """1,000 x `true` on 4 slots, all of it: from the start of the tool to its end."""
    lines = "true\n" * COMMANDS
    slots = [str(slot) for slot in range(SLOTS)]
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(_took([*_xargs(SLOTS)], lines))
        ours.append(_took([SCHEDULER, "--gpus", *slots], lines))
    what = f"{COMMANDS} x true on {SLOTS} slots, against xargs -P{SLOTS} sh -c"
    return rig.Figure(what, statistics.median(ours), statistics.median(theirs), "s", 1.2)


def _gaps(folder: str) -> list[rig.Figure]:
    """From the last a command does to the first the next one does, on one slot."""
    ours, theirs = [], []
    for _ in range(3):
        theirs.append(_gap_ms(_xargs(1), folder))
        ours.append(_gap_ms([SCHEDULER, "--gpus", "0"], folder))
    mine, peer = statistics.median(ours), statistics.median(theirs)
    return [
        rig.Figure("end of a command to start of the next, median", mine, 2.5, "ms"),
        # The target is 2.5 ms where xargs takes 1.5; elsewhere the same ratio.
        rig.Figure("the same, against xargs", mine, peer, "ms", 2.5 / 1.5),
    ]


def _gap_ms(command: list[str], folder: str) -> float:
    stamps = Path(folder, "stamps")
    stamps.write_text("")
    _took(command, f"{STAMPS}\n" * GAPS, folder)
    times = [int(line) for line in stamps.read_text().split()]
    gaps = [begun - ended for ended, begun in zip(times[1::2], times[2::2], strict=False)]
    return statistics.median(gaps) / 1e6


def _startups() -> list[rig.Figure]:
    """The whole of a run with nothing, or next to nothing, to do."""
    cases = {
        "bare": ([sys.executable, "-c", "pass"], ""),
        "scheduler": ([SCHEDULER, "--gpus", "0"], ""),
        "scheduler with one command": ([SCHEDULER, "--gpus", "0"], "true\n"),
        "hypersearch": ([SEARCH, *TWO], ""),
    }
    for command, given in cases.values():
        _took(command, given)  # compiles what is not compiled yet
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(STARTS):
        for name, (command, given) in cases.items():
            found[name].append(_took(command, given) * 1000)
    medians = {name: statistics.median(times) for name, times in found.items()}
    bare = medians.pop("bare")
    return [
        rig.Figure(f"start-up: {name}, against bare Python", took, bare, "ms", 3.0)
        for name, took in medians.items()
    ]


def _streams() -> list[rig.Figure]:
    """Ten million combinations, in grid order, against two."""
    few = [_first_line(TWO) for _ in range(9)]
    many = [_first_line(TEN_MILLION) for _ in range(9)]
    first_few, first_many = (statistics.median(one[0] for one in some) for some in (few, many))
    peak_few, peak_many = _first_line(TWO, LINES_READ)[1], _first_line(TEN_MILLION, LINES_READ)[1]
    return [
        rig.Figure("first of 10 million combinations, against of 2", first_many, first_few, "ms",
                   1.5),
        rig.Figure("peak memory with 10 million, against 2", peak_many, peak_few, "MB", 1.2),
    ]  # fmt: skip


def _first_line(arguments: list[str], lines: int = 1) -> tuple[float, float]:
    """Return when the first line came, in ms, and the peak memory after so many, in MB."""
    began = time.perf_counter()
    process = subprocess.Popen([SEARCH, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    took = (time.perf_counter() - began) * 1000
    for _ in range(lines - 1):
        if not process.stdout.readline():
            break
    process.stdout.close()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return took, usage.ru_maxrss / 1000


# --- small tools ---------------------------------------------------------------------------


def _xargs(slots: int) -> list[str]:
    return ["xargs", f"-P{slots}", "-I{}", "sh", "-c", "{}"]


def _took(command: list[str], given: str, folder: str | None = None) -> float:
    began = time.perf_counter()
    subprocess.run(
        command, input=given, text=True, check=True, stdout=subprocess.DEVNULL, cwd=folder
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    rig.main("doors", measure)
