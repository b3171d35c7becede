"""What every kind of site keeps to, on real nodes: a job there is like a job here.

All tests of this file share one home and one node, which they leave as they were. What happens when
something breaks is in `test_contract_faults.py`.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import is_running, wait_for
from tests.queue_faults.rig import command_line
from tests.sites.machines import listening_ports
from tests.sites.site_under_test import SITE, Home, leases_at, profiles_at

MiB = 1 << 20
# Says so on its first try only, as a program does that found less memory than it was promised.
OUT_OF_MEMORY_ONCE = """
if [ $GRN_ATTEMPT = 1 ]; then
  echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 MiB' >&2; exit 1
fi
echo fine
"""
# Waits until the test makes a file.
UNTIL = 'until test -e "$0"; do sleep 0.02; done'
TREE = 'sh -c "sleep 1000 & sleep 1000" & setsid sleep 1000 & wait'


@pytest.fixture
def go(lab: Home, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return the path of a file that jobs wait for; it is made at the end of the test."""
    path = lab.story.folder / f"go-{request.node.name.partition('[')[0]}"
    yield path
    path.touch()


# --- how it runs and ends ------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 1, 7, 126, 255])
def test_the_exit_status_comes_home(lab: Home, status: int) -> None:
    row = lab.ran(f"exit {status}")

    assert (row["reason"], row["status"]) == ("ok" if status == 0 else "failed", status)


def test_a_signal_that_ended_it_comes_home(lab: Home) -> None:
    row = lab.ran("kill -9 $$")

    assert (row["reason"], row["status"], row["signal"]) == ("failed", None, 9)


def test_the_row_names_the_node_and_a_gpu_of_it(lab: Home) -> None:
    row = lab.ran("echo $CUDA_VISIBLE_DEVICES")
    node = lab.node_is("up")

    assert row["where"] == node["node"]
    assert row["attempts"][0]["where"] == node["node"]
    assert lab.log(row["id"]).strip() == ",".join(map(str, row["gpus"]))
    assert "WHERE" in lab.grn_well("ls", "-a")
    assert f"of {node['node']}" in lab.grn_well("show", str(row["id"]))


def test_variables_of_the_submitter_travel_and_those_of_the_machine_do_not(lab: Home) -> None:
    environment = {**lab.story.environment(), "COLOUR": "green", "TMPDIR": "/home/tmp"}
    words = "$COLOUR $GRN_RUNTIME_DIR ${TMPDIR-unset} $GRN_JOB_ID $GRN_ATTEMPT"
    row = lab.ran(f"echo {words}", env=environment)
    machine = lab.machine.env

    assert lab.log(row["id"]).split() == [
        "green", machine["GRN_RUNTIME_DIR"], machine.get("TMPDIR", "unset"), str(row["id"]), "1",
    ]  # fmt: skip


def test_a_variable_that_is_not_utf8_arrives_as_it_is(lab: Home) -> None:
    environment = {**lab.story.environment(), "NOISE": "\0a\xff\xfeb"}  # as `wire.spelled` says
    row = lab.ran('printf %s "$NOISE"', env=environment)

    assert Path(row["folder"], "log").read_bytes() == b"a\xff\xfeb"


def test_it_runs_in_the_folder_it_was_submitted_from(lab: Home) -> None:
    folder = lab.story.folder / "a folder"
    folder.mkdir()
    row = lab.ran("pwd; umask", cwd=str(folder), umask=0o077)

    assert lab.log(row["id"]).split("\n")[:2] == [str(folder), "0077"]


def test_a_folder_that_is_not_there_is_named_with_the_node_and_a_remedy(lab: Home) -> None:
    row = lab.ran("true", cwd="/not/on/any/node")

    assert (row["reason"], row["attempt"]) == ("not-runnable", 1)
    assert f"/not/on/any/node cannot be used on {row['where']}" in row["text"]
    assert "No such file" in row["text"]
    assert "--send" in row["text"]


def test_a_program_that_is_not_there_is_named_with_the_node(lab: Home) -> None:
    row = lab.rig.ended(lab.submit(["no-such-program"]))

    assert (row["reason"], row["status"]) == ("not-runnable", 127)
    assert row["text"].startswith(f"on {row['where']}: no-such-program")


# --- output --------------------------------------------------------------------------------


def test_both_streams_come_home_in_their_order(lab: Home) -> None:
    row = lab.ran("for i in 1 2 3; do echo out$i; echo err$i >&2; done")

    assert lab.log(row["id"]).split() == ["out1", "err1", "out2", "err2", "out3", "err3"]


def test_errors_come_home_also_alone_if_they_are_kept_apart(lab: Home) -> None:
    environment = {**lab.story.environment(), "GRN_SEPARATE_STDERR": "1"}
    row = lab.ran("echo out; echo err >&2", env=environment)

    assert sorted(lab.log(row["id"]).split()) == ["err", "out"]
    assert lab.log(row["id"], "--stderr") == "err\n"


def test_output_is_followed_while_the_job_runs(lab: Home, go: Path) -> None:
    job = lab.sh(f"echo first; {UNTIL}; echo last; exit 3", str(go))
    following = lab.grn_aside("logs", "-f", str(job))
    wait_for(lambda: "first" in following.out, lambda: following.err)
    go.touch()
    ended = following.wait()

    assert ended.out == "first\nlast\n"
    assert ended.code == 3


def test_output_that_is_not_text_comes_home_as_it_is(lab: Home) -> None:
    row = lab.python("import os; os.write(1, bytes(range(256)) * 40)")

    assert Path(row["folder"], "log").read_bytes() == bytes(range(256)) * 40


def test_of_very_long_output_head_and_tail_come_home(lab: Home) -> None:
    row = lab.python("for number in range(200_000): print(f'line {number:08d} {number:08d}')")
    text = lab.log(row["id"]).splitlines()

    assert row["reason"] == "ok"
    assert text[0] == "line 00000000 00000000"
    assert text[-1] == "line 00199999 00199999"
    (gap,) = (place for place, line in enumerate(text) if "too much to keep" in line)
    for lines in (text[: gap - 1], text[gap + 2 :]):  # what stands beside the gap may be cut
        numbers = [int(line.split()[1]) for line in lines]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len(numbers) > 10_000
    kept = sum(path.stat().st_size for path in Path(row["folder"]).glob("log*"))
    assert kept <= MiB  # as home's settings say


def test_a_job_with_a_log_of_its_own_has_it_at_home(lab: Home) -> None:
    own = lab.story.folder / "own.log"
    own.write_text("before\n")
    row = lab.ran("echo out; echo err >&2", log=str(own))

    assert row["reason"] == "ok"
    assert sorted(own.read_text().splitlines()) == ["before", "err", "out"]
    assert own.read_text().startswith("before\n")
    assert lab.log(row["id"]) == own.read_text()


# --- ending it -----------------------------------------------------------------------------


def test_a_cancel_ends_the_whole_tree(lab: Home) -> None:
    job = lab.sh(TREE)

    def sleepers() -> list[int]:
        return [pid for pid in lab.rig.marked(job) if command_line(pid)[0] == b"sleep"]

    wait_for(lambda: len(sleepers()) == 3, lambda: f"three of {sleepers()}")
    pids = lab.rig.marked(job)
    assert len(pids) >= 4
    lab.rig.ask("cancel", jobs=[job])
    row = lab.rig.ended(job)

    assert row["reason"] == "cancelled"
    assert not any(map(is_running, pids))


def test_a_cancelled_job_that_waits_never_runs(lab: Home, go: Path, tmp_path: Path) -> None:
    first = lab.sh(UNTIL, str(go), gpus=2, exclusive=True)
    lab.rig.running(first)
    second = lab.sh('touch "$0"', str(tmp_path / "ran"))
    lab.why_says(second, "GPU")
    lab.rig.ask("cancel", jobs=[second])
    assert lab.rig.ended(second)["reason"] == "cancelled"
    go.touch()
    lab.rig.ended(first)

    assert not (tmp_path / "ran").exists()


def test_a_time_limit_ends_it(lab: Home) -> None:
    row = lab.ran("sleep 1000", time_limit_s=0.5)

    assert row["reason"] == "timed-out"


def test_a_failed_job_is_tried_again_as_often_as_asked(lab: Home) -> None:
    row = lab.ran("echo $GRN_ATTEMPT; test $GRN_ATTEMPT = 3", retry=5)

    assert (row["reason"], row["attempt"]) == ("ok", 3)
    assert lab.log(row["id"], "--attempt", "2") == "2\n"
    assert lab.log(row["id"]) == "3\n"


def test_out_of_memory_is_tried_again_with_more_room(lab: Home, go: Path) -> None:
    sharer = lab.sh(UNTIL, str(go), gpus=2)
    lab.rig.running(sharer)
    row = lab.ran(OUT_OF_MEMORY_ONCE, mem=32 * MiB, type="memory")
    first, second = row["attempts"]

    assert (first["reason"], second["reason"]) == ("out-of-memory", "ok")
    assert second["reserved_bytes"] > first["reserved_bytes"]
    assert lab.log(row["id"]) == "fine\n"


def test_a_job_that_overflows_its_gpu_has_run_out_of_memory(lab: Home) -> None:
    text = "import signal; kept = b'x' * (700 << 20); signal.pause()"
    row = lab.python(text, mem=64 * MiB)

    assert (row["reason"], row["signal"]) == ("out-of-memory", 9)


# --- which job, where ----------------------------------------------------------------------


def test_a_waiting_job_tells_the_reason_of_the_node(lab: Home, go: Path) -> None:
    first = lab.sh(UNTIL, str(go), gpus=2, exclusive=True)
    node = lab.rig.running(first)["where"]
    second = lab.sh("true")
    why = lab.why_says(second, "GPU")
    assert f"{node}: " in why
    assert f"{node}: " in lab.grn_well("why", str(second))
    assert f"{node}: " in lab.grn_well("ls")
    go.touch()

    assert lab.rig.ended(second)["reason"] == "ok"


def test_a_job_that_no_node_could_ever_run_is_refused_in_the_words_of_the_node(lab: Home) -> None:
    node = lab.ran("true")["where"]  # a pilot comes with the first job
    row = lab.ran("true", gpus=64)

    assert row["reason"] == "refused"
    assert node in row["text"]
    assert "64" in row["text"]


def test_a_job_at_local_stays_here_and_a_place_that_is_not_known_is_refused(lab: Home) -> None:
    assert lab.ran("true", at="local")["where"] == ""
    refused = lab.grn("submit", "--at", "labb", "--", "true")

    assert refused.code == 2
    assert refused.err.splitlines()[0] == "error: there is no site or node labb."


def test_a_job_at_a_node_runs_there(lab: Home) -> None:
    node = lab.ran("true")["where"]  # a pilot comes with the first job

    assert lab.ran("true", at=node)["where"] == node


def test_with_no_place_named_jobs_run_here_and_there(lab: Home, go: Path) -> None:
    jobs = [lab.sh(UNTIL, str(go), at="", exclusive=True) for _ in range(3)]
    places = {lab.rig.running(job)["where"] for job in jobs}

    assert places == {"", lab.node_is("up")["node"]}


def test_an_array_and_the_lines_of_a_batch_run_there(lab: Home, tmp_path: Path) -> None:
    words = ("-q", "--mem", "8MiB", "--at", SITE, "--array", "1-5", "--shell", "--")
    printed = lab.grn_well("submit", *words, "echo $GRN_ARRAY_INDEX")
    jobs = [int(word) for word in printed.split()]
    assert [lab.rig.ended(job)["where"] != "" for job in jobs] == [True] * 5
    assert [lab.log(job) for job in jobs] == [f"{number}\n" for number in range(1, 6)]

    lines = tmp_path / "lines"
    lines.write_text("".join(f"[gpus=2] echo said {number}\n" for number in range(4)))
    done = lab.grn("batch", str(lines), "--mem", "8MiB", "-q")  # home has one GPU only
    logs = sorted(path.read_text() for path in Path(f"{lines}.grn").rglob("*") if path.is_file()
                  and path.read_bytes().startswith(b"said"))  # fmt: skip
    assert done.code == 0, done.err
    assert logs == [f"said {number}\n" for number in range(4)]


def test_calls_of_an_executor_run_there_if_told_so(lab: Home) -> None:
    ended = lab.story.run_script(
        """
        import grn, os
        with grn.Executor(mem="8MiB") as pool:
            print(sorted(set(pool.map(os.path.exists, ["/", "/proc"]))))
        with grn.Executor(mem="8MiB", at="lab") as pool:
            future = pool.submit(divmod, 7, 2)
            print(future.result(), future.job.status()["where"] != "")
        """
    )

    assert ended.out.splitlines() == ["[True]", "(3, 1) True"], ended.err


# --- inside a job, and what is learned -------------------------------------------------------


def test_leases_inside_a_job_are_asked_of_the_node(lab: Home) -> None:
    script = lab.story.write(
        "nested.py",
        """
        import grn, os, subprocess, sys
        outer = os.environ["GRN_LEASE"]
        @grn.job("inner", mem="8MiB")
        def inner():
            print(os.environ["GRN_RUNTIME_DIR"], grn.lease is not None, flush=True)
        inner()
        grn_ = [sys.executable, "-c", "from grn.cli.main import main; main()"]
        subprocess.run([*grn_, "exec", "--", "printenv", "GRN_LEASE"], check=True)
        print(outer)
        """,
    )
    row = lab.rig.ended(lab.submit([sys.executable, str(script)]))
    where, inner, outer = lab.log(row["id"]).splitlines()

    assert row["reason"] == "ok"
    assert where.split()[0] == lab.machine.env["GRN_RUNTIME_DIR"]
    assert inner == outer == row["lease"].rpartition("/")[2]


def test_what_the_first_run_needed_is_known_to_the_second(lab: Home) -> None:
    text = "import time; kept = b'x' * (90 << 20); time.sleep(0.6)"
    first = lab.python(text, mem=None, type="learner")
    second = lab.python(text, mem=None, type="learner")

    assert first["reserved_bytes"] > 400 * MiB  # all that was free
    assert first["peak_bytes"] > 90 * MiB
    assert second["reserved_bytes"] < 250 * MiB
    learned = [row["type"] for row in profiles_at(lab.machine)]
    assert "learner" in learned


# --- what others can see and do ---------------------------------------------------------------


def test_values_of_the_environment_lie_nowhere_on_the_node_for_others_to_read(
    lab: Home, go: Path
) -> None:
    secret = "a-token-that-is-nobody-elses"
    job = lab.sh(UNTIL, str(go), env={**lab.story.environment(), "TOKEN": secret})
    lab.rig.running(job)
    machine = lab.machine
    for root in (machine.runtime, machine.state):
        for path in root.rglob("*"):
            if path.is_file() and secret.encode() in path.read_bytes():
                assert path.stat().st_mode & 0o077 == 0, path
    (socket,) = machine.runtime.parent.rglob("*-agent-*/agent.sock")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (socket.parent, socket)] == [0o700, 0o600]


def is_ours(pid: int) -> bool:
    """False for `srun` and for drivers and workers of Ray: they listen for everybody."""
    is_python = Path(f"/proc/{pid}/exe").readlink().name.startswith("python")
    words = Path(f"/proc/{pid}/cmdline").read_bytes()
    return is_python and b"ray::" not in words and b"pilots.ray" not in words


def test_no_process_of_grn_listens_on_a_port(lab: Home) -> None:
    lab.ran("true")
    machine = lab.machine
    ours = [*machine.agents(), *machine.pipes(), *machine.negotiators()]
    ours += lab.rig.services()["queue"]
    ours = [pid for pid in ours if is_ours(pid)]
    assert len(ours) >= 3

    assert [pid for pid in ours if listening_ports(pid)] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT ROOT: nobody played another user")
def test_an_agent_does_not_talk_to_another_user(lab: Home) -> None:
    """Its folder keeps others out; if somebody opens that, the agent looks who is there."""
    lab.ran("true")
    (socket,) = lab.machine.runtime.parent.rglob("*-agent-*/agent.sock")
    script = (
        "import os, socket\nos.setuid(65534)\ns = socket.socket(socket.AF_UNIX)\n"
        "s.connect('agent.sock')\nprint(s.recv(100))"
    )
    socket.parent.chmod(0o755), socket.chmod(0o666)
    try:
        done = subprocess.run([sys.executable, "-c", script], cwd=socket.parent, text=True,
                              capture_output=True, check=False)  # fmt: skip
    finally:
        socket.parent.chmod(0o700), socket.chmod(0o600)

    assert done.stdout == "b''\n" or "ConnectionResetError" in done.stderr, done
    assert lab.ran("exit 3")["status"] == 3


def test_no_lease_is_left_when_all_is_done(lab: Home) -> None:
    lab.ran("true")

    wait_for(lambda: leases_at(lab.machine) == [], lambda: leases_at(lab.machine))
