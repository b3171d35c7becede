"""The runner: real commands on fixed slots, how they end, and how they are ended."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from grn.fixed_slots.runner import Runner
from grn.group.task import CommandEnd, Task
from grn.proc.processes import listed_children, look
from grn.proc.spawn import oom_score
from tests.group.runner_parts import run, sh
from tests.harness import Job, Story, is_running, wait_for

# Runs lines on four slots; each says a line of its own in the story.
LINES = """
    import os, sys
    sys.path.insert(0, {root!r})
    from tests.group.runner_parts import Ear, Listed, sh
    from grn.fixed_slots.runner import Runner
    from grn.fixed_slots.slots import FixedSlots

    ear = Ear()
    runner = Runner(FixedSlots("0123"), Listed(sh(line) for line in sys.argv[2:]), ear,
                grace_s=float(sys.argv[1]))
    runner.run()
    print(runner.stopped_by, [ended.status for ended in ear.ends], flush=True)
"""
ROOT = str(Path(__file__).resolve().parents[2])


def crew_of(story: Story, *lines: str, grace_s: float = 30.0, **options: object) -> Job:
    script = LINES.replace("{root!r}", repr(ROOT))
    return story.start_script(script, str(grace_s), *lines, name="runner.py", **options)


def pids(story: Story, *names: str) -> list[int]:
    """Wait until processes have written their pids into files of these names."""
    paths = [story.folder / name for name in names]
    wait_for(lambda: all(path.exists() and path.read_text() for path in paths), names)
    return [int(path.read_text()) for path in paths]


def all_gone(some: list[int]) -> bool:
    return not any(is_running(pid) for pid in some)


# --- ends ----------------------------------------------------------------------------------


def test_each_task_tells_how_it_ended() -> None:
    ear = run([sh("true"), sh("exit 3"), sh("kill -9 $$")])

    assert ear.statuses == {"true": 0, "exit 3": 3, "kill -9 $$": -9}
    assert all(ended.duration_s > 0 and ended.started_at > 0 for ended in ear.ends)


def test_nothing_to_run_is_a_quick_end() -> None:
    assert run([]).ends == []


def test_a_program_that_is_being_written_is_started_when_it_is_whole(tmp_path: Path) -> None:
    """The system says "Text file busy": of the moment, and no end of the command."""
    tool = tmp_path / "tool"
    shutil.copy("/bin/true", tool)
    writer = tool.open("ab")
    closing = threading.Timer(0.2, writer.close)
    closing.start()
    ear = run([Task(1, (str(tool),), "tool"), sh("true")])
    closing.join()

    assert ear.statuses == {"tool": 0, "true": 0}


def test_a_command_is_ended_before_its_crew_when_memory_runs_out(tmp_path: Path) -> None:
    own = oom_score("self")
    run([sh(f"cat /proc/self/oom_score_adj >{tmp_path}/score")])

    assert own is not None
    assert int((tmp_path / "score").read_text()) == min(1000, own + 500)
    assert oom_score("self") == own


@pytest.mark.parametrize(
    ("argv", "status", "part"),
    [
        (("no-such-program-at-all",), 127, "no-such-program-at-all: command not found"),
        (("/no/such/program",), 127, "/no/such/program: No such file"),
        (("/etc",), 126, "/etc: Permission denied"),
        (("/bin/echo", "a\0b"), 126, "a command cannot hold a NUL character"),
        (("/bin/echo", "x" * (1 << 18)), 126, "Argument list too long"),
    ],
)
def test_a_command_that_cannot_start_fails_alone(
    argv: tuple[str, ...], status: int, part: str
) -> None:
    ear = run([Task(1, argv, "bad"), sh("true")], ["0"])

    assert ear.statuses == {"bad": status, "true": 0}
    assert part in ear.ends[0].trouble


def test_a_folder_or_a_log_that_cannot_be_used_fails_its_task_alone(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none")
    ear = run(
        [
            sh("true", folder=nowhere),
            sh("true #2", log_path=f"{nowhere}/log"),
            sh("true #3"),
        ]
    )

    assert sorted(ended.status for ended in ear.ends) == [0, 127, 127]
    assert all(nowhere in ended.trouble for ended in ear.ends if ended.status)
    assert not os.path.exists(nowhere)


# --- what a command gets -------------------------------------------------------------------


def test_a_command_gets_its_folder_its_log_and_no_input(tmp_path: Path) -> None:
    here = os.getcwd()
    log = tmp_path / "log"
    log.write_text("before\n")
    ear = run([sh("pwd; cat; echo err >&2", folder=str(tmp_path), log_path=str(log))])

    assert ear.ends[0].status == 0
    assert log.read_text() == f"before\n{tmp_path}\nerr\n"
    assert os.getcwd() == here


def test_its_environment_is_ours_then_the_tasks_then_the_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "ours")
    monkeypatch.setenv("BOTH", "ours")
    log = tmp_path / "log"
    changes = {"BOTH": "task", "CUDA_VISIBLE_DEVICES": "task", "ODD": "\udcff"}
    run([sh("echo $OURS $BOTH $CUDA_VISIBLE_DEVICES $ODD", environment=changes, log_path=str(log))])

    assert log.read_bytes() == b"ours task 1 \xff\n"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_program_is_found_by_the_path_of_its_task(tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    task = Task(1, ("mine",), "mine", environment={"PATH": str(tmp_path)})

    assert run([task]).statuses == {"mine": 7}


def test_commands_do_not_inherit_what_python_ignores(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run([sh("grep SigIgn /proc/self/status", log_path=str(log))])
    ignored = int(log.read_text().split()[1], 16)

    assert not ignored & (1 << (signal.SIGPIPE - 1))


def test_a_command_has_no_files_of_ours_open(tmp_path: Path) -> None:
    log = tmp_path / "log"
    given = {one for one in os.listdir("/proc/self/fd") if _is_for_children(int(one))}
    run([sh("ls /proc/$$/fd", log_path=str(log))])

    assert set(log.read_text().split()) <= given | {"10"}  # 10 is the shell's own


def _is_for_children(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # the one that the folder was listed with
        return False


# --- order and steering --------------------------------------------------------------------


def test_tasks_start_in_order_on_the_last_slot_first() -> None:
    ear = run([sh(f"true {number}") for number in range(3)], ["a", "b", "c"])

    assert ear.starts == [("true 0", "c"), ("true 1", "b"), ("true 2", "a")]


def test_the_most_recently_freed_slot_is_used_first(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    ear = run([sh(f"read x <{fifo}"), sh("true"), sh(f"echo >{fifo}")], ["a", "b"])

    assert [slot for _, slot in ear.starts] == ["b", "a", "a"]


@pytest.mark.parametrize("retries", [0, 2])
def test_a_task_that_fails_is_run_again_as_often_as_asked(retries: int) -> None:
    ear = run([sh("exit 1", 1), sh("exit 2", 2)], ["0"], retries=retries)

    for number in (1, 2):
        told = [ended.runs_again for ended in ear.ends if ended.task.number == number]
        assert told == [True] * retries + [False]


def test_a_listener_that_is_not_content_can_run_a_task_again() -> None:
    told: list[bool] = []
    run([sh("true")], ["0"], lambda runner, ended: told.append(runner.again(ended.task)), retries=2)

    assert told == [True, True, False]


def test_a_task_to_run_again_comes_before_the_others() -> None:
    tasks = [sh("exit 1"), sh("true 1", 2), sh("true 2", 3), sh("true 3", 4)]
    ear = run(tasks, ["0"], retries=1)
    # One task is always at hand for the next slot, so the second comes first.
    assert [label for label, _ in ear.starts][:3] == ["exit 1", "true 1", "exit 1"]


def test_draining_lets_what_runs_finish_and_starts_nothing_more(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def drain(runner: Runner, ended: CommandEnd) -> None:
        runner.drain()
        if ended.task.label == "false":
            with open(fifo, "w") as file:
                file.write("go on\n")

    ear = run([sh(f"read x <{fifo}"), sh("false"), sh("true"), sh("true")], ["0", "1"], drain)
    assert [ended.status for ended in ear.ends] == [1, 0]


def test_stopping_ends_what_runs(tmp_path: Path) -> None:
    def stop(runner: Runner, ended: CommandEnd) -> None:
        runner.stop()

    ear = run([sh("sleep 1000"), sh("false"), sh("true")], ["0", "1"], stop)
    assert ear.statuses == {"false": 1, "sleep 1000": -signal.SIGTERM}


def test_a_listener_that_breaks_leaves_nothing_running(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def fail(runner: Runner, ended: CommandEnd) -> None:
        raise RuntimeError("broken listener")

    first = sh(f"echo $$ >{pid_file}; exec sleep 1000")
    second = sh(f"until [ -s {pid_file} ]; do sleep 0.01; done")
    with pytest.raises(RuntimeError, match="broken listener"):
        run([first, second], ["0", "1"], fail)
    assert not is_running(int(pid_file.read_text()))


def test_signals_and_children_of_the_caller_are_as_before() -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    own = os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ, setsid=True)
    try:
        run([sh("false")], ["0"], lambda runner, ended: runner.stop())
        assert is_running(own)  # it was there before: not one of ours
    finally:
        os.kill(own, signal.SIGKILL)
        os.waitpid(own, 0)
    after = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert after == before
    assert signal.set_wakeup_fd(wakeup) == wakeup


# --- stopped from outside ------------------------------------------------------------------

TREE = (
    "(sleep 1001 & echo $! >child; wait) & "
    "setsid sh -c 'echo $$ >escaped; exec sleep 1002' & "
    "(setsid sh -c 'echo $$ >daemon; exec sleep 1003' &) ; echo $$ >main; wait"
)
TREE_NAMES = ("child", "escaped", "daemon", "main")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_whole_trees_also_what_escaped(story: Story, signum: int) -> None:
    job = crew_of(story, TREE)
    tree = pids(story, *TREE_NAMES)
    job.signal(signum)

    assert job.wait().out == f"{int(signum)} [{-signal.SIGTERM}]\n"
    assert all_gone(tree)


def test_who_does_not_hear_is_killed_after_the_grace(story: Story) -> None:
    job = crew_of(story, "trap '' TERM; echo $$ >deaf; while :; do sleep 1; done", grace_s=0.1)
    deaf = pids(story, "deaf")
    job.signal(signal.SIGTERM)

    assert job.wait().out == f"15 [{-signal.SIGKILL}]\n"
    assert all_gone(deaf)


def test_a_second_signal_kills_at_once(story: Story) -> None:
    job = crew_of(story, "trap 'echo >heard' TERM; echo $$ >deaf; while :; do sleep 0.01; done")
    deaf = pids(story, "deaf")
    job.signal(signal.SIGINT)
    wait_for(lambda: (story.folder / "heard").exists(), "the first signal to be heard")
    job.signal(signal.SIGINT)

    assert job.wait().out == f"2 [{-signal.SIGKILL}]\n"
    assert all_gone(deaf)


def test_a_stopped_command_is_ended_too(story: Story) -> None:
    job = crew_of(story, "echo $$ >main; exec sleep 1000")
    (main,) = pids(story, "main")
    os.kill(main, signal.SIGSTOP)
    job.signal(signal.SIGTERM)

    assert job.wait().out == f"15 [{-signal.SIGTERM}]\n"


def test_a_signal_that_is_ignored_stays_so(story: Story) -> None:
    gate = story.folder / "gate"
    os.mkfifo(gate)
    job = crew_of(
        story,
        f"echo $$ >main; read x <{gate}",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    pids(story, "main")
    job.signal(signal.SIGHUP)
    with gate.open("w") as file:
        file.write("go on\n")

    assert job.ended_well().out == "0 [0]\n"


def test_a_killed_crew_takes_its_commands_along_with_all_they_started(story: Story) -> None:
    job = crew_of(story, TREE)
    tree = pids(story, *TREE_NAMES)
    wait_until_the_guard_has_seen(tree[TREE_NAMES.index("daemon")], job)
    job.kill()

    wait_for(lambda: all_gone(tree), "the commands to end with their runner")


ELDER = """
    command = "echo $$ >elder; exec sleep 1004"
    os.posix_spawn("/bin/sh", ["sh", "-c", command], os.environ, setsid=True)
"""


def test_a_killed_crew_leaves_other_children_of_its_process_alone(story: Story) -> None:
    script = LINES.replace("{root!r}", repr(ROOT)).replace("    ear =", f"{ELDER}    ear =")
    job = story.start_script(script, "30", TREE, name="runner.py")
    tree = pids(story, *TREE_NAMES)
    (elder,) = pids(story, "elder")
    for pid in (elder, tree[TREE_NAMES.index("daemon")]):
        wait_until_the_guard_has_seen(pid, job)
    job.kill()

    wait_for(lambda: all_gone(tree), "the commands to end with their runner")
    assert is_running(elder)
    os.kill(elder, signal.SIGKILL)


def words_of(pid: int) -> bytes:
    """Return the command line of a process; nothing when it has ended since it was listed."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_until_the_guard_has_seen(pid: int, runner: Job) -> None:
    """Wait until a process is the runner's own child, and until the guard has looked since then."""
    wait_for(lambda: (found := look(pid)) is not None and found.parent == runner.pid, "adoption")
    family = listed_children(runner.pid)
    assert family is not None
    (guard,) = (one for one in family if words_of(one) == words_of(runner.pid))

    def pauses() -> int:
        status = Path(f"/proc/{guard}/status").read_text()
        return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])

    before = pauses()
    wait_for(lambda: pauses() >= before + 2, "the guard to look again")


def test_a_crew_that_is_killed_while_it_starts_commands_leaves_none(story: Story) -> None:
    """Also the one whose pid it did not live to learn is ended."""
    for _ in range(4):
        job = crew_of(story, *["echo >>begun; exec sleep 1000"] * 4)
        wait_for(lambda: (story.folder / "begun").exists(), "the first to start")
        job.kill()
        (story.folder / "begun").unlink()

    wait_for(lambda: not list(story.left_behind()), "all to end")


def test_the_guard_is_gone_when_the_crew_is(story: Story) -> None:
    crew_of(story, "true").ended_well()

    wait_for(lambda: not list(story.left_behind()), "the guard to end")


def test_what_a_command_leaves_behind_goes_on_after_a_normal_end(story: Story) -> None:
    crew_of(story, "sleep 1000 & echo $! >left").ended_well()
    (left,) = pids(story, "left")

    assert is_running(left)
    os.kill(left, signal.SIGKILL)


def test_orphans_do_not_pile_up_as_zombies(story: Story) -> None:
    """Each command leaves an orphan that ends; only the latest may wait to be buried."""
    latest = 4
    lines = ["(true &)"] * 40 + ["sleep 1.1", *["(true &)"] * latest]
    script = LINES.replace("{root!r}", repr(ROOT)) + (
        "    with open('left', 'w') as file:\n"
        "        file.write(open('/proc/self/task/%d/children' % os.getpid()).read())\n"
    )
    job = story.start_script(script, "1", *lines, name="runner.py")
    job.ended_well()

    assert len((story.folder / "left").read_text().split()) <= latest
