"""What is remembered: through kills, full disks and broken files."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grn.errors import MachineError
from grn.model.job import Outcome
from grn.model.units import GiB
from grn.negotiator.actions import (
    Action,
    DropBooking,
    DropLease,
    DropProfile,
    DropWaiting,
    SaveBooking,
    SaveLease,
    SaveNumber,
    SaveRun,
    SaveWaiting,
)
from grn.negotiator.events import Booking, SaveUse
from grn.negotiator.learn.memory import profiling
from grn.negotiator.storage.schema import SCHEMA_VERSION
from grn.negotiator.storage.store import FILE_NAME, Remembered, Store, without_undone
from tests.builders import a_holder, a_lease, a_run
from tests.harness import SOURCES, Story, wait_for
from tests.negotiator.live import OTHER_UID, Client, begin, needs_root, negotiator_of

BOOT = "this boot"


def a_saved_run(job_type: str = "t", peak_bytes: int = GiB, model: str = "m") -> SaveRun:
    run = a_run(peak_bytes, arguments=(("bs", 8.0), ("net", "res")))
    return SaveRun(job_type, model, job_type, 1000, run)


def some_actions() -> list[Action]:
    return [
        SaveLease(a_lease("a", pid=77)),
        SaveLease(a_lease("b", gpus=("GPU-0", "GPU-1"))),
        SaveWaiting("second", 2, a_holder(5)),
        SaveWaiting("first", 1),
        a_saved_run(),
        a_saved_run(peak_bytes=2 * GiB),
        SaveNumber("how many", 0.5),
    ]


@contextlib.contextmanager
def a_store(folder: Path, boot: str = BOOT) -> Iterator[Store]:
    store = Store(str(folder), boot)
    try:
        yield store
    finally:
        store.close()


def saved(folder: Path, boot: str = BOOT) -> Remembered:
    with a_store(folder, boot) as store:
        return store.load()


def on_disk(folder: Path, table: str) -> int:
    """Count the rows of a table as another process would find them after a kill."""
    shutil.copytree(folder, folder.parent / "copy", dirs_exist_ok=True)
    with contextlib.closing(sqlite3.connect(folder.parent / "copy" / FILE_NAME)) as db:
        return int(db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def test_the_end_of_a_lease_that_was_kept_is_written_with_the_next_lease(tmp_path: Path) -> None:
    """Else both could be found after a kill, on a GPU that has room for one."""
    folder = tmp_path / "state"
    with a_store(folder) as store:
        store.write([SaveLease(a_lease("a"))])
        store.keep([a_saved_run(), DropLease("lease-a")])
        assert store.unwritten == 2
        assert on_disk(folder, "leases") == 1

        store.write([SaveLease(a_lease("b"))])

        assert (on_disk(folder, "leases"), on_disk(folder, "runs")) == (1, 0)
        store.write(())  # what was learned can wait, but not for long
        assert on_disk(folder, "runs") == 1
        assert store.unwritten == 0


@pytest.mark.parametrize("known", [True, False])
def test_a_lease_takes_the_row_of_the_one_that_ended(tmp_path: Path, known: bool) -> None:
    """In one statement; a lease that never had a row is no hindrance."""
    folder = tmp_path / "state"
    with a_store(folder) as store:
        if known:
            store.write([SaveLease(a_lease("a"))])
        store.keep([DropLease("lease-a")])
        store.write([SaveLease(a_lease("b", pid=5))])
        store.keep([DropLease("lease-b")])
        store.write([SaveLease(a_lease("c", pid=6))])
    assert saved(folder).leases == (a_lease("c", pid=6),)


def test_what_was_learned_and_kept_is_written_before_it_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with a_store(folder) as store:
        store.keep([a_saved_run("t")])
        store.write([DropProfile("t")])
    assert saved(folder).profiles == ()


def test_what_was_kept_is_written_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with a_store(folder) as store:
        store.keep([a_saved_run("t")])
    assert len(saved(folder).profiles) == 1


def all_is_there(found: Remembered) -> None:
    assert {lease.id: lease for lease in found.leases} == {
        "lease-a": a_lease("a", pid=77),
        "lease-b": a_lease("b", gpus=("GPU-0", "GPU-1")),
    }
    assert found.waiting == (SaveWaiting("first", 1), SaveWaiting("second", 2, a_holder(5)))
    (profile,) = found.profiles
    assert [run.peak_bytes for run in profile.runs] == [GiB, 2 * GiB]
    assert profile.runs[0].arguments == (("bs", 8.0), ("net", "res"))
    assert found.numbers == (("how many", 0.5),)


def changed(folder: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / FILE_NAME)) as db, db:
        for sql in statements:
            db.execute(sql)


def test_a_fresh_store_remembers_nothing(tmp_path: Path) -> None:
    assert saved(tmp_path / "new" / "folder") == Remembered((), (), ())


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.write(some_actions())

    all_is_there(saved(tmp_path))


def test_bookings_are_kept_over_reboots_until_they_are_dropped(tmp_path: Path) -> None:
    first, second = (
        Booking(number, 1000, "ada", 2, 1e9, 1e9 + 60.0, ("GPU-1", "GPU-2"), ("GPU-1", "GPU-2"))
        for number in (1, 2)
    )
    with a_store(tmp_path) as store:
        store.write([SaveBooking(first), SaveBooking(second), DropBooking(2)])

    assert saved(tmp_path, "another boot").bookings == (first,)


def test_a_damaged_booking_is_set_aside(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.write([SaveBooking(Booking(1, 1000, "ada", 1, 1e9, 1e9 + 60.0))])
    changed(tmp_path, "UPDATE bookings SET body = replace(body, '1000', '1001')")

    assert saved(tmp_path).bookings == ()
    assert saved(tmp_path) == saved(tmp_path)


def killed_while_writing(folder: Path) -> None:
    """Write in a process that ends before it can tidy up."""
    code = (
        "import os, sys; from tests.negotiator.test_store import *\n"
        "store = Store(sys.argv[1], BOOT)\n"
        "store.write(some_actions())\n"
        "os.kill(os.getpid(), 9)"
    )
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join((str(SOURCES), str(root)))
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == -signal.SIGKILL


def test_what_was_written_is_there_after_a_kill(tmp_path: Path) -> None:
    killed_while_writing(tmp_path)

    all_is_there(saved(tmp_path))


def test_what_users_have_had_is_kept_over_reboots_until_it_has_faded(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.write([SaveUse(1000, 2.5, 100.0), SaveUse(1001, 1.0, 100.0)])
        store.write([SaveUse(1000, 3.5, 200.0), SaveUse(1001, 0.0, 200.0)])

    assert saved(tmp_path, "another boot").uses == (SaveUse(1000, 3.5, 200.0),)


def test_of_what_users_have_had_only_the_latest_waits_for_a_full_disk() -> None:
    uses = [SaveUse(user, float(n), float(n)) for n in range(100) for user in (1, 2)]

    assert without_undone(uses, set()) == uses[-2:]


def test_what_was_dropped_is_gone(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.write(some_actions())
        store.write([DropLease("lease-a"), DropLease("lease-b"), DropLease("never-there")])
        store.write([DropWaiting("first"), DropWaiting("second"), DropProfile("t")])

    assert saved(tmp_path) == Remembered((), (), (), (), (("how many", 0.5),))


def test_a_lease_that_changed_is_saved_over_itself(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.write([SaveLease(a_lease("a", 4 * GiB)), SaveLease(a_lease("a", 2 * GiB))])

    assert saved(tmp_path).leases == (a_lease("a", 2 * GiB),)


def test_after_a_reboot_only_what_was_learned_is_left(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.write(some_actions())

    found = saved(tmp_path, "next boot")

    assert (found.leases, found.waiting) == ((), ())
    assert len(found.profiles) == 1
    assert saved(tmp_path).leases == ()  # and for good


def test_of_a_type_so_many_runs_are_kept(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.write(a_saved_run(peak_bytes=n) for n in range(1, profiling.RUNS_KEPT + 11))
        store.write([a_saved_run("other")])

    runs = {profile.job_type: profile.runs for profile in saved(tmp_path).profiles}
    assert [run.peak_bytes for run in runs["t"]] == list(range(11, profiling.RUNS_KEPT + 11))
    assert len(runs["other"]) == 1


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    old_mask = os.umask(0)
    try:
        with a_store(tmp_path / "state") as store:
            store.write(some_actions())
            modes = {
                path.name: stat.S_IMODE(path.stat().st_mode)
                for path in (tmp_path / "state").iterdir()
            }
    finally:
        os.umask(old_mask)

    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert FILE_NAME in modes
    assert set(modes.values()) == {0o600}


# --- what cannot be read -------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE leases SET body = x'00ff' WHERE id = 'lease-a'",
        "UPDATE leases SET body = '{}' WHERE id = 'lease-a'",
        "UPDATE leases SET body = 5 WHERE id = 'lease-a'",
        "UPDATE leases SET body = replace(body, '\"held\"', '\"flying\"') WHERE id = 'lease-a'",
    ],
)
def test_a_lease_that_cannot_be_read_is_left_out_and_the_rest_is_there(
    tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    with a_store(tmp_path) as store:
        store.write(some_actions())
    changed(tmp_path, spoil)

    assert [lease.id for lease in saved(tmp_path).leases] == ["lease-b"]
    assert "set-aside lease=lease-a" in caplog.text
    caplog.clear()
    assert len(saved(tmp_path).waiting) == 2
    assert caplog.text == ""  # said once


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE runs SET outcome = 'exploded' WHERE id = 1",
        "UPDATE runs SET peak_bytes = 'much' WHERE id = 1",
        "UPDATE runs SET duration_s = x'00' WHERE id = 1",
        "UPDATE runs SET arguments = 'nonsense' WHERE id = 1",
        "UPDATE runs SET arguments = '[[1,2]]' WHERE id = 1",
        "UPDATE runs SET arguments = CAST(x'ff5b5d' AS TEXT) WHERE id = 1",
        "UPDATE runs SET owner = 'me' WHERE id = 1",
    ],
)
def test_a_run_that_cannot_be_read_is_left_out_and_the_rest_is_there(
    tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    with a_store(tmp_path) as store:
        store.write(some_actions())
    changed(tmp_path, spoil)

    found = saved(tmp_path)

    (profile,) = found.profiles
    assert [run.peak_bytes for run in profile.runs] == [2 * GiB]
    assert len(found.leases) == 2
    assert "set-aside run=1" in caplog.text


@pytest.mark.parametrize(
    ("table", "spoil"),
    [
        ("leases", "UPDATE leases SET body = replace(body, '77', '78') WHERE id = 'lease-a'"),
        ("runs", "UPDATE runs SET peak_bytes = peak_bytes + 1 WHERE id = 1"),
        ("runs", "UPDATE runs SET job_type = 'u' WHERE id = 1"),
    ],
)
def test_a_row_that_reads_well_but_is_not_what_was_written_is_kept_apart(
    tmp_path: Path, table: str, spoil: str
) -> None:
    with a_store(tmp_path) as store:
        store.write(some_actions())
    changed(tmp_path, spoil)

    found = saved(tmp_path)

    (profile,) = found.profiles
    assert (len(found.leases), len(profile.runs)) == ((1, 2) if table == "leases" else (2, 1))
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        assert [name for (name,) in db.execute("SELECT source FROM set_aside")] == [table]


def test_a_place_that_cannot_be_read_is_left_out_and_the_rest_is_there(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.write(some_actions())
    changed(tmp_path, "UPDATE waiting SET place = 'far' WHERE key = 'first'")

    assert saved(tmp_path).waiting == (SaveWaiting("second", 2, a_holder(5)),)


def _remove_all(folder: Path) -> None:
    shutil.rmtree(folder)


def _remove_log(folder: Path) -> None:
    (folder / f"{FILE_NAME}-wal").unlink()


@pytest.mark.parametrize("remove", [_remove_all, _remove_log])
def test_a_file_that_was_removed_is_written_anew(
    tmp_path: Path, remove: Callable[[Path], None]
) -> None:
    folder = tmp_path / "state"
    with a_store(folder) as store:
        store.write(some_actions()[:3])
        remove(folder)
        store.write(some_actions()[3:])
        store.keep_in_place()
        assert store.trouble is None
        os.rename(folder, tmp_path / "seen")  # as it is for whoever comes next

    all_is_there(saved(tmp_path / "seen"))


def test_a_file_that_cannot_be_written_anew_is_told_of(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with a_store(folder) as store:
        store.write(some_actions())
        (folder / FILE_NAME).unlink()
        (folder / FILE_NAME).write_text("somebody else's")
        store.keep_in_place()
        assert "another file is in its place" in (store.trouble or "")
    assert (folder / FILE_NAME).read_text() == "somebody else's"


def spoiled(path: Path, how: str) -> bytes:
    """Break a database and return what is left of it."""
    good = path.read_bytes()
    bad = {
        "garbage": b"this is no database" * 500,
        "header only": good[:100],
        "first page": good[:4096],
        "half": good[: len(good) // 2],
        "not a page": good[:-1000],
        "holes": good[:4096] + bytes(len(good) - 4096),
        "noise": good[:4096] + b"\xa5" * (len(good) - 4096),
        "another's": None,
    }[how]
    if bad is None:
        path.unlink()
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE TABLE recipes (name TEXT)")
        return path.read_bytes()
    path.write_bytes(bad)
    return bad


@pytest.mark.parametrize(
    "how",
    [
        "garbage", "header only", "first page", "half", "not a page", "holes", "noise", "another's",
    ],
)  # fmt: skip
def test_a_broken_file_is_set_aside_and_the_negotiator_begins_anew(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with a_store(tmp_path) as store:
        store.write(some_actions())
    left = spoiled(tmp_path / FILE_NAME, how)

    assert saved(tmp_path) == Remembered((), (), ())

    aside = tmp_path / f"{FILE_NAME}.broken-1"
    assert aside.read_bytes()[100:] == left[100:]  # SQLite may have touched its header
    assert f"to={aside}" in caplog.text
    with a_store(tmp_path) as store:
        store.write(some_actions())
    all_is_there(saved(tmp_path))


def test_each_broken_file_is_kept_under_a_name_of_its_own(tmp_path: Path) -> None:
    for number in range(1, 4):
        (tmp_path / FILE_NAME).write_bytes(b"garbage %d" % number * 100)
        saved(tmp_path)

    aside = sorted(path.name for path in tmp_path.glob("*.broken-*"))
    assert aside == [f"{FILE_NAME}.broken-{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize("part", [FILE_NAME, f"{FILE_NAME}-wal"])
def test_a_file_that_broke_in_a_crash_begins_anew_or_is_healed(tmp_path: Path, part: str) -> None:
    killed_while_writing(tmp_path)
    (tmp_path / part).write_bytes(os.urandom(9000))

    saved(tmp_path)

    with a_store(tmp_path) as store:
        store.write([DropProfile("t"), *some_actions()])
    all_is_there(saved(tmp_path))


@pytest.mark.parametrize("content", [b"", b"x"])  # SQLite takes both for a file just made
def test_an_empty_file_is_a_fresh_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)

    assert saved(tmp_path) == Remembered((), (), ())
    assert list(tmp_path.glob("*.broken-*")) == []


def test_a_file_of_a_newer_grn_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.write(some_actions())
    changed(tmp_path, "ALTER TABLE runs ADD COLUMN newer TEXT")
    changed(tmp_path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")

    with pytest.raises(MachineError, match="written by a newer grn") as caught:
        Store(str(tmp_path), BOOT)

    assert "GRN_STATE_DIR" in caught.value.hint
    changed(tmp_path, f"PRAGMA user_version = {SCHEMA_VERSION}")
    all_is_there(saved(tmp_path))


def test_a_folder_that_another_negotiator_uses_is_refused(tmp_path: Path) -> None:
    """Two with the same state but different sockets would overwrite each other."""
    with a_store(tmp_path) as store:
        store.write(some_actions())
        with pytest.raises(MachineError, match="locked") as caught:
            Store(str(tmp_path), BOOT)

    assert "End the negotiator" in caught.value.hint


def test_a_file_in_place_of_the_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(MachineError, match="cannot be used") as caught:
        Store(str(tmp_path / "file"), BOOT)

    assert "\n" not in str(caught.value)


# --- when the disk does not take it --------------------------------------------------------


@contextlib.contextmanager
def no_room(limit_bytes: int = 8 << 10) -> Iterator[None]:
    """Let no file of this process grow beyond a few pages, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def is_written(store: Store) -> bool:
    store.write(())
    return store.trouble is None


def test_what_the_disk_does_not_take_is_written_as_soon_as_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with a_store(tmp_path) as store:
        with no_room():
            for _ in range(3):
                store.write(some_actions()[:4])
            store.write(some_actions()[4:])
            assert store.trouble is not None
            assert str(tmp_path) in store.trouble
        wait_for(lambda: is_written(store), "room to be noticed")

    all_is_there(saved(tmp_path))
    assert caplog.text.count("save-later") == 1  # not once for each event
    assert caplog.text.count("saved-again") == 1


def test_a_last_try_is_made_at_the_end(tmp_path: Path) -> None:
    store = Store(str(tmp_path), BOOT)
    with no_room():
        store.write(some_actions())
        assert store.trouble is not None
    store.close()

    all_is_there(saved(tmp_path))


def test_a_long_trouble_does_not_fill_the_memory(tmp_path: Path) -> None:
    """Thousands of jobs come and go meanwhile; only what is true at the end matters."""
    with a_store(tmp_path) as store:
        store.write([SaveLease(a_lease("old"))])
        with no_room():
            for number in range(5000):
                key = str(number)
                store.write([SaveWaiting(key, number)])
                store.write([DropWaiting(key), SaveLease(a_lease(key))])
                store.write([a_saved_run(peak_bytes=number + 1), DropLease(f"lease-{key}")])
            store.write([DropLease("lease-old"), SaveLease(a_lease("new"))])
            few = profiling.RUNS_KEPT + 2
            wait_for(lambda: not is_written(store) and store.unwritten <= few, "a tidy memory")
        wait_for(lambda: is_written(store), "room to be noticed")

    found = saved(tmp_path)
    assert [lease.id for lease in found.leases] == ["lease-new"]
    assert found.waiting == ()
    assert len(found.profiles[0].runs) == profiling.RUNS_KEPT


LEASE, NEW_LEASE = SaveLease(a_lease("a")), SaveLease(a_lease("a", GiB))
ON_DISK = {("leases", "lease-a"), ("waiting", "a")}


@pytest.mark.parametrize(
    ("actions", "on_disk", "left"),
    [
        ([], (), []),
        ([LEASE], (), [LEASE]),
        ([LEASE, NEW_LEASE], (), [NEW_LEASE]),
        ([LEASE, DropLease("lease-a")], (), []),
        ([LEASE, DropLease("lease-a")], ON_DISK, [DropLease("lease-a")]),
        ([DropLease("lease-a"), LEASE], ON_DISK, [LEASE]),
        ([DropLease("lease-a"), DropLease("lease-a")], ON_DISK, [DropLease("lease-a")]),
        ([SaveWaiting("a", 1), DropWaiting("a")], (), []),
        ([SaveWaiting("a", 1), DropWaiting("a")], ON_DISK, [DropWaiting("a")]),
        ([SaveWaiting("a", 1), SaveWaiting("a", 2)], (), [SaveWaiting("a", 2)]),
        ([SaveWaiting("lease-a", 1), DropLease("lease-a")], (), [SaveWaiting("lease-a", 1)]),
        ([a_saved_run("x"), DropProfile("x")], (), [DropProfile("x")]),
        ([DropProfile("x"), a_saved_run("x")], (), [DropProfile("x"), a_saved_run("x")]),
        ([a_saved_run("x"), DropProfile("y")], (), [a_saved_run("x"), DropProfile("y")]),
        (
            [a_saved_run("x", n) for n in range(1, profiling.RUNS_KEPT + 3)],
            (),
            [a_saved_run("x", n) for n in range(3, profiling.RUNS_KEPT + 3)],
        ),
    ],
)
def test_only_what_a_later_action_undoes_is_left_out(
    actions: list[Action], on_disk: set[tuple[str, str]], left: list[Action]
) -> None:
    assert without_undone(actions, on_disk) == left


# --- a real negotiator on a real disk ------------------------------------------------------


@pytest.fixture
def small_disk(story: Story) -> Iterator[Path]:
    """Put the state of a story on a disk of one MiB."""
    folder = story.folder / "state"
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here: run the tests as root for this one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all that is left of a disk."""
    path = folder / "filling"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return path


def test_a_full_disk_stops_no_job_and_all_is_written_when_it_has_room_again(
    small_disk: Path, negotiator: Callable[..., Any], story: Story
) -> None:
    started = negotiator("virtual:2x64GiB")
    with Client(next((story.folder / "run").glob("*.sock"))) as client:
        filling = fill(small_disk)
        leases = [client.lease(type=f"t{n}", label="x" * 200) for n in range(8)]
        assert all(answer["ev"] == "granted" for answer in leases)
        assert client.ask("done", lease=leases[0]["lease"], outcome="ok", resident=GiB)["ok"]
        assert "cannot be written" in started.status()["trouble"]

        filling.unlink()

        wait_for(lambda: started.status()["trouble"] is None, "room to be noticed")
        started.kill()
        started.start()
        kept = {lease["id"] for lease in started.leases()}
        assert kept == {answer["lease"] for answer in leases[1:]}
        assert [profile["type"] for profile in started.profiles()] == ["t0"]
    assert started.log.count("save-later") == 1


def test_a_negotiator_starts_on_a_full_disk_with_all_it_remembers(
    small_disk: Path, negotiator: Callable[..., Any], story: Story
) -> None:
    started = negotiator("virtual:2x64GiB")
    with Client(next((story.folder / "run").glob("*.sock"))) as client:
        lease = client.lease()["lease"]
        started.kill()
        fill(small_disk)

        started.start()

        assert [row["id"] for row in started.leases()] == [lease]


def test_a_broken_file_does_not_keep_a_negotiator_from_starting(
    negotiator: Callable[..., Any], story: Story
) -> None:
    (story.folder / "state").mkdir()
    (story.folder / "state" / FILE_NAME).write_bytes(os.urandom(20_000))

    started = negotiator()

    assert started.status()["trouble"] is None
    assert f"{FILE_NAME}.broken-1" in started.log


@needs_root
def test_a_state_folder_that_cannot_be_written_is_one_clear_line(story: Story) -> None:
    os.chown(story.folder, OTHER_UID, OTHER_UID)
    state = story.folder / "state"
    state.mkdir(mode=0o755)  # and root's

    begun = begin(story, negotiator_of(OTHER_UID, "--gpus", "virtual:1x1GiB"))
    code, said = begun.end()

    assert begun.first_line.startswith("error: the state folder")
    assert code == 4
    assert "Traceback" not in said
    assert "hint: Make it writable, or name another in GRN_STATE_DIR." in said


def test_a_newer_file_is_one_clear_line(story: Story) -> None:
    state = story.folder / "state"
    with a_store(state):
        pass
    changed(state, "ALTER TABLE runs ADD COLUMN newer TEXT")
    changed(state, "PRAGMA user_version = 99")

    begun = begin(story, negotiator_of(None, "--gpus", "virtual:1x1GiB"))
    code, said = begun.end()

    assert begun.first_line.startswith("error: ")
    assert "schema 99" in begun.first_line
    assert code == 4
    assert "Traceback" not in said


def test_outcomes_are_remembered_by_name(tmp_path: Path) -> None:
    runs = [a_run(GiB, outcome) for outcome in Outcome]
    with a_store(tmp_path) as store:
        store.write(SaveRun("t", "m", "t", 0, run) for run in runs)

    assert saved(tmp_path).profiles[0].runs == tuple(runs)


def test_a_file_of_the_first_version_is_read_and_brought_up_to_date(tmp_path):
    """Runs saved before loads were learned count as before."""
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.executescript(
            "CREATE TABLE leases (id TEXT PRIMARY KEY, boot TEXT NOT NULL, body BLOB NOT NULL);"
            "CREATE TABLE waiting (key TEXT PRIMARY KEY, boot TEXT NOT NULL, place INTEGER,"
            " pid INTEGER, started_ticks INTEGER);"
            "CREATE TABLE runs (id INTEGER PRIMARY KEY, job_type TEXT NOT NULL, model TEXT,"
            " label TEXT, owner INTEGER, outcome TEXT, peak_bytes INTEGER, duration_s REAL,"
            " ended_at REAL, reserved_bytes INTEGER, arguments TEXT, is_full INTEGER);"
            "INSERT INTO runs VALUES (1, 'a', 'M', 'a', 7, 'ok', 5, 1.0, 2.0, 6, '[]', 0);"
            "PRAGMA user_version = 1;"
        )
    for _ in range(2):  # the second time there is nothing to do
        store = Store(str(tmp_path), "boot")
        (profile,) = store.load().profiles
        store.close()

        assert (profile.job_type, profile.runs[0].peak_bytes) == ("a", 5)
        assert (profile.runs[0].load, profile.runs[0].code) == (None, "")


def test_how_a_run_shared_its_gpu_is_remembered(tmp_path):
    run = a_run(GiB, load=0.4, crowd=0.25, beside=(("other", 0.8),), code="0abc1234")
    with a_store(tmp_path) as store:
        store.write([SaveRun("train", "card", "train", 1000, run)])

    (profile,) = saved(tmp_path).profiles
    assert profile.runs == (run,)
