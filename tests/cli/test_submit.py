"""`grn submit`: every flag reaches the job, and what makes no sense is one clear line."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grn.cli import quick
from grn.cli.main import main
from tests.harness import wait_for
from tests.queue.daemon import GRN, SMALL, Queue, being_here

MiB = 1 << 20


@pytest.fixture(scope="module")
def shared() -> Iterator[Queue]:
    queue = Queue.begin()
    yield queue
    with being_here(queue):
        queue.end()


@pytest.fixture
def queue(shared: Queue) -> Iterator[Queue]:
    """Talk to the one queue of this file; jobs a test has left are cancelled."""
    with being_here(shared):
        yield shared
        shared.cancel_all()


# --- what a job gets -----------------------------------------------------------------------


def test_every_flag_reaches_the_job(queue: Queue) -> None:
    before = queue.sh("true", "--hold")
    job = queue.submit(
        "--name", "big one", "--gpus", "2", "--mem", "100MiB", "--exclusive", "--type", "mine",
        "--priority", "-3", "--after", str(before), "--retry", "4", "--time-limit", "90m",
        "--cwd", "/", "--env", "A=x=y", "--env", "EMPTY=", "--requeue", "--notify", "true",
        "--hold", "-q", "--", "python3", "train.py", "--lr", "0.1", "--", "-q",
    )  # fmt: skip
    row = queue.job(job)
    facts = {name: row[name] for name in (
        "name", "gpus_asked", "mem_bytes", "is_exclusive", "label", "job_type", "priority",
        "after", "retries", "time_limit_s", "cwd", "may_requeue", "state", "argv",
    )}  # fmt: skip
    assert facts == {
        "name": "big one", "gpus_asked": 2, "mem_bytes": 100 * MiB, "is_exclusive": 1,
        "label": "mine", "job_type": "mine", "priority": -3, "after": [[before, True]],
        "retries": 4, "time_limit_s": 5400.0, "cwd": "/", "may_requeue": 1, "state": "held",
        "argv": ["python3", "train.py", "--lr", "0.1", "--", "-q"],
    }  # fmt: skip
    assert {"A", "EMPTY", "PATH"} <= set(row["environment"])
    assert row["why"] == "held: run `grn release` to let it start"


def test_plain_words_make_a_plain_job(queue: Queue) -> None:
    job = queue.submit("true")
    row = queue.ended(job)
    assert (row["argv"], row["name"], row["gpus_asked"], row["mem_bytes"]) == (
        ["true"],
        "",
        1,
        None,
    )
    assert (row["priority"], row["after"], row["retries"], row["time_limit_s"]) == (0, [], 0, None)
    assert (row["reason"], row["status"], row["attempt"]) == ("ok", 0, 1)


def test_the_job_runs_as_its_submitter_would_run_it(queue: Queue, tmp_path: Path) -> None:
    """Environment, folder, umask and interpreter are those of `grn submit`."""
    (tmp_path / "where").mkdir()
    script = tmp_path / "tell.py"
    script.write_text(
        "import os, sys, pathlib\n"
        "print(os.getcwd(), os.environ['MINE'], os.environ.get('GONE'), sys.executable)\n"
        "pathlib.Path('made').write_text('')\n"
        "print(os.environ['GRN_JOB_ID'], os.environ['GRN_ATTEMPT'], sys.stdin.read() == '')\n"
    )
    job = queue.submit(
        *SMALL, "--", sys.executable, str(script), cwd=tmp_path / "where", umask=0o027,
        env={"MINE": "é \n$x", "GONE": None},
    )  # fmt: skip
    assert queue.ended(job)["reason"] == "ok", queue.log(job)
    assert queue.log(job) == (f"{tmp_path / 'where'} é \n$x None {sys.executable}\n{job} 1 True\n")
    assert stat.S_IMODE((tmp_path / "where" / "made").stat().st_mode) == 0o640


def test_the_job_sees_only_its_gpus(queue: Queue) -> None:
    job = queue.sh(
        "echo $CUDA_VISIBLE_DEVICES $GRN_GPU_COUNT ${GRN_LEASE:+leased}", "-g", "3",
        env={"CUDA_VISIBLE_DEVICES": "77", "GRN_LEASE": "of another"},
    )  # fmt: skip
    row = queue.ended(job)
    gpus, count, leased = queue.log(job).split()
    assert sorted(map(int, gpus.split(","))) == sorted(row["gpus"])
    assert (len(row["gpus"]), count, leased) == (3, "3", "leased")


def test_env_is_for_the_job_and_wins(queue: Queue) -> None:
    job = queue.sh("echo $A-$B", "--env", "A=1", "--env", "B=a b", env={"A": "0"})
    queue.ended(job)
    assert queue.log(job) == "1-a b\n"


def test_a_command_is_not_for_a_shell_unless_asked(queue: Queue) -> None:
    words = ["echo", "$HOME", "*", "a b", "; false"]
    plain = queue.submit(*SMALL, "--", *words)
    shell = queue.submit(*SMALL, "--shell", "--", "echo", "one;", "exit 3")
    assert queue.ended(plain)["reason"] == "ok"
    assert queue.log(plain) == "$HOME * a b ; false\n"
    assert queue.ended(shell)["status"] == 3
    assert queue.job(shell)["argv"] == ["/bin/sh", "-c", "echo one; exit 3"]


@pytest.mark.parametrize("is_piped", [False, True])
def test_each_line_is_a_job(queue: Queue, is_piped: bool) -> None:
    text = "# a comment\n\n  echo one\necho two | cat\r\n\n"
    if is_piped:
        ended = queue.fed(text.encode(), "submit", *SMALL, "--name", "lines", "--lines", "-")
    else:
        path = queue.story.write("lines.txt", text)
        ended = queue("submit", *SMALL, "--name", "lines", "--lines", str(path))
    assert (ended.code, ended.err) == (0, "")
    first, second = map(int, ended.out.split())
    assert second == first + 1
    assert [queue.ended(job)["reason"] for job in (first, second)] == ["ok", "ok"]
    assert [queue.log(job) for job in (first, second)] == ["one\n", "two\n"]
    assert queue.job(second)["name"] == "lines"


@pytest.mark.parametrize(
    ("text", "numbers"), [("3-5", "345"), ("2", "2"), ("7,5", "75"), ("0-5:2", "024")]
)
def test_an_array_is_one_command_for_each_number(queue: Queue, text: str, numbers: str) -> None:
    out = queue.fine("submit", *SMALL, "--array", text, "--", "sh", "-c", "echo $GRN_ARRAY_INDEX")
    jobs = [int(word) for word in out.split()]
    for job in jobs:
        queue.ended(job)
    assert [queue.log(job) for job in jobs] == [f"{number}\n" for number in numbers]


def test_the_runs_of_an_array_are_known_by_their_numbers(queue: Queue) -> None:
    script = queue.story.write("seeds.sh", "sleep 0.3\n")
    line = f"cd {script.parent} && sh {script.name} --seed $GRN_ARRAY_INDEX"
    out = queue.fine("submit", *SMALL, "--type", "seeds", "--array", "3-4", "--shell", "--", line)
    for word in out.split():
        queue.ended(int(word))
    found = json.loads(queue.fine("profiles", "show", "seeds", "--json"))["profiles"]
    runs = [run for row in found for run in row["history"]]
    assert sorted(run["args"]["seed"] for run in runs) == [3.0, 4.0]
    assert {len(run["code"]) for run in runs} == {8}


def test_many_lines_are_accepted_in_order(queue: Queue) -> None:
    path = queue.story.write("many.txt", "".join(f"echo {number}\n" for number in range(2500)))
    out = queue.fine("submit", "--hold", "--lines", str(path))
    jobs = [int(word) for word in out.split()]
    assert jobs == list(range(jobs[0], jobs[0] + 2500))
    assert queue.job(jobs[1234])["argv"][2] == "echo 1234"


@pytest.mark.parametrize(
    ("first", "condition", "reason"),
    [("exit 0", "", "ok"), ("exit 0", ":any", "ok"), ("exit 1", ":any", "ok"),
     ("exit 1", "", "skipped"), ("exit 1", ":ok", "skipped")],
)  # fmt: skip
def test_a_job_comes_after_another(queue: Queue, first: str, condition: str, reason: str) -> None:
    (before,) = queue.shs(first)
    job = queue.sh("true", "--after", f"{before}{condition}")
    assert queue.ended(job)["reason"] == reason
    if reason == "skipped":
        assert queue.job(job)["text"] == f"it depends on job {before}, which did not succeed"


def test_a_failing_job_is_tried_again_as_often_as_asked(queue: Queue) -> None:
    job = queue.sh("echo try $GRN_ATTEMPT; exit 9", "--retry", "2")
    row = queue.ended(job)
    assert (row["reason"], row["status"], row["attempt"]) == ("failed", 9, 3)
    assert [(one["attempt"], one["reason"]) for one in row["attempts"]] == [
        (1, "failed"), (2, "failed"), (3, "failed"),
    ]  # fmt: skip
    assert queue.log(job) == "try 3\n"
    assert queue.fine("logs", str(job), "--attempt", "1") == "try 1\n"


def test_a_job_is_ended_after_its_time(queue: Queue) -> None:
    job = queue.sh("exec sleep 600", "--time-limit", "0.1s")
    row = queue.ended(job)
    assert (row["reason"], row["signal"]) == ("timed-out", 15)


def test_notify_is_run_when_a_job_has_ended(queue: Queue) -> None:
    said = queue.story.folder / "notified"
    told = "$GRN_EVENT $GRN_JOB_ID $GRN_REASON $GRN_JOB_NAME $GRN_JOB_STATUS $GRN_JOB_TAIL"
    line = f'echo "{told} ${{GRN_JOB_RUN_S%.*}} $GRN_JOB_COMMAND" > "{said}"'
    job = queue.sh("echo last words; exit 4", "--name", "mine", "--notify", line)
    queue.ended(job)
    text = wait_for(lambda: said.exists() and said.read_text(), "the notification")
    assert text.startswith(f"end {job} failed mine 4 last words ")
    assert text.endswith("echo last words; exit 4\n")


# --- what is no text -----------------------------------------------------------------------


def test_words_that_are_no_text_arrive_byte_for_byte(queue: Queue) -> None:
    folder = queue.story.folder / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    words = [os.fsdecode(b"\xff\xfe"), "é", os.fsdecode(b"a\xe9b")]
    job = queue.submit(
        *SMALL, "--name", os.fsdecode(b"n\xff"), "--", "sh", "-c",
        'printf "%s|" "$@" "$BAD" "$PWD"', "sh", *words,
        env={"BAD": os.fsdecode(b"\x80=\x81")}, cwd=folder,
    )  # fmt: skip
    row = queue.ended(job)
    assert row["reason"] == "ok"
    printed = (Path(row["folder"]) / "log").read_bytes().split(b"|")[:-1]
    sent = [*words, os.fsdecode(b"\x80=\x81"), str(folder)]
    assert printed == [os.fsencode(word) for word in sent]
    assert row["name"] == r"n\udcff"
    shown = queue.fine("show", str(job))
    assert "\\udce9" in shown
    assert queue.json("show", str(job))["job"]["cwd"] == str(folder)


def test_escapes_in_a_name_do_not_reach_the_terminal(queue: Queue) -> None:
    job = queue.sh("exit 1 # \x1b]0;title\x07", "--name", "\x1b[31mred\x1b[0m")
    queue.ended(job)
    for words in (("ls", "-a"), ("show", str(job)), ("history",)):
        out = queue.fine(*words)
        assert "\x1b" not in out
        assert "\\x1b[31mred" in out


# --- what makes no sense -------------------------------------------------------------------

FUTILE = [
    ((), "there is no command"),
    (("--",), "there is no command"),
    (("--time-limit", "soon", "x"), "invalid time 'soon'"),
    (("--time-limit=-3s", "x"), "invalid time '-3s'"),
    (("--time-limit", "nan", "x"), "invalid time 'nan'"),
    (("--time-limit", "infd", "x"), "invalid time 'infd'"),
    (("--mem", "6 bananas", "x"), "'6 bananas' is not a size"),
    (("--mem", "0", "x"), "out of range"),
    (("--gpus=-1", "x"), "--gpus is -1 and must be 0 or more"),
    (("--gpus=0", "--mem=1GiB", "x"), "mem is about GPUs, and gpus is 0"),
    (("--priority", "1001", "x"), "--priority is 1001 and must be a number from -1000 to 1000"),
    (("--retry", "-1", "x"), "--retry is -1 and must be a number from 0 to 1000"),
    (("--after", "x", "x"), "'x' is not the id of a job"),
    (("--after", "0", "x"), "'0' is not the id of a job"),
    (("--after", "3:never", "x"), "'3:never' is not the id of a job"),
    (("--after", "²", "x"), "'²' is not the id of a job"),
    (("--after", "9" * 40, "x"), "is not the id of a job"),
    (("--env", "NOVALUE", "x"), "'NOVALUE' does not set a variable"),
    (("--env", "=x", "x"), "'=x' does not set a variable"),
    (("--array", "x", "x"), "invalid range 'x'"),
    (("--array", "5-", "x"), "invalid range '5-'"),
    (("--array", "5-3", "x"), "'5-3' has no numbers"),
    (("--array", "0-999999999", "x"), "1 to 100000 are allowed"),
    (("--array", "9" * 30, "x"), "invalid range"),
    (("--lines", "/no/such/file"), "/no/such/file cannot be read: No such file or directory"),
    (("--lines", "/"), "/ cannot be read: Is a directory"),
    (("--lines", "/dev/null"), "there is no command in /dev/null"),
    (("--lines", "f", "x"), "--lines goes without a command"),
    (("--lines", "f", "--array", "3"), "--lines goes without a command"),
    (("--cwd", "/no/such/folder", "x"), "the folder /no/such/folder does not exist"),
    (("--cwd", "/etc/passwd", "x"), "the folder /etc/passwd does not exist"),
    (("--name", "n" * 129, "x"), "the name is longer than 128 characters"),
    (("--type", "t" * 1025, "x"), "the type is longer than 1024 characters"),
    (("--notify", "n" * 4097, "x"), "the notify is longer than 4096 characters"),
    (("--at", "n" * 129, "x"), "the at is longer than 128 characters"),
    (("--nodes", "2", "x"), "a job cannot have 2 nodes: not yet"),
    (("--nodes", "0", "x"), "--nodes is 0 and must be 1 or more"),
]


def typed(*words: str) -> int:
    """Run `grn submit` in this process and return its exit status."""
    before = sys.argv
    sys.argv = ["grn", "submit", *words]
    with pytest.raises(SystemExit) as caught:
        main()
    sys.argv = before
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(("words", "text"), FUTILE, ids=[" ".join(case[0])[:40] for case in FUTILE])
def test_what_makes_no_sense_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    """No queue is asked, and none is started."""
    assert typed(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    error, *hint = err.splitlines()
    assert error.startswith("error: ")
    assert text in error
    assert len(hint) <= 1
    assert all(line.startswith("hint: ") for line in hint)
    assert not Path(os.environ["GRN_STATE_DIR"]).exists()


@pytest.mark.parametrize("words", [("--gpus", "two", "x"), ("--colour", "x"), ("--name",)])
def test_an_unknown_flag_is_a_misuse(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert typed(*words) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert hint == "hint: See `grn submit --help`."


def test_help_says_it_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("--help") == 0
    out = capsys.readouterr().out
    assert "Examples:" in out
    assert [opt.dest for opt in quick.SUBMIT if opt.flags[-1] not in out] == []


def test_a_job_to_come_after_that_is_not_there_is_named(queue: Queue) -> None:
    queue.sh("true")
    ended = queue("submit", "--after", "999999", "--", "true")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: there is no job 999999 to come after.\n")


def test_a_removed_folder_is_named(queue: Queue) -> None:
    gone = queue.story.folder / "gone"
    gone.mkdir()
    program = queue.story.write("grn-program", "from grn.cli.main import main; main()")
    line = f"cd '{gone}' && rmdir '{gone}' && exec \"$@\""
    words = (sys.executable, str(program), "submit", "--", "true")
    ended = queue.story.start("sh", "-c", line, "sh", *words).wait()
    assert ended.code == 2
    assert ended.err.startswith("error: this folder is gone.\n")


def test_a_job_that_can_never_run_says_so_at_submit(queue: Queue) -> None:
    queue.ended(queue.sh("true"))  # the negotiator is known by now
    for words, text in (
        (("--gpus", "5"), "you asked for 5 GPUs; this machine has 4."),
        (("--mem", "10GiB"), "you asked for 10.0 GiB of memory; the largest GPU has 512 MiB."),
        (("--on", "h100"), "no GPU here is 'h100'.\nhint: This machine has 4 x virtual 512MiB"),
        (("-n2", "--not", "0", "--not", "1", "--not", "2"), "only 1 GPU here is not GPU 0, 1, 2."),
        (("-n2", "--mem", "1G"), "you asked for 1.0 GiB of memory; 2 GPUs have at most 512 MiB"),
    ):
        ended = queue("submit", *words, "--", "true")
        assert (ended.code, ended.out) == (4, ""), ended
        assert text in ended.err
    assert queue("submit", "--hold", "--gpus", "4", "--mem", "512MiB", "--", "true").code == 0


def test_closed_standard_streams_are_no_trouble(queue: Queue) -> None:
    job = queue.story.start("sh", "-c", 'exec "$@" <&-', "sh", *GRN, "submit", "--hold", "true")
    assert int(job.ended_well().out) > 0
    job = queue.story.start("sh", "-c", 'exec "$@" <&-', "sh", *GRN, "submit", "--lines", "-")
    assert job.wait().err.startswith("error: there is no command in -.\n")
    job = queue.story.start("sh", "-c", 'exec "$@" >&-', "sh", *GRN, "submit", "--hold", "true")
    job.ended_well()


def test_two_hundred_thousand_bytes_of_arguments_arrive(queue: Queue) -> None:
    words = ["x" * 1000] * 200
    job = queue.submit(*SMALL, "--", "sh", "-c", 'printf "%s" "$@" | wc -c', "sh", *words)
    assert queue.ended(job)["reason"] == "ok"
    assert queue.log(job).strip() == "200000"


def test_one_argument_too_long_for_the_system_is_the_jobs_own_end(queue: Queue) -> None:
    ended = queue.fed(b": " + b"x" * 200_000, "submit", *SMALL, "--lines", "-")
    row = queue.ended(int(ended.out))
    assert (row["reason"], row["status"]) == ("not-runnable", 126)
    assert row["text"] == "/bin/sh: Argument list too long"


def test_submit_is_quick(queue: Queue) -> None:
    """It is called in loops of shells: what it loads is counted, not how long that takes."""
    queue.wake()
    code = "import sys; from grn.cli.main import main\ntry: main()\nfinally: print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code, "submit", "--hold", "true"],
        env=queue.story.environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(ran.stdout.split()[1:])
    assert not loaded & {"asyncio", "click", "msgspec", "rich", "sqlite3", "subprocess", "typing"}
