"""The results of a sweep as text."""

from __future__ import annotations

import pytest

from grn.cli.output.sweep_text import column, numbers_alike


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([32, 64], ["32", "64"]),
        ([0.1, 0.01], ["0.1", "0.01"]),
        ([7.0067e-05, 0.000269024], ["7.007e-05", "2.690e-04"]),
        ([0.6671234, 12.3], ["0.6671", "12.3000"]),
        ([0.5, None], ["0.5", "-"]),
        ([float("nan"), 0.25], ["nan", "0.25"]),
        ([float("inf"), 0.1234567], ["inf", "0.1235"]),
        ([0.0, 123.456789], ["0.0", "123.5"]),
    ],
)
def test_the_numbers_of_a_column_are_spelled_alike(
    values: list[float | None], shown: list[str]
) -> None:
    assert numbers_alike(values) == shown


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["8.12715e-05", "0.000163984", None], ["8.127e-05", "1.640e-04", "-"]),  # of log:1e-5..1
        (["1e-3", "0.1"], ["1e-3", "0.1"]),
        (["0001", "2"], ["0001", "2"]),
        (["adam", "1.23456"], ["adam", "1.23456"]),
        ([0.5, 0.25], ["0.5", "0.25"]),
    ],
)
def test_only_sampled_values_of_parameters_are_rounded(
    values: list[object], shown: list[str]
) -> None:
    assert column(values) == shown
