"""What `import grn` adds to the start of Python, and what the first decorated call adds to that.

Starts are interleaved with bare ones, so that both see the same machine; all files are compiled
and in the page cache.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import rig

STARTS = 60
CALLS = 15
TARGET_MS = 10.0

BARE = "pass"
IMPORTED = "import grn"
DECORATED = "import grn\n@grn.job(mem='1GiB')\ndef train(): pass"
FIRST_CALL = f"""
import time
{DECORATED}
began = time.perf_counter()
train()
first = time.perf_counter()
train()
print(first - began, time.perf_counter() - first)
"""


def measure() -> list[rig.Figure]:
    """Time many whole starts of each kind."""
    codes = {"bare": BARE, "imported": IMPORTED, "decorated": DECORATED}
    for code in codes.values():
        _start_s(code)
    took: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(STARTS):
        for name, code in codes.items():
            took[name].append(_start_s(code) * 1000)
    medians = {name: statistics.median(times) for name, times in took.items()}
    imported, decorated = (medians[name] - medians["bare"] for name in ("imported", "decorated"))
    with rig.negotiator("virtual:8x8GiB"):
        calls = [_calls_ms() for _ in range(CALLS)]
    first, second = (statistics.median(times) for times in zip(*calls, strict=True))
    return [
        rig.Figure("import grn, over bare Python", imported, TARGET_MS, "ms"),
        rig.Figure("import grn and decorate", decorated, TARGET_MS, "ms"),
        rig.Figure("first decorated call, against the second", first, second, "ms", None),
        rig.Figure("bare Python", medians["bare"], medians["bare"], "ms", None),
    ]


def _start_s(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def _calls_ms() -> tuple[float, ...]:
    """Return the time of the first call in a fresh process, and of the second."""
    said = subprocess.check_output([sys.executable, "-c", FIRST_CALL], text=True)
    return tuple(float(word) * 1000 for word in said.split())


if __name__ == "__main__":
    rig.main("start", measure)
