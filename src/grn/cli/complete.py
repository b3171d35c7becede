"""Completion of what only the daemons and the disk know: job ids, states, types, sweeps, files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from grn.client import negotiator, queue
from grn.errors import GrnError
from grn.model.outcome import Outcome

MAX_OFFERED = 200
_STATES = ("queued", "held", "running", *(one.value for one in Outcome))
Offer = tuple[str, str]  # a word and what it means


def attach(param: click.Parameter) -> None:
    """Let a parameter that names jobs, states or types complete them."""
    found = _OFFERS.get((param.name or "", param.metavar or ""))
    if found is not None:
        param._custom_shell_complete = _completed(found)


def _completed(offers: Callable[[], Sequence[Offer]]) -> Any:
    def complete(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
        try:
            found = offers()
        except (GrnError, OSError):
            return []  # a shell must not print errors while one types
        fitting = [offer for offer in found if offer[0].startswith(begun)]
        return [CompletionItem(word, help=text) for word, text in fitting[:MAX_OFFERED]]

    return complete


def _jobs() -> list[Offer]:
    asked = {"op": "list", "which": "all", "most": MAX_OFFERED}
    rows = queue.ask(asked, may_start=False)["jobs"]
    return [(str(row["id"]), row["name"] or row["label"]) for row in rows]


def _names() -> list[Offer]:
    asked = {"op": "list", "which": "all", "most": MAX_OFFERED}
    rows = queue.ask(asked, may_start=False)["jobs"]
    return [(name, "") for name in sorted({row["name"] for row in rows if row["name"]})]


def _tags() -> list[Offer]:
    asked = {"op": "list", "which": "all", "most": MAX_OFFERED}
    rows = queue.ask(asked, may_start=False)["jobs"]
    return [(tag, "") for tag in sorted({tag for row in rows for tag in row.get("tags") or ()})]


def _types() -> list[Offer]:
    rows = negotiator.ask_all({"op": "profiles"})["profiles"]
    return [(label, "") for label in sorted({row["label"] for row in rows})]


def _states() -> list[Offer]:
    return [(state, "") for state in _STATES]


def _sweeps() -> list[Offer]:
    names = sorted(os.listdir("sweeps")) if os.path.isdir("sweeps") else []
    return [(os.path.join("sweeps", name), "") for name in names]


_OFFERS: dict[tuple[str, str], Callable[[], Sequence[Offer]]] = {
    ("jobs", "[ID...]"): _jobs,
    ("jobs", "ID..."): _jobs,
    ("job", "ID"): _jobs,
    ("after", "ID[:ok|:any]"): _jobs,
    ("name", "NAME"): _names,
    ("tag", "WORD"): _tags,
    ("states", "STATE"): _states,
    ("job_type", "NAME"): _types,
    ("job_type", "TYPE"): _types,
    ("folder", "DIR"): _sweeps,
}
