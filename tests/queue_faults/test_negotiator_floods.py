"""One user floods the negotiator: its memory and its file stay bounded, and others are served.

The short form asserts counts and sizes. The long form floods as far as the limits of a user allow
and prints, beside these, how long questions of somebody else take meanwhile and on an idle machine.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from grn import wire
from grn.client import negotiator
from grn.client.negotiator import ask_once
from grn.daemon.connection import MAX_KEPT_BYTES_PER_USER
from grn.negotiator.learn.memory.quota import MAX_BYTES_PER_USER, MAX_TYPES_PER_USER
from grn.negotiator.queries.pages import PAGE_ROWS
from grn.negotiator.subscribers import PART_ROWS
from tests.negotiator import floods
from tests.queue_faults.rig import Daemon, Rig

MAX_RSS_KIB = 150 << 10
IDLE_S = 2.0
# Be the negotiator without the bound on what is kept for connections.
UNBOUNDED = """
import sys
from grn.daemon.turns import BufferBudget
from grn.negotiator.__main__ import main
BufferBudget.is_over = lambda self, uid, of_connection: False
sys.exit(main())
"""

Tell = Callable[[Any], None]


@dataclass
class Figures:
    """What a flood came to."""

    said: Any  # by the process that floods
    rss_kib: int
    file_bytes: int


def flooded(rig: Rig, flood: Callable[[], object], name: str, seed: int) -> Figures:
    """Flood a negotiator, and see what it has become."""
    daemon = rig.negotiator
    assert daemon is not None
    with floods.asker() as idle:
        time.sleep(IDLE_S if os.environ.get("GRN_SOAK") else 0.0)
        at_rest = idle()
    began = time.monotonic()
    with floods.asker() as beside:
        said = floods.told(lambda tell: tell(flood()))
        took = beside()
    assert daemon.is_running
    stored = sum(path.stat().st_size for path in rig.state.glob("negotiator.sqlite3*"))
    figures = Figures(said, floods.memory_kib(daemon.pid), stored)
    print(
        f"seed {seed}: {name}: {time.monotonic() - began:.0f} s,"
        f" {figures.rss_kib / 1024:.0f} MiB resident at most, file {stored / (1 << 20):.1f} MiB,"
        f" {len(took)} other questions, p99 {floods.p99(took) * 1000:.1f} ms,"
        f" idle {floods.p99(at_rest) * 1000:.1f} ms, load {os.getloadavg()[0]:.1f}"
    )
    return figures


def check_unfinished(rig: Rig, seed: int, count: int) -> None:
    rig.start_negotiator(GRN_GPUS=floods.GPUS)
    figures = flooded(
        rig, lambda: floods.unfinished_frames(count), f"{count} unfinished frames", seed
    )
    assert figures.said <= MAX_KEPT_BYTES_PER_USER // wire.MAX_REQUEST_BYTES + 1
    assert figures.rss_kib < MAX_RSS_KIB


def check_waiting(
    rig: Rig, seed: int, count: int, rounds: int, names: Callable[[int], dict[str, Any]]
) -> None:
    rig.start_negotiator(GRN_GPUS=floods.GPUS)

    def ask_on_and_on() -> tuple[int, int]:
        with floods.many_waiting(count, names):
            largest = floods.ask_in_a_loop(floods.LISTINGS, rounds)
            return largest, len(negotiator.status()["waiting"])

    name = f"{count} waiting ({names.__name__}), {rounds} listings"
    figures = flooded(rig, ask_on_and_on, name, seed)
    assert figures.said == [min(PAGE_ROWS, count), count]
    assert figures.rss_kib < MAX_RSS_KIB


def check_followers(rig: Rig, seed: int, count: int, joins: int) -> None:
    rig.start_negotiator(GRN_GPUS=floods.GPUS)

    def join() -> int:
        with floods.many_waiting(count, floods.long_names):
            return floods.joining_followers(joins)

    figures = flooded(rig, join, f"{joins} followers join, {count} waiting", seed)
    assert 0 < figures.said <= PART_ROWS
    assert figures.rss_kib < MAX_RSS_KIB


def check_garbage(rig: Rig, seed: int, count: int) -> None:
    rig.start_negotiator(GRN_GPUS=floods.GPUS)
    chance = random.Random(seed)
    name = f"{count} garbage frames"
    figures = flooded(rig, lambda: floods.garbage_frames(count, chance), name, seed)
    assert figures.rss_kib < MAX_RSS_KIB


def check_types(rig: Rig, seed: int, count: int) -> None:
    daemon = rig.start_negotiator(GRN_GPUS=floods.GPUS)
    figures = flooded(rig, lambda: floods.new_types(count), f"{count} new types", seed)
    known = len(negotiator.ask_all({"op": "profiles"})["profiles"])
    dropped = ask_once({"op": "status"})["status"]["types_dropped"]
    assert known <= MAX_TYPES_PER_USER + 1
    assert known + dropped == count + 1  # and the type of who asks meanwhile
    assert figures.file_bytes < 2 * MAX_BYTES_PER_USER
    assert figures.rss_kib < MAX_RSS_KIB
    assert daemon.stop() == 0
    log = (rig.story.folder / "negotiator.log").read_text()
    assert log.count("action=drop-types") == (1 if dropped else 0)


def test_unfinished_frames_are_kept_up_to_a_bound(rig: Rig, seed: int) -> None:
    check_unfinished(rig, seed, 200)


def test_the_check_finds_out_a_negotiator_that_keeps_them_all(rig: Rig, seed: int) -> None:
    argv = [sys.executable, "-c", UNBOUNDED]
    rig.negotiator = Daemon(
        argv, rig.story.environment(GRN_GPUS=floods.GPUS), rig.story.folder / "negotiator.log"
    )
    assert rig.negotiator.line() == "ready"
    figures = flooded(rig, lambda: floods.unfinished_frames(200), "without a bound", seed)
    assert figures.rss_kib > MAX_RSS_KIB


def test_listings_of_many_who_wait_come_in_pages(rig: Rig, seed: int) -> None:
    check_waiting(rig, seed, 500, 100, floods.long_names)


def test_a_follower_is_told_of_many_in_parts(rig: Rig, seed: int) -> None:
    check_followers(rig, seed, 300, 5)


def test_garbage_leaves_nothing_behind(rig: Rig, seed: int) -> None:
    check_garbage(rig, seed, 2000)


def test_new_types_are_kept_up_to_a_bound(rig: Rig, seed: int) -> None:
    check_types(rig, seed, MAX_TYPES_PER_USER + 200)


LARGEST: dict[str, Callable[[Rig, int], None]] = {
    "frames": lambda rig, seed: check_unfinished(rig, seed, 4096),
    "few-types": lambda rig, seed: check_waiting(rig, seed, 10_000, 500, floods.few_types),
    "long-names": lambda rig, seed: check_waiting(rig, seed, 10_000, 500, floods.long_names),
    "followers": lambda rig, seed: check_followers(rig, seed, 10_000, 200),
    "garbage": lambda rig, seed: check_garbage(rig, seed, 200_000),
    "types": lambda rig, seed: check_types(rig, seed, 10_000),
}


@pytest.mark.soak
@pytest.mark.parametrize("flood", LARGEST)
def test_floods_as_large_as_a_user_may_make_them(rig: Rig, seed: int, flood: str) -> None:
    LARGEST[flood](rig, seed)
