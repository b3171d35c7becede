"""The sweeps under one folder, as the page shows them."""

from __future__ import annotations

import os
from typing import Any

from grn.errors import UnknownJob, UsageError
from grn.sweep.manifest import SweepFolder
from grn.sweep.results import ranked

Row = dict[str, Any]
MAX_SWEEPS = 200


class Sweeps:
    """Finds sweeps by name in the folder that the page was started for."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def all(self) -> list[Row]:
        """Return one row for each sweep, the latest first."""
        rows = [row for name in self._names() if (row := self._row(name))]
        return sorted(rows, key=lambda row: -row["created_at"])[:MAX_SWEEPS]

    def one(self, name: str) -> Row:
        """Return all runs of a sweep, best first where there is a best."""
        if name not in self._names():
            raise UnknownJob(f"there is no sweep '{name}' here.")
        try:
            about, table, ranking = ranked(os.path.join(self._folder, name))
        except UsageError as error:
            raise UnknownJob(f"there is no sweep '{name}' here.") from error
        return {
            "name": name,
            "command": about.command,
            "parameters": list(about.parameters),
            "metrics": list(table.numeric_metrics),
            "metric": ranking.metric if ranking else "",
            "is_maximized": bool(ranking and ranking.is_maximized),
            "rows": [dict(row) for row in table],
        }

    def _names(self) -> list[str]:
        try:
            found = os.listdir(self._folder)
        except OSError:
            return []
        return [name for name in found if os.path.isdir(os.path.join(self._folder, name))]

    def _row(self, name: str) -> Row | None:
        folder = SweepFolder(os.path.join(self._folder, name))
        about = folder.about()
        if about is None:
            return None
        states = [run.state.value for run in folder.runs()]
        counts = {state: states.count(state) for state in set(states)}
        return {
            "name": name,
            "command": about.command,
            "created_at": about.created_at,
            "counts": counts,
        }
