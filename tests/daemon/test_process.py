"""Logs of daemons do not grow without end, and no line of one is longer than it may be."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from grn.client import queue
from grn.client.daemons import start_aside
from grn.client.negotiator import ask_once
from grn.daemon.process import MAX_LINE_CHARS, MAX_LOG_BYTES
from grn.proc.spawn import own_module
from tests.harness import Story, wait_for

WRITER = """
    import logging, subprocess, sys
    from grn.daemon import process as daemon_log

    daemon_log.log_to_stderr(sys.argv[1])
    for number in range(10_000):
        logging.info("number=%d type=%s", number, "x" * 100_000)
    subprocess.run(["/bin/sh", "-c", "echo a child >&2"], check=True)
    raise ValueError("a crash")
"""


def test_a_full_log_is_kept_once_and_begun_anew(story: Story) -> None:
    path, script = story.folder / "service.log", story.write("writer.py", WRITER)
    with path.open("ab") as log:
        ended = story.start(sys.executable, script, path, stderr=log).wait()

    text = path.read_text()
    before = Path(f"{path}.1").read_text()
    assert ended.code == 1
    assert len(text) < MAX_LOG_BYTES <= len(before) < MAX_LOG_BYTES + 2 * MAX_LINE_CHARS
    assert "a child\n" in text
    assert text.endswith("ValueError: a crash\n")
    numbers = [int(found) for found in re.findall(r"number=(\d+)", before + text)]
    assert numbers == list(range(numbers[0], 10_000))
    assert max(map(len, text.splitlines())) < MAX_LINE_CHARS + 100


def test_what_stderr_goes_to_is_left_alone_unless_it_is_the_log(story: Story) -> None:
    path = story.folder / "mine.txt"
    path.touch()
    os.truncate(path, MAX_LOG_BYTES)
    script = story.write("writer.py", WRITER.replace("sys.argv[1]", "None"))
    with path.open("ab") as log:
        story.start(sys.executable, script, stderr=log).wait()

    assert path.stat().st_size > 2 * MAX_LOG_BYTES
    assert not Path(f"{path}.1").exists()


@pytest.mark.parametrize("service", ["negotiator", "queue"])
def test_a_service_in_the_background_keeps_its_log_small(
    story: Story, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in story.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GRN_GPUS", "virtual:1x1GiB")
    path = story.folder / "state" / f"{service}.log"
    path.parent.mkdir(mode=0o700)
    path.touch()
    os.truncate(path, MAX_LOG_BYTES)

    started = start_aside(service, own_module(f"grn.{service}"), is_detached=True)

    wait_for(lambda: path.stat().st_size < MAX_LOG_BYTES, "the log to be begun anew")
    assert Path(f"{path}.1").stat().st_size >= MAX_LOG_BYTES
    if service == "queue":
        queue.ask({"op": "stop"}, may_start=False)
    else:
        ask_once({"op": "stop"})
    assert started.process.wait() == 0
