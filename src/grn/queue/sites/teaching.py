"""Measured runs of job types, taken from the places that have them to those that do not.

So a type that is known at one place needs no first run at another with the same GPU model. Only
keeps and chooses; the router sends. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

MAX_TYPES = 1000
MAX_RUNS = 20  # of a type on a model: more change an estimate little

Message = dict[str, Any]
_Run = dict[str, Any]
_Mark = tuple[float, int]  # when a run ended, and its peak: which run it is


class Teacher:
    """The runs that places have told, and what each place was taught."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, dict[_Mark, _Run]]] = {}  # by type and GPU model
        self._labels: dict[str, str] = {}
        self._versions: Counter[str] = Counter()  # of a type: rises with each new run
        self._taught: dict[tuple[str, str], int] = {}  # place, type -> version

    def heard(self, place: str, reply: Message) -> list[str]:
        """Note the runs that a place has told; anything malformed is left out. Return the types."""
        told = reply.get("runs")
        types = []
        for profile in told if isinstance(told, list) else ():
            if not isinstance(profile, dict):
                continue
            job_type, model, label = (profile.get(name) for name in ("type", "model", "label"))
            runs = profile.get("runs")
            if not all(isinstance(one, str) for one in (job_type, model, label)):
                continue
            if isinstance(runs, list):
                self._note(place, str(job_type), str(model), runs)
                self._labels[str(job_type)] = str(label)
                types.append(str(job_type))
        return types

    def _note(self, place: str, job_type: str, model: str, runs: list[Any]) -> None:
        known = self._runs.setdefault(job_type, {}).setdefault(model, {})
        marked = {mark: run for run in runs if (mark := _mark(run)) is not None}
        knew_all = known.keys() <= marked.keys()
        if marked.keys() - known.keys():
            known |= marked
            for mark in sorted(known)[:-MAX_RUNS]:
                del known[mark]
            self._versions[job_type] += 1
        if knew_all and len(self._runs[job_type]) == 1:
            self._taught[place, job_type] = self._versions[job_type]
        while len(self._runs) > MAX_TYPES:
            oldest = next(iter(self._runs))
            del self._runs[oldest]
            self._labels.pop(oldest, None)

    def lessons(self, place: str, job_type: str) -> list[Message]:
        """Return what a place is to be told before it is asked for a lease of a type."""
        version = self._versions[job_type]
        if self._taught.get((place, job_type), 0) == version or job_type not in self._runs:
            return []
        self._taught[place, job_type] = version
        return [
            {
                "op": "learn", "type": job_type, "label": self._labels[job_type], "model": model,
                "runs": [runs[mark] for mark in sorted(runs)],
            }
            for model, runs in self._runs[job_type].items()
        ]  # fmt: skip

    def forget(self, place: str) -> None:
        """Teach a place again: its negotiator may be another one."""
        for key in [key for key in self._taught if key[0] == place]:
            del self._taught[key]


def _mark(run: Any) -> _Mark | None:
    match run:
        case {"ended_at": int() | float() as ended_at, "peak_bytes": int() as peak}:
            return float(ended_at), peak
    return None
