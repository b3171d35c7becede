"""Least squares over a few columns, with leave-one-out errors.

Plain arithmetic; the caller gives the columns their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

Column = Sequence[float]


class Regression(Struct, frozen=True):
    """A fitted line: intercept, a slope for each column, and residuals."""

    base: float
    slopes: tuple[float, ...]
    residuals: tuple[float, ...]  # positive above the line
    predicted: tuple[float, ...]  # leave-one-out residuals
    explained: float  # share of the variance, R²


def fit(columns: Sequence[Column], ys: Column) -> Regression | None:
    """Fit a line over the columns, None when they are constant or collinear."""
    count = len(ys)
    mean_y = sum(ys) / count
    means = [sum(column) / count for column in columns]
    away = [[x - mean for x in column] for column, mean in zip(columns, means, strict=True)]
    away_y = [y - mean_y for y in ys]
    inverse = _inverse([[_dot(a, b) for b in away] for a in away])
    total = _dot(away_y, away_y)
    if inverse is None or not total:
        return None
    found = _times(inverse, away, away_y)
    residuals, predicted = [], []
    for place, y in enumerate(away_y):
        point = [column[place] for column in away]
        left = y - _dot(found, point)
        pull = 1 / count + _dot(point, [_dot(row, point) for row in inverse])
        residuals.append(left)
        predicted.append(left / (1 - pull) if pull < 1 - 1e-9 else math.inf)
    explained = 1 - _dot(residuals, residuals) / total
    return Regression(
        mean_y - _dot(found, means), tuple(found), tuple(residuals), tuple(predicted), explained
    )


def slopes(away: Sequence[Column], away_y: Column, ridge: float) -> list[float] | None:
    """Return a slope for each centred column, shrunk towards 0 by `ridge`."""
    square = [[_dot(a, b) + ridge * (a is b) for b in away] for a in away]
    inverse = _inverse(square)
    return None if inverse is None else _times(inverse, away, away_y)


def rank_correlation(first: Column, second: Column) -> float:
    """Return the rank correlation of two columns, from -1 to 1."""
    middle = (len(first) - 1) / 2
    ones = [rank - middle for rank in _ranks(first)]
    others = [rank - middle for rank in _ranks(second)]
    under = _dot(ones, ones) * _dot(others, others)
    return _dot(ones, others) / math.sqrt(under) if under else 0.0


def _dot(first: Column, second: Column) -> float:
    return math.fsum(a * b for a, b in zip(first, second, strict=True))


def _times(inverse: list[list[float]], away: Sequence[Column], away_y: Column) -> list[float]:
    toward = [_dot(column, away_y) for column in away]
    return [_dot(row, toward) for row in inverse]


def _inverse(square: list[list[float]]) -> list[list[float]] | None:
    """Invert a small symmetric matrix; None when it is nearly singular."""
    size = range(len(square))
    rows = [[*row, *(float(place == each) for each in size)] for place, row in enumerate(square)]
    for place, lead in enumerate(rows):
        if lead[place] <= 1e-9 * square[place][place]:
            return None
        lead[:] = [value / lead[place] for value in lead]
        for row in rows:
            if row is not lead:
                times = row[place]
                row[:] = [a - times * b for a, b in zip(row, lead, strict=True)]
    return [row[len(square) :] for row in rows]


def _ranks(values: Column) -> list[float]:
    first: dict[float, int] = {}
    count: dict[float, int] = {}
    for place, value in enumerate(sorted(values)):
        first.setdefault(value, place)
        count[value] = count.get(value, 0) + 1
    return [first[value] + (count[value] - 1) / 2 for value in values]
