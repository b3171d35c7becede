"""Where jobs run, in all that shows jobs, and what is said of a node that is out of sight."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import pytest

from grn.client.state_mirror import StateMirror
from tests.harness import GRN, wait_for
from tests.queue.daemon import being_here
from tests.sites.nodes import SITE, Home, a_home


@pytest.fixture(scope="module")
def shared() -> Iterator[Home]:
    with a_home("gpu2", "gpu3") as home:
        home.fine("queue", "start")
        home.node_is("gpu2", "up")
        yield home


@pytest.fixture
def home(shared: Home) -> Iterator[Home]:
    with being_here(shared):
        yield shared
        shared.cancel_all()


def column(text: str, name: str) -> list[str]:
    """Return one column of a table."""
    header, *lines = text.splitlines()
    start = header.index(name)
    return [line[start:].partition(" ")[0] for line in lines]


def test_lists_name_the_node_of_each_job(home: Home) -> None:
    there, here = home.sh("true", "--at", "gpu2"), home.sh("true", "--at", "local")
    home.ended(there), home.ended(here)
    waits = home.sh("true", "--hold")

    rows = {row["id"]: row for row in home.json("ls", "-a")["jobs"]}
    assert [rows[job]["where"] for job in (there, here, waits)] == ["gpu2", "", ""]
    assert [rows[job]["at"] for job in (there, here, waits)] == ["gpu2", "local", ""]
    listed = home.fine("ls", "-a", "-n", "3")
    assert column(listed, "WHERE")[:3] == ["", "local", "gpu2"]
    assert column(home.fine("history", "-n", "2"), "WHERE") == ["local", "gpu2"]
    assert "at gpu2" in home.fine("show", str(there))
    assert "1 on GPU 0 of gpu2: ok" in home.fine("show", str(there))
    assert home.job(there)["attempts"][0]["where"] == "gpu2"


def test_a_running_job_shows_the_memory_that_its_node_sees(home: Home) -> None:
    home.gate("memory")
    take = "python3 -c \"import act; kept = act.take(40); act.gate('memory')\""
    job = home.submit("--at", "gpu3", "--mem", "100MiB", "--shell", "--", take)
    wait_for(lambda: (home.job(job).get("used_bytes") or 0) >= 40 << 20, lambda: home.job(job))

    row = home.job(job)
    assert row["used_bytes"] <= row["reserved_bytes"]
    assert "runs" in home.fine("why", str(job))
    assert json.loads(home.fine("why", str(job), "--json"))["jobs"][0]["gpus"] == row["gpus"]
    gpus = home.json("gpus")
    assert [node["node"] for node in gpus["nodes"]] == ["gpu2", "gpu3"]
    assert gpus["nodes"][1]["gpus"][0]["leases"], "the node shows the lease of the job"
    table = home.fine("gpus")
    assert column(table, "WHERE")[:5] == ["local", "gpu2", "gpu2", "gpu3", "gpu3"]
    home.gate("memory").open()
    assert home.ended(job)["reason"] == "ok"


def test_a_job_that_waits_has_a_reason_for_each_place_it_may_run_at(home: Home) -> None:
    home.gate("full")
    busy = [home.sh("gate full", "--at", node, "--gpus", "2", "--exclusive")
            for node in ("gpu2", "gpu3")]  # fmt: skip
    for job in busy:
        home.in_state(job, "running")
    waits = home.sh("true", "--at", SITE, "--mem", "300MiB")
    wait_for(lambda: home.job(waits)["why"].count("gpu") >= 2, lambda: home.job(waits)["why"])

    said = home.fine("why", str(waits))
    assert "gpu2: " in said
    assert "gpu3: " in said
    home.gate("full").open()
    assert home.ended(waits)["reason"] == "ok"


def test_nodes_are_in_the_picture_of_whoever_looks(home: Home) -> None:
    home.gate("seen")
    job = home.sh("gate seen", "--at", "gpu2")
    with StateMirror() as watch:

        def seen() -> bool:
            watch.wait(1.0)
            node = watch.picture.nodes.get(f"{SITE}/gpu2")
            row = watch.picture.jobs.get(job)
            return bool(node and row and node.lease_of(row))

        wait_for(seen, lambda: watch.picture.nodes)
    assert 'grn_node_jobs{site="lab",node="gpu2"} 1' in home.fine("metrics")
    assert "gpu2:0" in _report(home)
    home.gate("seen").open()
    home.ended(job)


def test_idle_leases_and_bookings_of_nodes_are_listed_with_those_of_this_machine() -> None:
    with a_home("gpu2") as home:
        home.story.env |= {
            "GRN_IDLE_LIMIT_S": "1",
            "GRN_IDLE_AFTER_S": "0",
            "GRN_IDLE_RULE": "show",
        }
        here = home.sh("sleep 600", "--at", "local")
        home.in_state(here, "running")
        home.fine("book", "--from", "now+2h", "--for", "1h")
        book = f"{shlex.join(GRN)} book --from now+1h --for 1h"
        there = home.sh(f"{book}; exec sleep 600", "--at", "gpu2")
        wait_for(lambda: len(home.json("idle")["idle"]) == 2, lambda: home.json("idle"))

        assert sorted(row["where"] for row in home.json("idle")["idle"]) == ["", "gpu2"]
        assert sorted(column(home.fine("idle"), "WHERE")) == ["gpu2", "local"]
        assert [row["where"] for row in home.json("book", "ls")["bookings"]] == ["gpu2", ""]
        assert column(home.fine("book", "ls"), "WHERE") == ["gpu2", "local"]
        rows = {line.split()[0]: line.split() for line in home.fine("ps").splitlines()[1:]}
        assert rows[str(here)][4] == "local"
        assert rows[str(there)][4] == "gpu2"
        (node,) = home.json("ps")["nodes"]
        assert len(node["leases"]) == len(node["bookings"]) == 1
        home.cancel_all()


def _report(home: Home) -> str:
    home.fine("report", "--out", "report.html")
    return (home.story.folder / "report.html").read_text()


def test_a_job_whose_node_is_cut_off_runs_on_and_that_is_said(home: Home) -> None:
    home.gate("cut")
    job = home.sh("gate cut", "--at", "gpu3")
    home.in_state(job, "running")
    home.nodes["gpu3"].cut()
    wait_for(lambda: "gpu3 not heard of for" in home.job(job)["why"], lambda: home.job(job))

    assert home.job(job)["state"] == "running"
    assert "gpu3 not heard of for a moment" in home.fine("ls")
    assert "running: gpu3 not heard of for" in home.fine("show", str(job))
    assert "gpu3 not heard of for" in home.fine("why", str(job))
    assert "gpu3 (lab) is cut: " in home.fine("gpus")
    home.gate("cut").open()
    home.nodes["gpu3"].join()
    assert home.ended(job)["reason"] == "ok"


def test_a_place_that_is_not_known_is_refused(home: Home) -> None:
    ended = home("submit", "--at", "nowhere", "--", "true")

    assert (ended.code, ended.out) == (2, "")
    assert "there is no site or node nowhere" in ended.err
