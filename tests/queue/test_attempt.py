"""The folder of an attempt: lock, claim and exit record, across processes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from grn.queue import attempt


def test_each_attempt_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert attempt.folder_of("/q", 7, 1) == "/q/0/7.1"
    assert attempt.folder_of("/q", 12_345, 12) == "/q/12/12345.12"
    folders = {attempt.folder_of("/q", job, number) for job in range(3000) for number in (1, 2)}
    assert len(folders) == 6000


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert not attempt.is_locked(folder)
    lock = attempt.take_lock(folder)
    assert lock is not None
    assert attempt.is_locked(folder)
    assert attempt.take_lock(folder) is None
    assert attempt.is_locked(folder), "looking lets nobody's lock go"
    os.close(lock)
    assert not attempt.is_locked(folder)
    again = attempt.take_lock(folder)
    assert again is not None
    assert not os.get_inheritable(again)
    os.close(again)


def test_looking_for_a_lock_makes_none(tmp_path: Path) -> None:
    assert not attempt.is_locked(str(tmp_path))
    assert not attempt.is_locked(str(tmp_path / "gone"))
    assert os.listdir(tmp_path) == []


def test_a_claim_is_made_once(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert attempt.read_claim(folder) is None
    assert attempt.claim(folder, "123 456")
    assert not attempt.claim(folder, "queue")
    assert attempt.read_claim(folder) == "123 456"
    assert stat.S_IMODE((tmp_path / "claim").stat().st_mode) == 0o600


@pytest.mark.parametrize("is_synced", [False, True])
def test_an_exit_record_is_read_as_it_was_written(tmp_path: Path, is_synced: bool) -> None:
    folder = str(tmp_path)
    assert attempt.read_exit(folder) is None
    attempt.write_exit(folder, {"status": 3, "text": "é"}, is_synced=is_synced)
    assert attempt.read_exit(folder) == {"format": attempt.FORMAT, "status": 3, "text": "é"}
    assert os.listdir(tmp_path) == ["exit"]


@pytest.mark.parametrize("text", ["", "{", '{"status": 0', "[]", "null", "\0\0\0\0"])
def test_half_a_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "exit").write_text(text)
    assert attempt.read_exit(str(tmp_path)) is None


def test_a_record_in_the_making_is_none_and_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "exit.tmp").write_text(json.dumps({"status": 0, "padding": "x" * 1000}))
    assert attempt.read_exit(str(tmp_path)) is None
    attempt.write_exit(str(tmp_path), {"status": 1}, is_synced=False)
    assert (attempt.read_exit(str(tmp_path)) or {})["status"] == 1


@pytest.mark.parametrize("name", ["lock", "claim", "exit.tmp"])
def test_links_are_not_followed(tmp_path: Path, name: str) -> None:
    """Nobody but us may write there, and if somebody does it must not lead us elsewhere."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / name).symlink_to(tmp_path / "other")
    folder = str(tmp_path / "inside")
    if name == "claim":
        assert attempt.claim(folder, "1 1") is False
    elif name == "lock":
        with pytest.raises(OSError, match="symbolic links"):
            attempt.take_lock(folder)
    else:
        with pytest.raises(OSError, match="symbolic links"):
            attempt.write_exit(folder, {}, is_synced=False)
    assert not (tmp_path / "other").exists()
