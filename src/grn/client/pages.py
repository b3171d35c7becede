"""Listings of the negotiator that come in pages, joined. Documented in docs/protocol.md."""

from __future__ import annotations

from grn.client.connection import ask_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from grn.wire import Message

    Row = dict[str, Any]


def ask_all(message: Message, ask: Callable[[Message], Message] = ask_once) -> Message:
    """Request a listing and join its pages; a row that moved between two pages appears once."""
    answer = ask(dict(message))
    more = answer.pop("more", None)
    while more:
        page = ask({**message, "after": more})
        more = page.pop("more", None)
        _join(answer, page)
    return answer


def status(ask: Callable[[Message], Message] = ask_once) -> Message:
    """Return GPUs, all leases and all waiting requests."""
    whole: Message = ask_all({"op": "status"}, ask)["status"]
    return whole


def _join(answer: Message, page: Message) -> None:
    if "status" in page:
        whole, part = answer["status"], page["status"]
        leases = _joined(whole["leases"], part["leases"])
        running = {row["id"] for row in leases}
        waiting = _joined(whole["waiting"], part["waiting"])
        whole["leases"] = leases
        whole["waiting"] = sorted(
            (row for row in waiting if row["id"] not in running), key=lambda row: row["place"]
        )
    for name in ("why", "profiles"):
        if name in page:
            answer[name] = _joined(answer[name], page[name])


def _joined(rows: list[Row], more: list[Row]) -> list[Row]:
    return list({_identity(row): row for row in (*rows, *more)}.values())


def _identity(row: Row) -> tuple[Any, ...]:
    return (row["id"],) if "id" in row else (row["type"], row["model"])
