"""Which jobs people mean: by id, range, name, lease, or by what the jobs are."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from grn.client import negotiator, queue
from grn.errors import GrnError, UnknownJob, UsageError
from grn.model.ranges import show_ranges
from grn.protocol.negotiator_rows import LeaseRow, WaitingRow, lease_or_request

_LEASE = re.compile(r"[0-9a-f]{4,32}")  # some have digits only


def selected(
    names: Sequence[str],
    state: str,
    *,
    name: str | None = None,
    states: Sequence[str] = (),
    tag: str | None = None,
    group: str | None = None,
) -> list[int]:
    """Return the jobs that people name, and those in `state` that the options select."""
    filters = {key: value for key, value in
               {"name": name, "tag": tag, "group": group}.items() if value}  # fmt: skip
    if names and not (filters or states):
        return resolve(names, state)
    if not filters and not states and state != "alive":
        raise UsageError("there is no job named.", "Give ids or names, or --name, --state, --tag.")
    which = "ended" if state == "ended" else "alive"
    found = queue.ids(which=which, states=list(states), **filters)
    if state == "queued":
        waiting = set(queue.ids(which=which, states=["queued", "held"], **filters))
        found = [job for job in found if job in waiting]
    if names:
        named = set(resolve(names, state))
        found = [job for job in found if job in named]
    if not found and (filters or states):
        raise UnknownJob("no job matches.", "See `grn ls -a`.")
    return sorted(found)


def resolve(names: Sequence[str], which: str = "all") -> list[int]:
    """Return the ids of jobs that people name; `-` reads names from standard input.

    The beginning of an id is enough to read a job. Commands that change jobs (`which` is not
    "all") need whole ids: job 3 may have been cleaned, and 3 must not select job 30.
    """
    words = [word for name in names for word in (_piped() if name == "-" else [name])]
    asked = {"op": "names", "names": words, "whole": which != "all", "which": which}
    found: list[int] = queue.look(asked)["jobs"]
    return found


def one(name: str, which: str = "all") -> int:
    """Return the id of the one job that a name stands for."""
    return only(name, resolve([name], which))


def only(name: str, found: Sequence[int]) -> int:
    """Return the one job that was found for a name."""
    if len(found) != 1:
        text = f"{len(found)} jobs are called {name}: {show_ranges(found)}."
        raise UsageError(text, "Name one of them by its id.")
    return found[0]


def _piped() -> list[str]:
    data = sys.stdin.buffer.read() if sys.stdin is not None else b""
    return data.decode("utf-8", "backslashreplace").split()


def jobs_and_leases(
    names: Sequence[str], which: str = "all"
) -> tuple[list[int], list[LeaseRow | WaitingRow]]:
    """Return the jobs of the queue that people name, and what runs or waits outside it."""
    plain: list[str] = []
    leases: list[LeaseRow | WaitingRow] = []
    for name in names:
        found = lease_outside(name) if _LEASE.fullmatch(name) else None
        if found is None:
            plain.append(name)
        else:
            leases.append(found)
    return (resolve(plain, which) if plain else []), leases


def lease_outside(name: str) -> LeaseRow | WaitingRow | None:
    """Return this user's lease or request of that id, unless it belongs to a job of the queue."""
    try:
        resolve([name])
    except UnknownJob:
        pass
    else:
        return None
    try:
        rows = negotiator.ask_all({"op": "why", "name": name})["why"]
    except GrnError:
        return None
    own = [row for row in rows if row["user"] == os.getuid() and row["id"].startswith(name)]
    return lease_or_request(own[0]) if len(own) == 1 else None


def refuse_outside(names: Sequence[str], verb: str) -> None:
    """Raise if a name is that of a lease outside the queue, on which only some commands work."""
    for name in names:
        if _LEASE.fullmatch(name) and (row := lease_outside(name)):
            raise UsageError(
                f"{row.id} runs outside the queue, as pid {row.pid}: it cannot be {verb}.",
                f"`grn why {row.id}` and `grn cancel {row.id}` work.",
            )
