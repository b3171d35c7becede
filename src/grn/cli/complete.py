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
# Which jobs a command works on; others read any job.
_WHICH = {"cancel": "alive", "wait": "alive", "hold": "alive", "release": "alive", "move": "alive",
          "edit": "alive", "retry": "ended", "history": "ended"}  # fmt: skip
_ONLY = {"hold": ("queued",), "release": ("held",), "move": ("queued", "held"),
         "edit": ("queued", "held")}  # fmt: skip


def attach(param: click.Parameter) -> None:
    """Let a parameter that names jobs, states, types, files or programs complete them."""
    key = (param.name or "", param.metavar or "")
    found = _OFFERS.get(key)
    if found is not None:
        param._custom_shell_complete = _completed(found)
    elif key[1] in ("FILE", "[FILE]", "DIR"):
        param._custom_shell_complete = _path("dir" if key[1] == "DIR" else "file")
    elif key == ("command", "-- CMD ..."):
        param._custom_shell_complete = _command


def _completed(offers: Callable[[click.Context], Sequence[Offer]]) -> Any:
    def complete(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
        try:
            found = offers(ctx)
        except (GrnError, OSError):
            return []  # a shell must not print errors while one types
        fitting = [offer for offer in found if offer[0].startswith(begun)]
        if not fitting and param.metavar == "DIR":
            return [CompletionItem(begun, type="dir")]
        return [CompletionItem(word, help=text) for word, text in fitting[:MAX_OFFERED]]

    return complete


def _path(kind: str) -> Any:
    """Leave names of files or folders to the shell."""

    def complete(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
        return [CompletionItem(begun, type=kind)]

    return complete


def _command(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete a command: a program of PATH, then files."""
    if ctx.params.get(param.name or "") or os.sep in begun:
        return [CompletionItem(begun, type="file")]
    folders = os.environ.get("PATH", "").split(os.pathsep)
    found = {name for folder in folders if os.path.isdir(folder or ".")
             for name in os.listdir(folder or ".") if name.startswith(begun)}  # fmt: skip
    return [CompletionItem(name) for name in sorted(found)[:MAX_OFFERED]]


def _listed(ctx: click.Context) -> list[dict[str, Any]]:
    """Return the jobs that a command can work on."""
    which = _WHICH.get(ctx.info_name or "", "all")
    asked: dict[str, Any] = {"op": "list", "which": which, "most": MAX_OFFERED}
    if ctx.info_name in _ONLY:
        asked["states"] = list(_ONLY[ctx.info_name])
    return list(queue.ask(asked, may_start=False)["jobs"])


def _jobs(ctx: click.Context) -> list[Offer]:
    rows = _listed(ctx)
    ids = [(str(row["id"]), row["name"] or row["label"]) for row in rows]
    return ids + [(name, "") for name in sorted({row["name"] for row in rows if row["name"]})]


def _names(ctx: click.Context) -> list[Offer]:
    return [(name, "") for name in sorted({row["name"] for row in _listed(ctx) if row["name"]})]


def _groups(ctx: click.Context) -> list[Offer]:
    return [(group, "") for group in sorted({row["group"] for row in _listed(ctx) if row["group"]})]


def _tags(ctx: click.Context) -> list[Offer]:
    tags = {tag for row in _listed(ctx) for tag in row.get("tags") or ()}
    return [(tag, "") for tag in sorted(tags)]


def _types(_ctx: click.Context) -> list[Offer]:
    rows = negotiator.ask_all({"op": "profiles"})["profiles"]
    return [(label, "") for label in sorted({row["label"] for row in rows})]


def _states(_ctx: click.Context) -> list[Offer]:
    return [(state, "") for state in _STATES]


def _sweeps(_ctx: click.Context) -> list[Offer]:
    names = sorted(os.listdir("sweeps")) if os.path.isdir("sweeps") else []
    return [(os.path.join("sweeps", name), "") for name in names]


def _places(_ctx: click.Context) -> list[Offer]:
    nodes = queue.ask({"op": "sites"}, may_start=False)["nodes"]
    names = {name for node in nodes for name in (node["site"], node["node"]) if name != "-"}
    return [("local", ""), *((name, "") for name in sorted(names))]


def _commands(ctx: click.Context) -> list[Offer]:
    root = ctx.find_root()
    group = root.command
    names = group.list_commands(root) if isinstance(group, click.Group) else []
    return [(name, "") for name in names]


_OFFERS: dict[tuple[str, str], Callable[[click.Context], Sequence[Offer]]] = {
    ("jobs", "[ID...]"): _jobs,
    ("jobs", "ID..."): _jobs,
    ("job", "ID"): _jobs,
    ("job", "JOB"): _jobs,
    ("group", "NAME"): _groups,
    ("after", "ID[:ok|:any]"): _jobs,
    ("name", "NAME"): _names,
    ("tag", "WORD"): _tags,
    ("states", "STATE"): _states,
    ("job_type", "NAME"): _types,
    ("job_type", "TYPE"): _types,
    ("folder", "DIR"): _sweeps,
    ("at", "PLACE"): _places,
    ("names", "[COMMAND]"): _commands,
}
