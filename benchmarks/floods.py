"""How long another user waits for a ping and a lease while one user floods the negotiator.

Each flood is as large as the limits of one user allow, and has an idle negotiator beside it in the
same run: the ratio is what the flood costs others. Run as root, so that it is another user's.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

import rig

from tests.negotiator import floods

TARGET_MS = 50.0
TARGET_MIB = 150.0
IDLE_S = 5.0
WAITING = 10_000
SEED = 7


def _listings() -> None:
    with floods.many_waiting(WAITING, floods.few_types):
        floods.ask_in_a_loop(floods.LISTINGS, 500)


def _followers() -> None:
    with floods.many_waiting(WAITING, floods.few_types):
        floods.joining_followers(100)


FLOODS: dict[str, Callable[[], object]] = {
    "4,096 unfinished frames": lambda: floods.unfinished_frames(4096),
    "10,000 of 50 types wait, listings": _listings,
    "10,000 of 50 types wait, followers join": _followers,
    "100,000 garbage frames": lambda: floods.garbage_frames(100_000, random.Random(SEED)),
    "4,000 new types": lambda: floods.new_types(4000),
}


def measure() -> list[rig.Figure]:
    """Flood one negotiator after the other."""
    figures = []
    for name, flood in FLOODS.items():
        with rig.negotiator(floods.GPUS) as process:
            with floods.asker() as asked:
                time.sleep(IDLE_S)
                idle_ms = floods.p99(asked()) * 1000
            with contextlib.ExitStack() as stack:
                asked = stack.enter_context(floods.asker())
                floods.told(lambda tell, flood=flood: tell(flood() is None))
                flooded_ms = floods.p99(asked()) * 1000
            size_mib = floods.memory_kib(process.pid) / 1024
        figures += [
            rig.Figure(f"{name}: p99", flooded_ms, TARGET_MS, "ms"),
            rig.Figure(f"{name}: p99 over idle", flooded_ms, idle_ms, "ms", None),
            rig.Figure(f"{name}: memory", size_mib, TARGET_MIB, "MiB"),
        ]
    return figures


if __name__ == "__main__":
    rig.main("floods", measure)
