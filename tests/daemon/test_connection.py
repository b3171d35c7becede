"""How much a service keeps for its clients, and whose requests it answers next."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from grn import wire
from grn.daemon.connection import ConnectionSettings, ServerConnection, Service
from grn.daemon.turns import TURN_S, BufferBudget, Turns

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

    def __init__(self, uid: int, connection: ServerConnection) -> None:
        self.uid = uid
        self.send = connection.send

    def lost(self) -> None:
        pass

    def refused(self, message: Any, error: object) -> None:
        raise AssertionError(error)


class Question:
    id = 1


ASK = wire.HEADER.pack(2) + b"{}"


ANSWER_S = 60.0


async def _until(is_so: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + ANSWER_S
    while not is_so():
        assert time.monotonic() < ends_at, "it took too long"
        await asyncio.sleep(0.001)


Work = Callable[[Speaker, Question], Iterator[None] | None]


@contextlib.asynccontextmanager
async def _asked(path: str, uids: Sequence[int], work: Work) -> AsyncIterator[list[socket.socket]]:
    """Serve, and let one connection of each of these users ask once, all at the same time."""
    settings = ConnectionSettings("test", lambda body: Question(), {Question: work}, 1000, 60.0)
    met: list[Speaker] = []

    def meet(connection: ServerConnection, _: socket.socket) -> Speaker:
        met.append(Speaker(uids[len(met)], connection))
        return met[-1]

    service = Service(settings, meet)
    listener = await asyncio.get_running_loop().create_unix_server(service.connection, path)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in uids]
        for client in clients:
            client.connect(path)
        await _until(lambda: len(met) == len(uids))
        for client in clients:
            client.sendall(ASK)
        yield clients
    listener.close()
    await listener.wait_closed()


async def _order_of_answers(path: str, uids: Sequence[int], work: Work) -> list[int]:
    answered: list[int] = []

    def noted(speaker: Speaker, question: Question) -> Iterator[None]:
        yield from work(speaker, question) or ()
        answered.append(speaker.uid)

    async with _asked(path, uids, noted):
        await _until(lambda: len(answered) == len(uids))
    return answered


def _spin(for_s: float) -> None:
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        pass


def test_many_busy_connections_of_one_user_do_not_come_before_another_user(tmp_path: Path) -> None:
    def work(_: Speaker, __: Question) -> None:
        _spin(TURN_S)

    users = [BUSY] * 50 + [OTHER]
    answered = asyncio.run(_order_of_answers(str(tmp_path / "sock"), users, work))

    assert answered.count(BUSY) == 50
    assert answered.index(OTHER) < 10


def test_a_request_that_comes_during_an_answer_in_line_is_the_next(tmp_path: Path) -> None:
    answered: list[int] = []

    async def scene() -> None:
        other: list[socket.socket] = []

        def work(speaker: Speaker, _: Question) -> None:
            if speaker.uid == BUSY:
                _spin(2 * TURN_S)
                if (
                    other and answered.count(BUSY) == 3
                ):  # the first is answered as it comes, the rest in line
                    other[0].sendall(ASK)
            answered.append(speaker.uid)

        async with _asked(str(tmp_path / "sock"), [BUSY] * 8 + [OTHER], work) as clients:
            await _until(lambda: len(answered) == 9)
            answered.clear()
            other.append(clients.pop())
            for client in clients:
                client.sendall(ASK)
            await _until(lambda: len(answered) == 9)

    asyncio.run(scene())

    assert answered == [BUSY] * 4 + [OTHER] + [BUSY] * 4


def test_a_long_answer_to_one_user_takes_no_time_from_another() -> None:
    async def scene() -> None:
        turns = Turns()
        turns.has_answered(1, time.monotonic() - 2 * TURN_S)
        assert not turns.may_answer_now(1), "it has used its turn"
        assert turns.may_answer_now(2)
        await asyncio.sleep(0)
        assert turns.may_answer_now(1), "the next turn has begun"

    asyncio.run(scene())


PIECES = 40


def test_a_long_answer_pauses_for_those_of_others(tmp_path: Path) -> None:
    def work(speaker: Speaker, _: Question) -> Iterator[None]:
        for _ in range(PIECES if speaker.uid == BUSY else 1):
            _spin(TURN_S / 2)
            yield

    users = [BUSY, BUSY, OTHER]
    answered = asyncio.run(_order_of_answers(str(tmp_path / "sock"), users, work))

    assert answered == [OTHER, BUSY, BUSY]


def test_a_user_has_one_unfinished_answer_at_a_time(tmp_path: Path) -> None:
    unfinished: dict[int, int] = {BUSY: 0, OTHER: 0}
    most = dict(unfinished)
    pauses = 0

    def work(speaker: Speaker, _: Question) -> Iterator[None]:
        nonlocal pauses
        unfinished[speaker.uid] += 1
        most[speaker.uid] = max(most[speaker.uid], unfinished[speaker.uid])
        for _ in range(4):
            _spin(TURN_S)
            pauses += 1
            yield
        unfinished[speaker.uid] -= 1

    users = [BUSY] * 8 + [OTHER]
    asyncio.run(_order_of_answers(str(tmp_path / "sock"), users, work))

    assert most == {BUSY: 1, OTHER: 1}
    assert pauses == 4 * len(users)


def test_a_long_answer_that_fails_after_a_pause_is_an_error(tmp_path: Path) -> None:
    async def scene() -> list[str]:
        def work(speaker: Speaker, _: Question) -> Iterator[None]:
            _spin(2 * TURN_S)
            yield
            if speaker.uid == BUSY:
                raise ZeroDivisionError
            speaker.send(1, {"ok": True})

        async with _asked(str(tmp_path / "sock"), [BUSY, OTHER], work) as clients:
            return [await asyncio.to_thread(_text, client) for client in clients]

    failed, went_on = asyncio.run(scene())

    assert json.loads(failed)["error"]["message"] == "the test failed on this request; see its log."
    assert json.loads(went_on) == {"id": 1, "ok": True}


def _text(client: socket.socket) -> str:
    """Read one frame."""
    client.settimeout(ANSWER_S)
    (size,) = wire.HEADER.unpack(client.recv(wire.HEADER.size, socket.MSG_WAITALL))
    return client.recv(size, socket.MSG_WAITALL).decode()


def test_a_client_that_leaves_during_a_long_answer_holds_up_nobody(tmp_path: Path) -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def scene() -> None:
        def work(speaker: Speaker, _: Question) -> Iterator[None]:
            number = len(begun)
            begun.append(number)
            for _ in range(PIECES if number == 0 else 1):
                _spin(TURN_S)
                yield
            ended.append(number)
            speaker.send(1, {"ok": True})

        async with _asked(str(tmp_path / "sock"), [BUSY] * 3, work) as clients:
            await _until(lambda: bool(begun))
            assert not ended
            clients[0].close()
            for client in clients[1:]:
                assert json.loads(await asyncio.to_thread(_text, client))["ok"]

    asyncio.run(scene())

    assert ended == [0, 1, 2]
