"""Nodes of sites on the page: their GPUs, the jobs there, and what is said of one out of sight."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import GRN, wait_for
from tests.sites.nodes import Home, a_home
from tests.web.conftest import Server

pytestmark = pytest.mark.slow


@pytest.fixture
def home() -> Iterator[Home]:
    with a_home("gpu2") as made:
        made.fine("queue", "start")
        made.node_is("gpu2", "up")
        yield made


@pytest.fixture
def server(home: Home) -> Server:
    job = home.story.start(*GRN, "web")
    link = wait_for(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/#link=\S+", job.out), "a link")
    return Server(job, int(link[1]), link[0])


def test_a_node_is_shown_with_its_gpus_its_jobs_and_its_absence(home: Home, page: Any) -> None:
    home.gate("page")
    job = home.sh("gate page", "--at", "gpu2", "--type", "my type")
    page.wait_for_selector("h2:has-text('gpu2 (lab)')")
    page.wait_for_selector("section[aria-label='GPU 1 of gpu2']")
    page.wait_for_selector(f"section[aria-label='GPU 0 of gpu2'] a[href='#/job/{job}']")
    row = page.wait_for_selector(f"tr:has(a[data-key='job-{job}'])")
    assert "gpu2" in row.inner_text()

    home.nodes["gpu2"].cut()
    page.wait_for_selector("h2:has-text('last heard of')")
    page.wait_for_selector(f"tr:has(a[data-key='job-{job}']):has-text('gpu2 not heard of')")
    page.goto(page.url.partition("#")[0] + f"#/job/{job}")
    page.wait_for_selector("p:has-text('gpu2 not heard of')")
    page.wait_for_selector("dd:text-is('gpu2')")

    home.gate("page").open()
    home.nodes["gpu2"].join()
    page.wait_for_selector("h1:has-text('ok')")
    page.goto(page.url.partition("#")[0] + "#/timeline")
    page.wait_for_selector("svg text:has-text('gpu2:0')")
    page.goto(page.url.partition("#")[0] + "#/history")
    page.wait_for_selector("th:has-text('Where')")
