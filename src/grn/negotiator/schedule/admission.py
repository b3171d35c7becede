"""Admission: which GPUs a request may use, and the refusal of one that can never be granted.

`--on` takes alternatives (`a100|h100`) whose conditions all hold (`a100&>=40GiB`); `--not` takes
GPUs away. GPUs do not change while a negotiator runs, so this is decided once, on arrival. A
refusal names the number that does not fit.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence

from grn.errors import BadSetting, NeverFits, UsageError
from grn.model.gpu import Gpu, GpuKind
from grn.model.job import Request
from grn.model.units import parse_size, show_size
from grn.negotiator.events import Refuse
from grn.negotiator.schedule.ledger import Book
from grn.negotiator.schedule.placement import allowed, pinned

_COMPARED = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_SIZE = re.compile(r"(>=|<=|>|<)\s*(.+)")
_SHOWN = 0.95  # of its nominal memory: a GPU sold with 40 GB shows 39.4 GiB


def refusal(
    request: Request, books: Sequence[Book], never_fits: Callable[[Request], str | None]
) -> Refuse | None:
    """Return the refusal of a request that can never be granted, else None.

    `never_fits` returns why runs have proved all GPUs too small, None when they have not.
    """
    for slot in request.slots:
        if not any(slot in book.names for book in books):
            names = ", ".join(str(book.gpu.index) for book in books)
            text = f"GPU {slot} is not managed here."
            return Refuse(request.key, text, f"There are GPUs {names}.", "UsageError")
    mine = allowed(request, books)
    if request.gpus > len(mine):
        text = f"you asked for {request.gpus} GPUs; this machine has {len(mine)}."
        return Refuse(request.key, text, "Ask for fewer.")
    homes = pinned(request, mine)
    if homes and request.gpus > len(homes):
        home = ", ".join(str(book.gpu.index) for book in homes)
        text = f"this process already uses GPU {home} and cannot get {request.gpus} GPUs now."
        return Refuse(request.key, text, "Ask in a fresh process.", "UsageError")
    refused = _too_large(request, homes or mine, bool(homes))
    if refused is None and (proved := never_fits(request)) is not None:
        hint = "Make it smaller, or run it where a GPU has more memory."
        return Refuse(request.key, proved, hint)
    return refused


def _too_large(request: Request, books: Sequence[Book], is_pinned: bool) -> Refuse | None:
    if request.mem_bytes is None:
        return None
    able = [book for book in books if book.gpu.total_bytes >= request.mem_bytes]
    if len(able) >= request.gpus:
        return None
    totals = sorted((book.gpu.total_bytes for book in books), reverse=True)
    largest = totals[request.gpus - 1]
    text = f"you asked for {show_size(request.mem_bytes)} of memory;"
    if is_pinned:
        text += f" the GPU this process already uses has {show_size(largest)}."
        return Refuse(request.key, text, "Ask in a fresh process.")
    if request.gpus == 1:
        text += f" the largest GPU has {show_size(largest)}."
    else:
        text += f" {request.gpus} GPUs have at most {show_size(largest)} each."
    return Refuse(request.key, text, "Ask for less memory per GPU.")


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
