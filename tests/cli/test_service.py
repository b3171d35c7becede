"""`grn service`: a unit for systemd where it answers, else a line for cron."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from grn.cli.commands.service import UNIT_NAME, cron_line, unit_path, unit_text
from grn.proc.spawn import own_module
from tests.cli.live import Shell
from tests.harness import Ended, Story
from tests.queue.daemon import a_queue

FAKE = """#!/bin/sh
echo "$@" >> "$STORY/systemctl"
case "$*" in *"$FAILS_ON"*) echo "no such luck" >&2; exit 5;; esac
exit 0
"""


@pytest.fixture
def bin(story: Story) -> Path:
    """Make a folder with nothing but what a shell needs, to be the PATH."""
    folder = story.folder / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    return folder


@pytest.fixture
def systemctl(bin: Path) -> Path:
    """Put a systemctl there that writes down what it is told."""
    path = bin / "systemctl"
    path.write_text(FAKE)
    path.chmod(0o755)
    return path


def service(story: Story, what: str, **env: str) -> Ended:
    here = {"PATH": str(story.folder / "bin"), "XDG_CONFIG_HOME": str(story.folder / "config")}
    return Shell(story)("service", what, env={"FAILS_ON": "nothing", **here, **env})


def told(story: Story) -> list[str]:
    path = story.folder / "systemctl"
    return path.read_text().splitlines() if path.exists() else []


def unit_of(story: Story) -> Path:
    return story.folder / "config" / "systemd" / "user" / UNIT_NAME


def test_without_systemd_a_line_for_cron_is_printed(story: Story, bin: Path) -> None:
    ended = service(story, "install")
    assert ended.code == 1
    assert "systemd does not answer" in ended.out
    line = ended.out.splitlines()[-1]
    assert line.startswith("@reboot ")
    assert shlex.join(own_module("grn.queue")) in line
    assert f"GRN_STATE_DIR={story.folder}/state" in line
    assert not unit_of(story).exists()


def test_a_systemd_that_does_not_answer_for_this_user_counts_as_none(
    story: Story, systemctl: Path
) -> None:
    ended = service(story, "install", FAILS_ON="show-environment")
    assert ended.code == 1
    assert "@reboot" in ended.out
    assert told(story) == ["--user show-environment"]


def test_install_writes_the_unit_and_enables_it(story: Story, systemctl: Path) -> None:
    ended = service(story, "install")
    assert ended.code == 0, ended
    assert f"installed {unit_of(story)}" in ended.out
    assert "loginctl enable-linger" in ended.out
    assert told(story) == [
        "--user show-environment", "--user daemon-reload", f"--user enable --now {UNIT_NAME}",
    ]  # fmt: skip
    text = unit_of(story).read_text()
    (start,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    assert shlex.split(start.removeprefix("ExecStart=")) == own_module("grn.queue")
    assert f"Environment=GRN_RUNTIME_DIR={story.folder}/run\n" in text
    assert "KillMode=process\n" in text, "the end of the queue must not be that of its jobs"
    assert "Restart=always\n" in text


def test_show_prints_the_unit_and_does_nothing(story: Story, systemctl: Path) -> None:
    ended = service(story, "show")
    assert ended.code == 0
    assert "[Service]" in ended.out
    assert told(story) == []
    assert not unit_of(story).exists()


def test_uninstall_takes_it_away(story: Story, systemctl: Path) -> None:
    service(story, "install")
    ended = service(story, "uninstall")
    assert ended.code == 0
    assert ended.err == f"removed {unit_of(story)}; running jobs go on\n"
    assert told(story)[-1] == f"--user disable --now {UNIT_NAME}"
    assert not unit_of(story).exists()
    ended = service(story, "uninstall")
    assert (ended.code, ended.err) == (1, f"{unit_of(story)} is not there\n")


def test_what_systemd_does_not_like_is_told(story: Story, systemctl: Path) -> None:
    ended = service(story, "install", FAILS_ON="enable")
    assert ended.code == 4
    assert ended.err.startswith(f"error: systemctl --user enable --now {UNIT_NAME}: no such luck")


def test_a_folder_that_cannot_be_written_is_named(story: Story, systemctl: Path) -> None:
    (story.folder / "config").write_text("a file")
    ended = service(story, "install")
    assert ended.code == 4
    assert ended.err.startswith(f"error: {unit_of(story)} cannot be written: Not a directory.")


def test_odd_paths_are_spelled_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRN_STATE_DIR", '/a b/50%/"q"')
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    assert 'Environment="GRN_STATE_DIR=/a b/50%%/\\"q\\""\n' in unit_text()
    words = shlex.split(cron_line().replace(r"\%", "%"))
    assert 'GRN_STATE_DIR=/a b/50%/"q"' in words
    assert '/a b/50%/"q"/queue.log' in words
    assert "%" not in cron_line().replace(r"\%", ""), "cron takes it for the end of the line"
    assert unit_path() == f"/c/systemd/user/{UNIT_NAME}"


def test_the_queue_that_runs_makes_room_for_the_one_of_systemd() -> None:
    """Else systemd starts one that finds the place taken, again and again, until it gives up."""
    with a_queue() as queue:
        folder = queue.story.folder / "bin"
        folder.mkdir()
        (folder / "systemctl").write_text(FAKE)
        (folder / "systemctl").chmod(0o755)
        queue.fine("queue", "start")
        path = f"{folder}:{os.environ['PATH']}"
        env = {"PATH": path, "XDG_CONFIG_HOME": str(queue.story.folder), "FAILS_ON": "nothing"}
        queue.fine("service", "install", env=env)
        assert not queue.is_answering()


def test_the_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    tool = "/usr/bin/systemd-analyze"
    if not os.access(tool, os.X_OK):
        pytest.skip("systemd-analyze is not here")
    path = tmp_path / UNIT_NAME
    path.write_text(unit_text())
    checked = subprocess.run(
        [tool, "--user", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert UNIT_NAME not in checked.stderr, checked.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(story: Story) -> None:
    unit = story.folder / UNIT_NAME
    unit.write_text(service(story, "show").out)
    checked = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(story.folder)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    assert UNIT_NAME not in checked.stderr
