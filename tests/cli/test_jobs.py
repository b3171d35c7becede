"""The commands on the queue: what people see of their jobs and how they steer them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import grn
from grn.cli.output.style import plain
from tests.cli.live import Shell
from tests.harness import Story, wait_for
from tests.queue.daemon import Queue, being_here
from tests.queue.live import gone

STAYS = "echo up; gate shut"


@pytest.fixture(scope="module")
def shared() -> Iterator[Queue]:
    queue = Queue.begin(GRN_GRACE_TO_END_S="0.2")
    queue.gate("shut")
    yield queue
    with being_here(queue):
        queue.end()


@pytest.fixture
def queue(shared: Queue) -> Iterator[Queue]:
    """Talk to the one queue of this file; jobs a test has left are cancelled."""
    with being_here(shared):
        if not shared.is_answering():
            shared.fine("queue", "start")
        yield shared
        shared.cancel_all()
        shared.ask("drain", drained=False)


# --- looking -------------------------------------------------------------------------------


def test_ls_shows_what_runs_what_waits_and_why(queue: Queue) -> None:
    (runs,) = queue.shs(STAYS)
    queue.says(runs, "up")
    held = queue.sh("true", "--hold", "--name", "later")
    after = queue.sh("true", "--after", str(runs), "--priority", "3")
    out = queue.fine("ls")
    head, *lines = out.splitlines()
    assert head.split() == ["ID", "STATE", "GPU", "USED/RESERVED", "FOR", "COMMAND", "WHY"]
    shown = {int(line.split()[0]): line for line in lines}
    assert list(shown) == [runs, after, held]
    assert "running" in shown[runs]
    assert shown[after].endswith(f"waiting for job {runs} to finish")
    assert "later: " in shown[held]
    assert shown[held].endswith(f"run `grn release {held}` to let it start")
    assert f"held: run `grn release {held}` to let it start" in queue.fine("show", str(held))
    assert queue.fine("ls", "-q").split() == [str(runs), str(after), str(held)]
    assert queue.fine("ls", "-q", "--name", "later").split() == [str(held)]
    assert queue.fine("ls", "-q", "--state", "held", "--state", "running").split() == [
        str(runs), str(held),
    ]  # fmt: skip
    assert queue.fine("ls", "-q", "-n", "1").split() == [str(runs)]


def test_ls_as_json_has_the_same_and_more(queue: Queue) -> None:
    (job,) = queue.shs(STAYS)
    queue.says(job, "up")
    queue.in_state(job, "running")
    said = queue.json("ls")
    assert said["schema"] == 1
    assert said["counts"]["running"] == 1
    (row,) = said["jobs"]
    assert (row["id"], row["state"], row["label"]) == (job, "running", "sh")
    assert row["reserved_bytes"] >= 16 << 20  # it may have outgrown that by now
    wait_for(lambda: queue.json("ls")["jobs"][0].get("used_bytes"), "a measure of its memory")


def test_ls_finds_few_among_many(queue: Queue) -> None:
    """The most to show counts what is shown, not what was looked at."""
    (failed,) = queue.shs("exit 3")
    queue.ended(failed)
    queue.fine("submit", "--hold", "--array", "0-29", "--", "true")
    out = queue.fine("ls", "-q", "-n", "5", "--state", "failed")
    assert str(failed) in out.split()
    ended = queue("ls", "--state", "faild")
    assert ended.code == 2
    assert ended.err.startswith("error: there is no state 'faild'.\nhint: There are queued, held,")


def test_an_empty_list_says_so(queue: Queue) -> None:
    ended = queue("ls", "--name", "nobody")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.startswith("no job matches: 0 running, ")
    assert queue.fine("ls", "-q", "--name", "nobody") == ""


def test_show_tells_all_of_a_job(queue: Queue) -> None:
    job = queue.sh("echo hi; exit 3", "--name", "mine", "--retry", "1", "--env", "AAA=hush")
    queue.ended(job)
    out = queue.fine("show", str(job))
    assert out.startswith(f"job {job}  mine\n  state     failed: exit status 3\n")
    assert "attempt   1 on GPU" in out
    assert "attempt   2 on GPU" in out
    assert "retries   up to 1 on failure" in out
    assert "AAA" not in out
    out = queue.fine("show", "--env", str(job))
    assert "AAA" in out
    assert "hush" not in out, "values are nobody's business"
    row = queue.json("show", str(job))["job"]
    assert [one["reason"] for one in row["attempts"]] == ["failed", "failed"]
    assert "AAA" in row["environment"]
    assert "hush" not in json.dumps(row["environment"])


def test_show_tells_how_a_job_is_to_end_and_what_it_needs_of_the_host(queue: Queue) -> None:
    flags = "--cpus 0.5 --ram 64MiB --time-limit 3h --again --signal USR1 --grace 5s --yield"
    job = queue.sh("true", "--hold", *flags.split(), "--at-least", "1h")
    out = queue.fine("show", str(job))
    assert "0.5 cores, 64 MiB of host memory, yields, after at least 1h" in out
    assert "limit     3h, then queued again" in out
    assert "ending    asked by SIGUSR1, 5s to end" in out


def test_why_knows_jobs_by_the_ids_that_ls_prints(queue: Queue) -> None:
    gate = queue.gate("why")
    first = queue.sh("gate why")
    second = queue.sh("true", "--after", str(first))
    wait_for(lambda: "runs on GPU" in queue("why", str(first)).out, "the first one's start")

    assert "queued for" in queue.fine("why", str(second))
    assert f"waiting for job {first} to finish" in queue.fine("why", str(second))
    both = queue.json("why", str(first))
    assert [row["label"] for row in both["jobs"]] == [both["job"]["label"]]
    gate.open()
    queue.ended(second)
    assert "ago, ok\n" in queue.fine("why", str(second))


def test_history_is_newest_first(queue: Queue) -> None:
    one, two = queue.shs("exit 0", "exit 5")
    queue.ended(one)
    queue.ended(two)
    rows = queue.json("history", "-n", "2")["jobs"]
    assert {row["id"] for row in rows} == {one, two}
    assert rows[0]["ended_at"] >= rows[1]["ended_at"]
    head, *lines = queue.fine("history", "-n", "2").splitlines()
    assert head.split()[:4] == ["ID", "ENDED", "EXIT", "RAN"]
    bad = next(line for line in lines if line.split()[0] == str(two))
    assert bad.split()[1:3] == ["failed", "5"]


def test_logs_are_what_was_printed(queue: Queue) -> None:
    (job,) = queue.shs("echo out; echo err >&2; exit 1")
    queue.ended(job)
    assert queue.fine("logs", str(job)).split() == ["out", "err"]
    refused = queue("logs", str(job), "--stderr")
    assert (refused.code, refused.out) == (2, "")
    assert "holds both of its streams" in refused.err
    assert "--separate-stderr" in refused.err
    apart = queue.submit("--separate-stderr", "--", "sh", "-c", "echo out; echo err >&2")
    queue.ended(apart)
    assert queue.fine("logs", str(apart), "--stderr") == "err\n"
    assert sorted(queue.fine("logs", str(apart)).split()) == ["err", "out"]


@pytest.mark.parametrize("cold", ["1", None])
def test_long_output_goes_through_a_pager_on_a_terminal_only(
    queue: Queue, cold: str | None
) -> None:
    lines = r"i=0; while [ $i -lt 90 ]; do i=$((i+1)); echo line $i; done; printf '5%%\r100%%\n'"
    long, short = queue.sh(lines), queue.sh("echo short")
    for job in (long, short):
        queue.ended(job)
    shell = Shell(queue.story)

    def shown(*words: str, **pager: str) -> list[str]:
        env = {"GRN_COLD_START": cold, "GRN_PAGER": "sed s/^/paged:/", "PAGER": "false", **pager}
        code, text = shell.on_terminal("logs", *words, env=env)
        assert code == 0
        return text.splitlines()

    assert shown(str(long))[-2:] == ["paged:line 90", "paged:100%"]
    assert shown(str(long), str(short))[-1] == "paged:short"
    assert shown(str(short)) == ["short"]
    assert shown(str(long), "-n", "3")[:2] == ["line 89", "line 90"]
    assert shown(str(long), "--no-pager")[0] == "line 1"
    assert shown(str(long), "-f")[0] == "line 1"
    for none in ("", "cat", "there-is-no-such-pager 2>/dev/null"):
        assert shown(str(long), GRN_PAGER=none)[0] == "line 1"
    piped = shell("logs", str(long), env={"GRN_COLD_START": cold, "GRN_PAGER": "false"})
    assert piped.out.splitlines()[0] == "line 1"


def test_show_takes_several_jobs(queue: Queue) -> None:
    ids = [queue.sh("true", "--hold", "--name", name) for name in ("one", "two", "three")]
    out = queue.fine("show", f"{ids[0]}-{ids[1]}", "three")
    heads = [line for line in out.splitlines() if line.startswith("job ")]
    assert heads == [f"job {ids[0]}  one", f"job {ids[1]}  two", f"job {ids[2]}  three"]
    rows = queue.json("show", *map(str, ids))["jobs"]
    assert [row["id"] for row in rows] == ids
    assert queue("show", str(ids[0]), "999999").code == 2


def test_logs_of_what_never_ran_say_so(queue: Queue) -> None:
    job = queue.sh("true", "--hold")
    ended = queue("logs", str(job))
    assert ended.code == 2
    why = "held: run `grn release` to let it start"
    assert ended.err == f"error: job {job} has not run yet: {why}.\n"
    queue.fine("cancel", str(job))
    assert queue("logs", str(job)).err == f"error: job {job} never ran: cancelled.\n"
    (ran,) = queue.shs("true")
    queue.ended(ran)
    ended = queue("logs", str(ran), "--attempt", "2")
    assert (ended.code, ended.err) == (2, f"error: job {ran} has 1 attempt: 2 is none of them.\n")


def test_a_log_is_followed_through_attempts_to_the_end(queue: Queue) -> None:
    queue.gate("go")
    job = queue.sh("echo try $GRN_ATTEMPT; gate go; echo bye; exit 6", "--retry", "1")
    follower = queue.start("logs", "-f", str(job))
    wait_for(lambda: "try 1" in follower.out, "the beginning of the log")
    queue.gate("go").open()
    ended = follower.wait()
    assert ended.out == "try 1\nbye\ntry 2\nbye\n"
    assert ended.code == 6


def test_the_beginning_of_an_id_is_enough_to_look_but_not_to_change(queue: Queue) -> None:
    """`grn cancel 12` means job 12 and no other, also when there is only a job 120."""
    queue.fine("submit", "--hold", "--array", "0-11", "--", "true")
    queue.cancel_all()
    (last,) = queue.shs(STAYS)
    queue.says(last, "up")
    queue.fine("clean")
    short = str(last)[:1]
    assert queue.json("show", short)["job"]["id"] == last
    for words in (("cancel",), ("hold",), ("release",), ("retry",), ("move", "--front")):
        ended = queue(*words, short)
        assert ended.code == 2, words
        assert ended.err.startswith(f"error: there is no job {short}.")
    assert queue.job(last)["state"] == "running"


@pytest.mark.parametrize(
    "words",
    [("show",), ("logs",), ("logs", "-f"), ("wait",), ("cancel",), ("hold",), ("release",),
     ("retry",), ("move", "--front")],
)  # fmt: skip
def test_a_job_that_is_not_there_is_named(queue: Queue, words: tuple[str, ...]) -> None:
    ended = queue(*words, "987654")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[0] == "error: there is no job 987654."


@pytest.mark.parametrize("job", ["x1", "²", "0", "-1", "1.5", "9" * 30])
def test_what_is_no_id_is_named(queue: Queue, job: str) -> None:
    ended = queue("show", "--", job)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[0] == f"error: there is no job {job}."


# --- waiting -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "flags", "code", "text"),
    [
        ("exit 0", (), 0, ""),
        ("exit 7", (), 7, "failed (exit status 7)"),
        ("kill -9 $$", (), 137, "failed (ended by signal 9)"),
        (
            "exec sleep 600",
            ("--time-limit", "0.1"),
            124,
            "timed-out (ran longer than its limit of 0.1s)",
        ),
    ],
)
def test_wait_returns_how_a_job_ended(
    queue: Queue, line: str, flags: tuple[str, ...], code: int, text: str
) -> None:
    job = queue.sh(line, *flags)
    ended = queue("wait", str(job))
    assert (ended.code, ended.out) == (code, "")
    assert ended.err == (f"job {job}: {text}\n" if text else "")


def test_wait_for_what_never_ran_is_125(queue: Queue) -> None:
    cancelled = queue.sh("true", "--hold")
    skipped = queue.sh("true", "--after", str(cancelled))
    queue.fine("cancel", str(cancelled))
    assert queue("wait", str(cancelled)).code == 125
    ended = queue("wait", str(skipped))
    assert ended.code == 125
    assert ended.err.startswith(f"job {skipped}: skipped (it depends on job {cancelled}, which")


def test_wait_tells_a_command_that_cannot_be_run(queue: Queue) -> None:
    job = queue.submit("--", "no-such-program-anywhere")
    ended = queue("wait", str(job))
    assert ended.code == 127
    text = "not-runnable (no-such-program-anywhere: command not found)"
    assert ended.err == f"job {job}: {text}\n"


def test_wait_for_several_returns_the_first_failure(queue: Queue) -> None:
    queue.gate("second")
    first, second, third = queue.shs("exit 0", "gate second; exit 4", "exit 3")
    waiter = queue.start("wait", "-q", *map(str, (first, second, third)))
    wait_for(lambda: str(third) in waiter.out.split(), "the first two ends")
    assert waiter.is_running
    queue.gate("second").open()
    ended = waiter.wait()
    assert (ended.code, ended.err) == (3, "")
    assert ended.out.split()[-1] == str(second)
    ended = queue("wait", str(second), str(third))
    assert ended.code == 4
    assert ended.err.splitlines() == [
        f"job {second}: failed (exit status 4)",
        f"job {third}: failed (exit status 3)",
    ]


def test_wait_for_all_prints_ids_as_they_end(queue: Queue) -> None:
    one, two = queue.shs("exit 1", "exit 0")
    ended = queue("wait", "--all", "-q")
    assert set(ended.out.split()) <= {str(one), str(two)}
    assert ended.err == ""
    assert queue("wait", "--all").code == 0
    ended = queue("wait")
    assert (ended.code, ended.err.splitlines()[0]) == (2, "error: there is nothing to wait for.")


def test_wait_does_not_wait_for_held_jobs_and_says_how_to_release_them(queue: Queue) -> None:
    held = queue.sh("true", "--hold")
    behind = queue.sh("true", "--after", str(held))
    runs = queue.sh("exit 0")
    ended = queue("wait", "--all")
    text = f"1 job is held: run `grn release {held}`; 1 job waits for that\n"
    assert (ended.code, ended.err) == (0, text)
    assert queue.job(runs)["reason"] == "ok"
    ended = queue("wait", str(behind))
    assert ended.code == 125, "it has not run"
    queue.fine("release", str(held))
    assert queue("wait", str(behind)).code == 0


def test_an_array_is_one_row_with_its_numbers_until_expanded(queue: Queue) -> None:
    line = "echo $GRN_ARRAY_INDEX"
    words = ("submit", "--hold", "--name", "grid", "--array", "0-4:2,7", "--shell", "--", line)
    ids = queue.fine(*words).split()
    (row,) = queue.fine("ls", "--name", "grid").splitlines()[1:]
    assert row.split()[:3] == [f"{ids[0]}-{ids[-1]}", "4", "held"]
    assert "grid[0-4:2,7]: echo $GRN_ARRAY_INDEX" in row
    rows = queue.fine("ls", "--expand", "--name", "grid").splitlines()[1:]
    assert [one.split()[0] for one in rows] == ids
    assert "grid[7]: echo 7" in rows[-1]
    shown = queue.fine("show", ids[1])
    assert shown.startswith(f"job {ids[1]}  grid[2]\n")
    assert "  command   echo 2\n" in shown
    queue.fine("release", *ids)
    queue.fine("wait", *ids)
    assert "grid[4]: echo 4" in queue.fine("history")


def test_an_array_longer_than_the_list_is_still_one_row(queue: Queue) -> None:
    queue.fine("submit", "--hold", "--name", "long", "--array", "0-79", "--", "true")
    (row,) = queue.fine("ls", "-n", "5", "--name", "long").splitlines()[1:]
    assert "long[0-79]: true" in row


def test_wait_goes_on_through_a_restart_of_the_queue(queue: Queue) -> None:
    queue.gate("restart")
    (job,) = queue.shs("echo up; gate restart; exit 8")
    queue.says(job, "up")
    waiter = queue.start("wait", str(job))
    wait_for(lambda: queue.ask("ping"), "the queue")
    queue.kill()
    queue.gate("restart").open()
    assert waiter.wait().code == 8
    assert queue.job(job)["attempt"] == 1


def test_ids_come_from_standard_input_too(queue: Queue) -> None:
    one, two = queue.shs("exit 0", "exit 2")
    ended = queue.fed(f"{one}\n{two}\n".encode(), "wait", "-")
    assert ended.code == 2
    ended = queue.fed(b"\xff\n", "wait", "-")
    assert (ended.code, ended.err.splitlines()[0]) == (2, r"error: there is no job \xff.")


def test_progress_is_drawn_on_a_terminal(queue: Queue) -> None:
    one, two = queue.shs("exit 0", "exit 2")
    code, shown = Shell(queue.story).on_terminal("wait", str(one), str(two))
    assert code == 2
    assert "2 jobs ended, 1 failed, in " in plain(shown)
    assert f"job {two}: failed" in plain(shown)


# --- steering ------------------------------------------------------------------------------


def test_cancel_ends_a_job_with_all_its_processes(queue: Queue) -> None:
    (job,) = queue.shs("sleep 601 & echo $!; setsid sleep 602 & echo $!; echo up; gate shut")
    queue.says(job, "up")
    pids = [int(word) for word in queue.log(job).split() if word.isdigit()]
    queue.fine("cancel", str(job))
    row = queue.ended(job)
    assert (row["reason"], row["signal"]) == ("cancelled", signal.SIGTERM)
    assert len(pids) == 2
    for pid in pids:
        gone(pid)
    ended = queue("cancel", str(job))
    assert (ended.code, ended.err) == (1, f"ended already: {job}\n")


def test_cancel_waits_for_the_grace_unless_told_not_to(queue: Queue) -> None:
    stubborn, now = queue.shs(*["trap '' TERM; echo up; while :; do sleep 0.05; done"] * 2)
    queue.says(stubborn, "up")
    queue.says(now, "up")
    queue.fine("cancel", "--now", str(now))
    queue.fine("cancel", str(stubborn))
    assert queue.ended(now)["signal"] == queue.ended(stubborn)["signal"] == signal.SIGKILL
    log = Path(queue.story.env["GRN_STATE_DIR"], "queue.log").read_text()
    assert f"action=cancel uid={os.getuid()} count=1 jobs={stubborn}\n" in log


def test_cancel_right_after_submit_is_heard(queue: Queue) -> None:
    """However far the job has come: queued, granted, with its shim, or running."""
    for _ in range(8):
        (job,) = queue.shs("exec sleep 600")
        queue.ask("cancel", jobs=[job])
        assert queue.ended(job)["reason"] == "cancelled"


def test_cancel_all_leaves_nothing(queue: Queue) -> None:
    jobs = queue.shs(*[STAYS] * 3)
    held = queue.sh("true", "--hold")
    queue.says(jobs[0], "up")
    assert queue("cancel", "--all").code == 0
    for job in (*jobs, held):
        assert queue.ended(job)["reason"] == "cancelled"
    assert queue("cancel", "--all").code == 0
    assert queue("cancel").code == 2


def test_hold_and_release(queue: Queue) -> None:
    job = queue.sh("true", "--hold")
    queue.fine("release", str(job))
    assert queue.ended(job)["reason"] == "ok"
    (runs,) = queue.shs(STAYS)
    queue.in_state(runs, "running")
    ended = queue("hold", str(runs))
    assert ended.code == 2
    assert "running" in ended.err


def test_a_held_job_is_held_after_a_restart(queue: Queue) -> None:
    job = queue.sh("true", "--hold")
    queue.kill()
    queue.fine("queue", "start")
    assert queue.job(job)["state"] == "held"
    queue.fine("release", str(job))
    assert queue.ended(job)["reason"] == "ok"


def test_moved_jobs_start_in_their_new_order(queue: Queue) -> None:
    queue.fine("drain")
    jobs = [queue.sh(f"echo {name} >> order", "-g", "4", "--exclusive") for name in "abcd"]
    a, b, c, d = map(str, jobs)
    queue.fine("move", "--front", d)
    queue.fine("move", "--back", a)
    queue.fine("move", "--priority", "5", c)
    assert queue.fine("ls", "-q").split() == [c, d, b, a]
    queue.fine("drain", "--off")
    for job in jobs:
        queue.ended(job)
    assert (queue.story.folder / "order").read_text().split() == ["c", "d", "b", "a"]


def test_a_job_moved_to_the_front_starts_before_those_that_wait_longer(queue: Queue) -> None:
    """The negotiator has been asked for all of them already."""
    queue.gate("busy")
    busy = queue.sh("echo up; gate busy", "-g", "4", "--exclusive")
    queue.says(busy, "up")
    jobs = [queue.sh(f"echo {name} >> waited", "-g", "4", "--exclusive") for name in "abc"]
    wait_for(lambda: all("asked" not in queue.job(job)["why"] for job in jobs), "their reasons")
    queue.fine("move", "--front", str(jobs[2]))
    queue.gate("busy").open()
    for job in jobs:
        queue.ended(job)
    assert (queue.story.folder / "waited").read_text().split() == ["c", "a", "b"]


def test_move_wants_to_know_where(queue: Queue) -> None:
    job = queue.sh("true", "--hold")
    assert queue("move", str(job)).err.splitlines()[0] == "error: no position is given."
    assert queue("move", "--priority", "1001", str(job)).code == 2


def test_retry_submits_once_more(queue: Queue) -> None:
    job = queue.sh("echo $A; exit 3", "--name", "again", "--env", "A=kept", "--time-limit", "1h")
    queue.ended(job)
    again = int(queue.fine("retry", str(job)))
    assert again > job
    row = queue.ended(again)
    assert (row["reason"], row["name"], row["time_limit_s"]) == ("failed", "again", 3600.0)
    assert queue.log(again) == "kept\n"
    held = queue.sh("true", "--hold")
    ended = queue("retry", str(held))
    assert ended.code == 2
    assert ended.err.startswith(f"error: job {held} has not ended")


def test_a_long_array_is_one_record_that_commands_see_as_its_jobs(queue: Queue) -> None:
    words = ("submit", "--hold", "--name", "grid", "--array", "10-5009", "--shell", "--",
             "echo $GRN_ARRAY_INDEX >> array.out")  # fmt: skip
    ids = [int(word) for word in queue.fine(*words).split()]
    first = ids[0]
    assert ids == list(range(first, first + 5000))
    assert queue.ask("count")["counts"]["held"] == 5000
    assert set(ids) <= set(queue.ask("list", which="alive", most=10**6, ids_only=True)["ids"])
    assert "grid[10-5009]" in queue.fine("ls")
    assert "grid[3010]" in queue.fine("show", str(first + 3000))
    assert "held" in queue.fine("why", str(ids[-1]))
    queue.fine("edit", str(first + 2000), "--priority", "7")
    queue.fine("release", f"{first + 1000}-{first + 1001}", str(first + 2000))
    some = (first + 1000, first + 1001, first + 2000)
    assert [queue.ended(job)["reason"] for job in some] == ["ok"] * 3
    lines = (queue.story.folder / "array.out").read_text().split()
    assert sorted(lines) == ["1010", "1011", "2010"]
    queue.fine("cancel", "grid")
    assert queue.ask("count")["counts"]["held"] == 0


def test_a_job_can_come_after_a_member_of_an_array(queue: Queue) -> None:
    ids = queue.fine("submit", "--hold", "--mem", "16MiB", "--array", "0-2999", "--", "true")
    member = ids.split()[2500]
    job = queue.submit("--mem", "16MiB", "--after", member, "--", "true")
    assert f"waiting for job {member} to finish" in queue.fine("why", str(job))
    queue.fine("release", member)
    assert queue.ended(job)["reason"] == "ok"
    queue.fine("cancel", f"{ids.split()[0]}-{ids.split()[-1]}")


def test_an_array_is_retried_with_its_numbers(queue: Queue) -> None:
    out = queue.fine("submit", "--mem", "16MiB", "--array", "4-5", "--shell", "--",
                     "echo $GRN_ARRAY_INDEX; exit 1")  # fmt: skip
    jobs = out.split()
    for job in jobs:
        queue.ended(int(job))
    again = [int(word) for word in queue.fine("retry", *jobs).split()]
    for job in again:
        queue.ended(job)
    assert [queue.log(job) for job in again] == ["4\n", "5\n"]


def test_clean_forgets_what_has_ended(queue: Queue) -> None:
    (job,) = queue.shs("echo hi")
    folder = queue.ended(job)["folder"]
    ended = queue("clean", "--older-than", "1h")
    assert (ended.code, ended.err) == (0, "0 jobs forgotten\n")
    assert queue.job(job)["reason"] == "ok"
    assert queue("clean").err.endswith(" forgotten\n")
    assert queue("show", str(job)).code == 2
    wait_for(lambda: not Path(folder).exists(), "its files to go")
    (following,) = queue.shs("true")
    assert following > job
    assert queue("clean", "--older-than", "soon").code == 2


def test_an_environment_is_not_confused_after_a_clean(queue: Queue) -> None:
    """A number that comes again must not bring the environment it had before."""
    for value in ("old", "new"):
        job = queue.sh("echo $WHICH", env={"WHICH": value})
        queue.ended(job)
        assert queue.log(job) == f"{value}\n"
        queue.fine("clean")


def test_drain_starts_nothing_and_says_what_still_runs(queue: Queue) -> None:
    queue.gate("drained")
    (runs,) = queue.shs("echo up; gate drained")
    queue.says(runs, "up")
    ended = queue("drain")
    assert ended.err == "the queue is paused, 1 job still runs; run `grn drain --off` to resume\n"
    (waits,) = queue.shs("true")
    assert queue.job(waits)["why"] == "the queue is paused: run `grn drain --off` to resume"
    for words in (("ls",), ("queue",)):
        assert queue(*words).err == "the queue is paused: run `grn drain --off` to resume\n", words
    assert queue.json("queue")["drained"] is True
    queue.gate("drained").open()
    queue.ended(runs)
    assert queue.job(waits)["state"] == "queued"
    queue.kill()
    queue.fine("queue", "start")
    assert queue.job(waits)["state"] == "queued", "a drained queue comes up drained"
    queue.fine("drain", "--off")
    queue.ended(waits)


# --- the queue itself ----------------------------------------------------------------------


def test_queue_status_start_and_stop(queue: Queue) -> None:
    (job,) = queue.shs(STAYS)
    queue.says(job, "up")
    pid = queue.pid
    out = queue.fine("queue")
    assert out.startswith("queue 0.")
    assert f"answers (pid {pid}): 1 running, 0 queued," in out
    said = queue.json("queue", "status")
    assert (said["pid"], said["counts"]["running"], said["trouble"]) == (pid, 1, "")
    ended = queue("queue", "stop")
    assert ended.err == "queue stopped; 1 running job goes on\n"
    ended = queue("queue", "status")
    assert ended.code == 3
    assert ended.err.startswith("error: no grn queue answers at ")
    assert queue("queue", "stop").code == 3
    queue.fine("queue", "start")
    assert queue.pid != pid
    assert queue.in_state(job, "running", "starting")["attempt"] == 1
    queue.gate("shut2")


def test_only_commands_that_need_a_queue_start_one(story: Story) -> None:
    grn = Shell(story)
    for words in (("queue",), ("queue", "stop"), ("--help",), ("submit", "--help")):
        grn(*words)
    assert not (story.folder / "state").exists()


def test_jobs_are_selected_by_range_name_element_and_tag(queue: Queue) -> None:
    first = queue.sh("true", "--hold", "--name", "one", "--tag", "night")
    second = queue.sh("true", "--hold", "--name", "two", "--tag", "night", "--tag", "big")
    queue.fine("submit", "--hold", "--name", "grid", "--array", "0-3%2", "--", "true")
    third = int(queue.fine("ls", "-q", "--name", "grid").split()[1])
    assert queue.fine("ls", "-q", "--tag", "night").split() == [str(first), str(second)]
    assert queue.json("show", "grid[1]")["job"]["id"] == third
    assert "at most 2 at once" in queue.fine("show", "grid[1]")
    queue.fine("cancel", "grid[1]", f"{first}-{first}")
    assert queue.json("ls", "-a", "--state", "cancelled")["jobs"][0]["id"] in (first, third)
    queue.fine("release", "--tag", "big")
    queue.fine("wait", "two")
    again = int(queue.fine("retry", "--name", "two").strip())
    queue.fine("wait", str(again))
    ended = queue("hold", "--tag", "nothing")
    assert (ended.code, ended.err.splitlines()[0]) == (2, "error: no job matches.")


def test_a_waiting_job_is_edited_and_others_are_refused(queue: Queue) -> None:
    job = queue.sh("true", "--hold", "--time-limit", "1h", "--retry", "1")
    queue.fine("edit", str(job), "--mem", "64MiB", "--priority", "5", "--time-limit", "0",
               "--name", "mended", "--tag", "night", "--retry", "2")  # fmt: skip
    row = queue.json("show", "mended")["job"]
    assert (row["mem_bytes"], row["priority"], row["time_limit_s"]) == (64 << 20, 5, None)
    assert (row["name"], row["tags"], row["retries"]) == ("mended", ["night"], 2)
    ended = queue("edit", str(job), "--gpus", "99")
    assert (ended.code, ended.err.count("error:")) == (4, 1)
    assert queue.json("show", str(job))["job"]["gpus_asked"] == 1
    queue.fine("queue", "stop")  # the edited row has a checksum of its own
    queue.fine("release", str(job))
    queue.fine("wait", str(job))
    ended = queue("edit", str(job), "--mem", "1GiB")
    assert (ended.code, ended.err.splitlines()[0]) == (2, f"error: job {job} has already ended.")


def test_a_waiting_job_is_edited_as_a_file(queue: Queue) -> None:
    job = queue.sh("true", "--hold", "--mem", "64MiB", "--cpus", "1", "--array", "3")
    queue.fed(b'gpus = 1\nmem = "64MiB"\n', "edit", str(job), "--file", "-")
    assert queue.json("show", str(job))["job"]["mem_bytes"] == 64 << 20
    text = (
        b'mem = ""\ncpus = "0.5"\ncommand = "exit 7"\ntags = ["night"]\nrequeue = true\ncwd = "/"'
    )
    assert queue.fed(text, "edit", str(job), "--file", "-").code == 0
    row = queue.json("show", str(job))["job"]
    assert (row["mem_bytes"], row["cpus"], row["tags"], row["cwd"]) == (None, 0.5, ["night"], "/")
    assert (row["argv"], row["label"], row["may_requeue"]) == (
        ["/bin/sh", "-c", "exit 7"], "exit", True,
    )  # fmt: skip
    assert (
        "no such option 'gpu'. Did you mean 'gpus'?"
        in queue.fed(b"gpu = 2", "edit", str(job), "--file", "-").err
    )


def test_edit_without_options_opens_an_editor_on_a_terminal(queue: Queue, tmp_path: Path) -> None:
    job = queue.sh("true", "--hold")
    terminal = Shell(queue.story).on_terminal
    seds = {"EDITOR": "sed -i 's/^priority = 0/priority = 7/'", "TMPDIR": str(tmp_path)}
    status, shown = terminal("edit", str(job), env=seds)
    assert (status, shown) == (0, f"job {job} edited\n")
    assert queue.job(job)["priority"] == 7
    assert not list(tmp_path.iterdir())
    assert terminal("edit", str(job), env=seds) == (0, f"job {job} was not changed\n")
    status, shown = terminal("edit", str(job), env={**seds, "EDITOR": "sed -i s/7/x/"})
    assert status == 2
    (kept,) = tmp_path.iterdir()
    assert "the file is not TOML" in shown
    assert f"grn edit {job} --file {kept}" in " ".join(shown.split())
    status, shown = terminal("edit", str(job), env={"EDITOR": "false"})
    assert (status, "nothing is changed" in shown) == (2, True)
    ended = queue("edit", str(job))
    assert (ended.code, "there is nothing to change" in ended.err) == (2, True)


def test_submit_can_wait_for_the_end(queue: Queue) -> None:
    ended = queue("submit", "--wait", "--shell", "--", "exit 7")
    assert ended.code == 7
    assert ended.out.strip().isdigit()


# --- outside the queue ---------------------------------------------------------------------


def outside(queue: Queue) -> list[str]:
    return [row["id"] for row in json.loads(queue.fine("ls", "--json"))["outside"]]


def test_what_runs_outside_the_queue_is_in_the_list_and_its_id_is_taken(queue: Queue) -> None:
    running = queue.start("exec", "--mem", "10MiB", "--", "sleep", "600")
    (lease,) = wait_for(lambda: outside(queue), "the command in the list")
    assert lease in queue.fine("ls")
    assert lease in queue.fine("show", lease[:6])
    for words in (("logs", lease), ("hold", lease), ("edit", lease, "--priority", "1")):
        refused = queue(*words)
        assert (refused.code, f"{lease} runs outside the queue" in refused.err) == (2, True)
    waiter = queue.start("wait", lease)
    assert queue("cancel", lease).code == 0
    assert running.wait().code == 128 + signal.SIGTERM
    assert waiter.wait().code == 0  # whether it came before the end or after it
    assert queue("wait", lease).code == 0
    assert outside(queue) == []


def test_the_id_of_a_lease_is_found_also_if_it_has_digits_only(queue: Queue) -> None:
    queue.ended(queue.sh("true"))  # the negotiator runs by now
    for _ in range(500):  # an id begins so once in twenty times
        with grn.lease(mem="10MiB", type="outside") as lease:
            begun = lease.id[:6]  # more digits than the id of a job has
            if begun.isdigit() and begun[0] != "0":
                assert lease.id in queue.fine("show", begun)
                assert f"{lease.id} runs outside the queue" in queue("hold", begun).err
                return
    raise AssertionError("no id begins with four digits")


def test_jobs_of_the_queue_have_their_own_ids_in_ps(queue: Queue) -> None:
    queue.gate("ps")
    (job,) = queue.shs("echo up; gate ps")
    queue.says(job, "up")
    rows = [line.split() for line in queue.fine("ps").splitlines()[1:]]
    assert [row[0] for row in rows] == [str(job)]
    assert outside(queue) == []


def test_logs_of_several_jobs_stand_below_their_ids(queue: Queue) -> None:
    one, two = queue.shs("printf 'a\\nb\\nc\\n'", "echo d")
    queue.ended(one), queue.ended(two)
    text = queue.fine("logs", "-n", "2", str(one), str(two))
    assert text == f"==> job {one} <==\nb\nc\n\n==> job {two} <==\nd\n"
    assert queue.fine("logs", "--since", "1h", "-n", "1", str(one)) == "c\n"


def test_history_can_be_filtered(queue: Queue) -> None:
    good, bad = queue.sh("true", "--name", "filtered"), queue.sh("false", "--name", "filtered")
    queue.ended(good), queue.ended(bad)

    def ids(*words: str) -> list[int]:
        found = json.loads(queue.fine("history", "--json", "--name", "filtered", *words))["jobs"]
        return [row["id"] for row in found]

    assert ids("--since", "1h") == [bad, good]
    assert ids("--state", "failed") == [bad]
    assert ids("-n", "1") == [bad]


def test_a_program_that_is_not_on_path_is_warned_of(queue: Queue) -> None:
    ended = queue("submit", "--hold", "--", "pyhton3", "x.py")
    assert ended.code == 0
    assert ended.err == "warning: pyhton3: not found on PATH; did you mean python3?\n"


def test_completion_offers_the_jobs_that_a_command_works_on(queue: Queue) -> None:
    held = queue.sh("true", "--hold", "--name", "later")
    ended = queue.sh("true", "--name", "gone")
    queue.ended(ended)

    def offered(command: str, begun: str = "") -> set[str]:
        env = {"_GRN_COMPLETE": "bash_complete", "COMP_WORDS": f"grn {command} {begun}",
               "COMP_CWORD": "2"}  # fmt: skip
        return {line.partition(",")[2] for line in queue.fine(env=env).splitlines()}

    assert {str(held), "later"} == offered("cancel") == offered("release") == offered("edit")
    assert offered("hold") == {""}
    assert {str(ended), "gone"} <= offered("retry")
    assert str(held) not in offered("retry")
    assert offered("logs", "lat") == {"later"}


def test_submit_says_on_a_terminal_in_one_line_what_becomes_of_the_job(queue: Queue) -> None:
    terminal = Shell(queue.story).on_terminal
    status, shown = terminal("submit", "--hold", "--", "true", env={"NO_COLOR": "1"})
    job = shown.split()[0]
    assert status == 0
    assert shown == f"{job}  held: run `grn release {job}` to let it start · grn logs -f {job}\n"
    status, shown = terminal("submit", "--hold", "--array", "0-9", "--", "true", columns=60,
                             env={"NO_COLOR": "1"})  # fmt: skip
    first = int(job) + 1
    assert shown.startswith(f"{first}-{first + 9}  10 jobs, held: run `grn release")
    assert shown.endswith(" · grn ls\n")
    assert len(shown) <= 61


def test_a_waiting_job_has_its_own_id_in_ps(queue: Queue) -> None:
    (runs,) = queue.shs(STAYS)
    queue.says(runs, "up")
    waits = queue.sh("true", "--exclusive", "--gpus", "4", "--name", "later")
    wait_for(lambda: queue.json("ps")["waiting"], "its request")
    rows = {line.split()[0]: line for line in queue.fine("ps").splitlines()[1:]}
    assert set(rows) == {str(runs), str(waits)}
    assert "later" in rows[str(waits)]
    assert "needs 4 GPUs to itself; only 3 can take it now: GPU" in rows[str(waits)]
    assert f"(job {runs})" in rows[str(waits)], "the job in its way too is named by its id"
