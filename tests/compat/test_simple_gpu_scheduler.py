"""`simple_gpu_scheduler`: every example and every promise of the older tool."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import IO

import pytest

from tests.conftest import Negotiators, Scripts
from tests.harness import Job, Story, is_running, wait_for

STARTS = re.compile(r"^Processing command `(.*)` on gpu (.*)$", re.MULTILINE)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Tool:
    """The scheduler of a story."""

    def __init__(self, story: Story, path: Path) -> None:
        self.story = story
        self.path = path

    def start(
        self, *arguments: str, given: int | IO[bytes] = subprocess.DEVNULL, **more: object
    ) -> Job:
        return self.story.start(self.path, *arguments, stdin=given, **more)

    def run(self, commands: bytes | str, *arguments: str, **more: object) -> tuple[int, str, str]:
        """Run it on some text; return its exit status and what it said."""
        path = self.story.folder / "commands"
        path.write_bytes(commands if isinstance(commands, bytes) else commands.encode())
        with path.open("rb") as given:
            ended = self.start(*arguments, given=given, **more).wait()
        return ended.code, ended.out, ended.err

    def file(self, name: str) -> Path:
        return self.story.folder / name

    def pid(self, name: str) -> int:
        """Wait until a command has left a pid in a file."""
        wait_for(lambda: self.file(name).exists() and self.file(name).read_text(), name)
        return int(self.file(name).read_text())


@pytest.fixture
def tool(story: Story, script: Scripts) -> Tool:
    return Tool(story, script("simple_gpu_scheduler"))


# --- commands and slots --------------------------------------------------------------------


def test_each_line_runs_in_a_shell_on_its_slot(tool: Tool) -> None:
    line = "for i in 1 2; do printf '%s;' \"$i on $CUDA_VISIBLE_DEVICES\"; done > out\n"

    assert tool.run(line, "--gpus", "5") == (
        0, f"Processing command `{line.strip()}` on gpu 5\n", "",
    )  # fmt: skip
    assert tool.file("out").read_text() == "1 on 5;2 on 5;"


def test_nothing_else_in_the_environment_changes(tool: Tool) -> None:
    own = tool.story.environment(CUDA_VISIBLE_DEVICES="7", MINE="é  x")
    tool.run("env -0 > out", "--gpus", "a", env={"CUDA_VISIBLE_DEVICES": "7", "MINE": "é  x"})
    found = dict(
        entry.split("=", 1) for entry in tool.file("out").read_text().rstrip("\0").split("\0")
    )

    assert found.pop("CUDA_VISIBLE_DEVICES") == "a"
    for name in ("PWD", "OLDPWD", "_", "SHLVL"):  # the shell's own
        found.pop(name, None)
        own.pop(name, None)
    del own["CUDA_VISIBLE_DEVICES"]
    assert found == own


@pytest.mark.parametrize(
    ("gpus", "slots"),
    [
        (["0", "1", "2"], ["2", "1", "0"]),
        (["0,1,2"], ["2", "1", "0"]),
        (["0,1", "2,3"], ["2,3", "0,1"]),
        (["0"], ["0"]),
        (["0,0"], ["0", "0"]),
        (["GPU-8932f937", "MIG-x/0/1"], ["MIG-x/0/1", "GPU-8932f937"]),
        (["a b"], ["a b"]),
    ],
)
def test_slots_are_given_last_listed_first(tool: Tool, gpus: list[str], slots: list[str]) -> None:
    gate = tool.file("gate")
    os.mkfifo(gate)
    lines = [
        f'echo "$CUDA_VISIBLE_DEVICES" > {number}; read x < gate' for number in range(len(slots))
    ]
    tool.file("commands").write_text("\n".join(lines))
    with tool.file("commands").open("rb") as given:
        job = tool.start("--gpus", *gpus, given=given)
    wait_for(lambda: len(STARTS.findall(job.out)) == len(slots), lambda: job.out)
    wait_for(lambda: all(tool.file(str(n)).exists() for n in range(len(slots))), "all to run")
    with gate.open("w") as file:
        file.write("go\n" * len(slots))
        file.flush()
        job.ended_well()

    assert STARTS.findall(job.out) == list(zip(lines, slots, strict=True))
    assert [tool.file(str(number)).read_text().strip() for number in range(len(slots))] == slots


def test_the_most_recently_freed_slot_is_used_first(tool: Tool) -> None:
    os.mkfifo(tool.file("gate"))
    _, out, _ = tool.run("read x < gate\ntrue\ntrue\necho > gate\n", "--gpus", "0,1,2")

    starts = [slot for _, slot in STARTS.findall(out)]
    assert starts[:3] == ["2", "1", "0"]
    assert set(starts[3:]) <= {"0", "1"}


def test_commands_start_in_order(tool: Tool) -> None:
    commands = [f"true {number}" for number in range(200)]
    _, out, _ = tool.run("\n".join(commands), "--gpus", "0,1,2,3")

    assert [command for command, _ in STARTS.findall(out)] == commands


def test_the_start_is_told_at_once_and_before_the_command_speaks(tool: Tool) -> None:
    code, out, err = tool.run("echo hello\n", "--gpus", "0")

    assert (code, out, err) == (0, "Processing command `echo hello` on gpu 0\nhello\n", "")


def test_a_command_has_no_input(tool: Tool) -> None:
    assert tool.run("cat\necho second > out\n", "--gpus", "0")[0] == 0
    assert tool.file("out").read_text() == "second\n"


# --- lines ---------------------------------------------------------------------------------


def test_white_space_blank_lines_and_comments(tool: Tool) -> None:
    text = "true 1  \t\r\n\n   \n# a comment\n  # another\r\n  true 2 # with a remark\ntrue 3"
    _, out, _ = tool.run(text, "--gpus", "0")

    assert [one for one, _ in STARTS.findall(out)] == [
        "true 1",
        "  true 2 # with a remark",
        "true 3",
    ]


def test_appended_lines_start_as_they_come(tool: Tool) -> None:
    queue = tool.file("gpu.queue")
    queue.write_text("touch old\n")
    tail = tool.story.start("tail", "-f", "-n", "0", queue, stdout=subprocess.PIPE)
    job = tool.start("--gpus", "0,1,2", given=tail.process.stdout)
    assert tail.process.stdout is not None
    tail.process.stdout.close()

    # `tail` says nothing of when it has begun to follow: repeat until it does.
    def appended() -> bool:
        with queue.open("a") as file:
            file.write("touch new\n")
        return tool.file("new").exists()

    wait_for(appended, "an appended line to be run")
    tail.signal(signal.SIGTERM)
    assert job.wait().code == 0
    assert not tool.file("old").exists()


def test_a_fifo_works_and_ends_when_its_writer_closes(tool: Tool) -> None:
    fifo = tool.file("fifo")
    os.mkfifo(fifo)
    job = tool.story.start(
        "/bin/sh", "-c", f"exec {tool.path} --gpus 0 < fifo"
    )  # the shell opens it, and waits for the writer
    with fifo.open("w") as writer:
        for name in ("one", "two"):
            writer.write(f"touch {name}\n")
            writer.flush()
            wait_for(tool.file(name).exists, f"{name} while the writer is still there")
        assert job.is_running
        writer.write("touch three")
    assert job.wait().code == 0
    assert tool.file("three").exists()


def test_binary_lines_pass_byte_for_byte(tool: Tool) -> None:
    odd = bytes(byte for byte in range(1, 256) if byte not in b"\n'")
    (tool.story.folder / "commands").write_bytes(b"printf %s '" + odd + b"' > out\n")
    with tool.file("commands").open("rb") as given:
        job = tool.start("--gpus", "0", given=given)
    assert job.process.wait(60) == 0

    assert tool.file("out").read_bytes() == odd
    assert job.out_bytes == b"Processing command `printf %s '" + odd + b"' > out` on gpu 0\n"


def test_a_line_of_200_kb_runs(tool: Tool) -> None:
    text = "x" * 200_000
    code, out, _ = tool.run(f"printf %s '{text}' > out\ntrue\n", "--gpus", "0")

    assert code == 0
    assert tool.file("out").read_text() == text
    assert out.count("Processing command") == 2


def test_a_nul_fails_its_line_alone_with_one_clear_line(tool: Tool) -> None:
    code, _, err = tool.run(b"true a\0b\ntouch done\n", "--gpus", "0")

    assert code == 0
    assert tool.file("done").exists()
    assert err == (
        "simple_gpu_scheduler: 1 of 2 commands failed:\n"
        "  not started (a command cannot hold a NUL character): true a\\0b\n"
    )


def test_no_commands_at_all_is_a_good_end(tool: Tool) -> None:
    assert tool.run("", "--gpus", "0") == (0, "", "")


# --- ends ----------------------------------------------------------------------------------

FAILING = "true\nexit 3\nkill -9 $$\nno-such-command-at-all\n"


def test_failures_are_summed_up_and_change_the_exit_status_only_when_asked(tool: Tool) -> None:
    code, _, err = tool.run(FAILING, "--gpus", "0")
    summary = err[err.index("simple_gpu_scheduler:") :]

    assert code == 0
    assert summary == (
        "simple_gpu_scheduler: 3 of 4 commands failed:\n"
        "  exit status 3: exit 3\n"
        "  ended by signal 9: kill -9 $$\n"
        "  exit status 127: no-such-command-at-all\n"
    )
    assert tool.run(FAILING, "--gpus", "0", "--fail")[0] == 1
    assert tool.run("true\n", "--fail", "--gpus", "0")[0] == 0


def test_a_long_list_of_failures_is_cut(tool: Tool) -> None:
    _, _, err = tool.run("false\n" * 30, "--gpus", "0,1")

    assert len(err.splitlines()) == 22
    assert err.endswith("  ... and 10 more\n")


@pytest.mark.parametrize("arguments", [(), ("--gpus",), ("--gpus", "0", "--unknown"), ("0", "1")])
def test_a_wrong_call_shows_the_usage(tool: Tool, arguments: tuple[str, ...]) -> None:
    code, out, err = tool.run("touch done\n", *arguments)

    assert (code, out) == (2, "")
    assert err.startswith("usage: simple_gpu_scheduler [-h] --gpus GPUS [GPUS ...] [--fail]")
    assert not tool.file("done").exists()


def test_an_empty_id_among_others_is_refused(tool: Tool) -> None:
    code, _, err = tool.run("touch done\n", "--gpus", "0,,1")

    assert code == 2
    assert err == (
        "simple_gpu_scheduler: there is an empty GPU id in --gpus '0,,1'. Write it like 0,1,2.\n"
    )
    assert not tool.file("done").exists()


def test_help_tells_how_to_use_it(tool: Tool) -> None:
    assert "0,1,2" in tool.run("", "--help")[1]


def test_input_that_cannot_be_read_is_told(tool: Tool) -> None:
    ended = tool.story.start("/bin/sh", "-c", f"exec {tool.path} --gpus 0 0>written").wait()
    assert ended.code == 4
    assert ended.err == "simple_gpu_scheduler: the commands cannot be read: Bad file descriptor.\n"

    closed = tool.story.start("/bin/sh", "-c", f"exec {tool.path} --gpus 0 <&-").wait()
    assert closed.code == 2
    assert closed.err.startswith("simple_gpu_scheduler: standard input is closed.")


def test_closed_outputs_do_not_keep_commands_from_running(tool: Tool) -> None:
    job = tool.story.start("/bin/sh", "-c", f"echo touch done | {tool.path} --gpus 0 >&- 2>&-")
    job.ended_well()

    assert tool.file("done").exists()


def test_a_reader_that_leaves_does_not_end_the_commands(tool: Tool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code, _, _ = tool.run("true\ntouch done\n", "--gpus", "0", stdout=writer)
    os.close(writer)

    assert code == 0
    assert tool.file("done").exists()


def test_a_command_that_wants_the_terminal_is_not_stopped_for_ever(tool: Tool) -> None:
    """It is in the background there: it gets an error, and may set the terminal."""
    tool.file("commands").write_text("read x </dev/tty || echo no >out; stty -echo </dev/tty\n")
    line = f"exec {tool.path} --gpus 0 --fail <{tool.file('commands')}"
    script = """
        import os, pty, sys
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])
        try:
            while os.read(terminal, 1000):
                pass
        except OSError:
            pass  # how a terminal says that all have left
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    tool.story.run_script(script, line, name="terminal.py")

    assert tool.file("out").read_text() == "no\n"


# --- being stopped -------------------------------------------------------------------------


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_ends_the_commands_with_their_children(tool: Tool, signum: int) -> None:
    tool.file("commands").write_text(
        "(sleep 1001 & echo $! >child; wait) & (setsid sh -c 'echo $$ >away; exec sleep 1002' &); "
        "echo $$ >main; wait\ntouch never\n"
    )
    with tool.file("commands").open("rb") as given:
        job = tool.start("--gpus", "0", given=given)
    tree = [tool.pid(name) for name in ("child", "away", "main")]
    job.signal(signum)
    ended = job.wait()

    assert ended.code == -signum
    assert f"stopped by {signal.Signals(signum).name}" in ended.err
    assert not any(is_running(pid) for pid in tree)
    assert not tool.file("never").exists()


def test_a_signal_ends_it_also_while_it_waits_for_lines(tool: Tool) -> None:
    reader, writer = os.pipe()
    job = tool.start("--gpus", "0", given=reader)
    os.write(writer, b"touch done\n")
    wait_for(tool.file("done").exists, "the first command")
    job.signal(signal.SIGINT)

    assert job.wait().code == -signal.SIGINT
    os.close(reader)
    os.close(writer)


def test_a_killed_scheduler_takes_its_commands_along(tool: Tool) -> None:
    tool.file("commands").write_text("echo $$ >main; sleep 1000 & echo $! >child; wait\n")
    with tool.file("commands").open("rb") as given:
        job = tool.start("--gpus", "0", given=given)
    tree = [tool.pid(name) for name in ("main", "child")]
    job.kill()

    wait_for(lambda: not any(is_running(pid) for pid in tree), "the commands to end")


# --- with a negotiator ---------------------------------------------------------------------


def test_gpus_are_held_where_a_negotiator_knows_them(tool: Tool, negotiator: Negotiators) -> None:
    here = negotiator("virtual:3x256MiB")
    reader, writer = os.pipe()
    job = tool.start("--gpus", "0,1", given=reader)
    os.write(writer, b"true\n")
    wait_for(lambda: here.leases(), "the GPU to be held")

    (lease,) = here.leases()  # only the one in use, and still after the command has ended
    assert (lease["label"], lease["gpus"], lease["pid"]) == ("simple_gpu_scheduler", [1], job.pid)
    os.close(writer)
    os.close(reader)
    assert job.wait().code == 0
    wait_for(lambda: not here.leases(), "the GPU to be free again")


def test_a_gpu_in_use_is_waited_for_and_the_reason_told_once(
    tool: Tool, negotiator: Negotiators
) -> None:
    negotiator("virtual:1x256MiB")
    holder = tool.story.hold("other", mem="64MiB")
    tool.story.hear("other runs")
    tool.file("commands").write_text("touch one\ntouch two\n")
    with tool.file("commands").open("rb") as given:
        job = tool.start("--gpus", "0", given=given)
    wait_for(lambda: job.err, "the reason")
    assert job.out == ""
    tool.story.gate("other").open()
    holder.ended_well()

    said = job.ended_well().err
    assert said.count("\n") == 1
    assert "simple_gpu_scheduler: waiting for GPU 0: needs a GPU to itself; GPU 0 has" in said
    assert tool.file("two").exists()


def test_it_neither_needs_nor_starts_a_negotiator(tool: Tool) -> None:
    assert tool.run("true\n", "--gpus", "0")[0] == 0
    assert not (tool.story.folder / "run").exists()
    assert not (tool.story.folder / "state").exists()


# --- together with simple_hypersearch ------------------------------------------------------


def test_a_search_feeds_the_scheduler(tool: Tool, script: Scripts) -> None:
    tool.story.write(
        "train_dnn.py", "import sys; open('ran', 'a').write(' '.join(sys.argv[1:]) + '\\n')"
    )
    search = script("simple_hypersearch")
    line = (
        f'{search} "python3 train_dnn.py --lr {{lr}} --batch_size {{bs}}" '
        f"-p lr 0.001 0.0005 0.0001 -p bs 32 64 128 | {tool.path} --gpus 0,1,2"
    )
    ended = tool.story.start("/bin/sh", "-c", line).ended_well()

    expected = {f"--lr {lr} --batch_size {bs}" for lr in ("0.001", "0.0005", "0.0001")
                for bs in (32, 64, 128)}  # fmt: skip
    assert sorted(tool.file("ran").read_text().splitlines()) == sorted(expected)
    assert {command for command, _ in STARTS.findall(ended.out)} == {
        f"python3 train_dnn.py {one}" for one in expected
    }


def test_a_command_that_asks_grn_for_a_gpu_itself_gets_the_one_it_runs_on(
    tool: Tool, negotiator: Negotiators
) -> None:
    negotiator("virtual:2x256MiB")
    tool.story.write("train.py", "import grn\nwith grn.lease() as lease: print(lease.gpus)\n")

    code, _, said = tool.run("python3 train.py > out", "--gpus", "1")

    assert (code, said) == (0, "")
    assert tool.file("out").read_text() == "(1,)\n"
