"""The process around one command: what it gives it, how it ends it, and what it writes down."""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grn.proc.spawn import oom_score
from grn.queue.local import attempt_files as folders
from grn.queue.local.channel import MAX_SAID, GoOrder, StopOrder
from tests.harness import is_running, wait_for
from tests.queue.live import PLAIN, Run, Shims, gone, pids_in

STAYS = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
FULL_PIPE = 1 << 20


@pytest.fixture(scope="module")
def shims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shims]:
    made = Shims(tmp_path_factory.mktemp("shims"))
    yield made
    made.close()


# --- orders ahead --------------------------------------------------------------------------


def test_an_attempt_that_was_ordered_ahead_begins_when_its_gpus_are_named(shims: Shims) -> None:
    channel = shims.channel()
    ahead = shims.order("/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES", lease="?").but(is_ahead=True)
    first, run = shims.order("true"), Run(channel, ahead)
    channel.send(first)
    assert channel.is_done()
    channel.send(ahead)
    assert folders.read_claim(ahead.folder) is None
    channel.send(GoOrder("", "3", None, first.folder))
    assert run.ended()["status"] == 0
    assert run.log == "3\n"
    assert folders.read_claim(first.folder) is None, "its record was not used again"


def test_another_order_takes_the_place_of_one_ahead(shims: Shims) -> None:
    channel = shims.channel()
    ahead, other = shims.order("true").but(is_ahead=True), shims.order("false")
    channel.send(ahead, other)
    assert Run(channel, other).ended()["status"] == 1
    assert folders.read_claim(ahead.folder) is None


def test_a_shim_whose_queue_ends_starts_nothing_that_was_ordered_ahead(shims: Shims) -> None:
    channel = shims.channel()
    first, ahead = shims.order("true"), shims.order("true").but(is_ahead=True)
    channel.send(first)
    run = Run(channel, first)
    assert run.ended()["status"] == 0
    shim = run.shim_pid
    channel.send(ahead)
    channel.close()
    wait_for(lambda: not is_running(shim))
    assert folders.read_claim(ahead.folder) is None


# --- what comes out ------------------------------------------------------------------------


def test_what_a_command_prints_is_kept(shims: Shims) -> None:
    run, record = shims.ran("echo out; echo err >&2; echo more")
    assert record["status"] == 0
    assert run.log.splitlines() == ["out", "err", "more"]
    assert run.err == ""


def test_both_streams_keep_the_order_of_their_writes(shims: Shims) -> None:
    script = "import os\nfor at in range(200): os.write(1 + at % 2, b'%d\\n' % at)"
    run = shims.python(script)
    assert run.ended()["status"] == 0
    assert run.log.split() == [str(at) for at in range(200)]


def test_standard_error_can_be_kept_apart(shims: Shims) -> None:
    env = PLAIN | {"GRN_SEPARATE_STDERR": "1"}
    run, record = shims.ran("echo out; echo err >&2; echo more", env=env)
    assert record["status"] == 0
    assert sorted(run.log.splitlines()) == ["err", "more", "out"]
    assert run.err == "err\n"


@pytest.mark.parametrize("env", [PLAIN, PLAIN | {"GRN_SEPARATE_STDERR": "1"}])
def test_an_out_of_memory_error_is_found_whichever_way_output_is_kept(
    shims: Shims, env: dict[str, str]
) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    _, record = shims.ran(f"seq 1 50000; echo '{text}' >&2; exit 1", env=env)
    assert (record["because"], record["asked"]) == ("out-of-memory", 2 << 30)


def test_python_prints_at_once_unless_the_job_says_otherwise(shims: Shims) -> None:
    run, _ = shims.ran("echo $PYTHONUNBUFFERED")
    assert run.log == "1\n"
    run, _ = shims.ran("echo -$PYTHONUNBUFFERED-", env=PLAIN | {"PYTHONUNBUFFERED": ""})
    assert run.log == "--\n"


def test_bytes_are_kept_as_they_are(shims: Shims) -> None:
    run = shims.python("import os; os.write(1, bytes(range(256)) * 1000)")
    run.ended()
    assert (run.folder / "log").read_bytes() == bytes(range(256)) * 1000


def test_a_silent_command_leaves_its_record_alone(shims: Shims) -> None:
    run, _ = shims.ran("true")
    left = run.folder.parent.glob(f"{run.folder.name}*")
    assert [str(path) for path in left] == [folders.record_of(str(run.folder))]


def test_the_folder_of_what_was_printed_is_the_users_own(shims: Shims) -> None:
    run, _ = shims.ran("echo printed")
    assert stat.S_IMODE(run.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((run.folder / "log").stat().st_mode) == 0o600


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_status_is_the_commands_own(shims: Shims, code: int) -> None:
    _, record = shims.ran(f"exit {code}")
    assert (record["status"], record.get("signal"), record.get("because")) == (code, None, None)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_no_status(shims: Shims, signum: int) -> None:
    _, record = shims.ran(f"ulimit -c 0; kill -{int(signum)} $$")
    assert (record["status"], record["signal"], record.get("because")) == (None, signum, None)


def test_an_exit_record_is_whole(shims: Shims) -> None:
    before = time.time()
    run, record = shims.ran("exit 4")
    assert record["format"] == folders.FORMAT
    assert 0 < record["ran_s"] < 60
    assert before - 1 <= record["ended_at"] <= time.time() + 1
    assert record["resident"] > 100 << 10
    assert stat.S_IMODE(os.stat(folders.record_of(str(run.folder))).st_mode) == 0o600


def test_a_peak_that_a_command_reports_is_in_its_record(shims: Shims) -> None:
    folder = str(shims.root / "reports.1")
    extra = {"GRN_PEAK_FILE": folders.peak_file_of(folder)}
    _, record = shims.ran("echo 7 >> $GRN_PEAK_FILE; exit 3", folder=folder, extra=extra)
    assert (record["status"], record["gpu_peak"]) == (3, 7)
    assert not os.path.exists(folders.peak_file_of(folder))
    _, record = shims.ran("exit 3")
    assert "gpu_peak" not in record


# --- what cannot be run --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "status", "text"),
    [
        ("no-such-program-anywhere", 127, "no-such-program-anywhere: command not found"),
        ("", 127, "command not found"),
        ("./no-such-file", 127, "./no-such-file: No such file or directory"),
        ("./plain", 126, "./plain: Permission denied"),
        ("./nonsense", 126, "./nonsense: Exec format error"),
        ("/", 126, "/: Permission denied"),
        ("./plain/x", 127, "./plain/x: Not a directory"),
    ],
)
def test_what_cannot_be_run_says_why(
    shims: Shims, tmp_path: Path, program: str, status: int, text: str
) -> None:
    (tmp_path / "plain").write_text("no right to run")
    (tmp_path / "nonsense").write_text("no program")
    (tmp_path / "nonsense").chmod(0o755)
    record = shims.start(program, cwd=str(tmp_path)).ended()
    assert record["status"] == status
    assert record["because"] == "not-runnable"
    assert record["text"].endswith(text)


def test_a_folder_that_is_gone_is_named(shims: Shims, tmp_path: Path) -> None:
    record = shims.start("true", cwd=str(tmp_path / "gone")).ended()
    assert record["because"] == "not-runnable"
    assert record["text"] == f"{tmp_path}/gone: No such file or directory"


def test_too_long_a_command_says_so(shims: Shims) -> None:
    record = shims.start("/bin/sh", "-c", ": " + "x" * 200_000).ended()
    assert (record["status"], record["because"]) == (126, "not-runnable")
    assert record["text"] == "/bin/sh: Argument list too long"


def test_a_record_too_long_to_be_said_is_read(shims: Shims) -> None:
    run = shims.start("./" + "x" * (2 * MAX_SAID))
    assert run.channel.is_done()
    assert run.channel.said == b"\n"
    assert "File name too long" in (folders.read_exit(str(run.folder)) or {})["text"]


def test_what_cannot_be_run_leaves_nothing_open(shims: Shims, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no right to run")
    channel = shims.channel()
    run = shims.start("./plain", cwd=str(tmp_path), channel=channel)
    run.ended()
    before = os.listdir(f"/proc/{run.shim_pid}/fd")
    for _ in range(3):
        shims.start("./plain", cwd=str(tmp_path), channel=channel).ended()
        shims.start("true", channel=channel).ended()
    assert os.listdir(f"/proc/{run.shim_pid}/fd") == before


def test_a_program_that_is_being_written_is_started_when_it_is_whole(
    shims: Shims, tmp_path: Path
) -> None:
    program = tmp_path / "tool"
    shutil.copy("/bin/true", program)
    with program.open("ab"):
        run = shims.start(str(program))
        assert run.shim_pid  # it has begun, and the system says "Text file busy" from now on
        assert select.select([run.channel.sock], [], [], 0.2) == ([], [], [])
    assert run.ended()["status"] == 0


def test_a_shim_without_a_free_descriptor_waits_for_one(shims: Shims) -> None:
    channel = shims.channel()
    run = shims.start("true", channel=channel)
    run.ended()
    before = os.listdir(f"/proc/{run.shim_pid}/fd")
    limits = resource.prlimit(run.shim_pid, resource.RLIMIT_NOFILE)
    few = max(map(int, before)) + 2  # for the record, and for nothing else
    resource.prlimit(run.shim_pid, resource.RLIMIT_NOFILE, (few, limits[1]))
    again = shims.start("true", channel=channel)
    assert again.shim_pid == run.shim_pid
    assert select.select([channel.sock], [], [], 0.2) == ([], [], [])
    resource.prlimit(run.shim_pid, resource.RLIMIT_NOFILE, limits)
    assert again.ended()["status"] == 0
    assert os.listdir(f"/proc/{run.shim_pid}/fd") == before


def test_what_waits_to_be_started_can_be_cancelled(shims: Shims, tmp_path: Path) -> None:
    program = tmp_path / "tool"
    shutil.copy("/bin/true", program)
    with program.open("ab"):
        run = shims.start(str(program))
        assert run.shim_pid
        run.stop()
        record = run.ended()
    assert (record["status"], record["because"]) == (None, "cancelled")


# --- what a command finds ------------------------------------------------------------------


def test_a_command_is_ended_before_its_shim_when_memory_runs_out(shims: Shims) -> None:
    run = shims.start("cat", "/proc/self/oom_score_adj")
    run.ended()
    own = oom_score(run.shim_pid)
    assert own is not None
    assert own == oom_score("self")
    assert int(run.log) == min(1000, own + 500)


def test_a_command_gets_its_own_environment_and_nothing_else(shims: Shims) -> None:
    run = shims.start(
        "env", "-0", env={**PLAIN, "A": "1", "B": "x\ny", "C": "caf\udce9"}, extra={"A": "2"},
        visible="1,2", lease="",
    )  # fmt: skip
    run.ended()
    found = dict(
        line.split(b"=", 1) for line in (run.folder / "log").read_bytes().split(b"\0") if line
    )
    assert found == {
        b"PATH": PLAIN["PATH"].encode(),
        b"LANG": b"C.UTF-8",
        b"A": b"2",
        b"B": b"x\ny",
        b"C": b"caf\xe9",
        b"CUDA_VISIBLE_DEVICES": b"1,2",
        b"CUDA_DEVICE_ORDER": b"PCI_BUS_ID",
        b"GRN_GPU_COUNT": b"2",
        b"GRN_LEASE": b"",
        b"TF_FORCE_GPU_ALLOW_GROWTH": b"true",
        b"XLA_PYTHON_CLIENT_PREALLOCATE": b"false",
        b"PYTHONUNBUFFERED": b"1",
    }


def test_a_command_is_found_by_its_own_path(shims: Shims, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "mine"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho found")
    tool.chmod(0o755)
    run = shims.start("mine", env={"PATH": f"/nowhere:{tool.parent}"})
    assert run.ended()["status"] == 0
    assert run.log == "found\n"
    assert shims.start("mine").ended()["status"] == 127


@pytest.mark.parametrize("mask", [0o077, 0o002])
def test_a_command_runs_in_its_folder_with_its_mask(shims: Shims, mask: int) -> None:
    run, _ = shims.ran("pwd; umask; touch made", umask=mask)
    cwd = Path(run.order.cwd)
    assert run.log == f"{cwd}\n{mask:04o}\n"
    assert stat.S_IMODE((cwd / "made").stat().st_mode) == 0o666 & ~mask


def test_standard_input_is_empty(shims: Shims) -> None:
    run, record = shims.ran("cat; echo over")
    assert record["status"] == 0
    assert run.log == "over\n"


def test_a_command_has_three_open_files_and_a_session_of_its_own(shims: Shims) -> None:
    run = shims.python(
        "import os; print(sorted(os.listdir('/proc/self/fd'), key=int)[:3],"
        " len(os.listdir('/proc/self/fd')) - 1, os.getsid(0) == os.getpid())"
    )
    run.ended()
    assert run.log == "['0', '1', '2'] 3 True\n"


def test_a_command_finds_all_signals_as_usual(shims: Shims) -> None:
    run, _ = shims.ran("grep -E 'SigBlk|SigIgn' /proc/self/status")
    masks = [int(line.split()[1], 16) for line in run.log.splitlines()]
    assert [mask & (1 << 31) - 1 for mask in masks] == [0, 0]  # those above are the C library's


# --- ending it -----------------------------------------------------------------------------


def test_a_cancelled_command_is_asked_to_end(shims: Shims) -> None:
    run = shims.sh("trap 'echo heard; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    run.says("ready")
    run.stop()
    record = run.ended()
    assert (record["status"], record["because"]) == (7, "cancelled")
    assert "heard" in run.log


def test_a_command_that_does_not_listen_is_killed_after_the_grace(shims: Shims) -> None:
    run = shims.sh(STAYS, grace_s=0.1)
    run.says("ready")
    run.stop()
    record = run.ended()
    assert (record["signal"], record["because"]) == (signal.SIGKILL, "cancelled")


def test_a_cancel_in_earnest_kills_at_once(shims: Shims) -> None:
    run = shims.sh(STAYS, grace_s=600)
    run.says("ready")
    run.stop(now=True)
    assert run.ended()["signal"] == signal.SIGKILL


def test_a_second_cancel_in_earnest_does_not_wait_for_the_grace(shims: Shims) -> None:
    run = shims.sh(STAYS, grace_s=600)
    run.says("ready")
    run.stop()
    run.stop(now=True)
    assert run.ended()["because"] == "cancelled"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_shim_of_an_earlier_queue_is_told_by_a_signal(shims: Shims, signum: int) -> None:
    run = shims.sh("echo ready; exec sleep 600", grace_s=600)
    run.says("ready")
    run.channel.close()
    os.kill(run.shim_pid, signum)
    wait_for(lambda: folders.read_exit(str(run.folder)), "the exit record")
    record = folders.read_exit(str(run.folder))
    assert record is not None
    assert record["because"] == "cancelled"
    assert record["signal"] == (signal.SIGTERM if signum == signal.SIGTERM else signal.SIGKILL)


def test_a_cancel_that_comes_with_the_order_is_heard(shims: Shims) -> None:
    """Both are there when the shim first looks: the order is not the last it reads."""
    channel = shims.channel()
    order = shims.order("sleep", "600")
    channel.send(order, StopOrder(order.folder, False))
    assert channel.is_done()
    record = folders.read_exit(order.folder)
    assert record is not None
    assert (record["status"], record["because"]) == (None, "cancelled")


def test_a_cancel_of_what_is_over_does_not_end_the_next(shims: Shims) -> None:
    run, _ = shims.ran("true")
    run.stop(now=True)
    following = shims.sh("echo fine", channel=run.channel)
    assert following.ended()["status"] == 0
    assert following.log == "fine\n"


def test_a_stopped_command_is_ended_too(shims: Shims) -> None:
    run = shims.sh("echo ready; kill -STOP $$; exec sleep 600", grace_s=600)
    run.says("ready")
    run.stop()
    assert run.ended()["signal"] == signal.SIGTERM


def test_a_cancel_ends_the_whole_tree(shims: Shims) -> None:
    run = shims.python(
        """if True:
        import os, signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for way in range(4):
            if os.fork() == 0:
                if way & 1:
                    os.setsid()
                if way & 2 and os.fork():
                    os._exit(0)
                os.write(1, b"%d\\n" % os.getpid())
                signal.pause()
        os.write(1, b"%d\\n" % os.getpid())
        signal.pause()
        """,
        grace_s=0.1,
    )
    pids = pids_in(run, 5)
    run.stop()
    run.ended()
    for pid in pids:
        gone(pid)


def test_a_time_limit_ends_a_command(shims: Shims) -> None:
    run, record = shims.ran("exec sleep 600", time_limit_s=0.05)
    assert (record["signal"], record["because"]) == (signal.SIGTERM, "timed-out")
    assert run.order.time_limit_s <= record["ran_s"] < 60


def test_a_command_that_outstays_its_limit_is_killed_after_the_grace(shims: Shims) -> None:
    for limit_s in (0.1, 1.0, 10.0):  # a busy machine may not have begun it so soon
        run, record = shims.ran(STAYS, time_limit_s=limit_s, grace_s=0.1)
        if "ready" in run.log:
            break
    assert (record["signal"], record["because"]) == (signal.SIGKILL, "timed-out")


def test_a_command_that_ends_in_time_has_no_limit(shims: Shims) -> None:
    _, record = shims.ran("exit 2", time_limit_s=600)
    assert (record["status"], record.get("because")) == (2, None)


# --- what it leaves behind -----------------------------------------------------------------


def test_what_a_command_leaves_behind_is_ended(shims: Shims) -> None:
    run = shims.sh(
        "trap '' TERM; setsid sleep 601 & echo $!; (sleep 602 & echo $!) ; exit 3", grace_s=0.1
    )
    pids = pids_in(run, 2)
    record = run.ended()
    assert (record["status"], record.get("because")) == (3, None)
    for pid in pids:
        gone(pid)


def test_what_a_command_leaves_behind_may_end_by_itself(shims: Shims) -> None:
    left = "trap 'echo no > ended; exit' TERM; sleep 0.05; echo yes > ended"
    run, record = shims.ran(f"({left}) & exit 0")
    assert record["status"] == 0
    assert (Path(run.order.cwd) / "ended").read_text() == "yes\n"


def test_what_is_left_behind_cannot_write_for_ever(shims: Shims) -> None:
    _, record = shims.ran("yes & exit 0", grace_s=0.1)
    assert record["status"] == 0


def test_all_that_was_printed_before_the_end_is_kept(shims: Shims) -> None:
    run, _ = shims.ran(f"head -c {3 * FULL_PIPE} /dev/zero", log_bytes=8 * FULL_PIPE)
    assert (run.folder / "log").stat().st_size == 3 * FULL_PIPE


# --- out of memory -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "because", "asked"),
    [
        ("echo 'CUDA out of memory. Tried to allocate 2.00 GiB.' >&2; exit 1",
         "out-of-memory", 2 << 30),
        ("echo 'RuntimeError: CUDA error: out of memory' >&2; exit 1", "out-of-memory", None),
        ("echo 'CUDA out of memory' >&2; exit 0", None, None),
        ("echo 'CUDA out of memory'; exit 1", "out-of-memory", None),
        ("echo 'CUDA out of memory' >&2; kill -9 $$", "out-of-memory", None),
        ("echo 'CUDA out of memory' >&2; yes x | head -c 10000 >&2; exit 1",
         "out-of-memory", None),
    ],
)  # fmt: skip
def test_a_command_that_says_so_has_run_out_of_memory(
    shims: Shims, line: str, because: str | None, asked: int | None
) -> None:
    _, record = shims.ran(line)
    assert record.get("because") == because
    assert record.get("asked") == asked


@pytest.mark.parametrize(
    ("line", "is_killed"),
    [
        ("kill -9 $$", True),
        ("sh -c 'kill -9 $$'", True),
        ("echo 'DataLoader worker (pid 7) is killed by signal: Killed.' >&2; exit 1", True),
        ("kill -15 $$", False),
        ("echo killed; exit 1", False),
        ("sh -c 'kill -9 $$'; exit 0", False),
    ],
)
def test_a_command_that_was_killed_is_told_apart(shims: Shims, line: str, is_killed: bool) -> None:
    _, record = shims.ran(line)
    assert record.get("killed", False) is is_killed


AT_THE_CAP = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of "
    "which 20.00 GiB is free. 4.50 GiB allowed; Of the allocated memory 4.00 GiB is allocated"
)


@pytest.mark.parametrize(
    ("cap", "text", "is_capped"),
    [
        (0.31, AT_THE_CAP, True),
        (0.31, AT_THE_CAP.replace("4.50 GiB allowed; ", ""), False),
        (None, AT_THE_CAP, False),  # a cap that the program has set itself
    ],
)
def test_a_python_with_pytorch_is_told_its_cap(
    shims: Shims, tmp_path: Path, cap: float | None, text: str, is_capped: bool
) -> None:
    venv = tmp_path / "venv"
    (venv / "lib/python3.11/site-packages/torch-2.13.0.dist-info").mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin/python").symlink_to(sys.executable)
    (venv / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    code = f"import os, sys; print(os.environ.get('PYTORCH_CUDA_ALLOC_CONF')); sys.exit({text!r})"
    run = shims.start(str(venv / "bin/python"), "-S", "-c", code, cap=cap)
    record = run.ended()

    told = (run.folder / "log").read_text().splitlines()[0]
    assert told == ("None" if cap is None else "per_process_memory_fraction:0.31")
    assert (record["because"], record["asked"]) == ("out-of-memory", 2 << 30)
    assert record.get("capped", False) is is_capped


def test_where_standard_error_is_apart_only_that_tells_of_memory(shims: Shims) -> None:
    env = PLAIN | {"GRN_SEPARATE_STDERR": "1"}
    _, record = shims.ran("echo 'CUDA out of memory'; exit 1", env=env)
    assert record.get("because") is None


def test_a_cancelled_command_has_not_run_out_of_memory(shims: Shims) -> None:
    run = shims.sh(
        "trap 'echo CUDA out of memory >&2; exit 1' TERM; echo ready; while :; do sleep 0.05; done"
    )
    run.says("ready")
    run.stop()
    assert run.ended()["because"] == "cancelled"


# --- proof of life -------------------------------------------------------------------------


def test_the_lock_is_held_while_the_command_runs(shims: Shims) -> None:
    run = shims.sh("echo ready; exec sleep 600")
    run.says("ready")
    assert folders.is_locked(str(run.folder))
    assert is_running(run.shim_pid)
    run.stop(now=True)
    run.ended()
    assert not folders.is_locked(str(run.folder))


def test_an_attempt_is_begun_once(shims: Shims) -> None:
    order = shims.order("/bin/sh", "-c", "echo ran >> count")
    for _ in range(2):
        channel = shims.channel()
        channel.send(order)
        assert channel.is_done()
    assert (Path(order.cwd) / "count").read_text() == "ran\n"


def test_an_attempt_that_was_forbidden_does_not_begin(shims: Shims) -> None:
    order = shims.order("/bin/sh", "-c", "echo ran > count")
    assert folders.forbid(order.folder)
    channel = shims.channel()
    channel.send(order)
    assert channel.is_done()
    assert folders.read_exit(order.folder) is None
    assert os.listdir(order.cwd) == []


def test_the_record_of_another_attempt_is_used_again(shims: Shims) -> None:
    before, _ = shims.ran("exit 3")
    used = os.stat(folders.record_of(str(before.folder))).st_ino
    after, record = shims.ran("exit 4", spare=str(before.folder))
    assert record["status"] == 4
    assert os.stat(folders.record_of(str(after.folder))).st_ino == used
    assert folders.read_claim(str(before.folder)) is None


def test_a_spare_that_is_gone_is_done_without(shims: Shims, tmp_path: Path) -> None:
    _, record = shims.ran("exit 4", spare=str(tmp_path / "gone" / "7.1"))
    assert record["status"] == 4


def test_a_shim_outlives_its_queue_and_its_forker(tmp_path: Path) -> None:
    shims = Shims(tmp_path)
    (tmp_path / "gate").mkdir()
    run = shims.sh("echo ready; while [ -d ../gate ]; do sleep 0.01; done; exit 5")
    run.says("ready")
    run.channel.close()
    pid = run.shim_pid
    assert is_running(pid)
    (tmp_path / "gate").rmdir()
    wait_for(lambda: folders.read_exit(str(run.folder)), "the exit record")
    assert (folders.read_exit(str(run.folder)) or {})["status"] == 5
    gone(pid)
    shims.close()


def test_a_shim_serves_one_command_after_the_other(shims: Shims) -> None:
    channel = shims.channel()
    first = shims.sh("echo $A $B", channel=channel, env={**PLAIN, "A": "1"}, extra={"B": "2"})
    first.ended()
    second = shims.sh("echo $A $B", channel=channel, new_environment=None, extra={"B": "3"})
    second.ended()
    third = shims.sh("echo $A $B", channel=channel, env={**PLAIN, "A": "9"}, environment_id=2)
    third.ended()
    assert [run.log for run in (first, second, third)] == ["1 2\n", "1 3\n", "9\n"]
    assert first.shim_pid == third.shim_pid


def test_an_idle_shim_leaves_when_the_queue_hangs_up(shims: Shims) -> None:
    run, _ = shims.ran("true")
    run.channel.close()
    gone(run.shim_pid)


def test_an_environment_that_the_system_does_not_take_is_the_commands_fault(shims: Shims) -> None:
    ended = shims.start("true", env={"A": "nul\0nul"}).ended()
    assert (ended["status"], ended["because"]) == (126, "not-runnable")


def test_a_shim_that_breaks_says_how_and_writes_no_end(shims: Shims) -> None:
    run = shims.start("true", umask="no number")
    assert not run.channel.is_done()
    assert folders.read_exit(str(run.folder)) is None
    assert "TypeError" in run.trouble
    wait_for(lambda: not folders.is_locked(str(run.folder)), "the shim to be gone")


# --- logs within their cap -----------------------------------------------------------------


def test_a_flood_stays_within_the_cap_and_keeps_its_two_ends(shims: Shims) -> None:
    cap = 64 << 10
    run, _ = shims.ran("echo first; seq 1 200000; echo last", log_bytes=cap)
    kept = [path for path in run.folder.iterdir() if path.name.startswith("log")]
    assert sum(path.stat().st_size for path in kept) <= cap
    assert run.log.startswith("first\n1\n2\n")
    tails = sorted((path for path in kept if path.suffix.startswith(".tail")), key=str)
    assert tails[-1].read_text().endswith("199999\n200000\nlast\n")
    assert sys.getsizeof(run.err) < 100
