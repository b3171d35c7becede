"""The negotiator is killed and comes back: no running job notices, nobody loses a place."""

from __future__ import annotations

import os
import signal
import sys
import textwrap

import pytest

from tests.conftest import Negotiators, Scripts
from tests.harness import Story, wait_for

ALONE = {"mem": "400MiB"}  # of 512: no two of them share a GPU


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_running_job_is_unharmed_and_its_lease_adopted(
    story: Story, negotiator: Negotiators, signum: int
) -> None:
    here = negotiator()
    job = story.hold("a", **ALONE)
    story.hear("a runs")
    (before,) = here.leases()

    here.stop(signum)
    assert not here.is_answering()
    assert job.is_running
    here.start()
    (after,) = here.leases()
    same = ("id", "type", "pid", "gpus", "reserved_bytes", "state")
    assert [after[name] for name in same] == [before[name] for name in same]

    story.gate("a").open()
    assert job.ended_well().err == ""
    assert here.leases() == []


def test_those_who_waited_come_back_and_keep_their_places(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB", GRN_GRACE_S="60")
    jobs = [story.hold("first", **ALONE)]
    story.hear("first runs")
    for place, name in enumerate(("older", "younger"), 1):
        jobs.append(story.hold(name, **ALONE))
        here.wait_for_waiting(place)

    here.kill()
    newcomer = story.start_script("import grn; grn.job(mem='400MiB')(lambda: None)()")
    assert newcomer.wait().code == 1  # nobody was there, and it had no place to lose
    here.start()
    jobs.append(story.hold("newcomer", **ALONE))
    waiting = here.wait_for_waiting(3)
    assert [row["pid"] for row in waiting] == [job.pid for job in jobs[1:]]

    for name in ("newcomer", "younger", "older", "first"):
        story.gate(name).open()
    for job in jobs:
        job.ended_well()
    names = ("first", "older", "younger", "newcomer")
    assert story.said() == [f"{name} {does}" for name in names for does in ("runs", "ends")]


def test_those_who_waited_go_before_others_who_ask_first_after_the_restart(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB", GRN_GRACE_S="60")
    first = story.hold("first", **ALONE)
    story.hear("first runs")
    older = story.hold("older", **ALONE)
    here.wait_for_waiting(1)

    older.signal(signal.SIGSTOP)  # stopped, it cannot come back yet
    here.kill()
    first.kill()
    here.start()
    newcomer = story.hold("newcomer", **ALONE)
    (waiting,) = here.wait_for_waiting(1)
    assert (waiting["pid"], waiting["reason"]) == (newcomer.pid, "restarting")
    older.signal(signal.SIGCONT)
    story.hear("older runs")
    for name in ("older", "newcomer"):
        story.gate(name).open()
    older.ended_well()
    newcomer.ended_well()
    assert story.said()[1:] == ["older runs", "older ends", "newcomer runs", "newcomer ends"]


def test_a_later_request_of_a_process_survives_a_restart_too(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    story.gate("go")
    second = story.start_script(
        """
        import grn
        from act import gate, say

        @grn.job(mem="400MiB")
        def job(name):
            say(name)

        job("one")  # leaves a connection for the next request
        gate("go")
        job("two")
        """
    )
    story.hear("one")
    holder = story.hold("holder", **ALONE)
    story.hear("holder runs")
    story.gate("go").open()
    here.wait_for_waiting(1)

    second.signal(signal.SIGSTOP)  # it finds out only when nobody is there any more
    here.kill()
    second.signal(signal.SIGCONT)
    wait_for(lambda: "lost the negotiator, asking again" in second.err)
    here.start()
    here.wait_for_waiting(1)
    story.gate("holder").open()
    second.ended_well()
    holder.ended_well()
    assert story.said()[-1] == "two"


def test_a_job_that_ends_while_no_negotiator_is_there_ends_well(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    job = story.hold("a", **ALONE)
    story.hear("a runs")
    here.kill()
    story.gate("a").open()
    assert job.ended_well().err == ""

    here.start()
    story.gate("b").open()
    story.hold("b", **ALONE).ended_well()
    assert here.leases() == []


def test_a_job_killed_while_no_negotiator_is_there_is_found_dead(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    job = story.hold("a", **ALONE)
    story.hear("a runs")
    here.kill()
    job.kill()

    here.start()
    assert here.wait_for_leases(0) == []
    story.gate("b").open()
    story.hold("b", **ALONE).ended_well()


def test_what_was_learned_survives_a_restart(story: Story, negotiator: Negotiators) -> None:
    here = negotiator()
    story.gate("a").open()
    story.hold("a", take=40).ended_well()
    (before,) = here.profiles()
    assert before["known"]

    here.kill()
    here.start()
    assert here.profiles() == [before]


def test_a_request_within_a_job_is_served_though_no_negotiator_is_there(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    story.gate("go")
    job = story.start_script(
        """
        import subprocess, sys
        import grn
        from act import gate, say

        @grn.job(mem="64MiB")
        def job(depth):
            say(depth)
            if not depth:
                gate("go")
                subprocess.run([sys.executable, __file__, "1"], check=True)

        job(len(sys.argv) - 1)
        """
    )
    story.hear("0")
    here.kill()
    story.gate("go").open()
    assert job.ended_well().err == ""
    assert story.said() == ["0", "1"]


def test_many_leases_are_adopted_and_none_is_granted_twice(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:4x512MiB")
    jobs = {name: story.hold(name, mem="100MiB") for name in "abcdefgh"}
    story.hear(*(f"{name} runs" for name in jobs))
    before = sorted((lease["id"], *lease["gpus"]) for lease in here.leases())
    here.kill()
    for name in "ab":
        jobs.pop(name).kill()  # two are gone when it comes back
    here.start()
    after = sorted((lease["id"], *lease["gpus"]) for lease in here.wait_for_leases(6))
    assert set(after) < set(before)

    for name in jobs:
        story.gate(name).open()
    for job in jobs.values():
        job.ended_well()
    assert here.leases() == []


LOST = "lost the negotiator, asking again"


def test_a_command_granted_to_a_negotiator_that_dies_runs_once_and_has_its_own_status(
    story: Story, negotiator: Negotiators, script: Scripts
) -> None:
    here = negotiator("virtual:1x512MiB")
    first = story.hold("first", **ALONE)
    story.hear("first runs")
    command = ("sh", "-c", f"echo ran >> {story.folder}/ran; exit 3")
    job = story.start(script("grn"), "exec", "-q", "--mem", "400MiB", "--", *command)
    here.wait_for_waiting(1)

    job.signal(signal.SIGSTOP)  # stopped, it does not hear of its grant before the kill
    story.gate("first").open()
    first.ended_well()
    wait_for(lambda: [row["pid"] for row in here.leases()] == [job.pid], "the grant")
    here.kill()
    job.signal(signal.SIGCONT)
    wait_for(lambda: LOST in job.err, "the command to wait for the next negotiator")
    assert not (story.folder / "ran").exists()
    here.start()

    assert job.wait().code == 3
    assert (story.folder / "ran").read_text() == "ran\n"
    wait_for(lambda: here.leases() == [], "the lease to end")


def test_a_selection_granted_by_a_negotiator_that_dies_is_held_by_its_shell(
    story: Story, negotiator: Negotiators, script: Scripts
) -> None:
    here = negotiator("virtual:1x512MiB")
    first = story.hold("first", **ALONE)
    story.hear("first runs")
    words = f"{script('grn')} select -q --mem 400MiB"
    shell = story.start(
        "sh", "-c", f"{words} && {sys.executable} -c 'from act import *; gate(\"s\")'"
    )
    story.gate("s")
    (waiting,) = here.wait_for_waiting(1)

    os.kill(waiting["pid"], signal.SIGSTOP)
    story.gate("first").open()
    first.ended_well()
    here.wait_for_leases(1)
    wait_for(lambda: here.waiting() == [], "the grant")
    here.kill()
    os.kill(waiting["pid"], signal.SIGCONT)
    wait_for(lambda: LOST in shell.err, "the selection to wait for the next negotiator")
    here.start()

    wait_for(lambda: [row["pid"] for row in here.leases()] == [shell.pid], "the shell to hold it")
    story.gate("s").open()
    assert shell.ended_well().out == "0\n"


CALLS = {
    "plain": """
        @grn.job(mem="64MiB")
        def job(name):
            say(name)

        job("one"); gate("between"); job("two")
    """,
    "async": """
        @grn.job(mem="64MiB")
        async def job(name):
            say(name)

        async def main():
            await job("one"); gate("between"); await job("two")

        asyncio.run(main())
    """,
    "generator": """
        @grn.job(mem="64MiB")
        def job(name):
            yield say(name)

        list(job("one")); gate("between"); list(job("two"))
    """,
    "block": """
        with grn.lease(mem="64MiB"):
            say("one")
        gate("between")
        with grn.lease(mem="64MiB"):
            say("two")
    """,
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_script_between_two_calls_waits_for_the_next_negotiator(
    story: Story, negotiator: Negotiators, kind: str
) -> None:
    here = negotiator()
    story.gate("between")
    head = "import asyncio, grn\nfrom act import gate, say\n"
    job = story.start_script(head + textwrap.dedent(CALLS[kind]))
    story.hear("one")
    wait_for(lambda: here.leases() == [], "the end of the first call")
    here.kill()
    story.gate("between").open()
    wait_for(lambda: LOST in job.err, "the second call to wait")
    here.start()

    job.ended_well()
    assert story.said() == ["one", "two"]
