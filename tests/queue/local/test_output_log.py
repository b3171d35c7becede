"""What a command prints, within a cap: the head and the tail are kept, and read again whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from grn.client.logs import DROPPED, parts, read_from, read_log
from grn.queue.local.output_log import CappedLog

CAP = 1000


def write(folder: Path, *pieces: bytes, cap: int = CAP, name: str = "log") -> CappedLog:
    log = CappedLog(str(folder / name), cap)
    for piece in pieces:
        log.write(piece)
    log.close()
    return log


def numbers(count: int) -> bytes:
    return b"".join(b"%09d\n" % number for number in range(count))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_short_log_is_one_file(tmp_path: Path) -> None:
    write(tmp_path, b"one\n", b"two\n")
    assert os.listdir(tmp_path) == ["log"]
    assert read_log(str(tmp_path), "log") == b"one\ntwo\n"
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_nothing_printed_makes_no_file(tmp_path: Path) -> None:
    write(tmp_path, b"")
    assert os.listdir(tmp_path) == []
    assert read_log(str(tmp_path), "log") == b""
    assert read_log(None, "log") == b""
    assert read_log(str(tmp_path / "gone"), "log") == b""


@pytest.mark.parametrize("piece", [1, 7, 10, 333, 10_000])
@pytest.mark.parametrize("count", [50, 75, 76, 100])
def test_what_fits_is_kept_whole(tmp_path: Path, count: int, piece: int) -> None:
    text = numbers(count)
    write(tmp_path, *(text[start : start + piece] for start in range(0, len(text), piece)))
    assert read_log(str(tmp_path), "log") == text


@pytest.mark.parametrize("piece", [1, 10, 333, 4096, 100_000])
@pytest.mark.parametrize("count", [101, 124, 125, 126, 150, 151, 5000])
def test_what_is_too_much_keeps_its_two_ends(tmp_path: Path, count: int, piece: int) -> None:
    text = numbers(count)
    log = write(tmp_path, *(text[start : start + piece] for start in range(0, len(text), piece)))
    assert size(tmp_path) <= CAP
    head, mark, tail = read_log(str(tmp_path), "log").partition(DROPPED)
    assert mark
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) == CAP // 2
    assert len(tail) >= CAP // 4
    assert log.dropped_bytes == 0


def test_files_are_read_in_the_order_they_were_written(tmp_path: Path) -> None:
    """By their numbers: files written in one instant have one time."""
    write(tmp_path, numbers(310))
    found = [os.path.basename(path) for path in parts(str(tmp_path / "log"))]
    assert found == ["log", "log.tail9", "log.tail10"]
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    assert read_log(str(tmp_path), "log").endswith(numbers(310)[-250:])


def test_two_logs_of_a_folder_are_two(tmp_path: Path) -> None:
    write(tmp_path, numbers(90))
    write(tmp_path, b"err\n", name="err")
    assert read_log(str(tmp_path), "err") == b"err\n"
    assert read_log(str(tmp_path), "log") == numbers(90)


def test_a_log_is_read_on_from_where_one_was(tmp_path: Path) -> None:
    write(tmp_path, b"0123456789")
    assert read_from(str(tmp_path / "log"), 4) == b"456789"
    assert read_from(str(tmp_path / "log"), 99) == b""
    assert read_from(str(tmp_path / "log.tail3"), 0) == b""


def test_output_that_cannot_be_written_is_dropped_and_counted(tmp_path: Path) -> None:
    """A full disk loses output; it never ends the command."""
    (tmp_path / "job").touch()  # no folder can be made in its place
    log = CappedLog(str(tmp_path / "job" / "log"), CAP)
    log.write(b"lost")
    assert log.dropped_bytes == 4
    (tmp_path / "job").unlink()
    log.write(b"kept")
    log.close()
    assert read_log(str(tmp_path / "job"), "log") == b"kept"


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / "log").symlink_to(tmp_path / "other")
    assert write(tmp_path, b"lost").dropped_bytes == 4
    assert (tmp_path / "other").read_bytes() == b""
