"""Run all benchmarks, each in a process of its own, and print what they found in one table.

It informs and exits 0; with --check a missed target exits 1. One that fails leaves the others to
run, and exits 1 at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import rig

HERE = Path(__file__).resolve().parent
BENCHMARKS = {
    "round_trip": "acquire + release",
    "handover": "hand-over",
    "startup": "start",
    "footprint": "footprint: 8 GPUs, 50 leases",
    "crowd": "1,000 waiting",
    "floods": "one user floods, another asks",
    "scale": "100,000 waiting, 1,000 GPUs, 5,000 classes",
    "queued": "queue",
    "sites": "sites",
    "real_packing": "real jobs on virtual GPUs",
    "top": "grn top: 8 GPUs, 1,000 jobs",
    "page": "page",
    "tasks": "GPUTask instances",
    "stopwatch": "from the prompt, jobs that stamp themselves",
    "doors": "the older tools' commands",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("only", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    options = parser.parse_args()
    unknown = set(options.only) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    began = time.monotonic()
    print(_machine())
    figures: list[rig.Figure] = []
    failed: list[str] = []
    for name in options.only or BENCHMARKS:
        print(f"\n... {name}", file=sys.stderr, flush=True)
        try:
            found = _run(name)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name} (exit code {error.returncode})")
            continue
        print("\n" + rig.table(BENCHMARKS[name], found), flush=True)
        figures += found
    held = [figure for figure in figures if figure.most is not None]
    missed = [figure for figure in held if not figure.is_met]
    took_s = time.monotonic() - began
    print(f"\n{len(held) - len(missed)} of {len(held)} targets met in {took_s:.0f} s")
    for figure in missed:
        print(f"MISSED  {figure.what}: {figure.ratio:.2f}, at most {figure.most:g}")
    if failed:
        sys.exit(f"these benchmarks did not run to their end: {', '.join(failed)}")
    sys.exit(int(options.check and bool(missed)))


def _run(name: str) -> list[rig.Figure]:
    command = [sys.executable, str(HERE / f"{name}.py"), "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [rig.Figure(**figure) for figure in json.loads(ended.stdout)]


def _machine() -> str:
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    return f"Python {platform.python_version()}, {cores} cores, load {load:.1f} before we began"


if __name__ == "__main__":
    main()
