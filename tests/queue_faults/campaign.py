"""Random kills of the queue, its forker and the negotiator while clients submit: G1, G3 and G5.

Their sockets, locks and folders can be removed as well. The same code runs for a minute in the
tests and for an hour by `make soak`.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from grn import paths
from grn.errors import GrnError
from tests.harness import wait_for
from tests.queue_faults.ledger import Ledger
from tests.queue_faults.rig import Rig, kill, pause

EARLIEST_S, LATEST_S = 0.03, 0.35
CLIENTS = 3
JOBS_PER_KILL = 6
HEAL_S = 60.0
REACH_S = 30.0
Blows = tuple[tuple[tuple[str, ...], int], ...]
# Who is struck together, and how often.
BLOWS: Blows = (
    (("queue",), 35),
    (("negotiator",), 15),
    (("forker",), 15),
    (("queue", "negotiator"), 20),
    (("queue", "forker"), 10),
    (("queue", "forker", "negotiator"), 5),
)
# What can be removed under a living service.
FILES: dict[str, Callable[[], str]] = {
    "queue socket": paths.queue_socket,
    "queue lock": lambda: os.path.join(os.path.dirname(paths.queue_socket()), "lock"),
    "queue folder": lambda: os.path.dirname(paths.queue_socket()),
    "negotiator socket": paths.own_socket,
    "negotiator lock": lambda: os.path.join(paths.runtime_dir(), "lock"),
    "runtime folder": paths.runtime_dir,
}


@dataclass
class Result:
    """What a campaign did and found."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    sent_again: int = 0
    took_s: float = 0.0
    unreachable_s: float = 0.0  # at the most, after files were removed
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {name}" for name, count in sorted(self.kills.items()))
        blows = "blows" if self.kills.keys() & FILES.keys() else "kills"
        reached = f" reachable after {self.unreachable_s:.1f} s," if blows == "blows" else ""
        head = (
            f"seed {self.seed}: {self.kills.total()} {blows} ({kills}) over {self.jobs} jobs,"
            f" {self.sent_again} submits sent again,{reached} {len(self.complaints)} violations,"
            f" {self.took_s:.0f} s"
        )
        return "\n".join([head, *self.complaints[:40]])


class Campaign:
    """One campaign against one rig."""

    def __init__(self, rig: Rig, seed: int, blows: Blows = BLOWS, reach_s: float = REACH_S) -> None:
        self._rig = rig
        self._blows = blows
        self._reach_s = reach_s
        self._random = random.Random(seed)
        self._ledger = Ledger(rig.story.folder / "ledger")
        self._result = Result(seed)
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._kills_wanted = 0

    def run(self, kills: int) -> Result:
        """Strike so many times, then let it heal and check everything."""
        began = time.monotonic()
        self._kills_wanted = kills
        clients = [
            threading.Thread(target=self._client, args=(number, self._random.getrandbits(32)))
            for number in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        try:
            while self._result.kills.total() < kills:
                self._strike()
            self._heal()
        finally:
            self._is_over.set()
            for client in clients:
                client.join()
        self._check()
        self._result.took_s = time.monotonic() - began
        return self._result

    # --- the blows -----------------------------------------------------------------------

    def _strike(self) -> None:
        chance = self._random
        daemon = self._rig.queue
        if daemon is None or not daemon.is_running:
            daemon = self._rig.spawn()
            if chance.random() < 0.8:  # else it is struck while it gets ready
                daemon.line()
        pause(chance.uniform(EARLIEST_S, LATEST_S))
        blows, weights = zip(*self._blows, strict=True)
        victims = chance.choices(blows, weights)[0]
        pids = self._rig.services()
        for who in victims:
            if who in FILES:
                self._result.kills[who] += remove(FILES[who]())
                continue
            for pid in kill(pids[who]):
                self._result.kills[who] += 1
                if pid == daemon.pid:
                    daemon.kill()  # to reap it
        if FILES.keys() & set(victims) and daemon.is_running and chance.random() < 0.6:
            self._reach()  # else the next blow finds it in the midst of its repair

    def _reach(self) -> None:
        """Wait until what still runs can be reached again."""
        began = time.monotonic()
        try:
            wait_for(self._is_reachable, "an answer", self._reach_s)
        except AssertionError:
            self._result.complaints.append(f"not reachable within {self._reach_s:.0f} s")
        self._result.unreachable_s = max(self._result.unreachable_s, time.monotonic() - began)

    def _is_reachable(self) -> bool:
        serving = self._rig.serving()
        if len(serving) > 1:
            self._result.complaints.append(f"two negotiators serve: {serving}")
        is_there = self._rig.leases() is not None or not self._rig.services()["negotiator"]
        return is_there and self._rig.is_answering()

    def _heal(self) -> None:
        """End the faults: all that was asked for must now come to its end."""
        rig = self._rig
        if rig.queue is None or not rig.queue.is_running:
            rig.start()
        if not rig.is_answering():
            self._reach()
            if not rig.is_answering():
                rig.restart()
        self._is_over.set()
        try:
            wait_for(self._is_settled, "all jobs to end", HEAL_S)
            self._submit("last", self._random)  # with work there is a negotiator, with its leases
            wait_for(self._is_settled, "the last jobs to end", HEAL_S)
        except AssertionError:
            pass  # the check says which have not

    def _is_settled(self) -> bool:
        with self._lock:
            is_told = len(self._ledger.told) == len(self._ledger.wanted)
        try:
            return is_told and not self._rig.ask("list", which="alive", most=1)["jobs"]
        except GrnError:  # its socket is being made again
            return False

    # --- the clients ---------------------------------------------------------------------

    def _client(self, number: int, seed: int) -> None:
        """Submit small batches; each is sent with its key until it is answered."""
        chance = random.Random(seed)
        batch = 0
        while not self._is_over.is_set():
            if not self._wants_more():
                pause(0.02)
                continue
            batch += 1
            self._submit(f"{number}.{batch}", chance)
            pause(chance.uniform(0, 0.05))

    def _wants_more(self) -> bool:
        with self._lock:
            jobs = len(self._ledger.wanted)
            done = self._result.kills.total()
        ahead = (done + 8) * JOBS_PER_KILL
        return jobs < min(ahead, (self._kills_wanted + 1) * JOBS_PER_KILL)

    def _submit(self, name: str, chance: random.Random) -> None:
        names = [f"{name}.{place}" for place in range(chance.randint(1, 5))]
        is_array = chance.random() < 0.3
        argvs: list[list[str]] = []
        more: dict[str, str] = {}
        with self._lock:
            for one in names:
                seconds = chance.choice((0, 0, 0.02, 0.2, chance.uniform(0.1, 1.5)))
                status = chance.choice((0, 0, 0, 1, 7))
                if is_array and not argvs:
                    more = {"array": f"0-{len(names) - 1}"}
                    argvs = [self._ledger.array(name, len(names), seconds, status)]
                elif not is_array:
                    argvs.append(self._ledger.command(one, seconds, status))
        request = self._rig.request(argvs, key=f"{chance.getrandbits(96):024x}", **more)
        answers = 0
        again = 2 if chance.random() < 0.1 else 1  # some do not believe their first answer
        while answers < again:
            try:
                first = self._rig.ask("submit", **request)["first"]
            except (GrnError, OSError):
                self._result.sent_again += 1
                pause(chance.uniform(0.005, 0.05))
                continue
            answers += 1
            for place, one in enumerate(names):
                self._ledger.note(one, first + place)

    # --- the check -----------------------------------------------------------------------

    def _check(self) -> None:
        rig, result = self._rig, self._result
        result.jobs = len(self._ledger.told)
        result.complaints += self._ledger.check(rig.rows())
        if len(self._ledger.told) != len(self._ledger.wanted):
            result.complaints.append("some submits were never answered")
        if not rig.no_lease_left():
            result.complaints.append(f"the negotiator still has leases: {rig.leases()}")


def remove(path: str) -> bool:
    """Remove a file or a folder under whoever uses it; False when it was not there."""
    was_there = os.path.lexists(path)
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)  # its user may be making files in it
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return was_there
