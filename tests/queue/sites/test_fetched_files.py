"""Files from a node, which is not trusted, in the folder of a submitter."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from grn.errors import ProtocolError
from grn.queue.journal.rows import Command
from grn.queue.site import Attempt
from grn.queue.sites.files.fetched_files import MAX_BYTES, Fetch, OfferedFile, offered
from grn.queue.sites.stream import FilePiece

ATTEMPT = Attempt(7, 1)


class Node:
    """The other end: it is asked for files and says what the test lets it say."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        self.faults: list[str] | None = None
        command = Command(("true",), str(folder), {}, 0o022, fetch=("**",))
        self.fetch = Fetch(ATTEMPT, command, self.asked.append, self._done)

    def _done(self, faults: list[str]) -> None:
        self.faults = list(faults)

    def offer(self, *files: OfferedFile) -> None:
        self.fetch.begin(list(files))

    def give(self, data: bytes, digest: str | None = None, offset: int = 0) -> None:
        number = self.asked[-1]["file"]
        self.fetch.receive(FilePiece(f"7.1.{number}", offset, data))
        digest = hashlib.sha256(data).hexdigest() if digest is None else digest
        self.fetch.got({"file": number, "digest": digest, "text": ""})


def a_file(path: str, size: int = 3, is_program: bool = False) -> OfferedFile:
    return OfferedFile(path, size, 10**18, is_program)


def test_a_file_gets_its_name_mode_and_time_when_it_is_whole(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.offer(a_file("out/run", is_program=True))
    assert list((tmp_path / "out").iterdir()) != [tmp_path / "out/run"]
    node.give(b"abc")

    found = tmp_path / "out/run"
    assert node.faults == []
    assert found.read_bytes() == b"abc"
    assert found.stat().st_mode & 0o777 == 0o755
    assert found.stat().st_mtime_ns == 10**18
    assert list((tmp_path / "out").iterdir()) == [found]


def test_a_file_that_is_here_already_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    os.utime(tmp_path / "x", ns=(10**18, 10**18))
    node = Node(tmp_path)
    node.offer(a_file("x"))

    assert (node.asked, node.faults) == ([], [])


@pytest.mark.parametrize(("digest", "offset"), [("0" * 64, 0), (None, 5)])
def test_a_damaged_file_leaves_the_old_one_and_the_next_is_fetched(
    tmp_path: Path, digest: str | None, offset: int
) -> None:
    (tmp_path / "x").write_bytes(b"old")
    node = Node(tmp_path)
    node.offer(a_file("x"), a_file("y"))
    node.give(b"abc", digest, offset)
    node.give(b"new")

    assert node.faults is not None
    assert len(node.faults) == 1
    assert node.faults[0].startswith("x: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_no_link_is_followed_out_of_the_folder(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "file").symlink_to(outside / "target")
    node = Node(folder)
    node.offer(a_file("link/x"), a_file("file"))

    assert node.faults is not None
    assert len(node.faults) == 2
    assert list(outside.iterdir()) == []


def test_a_lost_stream_leaves_no_part(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.offer(a_file("x"))
    node.fetch.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "rows",
    [
        [["../x", 1, 1, False]],
        [["/etc/passwd", 1, 1, False]],
        [[".git/config", 1, 1, False]],
        [["other.txt", 1, 1, False]],
        [["a.csv", -1, 1, False]],
        [["a.csv", MAX_BYTES + 1, 1, False]],
        [["a.csv", 1, 1]],
        [{"path": "a.csv"}],
        [["a.csv", 1, 1, False]] * 1001,
        "a.csv",
    ],
)
def test_what_was_not_asked_for_is_refused(rows: Any) -> None:
    with pytest.raises(ProtocolError):
        offered({"rows": rows, "note": ""}, ("*.csv", ".git/*"))


def test_what_was_asked_for_is_read_with_its_note() -> None:
    files, note = offered({"rows": [["a.csv", 5, 6, True]], "note": "x"}, ("*.csv",))

    assert (files, note) == ([OfferedFile("a.csv", 5, 6, True)], "x")
