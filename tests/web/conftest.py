"""A page with a real server, and a real browser where there is one."""

from __future__ import annotations

import http.client
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import Negotiators
from tests.harness import DEADLINE_S, GRN, Job, Story, wait_for
from tests.queue.daemon import start_daemon

# The first has no windows and panels of its own, which take a third of the processor time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
HINT = "NO BROWSER TESTS: install chromium (on Debian: apt-get install chromium-headless-shell)"


@dataclass
class Server:
    """`grn web`, as one talks to it without a browser."""

    job: Job
    port: int
    link: str
    session: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Send one request; return status, JSON (or bytes) and headers."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        said = {"Authorization": f"Bearer {self.session}"} if self.session else {}
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body)
        line.request(method, path, data, {name: value for name, value in said.items() if value})
        answer = line.getresponse()
        raw = answer.read()
        line.close()
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        found = {name.lower(): value for name, value in answer.headers.items()}
        return answer.status, json.loads(raw) if is_json else raw, found

    def unlock(self) -> None:
        """Use the link up."""
        link = self.link.partition("#link=")[2]
        _, answer, _ = self.request("POST", "/api/session", {"link": link})
        self.session = answer["session"]


@pytest.fixture
def server(story: Story, negotiator: Negotiators) -> Server:
    """Start a negotiator and a page."""
    negotiator("virtual:2x1GiB")
    job = story.start(*GRN, "web", cwd=story.folder)
    link = wait_for(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/#link=\S+", job.out), "a link")
    return Server(job, int(link[1]), link[0])


@pytest.fixture
def submit(story: Story) -> Iterator[Callable[..., int]]:
    """Submit a job: `submit("--hold", "--", "true")` returns its id."""
    started: list[object] = []

    def submit(*words: str) -> int:
        if not started:
            started.append(start_daemon(story, "queue"))
        return int(story.start(*GRN, "submit", *words).ended_well().out.split()[-1])

    yield submit
    story.start(*GRN, "cancel", "--all", "--now").wait()
    story.start(*GRN, "queue", "stop").wait()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Start a browser, or skip with a loud line.

    For one module only: its driver keeps an event loop running in this thread, and others need one.
    """
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="NO BROWSER TESTS: no playwright"
    )
    if found is None:
        pytest.skip(HINT)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox"], timeout=DEADLINE_S * 1000
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any, server: Server) -> Iterator[Any]:
    """Open the link; a script error or a refused resource fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    opened.set_default_timeout(DEADLINE_S * 1000)
    opened.goto(server.link)
    yield opened
    context.close()
    # What fails when the server or the queue is gone is none of the page's faults.
    assert [error for error in errors if "net::ERR" not in error and "409 (" not in error] == []
