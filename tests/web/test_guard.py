"""Who may talk to the page."""

from __future__ import annotations

import itertools

import pytest

from grn.cli.web.security import LOOPBACK, RequestGuard

PORT = 8642
GOOD = {"host": "127.0.0.1:8642"}


@pytest.fixture
def guard() -> RequestGuard:
    return RequestGuard(PORT)


def test_a_link_opens_one_session_and_no_more(guard):
    guard.give_link("link")

    assert guard.open_session("link", "first")
    assert not guard.open_session("link", "second")
    assert guard.knows("Bearer first")
    assert not guard.knows("Bearer second")


@pytest.mark.parametrize("link", ["", "lin", "link2", "LINK", "é", "\ud800", "\0"])
def test_what_is_no_link_opens_nothing(guard, link):
    guard.give_link("link")

    assert not guard.open_session(link, "session")
    assert not guard.knows("Bearer session")


@pytest.mark.parametrize(
    "said",
    [
        *("", "Bearer", "Bearer ", "Bearer other", "Basic session", "session", "Bearer session "),
        *("Bearer é", "Bearer \ud800", "é"),
    ],
)
def test_what_is_no_session_is_not_known(guard, said):
    guard.give_link("link")
    guard.open_session("link", "session")

    assert guard.knows("bearer session")
    assert not guard.knows(said)
    assert not guard.knows_reader(said)


def test_only_the_latest_links_are_good(guard):
    for number in range(20):
        guard.give_link(str(number))

    assert not guard.open_session("3", "a")
    assert guard.open_session("19", "b")


@pytest.mark.parametrize("name", LOOPBACK)
def test_the_names_of_this_machine_lead_here(guard, name):
    assert guard.refusal("GET", {"host": f"{name}:8642"}) == ""
    assert guard.refusal("POST", {"host": f"{name}:8642", "origin": f"http://{name}:8642"}) == ""


HOSTS = [
    "",
    "evil.example:8642",
    "127.0.0.1",
    "127.0.0.1:1",
    "localhost.evil.example:8642",
    "0.0.0.0:8642",
]
ORIGINS = ["http://evil.example", "null", "https://127.0.0.1:8642", "http://127.0.0.1:1", "file://"]
SITES = ["cross-site", "same-site"]


@pytest.mark.parametrize(("method", "host"), list(itertools.product(["GET", "POST"], HOSTS)))
def test_another_name_is_turned_away(guard, method, host):
    assert guard.refusal(method, {"host": host})


@pytest.mark.parametrize(("method", "origin"), list(itertools.product(["GET", "POST"], ORIGINS)))
def test_another_page_is_turned_away(guard, method, origin):
    assert guard.refusal(method, {**GOOD, "origin": origin})


@pytest.mark.parametrize("site", SITES)
def test_what_a_browser_says_comes_from_elsewhere_is_turned_away(guard, site):
    assert guard.refusal("POST", {**GOOD, "sec-fetch-site": site})
    assert guard.refusal("GET", {**GOOD, "sec-fetch-site": site})


def test_a_click_on_a_link_elsewhere_may_open_the_page_but_change_nothing(guard):
    click = {**GOOD, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}

    assert guard.refusal("GET", click) == ""
    assert guard.refusal("POST", click)
    assert guard.refusal("POST", {**GOOD, "sec-fetch-site": "none"})
