"""One user floods the negotiator: its memory and its file stay bounded, and others are served.

The short form asserts counts and sizes. The long form floods as far as the limits of a user allow
and prints, beside these, how long a question of somebody else takes meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from grn import paths, wire
from grn.client import pages
from grn.client.connection import ask_once
from grn.daemon.connection import MAX_KEPT_BYTES_PER_USER
from grn.negotiator.learn.quota import MAX_BYTES_PER_USER, MAX_TYPES_PER_USER
from grn.negotiator.pages import PAGE_ROWS
from tests.harness import wait_for
from tests.negotiator.live import Client, a_wish, frame
from tests.queue_faults.rig import Daemon, Rig

MAX_RSS_KIB = 150 << 10
WAITING_PER_CONNECTION = 1000
AT_ONCE = 100
TYPES = 50  # of those who wait
# Be the negotiator without the bound on what is kept for connections.
UNBOUNDED = """
import sys
from grn.daemon import connection as talk
from grn.negotiator.__main__ import main
talk.Kept.is_over = lambda self, uid, of_connection: False
sys.exit(main())
"""


@dataclass
class Figures:
    """What a flood came to."""

    rss_kib: int
    file_bytes: int
    p99_s: float


@contextlib.contextmanager
def beside() -> Iterator[list[float]]:
    """Let somebody ask for the whole length of a flood; give how long each answer took."""
    took: list[float] = []
    is_over = threading.Event()

    def ask() -> None:
        with Client(paths.own_socket()) as client:
            while not is_over.wait(0.002):
                began = time.perf_counter()
                assert client.is_served()
                took.append(time.perf_counter() - began)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield took
    finally:
        is_over.set()
        asker.join()


def flooded(rig: Rig, flood: Callable[[], object], name: str, seed: int) -> Figures:
    """Flood a negotiator, and see what it has become."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    daemon = rig.negotiator
    assert daemon is not None
    with beside() as took:
        flood()
        wait_for(lambda: len(took) > 100, "enough questions")
    assert daemon.is_running
    stored = sum(path.stat().st_size for path in rig.state.glob("negotiator.sqlite3*"))
    figures = Figures(memory_kib(daemon.pid), stored, sorted(took)[len(took) * 99 // 100])
    print(
        f"seed {seed}: {name}: {figures.rss_kib / 1024:.0f} MiB resident at most, file"
        f" {figures.file_bytes / (1 << 20):.1f} MiB, {len(took)} other questions,"
        f" p99 {figures.p99_s * 1000:.1f} ms"
    )
    return figures


def memory_kib(pid: int) -> int:
    """Return the most memory a process has ever had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("a process without memory")


# --- floods --------------------------------------------------------------------------------


def unfinished_frames(count: int) -> int:
    """Send nearly all of a large frame on each of many connections; return how many are kept."""
    almost = wire.HEADER.pack(wire.MAX_REQUEST_BYTES) + b"{" * (wire.MAX_REQUEST_BYTES - 1)
    kept = []
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(paths.own_socket())
            sock.settimeout(5.0)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(almost)
                kept.append(sock)
        return sum(_is_open(sock) for sock in kept)


def _is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        sock.recv(1)
    except BlockingIOError:
        return True
    except ConnectionResetError:
        pass
    return False


def garbage_frames(count: int, chance: random.Random) -> None:
    """Send frames of random bytes; read the complaints."""
    with Client(paths.own_socket()) as client:
        for _ in range(count // AT_ONCE):
            client.raw(b"".join(frame(chance.randbytes(60)) for _ in range(AT_ONCE)))
            for _ in range(AT_ONCE):
                assert client.hear() is not None


@contextlib.contextmanager
def many_waiting(count: int) -> Iterator[None]:
    """Let so many requests of long types wait for whole GPUs."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(Client(paths.own_socket()))
        holder.lease(gpus=4, type="holder")
        for begin in range(0, count, WAITING_PER_CONNECTION):
            client = stack.enter_context(Client(paths.own_socket()))
            for number in range(begin, min(count, begin + WAITING_PER_CONNECTION), AT_ONCE):
                wishes = [
                    a_wish(id=one, exclusive=True, type=f"{one % TYPES:04}" + "t" * 1020)
                    for one in range(number, number + AT_ONCE)
                ]
                client.say(*wishes)
                for _ in wishes:
                    assert client.hear() is not None
        yield


def long_names(number: int) -> dict[str, object]:
    """Return a type, a label and arguments that are as long as they may be."""
    arguments = {f"{one:02}{number:08}" + "a" * 54: "v" * 64 for one in range(32)}
    name = f"{number:08}"
    return {"type": name + "t" * 1016, "label": name + "l" * 248, "args": arguments}


def new_types(count: int) -> None:
    """Take leases of ever new types, many at once."""
    with Client(paths.own_socket()) as client:
        for begin in range(0, count, AT_ONCE):
            ids = range(begin, begin + AT_ONCE)
            client.say(*(a_wish(id=one, **long_names(one)) for one in ids))
            leases = set[str]()
            while len(leases) < AT_ONCE:
                answer = client.hear()
                assert answer is not None
                if answer.get("ev") == "granted":
                    leases.add(answer["lease"])
            ends = [{"op": "done", "id": 1, "lease": one, "outcome": "ok", "resident": 1 << 20}
                    for one in leases]  # fmt: skip
            client.say(*ends)
            for _ in ends:
                assert client.hear() is not None


# --- what must hold ------------------------------------------------------------------------


def check_unfinished(rig: Rig, seed: int, count: int) -> None:
    rig.start_negotiator()
    kept: list[int] = []
    figures = flooded(
        rig, lambda: kept.append(unfinished_frames(count)), f"{count} unfinished frames", seed
    )
    assert kept[0] <= MAX_KEPT_BYTES_PER_USER // wire.MAX_REQUEST_BYTES + 1
    assert figures.rss_kib < MAX_RSS_KIB


def check_waiting(rig: Rig, seed: int, count: int, rounds: int) -> None:
    rig.start_negotiator()
    sizes: list[int] = []

    def ask_on_and_on() -> None:
        with many_waiting(count):
            for _ in range(rounds):
                answer = ask_once({"op": "status"})
                sizes.append(len(answer["status"]["waiting"]))
            assert len(pages.status()["waiting"]) == count

    figures = flooded(rig, ask_on_and_on, f"{count} waiting, {rounds} times status", seed)
    assert max(sizes) == min(PAGE_ROWS, count)
    assert figures.rss_kib < MAX_RSS_KIB


def check_garbage(rig: Rig, seed: int, count: int) -> None:
    rig.start_negotiator()
    chance = random.Random(seed)
    figures = flooded(rig, lambda: garbage_frames(count, chance), f"{count} garbage frames", seed)
    assert figures.rss_kib < MAX_RSS_KIB


def check_types(rig: Rig, seed: int, count: int) -> None:
    daemon = rig.start_negotiator()
    figures = flooded(rig, lambda: new_types(count), f"{count} new types", seed)
    known = len(pages.ask_all({"op": "profiles"})["profiles"])
    dropped = ask_once({"op": "status"})["status"]["types_dropped"]
    assert known <= MAX_TYPES_PER_USER
    assert known + dropped == count
    assert figures.file_bytes < 2 * MAX_BYTES_PER_USER
    assert figures.rss_kib < MAX_RSS_KIB
    assert daemon.stop() == 0
    log = (rig.story.folder / "negotiator.log").read_text()
    assert log.count("action=drop-types") == (1 if dropped else 0)


def test_unfinished_frames_are_kept_up_to_a_bound(rig: Rig, seed: int) -> None:
    check_unfinished(rig, seed, 200)


def test_the_check_finds_out_a_negotiator_that_keeps_them_all(rig: Rig, seed: int) -> None:
    argv = [sys.executable, "-c", UNBOUNDED]
    rig.negotiator = Daemon(argv, rig.story.environment(), rig.story.folder / "negotiator.log")
    assert rig.negotiator.line() == "ready"
    figures = flooded(rig, lambda: unfinished_frames(200), "without a bound", seed)
    assert figures.rss_kib > MAX_RSS_KIB


def test_status_of_many_who_wait_comes_in_pages(rig: Rig, seed: int) -> None:
    check_waiting(rig, seed, 500, 20)


def test_garbage_leaves_nothing_behind(rig: Rig, seed: int) -> None:
    check_garbage(rig, seed, 2000)


def test_new_types_are_kept_up_to_a_bound(rig: Rig, seed: int) -> None:
    check_types(rig, seed, MAX_TYPES_PER_USER + 200)


@pytest.mark.slow
@pytest.mark.parametrize("flood", ["frames", "waiting", "garbage", "types"])
def test_floods_as_large_as_a_user_may_make_them(rig: Rig, seed: int, flood: str) -> None:
    if flood == "frames":
        check_unfinished(rig, seed, min(4096, os.sysconf("SC_OPEN_MAX") - 100))
    elif flood == "waiting":
        check_waiting(rig, seed, 10_000, 1000)
    elif flood == "garbage":
        check_garbage(rig, seed, 1_000_000)
    else:
        check_types(rig, seed, 20_000)
