"""The record of an attempt: claim, lock and end in one file, across processes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from grn.queue.local import attempt_files

CLAIM = "123 456"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "0" / "7.1")


def begun(folder: str, *, spare: str = "") -> int:
    fd = attempt_files.begin(folder, CLAIM, spare)
    assert fd is not None
    return fd


def ended(folder: str, **record: object) -> None:
    fd = begun(folder)
    attempt_files.write_exit(fd, folder, record, is_synced=False)
    os.close(fd)


def test_each_attempt_has_a_folder_of_its_own() -> None:
    assert attempt_files.folder_of("/q", 7, 1) == "/q/0/7.1"
    assert attempt_files.folder_of("/q", 12_345, 12) == "/q/12/12345.12"
    folders = {
        attempt_files.folder_of("/q", job, number) for job in range(3000) for number in (1, 2)
    }
    assert len(folders) == 6000


def test_an_attempt_is_begun_by_one(folder: str) -> None:
    assert attempt_files.read_claim(folder) is None
    fd = begun(folder)
    assert attempt_files.read_claim(folder) == CLAIM
    assert attempt_files.begin(folder, "9 9") is None
    assert not attempt_files.forbid(folder)
    assert attempt_files.read_claim(folder) == CLAIM
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_record_is_one_file_for_its_user_alone(folder: str) -> None:
    ended(folder, status=0)
    parent = Path(folder).parent
    assert os.listdir(parent) == ["7.1.run"]
    assert stat.S_IMODE((parent / "7.1.run").stat().st_mode) == 0o600
    assert stat.S_IMODE(parent.stat().st_mode) == 0o700


def test_the_lock_is_held_until_the_record_is_let_go(folder: str) -> None:
    assert not attempt_files.is_locked(folder)
    fd = begun(folder)
    assert attempt_files.is_locked(folder)
    assert attempt_files.is_locked(folder), "looking lets nobody's lock go"
    os.close(fd)
    assert not attempt_files.is_locked(folder)


def test_two_that_look_at_once_do_not_take_each_other_for_the_holder(folder: str) -> None:
    os.close(begun(folder))
    with open(attempt_files.record_of(folder), "rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not attempt_files.is_locked(folder)


def test_looking_for_a_lock_makes_none(tmp_path: Path, folder: str) -> None:
    assert not attempt_files.is_locked(str(tmp_path / "7.1"))
    assert not attempt_files.is_locked(folder)
    assert os.listdir(tmp_path) == []


def test_what_is_forbidden_never_begins(tmp_path: Path) -> None:
    folder = str(tmp_path / "7.1")
    assert attempt_files.forbid(folder)
    assert not attempt_files.forbid(folder)
    assert attempt_files.begin(folder, CLAIM) is None
    assert attempt_files.read_claim(folder) == attempt_files.FORBIDDEN
    assert not attempt_files.is_locked(folder)
    assert attempt_files.read_exit(folder) is None
    assert sorted(os.listdir(tmp_path)) == ["7.1", "7.1.run"]  # the folder is for older shims


def test_an_end_that_does_not_name_its_attempt_is_believed_only_without_a_reboot(
    folder: str,
) -> None:
    """Form 2: a power cut may have brought back the end of another attempt."""
    os.mkdir(os.path.dirname(folder))
    Path(attempt_files.record_of(folder)).write_text(f'{CLAIM}\n{{"format": 2, "status": 3}}\n')
    assert (attempt_files.read_exit(folder) or {})["status"] == 3
    assert attempt_files.read_exit(folder, is_same_boot=False) is None


def test_an_end_of_this_form_must_name_its_attempt(folder: str) -> None:
    os.mkdir(os.path.dirname(folder))
    Path(attempt_files.record_of(folder)).write_text(f'{CLAIM}\n{{"format": 3, "status": 3}}\n')
    assert attempt_files.read_exit(folder) is None


def test_what_a_killed_shim_was_about_to_make_is_in_nobodys_way(folder: str) -> None:
    os.mkdir(os.path.dirname(folder))
    Path(f"{folder}.new").write_text("1")
    assert attempt_files.read_claim(folder) is None
    os.close(begun(folder))
    assert attempt_files.read_claim(folder) == CLAIM


@pytest.mark.parametrize("is_synced", [False, True])
def test_an_end_is_read_as_it_was_written(folder: str, is_synced: bool) -> None:
    fd = begun(folder)
    assert attempt_files.read_exit(folder) is None
    line = attempt_files.write_exit(fd, folder, {"status": 3, "text": "é\n"}, is_synced=is_synced)
    told = {"format": attempt_files.FORMAT, "of": "7.1", "status": 3, "text": "é\n"}
    assert attempt_files.read_exit(folder) == told
    assert attempt_files.exit_in(line) == attempt_files.read_exit(folder)
    assert attempt_files.read_claim(folder) == CLAIM
    os.close(fd)


@pytest.mark.parametrize("text", ["", "{", '{"status": 0', '{"status": 0}', "[]\n", "\0\0\0\0"])
def test_half_an_end_is_none(folder: str, text: str) -> None:
    os.close(begun(folder))
    with open(attempt_files.record_of(folder), "a") as file:
        file.write(text)
    assert attempt_files.read_exit(folder) is None
    assert attempt_files.exit_in(text.encode()) is None


@pytest.mark.parametrize("text", ["", "\0\0\0\0", "\n\n", '{"status": 0}\n'])
def test_a_record_that_a_power_cut_has_spoilt_has_no_end(folder: str, text: str) -> None:
    os.mkdir(os.path.dirname(folder))
    Path(attempt_files.record_of(folder)).write_text(text)
    assert attempt_files.read_exit(folder) is None


NO_ROOM = """
import os, resource, signal, sys
from grn.queue.local import attempt_files as attempt
folder = sys.argv[1]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = attempt.begin(folder, "123 456")
size = os.fstat(fd).st_size
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, most))
try:
    attempt.write_exit(fd, folder, {"status": 1}, is_synced=False)
except OSError as error:
    print(error.errno, os.fstat(fd).st_size - size)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
attempt.write_exit(fd, folder, {"status": 1}, is_synced=False)
"""


def test_an_end_that_the_disk_does_not_take_whole_leaves_no_trace(folder: str) -> None:
    """A limit on files stands for a full disk: less is written than was given."""
    said = subprocess.check_output([sys.executable, "-c", NO_ROOM, folder], text=True)
    assert said.split() == [str(errno.ENOSPC), "0"]
    assert (attempt_files.read_exit(folder) or {})["status"] == 1


def test_a_spare_record_is_used_again_and_tells_nothing_of_before(folder: str) -> None:
    spare = f"{folder}0"
    ended(spare, status=3, text="x" * 1000)
    inode = os.stat(attempt_files.record_of(spare)).st_ino
    fd = begun(folder, spare=spare)
    assert os.stat(attempt_files.record_of(folder)).st_ino == inode
    assert attempt_files.read_exit(folder) is None
    assert (attempt_files.read_claim(folder), attempt_files.read_claim(spare)) == (CLAIM, None)
    assert attempt_files.is_locked(folder)
    os.close(fd)


def test_the_end_of_another_attempt_in_a_record_is_none(folder: str) -> None:
    """As a power cut may leave it, where a file was used again and not yet written."""
    ended(f"{folder}0", status=0)
    os.rename(attempt_files.record_of(f"{folder}0"), attempt_files.record_of(folder))
    assert attempt_files.read_exit(folder) is None


def test_a_spare_record_does_not_lift_a_ban(folder: str) -> None:
    spare = f"{folder}0"
    ended(spare, status=0)
    assert attempt_files.forbid(folder)
    assert attempt_files.begin(folder, CLAIM, spare) is None
    assert attempt_files.read_claim(folder) == attempt_files.FORBIDDEN


def test_nothing_is_left_of_what_is_removed(folder: str) -> None:
    ended(folder, status=0)
    os.mkdir(folder)
    for path in (f"{folder}/log", f"{folder}.new", f"{folder}.trouble", f"{folder}.peak"):
        Path(path).touch()
    attempt_files.remove(folder)
    assert os.listdir(os.path.dirname(folder)) == []
    attempt_files.remove(folder)


@pytest.mark.parametrize("name", ["7.1.run", "7.1.new"])
def test_links_are_not_followed(tmp_path: Path, name: str) -> None:
    """Nobody but us may write there, and if somebody does it must not lead us elsewhere."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / name).symlink_to(tmp_path / "other")
    fd = attempt_files.begin(str(tmp_path / "inside" / "7.1"), CLAIM)
    assert (fd is None) == (name == "7.1.run")
    if fd is not None:
        os.close(fd)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("text", "peak"),
    [
        ("5\n", 5),
        ("5\n17\n3\n", 17),
        ("0\n", 0),
        (f"{1 << 50}\n", 1 << 50),
        (f"{(1 << 50) + 1}\n", None),
        ("9" * 5000, None),
        ("", None),
        ("-1\n", None),
        ("5\nmany\n", None),
        ("1e9\n", None),
    ],
)
def test_the_largest_reported_peak_is_taken_once(folder: str, text: str, peak: int | None) -> None:
    path = Path(attempt_files.peak_file_of(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert attempt_files.take_peak(folder) == peak
    assert not path.exists()
    assert attempt_files.take_peak(folder) is None


def test_a_peak_behind_a_link_or_a_pipe_is_not_known(folder: str, tmp_path: Path) -> None:
    path = Path(attempt_files.peak_file_of(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "other").write_text("5\n")
    path.symlink_to(tmp_path / "other")
    assert attempt_files.take_peak(folder) is None
    path.unlink()
    os.mkfifo(path)
    assert attempt_files.take_peak(folder) is None
