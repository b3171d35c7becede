"""What followers are told: a picture kept by changes alone is the one a newcomer is shown."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from grn.model.job import Outcome, tag_of
from grn.model.units import GiB
from grn.negotiator.queries import views
from grn.negotiator.queries.change_feed import ChangeFeed
from grn.negotiator.queries.history import History
from tests.builders import Story, a_profile, a_use, some_gpus

Row = dict[str, Any]


class Kept:
    """A picture kept by somebody who was told of changes alone, as docs/protocol.md says."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, Row]] = {"gpus": {}, "leases": {}, "waiting": {}}

    def hear(self, news: Row) -> None:
        for lease_id in news.get("gone", []):
            self.parts["leases"].pop(lease_id, None)
            self.parts["waiting"].pop(lease_id, None)
        for name, key in (("gpus", "uuid"), ("leases", "id"), ("waiting", "id")):
            for row in news.get(name, []):
                self.parts[name].setdefault(row[key], {}).update(row)
                if name == "leases":
                    self.parts["waiting"].pop(row["id"], None)

    def same_as(self, whole: Row) -> None:
        for name, key in (("gpus", "uuid"), ("leases", "id"), ("waiting", "id")):
            assert self.parts[name] == {row[key]: row for row in whole[name]}, name


def test_changes_alone_keep_a_picture_true_whatever_happens() -> None:
    chance = random.Random(7)
    profile = a_profile(2 * GiB, job_type="known")
    story, history = Story(some_gpus(3), profiles=(profile,)), History()
    picture, kept = ChangeFeed(story.engine.view, history, 0.0), Kept()
    for step in range(400):
        _anything(story, history, chance, step)
        if chance.random() < 0.7:
            kept.hear(picture.changes(story.at))
            kept.same_as(picture.whole())

    assert history.ends


def _anything(story: Story, history: History, chance: random.Random, step: int) -> None:
    held = [key for key, lease in story.leases.items() if lease.id in story.engine.view.leases]
    waiting = [one.request.key for one in story.engine.view.waitlist]
    what = chance.choice(["ask", "ask", "end", "look", "give up", "die"])
    if what == "ask":
        size = chance.choice([None, GiB, 20 * GiB])
        kind = chance.choice(["known", "x.py", "y.py"])
        story.asks(f"k{step}", mem_bytes=size, job_type=kind, label=kind, pid=1000 + step)
    elif what == "give up" and waiting:
        story.gives_up(chance.choice(waiting))
    elif what in ("end", "die") and held:
        key = chance.choice(held)
        lease = story.engine.view.leases[story.leases[key].id]
        history.ended(lease, story.at, Outcome.OK, None)
        story.memory.pop(key, None)
        story.ends(key) if what == "end" else story.dies(key)
    else:
        for key in held:
            story.memory[key] = chance.choice([GiB // 2, GiB])
        story.looks()


def test_when_nothing_happens_nothing_is_told_however_long_it_takes() -> None:
    story, history = Story(), History()
    story.asks("a", mem_bytes=20 * GiB)
    story.asks("b", mem_bytes=20 * GiB)
    picture = ChangeFeed(story.engine.view, history, 0.0)
    picture.changes(story.at)

    assert picture.changes(story.at + 100) == {}


def test_only_the_keys_that_changed_are_told() -> None:
    story, history = Story(), History()
    story.asks("a", mem_bytes=2 * GiB)
    picture = ChangeFeed(story.engine.view, history, 0.0)
    picture.changes(story.at)
    story.memory["a"] = GiB
    story.looks()

    news = picture.changes(story.at)

    assert news["leases"] == [{"id": "lease-a", "used_bytes": GiB, "peak_bytes": GiB}]
    assert news["gpus"] == [{"uuid": "GPU-0", "used_bytes": GiB}]
    assert "waiting" not in news


def test_a_grant_keeps_the_id_and_an_end_tells_how() -> None:
    story, history = Story(), History()
    story.asks("a", mem_bytes=20 * GiB)
    story.asks("b", mem_bytes=20 * GiB)
    picture = ChangeFeed(story.engine.view, history, 1000.0)
    picture.changes(story.at)
    history.ended(story.leases["a"], story.at, Outcome.OUT_OF_MEMORY, 3 * GiB)
    story.ends("a")

    news = picture.changes(story.at)

    (granted,), (ended,) = news["leases"], news["ended"]
    assert (granted["id"], granted["state"], granted["since_at"]) == ("lease-b", "running", 1001.0)
    assert (ended.id, ended.outcome, ended.peak_bytes) == ("lease-a", "oom", 3 * GiB)
    assert news["gone"] == ["lease-a"]


def test_the_reason_of_who_waits_follows_what_happens() -> None:
    story, history = Story(), History()
    story.asks("a", mem_bytes=20 * GiB)
    story.asks("b", mem_bytes=20 * GiB)
    picture = ChangeFeed(story.engine.view, history, 0.0)
    before = dict(picture.changes(story.at)["waiting"][0])
    story.strangers[0] = [a_use(999, 3 * GiB)]
    story.looks()

    (after,) = picture.changes(story.at)["waiting"]

    assert before["reason"] == "no-room"
    assert "1.0 GiB" in after["why"]
    assert after["why"] != before["why"]


@pytest.mark.parametrize("types", [1, 200])
def test_a_crowd_is_asked_for_its_reasons_bit_by_bit_until_all_are_known(types: int) -> None:
    story, history = Story(), History()
    story.asks("a", mem_bytes=23 * GiB)
    for number in range(300):
        kind = f"t{number % types}.py"
        story.asks(f"k{number}", mem_bytes=20 * GiB, job_type=kind, label=kind)
    picture = ChangeFeed(story.engine.view, history, 0.0)
    for _ in range(10):
        picture.changes(story.at)

    assert {row["reason"] for row in picture.whole()["waiting"]} == {"no-room"}


def test_turns_sort_as_status_does() -> None:
    story, history = Story(), History()
    story.asks("a", mem_bytes=23 * GiB)
    for number, (priority, attempt) in enumerate([(0, 0), (5, 0), (0, 1), (-3, 0)]):
        story.asks(f"k{number}", mem_bytes=20 * GiB, priority=priority, attempt=attempt)
    picture = ChangeFeed(story.engine.view, history, 0.0)
    picture.changes(story.at)

    told = sorted(picture.whole()["waiting"], key=lambda row: row["turn"])

    status = views.status(story.engine.view, story.at)["waiting"]
    assert [row["id"] for row in told] == [row["id"] for row in status]


def test_what_is_told_is_harmless_json_without_the_key() -> None:
    story, history = Story(), History()
    story.asks("secret-key", mem_bytes=GiB, label="\x1b[31m", job_type="\u202e")
    picture = ChangeFeed(story.engine.view, history, 0.0)
    news = json.dumps(picture.changes(story.at) | picture.whole())
    (row,) = picture.whole()["leases"]

    assert (row["label"], row["type"]) == ("\\x1b[31m", "\\u202e")
    assert row["tag"] == tag_of("secret-key")
    assert '"secret-key"' not in news
