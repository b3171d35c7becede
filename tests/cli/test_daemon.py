"""Starting and stopping the negotiator by hand."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
from collections.abc import Callable

import pytest

from grn.client.negotiator import ask_once
from tests.cli.live import GRN, Shell
from tests.harness import Negotiator, Story, is_running, wait_for
from tests.negotiator.live import Client

Start = Callable[..., Negotiator]


@pytest.fixture
def background(grn: Shell) -> int:
    """Start a negotiator in the background; the test must stop it."""
    ended = grn("start", "--virtual", "2x512MiB", "--background")
    assert ended.code == 0, ended.err
    found = re.fullmatch(r"negotiator ready: pid (\d+), log (.*)\n", ended.err)
    assert found is not None, ended.err
    return int(found[1])


def test_in_the_background_it_is_ready_when_the_command_returns(
    grn: Shell, story: Story, background: int
) -> None:
    assert ask_once({"op": "ping"})["pid"] == background
    log = story.folder / "state" / "negotiator.log"
    assert "Managing GPUs {0, 1}" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert os.getsid(background) == background  # the end of our terminal is not its end

    ended = grn("stop")

    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"negotiator stopped (pid {background})\n"
    wait_for(lambda: not is_running(background), "its end")
    assert log.read_text().endswith("negotiator stopped\n")
    again = grn("stop")
    assert (again.code, again.err.splitlines()[1][:31]) == (3, "hint: There is nothing to stop,")


def test_a_second_one_is_refused_in_either_way(grn: Shell, background: int) -> None:
    for more in ([], ["--background"]):
        ended = grn("start", "--virtual", "1x1GiB", *more)
        assert ended.code == 3
        assert "a negotiator already runs on this machine" in ended.err
        assert "`grn stop`" in ended.err
    assert ask_once({"op": "ping"})["pid"] == background
    grn("stop")


def test_stop_says_how_many_jobs_go_on(grn: Shell, story: Story, background: int) -> None:
    (path,) = (story.folder / "run").glob("*.sock")
    with Client(path) as client:
        client.lease()

        ended = grn("stop")

        assert ended.err.endswith("; 1 running job goes on\n")


def test_it_can_be_started_again_at_once_and_has_forgotten_nothing(
    grn: Shell, story: Story, background: int
) -> None:
    (path,) = (story.folder / "run").glob("*.sock")
    with Client(path) as client:
        lease = client.lease()["lease"]
        grn("stop")

        assert grn("start", "--virtual", "2x512MiB", "--background").code == 0

        kept = json.loads(grn("ps", "--json").out)["leases"]
        assert [row["id"] for row in kept] == [lease]
        grn("stop")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_a_signal_ends_it_well(grn: Shell, story: Story, signum: int) -> None:
    job = story.start(*GRN, "start", "--virtual", "1x1GiB")
    wait_for(lambda: "Managing GPUs {0}" in job.err, "it to be ready")
    assert ask_once({"op": "ping"})["pid"] == job.pid  # no process between

    job.signal(signum)

    ended = job.wait()
    assert ended.code == 0
    assert ended.err.endswith("negotiator stopped\n")
    assert "Traceback" not in ended.err
    assert list((story.folder / "run").glob("*.sock")) == []


def test_it_leaves_when_it_was_told_to_and_nothing_is_left_to_do(grn: Shell, story: Story) -> None:
    job = story.start(*GRN, "start", "--virtual", "1x64GiB", "--idle-exit", "1.5")
    wait_for(lambda: "Managing GPUs" in job.err, "it to be ready")
    (path,) = (story.folder / "run").glob("*.sock")
    with Client(path) as client:
        lease = client.lease()["lease"]
        assert client.ask("done", lease=lease, outcome="ok")["ok"]

    ended = job.wait()

    assert ended.code == 0
    assert "reason=idle" in ended.err


def test_the_banner_names_socket_and_state(grn: Shell, story: Story) -> None:
    job = story.start(*GRN, "start", "--virtual", "1x1GiB")
    wait_for(lambda: "Managing GPUs" in job.err, "it to be ready")

    assert f"socket {story.folder}/run/{os.getuid()}.sock" in job.err
    assert f"state  {story.folder}/state" in job.err
    assert grn("stop").code == 0
    assert job.wait().code == 0


def test_only_some_gpus_are_managed_when_asked(grn: Shell) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "1"}
    assert grn("start", "--virtual", "2x1GiB", "--background", env=env).code == 0

    gpus = json.loads(grn("gpus", "--json").out)["gpus"]

    assert [gpu["index"] for gpu in gpus] == [1]
    grn("stop")


def test_what_lies_in_the_current_folder_is_not_run_by_a_service(story: Story) -> None:
    """It may be a colleague's, and a service of root would run it as root."""
    for name in ("asyncio", "json", "random", "socket", "sqlite3", "struct", "grn"):
        story.write(f"{name}.py", "open('planted', 'w')\nraise SystemExit('planted')\n")
    # As the installed `grn` does it: that, too, does not look into the current folder.
    grn = (
        sys.executable,
        "-c",
        "import sys; del sys.path[0]; from grn.cli.main import main; main()",
    )

    story.start(*grn, "start", "--virtual", "1x256MiB", "--background").ended_well()
    story.start(*grn, "submit", "--name", "x", "--", "true").ended_well()
    story.start(*grn, "wait", "1").ended_well()
    story.start(*grn, "queue", "stop").ended_well()
    story.start(*grn, "stop").ended_well()

    assert not (story.folder / "planted").exists()
