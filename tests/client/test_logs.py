"""Reading what a job printed, straight from its files."""

from __future__ import annotations

from pathlib import Path

from grn.client.logs import DROPPED, parts, read_from, read_log


def test_a_log_of_one_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"a\xff\n")
    assert parts(str(tmp_path / "log")) == [str(tmp_path / "log")]
    assert read_log(str(tmp_path), "log") == b"a\xff\n"


def test_what_is_not_there_is_empty(tmp_path: Path) -> None:
    assert parts(str(tmp_path / "log")) == parts(str(tmp_path / "gone" / "log")) == []
    assert read_log(str(tmp_path), "log") == read_log(str(tmp_path / "gone"), "log") == b""
    assert read_log(None, "log") == b""
    assert read_from(str(tmp_path / "log"), 0) == b""


def test_tails_are_read_by_their_numbers(tmp_path: Path) -> None:
    for name, text in (
        ("log", "head "),
        ("log.tail10", "z"),
        ("log.tail9", "y"),
        ("log.tailx", ""),
    ):
        (tmp_path / name).write_text(text)
    names = [Path(path).name for path in parts(str(tmp_path / "log"))]
    assert names == ["log", "log.tail9", "log.tail10"]
    assert read_log(str(tmp_path), "log") == b"head " + DROPPED + b"yz"


def test_nothing_is_said_to_be_missing_while_all_is_there(tmp_path: Path) -> None:
    for name, text in (("log", "one "), ("log.tail0", "two "), ("log.tail1", "three")):
        (tmp_path / name).write_text(text)
    assert read_log(str(tmp_path), "log") == b"one two three"


def test_one_log_is_not_taken_for_another(tmp_path: Path) -> None:
    for name in ("log", "err", "err.tail0"):
        (tmp_path / name).write_text(f"{name} ")
    assert read_log(str(tmp_path), "log") == b"log "
    assert read_log(str(tmp_path), "err") == b"err err.tail0 "
