"""G15, G16: a disk that is full or fails: refused with the reason, never accepted and lost.

Running jobs go on, their ends are written down, and all is well again when the disk is.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grn.errors import GrnError
from tests.harness import wait_for
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.disks import cut_disk, small_disk
from tests.queue_faults.engines import GRN
from tests.queue_faults.ledger import Ledger
from tests.queue_faults.rig import Rig, pause

DISK_BYTES = 8 << 20


class SmallDisk:
    """A queue whose state is on a disk that can be filled up and emptied again."""

    def __init__(self, rig: Rig, point: Path) -> None:
        self.rig = rig
        self._ballast = point / "somebody-elses"
        self.ledger = Ledger(rig.story.folder / "ledger")
        self.refused: list[str] = []
        self._count = 0
        rig.state = point / "state"
        rig.story.env["GRN_STATE_DIR"] = str(rig.state)
        rig.start_negotiator(GRN_STATE_DIR=str(rig.story.folder / "state"))

    def fill(self) -> None:
        """Take all that is left of the disk, and all that is let go."""
        with self._ballast.open("ab") as file:
            fd = file.fileno()
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        os.write(fd, b"x" * size)
                except OSError:
                    pass

    def empty(self) -> None:
        self._ballast.unlink()

    def submit(self, seconds: float = 0.0, status: int = 0, gate: Path | None = None) -> int | None:
        """Submit a job; None when it is refused, which must have a reason."""
        self._count += 1
        name = f"j{self._count}"
        command = self.ledger.command(name, seconds, status, gate)
        try:
            job = self.rig.submit(command)
        except GrnError as error:
            self.refused.append(str(error))
            del self.ledger.wanted[name]
            return None
        self.ledger.note(name, job)
        return job

    def complaints(self) -> list[str]:
        """Let all come to an end and compare."""
        wait_for(lambda: not self.rig.ask("list", which="alive")["jobs"], self.rig.tail)
        return self.ledger.check(self.rig.rows())


@contextmanager
def _on_small_disk(rig: Rig) -> Iterator[SmallDisk]:
    with small_disk(rig.story.folder, DISK_BYTES) as point:
        disk = SmallDisk(rig, point)
        rig.start()
        try:
            yield disk
        finally:
            rig.close()


def _until_refused(disk: SmallDisk) -> None:
    """Fill the disk until the queue takes nothing any more, not even what it had kept back."""
    for _ in range(200):
        disk.fill()
        if disk.submit() is None:
            disk.fill()
            if disk.submit() is None:
                disk.fill()
                return
    raise AssertionError("the queue accepts on a full disk")


def _fill_and_empty(rig: Rig, cycles: int) -> list[str]:
    """Let jobs run while the disk fills up, end while it is full, and look at them afterwards."""
    with _on_small_disk(rig) as disk:
        for _ in range(cycles):
            for seconds in (0.2, 0.5, 1.5):
                disk.submit(seconds, status=3)
            wait_for(lambda: len(disk.ledger.begun()) >= len(disk.ledger.told), "all to run")
            _until_refused(disk)
            wait_for(lambda: disk.ledger.over() >= 2, "two to end on a full disk")
            pause(0.2)
            disk.empty()
            wait_for(lambda: disk.submit() is not None, "the queue to accept again")
            wait_for(lambda: not rig.ask("list", which="alive")["jobs"], "all to end")
        complaints = disk.complaints()
        complaints += [text for text in disk.refused if "cannot be written" not in text]
        assert disk.refused
    return complaints


def test_a_full_disk_refuses_with_the_reason_and_loses_nothing(rig: Rig) -> None:
    assert not _fill_and_empty(rig, 3)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_hundred_full_disks_lose_nothing(rigs: Rigs) -> None:
    for _ in range(20):  # ten times each: then what was accepted begins to fill so small a disk
        assert not _fill_and_empty(rigs(), 10)


def test_the_queue_starts_on_a_full_disk_and_adopts_its_jobs(rig: Rig) -> None:
    with _on_small_disk(rig) as disk:
        gate = rig.story.folder / "gate"
        running = [disk.submit(status=7, gate=gate) for _ in range(3)]
        wait_for(lambda: len(disk.ledger.begun()) == 3, "all to run")
        _until_refused(disk)
        assert rig.queue is not None
        rig.queue.kill()
        disk.fill()
        rig.start()
        assert {rig.row(job)["state"] for job in running if job} <= {"starting", "running"}
        disk.fill()
        gate.touch()
        disk.empty()
        wait_for(lambda: disk.submit() is not None, "the queue to accept again")

        assert not disk.complaints()


def test_a_change_that_a_dead_disk_does_not_take_is_not_told_as_done(rig: Rig) -> None:
    with cut_disk(rig.story.folder) as disk:
        rig.state = disk.point / "state"
        rig.start_negotiator()
        rig.story.env["GRN_STATE_DIR"] = str(rig.state)
        rig.start()
        held, running = rig.submit(["true"], held=True), rig.submit(["sleep", "600"])
        rig.running(running)
        disk.cut()
        changes = (f"cancel {running}", f"release {held}", f"move --front {held}", "drain")
        for words in changes:
            ended = rig.story.start(*GRN, *words.split()).wait()
            assert ended.code == 0, ended.err
            assert ended.err.startswith("warning: not done yet: "), ended.err
            assert "queue.sqlite3 cannot be written" in ended.err
        rig.close()


def test_the_check_finds_out_a_queue_that_accepts_what_it_could_not_write(rigs: Rigs) -> None:
    rig = rigs("swallow-errors")
    try:
        complaints = _fill_and_empty(rig, 1)
    except (AssertionError, GrnError) as error:
        complaints = [str(error)]

    assert complaints


# --- calls that fail -----------------------------------------------------------------------

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None or os.getuid() != 0,
    reason="STRACE IS MISSING, or we are not root: no failing call was tried",
)


@contextmanager
def _failing(pid: int, call: str, error: str, when: str) -> Iterator[None]:
    """Let some of the system calls of a process fail."""
    what = f"inject={call}:error={error}:when={when}"
    argv = ["strace", "-p", str(pid), "-o", "/dev/null", "-e", f"trace={call}", "-e", what]
    tracer = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    status = Path(f"/proc/{pid}/status")
    try:
        wait_for(lambda: "TracerPid:\t0\n" not in status.read_text(), "strace to attach")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()


def _fail_one_by_one(rig: Rig, calls: tuple[str, ...], errors: tuple[str, ...], most: int) -> str:
    """Fail the Nth call of each kind while jobs are submitted, then kill the queue and compare."""
    ledger = Ledger(rig.story.folder / "ledger")
    rig.start()
    refused = 0
    for call in calls:
        for error in errors:
            for number in range(1, most + 1):
                assert rig.queue is not None
                with _failing(rig.queue.pid, call, error, f"{number}"):
                    for turn in range(3):
                        name = f"{call}.{error}.{number}.{turn}"
                        try:
                            ledger.note(name, rig.submit(ledger.command(name)))
                        except GrnError:
                            refused += 1
                            del ledger.wanted[name]
                if number % 3 == 0:
                    rig.restart()
    rig.restart()
    wait_for(lambda: not rig.ask("list", which="alive")["jobs"], rig.tail)
    told = set(ledger.told.values())
    rows = {job_id: row for job_id, row in rig.rows().items() if job_id in told}
    complaints = ledger.check(rows)
    print(f"{refused} refused, {len(rig.rows()) - len(rows)} of them are there all the same")
    assert refused, "no call failed"
    return "\n".join(complaints)


@needs_strace
def test_a_call_that_fails_never_becomes_an_answer(rig: Rig) -> None:
    assert not _fail_one_by_one(rig, ("pwrite64", "fdatasync"), ("EIO", "ENOSPC"), most=6)


@pytest.mark.soak
@needs_strace
@pytest.mark.timeout(400)
def test_no_call_that_fails_becomes_an_answer(rig: Rig) -> None:
    calls, errors = ("pwrite64", "fdatasync", "fsync"), ("EIO", "ENOSPC", "EDQUOT")
    assert not _fail_one_by_one(rig, calls, errors, most=24)


@needs_strace
def test_the_check_finds_out_a_queue_that_takes_a_failed_write_for_a_good_one(rigs: Rigs) -> None:
    rig = rigs("swallow-errors")
    try:
        complaints = _fail_one_by_one(rig, ("pwrite64", "fdatasync"), ("EIO",), most=6)
    except AssertionError as error:
        complaints = str(error)

    assert complaints
