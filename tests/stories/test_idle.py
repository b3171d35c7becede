"""Jobs that hold a GPU and do not use it, with real processes: told, ended, or run again later."""

from __future__ import annotations

import json
import signal
from typing import Any

from tests.harness import wait_for
from tests.queue.daemon import GRN, Queue, a_queue

SOON = {"GRN_IDLE_LIMIT_S": "1", "GRN_IDLE_AFTER_S": "0"}
HOOK = 'echo "$GRN_EVENT $GRN_JOB_ID $GRN_JOB_NAME" >> "$STORY/idle"'


def idle(queue: Queue) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(queue.fine("idle", "--json"))["idle"]
    return found


def test_an_idle_job_is_listed_its_owner_is_told_and_it_goes_on() -> None:
    with a_queue("virtual:1x512MiB", GRN_IDLE_RULE="tell", GRN_ON_IDLE=HOOK, **SOON) as queue:
        job = queue.submit("--mem", "64MiB", "--name", "book", "--", "sleep", "600")
        (row,) = wait_for(lambda: idle(queue), "an idle job")
        path = queue.story.folder / "idle"
        wait_for(lambda: path.exists() and path.read_text(), "the hook")

        assert (row["gpus"], row["held_bytes"]) == ([0], 64 << 20)
        assert path.read_text() == f"idle {job} book\n"
        assert "idle" in queue.fine("ps")
        assert "(1 idle)" in queue.fine("gpus")
        assert queue.job(job)["state"] == "running"


def test_an_idle_job_is_ended_as_timed_out_where_that_is_the_rule() -> None:
    with a_queue("virtual:1x512MiB", GRN_IDLE_RULE="end", **SOON) as queue:
        job = queue.submit("--mem", "64MiB", "--", "sleep", "600")

        assert queue.ended(job)["reason"] == "timed-out"
        assert "less than 5%" in queue.job(job)["text"]


def test_an_idle_job_makes_room_and_runs_again() -> None:
    with a_queue("virtual:1x512MiB", GRN_IDLE_RULE="yield", GRN_YIELD_AFTER_S="0", **SOON) as queue:
        line = 'test $GRN_ATTEMPT = 2 && echo "why $GRN_WHY" && exit 0; exec sleep 600'
        job = queue.submit("--mem", "400MiB", "--shell", "--", line)
        wait_for(lambda: idle(queue), "an idle job")
        following = queue.submit("--mem", "400MiB", "--", "true")

        assert queue.ended(following)["reason"] == "ok"
        assert queue.ended(job)["reason"] == "ok"
        assert [one["reason"] for one in queue.job(job)["attempts"]] == ["yielded", "ok"]
        assert queue.fine("logs", str(job)).splitlines() == ["why yield"]


def test_a_job_with_a_limit_of_its_own_is_not_idle_by_that_of_the_machine() -> None:
    with a_queue("virtual:1x512MiB", GRN_IDLE_RULE="show", **SOON) as queue:
        own = queue.submit("--mem", "64MiB", "--idle-limit", "1h", "--", "sleep", "600")
        other = queue.submit("--mem", "64MiB", "--", "sleep", "600")
        (row,) = wait_for(lambda: idle(queue), "an idle job")

        assert row["lease"] == queue.job(other)["lease"]
        assert queue.job(own)["idle_limit_s"] == 3600.0


def test_every_way_to_run_a_command_takes_a_limit_of_its_own() -> None:
    with a_queue("virtual:1x1GiB", GRN_IDLE_RULE="show", **SOON) as queue:
        limit = ("--mem", "64MiB", "--idle-limit", "1h")
        own = queue.submit("--hold", *limit, "--", "sleep", "600")
        foreground = queue.story.start(*GRN, "exec", *limit, "--", "sleep", "600")
        lines = queue.story.write("lines.txt", "sleep 600\n")
        batch = queue.story.start(*GRN, "batch", *limit, str(lines))
        sweep = queue.story.start(*GRN, "sweep", "sleep 60{x}", "-p", "x", "0", *limit)
        queue.fine("edit", str(own), "--idle-limit", "2h")
        assert queue.job(own)["idle_limit_s"] == 7200.0
        queue.fine("edit", str(own), "--idle-limit", "0")
        assert "idle_limit_s" not in queue.job(own)
        wait_for(lambda: len(queue.json("ps")["leases"]) == 3, "three leases")
        other = queue.submit("--mem", "64MiB", "--", "sleep", "600")
        (row,) = wait_for(lambda: idle(queue), "an idle job")

        assert row["lease"] == queue.job(other)["lease"]
        limits = [job.get("idle_limit_s") for job in queue.json("ls")["jobs"] if job["group"]]
        assert limits == [3600.0, 3600.0]
        for process in (foreground, batch, sweep):
            process.signal(signal.SIGTERM)  # each ends its command
            process.wait()
