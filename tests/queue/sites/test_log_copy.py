"""Copies of output at home: each byte once and in its place, whatever comes twice or not at all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from grn.client.logs import read_log
from grn.queue.journal.rows import Command
from grn.queue.local.output_log import CappedLog
from grn.queue.site import Attempt
from grn.queue.sites.files.log_copy import LogCopies
from grn.queue.sites.stream import LogPiece

ONE = Attempt(1, 1)


def _copies(folder: Path, max_bytes: int = 1 << 20) -> LogCopies:
    return LogCopies(lambda attempt: str(folder / f"{attempt.job}.{attempt.number}"), max_bytes)


def _command(log: Path) -> Command:
    return Command(("true",), "/", {}, 0o027, log=str(log))


def test_pieces_that_come_twice_or_overlap_do_no_harm(tmp_path: Path) -> None:
    copies = _copies(tmp_path)
    for offset, data in ((0, b"abc"), (0, b"abc"), (2, b"cde"), (5, b"f")):
        copies.write(LogPiece(ONE, "log", offset, data))

    assert (tmp_path / "1.1" / "log").read_bytes() == b"abcdef"
    assert copies.is_whole(ONE)
    assert copies.sizes(ONE) == {"log": 6}


def test_a_gap_is_not_filled_with_nothing(tmp_path: Path) -> None:
    copies = _copies(tmp_path)
    copies.write(LogPiece(ONE, "log", 0, b"ab"))
    copies.write(LogPiece(ONE, "log", 3, b"d"))

    assert (tmp_path / "1.1" / "log").read_bytes() == b"ab"
    assert not copies.is_whole(ONE)
    copies.forget(ONE)
    assert copies.is_whole(ONE)


def test_no_more_is_kept_than_the_settings_allow(tmp_path: Path) -> None:
    copies = _copies(tmp_path, max_bytes=4)
    copies.write(LogPiece(ONE, "log", 0, b"abcd"))
    copies.write(LogPiece(ONE, "log", 4, b"e"))

    assert copies.sizes(ONE) == {"log": 4}
    assert not copies.is_whole(ONE)


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "1.1").mkdir()
    (tmp_path / "1.1" / "log").symlink_to(victim)
    copies = _copies(tmp_path)
    copies.write(LogPiece(ONE, "log", 0, b"theirs"))

    assert victim.read_text() == "mine"
    assert not copies.is_whole(ONE)


@pytest.mark.parametrize("seed", range(20))
def test_a_long_log_is_the_same_here_and_there(tmp_path: Path, seed: int) -> None:
    """The node drops parts of it while they are sent, in pieces, over streams that are cut."""
    chance = random.Random(seed)
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    log = CappedLog(str(there / "log"), 4096)
    copies = _copies(here, 4096)
    sent: dict[str, int] = {}

    def push(most: int) -> None:
        for path in sorted(there.iterdir(), key=lambda path: (len(path.name), path.name)):
            data = path.read_bytes()[sent.get(path.name, 0) :][:most]
            if data:
                offset = sent.get(path.name, 0)
                copies.write(LogPiece(ONE, path.name, offset, data))
                sent[path.name] = offset + len(data)

    for number in range(chance.randrange(10, 600)):
        log.write(f"line {number:06d}\n".encode())
        if chance.random() < 0.1:
            push(chance.randrange(1, 900))
        if chance.random() < 0.05:  # a new stream: it goes on from what is here
            sent = copies.sizes(ONE)
    log.close()
    push(1 << 20)

    assert read_log(str(here / "1.1"), "log") == read_log(str(there), "log")
    assert {path.name for path in (here / "1.1").iterdir()} == {p.name for p in there.iterdir()}


def test_a_log_of_the_job_itself_goes_behind_what_is_in_it(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_bytes(b"before\n")
    copies = _copies(tmp_path)
    copies.begin(ONE, _command(own))
    assert copies.sizes(ONE) == {"log": 0}
    copies.write(LogPiece(ONE, "log", 0, b"one\n"))
    later = _copies(tmp_path)  # of the next queue
    assert later.sizes(ONE) == {"log": 4}
    later.write(LogPiece(ONE, "log", 4, b"two\n"))
    later.begin(Attempt(1, 2), _command(own))
    later.write(LogPiece(Attempt(1, 2), "log", 0, b"again\n"))

    assert own.read_bytes() == b"before\none\ntwo\nagain\n"
    assert not (tmp_path / "1.1" / "log").exists()


def test_a_log_of_the_job_itself_is_made_with_its_umask_and_made_again(tmp_path: Path) -> None:
    own = tmp_path / "own"
    copies = _copies(tmp_path)
    copies.begin(ONE, _command(own))
    assert own.stat().st_mode & 0o777 == 0o640
    copies.write(LogPiece(ONE, "log", 0, b"one\n"))
    own.unlink()
    copies.write(LogPiece(ONE, "log", 0, b"one\n"))

    assert own.read_bytes() == b"one\n"


def test_a_log_that_cannot_be_written_makes_the_copy_incomplete(tmp_path: Path) -> None:
    copies = _copies(tmp_path)
    copies.begin(ONE, _command(tmp_path / "no" / "folder"))

    assert not copies.is_whole(ONE)
