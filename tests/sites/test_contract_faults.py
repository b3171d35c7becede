"""What every kind of site keeps to when something breaks: nothing is lost, nothing runs twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.harness import is_running, wait_for
from tests.queue_faults.rig import gone
from tests.sites.conftest import Sites
from tests.sites.site_under_test import SITE, Home, SiteUnderTest, leases_at

UNTIL = 'until test -e "$0"; do sleep 0.02; done'
STATUS = f"echo begun; {UNTIL}; echo over; exit 5"


def _gate(home: Home, name: str = "go") -> Path:
    return home.story.folder / name


def _started(home: Home, script: str = STATUS, name: str = "go", **more: Any) -> int:
    """Submit a job that waits for a file, and wait until it runs and its output is here."""
    job = home.sh(script, str(_gate(home, name)), **more)
    home.rig.running(job)
    wait_for(lambda: "begun" in home.log(job), f"the output of {job}")
    return job


def _ended_on_node(site: SiteUnderTest, job: int) -> None:
    """Wait until no process of a job is left on the machines."""
    mark = f"GRN_JOB_ID={job}".encode()

    def alive() -> list[int]:
        found = []
        for machine in site.machines:
            for pid in machine.processes():
                try:
                    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                found += [pid] if mark in words else []
        return found

    wait_for(lambda: not alive(), lambda: f"the processes of {job}: {alive()}")


# --- the node is away ----------------------------------------------------------------------


@pytest.mark.kinds("ssh")
def test_a_job_waits_for_a_node_that_is_away_and_says_why(home: Home, site: SiteUnderTest) -> None:
    site.cut()
    job = home.sh("exit 4")
    row = home.node_is("away")
    why = home.why_says(job, f"{row['node']}: cannot be used: {row['trouble']}")
    assert len(why.splitlines()) == 1
    site.join()

    assert home.rig.ended(job)["status"] == 4


def test_a_job_goes_on_and_ends_while_its_node_is_cut_off(home: Home, site: SiteUnderTest) -> None:
    job = _started(home)
    site.cut()
    home.node_is("cut")
    why = home.why_says(job, "not heard of for")
    assert home.rig.row(job)["state"] == "running"
    assert f"{home.rig.row(job)['where']} not heard of for" in why
    assert "not heard of for" in home.grn_well("ls")
    _gate(home).touch()
    _ended_on_node(site, job)
    assert home.rig.row(job)["state"] == "running", "nobody has told its end"
    site.join()
    row = home.rig.ended(job)

    assert (row["reason"], row["status"], row["attempt"]) == ("failed", 5, 1)
    assert home.log(job) == "begun\nover\n"


def test_output_goes_on_where_it_stopped_after_a_cut(home: Home, site: SiteUnderTest) -> None:
    text = "echo begun; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; done"
    job = _started(home, f"{text}; {UNTIL}; echo over")
    site.cut()
    home.node_is("cut")
    _gate(home).touch()
    site.join()

    assert home.rig.ended(job)["reason"] == "ok"
    assert home.log(job).split() == ["begun", *map(str, range(1, 20001)), "over"]


def test_a_cancel_during_a_cut_is_repeated_when_the_node_is_back(
    home: Home, site: SiteUnderTest
) -> None:
    job = _started(home)
    site.cut()
    home.node_is("cut")
    home.rig.ask("cancel", jobs=[job])
    home.rig.ask("cancel", jobs=[job], now=True)  # it may still run: it is not given up
    assert home.rig.row(job)["state"] == "stopping"
    site.join()

    assert home.rig.ended(job)["reason"] == "cancelled"
    _ended_on_node(site, job)


def test_a_lease_that_was_granted_for_a_queue_that_died_is_returned(
    home: Home, site: SiteUnderTest
) -> None:
    """The queue dies with the grant unread, and the job is cancelled before the node is back."""
    first = _started(home, f"echo begun; {UNTIL}", gpus=2, exclusive=True)
    second = home.sh("true")
    home.why_says(second, "GPU")
    daemon = home.rig.queue
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGSTOP)
    _gate(home).touch()
    agent = site.machines[0].agents()
    _ended_on_node(site, first)

    def held_by_agent() -> list[dict[str, Any]]:
        return [row for row in leases_at(site.machines[0]) or [] if row["pid"] in agent]

    # The queue still holds the lease of the first job, which it would have returned.
    wait_for(held_by_agent, lambda: leases_at(site.machines[0]))
    site.cut()
    daemon.kill()
    home.rig.start()
    home.rig.ask("cancel", jobs=[second])
    assert home.rig.ended(second)["reason"] == "cancelled"
    site.join()
    assert home.rig.ended(first)["reason"] == "ok"

    wait_for(lambda: leases_at(site.machines[0]) == [], lambda: leases_at(site.machines[0]))
    assert site.machines[0].agents() == agent, "it was not the end of the agent that did it"


# --- processes die -------------------------------------------------------------------------


def test_jobs_do_not_notice_the_end_of_the_agent(home: Home, site: SiteUnderTest) -> None:
    machine = site.machines[0]
    job = _started(home)
    assert machine.kill(machine.agents()) == 1
    wait_for(machine.agents, "another agent")
    _gate(home).touch()
    row = home.rig.ended(job)

    assert (row["reason"], row["status"], row["attempt"]) == ("failed", 5, 1)
    assert home.log(job) == "begun\nover\n"
    wait_for(lambda: leases_at(machine) == [], lambda: leases_at(machine))


def test_jobs_do_not_notice_the_end_of_the_negotiator(home: Home, site: SiteUnderTest) -> None:
    machine = site.machines[0]
    job = _started(home)
    assert machine.kill(machine.negotiators()) == 1
    after = home.ran("exit 6")
    _gate(home).touch()

    assert after["status"] == 6
    assert home.rig.ended(job)["status"] == 5
    wait_for(lambda: leases_at(machine) == [], lambda: leases_at(machine))


def test_jobs_do_not_notice_the_end_of_the_queue_at_home(home: Home, site: SiteUnderTest) -> None:
    first, second = _started(home), _started(home, name="second")
    waits = home.sh("exit 6", after=[[second, False]])
    assert home.rig.queue is not None
    home.rig.queue.kill()
    _gate(home).touch()
    _ended_on_node(site, first)
    home.rig.start()
    assert home.rig.ended(first)["status"] == 5
    assert home.rig.row(second)["state"] == "running"
    _gate(home, "second").touch()

    assert home.rig.ended(second)["status"] == 5
    assert home.rig.ended(waits)["status"] == 6
    assert [home.log(job) for job in (first, second)] == ["begun\nover\n"] * 2
    assert [home.rig.row(job)["attempt"] for job in (first, second, waits)] == [1, 1, 1]


def test_a_loss_of_power_interrupts_and_requeues_as_asked(home: Home, site: SiteUnderTest) -> None:
    plain = _started(home)
    again = _started(home, f"echo begun $GRN_ATTEMPT; {UNTIL}; exit 7", requeue=True)
    queued = home.sh("exit 8", after=[[again, False]])
    site.lose_power()
    wait_for(lambda: home.node_is("cut") and home.why_says(plain, "not heard of"), "the cut")
    assert home.rig.row(plain)["state"] == "running", "nobody knows yet"
    _gate(home).touch()
    site.join()
    rows = [home.rig.ended(job) for job in (plain, again, queued)]

    assert [row["reason"] for row in rows] == ["interrupted", "failed", "failed"]
    assert [row["status"] for row in rows] == [None, 7, 8]
    assert [one["reason"] for one in rows[1]["attempts"]] == ["interrupted", "failed"]
    assert rows[0]["text"] == site.loss(rows[0]["where"])
    assert home.log(again) == "begun 2\n"


@pytest.mark.kinds("ssh")
def test_an_end_that_nobody_heard_before_the_power_was_lost_is_still_told(
    home: Home, site: SiteUnderTest
) -> None:
    job = _started(home)
    site.cut()
    home.node_is("cut")
    _gate(home).touch()
    _ended_on_node(site, job)
    site.lose_power()
    site.join()
    row = home.rig.ended(job)

    assert (row["reason"], row["status"]) == ("failed", 5)
    assert home.log(job) == "begun\nover\n"


@pytest.mark.kinds("ssh")
def test_what_a_job_printed_before_the_power_was_lost_comes_home(
    home: Home, site: SiteUnderTest
) -> None:
    done = _gate(home, "done")
    job = _started(home, f'echo begun; {UNTIL}; echo last words; touch "{done}"; sleep 1000')
    site.cut()
    home.node_is("cut")
    _gate(home).touch()
    wait_for(done.exists, "its last words")
    wait_for(lambda: _printed(site, job) == b"begun\nlast words\n", lambda: _printed(site, job))
    site.lose_power()
    site.join()

    assert home.rig.ended(job)["reason"] == "interrupted"
    assert home.log(job) == "begun\nlast words\n"


def _printed(site: SiteUnderTest, job: int) -> bytes:
    """Return the output of a job as its node has it."""
    for machine in site.machines:
        for path in machine.state.rglob(f"{job}.1/log"):
            return path.read_bytes()
    return b""


# --- the site is removed ---------------------------------------------------------------------


def test_a_site_can_be_removed_while_its_jobs_run(home: Home, site: SiteUnderTest) -> None:
    job = _started(home)
    node = home.rig.row(job)["where"]
    said = home.grn_well("site", "rm", SITE)
    assert "1 job" in said
    row = home.node_is("up")
    assert "removed" in row["trouble"]
    for name in (SITE, node):
        assert home.grn("submit", "--at", name, "--", "true").code == 2
    assert home.ran("true", at="")["where"] == ""
    _gate(home).touch()
    assert home.rig.ended(job)["status"] == 5

    wait_for(lambda: home.nodes() == [], home.nodes)
    assert home.log(job) == "begun\nover\n"


@pytest.mark.kinds("ssh")
def test_a_site_can_be_removed_while_no_queue_runs(home: Home, site: SiteUnderTest) -> None:
    """Another site is left, so the next queue has sites before it finds these jobs."""
    config = Path(home.rig.story.env["GRN_CONFIG"])
    config.write_text(f'{config.read_text()}\n[sites.other]\nssh = ["nowhere.invalid"]\n')
    home.grn_well("sites")
    first, second = _started(home), _started(home, name="second")
    assert home.rig.queue is not None
    home.rig.queue.kill()
    _gate(home).touch()
    home.grn_well("site", "rm", SITE)
    home.rig.start()
    assert home.rig.ended(first)["status"] == 5
    home.rig.ask("cancel", jobs=[second])
    assert home.rig.ended(second)["reason"] == "cancelled"
    _ended_on_node(site, second)

    wait_for(lambda: [row["site"] for row in home.nodes()] == ["other"], home.nodes)


@pytest.mark.kinds("ssh")
def test_jobs_of_a_removed_site_that_is_out_of_reach_can_be_given_up(
    home: Home, site: SiteUnderTest
) -> None:
    job = _started(home)
    assert home.rig.queue is not None
    home.rig.queue.kill()
    site.cut()
    home.grn_well("site", "rm", SITE)
    home.rig.start()
    why = home.why_says(job, "not heard of")
    assert "`grn cancel --now` gives it up" in why
    home.grn_well("cancel", str(job))
    assert home.rig.row(job)["state"] == "stopping"
    home.grn_well("cancel", "--now", str(job))
    row = home.rig.ended(job)

    assert row["reason"] == "interrupted"
    assert "whose site was removed" in row["text"]
    wait_for(lambda: home.nodes() == [], home.nodes)


@pytest.mark.kinds("ssh")
def test_a_job_at_a_removed_site_waits_and_does_not_run_here(home: Home, sites: Sites) -> None:
    site = sites()
    home.rig.start()
    site.cut()
    job = home.sh("true")
    home.why_says(job, "cannot be used")
    text = home.settings.read_text()
    home.grn_well("site", "rm", SITE)
    home.why_says(job, f"no site or node is named {SITE}")
    assert home.rig.queue is not None
    home.rig.restart()
    home.why_says(job, f"no site or node is named {SITE}")
    home.settings.write_text(text)
    site.join()
    home.rig.ask("sites", reload=True)

    assert home.rig.ended(job)["where"] != ""


# --- what is left behind ---------------------------------------------------------------------


def test_an_agent_without_work_leaves_and_the_next_job_finds_another(
    home: Home, site: SiteUnderTest
) -> None:
    machine = site.machines[0]
    job = _started(home)
    (agent,) = machine.agents()
    assert home.rig.queue is not None
    home.rig.queue.kill()
    os.kill(agent, signal.SIGTERM)
    gone([agent])
    assert is_running(home.rig.marked(job)[0])
    _gate(home).touch()
    home.rig.start()

    assert home.rig.ended(job)["status"] == 5
