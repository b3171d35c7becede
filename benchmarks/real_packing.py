"""One batch of real, memory-hungry processes on virtual GPUs: one job per GPU, then shared.

Nobody says what the jobs need. Every job fills real memory; one that overflows its virtual GPU is
killed, and counts as failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rig

GPUS = "virtual:2x400MiB"
TARGET = 0.75
LIMIT_S = 600.0
SETTINGS = {"GRN_SAMPLE_S": "0.1"}

# Grows in steps as a training does, then works a little and waits a lot, as one that feeds a GPU.
HUNGRY = """
import sys, time
size, seconds = int(sys.argv[sys.argv.index("--mib") + 1]) << 20, float(sys.argv[-1])
held = []
for _ in range(8):
    held.append(b"\\xff" * (size // 8))
    time.sleep(0.05)
until = time.monotonic() + seconds - 0.4
while time.monotonic() < until:
    busy = time.monotonic() + 0.005
    while time.monotonic() < busy:
        pass
    time.sleep(0.095)
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs alike: a script, its memory and its time."""

    script: str
    mib: int
    seconds: float
    count: int


KINDS = (
    Kind("embed.py", 30, 4.0, 12),
    Kind("finetune.py", 80, 5.0, 8),
    Kind("pretrain.py", 220, 6.0, 4),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What came of one round."""

    took_s: float
    failed: int
    mean_s: float


def measure() -> list[rig.Figure]:
    """Run the batch both ways."""
    alone = run_batch(["--exclusive"])
    shared = run_batch([])
    jobs = sum(kind.count for kind in KINDS)
    print(f"{jobs} jobs on {GPUS}: alone {alone}, shared {shared}", file=sys.stderr)
    return [
        rig.Figure("whole batch: shared, one per GPU", shared.took_s, alone.took_s, "s", TARGET),
        rig.Figure("mean completion", shared.mean_s, alone.mean_s, "s", TARGET),
        rig.Figure("failed, shared (at most 0)", shared.failed, 1, "jobs", 0.0),
        rig.Figure("failed, one job per GPU", alone.failed, 1, "jobs", None),
    ]  # fmt: skip


def run_batch(flags: Sequence[str]) -> Batch:
    """Start all jobs at once and wait for the last."""
    with (
        tempfile.TemporaryDirectory(prefix="grn-hungry-") as folder,
        rig.negotiator(GPUS, SETTINGS),
    ):
        for kind in KINDS:
            Path(folder, kind.script).write_text(HUNGRY)
        began = time.monotonic()
        running = [
            subprocess.Popen(_argv(kind, folder, flags), cwd=folder, stdout=subprocess.DEVNULL)
            for kind in _mixed()
        ]
        try:
            ends = _ends(running, began)
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        failed = sum(process.returncode != 0 for process in running)
        if min(ends) < min(kind.seconds for kind in KINDS):
            raise SystemExit("a job ended before it can have run: see the messages above")
    return Batch(max(ends), failed, sum(ends) / len(ends))


def _mixed() -> list[Kind]:
    """Return the jobs of all kinds, dealt out like cards."""
    left = {kind: kind.count for kind in KINDS}
    dealt: list[Kind] = []
    while any(left.values()):
        for kind in KINDS:
            if left[kind]:
                left[kind] -= 1
                dealt.append(kind)
    return dealt


def _argv(kind: Kind, folder: str, flags: Sequence[str]) -> list[str]:
    job = [sys.executable, os.path.join(folder, kind.script), "--mib", str(kind.mib)]
    grn = [sys.executable, "-c", "from grn.cli.main import main; main()", "exec", *flags]
    return [*grn, "--", *job, "--seconds", str(kind.seconds)]


def _ends(running: Sequence[subprocess.Popen[bytes]], began: float) -> list[float]:
    ends: dict[int, float] = {}
    while len(ends) < len(running):
        for place, process in enumerate(running):
            if place not in ends and process.poll() is not None:
                ends[place] = time.monotonic() - began
        if time.monotonic() - began > LIMIT_S:
            raise SystemExit("the batch took too long")
        time.sleep(0.01)
    return list(ends.values())


if __name__ == "__main__":
    rig.main("real jobs on virtual GPUs", measure)
