"""What a waiting call says on a terminal, and that it says nothing elsewhere."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import sys
import traceback

import pytest

import grn
from grn.client.leasing.wait_line import WaitLine, is_seen, line, open_line
from grn.errors import NeverFits
from tests.harness import Negotiator, wait_for


class Screen(io.StringIO):
    """Standard error of a person."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen() -> Screen:
    return Screen()


def test_the_line_says_how_long_why_and_what_to_do() -> None:
    said = line(72.9, "needs 1.0 GiB", "no-room", 200)
    assert said == "grn: waiting 1:12: needs 1.0 GiB; `grn gpus` shows the jobs there"
    assert line(3700, "x\x1b[2J", "unheard-of", 200) == "grn: waiting 1:01:40: x\\x1b[2J"


def test_a_narrow_terminal_gets_no_advice_and_one_line() -> None:
    assert line(5, "needs 1.0 GiB", "no-room", 40) == "grn: waiting 0:05: needs 1.0 GiB"
    assert len(line(5, "needs " * 20, "no-room", 40)) == 40


def test_the_line_is_written_over_and_leaves_nothing(screen: Screen) -> None:
    shown = WaitLine(screen)
    shown.tell("a long reason")
    shown.draw()
    shown.tell("short")
    shown.clear()
    *_, last, blank, end = screen.getvalue().split("\r")
    assert last.rstrip() == "grn: waiting 0:00: short"
    assert (blank.strip(), end) == ("", "")


def test_one_call_of_a_process_speaks_at_a_time(screen: Screen) -> None:
    first, second = WaitLine(screen), WaitLine(screen)
    first.draw()
    said = screen.getvalue()
    second.draw()
    assert screen.getvalue() == said
    first.clear()
    second.draw()
    assert screen.getvalue() != said
    second.clear()


def test_nobody_is_told_where_nobody_looks(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen)
    assert open_line(2.0) is not None
    monkeypatch.setenv("GRN_QUIET", "1")
    assert open_line(2.0) is None
    monkeypatch.delenv("GRN_QUIET")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert open_line(2.0) is None
    assert not is_seen(None)


def test_a_notebook_is_told() -> None:
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    assert is_seen(stream)


def test_a_waiting_call_says_why_on_a_terminal(here: Negotiator) -> None:
    ours, theirs = pty.openpty()
    with grn.lease(gpus=2, exclusive=True, type="holder"):
        job = here.story.start_script(
            """
            import grn

            @grn.job(mem="64MiB")
            def train():
                print("ran")

            train()
            """,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""

        def is_said() -> bool:
            nonlocal shown
            shown += os.read(ours, 4096)
            return b"grn: waiting 0:0" in shown and shown.count(b"\r") > 2

        wait_for(is_said, lambda: shown)
    assert job.wait().out == "ran\n"
    os.close(ours)


def test_an_async_call_says_why_too(
    here: Negotiator, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", screen)
    holder = here.story.hold("holder", exclusive=True, gpus=2)
    here.story.hear("holder runs")

    async def call() -> None:
        async with grn.lease(mem="64MiB"):
            pass

    async def both() -> None:
        waiting = asyncio.create_task(call())
        while "grn: waiting 0:03" not in screen.getvalue():
            await asyncio.sleep(0.05)
        here.story.gate("holder").open()
        await waiting

    asyncio.run(asyncio.wait_for(both(), 60))
    assert holder.ended_well()
    assert screen.getvalue().endswith("\r")


def test_a_refused_call_shows_no_frames_of_the_client(here: Negotiator) -> None:
    @grn.job(mem="900GiB")
    def train() -> None: ...

    with pytest.raises(NeverFits) as caught:
        train()
    files = [os.path.basename(frame.filename) for frame in traceback.extract_tb(caught.tb)]
    assert files == ["test_wait_line.py", "decorator.py"]

    @grn.job(mem="900GiB")
    async def train_async() -> None: ...

    with pytest.raises(NeverFits) as caught:
        asyncio.run(train_async())
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert names[-2:] == ["run_until_complete", "call"]


def test_a_refused_lease_shows_one_frame_of_the_client(here: Negotiator) -> None:
    with pytest.raises(NeverFits) as caught, grn.lease(mem="900GiB"):
        pass
    files = [os.path.basename(frame.filename) for frame in traceback.extract_tb(caught.tb)]
    assert files == ["test_wait_line.py", "lease.py"]


def test_notebooks_and_pytest_hide_the_frame_of_the_decorator(here: Negotiator) -> None:
    @grn.job(mem="16MiB")
    def train() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own") as caught:
        train()
    shown = [entry.name for entry in caught.traceback.filter(caught)]
    assert shown == ["test_notebooks_and_pytest_hide_the_frame_of_the_decorator", "train"]


def test_an_error_of_the_function_keeps_all_its_frames(here: Negotiator) -> None:
    @grn.job(mem="16MiB")
    def train() -> None:
        raise NeverFits("its own")

    with pytest.raises(NeverFits) as caught:
        train()
    assert [frame.name for frame in traceback.extract_tb(caught.tb)][-2:] == ["call", "train"]


def test_ctrl_c_during_a_wait_shows_no_frames_of_the_client(here: Negotiator) -> None:
    with grn.lease(gpus=2, exclusive=True, type="holder"):
        job = here.story.start_script("import grn\nwith grn.lease(mem='64MiB'):\n    pass\n")
        here.wait_for_waiting(1)
        job.process.send_signal(2)
        ended = job.wait()
    assert "KeyboardInterrupt" in ended.err
    assert "connection.py" not in ended.err
    assert "drive" not in ended.err
