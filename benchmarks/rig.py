"""What all benchmarks share: a negotiator of their own, processes to use it, and one small table.

Measures nothing itself. Every benchmark is a `measure() -> list[Figure]` handed to `main`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.gpus.standin import build

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # our children would compile grn at every start
_FOREIGN = ("GRN_SOCKET", "GRN_CONFIG", "GRN_LEASE", "CUDA_VISIBLE_DEVICES")
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One result: ours, what it is held against (a floor or a target), and how far it may go."""

    what: str
    ours: float
    against: float
    unit: str
    most: float | None = 1.0  # the ratio that still meets the target; None only informs

    @property
    def ratio(self) -> float:
        return self.ours / self.against if self.against else float("inf")

    @property
    def is_met(self) -> bool:
        return self.most is None or self.ratio <= self.most


# --- statistics ----------------------------------------------------------------------------


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that so many percent do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


def interleaved(
    cases: Mapping[str, Callable[[], float]], rounds: int, per_round: int
) -> dict[str, float]:
    """Run all cases in turn, round after round, and return the median of each one's medians."""
    medians: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            case()  # the first one after another case finds cold caches
            medians[name].append(statistics.median(case() for _ in range(per_round)))
    return {name: statistics.median(found) for name, found in medians.items()}


# --- processes -----------------------------------------------------------------------------


@contextlib.contextmanager
def negotiator(
    gpus: str, settings: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a negotiator in folders of its own; this process and its children find it there."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="grn-bench-") as folder:
        for name in _FOREIGN:
            os.environ.pop(name, None)
        os.environ["GRN_STATE_DIR"] = folder
        os.environ["GRN_RUNTIME_DIR"] = os.path.join(folder, "run")  # the queue's is beside it
        os.environ["GRN_CONFIG"] = os.path.join(folder, "none.toml")
        os.environ.update(settings or {})
        process = _start(gpus, folder)
        try:
            yield process
        finally:
            os.environ.clear()
            os.environ.update(before)
            _end(process)


def _start(gpus: str, folder: str) -> subprocess.Popen[bytes]:
    reader, writer = os.pipe()
    argv = [sys.executable, "-m", "grn.negotiator", "--gpus", gpus, "--ready-fd", str(writer)]
    with open(os.path.join(folder, "log"), "wb") as log, os.fdopen(reader) as said:
        process = subprocess.Popen(argv, pass_fds=[writer], stdout=log, stderr=log)
        os.close(writer)
        line = said.readline().strip()
    if line != "ready":
        process.wait(_STOP_S)
        raise SystemExit(f"the negotiator did not start: {line}")
    return process


@contextlib.contextmanager
def stand_in(gpus: int) -> Iterator[build.StandIn | None]:
    """Make a machine with NVIDIA GPUs out of the tests' stand-in; None without a C compiler."""
    with tempfile.TemporaryDirectory(prefix="grn-bench-") as folder:
        machine = build.StandIn(Path(folder), Path(folder, "nvml"))
        try:
            build.compile_library(machine.library)
        except build.NoCompiler:
            yield None
            return
        machine.write(*stand_in_gpus(gpus))
        yield machine


def stand_in_gpus(gpus: int) -> list[str]:
    """Spell the GPUs of a stand-in machine."""
    return [build.gpu(stand_in_uuid(place)) for place in range(gpus)]


def stand_in_uuid(place: int) -> str:
    """Return how a GPU of a stand-in machine is called."""
    return f"GPU-{place:08x}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def on_cores(ours: Collection[int], theirs: Collection[int], *pids: int) -> Iterator[None]:
    """Keep this process on some cores and others on theirs, so that rounds can be compared."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, ours)
    for pid in pids:
        os.sched_setaffinity(pid, theirs)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for pid in pids:
            os.sched_setaffinity(pid, before)


# --- telling -------------------------------------------------------------------------------


def main(title: str, measure: Callable[[], list[Figure]]) -> None:
    """Be one benchmark: measure, print the table, and exit 1 for a miss if --check is given."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead")
    options = parser.parse_args()
    figures = measure()
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures]))
    else:
        print(table(title, figures))
    sys.exit(int(options.check and not all(figure.is_met for figure in figures)))


def table(title: str, figures: Sequence[Figure]) -> str:
    """Lay figures out: ours, floor or target, their ratio, and whether that is enough."""
    rows = [(title, "ours", "against", "ratio", "at most", "")]
    for figure in figures:
        most, verdict = "-", ""
        if figure.most is not None:
            most, verdict = f"{figure.most:g}", "met" if figure.is_met else "MISSED"
        ours, against = (f"{_short(size)} {figure.unit}" for size in (figure.ours, figure.against))
        rows.append((figure.what, ours, against, f"{figure.ratio:.2f}", most, verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        row[0].ljust(widths[0])
        + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:5], widths[1:5], strict=True))
        + f"  {row[5]}"
        for row in rows
    ]
    lines.insert(1, "-" * (sum(widths) + 2 * len(widths) - 2))
    return "\n".join(line.rstrip() for line in lines)


def _short(value: float) -> str:
    """Spell a number with three digits that count."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
