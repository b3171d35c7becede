"""Start times and daily hours, in zones whose clocks change."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from grn.errors import UsageError
from grn.model.windows import (
    Hours,
    StartWindow,
    parse_hours,
    parse_moment,
    show_moment,
    show_span,
)

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = Hours(20 * 60, 8 * 60)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def spelled(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, BERLIN):%Y-%m-%d %H:%M}"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("22:00", "2026-11-18 22:00"),
        ("9:00", "2026-11-19 09:00"),
        ("12:00", "2026-11-19 12:00"),  # it is 12:00 now: the next
        ("24:00", "2026-11-19 00:00"),
        ("now", "2026-11-18 12:00"),
        ("now+2h", "2026-11-18 14:00"),
        ("now + 90m", None),
        ("now +90m", "2026-11-18 13:30"),
        ("tomorrow", "2026-11-19 00:00"),
        ("Tomorrow 9:00", "2026-11-19 09:00"),
        ("today 9:00", "2026-11-18 09:00"),
        ("2030-01-31 9:00", "2030-01-31 09:00"),
        ("2030-01-31T09:00", "2030-01-31 09:00"),
        ("2030-01-31", "2030-01-31 00:00"),
        ("2030-02-31", None),
        ("2030-01-31 25:00", None),
        ("25:00", None),
        ("now+2", None),
        ("now+-2h", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_a_moment_is_read_or_refused(text: str, meant: str | None) -> None:
    now = at("2026-11-18 12:00")
    if meant is None:
        with pytest.raises(UsageError, match="is not a time"):
            parse_moment(text, now, BERLIN)
    else:
        assert spelled(parse_moment(text, now, BERLIN)) == meant


@pytest.mark.parametrize("text", ["20:00", "20:00-", "20-8", "20:00-25:00", "x", "-1:00-2:00"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a range of hours"):
        parse_hours(text)


@pytest.mark.parametrize("text", ["20:00-20:00", "0:00-0:00", "24:00-0:00"])
def test_a_window_that_never_opens_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="never opens"):
        parse_hours(text)


@pytest.mark.parametrize(
    ("clock", "opens"),
    [
        ("2026-11-18 19:59", "2026-11-18 20:00"),
        ("2026-11-18 20:00", "2026-11-18 20:00"),
        ("2026-11-18 23:00", "2026-11-18 23:00"),
        ("2026-11-19 07:59", "2026-11-19 07:59"),
        ("2026-11-19 08:00", "2026-11-19 20:00"),
    ],
)
def test_hours_reach_into_the_next_day(clock: str, opens: str) -> None:
    assert spelled(StartWindow(0, NIGHT).next_open(at(clock), BERLIN)) == opens


def test_a_window_opens_within_its_hours_after_its_first_moment() -> None:
    window = StartWindow(at("2026-11-18 10:00"), NIGHT)

    assert spelled(window.next_open(at("2026-11-17 21:00"), BERLIN)) == "2026-11-18 20:00"
    assert window.next_change(at("2026-11-17 21:00"), BERLIN) == at("2026-11-18 10:00")


def test_hours_that_a_change_of_clocks_skips_open_the_next_day() -> None:
    hours = parse_hours("2:15-2:45")  # on 2026-03-29 the clock goes from 2:00 to 3:00

    opens = StartWindow(0, hours).next_open(at("2026-03-28 03:00"), BERLIN)
    assert spelled(opens) == "2026-03-30 02:15"


@pytest.mark.parametrize("day", ["2026-03-28", "2026-10-24"])  # clocks change in that night
def test_a_window_over_a_change_of_clocks_opens_and_closes_once(day: str) -> None:
    clock, seen = at(f"{day} 12:00"), []
    for _ in range(4):
        clock = NIGHT.next_change(clock, BERLIN)
        seen.append((spelled(clock)[-5:], NIGHT.is_open(clock, BERLIN)))

    assert seen == [("20:00", True), ("08:00", False)] * 2


def test_a_whole_day_ends_at_midnight() -> None:
    assert parse_hours("8:00-24:00").is_open(at("2026-11-18 23:59"), BERLIN)
    assert not parse_hours("8:00-24:00").is_open(at("2026-11-18 00:01"), BERLIN)


def test_a_moment_is_shown_with_its_day_unless_it_is_today() -> None:
    now = at("2026-11-18 12:00")

    assert show_moment(at("2026-11-18 22:00"), now, BERLIN) == "22:00"
    assert show_moment(at("2026-11-19 09:00"), now, BERLIN) == "09:00 tomorrow"
    assert show_moment(at("2026-12-01 09:00"), now, BERLIN) == "09:00 on Tue 2026-12-01"


def test_a_time_is_shown_with_one_day_where_both_are_of_that_day() -> None:
    now = at("2026-11-18 12:00")

    assert show_span(at("2026-11-18 13:00"), at("2026-11-18 14:00"), now, BERLIN) == (
        "from 13:00 to 14:00"
    )
    assert show_span(at("2026-11-19 09:00"), at("2026-11-19 13:00"), now, BERLIN) == (
        "from 09:00 to 13:00 tomorrow"
    )
    assert show_span(at("2026-11-19 22:00"), at("2026-11-20 06:00"), now, BERLIN) == (
        "from 22:00 tomorrow to 06:00 on Fri 2026-11-20"
    )
