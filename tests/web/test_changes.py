"""From one picture of the machine to the next."""

from __future__ import annotations

import random

from grn.cli.web.diff import LISTS, changes


def a_picture(**changed):
    empty = {name: [] for name in LISTS}
    return {**empty, "counts": {"running": 0}, "trouble": "", **changed}


def applied(shown, said):
    """Do what the page does with what it is told."""
    if said.get("whole"):
        return {name: value for name, value in said.items() if name != "whole"}
    result = dict(shown)
    for name, value in said.items():
        if name not in LISTS:
            result[name] = value
            continue
        key = LISTS[name]
        rows = {row[key]: row for row in shown[name]} | {row[key]: row for row in value["set"]}
        result[name] = [rows[one] for one in value.get("order", rows)]
    return result


def test_the_first_picture_is_whole():
    assert changes(None, a_picture()) == {"whole": True, **a_picture()}


def test_nothing_is_said_when_nothing_changed():
    assert changes(a_picture(), a_picture()) == {}


def test_only_the_row_that_changed_is_said():
    before = a_picture(leases=[{"id": "a", "used": 1}, {"id": "b", "used": 1}])
    after = a_picture(leases=[{"id": "a", "used": 1}, {"id": "b", "used": 2}])

    assert changes(before, after) == {"leases": {"set": [{"id": "b", "used": 2}]}}


def test_a_row_that_is_gone_is_left_out_of_the_order():
    before = a_picture(leases=[{"id": "a"}, {"id": "b"}])

    assert changes(before, a_picture(leases=[{"id": "b"}])) == {
        "leases": {"set": [], "order": ["b"]}
    }


def test_a_page_that_is_told_changes_shows_what_is_so():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    shown, before = {}, None
    for _ in range(300):
        after = a_picture(trouble=dice.choice(["", "full"]))
        for name, key in LISTS.items():
            ids = dice.sample(range(6), dice.randrange(6))
            after[name] = [{key: one, "value": dice.randrange(3)} for one in ids]
        shown = applied(shown, changes(before, after))
        before = after
        assert shown == after
