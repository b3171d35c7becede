"""Following a live negotiator: all, then changes; slow readers, many readers, nobody disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grn.daemon import publisher
from grn.negotiator import subscribers
from tests.harness import wait_for
from tests.negotiator.live import Client, Inside, a_wish, inside


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path) as made:
        yield made


def until(client: Client, name: str) -> dict[str, Any]:
    """Return the next change that has rows of this name."""
    while True:
        heard = client.hear()
        assert heard is not None
        if heard.get(name):
            return heard


def test_a_follower_gets_all_there_is_and_then_what_changes(server: Inside) -> None:
    with server.client() as client, server.client() as follower:
        held = client.lease(label="first")
        first = follower.ask("follow")
        second = client.lease(label="second")
        granted = until(follower, "leases")
        while "label" not in granted["leases"][-1]:  # what the first one uses may come before
            granted = until(follower, "leases")
        client.ask("done", lease=second["lease"], outcome="oom")
        ended = until(follower, "ended")
        client.ask("done", lease=held["lease"], outcome="ok")

    assert (first["ev"], granted["ev"]) == ("snapshot", "changes")
    assert [row["label"] for row in first["leases"]] == ["first"]
    assert (first["version"], len(first["gpus"]), first["waiting"]) == ("9.9", 2, [])
    assert granted["leases"][-1]["label"] == "second"
    assert [(row["id"], row["outcome"]) for row in ended["ended"]] == [(second["lease"], "oom")]
    assert ended["gone"] == [second["lease"]]


def test_who_waits_is_told_with_the_reason(server: Inside) -> None:
    with server.client() as client, server.client() as follower:
        follower.ask("follow")
        for _ in range(2):
            client.lease(exclusive=True, command=True)
        client.say(a_wish(exclusive=True, command=True, label="late"))
        (row,) = until(follower, "waiting")["waiting"]

    assert (row["label"], row["reason"]) == ("late", "no-empty-gpu")
    assert row["why"]


def test_a_second_follow_on_one_connection_is_refused(server: Inside) -> None:
    with server.client() as follower:
        follower.ask("follow")
        error = follower.say({"op": "follow", "id": 77}).hear()
        while error is not None and "error" not in error:
            error = follower.hear()

    assert error is not None
    assert error["id"] == 77


def test_one_user_cannot_follow_without_end(server: Inside) -> None:
    clients = [server.client() for _ in range(publisher.MAX_PER_USER + 1)]
    answers = [client.ask("follow") for client in clients]
    for client in clients:
        client.sock.close()

    assert [answer.get("ev") for answer in answers[:-1]] == ["snapshot"] * publisher.MAX_PER_USER
    assert "follow already" in answers[-1]["error"]["message"]


def test_nothing_is_kept_once_nobody_follows(server: Inside) -> None:
    with server.client() as follower:
        follower.ask("follow")
        assert server.call(lambda: len(server.server.subscribers)) == 1

    wait_for(lambda: server.call(lambda: len(server.server.subscribers)) == 0, "the end")
    assert server.call(lambda: server.server.subscribers.feed) is None


def test_a_follower_does_not_keep_an_idle_negotiator_alive(server: Inside) -> None:
    with server.client() as follower:
        follower.ask("follow")

        assert server.call(lambda: server.server.is_idle)


def test_who_reads_too_slowly_gets_all_of_it_again_and_no_endless_rest(server: Inside) -> None:
    with server.client() as client, server.client() as slow:
        slow.ask("follow")
        for _ in range(1000):
            client.say(a_wish(gpus=2, exclusive=True, command=True, label="x" * 200)).hear()
        wait_for(lambda: server.call(lambda: _is_behind(server)), "a reader that is behind")
        heard = slow.hear()
        while heard is not None and heard["ev"] != "snapshot":
            heard = slow.hear()
        told = {row["id"] for row in heard["waiting"]} if heard else set()
        while heard is not None and heard.get("more"):
            assert len(heard["waiting"]) <= subscribers.PART_ROWS
            heard = slow.hear()
            told |= {row["id"] for row in heard["waiting"]} if heard else set()

    assert len(told) == 999


def _is_behind(server: Inside) -> bool:
    return any(place.is_behind for place in server.server.subscribers.publisher.positions.values())


def test_samples_of_gpus_and_of_a_lease_are_offered(server: Inside) -> None:
    with server.client() as client:
        held = client.lease()
        key = held["lease"]
        curve = wait_for(lambda: client.ask("samples", lease=key).get("curve"), "a sample")
        recent = client.ask("samples")["samples"]
        day = client.ask("samples", span="day")["samples"]
        client.ask("done", lease=key, outcome="ok")
        unknown = client.ask("samples", lease="00000000")

    assert (curve["id"], curve["step_s"]) == (key, 1.0)
    assert [row["index"] for row in recent] == [0, 1]
    assert len(recent[0]["used_bytes"]) == len(recent[0]["load_pct"]) >= 1
    assert day[0]["step_s"] == 60
    assert unknown["error"]["code"] == "UnknownJob"
