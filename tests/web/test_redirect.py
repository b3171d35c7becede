"""`grn web --open`: the browser gets a file that only its user can read, never the link itself."""

from __future__ import annotations

import re
import signal
import stat

import pytest

from tests.harness import GRN, wait_for

BROWSER = """#!/bin/sh
printf '%s\\n' "$@" > "$ARGV_FILE.new" && mv "$ARGV_FILE.new" "$ARGV_FILE"
"""


@pytest.fixture
def opened(story, negotiator):
    """Start `grn web --open` with a browser that writes down its arguments."""
    negotiator("virtual:2x1GiB")
    browser = story.folder / "browser"
    browser.write_text(BROWSER)
    browser.chmod(0o755)
    said = story.folder / "argv"
    story.env.update(BROWSER=str(browser), ARGV_FILE=str(said))
    job = story.start(*GRN, "web", "--open", cwd=story.folder)
    wait_for(said.exists, lambda: f"a browser: {job.err}")
    (url,) = said.read_text().splitlines()
    return job, url


def file_of(story, url):
    path = url.removeprefix("file://")
    assert path.startswith(str(story.folder))
    return story.folder / path.removeprefix(f"{story.folder}/")


def test_the_link_is_in_a_file_of_the_user_and_on_no_command_line(opened, story):
    job, url = opened
    file = file_of(story, url)

    (link,) = set(re.findall(r"#link=([\w-]+)", file.read_text()))
    assert link not in url
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert link not in job.out  # the printed link stays good for another tab


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_file_ends_with_the_server(opened, story, signum):
    job, url = opened
    file = file_of(story, url)
    assert file.exists()

    job.signal(signum)
    ended = job.wait()

    assert ended.code in (0, 128 + signum)
    assert "Traceback" not in ended.err
    assert not file.exists()


def test_what_a_killed_server_left_is_removed_by_the_next(opened, story):
    job, url = opened
    job.kill()
    assert file_of(story, url).exists()

    again = story.start(*GRN, "web", "--open", cwd=story.folder)
    wait_for(lambda: not file_of(story, url).exists(), "the file to be removed")
    again.signal(signal.SIGINT)
    again.wait()


@pytest.mark.slow
def test_the_file_opens_a_session_in_a_browser_and_is_gone_then(opened, story, chromium):
    _, url = opened
    page = chromium.new_context().new_page()

    page.goto(url)

    page.wait_for_selector("section[aria-label='GPU 1']")
    assert not file_of(story, url).exists()
