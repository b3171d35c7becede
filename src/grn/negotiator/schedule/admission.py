"""Admission: the refusal of a request that can never be granted here.

GPUs do not change while a negotiator runs, so this is decided once, on arrival. A refusal names the
number that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grn.model.job import Request
from grn.model.units import show_size
from grn.negotiator.actions import Refuse
from grn.negotiator.schedule.placement import allowed, pinned
from grn.negotiator.schedule.room.ledger import Book


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
