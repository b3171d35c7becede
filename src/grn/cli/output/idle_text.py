"""The list of what holds a GPU and does not use it, with a lease or without. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from grn.cli.output.table import table
from grn.model.units import show_size, show_time
from grn.protocol.negotiator_rows import GpuRow, IdleRow, LeaseRow


def idle_rows(gpus: Iterable[GpuRow], leases: Iterable[LeaseRow]) -> list[IdleRow]:
    """Return all that is idle, the longest first."""
    found = [
        IdleRow(
            row.idle_for_s, row.gpus, held_bytes(row), row.user, row.pid, row.id, row.label,
            row.type,
        )
        for row in leases
        if row.idle_for_s is not None
    ]  # fmt: skip
    found += [
        IdleRow(one.idle_for_s or 0.0, (gpu.index,), one.used_bytes, one.user, one.pid)
        for gpu in gpus
        for one in gpu.idle_strangers
    ]
    return sorted(found, key=lambda row: -row.idle_for_s)


def held_bytes(row: LeaseRow) -> int:
    """Return what a lease keeps of all its GPUs together."""
    return max(row.reserved_bytes, row.used_bytes or 0) * len(row.gpus)


def idle(rows: Sequence[IdleRow], user_name: Callable[[int], str], width: int = 0) -> str:
    """List who holds how much of which GPUs unused, and since when."""
    if not rows:
        return "nothing that holds a GPU is idle"
    lines = [
        (
            "?" if row.user is None else user_name(row.user),
            str(row.pid or "?"),
            row.lease or "no lease",
            ",".join(map(str, row.gpus)),
            show_size(row.held_bytes),
            show_time(row.idle_for_s),
            row.label,
        )
        for row in rows
    ]
    headers = ("USER", "PID", "LEASE", "GPU", "HOLDS", "IDLE", "TYPE")
    return table(headers, lines, width, elastic=("TYPE",), spare=("PID",))


def count(rows: Sequence[IdleRow]) -> str:
    """Say in one line how much is idle; empty when nothing is."""
    if not rows:
        return ""
    held = sum(row.held_bytes or 0 for row in rows)
    return f"idle: {len(rows)}, holding {show_size(held)}; `grn idle` lists them"
