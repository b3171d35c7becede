"""A job that yields, from the request of another to its second attempt, with real processes."""

from __future__ import annotations

from tests.harness import wait_for
from tests.queue.daemon import a_queue

LOOP = """
import os, time
import grn
print("why", os.environ.get("GRN_WHY"), flush=True)
while os.environ["GRN_ATTEMPT"] == "1" and not grn.should_stop():
    time.sleep(0.01)
print("saved", flush=True)
"""


def test_a_job_gives_way_to_an_urgent_one_and_runs_again() -> None:
    with a_queue("virtual:1x512MiB") as queue:
        (queue.story.folder / "loop.py").write_text(LOOP)
        needs = ("--mem", "400MiB", "--cwd", str(queue.story.folder))
        low = queue.submit("--yield", *needs, "--", "python", "loop.py")
        wait_for(lambda: "why None" in queue.fine("logs", str(low)), "its loop")
        urgent = queue.submit("--urgent", *needs, "--", "true")

        assert queue.ended(urgent)["reason"] == "ok"
        assert queue.ended(low)["reason"] == "ok"
        first, second = queue.job(low)["attempts"]
        assert (first["reason"], first["status"], second["reason"]) == ("yielded", 0, "ok")
        assert queue.fine("logs", str(low)).splitlines() == ["why yield", "saved"]


def test_a_time_limit_with_again_stops_a_job_and_queues_it_again() -> None:
    with a_queue("virtual:1x512MiB") as queue:
        line = 'test $GRN_ATTEMPT = 2 && exit 0; trap "exit 0" USR1; sleep 60 & wait'
        limit = ("--time-limit", "0.3s", "--again", "--signal", "USR1")
        job = queue.submit(*limit, "--shell", "--", line)

        assert queue.ended(job)["reason"] == "ok"
        assert [one["reason"] for one in queue.job(job)["attempts"]] == ["yielded", "ok"]
