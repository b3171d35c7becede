"""How sizes and durations are read and printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.errors import BadSetting, UsageError
from grn.model.units import (
    GiB,
    KiB,
    MiB,
    TiB,
    parse_memory,
    parse_size,
    parse_time,
    short_size,
    show_coarse,
    show_cores,
    show_expected,
    show_limit,
    show_size,
    show_time,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("6GiB", 6 * GiB),
        ("6 gib", 6 * GiB),
        ("6g", 6 * GiB),
        ("6GB", 6 * 1000**3),
        ("800M", 800 * MiB),
        ("800mb", 800 * 1000**2),
        ("1.5g", 3 * GiB // 2),
        ("0.5k", 512),
        ("12kb", 12_000),
        ("1T", TiB),
        ("1tb", 1000**4),
        ("4096", 4096),
        ("4096b", 4096),
        (4096, 4096),
        ("  7 MiB ", 7 * MiB),
        ("1023TiB", 1023 * TiB),
    ],
)
def test_a_size_may_be_written_in_many_ways(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "six", "6 parsecs", "-1g", "+1g", "1e9", "1,5g", "1.g", ".5g", "1 2g", "nan", "inf",
     "0", "0.0001b", "2000TiB", "1" + "0" * 400, "9" * 5000 + "g"],
)  # fmt: skip
def test_what_is_no_size_is_said_so_with_an_example(text):
    with pytest.raises(BadSetting) as caught:
        parse_size(text)
    assert caught.value.hint


@pytest.mark.parametrize("given", ["10", " 10 ", "1.5", 10, "1048575"])
def test_a_bare_number_of_few_bytes_is_no_gpu_memory(given):
    with pytest.raises(BadSetting) as caught:
        parse_memory(given)
    assert caught.value.message == f"'{str(given).strip()}' would be {str(given).strip()} bytes."
    assert caught.value.hint == f"Did you mean {str(given).strip()}GiB?"


@pytest.mark.parametrize(
    ("given", "size_bytes"),
    [("10b", 10), ("1KiB", KiB), ("1048576", MiB), (GiB, GiB), ("6g", 6 * GiB)],
)
def test_gpu_memory_may_be_small_with_a_unit_and_bytes_if_they_are_many(given, size_bytes):
    assert parse_memory(given) == size_bytes


@given(st.text(alphabet="0123456789.,+-eE kKmMgGtTiIbB²٣\n", max_size=12) | st.text(max_size=8))
def test_any_text_is_a_size_or_a_bad_setting(text):
    try:
        assert parse_size(text) > 0
    except BadSetting:
        pass


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, "?"),
        (0, "0"),
        (1, "1 B"),
        (KiB, "1 KiB"),
        (300 * KiB, "300 KiB"),
        (MiB, "1 MiB"),
        (MiB - 1, "1 MiB"),
        (MiB - KiB, "1023 KiB"),
        (800 * MiB, "800 MiB"),
        (GiB - MiB, "1023 MiB"),
        (GiB - 1, "1.0 GiB"),
        (TiB - 1, "1.0 TiB"),
        (1 - MiB, "-1 MiB"),
        (GiB, "1.0 GiB"),
        (6 * GiB + GiB // 2, "6.5 GiB"),
        (2 * TiB, "2.0 TiB"),
        (-2 * GiB, "-2.0 GiB"),
    ],
)
def test_a_size_is_shown_for_people_and_unknown_is_not_zero(size_bytes, text):
    assert show_size(size_bytes) == text


@given(st.integers(min_value=1, max_value=1 << 49))
def test_what_is_shown_can_be_read_back_within_its_precision(size_bytes):
    assert parse_size(show_size(size_bytes)) == pytest.approx(size_bytes, rel=0.34)


@given(st.integers(min_value=1, max_value=1 << 49))
def test_no_size_is_shown_as_1024_of_a_unit(size_bytes):
    assert float(show_size(size_bytes).split()[0]) < 1024


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(None, "?"), (0, "0"), (-GiB, "0"), (512, "512B"), (MiB, "1M"), (1023 * MiB, "1023M"),
     (GiB - 1, "1.0G"), (GiB, "1.0G"), (24 * GiB, "24.0G"), (192 * GiB, "192G"),
     (TiB - GiB // 5, "1023G"), (2000 * GiB, "2.0T")],
)  # fmt: skip
def test_a_size_for_a_column_takes_five_characters_at_most(size_bytes, text):
    assert short_size(size_bytes) == text
    assert len(text) <= 5


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("90s", 90),
        ("1.5m", 90),
        ("2h", 7200),
        ("1d", 86400),
        ("2w", 14 * 86400),
        (3, 3),
        ("0.5", 0.5),
    ],
)
def test_times_are_read(text: str | float, found: float) -> None:
    assert parse_time(text) == found


@pytest.mark.parametrize("text", ["", "0", "-1s", "nan", "inf", "1e300d", "s", "3 weeks", "²s"])
def test_what_is_no_time_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="invalid time"):
        parse_time(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (-86400, "?"),  # the clock was wrong
        (-0.3, "0.0s"),
        (0, "0.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.7, "1m00s"),
        (61, "1m01s"),
        (3599, "59m59s"),
        (3599.8, "1h00m"),
        (3600, "1h00m"),
        (47 * 3600, "47h00m"),
        (50 * 3600, "2d02h"),
    ],
)
def test_a_duration_is_spelled_shortly(seconds: float | None, text: str) -> None:
    assert show_time(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.1, "0.1s"), (5, "5s"), (600, "10m"), (10800, "3h"), (172800, "2d"), (90, "1m30s")],
)
def test_a_limit_is_shown_as_people_write_it(seconds: float, text: str) -> None:
    assert show_limit(seconds) == text


@pytest.mark.parametrize(
    ("range_s", "text"),
    [
        ((0.0, 0.4), "starts soon"),
        ((0.0, 74.0), "starts in about 37s (up to 1m)"),
        ((60.0, 240.0), "starts in about 2m (1m to 4m)"),
        ((845.0, 4140.0), "starts in about 42m (14m to 1h09m)"),
        ((21600.0, 21605.0), "starts in about 6h00m"),
    ],
)
def test_an_expected_time_is_not_more_exact_than_it_can_be(
    range_s: tuple[float, float], text: str
) -> None:
    assert show_expected("starts", range_s) == text


def test_cores_are_numbers_however_many_there_are() -> None:
    assert [show_cores(cores) for cores in (0.25, 9.2, 16, 289.4)] == ["0.25", "9.2", "16", "289"]


def test_an_estimate_is_spelled_in_one_unit() -> None:
    assert [*map(show_coarse, (0.2, 8.6, 59.7, 150.0, 3590.0))] == ["0s", "9s", "1m", "2m", "1h00m"]
