"""The adapter of a Slurm site: places pilots, finds them by name, and tells what became of each.

A child process of the queue that speaks lines of JSON (`fleet.py` has the other end). It keeps
nothing on disk and may be killed at any time. A pilot is reported gone only in a final state that
Slurm names itself; an empty answer or a failed command is no evidence. Run as
`python -m grn.queue.sites.pilots.slurm`. `slurm_jobs.py` decides, `slurm_commands.py` has the
commands of Slurm, and `pilot.py` runs on the node.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import select
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from grn.errors import UsageError
from grn.queue.sites.leases.choice import Demand
from grn.queue.sites.pilots import slurm_jobs as jobs
from grn.queue.sites.pilots.slurm_check import check
from grn.queue.sites.pilots.slurm_commands import options, pipe, run, script
from grn.queue.sites.pilots.slurm_jobs import Limits, PilotJob
from grn.sites import SiteConfig

MIN_LOOK_S, MAX_LOOK_S = 1.0, 15.0
STEADY_S = 2.0  # demand that this machine cannot serve at once
FRESH_S = 30.0  # a pilot that runs for less may not have been asked for leases yet
FIRST_BACKOFF_S, MAX_BACKOFF_S = 15.0, 900.0
FORGOTTEN_S = 30.0
DRAIN_AGAIN_S = 30.0
KILL_WAIT_S, SETTLE_S = 30.0, 5.0


class Since:
    """Since when each of some jobs has been so, without a sign of the contrary."""

    def __init__(self) -> None:
        self._began: dict[int, float] = {}

    def update(self, now: float, some: Iterable[int], unseen: Collection[int] = ()) -> None:
        """Note which are so now; forget all others but those of which nothing was heard."""
        kept = {one: began for one, began in self._began.items() if one in unseen}
        self._began = kept | {one: self._began.get(one, now) for one in some}

    def lasting(self, now: float, least_s: float) -> list[int]:
        """Return those that have been so for long enough."""
        return [one for one, began in self._began.items() if now - began >= least_s]


class Backoff:
    """Longer and longer pauses after failures."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._until = 0.0

    def failed(self, now: float) -> None:
        """Note a failure."""
        self._pause_s = min(2 * self._pause_s or FIRST_BACKOFF_S, MAX_BACKOFF_S)
        self._until = now + self._pause_s

    def succeeded(self) -> None:
        """Forget what was noted."""
        self._pause_s = self._until = 0.0

    def is_over(self, now: float) -> bool:
        """True when the next try is due."""
        return now >= self._until


class SlurmAdapter:
    """The pilots of one queue at one site."""

    def __init__(self, site: SiteConfig, queue_id: str) -> None:
        self._site = site
        self._queue_id = queue_id
        self._name = jobs.job_name(queue_id, site.name)
        self._limits = Limits(site.gpus, site.pilots)
        self._demand = Demand()
        self._known: tuple[str, ...] = ()  # nodes with attempts
        self._open_questions: tuple[set[str], set[str]] = (set(), set())  # what became of which
        self._pilots: list[PilotJob] | None = None  # None until Slurm has answered
        self._changed_at = time.monotonic()
        self._looked_at = -MAX_LOOK_S
        self._wanted_at: float | None = None  # since when jobs have waited for a pilot
        self._idle, self._excess, self._running = Since(), Since(), Since()
        self._failing, self._forgotten = Since(), Since()
        self._drained: dict[int, float] = {}  # when each was told to drain
        self._failed: set[int] = set()  # pilots that were of no use
        self._backoff = Backoff()
        self._kill_wait_s: float | None = None
        self._told: dict[str, Any] = {}
        self._trouble: dict[str, str] = {}  # by what caused it

    def serve(self) -> None:
        """Listen to the queue, and look at Slurm now and then, until the queue is gone."""
        buffer = b""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        has_heard = False
        while True:
            pause_s = self._pause_s() if has_heard else None
            if poll.poll(None if pause_s is None else max(0, int(pause_s * 1000) + 1)):
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines[-1:]:  # each has all there is to know
                    self.hear(json.loads(line))
                    has_heard = True
            if has_heard and (due := self._pause_s()) is not None and due <= 0:
                self.look()

    def hear(self, said: dict[str, Any]) -> None:
        """Take what the queue wants and knows."""
        want = said["want"]
        demand = Demand(int(want["jobs"]), int(want["gpus"]))
        alive = {jobs.node_name(self._site.name, pilot.job) for pilot in self._alive()}
        open_questions = ({*said["known"]} - alive, {*said.get("cut", ())})
        is_first_demand = bool(demand.jobs) and not self._demand.jobs and not alive
        if is_first_demand or open_questions != self._open_questions:
            self._changed_at = time.monotonic()
        self._demand, self._known = demand, tuple(said["known"])
        self._open_questions = open_questions
        if not demand.jobs:
            self._wanted_at = None
        elif self._wanted_at is None:
            self._wanted_at = time.monotonic()

    def _pause_s(self) -> float | None:
        """Return how long until the next look: often after a change, seldom later on."""
        is_quiet = not (self._demand.jobs or self._known or self._alive())
        if is_quiet and self._pilots is not None:
            return None
        now = time.monotonic()
        interval_s = min(MAX_LOOK_S, max(MIN_LOOK_S, 0.1 * (now - self._changed_at)))
        return self._looked_at + interval_s - now

    def _alive(self) -> list[PilotJob]:
        return [pilot for pilot in self._pilots or () if not pilot.is_over]

    # --- one look ------------------------------------------------------------------------

    def look(self) -> None:
        """Ask Slurm, report, and act."""
        self._looked_at = time.monotonic()
        user = str(os.getuid())
        answer = run(
            "squeue", "--noheader", f"--user={user}", f"--name={self._name}", "--states=all",
            f"--format={jobs.LIST_FORMAT}",
        )  # fmt: skip
        self._note("squeue", answer.trouble)
        if answer.is_good:
            self._take(jobs.read_list(answer.out))
            self._tell_nodes()
            self._tell_gone()
            self._act()
        self._tell_trouble()

    def _take(self, pilots: list[PilotJob]) -> None:
        now = time.monotonic()
        pilots = jobs.with_unlisted(pilots, self._pilots or ())
        states = [(pilot.job, pilot.state) for pilot in pilots]
        if states != [(pilot.job, pilot.state) for pilot in self._pilots or ()]:
            self._changed_at = now
        self._pilots = pilots
        running = [pilot.job for pilot in pilots if pilot.is_running]
        self._running.update(now, running)
        useless = [pilot for pilot in pilots if pilot.has_failed_at_once]
        new = [pilot for pilot in useless if pilot.job not in self._failed]
        if new:
            self._failed |= {pilot.job for pilot in new}
            self._backoff.failed(now)
            self._note("pilot", jobs.failure(self._site.name, max(new, key=lambda one: one.job)))
        elif running:
            self._note("pilot", "")

    def _tell_nodes(self) -> None:
        nodes, pending, left_s = {}, {}, {}
        for pilot in self._alive():
            name = jobs.node_name(self._site.name, pilot.job)
            if pilot.is_running:
                nodes[name] = pipe(self._site, self._queue_id, pilot.job)
                if pilot.left_s is not None:
                    left_s[name] = pilot.left_s
            else:
                pending[name] = pilot.shown()
        self._say({"nodes": nodes, "pending": pending, "left_s": left_s})

    def _tell_gone(self) -> None:
        """Report the end of pilots that have attempts, where there is evidence."""
        now = time.monotonic()
        found = {pilot.job: pilot for pilot in self._pilots or () if pilot.is_listed}
        numbers = {name: jobs.job_of(name, self._site.name) for name in self._known}
        asked = {job: name for name, job in numbers.items() if job is not None}
        unlisted = [pilot.job for pilot in self._pilots or () if not pilot.is_listed]
        lost = sorted({*asked, *unlisted} - found.keys())
        over = [pilot for job, pilot in found.items() if job in asked and pilot.is_over]
        self._failing.update(now, [one.job for one in over if one.state == "NODE_FAIL"])
        dead = self._failing.lasting(now, self._kill_wait() if over else 0.0)
        gone = {
            pilot.job: jobs.in_words(asked[pilot.job], pilot.state)
            for pilot in over
            if pilot.state != "NODE_FAIL" or pilot.job in dead
        }
        if lost:
            gone |= self._fates(lost)
            ended = set(gone) - found.keys()
            self._pilots = [one for one in self._pilots or () if one.job not in ended]
        else:
            self._forgotten.update(now, [])
        told = {asked[job]: text for job, text in gone.items() if job in asked}
        if told:
            self._say({"gone": told})

    def _kill_wait(self) -> float:
        """Return how long processes may live on a node that is marked as down but works."""
        if self._kill_wait_s is None:
            config = run("scontrol", "show", "config")
            waits_s = jobs.kill_wait_s(config.out) if config.is_good else None
            if waits_s is None:
                return KILL_WAIT_S + SETTLE_S
            self._kill_wait_s = waits_s + SETTLE_S
        return self._kill_wait_s

    def _fates(self, lost: list[int]) -> dict[int, str]:
        """Return how pilots ended that the controller does not list any more, where it is known.

        By the accounts; without them, the controller must say itself that it does not know a number
        which it has given out before. It forgets only jobs that are over.
        """
        now = time.monotonic()
        numbers = ",".join(map(str, lost))
        accounts = run(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={numbers}",
            f"--format={jobs.ACCOUNT_FORMAT}",
        )  # fmt: skip
        states = jobs.read_accounts(accounts.out, self._name) if accounts.is_good else {}
        name = functools.partial(jobs.node_name, self._site.name)
        ends = {job: jobs.in_words(name(job), *state) for job, state in states.items()}
        asked = {job: self._is_forgotten(job) for job in lost if job not in ends}
        unknown = {job for job, is_so in asked.items() if is_so}
        # A busy controller leaves questions open, which says nothing against what it said before.
        unseen = {job for job, is_so in asked.items() if is_so is None}
        self._forgotten.update(now, unknown, unseen)
        for job in unknown.intersection(self._forgotten.lasting(now, FORGOTTEN_S)):
            ends[job] = f"the pilot {name(job)} ended, and Slurm does not remember how"
        return ends

    def _is_forgotten(self, job: int) -> bool | None:
        """True when the controller knows a job no more that it has known; None without answer."""
        answer = run("scontrol", "show", "job", str(job))
        if answer.is_good:
            return False
        config = run("scontrol", "show", "config")
        following = jobs.next_id(config.out) if config.is_good else None
        if "Invalid job id" not in answer.trouble or following is None:
            return None
        return following > job

    # --- acting --------------------------------------------------------------------------

    def _act(self) -> None:
        now, pilots = time.monotonic(), self._pilots or []
        self._submit(now, pilots)
        self._excess.update(now, jobs.in_excess(self._demand, self._limits, pilots))
        for job in self._excess.lasting(now, self._site.idle_s):
            self._do("scancel", "--state=PENDING", str(job))
        self._idle.update(now, jobs.idle(self._demand, pilots, self._site.name, self._known))
        for job in self._idle.lasting(now, self._site.idle_s):
            if now - self._drained.get(job, -DRAIN_AGAIN_S) >= DRAIN_AGAIN_S:
                self._drained[job] = now
                self._do("scancel", "--batch", "--signal=USR1", str(job))

    def _submit(self, now: float, pilots: list[PilotJob]) -> None:
        settled = self._running.lasting(now, FRESH_S)
        fresh = sum(pilot.is_running and pilot.job not in settled for pilot in pilots)
        count = jobs.to_submit(self._demand, self._limits, pilots, fresh)
        is_steady = self._wanted_at is not None and now - self._wanted_at >= STEADY_S
        if not (count and is_steady and self._backoff.is_over(now)):
            return
        for _ in range(count):
            batch = script(self._site, self._queue_id)
            answer = run("sbatch", "--parsable", *options(self._site, self._queue_id), data=batch)
            self._changed_at = now
            more = f"; `grn site check {self._site.name}` tells more"
            self._note("sbatch", answer.trouble and f"{answer.trouble}{more}")
            if not answer.is_good:
                self._backoff.failed(now)
                return
        self._backoff.succeeded()

    def _do(self, *command: str) -> None:
        self._changed_at = time.monotonic()
        self._note(command[0], run(*command).trouble)

    # --- telling -------------------------------------------------------------------------

    def _note(self, cause: str, text: str) -> None:
        self._trouble[cause] = text

    def _tell_trouble(self) -> None:
        said = {"trouble": "; ".join(filter(None, self._trouble.values()))}
        if said != self._told:
            self._told = said
            self._say(said)

    def _say(self, message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the adapter, or a check."""
    parser = argparse.ArgumentParser(prog="python -m grn.queue.sites.pilots.slurm")
    parser.add_argument("--queue", default="", help="the identity of the queue at home")
    parser.add_argument("--site", required=True, help="the site as JSON")
    parser.add_argument("--check", action="store_true", help="print what is found, and exit")
    arguments = parser.parse_args(argv)
    site = SiteConfig.from_json(arguments.site)
    if not arguments.check:
        SlurmAdapter(site, arguments.queue).serve()
        return 0
    try:
        print(check(site))
    except UsageError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
