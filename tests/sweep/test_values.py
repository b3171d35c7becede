"""Names of points: readable, short, and never the same for two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from grn.errors import UsageError
from grn.sweep.values import LONGEST, fingerprint, folder_name, sweep_name

POINTS = some.dictionaries(some.sampled_from(["lr", "bs", "x"]), some.text(max_size=60), min_size=1)


def test_a_plain_point_shows_whole() -> None:
    assert folder_name({"lr": "1e-3", "bs": "32"}) == "lr=1e-3,bs=32"
    assert folder_name({"lr": 0.001, "bs": 32}) == "lr=0.001,bs=32"


def test_what_cannot_show_gets_a_mark() -> None:
    name = folder_name({"path": "a/b c"})
    assert name.startswith("path=a_b_c~")
    assert folder_name({"path": "a_b_c"}) == "path=a_b_c"


def test_separators_inside_values_do_not_confuse() -> None:
    assert folder_name({"a": "1,b=2"}) != folder_name({"a": "1", "b": "2"})


@given(POINTS, POINTS)
def test_two_points_never_share_a_name(one: dict[str, str], other: dict[str, str]) -> None:
    if list(one.items()) != list(other.items()) and one != other:
        assert folder_name(one) != folder_name(other)
        assert fingerprint(one) != fingerprint(other)


@given(POINTS)
def test_a_name_is_a_safe_file_name(point: dict[str, str]) -> None:
    name = folder_name(point)
    assert len(name.encode()) <= LONGEST
    assert "/" not in name
    assert name.isascii()
    assert name.isprintable()
    assert name[0] not in ".-~ "


def test_a_fingerprint_does_not_depend_on_the_order() -> None:
    assert fingerprint({"a": "1", "b": "2"}) == fingerprint({"b": "2", "a": "1"})
    assert fingerprint({"a": 1}) != fingerprint({"a": "1"})
    assert fingerprint({"a": "1"}) == "050ebea97113a33c"  # kept on disk: it must never change


def test_functions_and_classes_have_names_that_stay() -> None:
    assert fingerprint({"f": len}) != fingerprint({"f": print})
    assert fingerprint({"f": dict}) == fingerprint({"f": dict})


def test_a_value_without_a_name_that_stays_is_refused() -> None:
    with pytest.raises(UsageError, match="no name that stays"):
        fingerprint({"f": object()})
    with pytest.raises(UsageError, match="cannot be told apart"):
        fingerprint({"f": {(1, 2): 3}})


def test_sweeps_of_different_commands_have_different_names() -> None:
    one, other = sweep_name("python a.py {x}", "a.py"), sweep_name("python a.py -v {x}", "a.py")
    assert one.startswith("a.py-")
    assert one != other
    assert sweep_name("\udcff", "///").startswith("sweep-")
