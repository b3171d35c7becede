"""The log of a killed daemon: damage is noticed, a commit that a power cut tore apart is not."""

from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from grn.daemon.wal import set_damage_aside

HEADER, FRAME = 32, 24 + 4096
COMMITS = 12
Killed = Callable[[int], "Log"]


class Log:
    """A database and its log as a kill leaves them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wal = path.with_name(f"{path.name}-wal")

    @property
    def commits(self) -> list[int]:
        """Return the positions of the frames that end a commit."""
        data = self.wal.read_bytes()
        frames = range((len(data) - HEADER) // FRAME)
        return [one for one in frames if any(data[HEADER + one * FRAME + 4 :][:4])]

    def flip(self, at: int, bit: int = 3) -> None:
        data = bytearray(self.wal.read_bytes())
        data[at] ^= 1 << bit
        self.wal.write_bytes(data)

    def blank(self, frames: range | tuple[int, ...]) -> None:
        """Let frames be as a disk has them that never got them."""
        data = bytearray(self.wal.read_bytes())
        for one in frames:
            data[HEADER + one * FRAME : HEADER + (one + 1) * FRAME] = bytes(FRAME)
        self.wal.write_bytes(data)

    def look(self) -> tuple[int, str]:
        return set_damage_aside(str(self.path))

    def rows(self) -> int:
        with closing(sqlite3.connect(self.path)) as db:
            return int(db.execute("SELECT count(*) FROM rows").fetchone()[0])


def opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    for text in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
        db.execute(f"PRAGMA {text}")
    return db


def copied(path: Path, folder: Path) -> Log:
    """Copy the files of an open database: what would be left if its process were killed now."""
    folder.mkdir()
    for one in path.parent.glob(f"{path.name}*"):
        shutil.copy(one, folder)
    return Log(folder / path.name)


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    """Return a log with so many commits of one row, each of several frames."""
    numbers = itertools.count()

    def make(commits: int = COMMITS) -> Log:
        folder = tmp_path / f"made{next(numbers)}"
        folder.mkdir()
        with closing(opened(folder / "file.sqlite3")) as db:
            db.execute("CREATE TABLE rows (text)")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            for number in range(commits):
                db.execute("INSERT INTO rows VALUES (?)", (f"{number}" * 9000,))
            return copied(folder / "file.sqlite3", tmp_path / f"killed{next(numbers)}")

    return make


def test_a_whole_log_is_read_and_nothing_is_said(killed: Killed) -> None:
    log = killed(COMMITS)
    assert len(log.commits) == COMMITS
    assert log.look() == (0, "")
    assert log.rows() == COMMITS


def test_damage_is_counted_and_the_log_is_kept(killed: Killed) -> None:
    log = killed(COMMITS)
    log.flip(HEADER + (log.commits[4] + 1) * FRAME + 1000)  # in the sixth commit
    damaged = log.wal.read_bytes()
    commits, aside = log.look()
    assert (commits, aside) == (COMMITS - 5, f"{log.wal}.broken-1")
    assert Path(aside).read_bytes() == damaged
    assert log.rows() == 5
    assert log.look() == (0, "")  # once


@pytest.mark.parametrize("at", range(HEADER))
def test_a_damaged_header_hides_all_and_is_noticed(killed: Killed, at: int) -> None:
    log = killed(3)
    log.flip(at)
    assert log.look() == (3, f"{log.wal}.broken-1")


def test_any_flipped_bit_that_costs_commits_is_noticed(killed: Killed) -> None:
    seed = random.SystemRandom().getrandbits(32)
    chance, noticed = random.Random(seed), 0
    whole = killed(COMMITS)
    for turn in range(60):
        log = copied(whole.path, whole.path.parent.with_name(f"flip{turn}"))
        at, bit = chance.randrange(log.wal.stat().st_size), chance.randrange(8)
        log.flip(at, bit)
        commits, _ = log.look()
        lost = COMMITS - log.rows()
        noticed += commits > 0
        # One lost commit may have been torn, and the damage may make or hide a mark of a commit.
        assert abs(commits - lost) <= 1 or (commits, lost) == (0, 2), (seed, at, bit)
        assert not commits or lost, (seed, at, bit)
    assert noticed > 30, seed


def test_a_commit_torn_by_a_power_cut_is_no_damage(killed: Killed) -> None:
    """Whatever part of the unsynced commit is on the disk, in any order."""
    whole = killed(4)
    first, last = whole.commits[-2] + 1, whole.commits[-1]
    assert last - first >= 2
    frames = range(first, last + 1)
    for count in range(1, len(frames) + 1):
        for number, missing in enumerate(itertools.combinations(frames, count)):
            log = copied(whole.path, whole.path.parent.with_name(f"torn{count}-{number}"))
            log.blank(missing)
            assert log.look() == (0, ""), missing
            assert log.rows() == 3


def test_leftovers_of_torn_commits_do_not_add_up(killed: Killed, tmp_path: Path) -> None:
    log = killed(4)
    for turn in range(3):
        log.blank((log.commits[-2] + 1,))
        assert log.look() == (0, "")
        with closing(opened(log.path)) as db:  # the next daemon writes less than was torn
            for number in range(2):
                db.execute("INSERT INTO rows VALUES (?)", (f"{number}" * 9000,))
            log = copied(log.path, tmp_path / f"again{turn}")


def test_frames_of_an_older_log_do_not_count(killed: Killed, tmp_path: Path) -> None:
    log = killed(8)
    with closing(opened(log.path)) as db:
        db.execute("PRAGMA wal_checkpoint")
        db.execute("INSERT INTO rows VALUES ('short')")  # begins a new log over the old one
        again = copied(log.path, tmp_path / "again")
    assert len(again.commits) > 4
    assert again.look() == (0, "")
    assert again.rows() == 9


def test_a_file_in_use_is_left_alone(killed: Killed) -> None:
    log = killed(4)
    with closing(opened(log.path)) as db:
        db.execute("INSERT INTO rows VALUES ('x')")
        assert log.look() == (0, "")
        assert log.wal.exists()


def test_what_has_no_database_or_no_log_is_left_to_the_caller(
    killed: Killed, tmp_path: Path
) -> None:
    assert set_damage_aside(str(tmp_path / "missing")) == (0, "")
    log = killed(4)
    log.path.unlink()
    assert log.look() == (0, "")  # SQLite drops the log of a database that is gone
    log = killed(4)
    log.wal.write_bytes(b"this is no log" * 10)
    assert log.look() == (0, "")
