"""`grn top` itself: by textual's headless driver beside a real queue, and once in tmux."""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from textual.pilot import Pilot

from grn.cli.top.app import Top, is_plain
from grn.cli.top.draw import ASCII, UNICODE, Marks
from grn.client.state_mirror import StateMirror
from tests.cli.live import GRN, Shell
from tests.harness import DEADLINE_S, Story, wait_for
from tests.queue.daemon import Queue, a_queue

Script = Callable[[Top, Pilot[Any]], Awaitable[None]]


@pytest.fixture(scope="module")
def shared() -> Iterator[Queue]:
    """A queue with a job that runs, one that waits and one that has failed."""
    with a_queue() as queue:
        queue.gate("x")
        first = queue.sh("echo hello from the job; gate x", "--name", "runner")
        queue.ended(queue.sh("exit 7", "--name", "loser"))
        queue.submit("--hold", "--name", "keeper", "--", "true")
        queue.says(first, "hello")
        yield queue


@pytest.fixture
def queue(shared: Queue, monkeypatch: pytest.MonkeyPatch) -> Queue:
    for name, value in shared.story.env.items():
        monkeypatch.setenv(name, value)
    return shared


def play(script: Script, size: tuple[int, int] = (80, 24), marks: Marks = UNICODE) -> Top:
    """Run the app without a terminal and let a script press its keys."""

    async def run() -> Top:
        with StateMirror() as watch:
            watch.look()
            app = Top(watch, marks)
            async with app.run_test(size=size) as pilot:
                await until(app, lambda text: "RUNNING" in text)
                await script(app, pilot)
            return app

    return asyncio.run(run())


async def until(app: Top, is_right: Callable[[str], bool]) -> str:
    """Wait until what is shown is right."""
    for _ in range(int(DEADLINE_S / 0.05)):
        if is_right(app.canvas.text()):
            return app.canvas.text()
        await asyncio.sleep(0.05)
    raise AssertionError(app.canvas.text())


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
@pytest.mark.parametrize("marks", [UNICODE, ASCII])
def test_it_shows_what_runs_waits_and_has_ended(
    queue: Queue, size: tuple[int, int], marks: Marks
) -> None:
    async def script(app: Top, pilot: Pilot[Any]) -> None:
        text = await until(app, lambda text: "runner" in text and "loser" in text)
        lines = text.splitlines()
        assert len(lines) == size[1]
        assert max(map(len, lines)) <= size[0]
        assert f"{marks.selected}1" in text
        assert "held: run `grn release`" in text
        assert "failed" in text
        assert "4 GPUs" in text
        assert text.isascii() or marks is UNICODE

    play(script, size, marks)


def test_only_lines_that_changed_are_drawn_again(queue: Queue) -> None:
    async def script(app: Top, pilot: Pilot[Any]) -> None:
        await until(app, lambda text: "runner" in text)

        def drawn_again() -> int:
            app.draw()
            before = app.canvas.drawn
            app.draw()
            return app.canvas.drawn - before

        async def drawn_by(key: str) -> int:
            before = app.canvas.drawn
            await pilot.press(key)
            return app.canvas.drawn - before

        # A new second, or a tick in between, draws more: not each time.
        assert min(drawn_again() for _ in range(3)) == 0
        assert min([await drawn_by(key) for key in ("down", "up", "down")]) < 24

    play(script)


def test_a_filter_narrows_and_escape_widens(queue: Queue) -> None:
    async def script(app: Top, pilot: Pilot[Any]) -> None:
        await pilot.press("slash", *"keep")
        await until(app, lambda text: "WAITING 1 " in text and "RUNNING 0/1" in text)
        await pilot.press("enter")
        await until(app, lambda text: "filter: keep" in text)
        await pilot.press("escape")
        await until(app, lambda text: "RUNNING 1 " in text)

    play(script)


def test_a_log_is_followed_and_a_job_explained(queue: Queue) -> None:
    async def script(app: Top, pilot: Pilot[Any]) -> None:
        await pilot.press("l")
        await until(app, lambda text: "hello from the job" in text)
        await pilot.press("q")
        await until(app, lambda text: "RUNNING" in text)
        await pilot.press("e")
        text = await until(app, lambda text: "attempt   1 on GPU" in text)
        assert "job 1  runner" in text
        assert "MEMORY" in text
        await pilot.press("q")
        await until(app, lambda text: "RUNNING" in text)
        await pilot.press("question_mark")
        await until(app, lambda text: "any key goes back" in text)
        await pilot.press("x")
        await until(app, lambda text: "RUNNING" in text)

    play(script)


def test_jobs_are_held_let_go_cancelled_and_retried(queue: Queue) -> None:
    queue.gate("y")
    job = queue.sh("gate y", "--hold", "--name", "steered")

    async def script(app: Top, pilot: Pilot[Any]) -> None:
        await until(app, lambda text: "steered" in text)
        await pilot.press("slash", *"steered", "enter", "tab", "h")
        await until(app, lambda text: "RUNNING 1/2" in text and f"job {job} is released" in text)
        await pilot.press("shift+tab", "c")
        await until(app, lambda text: f"cancel job {job}" in text)
        await pilot.press("n")
        assert queue.job(job)["state"] == "running"
        await pilot.press("c", "y")
        await until(app, lambda text: "ENDED 1" in text and "cancelled" in text)
        await pilot.press("tab", "tab", "r")
        await until(app, lambda text: "submitted once more" in text)

    play(script)
    queue.fine("cancel", str(job + 1))


def test_what_is_refused_is_said_and_nothing_breaks(queue: Queue) -> None:
    async def script(app: Top, pilot: Pilot[Any]) -> None:
        await pilot.press("tab", "tab", "c")
        await until(app, lambda text: "has ended already" in text)
        await pilot.press("tab", "h")
        await until(app, lambda text: "does not wait" in text)

    play(script)


def test_a_click_selects_and_the_wheel_moves(queue: Queue) -> None:
    async def script(app: Top, pilot: Pilot[Any]) -> None:
        text = await until(app, lambda text: "keeper" in text)
        place = next(n for n, line in enumerate(text.splitlines()) if "keeper" in line)
        await pilot.click(offset=(5, place))
        await until(app, lambda text: "▶3" in text)

    play(script)


def test_a_smaller_window_is_drawn_anew(queue: Queue) -> None:
    async def script(app: Top, pilot: Pilot[Any]) -> None:
        await until(app, lambda text: "runner" in text)
        await pilot.resize_terminal(50, 12)
        text = await until(app, lambda text: len(text.splitlines()) == 12)
        assert max(map(len, text.splitlines())) <= 50

    play(script, (200, 60))


def test_without_anybody_it_says_what_to_do_and_starts_nothing() -> None:
    async def script(app: Top, pilot: Pilot[Any]) -> None:
        text = await until(app, lambda text: "grn start" in text)
        assert "! no grn negotiator answers: `grn start` starts one." in text

    play(script)


@pytest.mark.parametrize(
    ("environment", "plain"),
    [
        ({}, True),
        ({"LANG": "C"}, True),
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.utf8"}, False),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": ""}, False),
    ],
)
def test_the_locale_decides_about_characters(environment: dict[str, str], plain: bool) -> None:
    assert is_plain(environment) is plain


def test_without_a_terminal_it_is_refused_in_one_line(story: Story) -> None:
    ended = Shell(story)("top")

    assert ended.code == 2
    assert "needs a terminal" in ended.err


def test_the_glance_is_drawn_until_it_is_interrupted(queue: Queue) -> None:
    job = queue.start("gpus", "--watch", env={"COLUMNS": "80"})
    wait_for(lambda: job.out.count("guard") >= 2, lambda: job.err)
    job.signal(signal.SIGINT)

    ended = job.wait()
    assert ended.code == 0
    assert ended.out.splitlines()[0].startswith("  0 A")


def test_the_glance_stays_in_its_place_on_a_terminal(queue: Queue) -> None:
    ours, theirs = pty.openpty()
    environment = queue.story.environment(COLUMNS="80", LINES="24", TERM="xterm")
    process = subprocess.Popen(
        [*GRN, "gpus", "--watch"], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    while shown.count(b"guard") < 3:  # the legend, which ends each picture
        shown += os.read(ours, 1 << 16)
    process.send_signal(signal.SIGINT)

    assert process.wait(DEADLINE_S) == 0
    os.close(ours)
    assert shown.count(b"\x1b[5A") >= 2  # four GPUs and the legend, written over


def test_the_glance_does_not_speak_json(queue: Queue) -> None:
    assert queue("gpus", "--watch", "--json").code == 2


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize("environment", [{"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C", "NO_COLOR": "1"}])
def test_it_works_in_tmux(queue: Queue, environment: dict[str, str]) -> None:
    server = str(queue.story.folder / "tmux")
    env = queue.story.environment(**environment, TERM="xterm", TMUX=None)
    command = [sys.executable, *GRN[1:], "top"]

    def tmux(*words: str) -> str:
        done = subprocess.run(["tmux", "-S", server, "-f", "/dev/null", *words],
                              env=env, capture_output=True, text=True, timeout=60)  # fmt: skip
        return done.stdout

    tmux("new-session", "-d", "-s", "t", "-x", "80", "-y", "24", *command)
    try:
        wait_for(lambda: "runner" in tmux("capture-pane", "-p", "-t", "t"),
                 lambda: tmux("capture-pane", "-p", "-t", "t"))  # fmt: skip
        shown = tmux("capture-pane", "-p", "-t", "t")
        coloured = tmux("capture-pane", "-p", "-e", "-t", "t")
        tmux("send-keys", "-t", "t", "q")
        wait_for(lambda: not tmux("list-sessions"), "the end of the session")
    finally:
        tmux("kill-server")

    assert "RUNNING 1" in shown
    assert shown.isascii() is (environment["LC_ALL"] == "C")
    has_colour = any(f"\x1b[{code}m" in coloured for code in range(31, 37))
    assert has_colour is ("NO_COLOR" not in environment)
