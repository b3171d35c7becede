"""Listings in pages: bounded one by one, complete together, whatever happens in between."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from grn.client import negotiator as client
from grn.model.units import GiB
from grn.negotiator.queries import views
from grn.negotiator.queries.pages import MAX_ORDERS, PAGE_ROWS, PROFILE_ROWS, Pages
from tests.builders import Story, a_profile, a_run, an_engine, result_of, some_gpus

MANY = 5 * PAGE_ROWS // 2


def crowded(count: int = MANY) -> Story:
    """Return a story in which so many wait, of several types and priorities."""
    story = Story()
    story.asks("holder", is_exclusive=True)
    for number in range(count):
        story.asks(f"{number:04}", job_type=f"type {number % 7}", priority=number % 3)
    return story


def reader(
    story: Story, between: Callable[[], object] = lambda: None
) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], list[dict[str, Any]]]:
    """Return who answers as the negotiator does, and a list of the answers to be filled."""
    made, answers = Pages(story.engine.view), list[dict[str, Any]]()

    def ask(message: dict[str, Any]) -> dict[str, Any]:
        if answers:
            between()
        after = message.get("after")
        if message["op"] == "status":
            page, more = result_of(made.status(story.at, after))
            answer: dict[str, Any] = {"status": page}
        else:
            rows, more = result_of(made.why(message["name"], story.at, after))
            answer = {"why": rows}
        answers.append(answer if more is None else {**answer, "more": more})
        return copy.deepcopy(answers[-1])

    return ask, answers


def test_a_short_listing_is_one_page_without_more() -> None:
    ask, answers = reader(crowded(PAGE_ROWS))
    assert len(client.status(ask)["waiting"]) == PAGE_ROWS
    assert len(answers) == 1
    assert "more" not in answers[0]


def test_every_page_of_a_long_listing_is_bounded_and_together_they_are_all() -> None:
    story = crowded()
    ask, answers = reader(story)

    whole = client.status(ask)

    for answer in answers:
        rows = answer["status"]
        assert len(rows["waiting"]) <= PAGE_ROWS
        assert len(rows["leases"]) <= PAGE_ROWS
    assert whole == views.status(story.engine.view, story.at)
    assert [row["place"] for row in whole["waiting"]] == [*range(1, MANY + 1)]


def test_the_first_of_those_who_wait_are_found_without_sorting_all() -> None:
    story = crowded()
    expected = sorted(story.engine.view.waitlist, key=story.engine.view.turn)
    assert [one for _, one in views.in_turn(story.engine.view)] == expected


def test_nobody_who_waits_all_the_time_is_left_out_while_others_leave() -> None:
    story = crowded()
    leaving = iter(range(0, MANY, 2))

    def leave() -> None:
        for _ in range(10):
            story.gives_up(f"{next(leaving):04}")

    ask, _ = reader(story, leave)
    shown = {row["id"] for row in client.status(ask)["waiting"]}

    assert shown >= {one.request.lease for one in story.engine.view.waitlist}


def test_who_is_granted_between_two_pages_is_shown_once() -> None:
    story = crowded()
    is_first = iter([True])

    def grant() -> None:
        if next(is_first, False):
            story.ends("holder")

    ask, _ = reader(story, grant)
    whole = client.status(ask)

    ids = [row["id"] for row in (*whole["leases"], *whole["waiting"])]
    assert len(ids) == len(set(ids))
    assert set(ids) >= ids_in(story)


ASKED: dict[str, Callable[[Pages, float], Any]] = {
    "status": lambda made, at: made.status(at, None),
    "a later page": lambda made, at: made.status(at, "1.0"),
    "why": lambda made, at: made.why("lease-", at, None),
}


@pytest.mark.parametrize("asked", ASKED)
def test_who_is_there_throughout_is_shown_once_wherever_an_answer_pauses(asked: str) -> None:
    """While an answer is paused, a lease ends, some are granted, and some give up."""
    pauses, is_over = 0, False
    while not is_over:
        story = Story(some_gpus(1, 8 * GiB))
        for number in range(20):
            story.asks(f"{number:02}", mem_bytes=GiB, job_type=f"type {number}")
        pieces = ASKED[asked](Pages(story.engine.view), story.at)
        before = ids_in(story)
        is_over = len(list(islice(pieces, pauses))) < pauses
        if is_over:
            break
        leases = list(story.engine.view.leases.values())
        story.at += 1
        story.ends(leases[0].request.key)
        story.ends(leases[-1].request.key)
        for key in ("10", "19"):
            story.gives_up(key)

        shown, _ = result_of(pieces)

        rows = shown if asked == "why" else [*shown["leases"], *shown["waiting"]]
        ids = [row["id"] for row in rows]
        assert len(ids) == len(set(ids))
        assert set(ids) >= before & ids_in(story), f"after {pauses} pauses"
        assert all(row["for_s"] >= 0 for row in rows)
        pauses += 1
    assert pauses > 20, "it pauses after each row"


def ids_in(story: Story) -> set[str]:
    """Return the ids of all leases and waiting requests."""
    view = story.engine.view
    return set(view.leases) | {one.request.lease for one in view.waitlist}


def test_all_that_a_name_may_mean_comes_in_pages_too() -> None:
    story = crowded()
    ask, answers = reader(story)
    rows = client.ask_all({"op": "why", "name": "lease-"}, ask)["why"]
    assert all(len(answer["why"]) <= PAGE_ROWS for answer in answers)
    assert len(rows) == MANY + 1


def test_profiles_come_in_pages() -> None:
    learned = [a_profile(a_run(GiB), job_type=f"type {number}") for number in range(60)]
    made = Pages(an_engine(profiles=tuple(learned)).view)
    first, more = result_of(made.profiles(None, None))
    assert (len(first), more) == (PROFILE_ROWS, f"0.{PROFILE_ROWS}")
    assert len(result_of(made.profiles("type 7", None))[0]) == 1
    last, more = result_of(made.profiles(None, f"0.{2 * PROFILE_ROWS}"))
    assert (len(last), more) == (60 - 2 * PROFILE_ROWS, None)


@pytest.mark.parametrize("cursor", ["0.0", "999999999999999.0", "1.999999999999999"])
def test_a_cursor_that_leads_nowhere_is_no_harm(cursor: str) -> None:
    story = crowded()
    page, _ = result_of(Pages(story.engine.view).status(story.at, cursor))
    assert set(page) == {"leases", "waiting"}


def test_only_a_few_orders_are_kept() -> None:
    story = crowded()
    made = Pages(story.engine.view)
    for number in range(1, 4 * MAX_ORDERS):
        page, _ = result_of(made.status(story.at, f"{number}.0"))
        assert len(page["waiting"]) >= PAGE_ROWS - 1
    page, more = result_of(made.status(story.at, "1.0"))  # long forgotten
    assert more == f"{4 * MAX_ORDERS - 1}.{PAGE_ROWS}"
