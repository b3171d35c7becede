"""`grn.submit` and its handle: a command handed over, waited for, read and ended from Python."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import grn
from grn.client.submit import exit_code_of, is_id, submit_many, words
from grn.errors import UnknownJob, UsageError
from tests.harness import wait_for
from tests.queue.daemon import Queue, being_here

MEM = "16MiB"


@pytest.fixture(scope="module")
def shared() -> Iterator[Queue]:
    queue = Queue.begin()
    with being_here(queue):
        queue.fine("queue", "start")
    yield queue
    with being_here(queue):
        queue.end()


@pytest.fixture
def queue(shared: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Make this process a client of the one queue of this file."""
    with being_here(shared):
        monkeypatch.chdir(shared.story.folder)
        yield shared
        shared.cancel_all()


def test_a_command_is_handed_over_and_waited_for(queue: Queue) -> None:
    job = grn.submit(["sh", "-c", "echo $A; echo bad >&2; exit 3"], env={"A": "1"}, mem=MEM)
    assert isinstance(job, grn.JobHandle)
    ended = job.wait()
    assert repr(job) == f"<grn job {job.id} failed>"
    assert (ended["id"], ended["reason"], ended["status"]) == (job.id, "failed", 3)
    assert job.logs().split() == ["1", "bad"]
    with pytest.raises(UsageError, match="holds both of its streams"):
        job.logs(stderr=True)
    assert job.status()["text"] == "exit status 3"
    assert job.wait() == ended, "waiting twice is no trouble"


def test_standard_error_can_be_kept_apart(queue: Queue) -> None:
    job = grn.submit("echo out; echo bad >&2", shell=True, separate_stderr=True, mem=MEM)
    job.wait()
    assert sorted(job.logs().split()) == ["bad", "out"]
    assert job.logs(stderr=True) == "bad\n"


def test_a_good_end_is_zero_and_a_bad_one_raises(queue: Queue) -> None:
    assert grn.submit(["true"], mem=MEM).result() == 0
    bad = grn.submit("exit 7", shell=True, mem=MEM)
    with pytest.raises(
        grn.JobFailed, match=f"job {bad.id} ended as failed: exit status 7"
    ) as caught:
        bad.result()
    assert caught.value.exit_code == 7


def test_a_job_is_ended_with_its_processes(queue: Queue) -> None:
    job = grn.submit("sleep 600; true", shell=True, mem=MEM)
    queue.in_state(job.id, "running")
    job.cancel()
    assert job.wait()["reason"] == "cancelled"
    other = grn.submit("trap '' TERM; echo up; while :; do sleep 0.05; done", shell=True, mem=MEM)
    wait_for(lambda: other.logs() == "up\n", "it to run")
    other.cancel(now=True)
    assert other.wait()["signal"] == signal.SIGKILL


def test_options_are_those_of_the_command_line(queue: Queue, tmp_path: Path) -> None:
    before = grn.submit(["true"], hold=True)
    job = grn.submit(
        [sys.executable, Path("x.py"), 3], name="n", gpus=2, mem="1MiB", exclusive=True, type="t",
        priority=4, after=[before, f"{before.id}:any"], retry=2, time_limit="2h", cwd=str(tmp_path),
        requeue=True, hold=True, notify="true",
    )  # fmt: skip
    row = job.status()
    assert row["argv"] == [sys.executable, "x.py", "3"]
    assert (row["name"], row["gpus_asked"], row["mem_bytes"], row["label"]) == (
        "n",
        2,
        1 << 20,
        "t",
    )
    assert (row["priority"], row["retries"], row["time_limit_s"]) == (4, 2, 7200.0)
    assert row["after"] == [[before.id, True], [before.id, False]]
    assert (row["cwd"], row["state"]) == (str(tmp_path), "held")


@pytest.mark.parametrize("one", ["handle", "id"])
def test_one_job_to_come_after_needs_no_list(queue: Queue, one: str) -> None:
    before = grn.submit(["false"], mem=MEM)
    job = grn.submit(["true"], mem=MEM, after=before if one == "handle" else before.id)
    assert job.wait()["reason"] == "skipped"


def test_a_job_may_come_after_one_that_ends_this_very_moment(queue: Queue) -> None:
    """The queue may know of the end and not have written it down yet."""
    lasts = []
    for _ in range(25):
        first = grn.submit(["true"], mem=MEM)
        lasts.append(grn.submit(["true"], mem=MEM, after=first))
    assert {job.wait()["reason"] for job in lasts} == {"ok"}


def test_many_commands_are_handed_over_at_once(queue: Queue) -> None:
    jobs = submit_many([["sh", "-c", f"exit {code}"] for code in range(3)], mem=MEM, name="many")
    assert [job.wait()["status"] for job in jobs] == [0, 1, 2]
    assert submit_many([]) == []


def test_a_job_has_the_environment_of_this_process(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "yes")
    monkeypatch.setenv("GRN_LEASE", "of a job that submits another")
    line = 'echo $MINE $PWD; [ "$GRN_LEASE" != "of a job that submits another" ]'
    job = grn.submit(line, shell=True, mem=MEM)
    assert job.result() == 0
    assert job.logs() == f"yes {os.getcwd()}\n"


def test_a_handle_is_awaited(queue: Queue) -> None:
    async def both() -> list[Any]:
        good, bad = grn.submit(["true"], mem=MEM), grn.submit(["false"], mem=MEM)
        return await asyncio.gather(good, bad, return_exceptions=True)

    good, bad = asyncio.run(both())
    assert good == 0
    assert isinstance(bad, grn.JobFailed)


def test_waiting_goes_on_through_a_restart_of_the_queue(queue: Queue) -> None:
    queue.gate("restart")
    job = grn.submit(
        ["flock", "-s", str(queue.story.folder / "gates" / "restart"), "true"], mem=MEM
    )
    queue.in_state(job.id, "running")

    async def wait() -> int:
        waiting = asyncio.ensure_future(_awaited(job))
        await asyncio.to_thread(_restart, queue)
        queue.gate("restart").open()
        return await waiting

    assert asyncio.run(wait()) == 0


async def _awaited(job: grn.JobHandle) -> int:
    return await job


def _restart(queue: Queue) -> None:
    queue.kill()
    queue.fine("queue", "start")


def test_a_job_that_can_never_run_is_refused(queue: Queue) -> None:
    grn.submit(["true"], mem=MEM).result()
    with pytest.raises(grn.NeverFits, match="you asked for 99 GPUs; this machine has 4"):
        grn.submit(["true"], gpus=99)
    with pytest.raises(MemoryError):
        grn.submit(["true"], mem="100GiB")


def test_a_handle_of_nothing_says_so(queue: Queue) -> None:
    nobody = grn.JobHandle(99_999)
    for ask in (nobody.status, nobody.wait, nobody.cancel, nobody.logs):
        with pytest.raises(UnknownJob, match="there is no job 99999"):
            ask()


# --- what makes no sense -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "options", "text"),
    [
        ("echo one text", {}, "is one text"),
        ([], {}, "the command is empty"),
        (["x"], {"cwd": "/no/such"}, "the folder /no/such does not exist"),
        (["x"], {"mem": "much"}, "'much' is not a size"),
        (["x"], {"time_limit": "soon"}, "invalid time 'soon'"),
        (["x"], {"time_limit": 0}, "invalid time '0'"),
        (["x"], {"after": "never"}, "is not the id of a job"),
        (["x"], {"gpus": -1}, "gpus is -1"),
        (["x"], {"gpus": 0, "mem": "1GiB"}, "mem is about GPUs"),
        (["x"], {"cpus": 0}, "'0' is not a number of cores"),
        (["x"], {"ram": "much"}, "'much' is not a size"),
        (["x"], {"name": "n" * 200}, "the name is longer"),
        (["x"], {"at": "n" * 200}, "the at is longer"),
        (["x"], {"nodes": 2}, "2 nodes: not yet"),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_sent(
    command: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        grn.submit(command, **options)


def test_an_unknown_option_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="submit\\(\\) has no option 'colour'"):
        grn.submit(["x"], colour="red")


@pytest.mark.parametrize("bad", [["a\0b"], ["\0\u1234"]])
def test_a_nul_byte_is_refused_by_the_queue(queue: Queue, bad: list[str]) -> None:
    with pytest.raises(UsageError, match="NUL"):
        grn.submit(bad)
    with pytest.raises(UsageError, match="NUL"):
        grn.submit(["true"], env={"A": bad[0]})
    with pytest.raises(UsageError, match="cannot be the name of a variable"):
        grn.submit(["true"], env={"A=B": "x"})


def test_words_of_a_command() -> None:
    assert words(["a", Path("b"), 3], shell=False) == ["a", "b", "3"]
    assert words("a | b", shell=True) == words(["a", "|", "b"], shell=True)
    assert words("a | b", shell=True) == ["/bin/sh", "-c", "a | b"]


def test_ids_are_plain_numbers() -> None:
    assert all(map(is_id, ["1", "12", "9" * 18]))
    assert not any(map(is_id, ["", "0", "-1", "+1", "1.0", " 1", "²", "٣", "9" * 19, "0x1"]))


@pytest.mark.parametrize(
    ("reason", "status", "signum", "code"),
    [
        ("ok", 0, None, 0),
        ("failed", 3, None, 3),
        ("failed", None, 9, 137),
        ("out-of-memory", 1, None, 1),
        ("timed-out", None, 15, 124),
        ("cancelled", None, 15, 143),
        ("cancelled", None, None, 125),
        ("not-runnable", 127, None, 127),
        ("lost", None, None, 125),
        ("skipped", None, None, 125),
        ("refused", None, None, 125),
        ("interrupted", None, None, 125),
    ],
)
def test_an_exit_code_tells_how_a_job_ended(
    reason: str, status: int | None, signum: int | None, code: int
) -> None:
    assert exit_code_of(reason, status, signum) == code


# Calls of decorated functions

CALLS = """
    import asyncio, os, sys
    import grn

    @grn.job(mem="16MiB")
    def scaled(number, by=2):
        return number * by, os.getpid(), "GRN_PACKED_CALL_0" in os.environ

    @grn.job(mem="16MiB")
    async def later(number):
        await asyncio.sleep(0)
        return number

    @grn.job(mem="16MiB")
    def broken(text):
        raise LookupError(text)

    @grn.job(mem="16MiB")
    def items():
        yield 1
"""


def test_a_submitted_call_returns_its_value_from_a_process_of_its_own(queue: Queue) -> None:
    ended = queue.story.run_script(CALLS + """
    handle = scaled.options(name="twice").submit(21, by=2)
    value, pid, has_call = handle.result()
    print(value, pid != os.getpid(), has_call, handle.status()["name"])
    print(grn.CallHandle(handle.id).result()[0], later.submit(7).result())
    async def wait():
        return (await scaled.submit(4))[0]
    print(asyncio.run(wait()))
    """)  # fmt: skip

    assert ended.out.splitlines() == ["42 True False twice", "42 7", "8"]


def test_a_submitted_call_raises_what_the_function_raised(queue: Queue) -> None:
    ended = queue.story.run_script(CALLS + """
    handle = broken.submit("no such key")
    try:
        handle.result()
    except LookupError as error:
        print(error, "in broken" in str(error.__cause__), handle.status()["reason"])
    """)  # fmt: skip

    assert ended.out.split() == ["no", "such", "key", "True", "failed"]


def test_a_large_call_and_a_large_answer_pass_and_too_large_ones_are_refused(queue: Queue) -> None:
    ended = queue.story.run_script(CALLS + """
    print(len(scaled.submit("x" * 400_000, by=10).result()[0]))
    for fn, args in ((scaled, ("x" * 600_000,)), (items, ())):
        try:
            fn.submit(*args)
        except grn.errors.UsageError as error:
            print(error.message)
    """)  # fmt: skip

    size, too_large, generator = ended.out.splitlines()
    assert size == "4000000"
    assert "at most 512 KiB can be submitted" in too_large
    assert generator == "a generator cannot be submitted: it has no one answer."


def test_a_call_that_was_cancelled_has_no_answer(queue: Queue) -> None:
    ended = queue.story.run_script(CALLS + """
    handle = scaled.options(hold=True).submit(1)
    handle.cancel()
    try:
        handle.result()
    except grn.JobFailed as error:
        print(error.message)
    """)  # fmt: skip

    assert "ended as cancelled" in ended.out
