"""The list of what holds a GPU and does not use it, with a lease or without. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from grn.cli.output.table import table
from grn.model.text import harmless
from grn.model.units import show_size, show_time
from grn.protocol.negotiator_rows import GpuRow, IdleRow, LeaseRow
from grn.protocol.queue_rows import NodeRow


def idle_rows(
    gpus: Iterable[GpuRow], leases: Iterable[LeaseRow], nodes: Sequence[NodeRow] = ()
) -> list[IdleRow]:
    """Return all that is idle here and on nodes, the longest first."""
    found = [*_idle_at("", gpus, leases)]
    for node in nodes:
        found += _idle_at(node.node, node.gpus, node.leases)
    return sorted(found, key=lambda row: -row.idle_for_s)


def _idle_at(where: str, gpus: Iterable[GpuRow], leases: Iterable[LeaseRow]) -> Iterator[IdleRow]:
    yield from (
        IdleRow(
            row.idle_for_s, row.gpus, held_bytes(row), row.user, row.pid, row.id, row.label,
            row.type, where,
        )
        for row in leases
        if row.idle_for_s is not None
    )  # fmt: skip
    yield from (
        IdleRow(one.idle_for_s or 0.0, (gpu.index,), one.used_bytes, one.user, one.pid, where=where)
        for gpu in gpus
        for one in gpu.idle_strangers
    )


def held_bytes(row: LeaseRow) -> int:
    """Return what a lease keeps of all its GPUs together."""
    return max(row.reserved_bytes, row.used_bytes or 0) * len(row.gpus)


def idle(
    rows: Sequence[IdleRow], user_name: Callable[[int], str], width: int = 0, *,
    has_sites: bool = False,
) -> str:  # fmt: skip
    """List who holds how much of which GPUs unused, and since when.

    Users of nodes are shown by their numbers, which belong to other machines.
    """
    if not rows:
        return "nothing that holds a GPU is idle"
    lines = [
        (
            "?" if row.user is None else str(row.user) if row.where else user_name(row.user),
            str(row.pid or "?"),
            row.lease or "no lease",
            *([harmless(row.where) or "local"] if has_sites else []),
            ",".join(map(str, row.gpus)),
            show_size(row.held_bytes),
            show_time(row.idle_for_s),
            row.label,
        )
        for row in rows
    ]
    where = ["WHERE"] if has_sites else []
    headers = ("USER", "PID", "LEASE", *where, "GPU", "HOLDS", "IDLE", "TYPE")
    return table(headers, lines, width, elastic=("TYPE",), spare=("PID",))


def count(rows: Sequence[IdleRow]) -> str:
    """Say in one line how much is idle; empty when nothing is."""
    if not rows:
        return ""
    held = sum(row.held_bytes or 0 for row in rows)
    return f"idle: {len(rows)}, holding {show_size(held)}; `grn idle` lists them"
