"""How much a service keeps for its clients, and whose requests it answers next."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from grn import wire
from grn.daemon.connection import (
    TURN_S,
    BufferBudget,
    ConnectionSettings,
    Service,
    Talk,
    Turns,
)

MiB = 1 << 20


@pytest.fixture
def kept() -> BufferBudget:
    return BufferBudget(8 * MiB, 64 * MiB)


def test_a_user_may_have_so_much_in_all_its_connections(kept: BufferBudget) -> None:
    kept.change(1000, 8 * MiB)
    assert not kept.is_over(1000, MiB)
    kept.change(1000, 1)
    assert kept.is_over(1000, MiB)


def test_another_user_is_not_concerned(kept: BufferBudget) -> None:
    kept.change(1000, 60 * MiB)
    kept.change(1001, MiB)
    assert not kept.is_over(1001, MiB // 2)


def test_the_only_connection_of_a_user_is_never_over(kept: BufferBudget) -> None:
    kept.change(1000, 32 * MiB)
    assert not kept.is_over(1000, 32 * MiB)


def test_when_all_have_too_much_those_with_more_than_an_equal_part_are_over(
    kept: BufferBudget,
) -> None:
    for uid in range(10):
        kept.change(uid, 7 * MiB)
    kept.change(10, MiB)
    assert kept.is_over(0, MiB)
    assert not kept.is_over(10, MiB // 2)


def test_what_was_given_back_does_not_count(kept: BufferBudget) -> None:
    kept.change(1000, 9 * MiB)
    kept.change(1000, -9 * MiB)
    assert (kept.in_all, dict(kept.by_user)) == (0, {})


# --- turns ---------------------------------------------------------------------------------

BUSY, OTHER = 1000, 1001


class Speaker:
    """The first connections are of one user, the last is of another."""

    def __init__(self, uid: int, talk: Talk) -> None:
        self.uid = uid
        self.send = talk.send

    def lost(self) -> None:
        pass

    def refused(self, message: Any, error: object) -> None:
        raise AssertionError(error)


class Question:
    id = 1


async def _order_of_answers(path: str, busy: int) -> list[int]:
    answered: list[int] = []
    uids = [BUSY] * busy + [OTHER]

    def work(speaker: Speaker, _: Question) -> None:
        until = time.monotonic() + TURN_S
        while time.monotonic() < until:
            pass
        answered.append(speaker.uid)

    settings = ConnectionSettings("test", lambda body: Question(), {Question: work}, 1000, 60.0)
    met: list[Speaker] = []

    def meet(talk: Talk, _: socket.socket) -> Speaker:
        met.append(Speaker(uids[len(met)], talk))
        return met[-1]

    service = Service(settings, meet)
    listener = await asyncio.get_running_loop().create_unix_server(service.talk, path)
    clients = []
    for _ in uids:
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        clients.append(client)
    while len(met) < len(uids):
        await asyncio.sleep(0)
    for client in clients:
        client.sendall(wire.HEADER.pack(2) + b"{}")
    while len(answered) < len(uids):
        await asyncio.sleep(0.001)
    for client in clients:
        client.close()
    listener.close()
    await listener.wait_closed()
    return answered


def test_many_busy_connections_of_one_user_do_not_come_before_another_user(tmp_path: Path) -> None:
    answered = asyncio.run(_order_of_answers(str(tmp_path / "sock"), 50))

    assert answered.count(BUSY) == 50
    assert answered.index(OTHER) < 10


def test_a_long_answer_to_one_user_takes_no_time_from_another() -> None:
    async def scene() -> None:
        turns = Turns()
        turns.has_answered(1, time.monotonic() - 2 * TURN_S)
        assert not turns.may_answer_now(1), "it has used its turn"
        assert turns.may_answer_now(2)
        await asyncio.sleep(0)
        assert turns.may_answer_now(1), "the next turn has begun"

    asyncio.run(scene())
