"""Carries measured runs of job types between places, so that a type is measured once.

`teaching.py` keeps the runs and decides which place lacks which; this file asks and tells.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

from grn.queue.sites.leases.places import Places
from grn.queue.sites.teaching import Teacher

log = logging.getLogger(__name__)
RUNS_S = 0.5  # between the end of an attempt and the question what was measured
MAX_TYPES_ASKED = 1000


class RunSharing:
    """What is asked of places and told to them; `on_runs` is called when a place has told runs."""

    def __init__(self, places: Places, on_runs: Callable[[], None]) -> None:
        self._places = places
        self._on_runs = on_runs
        self._teacher = Teacher()
        self._ran: dict[str, set[str]] = {}  # types granted at a place since it was asked for runs

    def ask_all(self, name: str) -> None:
        """Ask a place that has just come up for all it has measured, if there are others."""
        self._teacher.forget(name)
        if self._places.nodes:
            self._ask(name, {"op": "runs"})

    def granted(self, name: str, job_type: str) -> None:
        """Note that a type runs at a place."""
        self._ran.setdefault(name, set()).add(job_type)

    def ended(self, name: str) -> None:
        """Ask a place for the runs of types that were granted there, a moment after one ended."""
        if self._places.nodes and name in self._ran:
            asyncio.get_running_loop().call_later(RUNS_S, self._ask_for_types, name)

    def teach(self, name: str, job_type: str) -> None:
        """Tell a place the runs of a type that it lacks."""
        for lesson in self._teacher.lessons(name, job_type) if self._places.nodes else ():
            self._places.at(name).tell(lesson, lambda _answer: None)

    def _ask_for_types(self, name: str) -> None:
        types = sorted(self._ran.pop(name, ()))[:MAX_TYPES_ASKED]
        if types and self._places.is_known(name):
            self._ask(name, {"op": "runs", "types": types})

    def _ask(self, name: str, question: dict[str, Any]) -> None:
        self._places.at(name).tell(question, functools.partial(self._heard, name))

    def _heard(self, name: str, reply: dict[str, Any]) -> None:
        types = self._teacher.heard(name, reply)
        if types:
            log.info("action=heard-runs place=%s types=%s", name, ",".join(map(repr, types)))
        self._on_runs()
