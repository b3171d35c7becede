"""Killing the negotiator harms no command and no script: they wait until it is back.

Clients take leases without a pause, as `grn exec` one command after the other and as decorated
calls; the negotiator is killed at chance moments and started again a moment later.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.harness import Job, wait_for
from tests.queue_faults.rig import Rig, pause

SHORT_KILLS, LONG_KILLS = 4, 60
FEW, MANY = 1, 3  # clients of each kind; they take what processor time there is
MAX_UP_S, MAX_DOWN_S = 0.8, 0.6

# Both run until a file says that it is enough, and leave a line for each thing done.
EXEC_LOOP = """
    n=0
    while [ ! -e enough ]; do
        n=$((n + 1))
        grn exec -q --type loop --mem 8MiB -- sh -c 'echo "$0" >> "$1"; exit 3' $n done.$1
        code=$?
        [ $code = 3 ] || echo "exec $n ended with $code" >> failed
        [ "$(tail -n 1 done.$1)" = $n ] || echo "exec $n did not run" >> failed
    done
    echo $n >> counted
"""
SCRIPT = """
    import asyncio, os, sys
    import grn

    @grn.job(mem="8MiB")
    def plain(n):
        return n

    @grn.job(mem="8MiB")
    async def coroutine(n):
        return n

    @grn.job(mem="8MiB")
    def generator(n):
        yield n

    n = 0
    while not os.path.exists("enough"):
        n += 1
        assert plain(n) == asyncio.run(coroutine(n)) == list(generator(n))[0]
        with open(f"done.{sys.argv[1]}", "a") as file:
            print(n, file=file)
    with open("counted", "a") as file:
        print(n, file=file)
"""


class Campaign:
    """Clients that never pause, and a negotiator that is killed under them."""

    def __init__(self, rig: Rig, seed: int, kills: int, clients: int) -> None:
        self.folder = rig.story.folder
        self._rig = rig
        rig.story.env["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        rig.start_negotiator()
        script = rig.story.write("loop.py", SCRIPT)
        loop = rig.story.write("loop.sh", EXEC_LOOP)
        jobs = [rig.story.start("sh", loop, f"exec{i}") for i in range(clients)]
        jobs += [rig.story.start(sys.executable, script, f"job{i}") for i in range(clients)]
        self._files = [f"done.exec{i}" for i in range(clients)]
        self._files += [f"done.job{i}" for i in range(clients)]
        self._go_on(jobs)
        chance = random.Random(seed)
        for _ in range(kills):
            pause(chance.uniform(0, MAX_UP_S))
            assert rig.negotiator is not None
            rig.negotiator.kill()
            pause(chance.uniform(0, MAX_DOWN_S))
            self._start_again()
            self._go_on(jobs)
        (self.folder / "enough").touch()
        self.codes = [job.wait().code for job in jobs]
        self.errors = "".join(job.err for job in jobs)
        self.done = sum(len(self._lines(name)) for name in self._files)
        self.counted = sum(map(int, self._lines("counted")))
        self.failed = self._lines("failed")

    def _start_again(self) -> None:
        """Start a negotiator, unless a client was faster."""
        rig = self._rig
        try:
            rig.start_negotiator()
        except AssertionError:
            wait_for(lambda: rig.leases() is not None, "the negotiator of a client")

    def _go_on(self, jobs: list[Job]) -> None:
        """Wait until each has done one more thing, or has ended."""
        before = {name: len(self._lines(name)) for name in self._files}

        def has_gone_on() -> bool:
            return all(
                len(self._lines(name)) > before[name] or not job.is_running
                for name, job in zip(self._files, jobs, strict=True)
            )

        wait_for(has_gone_on, lambda: f"all to go on: {[job.err[-300:] for job in jobs]}")

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def check(rig: Rig, seed: int, kills: int, clients: int) -> None:
    seen = Campaign(rig, seed, kills, clients)
    print(f"seed {seed}: {kills} kills, {seen.done} commands and calls, {len(seen.failed)} failed")
    assert seen.failed == []
    assert seen.codes == [0] * 2 * clients, seen.errors
    assert seen.done == seen.counted  # each once
    assert rig.no_lease_left()


def test_no_command_and_no_call_fails_when_the_negotiator_is_killed(rig: Rig, seed: int) -> None:
    check(rig, seed, SHORT_KILLS, FEW)


@pytest.mark.soak
def test_no_command_and_no_call_fails_under_many_kills(rig: Rig, seed: int) -> None:
    check(rig, seed, LONG_KILLS, MANY)
