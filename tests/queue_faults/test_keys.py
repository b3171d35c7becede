"""G4: a submit that is sent again with its key is one job with one id, wherever it was cut off."""

from __future__ import annotations

import random
import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import grn
from grn import paths, wire
from tests.harness import wait_for
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.rig import PATIENCE_S, Rig, pause

KEYS = 40
SENDS = 50  # of each key


def test_two_thousand_sends_of_forty_keys_make_forty_jobs(rig: Rig, seed: int) -> None:
    sends, told, jobs = _campaign(rig, seed)

    print(f"seed {seed}: {sends} sends, {sum(map(len, told.values()))} answers")
    assert jobs == KEYS
    assert all(len(set(ids)) == 1 for ids in told.values())
    assert len({ids[0] for ids in told.values()}) == KEYS


def test_the_campaign_finds_out_a_queue_that_forgets_keys(rigs: Rigs, seed: int) -> None:
    _, told, jobs = _campaign(rigs("forget-keys"), seed, sends=4)

    assert jobs > KEYS
    assert any(len(set(ids)) > 1 for ids in told.values())


def test_a_known_key_is_answered_even_if_it_could_not_be_accepted_any_more(
    rig: Rig,
) -> None:
    """The first answer may have been lost: `not accepted` would make the user submit it twice."""
    rig.start()
    before = rig.submit(["true"])
    rig.ended(before)
    request = rig.request([["true"]], after=[[before, True]])
    first = rig.ask("submit", **request)["first"]
    rig.ended(first)
    rig.ask("clean")

    assert rig.ask("submit", **request)["first"] == first


def test_a_client_whose_queue_dies_before_the_answer_asks_the_next_one(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs("die-unanswered")
    for name, value in rig.story.environment().items():
        monkeypatch.setenv(name, value)
    rig.start()
    handle = grn.submit(["true"], mem="8MiB")  # starts the next queue itself: a sound one

    assert handle.result() == 0
    assert list(rig.rows()) == [handle.id]


def _campaign(rig: Rig, seed: int, sends: int = SENDS) -> tuple[int, dict[str, list[int]], int]:
    """Send each key many times, cutting the line here and there and killing the queue twice."""
    chance = random.Random(seed)
    requests = {
        key: rig.request([["true"]], key=key, held=True)
        for key in (f"{chance.getrandbits(96):024x}" for _ in range(KEYS))
    }
    turns = [key for key in requests for _ in range(sends)]
    chance.shuffle(turns)
    told: dict[str, list[int]] = defaultdict(list)
    rig.start()
    for turn, key in enumerate(turns):
        if turn in (len(turns) // 3, len(turns) // 2):
            rig.restart()
        answer = _send_and_cut(requests[key], chance)
        if answer is not None:
            told[key].append(answer)
    for key, request in requests.items():
        told[key].append(rig.ask("submit", **request)["first"])
    jobs = len(rig.rows())
    rig.ask("cancel", jobs=list(rig.rows()))
    return len(turns), told, jobs


def _send_and_cut(request: dict[str, Any], chance: random.Random) -> int | None:
    """Send a submit and hang up: within it, right after it, or after the answer."""
    frame = wire.encode({"op": "submit", "id": 1, "v": wire.PROTOCOL, **request})
    with _line() as sock:
        cut = chance.choice(("within", "after", "late", "answered"))
        if cut == "within":
            sock.sendall(frame[: chance.randrange(1, len(frame))])
            return None
        sock.sendall(frame)
        if cut == "late":
            pause(chance.uniform(0, 0.002))
        if cut != "answered":
            return None
        return int(_answer(sock)["first"])


@contextmanager
def _line() -> Iterator[socket.socket]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(PATIENCE_S)
    with sock:
        sock.connect(paths.queue_socket())
        yield sock


def _answer(sock: socket.socket) -> dict[str, Any]:
    frames = wire.Frames(wire.MAX_REPLY_BYTES)
    bodies = wait_for(lambda: frames.feed(sock.recv(65536)), "an answer")
    return wire.decode(bodies[0])
