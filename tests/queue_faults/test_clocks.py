"""G14: the wall clock jumps by years; no time limit comes early or late and no order changes."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from tests.harness import DEADLINE_S, faketime, wait_for
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.rig import Rig, pause

LIMIT_S = 1.5
JUMP_S = 0.02
LATE_S = 10.0  # a mutant's limits may come in years


class Clock:
    """The wall clock of the queue and its shims; it jumps for as long as it is open."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._path = rig.story.folder / "clock"
        self._chance = random.Random(seed)
        self._is_over = threading.Event()
        self.jumps = 0
        self._set("+0")
        self.env = {
            "LD_PRELOAD": faketime(),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",  # only the wall clock jumps on a real machine
        }

    def __enter__(self) -> Clock:
        self._thread = threading.Thread(target=self._jump)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _jump(self) -> None:
        while not self._is_over.is_set():
            self._set(f"{self._chance.randint(-3650, 3650):+}d")
            self.jumps += 1
            pause(JUMP_S)

    def _set(self, offset: str) -> None:
        temporary = Path(f"{self._path}.tmp")
        temporary.write_text(offset)
        temporary.rename(self._path)


def _limits(rig: Rig, clock: Clock, late_s: float = DEADLINE_S) -> list[str]:
    """Run jobs with time limits while the clock jumps; return which ended too early or too late."""
    rig.start(**clock.env)
    with clock:
        patient = [rig.submit(["sleep", "1"], time_limit_s=1000.0) for _ in range(4)]
        hasty = [rig.submit(["sleep", "100"], time_limit_s=LIMIT_S) for _ in range(4)]
        complaints = [
            f"a job with much time ended as {row['reason']}"
            for row in (rig.ended(job, late_s) for job in patient)
            if row["reason"] != "ok"
        ]
        if complaints:  # a mutant: its other jobs might end in years
            return complaints
        for row in (rig.ended(job, late_s) for job in hasty):
            if row["reason"] != "timed-out" or not LIMIT_S <= row["ran_s"] < late_s:
                complaints.append(f"{row['reason']} after {row['ran_s']} s, not {LIMIT_S}")
    return complaints


def test_time_limits_do_not_care_for_the_wall_clock(rig: Rig, seed: int) -> None:
    clock = Clock(rig, seed)

    assert not _limits(rig, clock)
    assert clock.jumps >= 20


def test_the_check_finds_out_a_shim_that_measures_by_the_wall_clock(rigs: Rigs, seed: int) -> None:
    rig = rigs("wall-clock")
    try:
        complaints = _limits(rig, Clock(rig, seed), LATE_S)
    except AssertionError as error:  # a clock that jumped back makes some jobs last for years
        complaints = [str(error)]

    assert complaints


def test_the_order_of_jobs_does_not_care_for_the_wall_clock(rig: Rig, seed: int) -> None:
    clock = Clock(rig, seed)
    said = rig.story.folder / "said"
    rig.start(**clock.env, GRN_QUEUE_RUNNING="1")
    gate = rig.submit(["sleep", "100"])
    rig.running(gate)
    with clock:
        jobs = []
        for turn in range(6):
            if turn == 3:
                assert rig.queue is not None
                rig.queue.kill()
                rig.start(**clock.env, GRN_QUEUE_RUNNING="1")
            jobs.append(rig.submit(["/bin/sh", "-c", f"echo {turn} >> {said}"]))
            pause(JUMP_S)
        rig.ask("cancel", jobs=[gate], now=True)
        wait_for(lambda: {row["state"] for row in rig.rows().values()} == {"ended"}, "all to end")

    times = [rig.row(job)["submitted_at"] for job in jobs]
    assert max(times) - min(times) > 86400, "the clock did not jump"
    assert said.read_text().split() == [str(turn) for turn in range(6)]
