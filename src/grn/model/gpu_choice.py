"""Which GPUs `--on` and `--not` allow.

`--on` takes alternatives (`a100|h100`) whose conditions all hold (`a100&>=40GiB`); `--not` excludes
GPUs.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Sequence

from grn.errors import BadSetting, NeverFits, UsageError
from grn.model.gpu import Gpu, GpuKind
from grn.model.units import parse_size, show_size

_COMPARED = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_SIZE = re.compile(r"(>=|<=|>|<)\s*(.+)")
_SHOWN = 0.95  # of its nominal memory: a GPU sold with 40 GB shows 39.4 GiB


def selected(gpus: Sequence[Gpu], count: int, on: str, without: Collection[str]) -> list[Gpu]:
    """Return the GPUs that match; raise NeverFits when there are fewer than `count`."""
    alternatives = [part for part in on.split("|") if part.strip()]
    if on and not alternatives:
        hint = "Write it like a100, 'a100|h100' or '>=40GiB'."
        raise UsageError(f"--on '{on}' names no GPU.", hint)
    found = [
        gpu
        for gpu in gpus
        if (not alternatives or any(_meets(gpu, part) for part in alternatives))
        and not any(_is_named(gpu, name) for name in without)
    ]
    if len(found) < max(1, count):
        how_many = "no GPU" if not found else f"only {len(found)} GPU{'s' * (len(found) > 1)}"
        asked = " and ".join(
            [f"'{on}'"] * bool(on) + [f"not GPU {', '.join(without)}"] * bool(without)
        )
        raise NeverFits(f"{how_many} here is {asked}.", f"This machine has {_models(gpus)}.")
    return found


def _meets(gpu: Gpu, part: str) -> bool:
    """True when a GPU meets all conditions of one alternative."""
    return all(_holds(gpu, condition.strip()) for condition in part.split("&"))


def _holds(gpu: Gpu, condition: str) -> bool:
    compared = _SIZE.fullmatch(condition)
    if compared is None:
        words = re.escape(condition.casefold())  # whole ones: an A100 is not an A10
        in_model = re.search(rf"(?<![a-z0-9]){words}(?![a-z0-9])", gpu.model.casefold())
        return _is_named(gpu, condition) or (bool(condition) and in_model is not None)
    try:
        size_bytes = parse_size(compared[2])
    except BadSetting as error:
        raise UsageError(f"--on '{condition}': {error.message}", error.hint) from error
    total: float = gpu.total_bytes
    if compared[1] in (">=", "<") and gpu.kind is not GpuKind.VIRTUAL:
        total /= _SHOWN
    return bool(_COMPARED[compared[1]](total, size_bytes))


def _is_named(gpu: Gpu, name: str) -> bool:
    return name in (str(gpu.index), gpu.uuid)


def _models(gpus: Sequence[Gpu]) -> str:
    """Name the models of a machine, with how many there are of each and their memory."""
    kinds: dict[tuple[str, int], list[int]] = {}
    for gpu in gpus:
        kinds.setdefault((gpu.model, gpu.total_bytes), []).append(gpu.index)
    return ", ".join(
        f"{len(indices)} x {model} ({show_size(size)}, GPU {', '.join(map(str, indices))})"
        for (model, size), indices in kinds.items()
    )
