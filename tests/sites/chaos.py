"""Random faults on a home and its machines while clients submit; then everything is checked.

Machines lose power and network; agents, pipes and negotiators are killed; the queue at home is
killed, alone or with its machine. The same code runs for half a minute in the tests and for long by
`make soak`.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from grn.daemon.database import checksum
from grn.errors import GrnError
from grn.proc.processes import boot_id
from grn.queue.journal.rows import BEGUN
from tests.harness import wait_for
from tests.queue_faults.rig import Rig, gone, kill, pause
from tests.sites.machines import Machine, NamespaceMachine, machine_of
from tests.sites.pilot_sites import PilotSite
from tests.sites.site_ledger import SiteLedger, Wanted
from tests.sites.site_under_test import SITE, Home, leases_at

EARLIEST_S, LATEST_S = 0.1, 1.2
MAX_OPEN = 24
HEAL_S = 120.0
MORE_S = 60.0
LONG_LIFE_S = 12.0  # of an agent; more than a pilot counts as short
WEIGHTS = {
    "power": 3, "network": 4, "agent": 3, "pipe": 3, "negotiator": 2, "queue": 4, "home": 2,
    "adapter": 3, "engine": 2,
}  # fmt: skip


class SiteRig(Rig):
    """A queue that may have a fault of ours, in what concerns sites."""

    @property
    def queue_argv(self) -> list[str]:
        if self.mutant:
            return [self.python, "-m", "tests.sites.mutants", self.mutant]
        return super().queue_argv


@dataclass
class Result:
    """What a campaign did and found."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    again: int = 0  # attempts beyond the first
    took_s: float = 0.0
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        ends = ", ".join(f"{count} {name}" for name, count in sorted(self.reasons.items()))
        head = (
            f"seed {self.seed}: {self.faults.total()} faults ({faults}) over {self.jobs} jobs"
            f" ({ends}; {self.again} tried again), {len(self.complaints)} violations,"
            f" {self.took_s:.0f} s"
        )
        return "\n".join([head, *self.complaints[:40]])


class Chaos:
    """One campaign against one home and its machines."""

    def __init__(self, home: Home, machines: list[NamespaceMachine], seed: int) -> None:
        self._home, self._rig = home, home.rig
        self._machines = machines
        self._random = random.Random(seed)
        self._ledger = SiteLedger(home.story.folder / "ledger")
        self._result = Result(seed)
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._open = 0  # jobs that were submitted and have not ended, as last seen
        self._faults: dict[str, Callable[[], None]] = {
            "power": self._power, "network": self._network, "agent": self._agent,
            "pipe": self._pipe, "negotiator": self._negotiator, "queue": self._queue,
            "home": self._home_power,
        }  # fmt: skip

    def run(self, seconds: float, least_faults: int = 0) -> Result:
        """Strike for so long, then let it heal and check everything.

        A busy machine may take several times as long for so many faults.
        """
        began = time.monotonic()
        client = threading.Thread(target=self._client, args=(self._random.getrandbits(32),))
        client.start()
        try:
            pause(2.0)  # a first look at all machines
            while (left_s := began + seconds - time.monotonic()) > 0 or (
                self._result.faults.total() < least_faults and left_s > -MORE_S
            ):
                self._strike()
            self._is_over.set()
            self._repair()  # first: the client sends its last job until the queue answers
            client.join()
            self._settle()
        finally:
            self._is_over.set()
            client.join()
        self._check()
        self._result.took_s = time.monotonic() - began
        return self._result

    # --- faults --------------------------------------------------------------------------

    def _strike(self) -> None:
        chance = self._random
        pause(chance.uniform(EARLIEST_S, LATEST_S))
        if self._rig.queue is None or not self._rig.queue.is_running:
            self._rig.spawn().line()
        self._mend_some()
        self._poke()
        (name,) = chance.choices(list(self._faults), [WEIGHTS[name] for name in self._faults])
        self._faults[name]()

    def _mend_some(self) -> None:
        """Boot what has no power, and now and then connect what is cut off."""
        for machine in self._machines:
            if not machine.is_on:
                machine.start()
            elif machine.is_cut and self._random.random() < 0.4:
                machine.connect()

    def _poke(self) -> None:
        """Let the queue try again to reach what was away: its pauses may be long."""
        try:
            self._rig.ask("sites")
        except (GrnError, OSError):
            return

    def _machine(self) -> NamespaceMachine:
        return self._random.choice(self._machines)

    def _power(self) -> None:
        machine = self._machine()
        if machine.is_on:
            boot = machine.boot
            machine.lose_power()
            self._ledger.note_power_loss(machine.name, boot)
            self._result.faults["power"] += 1

    def _network(self) -> None:
        machine = self._machine()
        if not machine.is_cut:
            machine.cut()
            self._result.faults["network"] += 1

    def _kill(self, what: str, pids: list[int]) -> None:
        self._result.faults[what] += len(list(kill(pids)))

    def _agent(self) -> None:
        self._kill("agent", self._machine().agents())

    def _pipe(self) -> None:
        self._kill("pipe", self._machine().pipes())

    def _negotiator(self) -> None:
        self._kill("negotiator", self._machine().negotiators())

    def _queue(self) -> None:
        if self._rig.queue is not None and self._rig.queue.is_running:
            self._rig.queue.kill()
            self._result.faults["queue"] += 1

    def _home_power(self) -> None:
        """Lose the power of the home machine: all of its processes, and its boot."""
        daemon = self._rig.queue
        if daemon is None or not daemon.is_running:
            return
        while own := [pid for pid in self._home.story.left_behind() if machine_of(pid) == ""]:
            gone(kill(own))
        daemon.kill()
        self._ledger.note_power_loss("home", boot_id())
        if self._rig.database().exists():
            _give_another_boot(self._rig.database())
        self._result.faults["home"] += 1

    # --- clients -------------------------------------------------------------------------

    def _client(self, seed: int) -> None:
        """Submit jobs one by one; each is sent with its key until it is answered."""
        chance = random.Random(seed)
        number = 0
        while not self._is_over.is_set():
            if self._count_open() >= MAX_OPEN:
                pause(0.1)
                continue
            number += 1
            self._submit(f"j{number}", chance)
            pause(chance.uniform(0, 0.1))

    def _count_open(self) -> int:
        try:
            self._open = len(self._rig.ask("list", which="alive", most=1000)["jobs"])
        except (GrnError, OSError):
            return MAX_OPEN
        return self._open

    def _submit(self, name: str, chance: random.Random) -> None:
        seconds = chance.choice((0, 0, 0.1, 0.5, chance.uniform(0.5, 4.0)))
        wanted = Wanted(
            chance.choice((0, 0, 0, 1, 7)), chance.choice((0, 3, 40, 2000)), chance.random() < 0.4
        )
        at = chance.choice(("", SITE, SITE, SITE, *(machine.name for machine in self._machines)))
        argv = self._ledger.command(name, wanted, seconds)
        key = f"{chance.getrandbits(96):024x}"
        request = self._rig.request([argv], key=key, requeue=wanted.may_requeue, at=at)
        answer_by = time.monotonic() + HEAL_S
        while True:
            try:
                self._ledger.told[name] = int(self._rig.ask("submit", **request)["first"])
                break
            except (GrnError, OSError) as exc:
                if time.monotonic() > answer_by:
                    self._result.complaints.append(f"{name} was never accepted: {exc}")
                    return
                pause(chance.uniform(0.01, 0.1))
        if chance.random() < 0.05:
            self._ledger.cancelled.add(name)
            pause(chance.uniform(0, 1.0))
            try:
                self._rig.ask("cancel", jobs=[self._ledger.told[name]])
            except (GrnError, OSError):
                return  # it may have been heard or not: both ends are right

    # --- the end -------------------------------------------------------------------------

    def _repair(self) -> None:
        self._mend_all()
        if self._rig.queue is None or not self._rig.queue.is_running:
            self._rig.start()

    def _mend_all(self) -> None:
        for machine in self._machines:
            machine.connect()
            if not machine.is_on:
                machine.start()

    def _settle(self) -> None:
        pokes = 0.0

        def is_settled() -> bool:
            nonlocal pokes
            if time.monotonic() > pokes:
                pokes = time.monotonic() + 1.5
                self._poke()
            return not self._rig.ask("list", which="alive", most=1)["jobs"]

        try:
            wait_for(is_settled, "all jobs to end", HEAL_S)
        except AssertionError:
            return  # the check names those that have not

    def _check(self) -> None:
        result, rows = self._result, self._rig.rows()
        result.jobs = len(self._ledger.told)
        result.reasons.update(str(row["reason"]) for row in rows.values())
        result.again = sum(max(0, row["attempt"] - 1) for row in rows.values())
        wrong = self._ledger.check(rows)
        result.complaints += wrong
        for name, job in self._ledger.told.items():
            if any(text.startswith(f"{name} ") for text in wrong):
                attempts = self._rig.ask("show", job=job)["job"].get("attempts")
                result.complaints.append(f"{name} was tried so: {attempts}")
        for machine in self._nodes():
            try:
                wait_for(lambda: not leases_at(machine), "no lease", 30.0)  # noqa: B023
            except AssertionError:
                text = f"{machine.name} still has leases: {leases_at(machine)}"
                result.complaints.append(text)
            left = [pid for pid in machine.processes() if _is_job(pid)]
            if left:
                result.complaints.append(f"{machine.name} still runs jobs: {left}")

    def _nodes(self) -> Sequence[Machine]:
        """Return the machines that must be left without leases and jobs."""
        return self._machines


class PilotChaos(Chaos):
    """A campaign against a home and a site of pilots; no fault of it may interrupt a job."""

    def __init__(self, home: Home, site: PilotSite, seed: int) -> None:
        super().__init__(home, [], seed)
        self._site = site
        self._agent_at = 0.0
        self._faults = {
            "agent": self._agent, "pipe": self._pipe, "negotiator": self._negotiator,
            "queue": self._queue, "adapter": self._adapter, "engine": self._engine,
        }  # fmt: skip

    def _agent(self) -> None:
        """Kill the agent; a pilot whose agents die at once, time after time, gives up."""
        if time.monotonic() - self._agent_at > LONG_LIFE_S:
            self._kill("agent", self._site.machine.agents())
            self._agent_at = time.monotonic()

    def _pipe(self) -> None:
        self._kill("pipe", self._site.pipes())

    def _negotiator(self) -> None:
        self._kill("negotiator", self._site.machine.negotiators())

    def _adapter(self) -> None:
        self._kill("adapter", self._site.adapters())

    def _engine(self) -> None:
        """Let the engine answer no longer, and end the streams."""
        self._site.cut()
        self._result.faults["engine"] += 1

    def _mend_some(self) -> None:
        if self._random.random() < 0.5:
            self._site.join()

    def _mend_all(self) -> None:
        self._site.join()

    def _nodes(self) -> Sequence[Machine]:
        return self._site.machines


def _give_another_boot(path: Path) -> None:
    """Let all attempts in a journal be of an earlier boot of the home machine."""
    columns = BEGUN.removesuffix(", checksum")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE attempts SET boot = 'the boot before'")
        for row in db.execute(f"SELECT {columns} FROM attempts").fetchall():
            where = (checksum(*row), *row[:2])
            db.execute("UPDATE attempts SET checksum = ? WHERE job = ? AND attempt = ?", where)


def _is_job(pid: int) -> bool:
    try:
        return b"GRN_JOB_ID=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
