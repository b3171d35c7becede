"""`grn exec`: a command under a lease, transparent to whoever started it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.conftest import Negotiators, Scripts
from tests.gpus.standin.build import StandIn, fail, gpu, hang
from tests.harness import TWO_SMALL, Job, Negotiator, Story, is_running, wait_for

MiB = 1 << 20
Start = Callable[..., Job]
# Says that it runs, holds its lease at a gate; a signal is said and answered with status 7.
COMMAND = """
    import os, signal, sys
    from act import gate, say

    def heard(signum, frame):
        say("heard", signum)
        sys.exit(7)

    for signum in (1, 2, 3, 10, 12, 15):
        signal.signal(signum, heard)
    say("command runs", os.getpid())
    gate("command")
    say("command ends")
"""


@pytest.fixture
def grn_exec(script: Scripts, story: Story) -> Start:
    """Start `grn exec` with some words after it."""
    return lambda *words, **options: story.start(script("grn"), "exec", *words, **options)


def test_a_program_that_is_being_written_is_started_when_it_is_whole(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    here = negotiator(TWO_SMALL)
    tool = story.folder / "tool"
    shutil.copy("/bin/true", tool)
    with tool.open("ab"):
        job = grn_exec(tool)
        here.wait_for_leases(1)
        assert job.is_running
    assert job.wait().code == 0


def pid_of(story: Story) -> int:
    """Return the pid of COMMAND once it runs."""
    lines = wait_for(lambda: [line for line in story.said() if line.startswith("command runs")])
    return int(lines[-1].split()[-1])


# What comes back


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 3"), 3),
        (("sh", "-c", "exit 255"), 255),
        (("sh", "-c", "kill -9 $$"), 128 + 9),
        (("sh", "-c", "kill -15 $$"), 128 + 15),
        (("no-such-program-anywhere",), 127),
        (("./no-such-file",), 127),
        (("./not-a-program",), 126),
        (("/",), 126),
    ],
)
def test_the_exit_status_is_the_commands_own(
    story: Story, negotiator: Negotiators, grn_exec: Start, command: tuple[str, ...], code: int
) -> None:
    here = negotiator()
    story.write("not-a-program", "no shebang, no right to run")
    ended = grn_exec("--", *command).wait()
    assert ended.code == code
    if code in (126, 127):
        assert ended.err.startswith(f"grn: {command[0]}: ")
    else:
        assert ended.err == ""
    assert here.leases() == []


def test_a_program_that_is_not_there_waits_for_no_gpu(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    here = negotiator("virtual:1x512MiB")
    story.hold("busy", exclusive=True)
    here.wait_for_leases(1)
    ended = grn_exec("--", "pyhton", "train.py").wait()
    assert (ended.code, ended.err) == (127, "grn: pyhton: command not found\n")
    assert here.profiles() == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--mem", "10GiB"), "the largest GPU has 512 MiB"),
        (("--gpus", "3"), "you asked for 3 GPUs; this machine has 2"),
        (("--mem", "6 bananas"), "6 bananas"),
    ],
)
def test_a_wish_that_cannot_be_met_is_our_own_trouble(
    story: Story, negotiator: Negotiators, grn_exec: Start, words: tuple[str, ...], text: str
) -> None:
    negotiator()
    ended = grn_exec(*words, "--", "sh", "-c", "echo ran > ran").wait()
    assert ended.code == 125
    assert text in ended.err
    assert not (story.folder / "ran").exists()


def test_words_after_the_command_are_its_own(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    negotiator()
    show = "import sys; print(sys.argv[1:])"
    ended = grn_exec(sys.executable, "-c", show, "--gpus", "9", "--help", "*", "a b").ended_well()
    assert ended.out == "['--gpus', '9', '--help', '*', 'a b']\n"


def test_standard_input_and_output_pass_through(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    negotiator()
    sent = bytes(range(256)) * 1000
    (story.folder / "sent").write_bytes(sent)
    with (story.folder / "sent").open("rb") as source:
        job = grn_exec("--", "sh", "-c", "cat; echo note >&2", stdin=source)
        assert job.process.wait(60) == 0
    assert job.out_bytes == sent
    assert job.err == "note\n"


def test_output_and_errors_to_one_place_stay_in_order(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    negotiator()
    with (story.folder / "both").open("wb") as both:
        job = grn_exec(
            "--", "sh", "-c", "for i in 1 2 3; do echo out; echo err >&2; done",
            stdout=both, stderr=subprocess.STDOUT,
        )  # fmt: skip
        job.ended_well()
    assert (story.folder / "both").read_text() == "out\nerr\n" * 3


def test_the_command_sees_its_gpus(story: Story, negotiator: Negotiators, grn_exec: Start) -> None:
    negotiator()
    names = (
        "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER GRN_GPU_COUNT TF_FORCE_GPU_ALLOW_GROWTH"
        " XLA_PYTHON_CLIENT_PREALLOCATE"
    )
    show = f"import os; print(*[os.environ[name] for name in '{names}'.split()])"
    mine = {"CUDA_VISIBLE_DEVICES": "7", "XLA_PYTHON_CLIENT_PREALLOCATE": "mine"}
    ended = grn_exec("--gpus", "2", "--", sys.executable, "-c", show, env=mine).ended_well()
    assert ended.out == "0,1 PCI_BUS_ID 2 true mine\n"


def test_a_program_that_closes_its_output_early_is_no_trouble(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    here = negotiator()
    assert grn_exec("--", "sh", "-c", "exec 2>&-; exec >&-; exit 4").wait().code == 4
    assert here.leases() == []


def test_a_program_left_behind_with_our_pipe_does_not_hold_us_up(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    negotiator()
    story.gate("left")
    left = f"{sys.executable} -c 'from act import gate; gate(\"left\")' &"
    grn_exec("--", "sh", "-c", f"{left} echo started >&2").ended_well()
    story.gate("left").open()


# Signals


@pytest.mark.parametrize(
    "signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1]
)
def test_signals_are_passed_on(
    story: Story, negotiator: Negotiators, grn_exec: Start, signum: signal.Signals
) -> None:
    here = negotiator()
    story.gate("command")
    job = grn_exec("--", sys.executable, story.write("command.py", COMMAND))
    pid_of(story)
    job.signal(signum)
    assert job.wait().code == 7
    assert story.said()[-1] == f"heard {int(signum)}"
    assert here.leases() == []
    is_stopped = signum in (signal.SIGTERM, signal.SIGINT)
    outcomes = [one["outcome"] for one in here.history()]
    assert outcomes == ["cancelled" if is_stopped else "failed"]


def test_the_command_and_its_lease_outlive_grn_exec(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    here = negotiator("virtual:1x512MiB")
    story.gate("command")
    job = grn_exec("--mem", "400MiB", "--", sys.executable, story.write("command.py", COMMAND))
    pid = pid_of(story)
    job.kill()
    second = story.hold("second", mem="400MiB")
    here.wait_for_waiting(1)
    (lease,) = here.leases()
    assert (lease["pid"], lease["state"]) == (pid, "running")

    story.gate("command").open()
    story.hear("command ends", "second runs")
    wait_for(lambda: not is_running(pid))
    story.gate("second").open()
    second.ended_well()


def test_a_restart_of_the_negotiator_does_not_touch_the_command(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    here = negotiator()
    story.gate("command")
    job = grn_exec("--", sys.executable, story.write("command.py", COMMAND))
    pid = pid_of(story)
    here.kill()
    here.start()
    assert [lease["pid"] for lease in here.leases()] == [pid]
    story.gate("command").open()
    assert job.ended_well().err == ""
    assert here.leases() == []


# Waiting


def test_it_says_why_it_waits_unless_told_to_be_quiet(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    here = negotiator("virtual:1x512MiB")
    holder = story.hold("holder", exclusive=True)
    story.hear("holder runs")
    loud, quiet = grn_exec("--", "true"), grn_exec("-q", "--", "true")
    here.wait_for_waiting(2)
    wait_for(lambda: loud.err)
    assert loud.err.startswith("grn: waiting: ")
    story.gate("holder").open()
    holder.ended_well()
    loud.ended_well()
    assert quiet.ended_well().err == ""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_waits_takes_the_request_back(
    story: Story, negotiator: Negotiators, grn_exec: Start, signum: signal.Signals
) -> None:
    here = negotiator("virtual:1x512MiB")
    holder = story.hold("holder", exclusive=True)
    story.hear("holder runs")
    job = grn_exec("--", "sh", "-c", "echo ran > ran")
    here.wait_for_waiting(1)
    job.signal(signum)
    assert job.wait().code in (128 + signum, -signum)
    assert "Traceback" not in job.err
    here.wait_for_waiting(0)
    story.gate("holder").open()
    holder.ended_well()
    assert not (story.folder / "ran").exists()


# Learning


def test_a_command_is_measured_and_known_by_its_script_and_flags(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    here = negotiator()
    path = story.write("train.py", "from act import take\nkept = take(150)\n")
    grn_exec("--", "python3", "train.py", "--bs", "64", "--name=x").ended_well()
    (profile,) = here.profiles()
    assert (profile["label"], profile["type"]) == ("train.py", str(path))
    assert 150 * MiB < profile["largest_bytes"] < 250 * MiB
    assert profile["history"][0]["args"] == {"bs": 64.0, "name": "x"}


def test_a_name_may_be_given(story: Story, negotiator: Negotiators, grn_exec: Start) -> None:
    here = negotiator()
    grn_exec("--type", "my job", "--", "true").ended_well()
    assert [profile["label"] for profile in here.profiles()] == ["my job"]


# Out of memory


def test_out_of_memory_is_read_from_what_the_command_says(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    here = negotiator()
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
    ended = grn_exec("--", "sh", "-c", f"echo '{said}' >&2; exit 1").wait()
    assert ended.code == 1
    because = "ran out of GPU memory although it was alone on GPU 0 (512 MiB)"
    assert ended.err == f"{said}\ngrn: the command {because}\n"
    wait_for(lambda: "outcome=oom" in here.log, lambda: here.log)  # lines are written in batches


def test_words_alone_are_no_failure(story: Story, negotiator: Negotiators, grn_exec: Start) -> None:
    here = negotiator()
    ended = grn_exec("--", "sh", "-c", "echo 'CUDA out of memory' >&2").ended_well()
    assert ended.err == "CUDA out of memory\n"
    assert "outcome=oom" not in here.log


def test_a_command_out_of_memory_is_repeated_so_many_times(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    here = negotiator("virtual:1x512MiB")
    story.hold("beside", mem="50MiB")
    here.wait_for_leases(1)
    command = "echo again >> tries; echo 'CUDA out of memory' >&2; exit 1"
    words = ("--retry-oom", "1", "--mem", "20MiB", "--", "sh", "-c", command)
    assert grn_exec(*words).wait().code == 1
    assert (story.folder / "tries").read_text() == "again\n" * 2


def test_a_command_that_had_the_largest_gpu_to_itself_is_not_repeated(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    negotiator()
    command = "echo again >> tries; echo 'CUDA out of memory' >&2; exit 1"
    ended = grn_exec("--retry-oom", "2", "--", "sh", "-c", command).wait()
    assert (story.folder / "tries").read_text() == "again\n"
    assert ended.err.endswith("alone on GPU 0 (512 MiB); no larger GPU is managed here\n")


def test_a_command_that_overflows_a_virtual_gpu_is_told_apart_from_other_kills(
    story: Story, negotiator: Negotiators, grn_exec: Start
) -> None:
    negotiator()
    story.gate("never")
    path = story.write("train.py", "from act import gate, take\nkept = take(600)\ngate('never')\n")
    ended = grn_exec("--", sys.executable, path).wait()
    assert ended.code == 128 + 9
    because = "ran out of GPU memory although it was alone on GPU 0 (512 MiB)"
    assert ended.err == f"grn: the command {because}\n"


# A negotiator in the background


def stop(story: Story, script: Scripts) -> None:
    assert "negotiator stopped" in story.start(script("grn"), "stop").ended_well().err


def test_a_negotiator_is_started_in_the_background_and_stays(
    story: Story, script: Scripts, grn_exec: Start
) -> None:
    story.env["GRN_GPUS"] = TWO_SMALL
    here = Negotiator(story, None)
    assert not here.is_answering()
    ended = grn_exec("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").ended_well()
    assert (ended.out, ended.err) == ("0\n", "")
    assert here.is_answering()
    grn_exec("--", "true").ended_well()
    stop(story, script)
    assert not here.is_answering()


def test_several_that_start_at_once_share_one_negotiator(
    story: Story, script: Scripts, grn_exec: Start
) -> None:
    story.env["GRN_GPUS"] = TWO_SMALL
    here = Negotiator(story, None)
    jobs = [grn_exec("-q", "--", "sh", "-c", "echo $GRN_LEASE") for _ in range(4)]
    leases = [job.ended_well().out for job in jobs]
    assert len(set(leases)) == 4
    assert here.is_answering()
    stop(story, script)


def test_whoever_comes_while_a_driver_is_slow_to_come_up_waits_for_it(
    story: Story, standin: StandIn, script: Scripts, grn_exec: Start
) -> None:
    standin.write(gpu("GPU-aaaa"), hang("nvmlInitWithFlags"))
    here = Negotiator(story, None)
    log = story.folder / "state" / "negotiator.log"
    jobs = [grn_exec("-q", "--mem", "1GiB", "--", "true") for _ in range(2)]
    wait_for(lambda: log.exists() and "already runs" in log.read_text(), "the second to be refused")
    standin.write(gpu("GPU-aaaa"))
    for job in jobs:
        assert job.ended_well().err == ""
    assert here.is_answering()
    stop(story, script)


def test_where_no_negotiator_can_be_started_the_reason_is_told(
    story: Story, standin: StandIn, grn_exec: Start
) -> None:
    standin.write(gpu("GPU-aaaa"), fail("nvmlInitWithFlags", 9))
    ended = grn_exec("--", "sh", "-c", "echo ran > ran").wait()
    assert ended.code == 125
    assert "the NVIDIA driver is not loaded" in ended.err
    assert "--virtual" in ended.err
    assert not (story.folder / "ran").exists()
