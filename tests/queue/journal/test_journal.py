"""The queue's file: what was accepted is there, once, and read again as it was written."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from grn.errors import MachineError
from grn.queue.events import (
    SaveAttemptEnd,
    SaveBegin,
    SaveDrain,
    SaveEnd,
    SaveState,
    TellEnded,
)
from grn.queue.jobs.job import (
    After,
    EndReason,
    Exit,
    JobState,
    Kept,
)
from grn.queue.journal.journal import Journal
from grn.queue.journal.journal_file import SCHEMA_VERSION, NotWritten
from grn.queue.journal.rows import DamagedRow, NewJob, SentFolder, SharedCommand, matching
from tests.queue.builders import a_spec

QUEUED, STARTING, RUNNING, STOPPING, ENDED = JobState
Journals = Callable[..., Journal]


class Clock:
    """The time of the wall, as a test sets it."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journals(tmp_path: Path, clock: Clock) -> Iterator[Journals]:
    """Open the journal of this test; opening it again closes it first."""
    opened: list[Journal] = []

    def open_it(folder: str = "queue", boot: str = "boot-1") -> Journal:
        while opened:
            opened.pop().close()
        opened.append(Journal(str(tmp_path / folder), boot, clock))
        return opened[-1]

    yield open_it
    while opened:
        opened.pop().close()


@pytest.fixture
def journal(journals: Journals) -> Journal:
    return journals()


def a_job(*argv: str, env: dict[str, str] | None = None, **changes: Any) -> NewJob:
    """Return a job to submit; words that are not of a command are for its spec."""
    shared = {"cwd": "/tmp", "environment": env or {"A": "1"}, "umask": 0o22}
    names = ("cwd", "umask", "notify")
    shared |= {name: changes.pop(name) for name in names if name in changes}
    names = ("name", "log", "extra", "arguments")
    own = {name: changes.pop(name) for name in names if name in changes}
    return NewJob(a_spec(0, **changes), argv or ("true",), SharedCommand(**shared), **own)


def submit(journal: Journal, *jobs: NewJob, key: str = "", **options: Any) -> int:
    first, is_new = journal.submit(key or os.urandom(8).hex(), jobs or [a_job()], **options)
    assert is_new
    return first


def state(job: int, state: JobState = QUEUED, **changes: Any) -> SaveState:
    values = {"attempt": 0, "tries_left": 0, "memory_attempt": 0, "is_held": False, "priority": 0,
              "place": job} | changes  # fmt: skip
    return SaveState(job, state, **values)


def end(job: int, reason: EndReason = EndReason.OK, exit: Exit | None = None) -> SaveEnd:
    return SaveEnd(job, reason, "", exit)


def row(journal: Journal, job: int) -> dict[str, Any]:
    (found,) = journal.rows("jobs.id = ?", [job], "jobs.id", 1)
    return found


# --- accepting -----------------------------------------------------------------------------


def test_ids_count_up_from_one(journal: Journal) -> None:
    assert submit(journal, a_job(), a_job(), a_job()) == 1
    assert submit(journal) == 4
    assert [kept.spec.id for kept in journal.kept()] == [1, 2, 3, 4]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_ids_are_never_given_again(journals: Journals, clock: Clock, is_reopened: bool) -> None:
    journal = journals()
    submit(journal, a_job(), a_job())
    journal.write([end(1), end(2)])
    clock.at += 10
    assert journal.clean(clock.at) == [(1, 0), (2, 0)]
    assert submit(journals() if is_reopened else journal) == 3


def test_a_submit_sent_again_is_the_same_submit(journals: Journals, clock: Clock) -> None:
    journal = journals()
    assert journal.submit("aaaa", [a_job(), a_job()]) == (1, True)
    assert journal.submit("bbbb", [a_job()]) == (3, True)
    for is_reopened in (False, True):
        again = journals() if is_reopened else journal
        assert again.submit("aaaa", [a_job(), a_job()]) == (1, False)
        assert again.first_of("bbbb") == 3
        assert again.first_of("cccc") is None
        assert len(again.kept()) == 3


def test_a_key_outlives_its_jobs_by_a_week(journal: Journal, clock: Clock) -> None:
    submit(journal, key="aaaa")
    journal.write([end(1)])
    clock.at += 7 * 86400 - 1
    journal.clean(clock.at)
    assert journal.first_of("aaaa") == 1
    clock.at += 2
    journal.clean(clock.at)
    assert journal.first_of("aaaa") is None


def test_a_held_submit_is_held_from_its_first_moment(journals: Journals) -> None:
    submit(journals(), a_job(), a_job(), is_held=True)
    submit(journals(), a_job())
    assert [kept.is_held for kept in journals().kept()] == [True, True, False]


def test_jobs_are_read_as_they_were_submitted(journals: Journals) -> None:
    wish: dict[str, Any] = {
        "job_type": "/a/train.py", "label": "train.py", "gpus": 2, "mem_bytes": 1 << 40,
        "is_exclusive": True, "priority": -7, "after": (After(1), After(2, must_be_ok=False)),
        "retries": 3, "may_requeue": True,
    }  # fmt: skip
    submit(journals(), a_job(), a_job())
    submit(journals(), a_job(**wish))
    plain, _, full = journals().kept()
    assert plain == Kept(a_spec(1), QUEUED, place=1)
    assert full == Kept(a_spec(3, **wish), QUEUED, tries_left=3, place=3)


def test_a_command_is_read_as_it_was_submitted(journals: Journals) -> None:
    argv = ("python", "-c", "print('é\n')", "\0\xff\xfe", "")
    own = {"cwd": "/a b", "umask": 0o77, "name": "n", "notify": "mail me", "time_limit_s": 1.5}
    env = {"PATH": "/bin", "EMPTY": "", "é": "ü"}
    submit(journals(), a_job(*argv, env=env, extra={"I": "4"}, arguments={"bs": 8.0}, **own))
    journal = journals()
    command = journal.command(1)
    assert (command.argv, command.environment, command.extra) == (argv, env, {"I": "4"})
    assert {name: getattr(command, name) for name in own} == own
    assert journal.told(1) == ({"bs": 8.0}, "")
    assert journal.notify_of(1) == "mail me"


# --- environments --------------------------------------------------------------------------


def test_a_job_is_submitted_again_as_a_new_one_of_its_own(journals: Journals) -> None:
    journal = journals()
    first = submit(journal, a_job("sleep", "1"))
    spec = {
        "gpus": 2, "mem_bytes": 1 << 30, "is_exclusive": True, "priority": 1, "retries": 3,
        "may_requeue": True, "group": "g", "policy": "pack", "after": (After(first),),
        "submitter": "boot 1 2", "is_fail_fast": True, "on": "a100|h100", "without": ("0",),
        "time_limit_s": 60.0,
    }  # fmt: skip
    given = a_job("train", name="n", extra={"X": "1"}, arguments={"lr": 0.1}, **spec)
    job_id = submit(journal, replace(given, code="fingerprint"))
    journal.write([state(job_id, priority=7)])

    again = journals().submitted_again(job_id, 41)
    alone = {"priority": 7, "after": (), "submitter": "", "is_fail_fast": False}
    assert again.spec == given.spec._replace(id=41, **alone)
    assert (again.extra, again.arguments, again.code) == ({"X": "1"}, {"lr": 0.1}, "")
    assert (tuple(again.argv), again.shared) == (given.argv, given.shared)


def test_a_state_is_told_of_jobs_that_are_known(journal: Journal) -> None:
    first = submit(journal, a_job(), a_job())
    journal.write([end(first)])
    assert [journal.state_of(job) for job in (first, first + 1, 99)] == ["ended", "queued", None]


def environments(journal: Journal) -> int:
    with sqlite3.connect(journal.path) as db:
        return int(db.execute("SELECT count(*) FROM environments").fetchone()[0])


def test_an_environment_is_stored_once(journals: Journals) -> None:
    journal = journals()
    one, alike, other = {"A": "1", "B": "2"}, {"B": "2", "A": "1"}, {"A": "2"}
    submit(journal, a_job(env=one), a_job(env=alike), a_job(env=other))
    submit(journal, a_job(env=one))
    assert [journal.command(job).environment for job in (1, 2, 3, 4)] == [one, one, other, one]
    assert journal.command(1).environment_id == journal.command(4).environment_id
    journal.close()
    assert environments(journal) == 2
    journals("elsewhere")  # so that nobody closes it twice


def test_an_environment_goes_with_its_last_job(journals: Journals, clock: Clock) -> None:
    journal = journals()
    submit(journal, a_job(env={"A": "1"}), a_job(env={"A": "1"}), a_job(env={"A": "2"}))
    journal.write([end(1), end(3)])
    journal.clean(clock.at)
    assert journal.command(2).environment == {"A": "1"}
    journal.close()
    assert environments(journal) == 1
    journals("elsewhere")


def test_a_new_environment_is_not_taken_for_one_that_was_cleaned(
    journal: Journal, clock: Clock
) -> None:
    """Whoever has seen the old one, here or in a shim, must not find it under the same number."""
    submit(journal, a_job(env={"SECRET": "old"}))
    old = journal.command(1)
    journal.write([end(1)])
    journal.clean(clock.at)
    submit(journal, a_job(env={"SECRET": "new"}))
    new = journal.command(2)
    assert new.environment == {"SECRET": "new"}
    assert new.environment_id != old.environment_id


# --- what happens to a job -----------------------------------------------------------------


def test_what_is_saved_of_a_job_is_read_again(journals: Journals) -> None:
    submit(journals(), a_job(), a_job())
    change = state(2, STOPPING, attempt=3, tries_left=1, memory_attempt=2, priority=5, place=-9)
    journals().write([change, SaveBegin(2, 3, "L", (0,), 1), TellEnded(1, EndReason.OK)])
    kept = journals().kept()[1]
    assert kept == Kept(
        a_spec(2, priority=5), STOPPING, attempt=3, tries_left=1, memory_attempt=2, place=-9,
        lease="L",
    )  # fmt: skip
    other_boot = journals(boot="boot-2").kept()[1]
    assert other_boot == kept._replace(lease="", is_same_boot=False)


def test_an_attempt_whose_begin_is_missing_is_not_run_again(journals: Journals) -> None:
    submit(journals())
    journals().write([state(1, STARTING, attempt=1)])
    (kept,) = journals(boot="boot-2").kept()
    assert "is not run again" in kept.fault
    assert kept.is_same_boot, "its shim may live"


def test_an_attempt_is_told_from_its_begin_to_its_end(journals: Journals, clock: Clock) -> None:
    submit(journals())
    journal = journals()
    journal.write([state(1, STARTING, attempt=1), SaveBegin(1, 1, "L", (0, 3), 77)])
    assert [(one.lease, one.is_same_boot) for one in journals().kept()] == [("L", True)]
    after_boot = journals(boot="boot-2").kept()
    assert [(one.lease, one.is_same_boot) for one in after_boot] == [("", False)]
    journal = journals()
    assert row(journal, 1)["started_at"] == 1000.0
    exit = Exit(3, resident_bytes=5, ran_s=2.5, ended_at=1234.0)
    journal.write([SaveAttemptEnd(1, 1, EndReason.FAILED, exit, 99)])
    (told,) = journal.attempts(1)
    assert told == {
        "attempt": 1, "lease": "L", "gpus": "0,3", "reserved_bytes": 77, "began_at": 1000.0,
        "ended_at": 1234.0, "ran_s": 2.5, "reason": "failed", "status": 3, "signal": None,
        "peak_bytes": 99, "resident_bytes": 5, "text": "",
    }  # fmt: skip


def test_an_end_is_final_and_told(journals: Journals, clock: Clock) -> None:
    submit(journals(), a_job(), a_job())
    clock.at = 2000.0
    journal = journals()
    journal.write([SaveEnd(1, EndReason.FAILED, "it broke", Exit(None, 9, ended_at=1500.0))])
    journal.write([SaveEnd(2, EndReason.CANCELLED, "", None)])
    journal = journals()
    assert journal.kept() == []
    assert journal.end_of(1) == {
        "id": 1, "reason": "failed", "text": "it broke", "status": None, "signal": 9, "attempt": 0,
    }  # fmt: skip
    assert journal.end_of(3) is None
    assert [row(journal, job)["ended_at"] for job in (1, 2)] == [1500.0, 2000.0]
    assert journal.ended_well([1, 2, 3]) == {1: False, 2: False}


def test_only_ok_is_a_good_end(journal: Journal) -> None:
    submit(journal, *[a_job() for _ in EndReason])
    journal.write([end(job, reason) for job, reason in enumerate(EndReason, 1)])
    ends = journal.ended_well(range(1, len(EndReason) + 1))
    good = [reason for job, reason in enumerate(EndReason, 1) if ends[job]]
    assert good == [EndReason.OK]


def test_the_number_of_ended_jobs_is_always_known(journals: Journals, clock: Clock) -> None:
    journal = journals()
    submit(journal, a_job(), a_job(), a_job())
    assert journal.ended == 0
    journal.write([end(1), end(2)])
    assert journal.ended == 2
    assert journals().ended == 2
    journal = journals()
    journal.clean(clock.at)
    assert journal.ended == 0


def test_only_what_ended_long_enough_ago_is_forgotten(journal: Journal, clock: Clock) -> None:
    submit(journal, a_job(), a_job(), a_job())
    journal.write([state(1, STARTING, attempt=2), SaveBegin(1, 2, "L", (0,), 1), end(1)])
    clock.at += 100
    journal.write([end(2)])
    assert journal.clean(clock.at - 50) == [(1, 2)]
    assert journal.attempts(1) == []
    assert [kept.spec.id for kept in journal.kept()] == [3]
    assert journal.end_of(2) is not None


def test_the_switch_stays_as_it_was_left(journals: Journals) -> None:
    assert not journals().is_drained()
    for is_drained in (True, False):
        journals().write([SaveDrain(is_drained)])
        assert journals().is_drained() == is_drained


def test_rows_are_for_people(journal: Journal) -> None:
    submit(journal, a_job("sh", "-c", "x", name="n", priority=3), a_job(), a_job(priority=1))
    journal.write([state(1, STARTING, attempt=1), SaveBegin(1, 1, "L", (2,), 55)])
    told = row(journal, 1)
    assert (told["argv"], told["name"], told["gpus"], told["lease"]) == (
        '["sh","-c","x"]', "n", "2", "L",
    )  # fmt: skip
    ids = [one["id"] for one in journal.rows("state = ?", ["queued"], "priority DESC, place", 9)]
    assert ids == [3, 2]
    assert len(journal.rows("1", [], "jobs.id", 2)) == 2


# --- damaged rows --------------------------------------------------------------------------


def spoil(path: Path, sql: str, *values: Any) -> None:
    """Change a journal that nobody has open, and not its checksums."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(sql, values)


def test_a_damaged_row_is_told_of_and_harms_no_other(journals: Journals, tmp_path: Path) -> None:
    submit(journals(), a_job("a"), a_job("b"), a_job("c"))
    journals("other")
    spoil(tmp_path / "queue" / "queue.sqlite3", "UPDATE jobs SET extra = '{' WHERE id = 2")
    journal = journals()
    assert [bool(one.fault) for one in journal.kept()] == [False, True, False]
    assert [journal.command(job).argv for job in (1, 3)] == [("a",), ("c",)]
    with pytest.raises(DamagedRow, match="damaged"):
        journal.command(2)
    assert row(journal, 2)["argv"] == '["b"]'


CHANGES = pytest.mark.parametrize(
    "change",
    ["argv = '[\"rm\"]'", "cwd = '/'", "umask = 0", "notify = 'rm x'", "time_limit_s = 1",
     "mem_bytes = 1", "environment = 2", "tries_left = 9", "is_held = 1", "state = 'queuec'"],
)  # fmt: skip


@CHANGES
def test_a_row_that_reads_well_but_is_not_what_was_written_is_damaged(
    journals: Journals, tmp_path: Path, change: str
) -> None:
    submit(journals(), a_job("b", notify="mail"), a_job(env={"B": "2"}))
    journals("other")
    spoil(tmp_path / "queue" / "queue.sqlite3", f"UPDATE jobs SET {change} WHERE id = 1")
    damaged, good = journals().kept()
    assert damaged.fault
    assert not good.fault


@CHANGES
def test_a_damaged_row_is_found_between_rows_like_it(
    journals: Journals, tmp_path: Path, change: str
) -> None:
    submit(journals(), *(a_job("b", notify="mail") for _ in range(3)))
    journals("other")
    spoil(tmp_path / "queue" / "queue.sqlite3", f"UPDATE jobs SET {change} WHERE id = 2")
    assert [bool(one.fault) for one in journals().kept()] == [False, True, False]


def test_rows_are_read_as_written_whatever_is_beside_them(journals: Journals) -> None:
    shapes: list[dict[str, Any]] = [
        {}, {}, {"gpus": 2}, {"gpus": 2, "retries": 1}, {"job_type": "other"}, {"priority": 5},
        {"group": "g"}, {"group": "g", "tags": ("a", "b")}, {}, {"time_limit_s": 2.5},
        {"without": ("0",)}, {"cwd": "/"}, {},
    ]  # fmt: skip
    jobs = [a_job(str(number), **shape) for number, shape in enumerate(shapes)]
    submit(journals(), *jobs)
    journals().write([state(2, tries_left=0, priority=7), state(3, is_held=True)])
    found = journals().kept()
    wanted = [job.spec._replace(id=number) for number, job in enumerate(jobs, 1)]
    wanted[1] = wanted[1]._replace(priority=7)
    wanted[2] = wanted[2]._replace(priority=0)
    assert [one.spec for one in found] == wanted
    assert [one.is_held for one in found] == [number == 2 for number in range(len(jobs))]
    assert [one.place for one in found] == list(range(1, len(jobs) + 1))


def test_a_damaged_environment_is_not_used_and_mended_by_the_next_submit(
    journals: Journals, tmp_path: Path
) -> None:
    submit(journals(), a_job(env={"A": "1"}), a_job(env={"B": "2"}))
    journals("other")
    spoil(tmp_path / "queue" / "queue.sqlite3", "UPDATE environments SET body = ? WHERE id = 1",
          b'{"A": "2"}')  # fmt: skip
    journal = journals()
    with pytest.raises(DamagedRow, match="environment"):
        journal.command(1)
    assert journal.command(2).environment == {"B": "2"}
    submit(journal, a_job(env={"A": "1"}))
    assert [journal.command(job).environment for job in (1, 3)] == [{"A": "1"}] * 2


def test_the_latest_attempt_of_a_job_whose_state_is_damaged_is_still_looked_for(
    journals: Journals, tmp_path: Path
) -> None:
    submit(journals())
    journals().write([state(1, STARTING, attempt=1), SaveBegin(1, 1, "L", (0,), 7)])
    journals("other")
    spoil(tmp_path / "queue" / "queue.sqlite3", "UPDATE jobs SET attempt = 3, state = 'x'")
    (found,) = journals().kept()
    assert (found.state, found.attempt, bool(found.fault)) == (STARTING, 1, True)


def test_a_damaged_attempt_has_no_lease_and_no_boot(journals: Journals, tmp_path: Path) -> None:
    submit(journals())
    journals().write([state(1, STARTING, attempt=1), SaveBegin(1, 1, "L", (0,), 7)])
    journals("other")
    spoil(tmp_path / "queue" / "queue.sqlite3", "UPDATE attempts SET boot = 'boot-0'")
    assert journals().kept()[0].lease == ""


def test_an_ended_job_with_a_damaged_state_has_ended_as_it_did(
    journals: Journals, tmp_path: Path
) -> None:
    submit(journals(), a_job(), a_job())
    journals().write([end(1, EndReason.FAILED), end(2)])
    journals("other")
    spoil(tmp_path / "queue" / "queue.sqlite3", "UPDATE jobs SET state = 'endee' WHERE id = 1")
    spoil(tmp_path / "queue" / "queue.sqlite3", "UPDATE jobs SET reason = NULL WHERE id = 2")
    journal = journals()
    assert journal.kept() == []
    assert [journal.end_of(job)["reason"] for job in (1, 2)] == ["failed", "lost"]  # type: ignore[index]
    assert journal.ended == 2


@pytest.mark.parametrize("column", ["name", "checksum"])
def test_a_damaged_identity_is_found_again_by_its_folder(
    journals: Journals, tmp_path: Path, column: str
) -> None:
    identity = journals().identity
    for name in (identity, "0123456789abcdef"):
        (tmp_path / "queue" / "jobs" / name).mkdir(parents=True)
    journals("other")
    spoil(tmp_path / "queue" / "queue.sqlite3", f"UPDATE identity SET {column} = 'ab'")
    assert journals().identity == identity
    assert journals().identity == identity


def test_an_id_is_not_given_again_though_the_last_one_given_is_damaged(
    journals: Journals, tmp_path: Path
) -> None:
    submit(journals(), a_job(), a_job())
    for value in (0, "x", 1 << 62):
        journals("other")
        spoil(tmp_path / "queue" / "queue.sqlite3", "UPDATE sqlite_sequence SET seq = ?", value)
        last = max(one.spec.id for one in journals().kept())
        assert submit(journals()) == last + 1


def test_a_broken_index_is_made_anew(journals: Journals, tmp_path: Path) -> None:
    submit(journals(), a_job(), a_job())
    journals("other")
    path = tmp_path / "queue" / "queue.sqlite3"
    with closing(sqlite3.connect(path)) as db:
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'jobs_by_state'")
        at = (root.fetchone()[0] - 1) * db.execute("PRAGMA page_size").fetchone()[0]
    data = path.read_bytes()
    spot = data.index(b"queued", at)
    path.write_bytes(data[:spot] + b"ended " + data[spot + 6 :])
    journal = journals()
    assert not journal.trouble
    assert [one.spec.id for one in journal.kept() if not one.fault] == [1, 2]


def test_a_job_that_ended_in_the_future_is_forgotten_in_time(
    journal: Journal, clock: Clock
) -> None:
    submit(journal, a_job(), a_job())
    journal.write([end(1, exit=Exit(0, ended_at=clock.at + 1e9)), end(2)])
    assert journal.clean(clock.at - 50) == []
    clock.at += 100
    assert journal.clean(clock.at - 50) == [(1, 0), (2, 0)]


# --- a file that is removed ----------------------------------------------------------------


def _remove_all(path: Path) -> None:
    shutil.rmtree(path.parent)


def _remove_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


@pytest.mark.parametrize("remove", [_remove_all, _remove_log])
def test_a_journal_that_was_removed_is_written_anew_before_anything_is_acknowledged(
    journals: Journals, tmp_path: Path, remove: Callable[[Path], None]
) -> None:
    journal = journals()
    submit(journal, a_job("a"), key="aaaa")
    remove(tmp_path / "queue" / "queue.sqlite3")
    assert submit(journal, a_job("b")) == 2
    identity = journal.identity
    os.rename(tmp_path / "queue", tmp_path / "seen")  # as it is for whoever comes next
    journals("other")
    later = journals("seen")
    assert [later.command(job).argv for job in (1, 2)] == [("a",), ("b",)]
    assert (later.identity, later.first_of("aaaa")) == (identity, 1)


def test_what_cannot_be_written_anew_is_refused_and_not_accepted_later(
    journals: Journals, tmp_path: Path
) -> None:
    journal = journals()
    submit(journal)
    shutil.rmtree(tmp_path / "queue")
    (tmp_path / "queue").write_text("in the way")
    with pytest.raises(NotWritten, match="was removed under this queue") as caught:
        submit(journal, key="bbbb")
    assert "Running jobs go on" in caught.value.hint
    (tmp_path / "queue").unlink()
    assert journal.first_of("bbbb") is None
    assert submit(journal, key="bbbb") == 2
    assert (tmp_path / "queue" / "queue.sqlite3").stat().st_mode & 0o777 == 0o600


def test_a_disk_that_does_not_give_a_record_back_is_one_clear_line(
    journals: Journals, tmp_path: Path
) -> None:
    submit(journals(), *(a_job("x" * 1000) for _ in range(5000)))  # more than is kept in memory
    journal = journals()
    os.truncate(tmp_path / "queue" / "queue.sqlite3", 4096)
    with pytest.raises(MachineError, match="cannot be read") as caught:
        journal.rows("1", [], "jobs.id", 5000)
    assert caught.value.exit_code == 4
    assert "Running jobs go on" in caught.value.hint


def test_another_file_in_its_place_is_left_alone(journals: Journals, tmp_path: Path) -> None:
    journal = journals()
    submit(journal)
    path = tmp_path / "queue" / "queue.sqlite3"
    path.unlink()
    path.write_text("somebody else's")
    with pytest.raises(NotWritten, match="replaced by another file"):
        submit(journal)
    assert path.read_text() == "somebody else's"


# --- the file ------------------------------------------------------------------------------


def test_only_its_user_can_read_it(journals: Journals, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        journal = journals()
        submit(journal)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "queue").stat().st_mode) == 0o700
    for path in (tmp_path / "queue").iterdir():
        if path.name.startswith("queue.sqlite3"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_newer_file_is_refused_in_plain_words(journals: Journals, tmp_path: Path) -> None:
    journals().close()
    with closing(sqlite3.connect(tmp_path / "queue" / "queue.sqlite3")) as db, db:
        db.execute("ALTER TABLE jobs ADD COLUMN newer TEXT")
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(MachineError, match="written by a newer grn"):
        journals()


@pytest.mark.parametrize("number", [0, 1, SCHEMA_VERSION + 1, 1 << 20, -(1 << 31) + 4])
def test_a_damaged_version_number_costs_no_job(
    journals: Journals, tmp_path: Path, number: int
) -> None:
    journal = journals()
    submit(journal, a_job())
    journal.close()
    with closing(sqlite3.connect(tmp_path / "queue" / "queue.sqlite3")) as db:
        db.execute(f"PRAGMA user_version={number}")

    journal = journals()
    assert [one.fault for one in journal.kept()] == [""]
    assert not journal.trouble


@pytest.mark.parametrize(
    ("at", "value"),
    [(b"INTEGER NOT NULL, place", b"INTE\xc7ER NOT NULL, place"), (b"mem_bytes", b"mem\xdfbytes")],
)
def test_a_journal_with_a_damaged_schema_is_set_aside(
    journals: Journals, tmp_path: Path, at: bytes, value: bytes
) -> None:
    journals().close()
    path = tmp_path / "queue" / "queue.sqlite3"
    path.write_bytes(path.read_bytes().replace(at, value))

    assert "set aside" in journals().trouble


def test_a_journal_of_a_format_that_sqlite_refuses_is_set_aside(
    journals: Journals, tmp_path: Path
) -> None:
    journals().close()
    path = tmp_path / "queue" / "queue.sqlite3"
    data = bytearray(path.read_bytes())
    data[47] = 5
    path.write_bytes(data)

    assert "set aside" in journals().trouble


_NEW = {  # columns that a version of the schema brought
    2: ["jobs.code"],
    3: ["jobs.spared", "attempts.text"],
    4: ["jobs.checksum", "jobs.state_checksum", "attempts.checksum", "identity.checksum"],
    5: ["jobs.group_name", "jobs.submitter", "jobs.log", "jobs.is_fail_fast"],
    6: ["jobs.policy"],
    7: ["jobs.at"],
    8: ["jobs.options"],
    9: [],  # more names in jobs.options
    10: ["jobs.tags"],
    11: [],  # the table of arrays
}


def make_older(path: Path, version: int) -> None:
    """Give a journal that nobody has open the form it had in an older version."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE arrays")
        for newer in range(version + 1, SCHEMA_VERSION + 1):
            for table, column in (one.split(".") for one in _NEW[newer]):
                db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        db.execute(f"PRAGMA user_version={version}")


@pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 35), reason="SQLite cannot drop columns")
def test_a_journal_of_an_older_grn_is_brought_up_to_date(
    journals: Journals, tmp_path: Path
) -> None:
    journal = journals()
    submit(journal, a_job(arguments={"bs": 8.0}))
    journal.close()
    make_older(tmp_path / "queue" / "queue.sqlite3", 1)

    journal = journals()
    assert [one.fault for one in journal.kept()] == [""]
    submit(journal, replace(a_job(), code="0abc1234"))

    assert journal.told(1) == ({"bs": 8.0}, "")
    assert journal.told(2) == ({}, "0abc1234")


@pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 35), reason="SQLite cannot drop columns")
def test_the_journal_of_an_older_grn_is_read_and_goes_on(
    journals: Journals, tmp_path: Path
) -> None:
    journal = journals()
    job = submit(journal)
    journal.write([state(job, STARTING, attempt=1), SaveBegin(job, 1, "L", (0,), 7)])
    journals("other")
    make_older(tmp_path / "queue" / "queue.sqlite3", 2)
    journal = journals()
    (found,) = journal.kept()
    assert (found.spec.id, found.state, found.spared, found.fault) == (job, STARTING, 0, "")
    assert (found.lease, found.is_same_boot) == ("L", True)
    assert journal.command(job).argv == ("true",)
    exit = Exit(None, 15, EndReason.REQUEUED)
    journal.write([SaveAttemptEnd(job, 1, EndReason.REQUEUED, exit, 5, "b.py beside it grows")])
    journal.write([state(job, QUEUED, attempt=1, spared=2)])
    assert journals().kept()[0].spared == 2
    assert [one["text"] for one in journals().attempts(job)] == ["b.py beside it grows"]


def test_a_broken_journal_is_set_aside_and_told_of(journals: Journals, tmp_path: Path) -> None:
    broken = tmp_path / "queue" / "queue.sqlite3"
    broken.parent.mkdir()
    broken.write_text("this is no database" * 100)
    journal = journals()
    aside = tmp_path / "queue" / "queue.sqlite3.broken-1"
    assert aside.read_text().startswith("this is no database")
    assert str(aside) in journal.trouble
    submit(journal)


def test_an_id_whose_files_are_there_is_not_given_to_another_job(
    journals: Journals, tmp_path: Path
) -> None:
    """A journal may lack its latest changes, and their files may be there."""
    journal = journals()
    submit(journal)
    files = tmp_path / "queue" / "jobs" / journal.identity
    for name in ("0/7.1", "1/1003.2", "1/1004.1"):
        (files / name).mkdir(parents=True)
    (files / "1" / "1005.1.run").touch()
    (files / "1" / "notes.txt").touch()
    assert submit(journals()) == 1006
    assert submit(journals()) == 1007


def test_a_damaged_log_of_a_killed_queue_is_told_of_and_kept(
    journals: Journals, tmp_path: Path
) -> None:
    journal = journals()
    for _ in range(6):
        submit(journal)
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "queue", killed)  # it is still open
    wal = bytearray((killed / "queue.sqlite3-wal").read_bytes())
    wal[len(wal) // 2] ^= 1
    (killed / "queue.sqlite3-wal").write_bytes(wal)
    again = journals("killed")
    aside = killed / "queue.sqlite3-wal.broken-1"
    assert str(aside) in again.trouble
    assert "changes before the queue was killed cannot be read" in again.trouble
    assert aside.read_bytes() == wal
    assert again.is_drained()  # a job that waits may have run
    again = journals("killed")
    assert (again.trouble, again.is_drained()) == ("", True)


def test_a_journal_made_anew_keeps_its_jobs_apart_from_older_ones(
    journals: Journals, tmp_path: Path
) -> None:
    first = journals().identity
    assert journals().identity == first
    (tmp_path / "queue" / "queue.sqlite3").unlink()
    assert journals().identity != first


def test_a_place_that_cannot_be_used_is_named(journals: Journals, tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("")
    with pytest.raises(MachineError, match="cannot be used") as caught:
        journals()
    assert "GRN_STATE_DIR" in caught.value.hint


def test_two_queues_cannot_write_one_file(journals: Journals, tmp_path: Path) -> None:
    submit(journals())
    other = sqlite3.connect(tmp_path / "queue" / "queue.sqlite3", timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("SELECT * FROM jobs")
    other.close()


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Let no file of this process grow past the size one has now."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_the_disk_does_not_take_counts_for_nothing(journal: Journal, tmp_path: Path) -> None:
    submit(journal)
    with full_disk(tmp_path / "queue" / "queue.sqlite3-wal"):
        with pytest.raises(NotWritten, match="cannot be written"):
            journal.write([end(1)])
        with pytest.raises(NotWritten):
            journal.submit("dddd", [a_job("x" * 100_000)])
        assert journal.ended == 0
        assert [kept.spec.id for kept in journal.kept()] == [1]
    assert journal.first_of("dddd") is None
    assert submit(journal) == 2
    journal.write([end(1)])
    assert journal.ended == 1


def test_some_disk_is_kept_back_for_the_day_it_is_full(journals: Journals, tmp_path: Path) -> None:
    journal = journals()
    ballast = tmp_path / "queue" / "ballast"
    assert ballast.stat().st_size > 1 << 20
    with full_disk(tmp_path / "queue" / "queue.sqlite3-wal"):
        with pytest.raises(NotWritten):
            submit(journal)
        assert ballast.exists()  # it is not there for new work
        with pytest.raises(NotWritten):
            journal.write([SaveDrain(True)])
    assert not ballast.exists()
    journals()
    assert ballast.exists()


# --- the copy ------------------------------------------------------------------------------


def jobs_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT count(*) FROM jobs").fetchone()[0])


def test_a_copy_is_made_when_there_is_something_new(journal: Journal, tmp_path: Path) -> None:
    copy = tmp_path / "queue" / "queue.copy.sqlite3"
    submit(journal, a_job(), a_job())
    assert journal.keep_copy(0)
    assert jobs_in(copy) == 2
    assert copy.stat().st_mode & 0o777 == 0o600

    os.utime(copy, (time.time() + 60,) * 2)
    assert not journal.keep_copy(0)  # nothing was written since
    os.utime(copy, (time.time() - 60,) * 2)
    submit(journal)
    assert not journal.keep_copy(3600)  # it is young
    assert journal.keep_copy(30)
    assert jobs_in(copy) == 3
    assert sorted(path.name for path in copy.parent.glob("*.copy*")) == [copy.name]


def test_a_copy_that_fails_leaves_the_old_one(journal: Journal, tmp_path: Path) -> None:
    copy = tmp_path / "queue" / "queue.copy.sqlite3"
    submit(journal)
    assert journal.keep_copy(0)
    (tmp_path / "queue" / "queue.copy.sqlite3.new").mkdir()
    submit(journal)

    assert not journal.keep_copy(0)
    assert jobs_in(copy) == 1
    assert row(journal, 2)["state"] == "queued"


def test_a_journal_with_a_broken_page_is_set_aside_and_its_copy_kept(
    journals: Journals, tmp_path: Path
) -> None:
    journal = journals()
    submit(journal, *(a_job("x" * 500) for _ in range(100)))
    assert journal.keep_copy(0)
    journal.close()
    path = tmp_path / "queue" / "queue.sqlite3"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\x07" * 4096)

    begun = journals()

    kept = tmp_path / "queue" / "queue.copy.sqlite3.kept-1"
    assert str(kept) in begun.trouble
    assert jobs_in(kept) == 100
    assert begun.kept() == []


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("", [1, 2, 3]),
        ("FIT.py", [1, 2]),
        ("fit lr=0.1", [1]),
        ("fit nothing", []),
        ('naïve "q"', [2]),
        ("node7", [3]),
        ("held", [3]),
        ("%", []),
        ("' OR 1 --", []),
        ("2", [2]),
    ],
)
def test_jobs_are_found_by_words_of_their_text(
    journal: Journal, words: str, ids: list[int]
) -> None:
    submit(journal, a_job("python", "fit.py", "lr=0.1", name="a"))
    submit(journal, a_job("python", "fit.py", 'naïve "q"', name="b"))
    submit(journal, a_job("true", name="c"))
    journal.write([SaveBegin(3, 1, "site/node7/L", (0,), 55), state(3, attempt=1, is_held=True)])

    condition, values = matching(words)
    found = journal.rows(f"1{condition}", values, "jobs.id", 9)
    assert [one["id"] for one in found] == ids
    assert journal.count(f"1{condition}", values) == len(ids)


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("grid[2", [2, 3]),
        ("grid[25]", [3]),
        ("GRID", [1, 2, 3]),
        ("fit.py[7]", [4]),
        ("[", [*range(1, 5)]),
    ],
)
def test_jobs_of_an_array_are_found_by_their_index(
    journal: Journal, words: str, ids: list[int]
) -> None:
    for name, index in (("grid", "1"), ("grid", "2"), ("grid", "25"), ("", "7")):
        job = a_job("true", name=name, label="fit.py", extra={"GRN_ARRAY_INDEX": index})
        submit(journal, job)
    submit(journal, a_job("true", name="alone"))

    condition, values = matching(words)
    found = journal.rows(f"1{condition}", values, "jobs.id", 9)
    assert [one["id"] for one in found] == ids


def test_the_folder_that_is_sent_with_a_job_is_kept_with_it(journals: Journals) -> None:
    sent = SentFolder("/state/sent/x.tar", "0" * 64, 10, 3, (("a.py", 4, 5),))
    job = a_job()
    shared = replace(job.shared, send=sent, fetch=("out/*",))
    job_id = submit(journals(), replace(job, shared=shared))
    journal = journals()

    command = journal.command(job_id)
    again = journal.submitted_again(job_id, 99)
    assert (command.send, command.fetch) == (sent, ("out/*",))
    assert (again.shared.send, again.shared.fetch) == (sent, ("out/*",))
    assert [one.fault for one in journal.kept()] == [""]
