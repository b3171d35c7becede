"""From one picture of the machine to the next: only what differs, so that little is sent.

Pure.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
LISTS = {"gpus": "uuid", "leases": "id", "waiting": "id", "jobs": "id"}


def changes(before: Row | None, after: Row) -> Row:
    """Return what a page that shows `before` must be told to show `after`; empty if nothing."""
    if before is None:
        return {"whole": True, **after}
    said: Row = {}
    for name, value in after.items():
        if value == before.get(name):
            continue
        said[name] = _rows(before[name], value, LISTS[name]) if name in LISTS else value
    return said


def _rows(before: list[Row], after: list[Row], key: str) -> Row:
    """Return the rows that are new or changed, and the order of all of them if that changed."""
    known = {row[key]: row for row in before}
    rows = {row[key]: row for row in after}
    said: Row = {"set": [row for row in after if known.get(row[key]) != row]}
    if list(known) != list(rows):
        said["order"] = list(rows)
    return said
