"""Which arguments of a job its memory and duration may depend on, by their names.

The one list of names; runs show later which of the remaining arguments do matter.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from grn.model.job import Argument

_UNITS_OF_WORK = r"epochs?|steps?|iters?|iterations"
_TIME_ONLY = rf"{_UNITS_OF_WORK}|patience|debug|resume|workers"
_NEITHER = (
    r"seeds?|lr|learning_rate|out|output|outdir|log|logs|logdir|name|dir|path|file|run|id|fold"
    r"|momentum|decay|weight_decay|dropout|verbose|gpus?|device|port|tag|note|comment"
)
_LIKELY = re.compile(
    r"batch|(^|[_-])bs|size|width|height|dim|hidden|layer|depth|length|(^|_)len|seq|resol|token"
    r"|model|arch|channel|heads|img|image|samples|points|^b$|^n$",
    re.IGNORECASE,
)


def _names(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(.*_)?({pattern})", re.IGNORECASE)


_NOT_MEMORY, _NOT_TIME = _names(f"{_NEITHER}|{_TIME_ONLY}"), _names(_NEITHER)
_WORK = _names(_UNITS_OF_WORK)


@lru_cache(maxsize=2048)  # calls of one type repeat the same arguments
def mattering(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Drop arguments that memory does not depend on."""
    found = [one for one in arguments if not _NOT_MEMORY.fullmatch(one[0])]
    return tuple(sorted(found, key=lambda one: one[0]))


@lru_cache(maxsize=2048)
def timing(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Drop arguments that duration does not depend on."""
    found = [one for one in arguments if not _NOT_TIME.fullmatch(one[0])]
    return tuple(sorted(found, key=lambda one: one[0]))


@lru_cache(maxsize=2048)
def lasting(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Return the numbers that duration grows with, rounded to factors of 2."""
    return tuple(
        sorted(
            (name, float(round(math.log2(value))))
            for name, value in arguments
            if not isinstance(value, str) and value > 0 and is_work(name)
        )
    )


def is_work(name: str) -> bool:
    """True for a number that duration is proportional to: epochs, steps."""
    return _WORK.fullmatch(name) is not None


def likely_matters(name: str) -> bool:
    """True when memory probably depends on an argument."""
    return _LIKELY.search(name) is not None and not _NOT_MEMORY.fullmatch(name)
