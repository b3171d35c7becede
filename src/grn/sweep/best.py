"""Which result tells what is best, and which way: asked for, remembered or guessed by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grn.errors import UsageError
from grn.sweep.manifest import About
from grn.sweep.results import Table

# What people call that which should be large; all else should be small.
_LARGE_IS_GOOD = (
    *("acc", "auc", "bleu", "f1", "iou", "map", "ndcg", "precision", "psnr", "r2", "recall"),
    *("return", "reward", "rouge", "score", "ssim", "throughput", "win"),
)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The metric of a sweep and its finished rows, best first."""

    metric: str
    is_maximized: bool
    rows: tuple[dict[str, Any], ...]

    @property
    def text(self) -> str:
        """Say how the rows are sorted."""
        return f"by {self.metric}, {'highest' if self.is_maximized else 'lowest'} first"


def rank(
    table: Table, about: About, metric: str | None = None, is_maximized: bool | None = None
) -> Ranking | None:
    """Sort a table by its metric; None when no run has given a number."""
    chosen = metric or about.metric or next(iter(table.numeric_metrics), None)
    if chosen is None:
        return None
    if metric is None and chosen not in table.metrics:
        return None  # what is searched for, and no run has given it yet
    if is_maximized is None:
        is_maximized = about.is_maximized if chosen == about.metric else is_large_good(chosen)
    rows = table.best(chosen, maximize=is_maximized)
    if metric is not None and not rows:
        raise UsageError(f"no run that finished has a number for '{metric}'.")
    return Ranking(chosen, is_maximized, tuple(rows)) if rows else None


def is_large_good(name: str) -> bool:
    """Guess from its name whether a result should be large."""
    last = name.lower().rpartition(".")[2]
    words = last.replace("-", "_").replace("@", "_").split("_")
    return any(word.startswith(sign) for word in words for sign in _LARGE_IS_GOOD)
