"""Every way to submit takes the place that a job must run at."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.harness import GRN
from tests.queue.daemon import SMALL, being_here
from tests.sites.nodes import Home, a_home

NEEDS = ("--mem", "16MiB", "--at", "gpu2")


@pytest.fixture(scope="module")
def shared() -> Iterator[Home]:
    with a_home("gpu2") as home:
        home.fine("queue", "start")
        home.node_is("gpu2", "up")
        yield home


@pytest.fixture
def home(shared: Home) -> Iterator[Home]:
    with being_here(shared):
        yield shared
        shared.cancel_all()


def where(home: Home, group: str) -> list[str]:
    """Return where the jobs of a group ran, oldest first."""
    rows = home.json("ls", "-a", "--group", group)["jobs"]
    return [row["where"] for row in sorted(rows, key=lambda row: row["id"])]


def test_lines_of_a_batch_run_where_they_should(home: Home) -> None:
    home.story.write("doors.txt", "true\n[at=local] true\n")
    home.fine("batch", "doors.txt", *NEEDS)

    assert where(home, "doors.txt") == ["gpu2", ""]
    report = json.loads((home.story.folder / "doors.txt.grn" / "report.json").read_text())
    assert [job["gpu"].rpartition(":")[0] for job in report["jobs"]] == ["gpu2", ""]


def test_a_job_may_name_a_folder_that_only_its_machine_has(home: Home) -> None:
    away = home.submit("--at", "gpu2", "--cwd", "/only/there", "--mem", "16MiB", "--", "pwd")
    here = home("submit", "--cwd", "/only/there", "--", "true")

    assert "/only/there cannot be used on gpu2" in home.ended(away)["text"]  # nor is it there
    assert here.code == 2
    assert here.err.startswith("error: the folder /only/there does not exist.")


def test_runs_of_a_sweep_run_where_they_should(home: Home) -> None:
    home.story.write("sweep.json", json.dumps({
        "command": "echo '{{\"x\": {x}}}'", "shell": True, "at": "gpu2", "mem": "16MiB",
        "name": "filed", "parameters": {"x": [1, 2]},
    }))  # fmt: skip
    home.fine("sweep", "--file", "sweep.json")
    home.fine("sweep", "--file", "sweep.json", "--at", "local", "--name", "typed")

    assert where(home, "filed") == ["gpu2", "gpu2"]
    assert where(home, "typed") == ["", ""]


def test_a_sweep_of_a_function_runs_where_it_should(home: Home) -> None:
    home.story.run_script("""
        import grn
        def square(x):
            return {"y": x * x}
        table = grn.Sweep(square, {"x": [2, 3]}, at="gpu2", mem="64MiB", name="called").run()
        print(sorted(row["y"] for row in table))
    """, env=home.story.env)  # fmt: skip

    assert where(home, "called") == ["gpu2", "gpu2"]


def test_a_submitted_call_runs_where_it_should_and_its_answer_comes_home(home: Home) -> None:
    ended = home.story.run_script("""
        import os
        import grn
        @grn.job(mem="16MiB")
        def measured(size):
            return os.environ["SSH_NODE"], "y" * size
        handle = measured.options(at="gpu2").submit(1 << 20)
        node, text = handle.result()
        print(node, len(text), handle.status()["where"])
    """, env=home.story.env)  # fmt: skip

    assert ended.out.split() == ["gpu2", str(1 << 20), "gpu2"]


def test_several_machines_for_one_job_are_refused_in_words(home: Home) -> None:
    for words in (
        ("submit", "--", "true"),
        ("batch", "doors.txt"),
        ("sweep", "c {x}", "-p", "x", "1"),
    ):
        ended = home(words[0], "--nodes", "2", *words[1:])
        assert ended.code == 2
        assert "a job cannot have 2 nodes: not yet" in ended.err


def test_a_batch_at_a_node_can_run_inside_a_job(home: Home) -> None:
    home.story.write("inner.txt", "true\n")
    words = ("batch", "inner.txt", "--mem", "16MiB", "--at", "gpu2")
    job = home.submit(*SMALL, "--at", "local", "--", *GRN, *words)
    ended = home.ended(job)

    assert ended["reason"] == "ok", home.log(job)
    assert where(home, "inner.txt") == ["gpu2"]
