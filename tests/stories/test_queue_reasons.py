"""Why a job of the queue waits is told as it is now, in the same words everywhere."""

from __future__ import annotations

from grn.cli.web import queries
from grn.client.negotiator import ask_once
from grn.client.state_mirror import StateMirror
from tests.harness import wait_for
from tests.queue.daemon import Queue, a_queue


def reason_of(job: int, queue: Queue) -> str:
    """Return why a job waits, which all commands must say alike."""
    (row,) = (row for row in queue.ask("list")["jobs"] if row["id"] == job)
    assert queue.job(job)["why"] == row["why"]
    return str(row["why"])


def page_of(watch: StateMirror) -> list[str]:
    """Return the reasons of waiting jobs on the page."""
    watch.wait(0.1)
    return [row["why"] for row in queries.now(watch.picture)["jobs"] if row["why"]]


def test_a_reason_changes_with_what_is_free() -> None:
    with a_queue("virtual:2x512MiB") as queue:
        queue.ended(queue.sh("true"))  # so that both daemons run
        queue.gate("one"), queue.gate("two")
        for name in ("one", "two"):
            queue.start("exec", "--mem", "400MiB", "--", "flock", "-s", f"gates/{name}", "true",
                        cwd=queue.story.folder)  # fmt: skip
        wait_for(lambda: len(ask_once({"op": "status"})["status"]["leases"]) == 2, "two leases")
        job = queue.submit("--gpus", "2", "--mem", "300MiB", "--", "true")
        wait_for(lambda: "has the most free" in reason_of(job, queue), "the first reason")
        with StateMirror() as watch:
            wait_for(lambda: "has the most free" in "".join(page_of(watch)), "a page")
            queue.gate("one").open()
            wait_for(lambda: len(ask_once({"op": "status"})["status"]["leases"]) == 1, "a free GPU")
            (waiting,) = ask_once({"op": "status"})["status"]["waiting"]
            assert waiting["reason"] == "not-enough-gpus"
            assert reason_of(job, queue) == waiting["why"]
            assert waiting["why"] in queue.fine("ls")
            assert waiting["why"] in queue.fine("why", str(job))
            assert waiting["why"] in queue.fine("show", str(job))
            wait_for(lambda: page_of(watch) == [waiting["why"]], "the page")
        queue.gate("two").open()
        assert queue.ended(job)["reason"] == "ok"
