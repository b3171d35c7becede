"""grn is updated while jobs run: nothing is lost, nothing runs twice, every status is kept."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from grn.proc.processes import boot_id
from grn.queue.local import attempt_files as attempts
from tests.harness import GRN, ROOT, wait_for
from tests.queue_faults.rig import Rig, gone

DATA = ROOT / "tests" / "data"
OLDER = ("b8da9a9", "c0475fd", "1493129")  # one for each form of an attempt that was ever written
BEFORE_ARRAYS = "2e25fdd"  # its queue knows jobs alone
COMMAND = "import sys; sys.argv[0] = 'grn'; from grn.front.main import main; sys.exit(main())"


# --- what an older queue has left ----------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("queue-*")))
def test_what_an_older_queue_has_left_is_taken_over(rig: Rig, name: str) -> None:
    folder = rig.state / "queue"
    shutil.copytree(DATA / name / "jobs", folder / "jobs")
    with closing(sqlite3.connect(rig.database())) as db, db:
        db.executescript((DATA / name / "queue.sql").read_text())
        db.execute("UPDATE attempts SET boot = ?", (boot_id(),))
    rig.start()
    ends = {job: rig.ended(job) for job in range(1, 5)}

    found = {job: (row["reason"], row["status"], row["attempt"]) for job, row in ends.items()}
    assert found == {
        1: ("ok", 0, 1), 2: ("failed", 3, 1), 3: ("failed", 5, 1), 4: ("lost", None, 1),
    }  # fmt: skip
    assert (rig.row(5)["state"], rig.row(5)["attempt"]) == ("held", 0)
    rig.ask("hold", jobs=[5], held=False)
    assert rig.ended(5)["reason"] == "ok"


# --- an update under running jobs ----------------------------------------------------------


class Older:
    """The grn of an older commit, used by its own command line."""

    def __init__(self, rig: Rig, commit: str) -> None:
        self._rig = rig
        self.folder = rig.story.folder / "older"
        self.folder.mkdir()
        archive = subprocess.run(
            ["git", "-C", ROOT, "archive", commit, "src"], capture_output=True, check=False
        )
        if archive.returncode:
            pytest.skip(f"NOT TESTED: the history of this clone has no commit {commit}")
        subprocess.run(["tar", "-x", "-C", self.folder], input=archive.stdout, check=True)

    def grn(self, *words: str | Path) -> None:
        """Run a command of the older grn."""
        path = str(self.folder / "src")
        is_former = (self.folder / "src" / "grn" / "front").exists()
        argv = [*((sys.executable, "-c", COMMAND) if is_former else GRN), *words]
        self._rig.story.start(*argv, env={"PYTHONPATH": path}).ended_well()

    def submit(self, line: str, *options: str) -> None:
        self.grn("submit", "--mem", "8MiB", *options, "--", "/bin/sh", "-c", line)


class Jobs:
    """Jobs that say each time that they run, and wait until they are let go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def line(self, name: str, status: int = 0) -> str:
        gate = self._folder / f"{name}.go"
        runs = f"echo {name} >>{self._folder}/runs"
        return f"{runs}; until [ -e {gate} ]; do sleep 0.02; done; exit {status}"

    def let_go(self, name: str) -> None:
        (self._folder / f"{name}.go").touch()

    def runs(self) -> list[str]:
        path = self._folder / "runs"
        return sorted(path.read_text().split()) if path.exists() else []


@pytest.mark.parametrize("commit", OLDER)
def test_jobs_go_on_when_grn_is_updated_under_them(rig: Rig, commit: str) -> None:
    older, jobs = Older(rig, commit), Jobs(rig.story.folder)
    names = ("alive", "over", "cancelled", "held")
    older.submit(jobs.line(names[0], 4))
    older.submit(jobs.line(names[1], 5))
    older.submit(jobs.line(names[2]))
    older.submit(jobs.line(names[3], 6), "--hold")
    wait_for(lambda: len(jobs.runs()) == 3, lambda: f"three jobs to run: {jobs.runs()}")
    shims = {job: _shim_of(rig, job) for job in (1, 2, 3)}
    older.grn("queue", "stop")
    older.grn("stop")
    jobs.let_go("over")
    gone([shims[2]])

    rig.start()
    rig.ended(2)
    assert {job: row["state"] for job, row in rig.rows().items()} == {
        1: "running", 2: "ended", 3: "running", 4: "held",
    }  # fmt: skip
    wait_for(lambda: len(rig.leases() or ()) == 2, "the leases of two jobs to be adopted")
    rig.ask("cancel", jobs=[3])
    rig.ask("hold", jobs=[4], held=False)
    for name in ("alive", "held"):
        jobs.let_go(name)
    ends = {job: rig.ended(job) for job in range(1, 5)}

    found = {job: (row["reason"], row["status"], row["attempt"]) for job, row in ends.items()}
    assert found[1] == ("failed", 4, 1)
    assert found[2] == ("failed", 5, 1)
    assert found[3][0] == "cancelled"
    assert found[4] == ("failed", 6, 1)
    assert jobs.runs() == sorted(names), "each ran once"
    assert rig.no_lease_left()


def test_arrays_are_submitted_to_and_listed_from_a_queue_that_was_not_restarted(rig: Rig) -> None:
    Older(rig, BEFORE_ARRAYS).grn("queue", "start")
    words = (
        "--hold",
        "--name",
        "grid",
        "--array",
        "3-1204%2",
        "--shell",
        "--",
        "echo $GRN_ARRAY_INDEX",
    )
    submitted = rig.story.start(*GRN, "submit", *words).ended_well()
    assert [int(word) for word in submitted.out.split()] == list(range(1, 1203))
    (row,) = rig.story.start(*GRN, "ls").ended_well().out.splitlines()[1:]
    assert row.split()[:3] == ["1-1202", "1202", "held"]
    assert "grid[3-1204]: echo $GRN_ARRAY_INDEX" in row
    last = rig.row(1202)
    assert (last["array_index"], last["array_limit"]) == ("1204", 2)
    pid = rig.ask("ping")["pid"]
    rig.ask("stop")
    gone([pid])


def _shim_of(rig: Rig, job: int) -> int:
    """Return the pid of the shim of an attempt in whichever form, once it has claimed it."""

    def claim() -> str:
        roots = (rig.state / "queue" / "jobs").glob("*")
        found = [attempts.read_claim(str(root / "0" / f"{job}.1")) for root in roots]
        return next((one for one in found if one), "")

    return int(wait_for(claim, f"a claim of {job}").split()[0])


def test_a_shim_of_the_first_form_that_wakes_up_late_finds_its_attempt_forbidden(
    tmp_path: Path,
) -> None:
    """It looks at files in the folder of the attempt, and not at the record beside it."""
    folder = str(tmp_path / "0" / "7.1")
    assert attempts.forbid(folder)
    with pytest.raises(FileExistsError):
        os.close(os.open(os.path.join(folder, "claim"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    assert attempts.read_claim(folder) == attempts.FORBIDDEN
