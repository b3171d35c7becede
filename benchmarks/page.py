"""The page: until it can be used with a long queue and history, and what its server costs.

A browser measures the first where there is one; what the server costs is read from its own clock.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rig

from grn.client import queue
from grn.client.submit import submit_many
from grn.errors import GrnError

PAST, WAITING, ALIVE, GPUS = 10_000, 5_000, 200, 8
WATCHED_S = 20.0
GRN = str(Path(sys.executable).with_name("grn"))


def measure() -> list[rig.Figure]:
    """Measure with 10,000 jobs in history, 5,000 in the queue, and 200 that come and go."""
    with rig.negotiator(f"virtual:{GPUS}x4GiB"), _queue():
        _fill()
        with _page() as (_, link):
            figures = _opened(link)
        with _page() as (pid, link):
            figures.append(_watched(pid, link))
    return figures


def _fill() -> None:
    handles = submit_many([["true"]] * PAST, hold=True)
    queue.ask({"op": "cancel", "jobs": [handle.id for handle in handles]})
    submit_many([["true"]] * WAITING, hold=True, priority=-1)


def _opened(link: str) -> list[rig.Figure]:
    """Return the time from the link to GPUs and jobs, and to the list of all that has ended."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser = None
    if browser is None:
        return []
    with sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page()
        began = time.perf_counter()
        page.goto(link)
        page.wait_for_selector("section.card")
        page.wait_for_selector("text=200 of 5,000 jobs shown.")
        first = time.perf_counter() - began
        base = link.partition("#")[0]
        took = []
        for _ in range(3):
            page.goto(f"{base}#/now")
            began = time.perf_counter()
            page.goto(f"{base}#/history")
            page.wait_for_selector("text=200 of 10,000 jobs shown.")
            took.append(time.perf_counter() - began)
        grown = _grown(page, base)
        page.context.browser.close()
    return [
        rig.Figure("memory of the page, watched for 40 s", grown[1], grown[0], "MB", 1.2),
        rig.Figure("link to a usable page with 5,000 queued and 10,000 ended", first, 1.0, "s"),
        rig.Figure("history of 10,000 jobs opened", statistics.median(took), 1.0, "s"),
    ]


def _grown(page: Any, base: str) -> tuple[float, float]:
    """Return what the page holds after ten seconds of changes, and after fifty."""
    page.goto(f"{base}#/now")
    submit_many([["sleep", "3"]] * ALIVE, mem="1GiB", type="sleeper")
    debugger = page.context.new_cdp_session(page)
    held = []
    for pause_s in (10, 40):
        page.wait_for_timeout(pause_s * 1000)
        debugger.send("HeapProfiler.collectGarbage")
        held.append(debugger.send("Runtime.getHeapUsage")["usedSize"] / 1e6)
    return held[0], held[1]


def _session(link: str) -> str:
    line = http.client.HTTPConnection("127.0.0.1", _port(link))
    line.request("POST", "/api/session", json.dumps({"link": link.partition("#link=")[2]}))
    return str(json.load(line.getresponse())["session"])


def _watched(pid: int, link: str) -> rig.Figure:
    """Watch the stream while jobs come and go."""
    session = _session(link)
    stop = threading.Event()
    heard: list[int] = []

    def listen() -> None:
        line = http.client.HTTPConnection("127.0.0.1", _port(link), timeout=60)
        line.request("GET", "/api/stream", headers={"Authorization": f"Bearer {session}"})
        answer = line.getresponse()
        while not stop.is_set():
            heard.append(len(answer.readline()))
        line.close()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    submit_many([["sleep", "3"]] * ALIVE, mem="1GiB", type="sleeper")  # some 24 at once
    before = _cpu_s(pid)
    time.sleep(WATCHED_S)
    spent = _cpu_s(pid) - before
    stop.set()
    if len(heard) < WATCHED_S:
        raise SystemExit("the page's stream was silent: nothing was measured")
    share = 100 * spent / WATCHED_S
    return rig.Figure("server while 200 jobs come and go", share, 5.0, "%")


@contextlib.contextmanager
def _page() -> Iterator[tuple[int, str]]:
    with tempfile.TemporaryDirectory(prefix="grn-bench-") as folder:
        process = subprocess.Popen(
            [GRN, "web"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, text=True
        )
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def _queue() -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(GrnError):
            rows = queue.ask({"op": "list", "which": "alive", "most": 100_000})["jobs"]
            queue.ask({"op": "cancel", "jobs": [row["id"] for row in rows], "now": True})
            queue.ask({"op": "stop"}, may_start=False)


def _port(link: str) -> int:
    found = re.search(r":(\d+)/", link)
    assert found is not None
    return int(found[1])


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    rig.main("page", measure)
