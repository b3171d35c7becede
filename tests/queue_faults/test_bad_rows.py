"""One damaged record harms its own job and no other, and is never run as something else.

Every column of every table is spoilt under jobs that wait, run or have ended. A job runs exactly as
it was submitted, once, or is set aside with a reason.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from grn.errors import GrnError
from grn.negotiator.actions import SaveLease, SaveRun
from grn.negotiator.storage.store import FILE_NAME as NEGOTIATOR_FILE
from grn.negotiator.storage.store import Store
from grn.queue.events import SaveBegin, SaveEnd, SaveState
from grn.queue.jobs.job import EndReason, Exit, JobSpec
from grn.queue.jobs.job import JobState as State
from grn.queue.journal.journal import Journal
from grn.queue.journal.rows import DamagedRow, NewJob, SharedCommand
from tests.builders import a_lease, a_run
from tests.harness import wait_for
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.damage import KINDS, Harm, columns_of, flip_bits, spoil
from tests.queue_faults.rig import Rig

EVIDENCE = 'echo "b $0 $GRN_JOB_ID $PWD $(umask) $MARK $OWN" >> "$1"; {} echo "e $0" >> "$1"'
QUICK = EVIDENCE.format("")
GATED = EVIDENCE.format('until test -e "$2"; do sleep 0.05; done;')
RUNNING_VICTIMS = 10


@dataclass
class Round:
    """Jobs of one journal, most of them with one damaged value each."""

    rig: Rig
    chance: random.Random
    jobs: dict[str, int] = field(default_factory=dict)  # by a name of the test's own
    marks: dict[str, str] = field(default_factory=dict)
    victims: dict[int, Harm] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def book(self) -> Path:
        return self.rig.story.folder / "book"

    def submit(self, prefix: str, count: int, script: str, mark: str = "common") -> list[int]:
        """Submit jobs that leave evidence of what they are run with; return their ids."""
        names = [f"{prefix}{number}" for number in range(count)]
        gate = str(self.rig.story.folder / "gate")
        argvs = [["/bin/sh", "-c", script, name, str(self.book), gate] for name in names]
        request = self.rig.request(argvs, umask=0o27, time_limit_s=1000, retry=1)
        request["env"] = {**request["env"], "MARK": mark}
        request["notify"] = f'echo "n $GRN_JOB_ID" >> {self.book}'
        for name, job in zip(names, request["jobs"], strict=True):
            job["extra"], job["name"] = {"OWN": f"own-{name}"}, name
        first = self.rig.ask("submit", **request)["first"]
        for number, name in enumerate(names):
            self.jobs[name], self.marks[name] = first + number, mark
        return [self.jobs[name] for name in names]

    def prepare(self, of_jobs: list[str], kinds: tuple[str, ...]) -> None:
        """Bring jobs into each state, stop the queue, and damage one value of most of them."""
        self.rig.start()
        ended = self.submit("ended", len(of_jobs) + 20, QUICK)
        for job in ended:
            self.rig.ended(job)
        running = self.submit("running", RUNNING_VICTIMS + 2, GATED)
        wait_for(lambda: len(self.lines("b")) == len(self.jobs), "all to run")
        self.rig.ask("drain")
        queued = self.submit("queued", len(of_jobs) + 3, QUICK)
        apart = [self.submit(f"apart{n}-", 1, QUICK, mark=f"apart{n}")[0] for n in range(3)]
        assert self.rig.queue is not None
        self.rig.queue.stop()
        path = self.rig.database()
        harms = list(self._harms(path, of_jobs, queued, running, ended, kinds))
        if len(of_jobs) > 9:
            harms += self._other_harms(path, apart)
        assert spoil(path, harms, self.chance) > len(harms) // 2

    def _harms(
        self,
        path: Path,
        of_jobs: list[str],
        queued: list[int],
        running: list[int],
        ended: list[int],
        kinds: tuple[str, ...],
    ) -> Iterator[Harm]:
        """Spoil each column in a job that waits and in one that has ended, some in running ones."""
        of_attempts = columns_of(path, "attempts") if len(of_jobs) > 9 else []
        for column, job in zip(of_jobs, queued, strict=False):
            yield self._harm("jobs", column, "id", job, kinds)
        for column, job in zip(of_jobs, ended, strict=False):
            yield self._harm("jobs", column, "id", job, kinds)
        for column, job in zip(of_attempts, ended[len(of_jobs) :], strict=False):
            yield self._harm("attempts", column, "job", job, kinds)
        both = [("jobs", "id", one) for one in of_jobs]
        both += [("attempts", "job", one) for one in of_attempts]
        some = self.chance.sample(both, min(RUNNING_VICTIMS, len(both)))
        for (table, key, column), job in zip(some, running, strict=False):
            yield self._harm(table, column, key, job, kinds)

    def _harm(self, table: str, column: str, key: str, job: int, kinds: tuple[str, ...]) -> Harm:
        self.victims[job] = Harm(table, column, f"{key} = {job}", self.chance.choice(kinds))
        return self.victims[job]

    def _other_harms(self, path: Path, apart: list[int]) -> Iterator[Harm]:
        """Spoil what belongs to several jobs, or to none."""
        for column, job in zip(columns_of(path, "environments"), apart, strict=True):
            where = f"id = (SELECT environment FROM jobs WHERE id = {job})"
            self.victims[job] = Harm("environments", column, where, self.chance.choice(KINDS))
            yield self.victims[job]
        chosen = self.chance.choice
        yield Harm("identity", chosen(("name", "checksum")), "rowid = 1", chosen(KINDS))
        yield Harm("switches", chosen(("name", "value")), "name = 'drained'", chosen(KINDS))
        yield Harm("sqlite_sequence", "seq", "name = 'jobs'", chosen(KINDS))
        for column in columns_of(path, "submits"):
            yield Harm("submits", column, f"first = {chosen(apart)}", chosen(KINDS))

    def run(self) -> list[str]:
        """Start the queue on the damaged journal, let all end, and return all that is wrong."""
        self.rig.start()
        (self.rig.story.folder / "gate").touch()
        self.rig.ask("drain", drained=False)
        later = self.submit("later", 2, QUICK)
        wait_for(lambda: not self.rig.ask("list", which="alive")["jobs"], self.rig.tail)
        rows = self.rig.rows()
        begun: dict[str, list[list[str]]] = defaultdict(list)
        for words in self.lines("b"):
            begun[words[0]].append(words)
        over = {words[0] for words in self.lines("e")}
        wrong = [f"{name} is nobody's" for name in begun.keys() - self.jobs.keys()]
        for name, job in self.jobs.items():
            wrong += self._wrong(name, job, rows.get(job), begun[name], name in over)
        wrong += [f"{words} is no notification" for words in self.lines("n") if len(words) != 1]
        assert later[0] > max(set(self.jobs.values()) - set(later))
        return wrong

    def _wrong(
        self,
        name: str,
        job: int,
        row: dict[str, Any] | None,
        begun: list[list[str]],
        is_over: bool,
    ) -> list[str]:
        harm = self.victims.get(job)
        who = f"{name} ({job}, {harm})"
        right = [
            name,
            str(job),
            str(self.rig.story.folder),
            "0027",
            self.marks[name],
            f"own-{name}",
        ]
        wrong = [f"{who} ran as {words}" for words in begun if words != right]
        if len(begun) > 1:
            wrong.append(f"{who} ran {len(begun)} times")
        if begun and not is_over:
            wrong.append(f"{who} was killed")
        must_run = harm is None or not name.startswith(("queued", "apart"))
        if must_run and not begun:
            wrong.append(f"{who} never ran")
        if row is None:
            is_id = harm is not None and harm.column == "id"
            return wrong if is_id else [*wrong, f"{who} is not listed"]
        shown = self.rig.row(job)
        if harm is None and row["reason"] != "ok":
            wrong.append(f"{who} ended as {row['reason']}: {row['why']}")
        if not begun and (row["reason"] != "lost" or not shown["why"]):
            wrong.append(f"{who} did not run and says {row['reason']} {shown['why']!r}")
        self.ends["run as submitted" if begun else "set aside"] += 1
        return wrong

    def lines(self, kind: str) -> list[list[str]]:
        text = self.book.read_text() if self.book.exists() else ""
        found = [line.split() for line in text.splitlines()]
        return [words[1:] for words in found if words[:1] == [kind]]

    def commands_work(self, script: Path) -> None:
        """Call the commands that people look at jobs with."""
        job = str(
            self.chance.choice([one for one, harm in self.victims.items() if harm.column != "id"])
        )
        for words in (["ls"], ["history"], ["show", job], ["why", job], ["ls", "--json"]):
            ended = self.rig.story.start(script, *words).wait()
            assert ended.code == 0, f"{words}: {ended}"


def _all_columns(rig: Rig) -> list[str]:
    folder = rig.story.folder / "empty"
    Journal(str(folder), "boot", time.time).close()
    return columns_of(folder / "queue.sqlite3", "jobs")


def test_each_damaged_column_harms_its_own_job_at_most(rig: Rig, seed: int, script: Any) -> None:
    one = Round(rig, random.Random(seed))
    one.prepare(_all_columns(rig), KINDS)
    wrong = one.run()
    one.commands_work(script("grn"))

    print(
        f"seed {seed}: {len(one.victims)} values of {len(one.jobs)} jobs damaged: {dict(one.ends)}"
    )
    assert not wrong, "\n".join(wrong)
    assert rig.no_lease_left()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_damaged_columns_harm_their_own_jobs_at_most(rigs: Rigs, seed: int) -> None:
    ends: Counter[str] = Counter()
    damaged = 0
    for turn in range(20):
        rig = rigs()
        one = Round(rig, random.Random(seed + turn))
        one.prepare(_all_columns(rig), KINDS)
        wrong = one.run()
        assert not wrong, f"seed {seed + turn}:\n" + "\n".join(wrong)
        ends += one.ends
        damaged += len(one.victims)
        rig.close()
    print(f"seed {seed}: {damaged} values damaged in 20 journals: {dict(ends)}")


def test_the_check_finds_out_a_queue_that_does_not_compare_checksums(rigs: Rigs, seed: int) -> None:
    one = Round(rigs("no-checksums"), random.Random(seed))
    one.prepare(["argv", "cwd", "extra", "umask"] * 2, ("flipped bit",))
    try:
        wrong = one.run()
    except GrnError as error:  # it breaks at a row that is no JSON any more
        wrong = [str(error)]

    assert wrong


# --- flipped bits of the file --------------------------------------------------------------


def _submitted(number: int) -> NewJob:
    shared = SharedCommand(
        f"/data/{number}", {"MARK": f"{number % 3}" * 50}, 0o22, f"mail {number}"
    )
    return NewJob(
        JobSpec(0, "train", "train", mem_bytes=1 << 20, time_limit_s=60.0),
        ("train", f"--seed={number}"), shared, f"n{number}",
        extra={"OWN": f"{number}"}, arguments={"seed": float(number)},
    )  # fmt: skip


def _made(folder: Path, count: int) -> dict[int, NewJob]:
    """Make a journal with jobs that wait, run and have ended."""
    journal = Journal(str(folder), "boot", time.time)
    jobs = {number: _submitted(number) for number in range(1, count + 1)}
    journal.submit("a-key", list(jobs.values()))
    for number in range(1, count + 1):
        if number % 3:
            begun = SaveState(number, State.STARTING, 1, 0, 0, False, 0, number)
            journal.write([begun, SaveBegin(number, 1, f"lease-{number}", (0,), 1 << 20)])
        if number % 3 == 1:
            journal.write([SaveEnd(number, EndReason.OK, "", Exit(0))])
    journal.close()
    (folder / "ballast").unlink(missing_ok=True)
    return jobs


def _look(folder: Path, jobs: dict[int, NewJob]) -> str:
    """Open a damaged journal and read all of it; return what became of it in a few words."""
    journal = Journal(str(folder), "boot", time.time)
    with closing(journal):
        if journal.trouble:
            return "set aside whole"
        faults = {kept.spec.id for kept in journal.kept() if kept.fault}
        shown = {row["id"]: row for row in journal.rows("1", [], "jobs.id", 1000)}
        for number, job in jobs.items():
            journal.attempts(number)
            try:
                command = journal.command(number)
            except DamagedRow:
                faults.add(number)
                continue
            assert command.argv == job.argv
            assert command.environment == job.shared.environment
            assert (command.cwd, command.umask) == (job.shared.cwd, job.shared.umask)
            assert (command.extra, command.notify) == (job.extra, job.shared.notify)
            assert command.time_limit_s == job.spec.time_limit_s
            assert number in shown
        return "records set aside" if faults else "all well"


def _flip(path: Path, chance: random.Random) -> None:
    """Flip a few bits: anywhere, in the schema, or in the header, where each has a meaning."""
    within = chance.choice((None, None, 4096, 100))
    flip_bits(path, chance.choice((1, 1, 2, 8)), chance, within)


def _flip_often(tmp_path: Path, seed: int, times: int) -> Counter[str]:
    chance = random.Random(seed)
    jobs = _made(tmp_path / "good", 60)
    ends: Counter[str] = Counter()
    for turn in range(times):
        folder = tmp_path / "flipped"
        shutil.copytree(tmp_path / "good", folder)
        _flip(folder / "queue.sqlite3", chance)
        try:
            ends[_look(folder, jobs)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, turn {turn}") from error
        shutil.rmtree(folder)
    print(f"seed {seed}: bits flipped in {times} journals: {dict(ends)}")
    return ends


def _load_flipped(tmp_path: Path, seed: int, times: int) -> Counter[str]:
    """Flip bits of a negotiator's file; each lease it remembers must be one that was saved."""
    chance = random.Random(seed)
    leases = [a_lease(str(number), pid=1000 + number) for number in range(40)]
    good = Store(str(tmp_path / "good"), "boot")
    good.write([SaveLease(one) for one in leases])
    good.write([SaveRun(f"t{n}", "m", "t", 1000, a_run(1 << 30)) for n in range(40)])
    good.close()
    ends: Counter[str] = Counter()
    for turn in range(times):
        folder = tmp_path / "flipped"
        shutil.copytree(tmp_path / "good", folder)
        _flip(folder / NEGOTIATOR_FILE, chance)
        with closing(Store(str(folder), "boot")) as store:
            found = store.load()
        assert set(found.leases) <= set(leases), f"seed {seed}, turn {turn}"
        assert all(run == a_run(1 << 30) for one in found.profiles for run in one.runs)
        is_whole = len(found.leases) == 40 and len(found.profiles) == 40
        ends["all well" if is_whole else "some set aside" if found.leases else "begun anew"] += 1
        shutil.rmtree(folder)
    print(f"seed {seed}: bits flipped in {times} files of a negotiator: {dict(ends)}")
    return ends


def test_flipped_bits_never_change_a_lease(tmp_path: Path, seed: int) -> None:
    assert _load_flipped(tmp_path, seed, 60)["some set aside"]


@pytest.mark.soak
def test_many_flipped_bits_never_change_a_lease(tmp_path: Path, seed: int) -> None:
    assert _load_flipped(tmp_path, seed, 1500)["some set aside"]


def test_flipped_bits_never_change_a_command(tmp_path: Path, seed: int) -> None:
    assert _flip_often(tmp_path, seed, 60)["records set aside"]


@pytest.mark.soak
def test_many_flipped_bits_never_change_a_command(tmp_path: Path, seed: int) -> None:
    assert _flip_often(tmp_path, seed, 1500)["records set aside"]
