"""Output on its way from a node: each byte of each file once, and all of it before the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from grn.queue.site import Attempt
from grn.queue.sites.agent.log_pusher import LogPusher
from grn.queue.sites.stream import MAX_PIECE, LogPiece

ONE = Attempt(1, 1)


class Stream:
    """Takes pieces; may refuse to take more."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.is_lost = False
        self.pieces = 0

    def send(self, piece: LogPiece) -> None:
        assert len(piece.data) <= MAX_PIECE
        if self.is_lost:
            return
        self.pieces += 1
        file = self.files.setdefault(piece.name, bytearray())
        assert piece.offset == len(file), "each byte is sent once and in order"
        file += piece.data

    async def room(self) -> bool:
        await self.may_go_on.wait()
        return not self.is_lost


def _in_a_loop(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def _pusher(folder: Path) -> LogPusher:
    return LogPusher(lambda attempt: str(folder / f"{attempt.job}.{attempt.number}"))


def test_all_output_is_sent_before_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        folder = tmp_path / "1.1"
        folder.mkdir()
        (folder / "log").write_bytes(b"x" * (2 * MAX_PIECE + 5))
        (folder / "err").write_bytes(b"oops")
        (folder / "secret").write_bytes(b"no log")
        pusher, line = _pusher(tmp_path), Stream()
        pusher.follow(ONE, {}, line.send, line.room)
        await pusher.finish(ONE)
        sizes = {name: len(data) for name, data in line.files.items()}
        assert sizes == {"log": 2 * MAX_PIECE + 5, "err": 4}

    _in_a_loop(story)


def test_what_the_queue_has_is_not_sent_again(tmp_path: Path) -> None:
    async def story() -> None:
        folder = tmp_path / "1.1"
        folder.mkdir()
        (folder / "log").write_bytes(b"abcdef")
        pusher, line = _pusher(tmp_path), Stream()
        line.files["log"] = bytearray(b"abcd")
        pusher.follow(ONE, {"log": 4}, line.send, line.room)
        await pusher.finish(ONE)
        assert line.files["log"] == b"abcdef"
        assert line.pieces == 1

    _in_a_loop(story)


def test_a_new_stream_is_served_although_the_old_one_is_stuck(tmp_path: Path) -> None:
    """The end of an attempt waits on a stream that nobody reads while a new stream comes."""

    async def story() -> None:
        folder = tmp_path / "1.1"
        folder.mkdir()
        (folder / "log").write_bytes(b"x" * (3 * MAX_PIECE))
        pusher, old, new = _pusher(tmp_path), Stream(), Stream()
        old.may_go_on.clear()
        pusher.follow(ONE, {}, old.send, old.room)
        ending = asyncio.ensure_future(pusher.finish(ONE))
        while not old.pieces:
            await asyncio.sleep(0)
        pusher.stop()
        pusher.follow(ONE, {}, new.send, new.room)
        old.is_lost = True
        old.may_go_on.set()
        await ending  # it must not take the new stream's place
        await pusher.finish(ONE)
        assert len(new.files["log"]) == 3 * MAX_PIECE

    _in_a_loop(story)


def test_output_is_sent_while_it_is_written_and_looking_ends_with_the_attempts(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        folder = tmp_path / "1.1"
        pusher, line = _pusher(tmp_path), Stream()
        pusher.follow(ONE, {}, line.send, line.room)
        folder.mkdir()
        (folder / "log").write_bytes(b"one")
        deadline = asyncio.get_running_loop().time() + 30
        while line.files.get("log") != b"one":
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        pusher.forget(ONE)
        while len(asyncio.all_tasks()) > 1:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)

    _in_a_loop(story)
