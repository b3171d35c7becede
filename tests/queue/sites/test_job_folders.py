"""Packs of folders as an agent receives them, in pieces, with cut lines in between."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from grn.client import folder_pack
from grn.queue.site import Attempt
from grn.queue.sites.agent.connection import AgentStream
from grn.queue.sites.agent.job_folders import JobFolders
from grn.queue.sites.stream import FilePiece

pytestmark = pytest.mark.process  # git lists the folder
ATTEMPT = Attempt(1, 1)


class Stream:
    """A stream that notes what the agent says."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def send(self, frame: Any) -> None:
        self.said.append(frame)


class Rig:
    """A packed folder at home and the folders of an agent that does not share it."""

    def __init__(self, base: Path) -> None:
        home = base / "home"
        home.mkdir()
        (home / "code.py").write_text("print()\n")
        (home / "link").symlink_to("code.py")
        self.sent = folder_pack.pack(str(home))
        (home / "code.py").write_text("changed\n")
        (home / "new").write_text("")
        self.data = Path(self.sent["pack"]).read_bytes()
        self.message = {"cwd": str(base / "nowhere"), "send": self.sent}
        self.stream = Stream()
        self.begun: list[str] = []
        self.folders = JobFolders(str(base / "agent"))

    def prepare(self) -> None:
        stream = cast(AgentStream, self.stream)
        self.folders.prepare(ATTEMPT, self.message, stream, self.begun.append)

    def piece(self, start: int, end: int) -> None:
        self.folders.receive(FilePiece(self.sent["digest"], start, self.data[start:end]))

    async def until(self, is_so: Any) -> None:
        deadline = time.monotonic() + 10
        while not is_so():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setenv("GRN_STATE_DIR", str(tmp_path / "state"))
    return Rig(tmp_path)


def test_a_new_stream_continues_behind_what_is_here(rig: Rig) -> None:
    async def story() -> None:
        rig.prepare()
        rig.piece(0, 700)
        rig.folders.stream_lost()
        rig.prepare()
        assert [said["offset"] for said in rig.stream.said] == [0, 700]
        rig.piece(700, len(rig.data))
        await rig.until(lambda: rig.begun)

    asyncio.run(story())
    tree = Path(rig.begun[0])
    assert (tree / "code.py").read_text() == "print()\n"
    assert (tree / "code.py").stat().st_mode & 0o777 == 0o600
    assert tree.stat().st_mode & 0o777 == 0o700
    assert (tree / "link").readlink() == Path("code.py")


def test_a_damaged_pack_is_dropped_and_told(rig: Rig) -> None:
    async def story() -> None:
        rig.prepare()
        rig.data = rig.data[:600] + b"x" + rig.data[601:]
        rig.piece(0, len(rig.data))
        await rig.until(lambda: len(rig.stream.said) == 2)
        rig.prepare()

    asyncio.run(story())
    assert rig.begun == []
    assert "damaged" in rig.stream.said[1]["text"]
    assert rig.stream.said[2]["offset"] == 0


def test_an_attempt_that_is_dropped_meanwhile_does_not_begin(rig: Rig) -> None:
    async def story() -> None:
        rig.prepare()
        rig.folders.drop(ATTEMPT)
        rig.piece(0, len(rig.data))
        await asyncio.sleep(0)

    asyncio.run(story())
    assert rig.begun == []


def test_equal_contents_make_one_pack(rig: Rig, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    (again / "code.py").write_text("print()\n")
    (again / "link").symlink_to("code.py")

    assert folder_pack.pack(str(again))["pack"] == rig.sent["pack"]
