"""`grn.Sweep`: many runs of a command or a function from Python, and one table of results."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

from grn.errors import JobFailed, UsageError
from grn.group.roles import Progress, Slots
from grn.group.task import Task
from grn.sweep import plan as plans
from grn.sweep.manifest import RunManifest
from grn.sweep.plan import Plan
from grn.sweep.results import Table
from grn.sweep.sampler import OptunaFeed
from grn.sweep.space import Point, points
from grn.sweep.sweep_run import Feed, Study, Walk, left_to_run
from grn.sweep.trials_at_once import TrialsAtOnce

MAX_POINTS = 100_000  # each has a folder

Hearing = Callable[[Progress, RunManifest | None], None]


class Sweep:
    """A sweep over a command with `{holes}`, or over a function that takes the parameters.

    `grn.Sweep(train, {"lr": "log:1e-5..1e-2", "bs": [32, 64]}, n_samples=20).run().to_pandas()`
    """

    def __init__(
        self,
        what: str | list[str] | Callable[..., Any],
        parameters: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Describe the sweep. The options are those of its file, with `when` for `if`."""
        given = {name: value for name, value in options.items() if value is not None}
        if "when" in given:
            given["if"] = given.pop("when")
        if isinstance(given.get("out"), os.PathLike):
            given["out"] = os.fspath(given["out"])
        for name in ("zip", "seeds", "if"):
            if isinstance(given.get(name), (tuple, range)):
                given[name] = list(given[name])
        if not isinstance(parameters or {}, Mapping):
            raise UsageError("the parameters of a sweep must be a mapping of names to values.")
        given["parameters"] = dict(parameters or {})
        if not callable(what):
            given["command"] = what
        self.plan: Plan = plans.make(given, what if callable(what) else None)

    @classmethod
    def from_plan(cls, plan: Plan) -> Sweep:
        """Make a sweep of a plan."""
        made = cls.__new__(cls)
        made.plan = plan
        return made

    def __repr__(self) -> str:
        return f"<grn sweep {self.plan.name} of {self.plan.text} in {self.plan.out}>"

    def points(self) -> list[Point]:
        """Return the points to run, in order; a search finds them while it runs."""
        if self.plan.trials is not None:
            raise UsageError("the points of a search are only known as it goes.")
        randomness = random.Random(self.plan.seed)
        walk = points(
            self.plan.space, randomness, is_shuffled=self.plan.is_shuffled, most=self.plan.most
        )
        found: list[Point] = list(itertools.islice(walk, MAX_POINTS + 1))
        if len(found) > MAX_POINTS:
            raise UsageError(
                f"the sweep has more than {MAX_POINTS} points.", "Take some: --n-samples N."
            )
        if not found:
            raise UsageError("the conditions leave no point to run.")
        return found

    def results(self) -> Table:
        """Return the results so far, without running anything."""
        study = Study(self.plan, lambda *_: None)
        return Table(study.folder.runs(), self.plan.space.names)

    def run(self, *, check: bool = False, on_change: Hearing | None = None) -> Table:
        """Run the unfinished points on negotiated GPUs; return all results.

        With `check` a run that failed raises JobFailed at the end. An interruption keeps the
        finished runs; another call continues from there.
        """
        study = self.study(on_change)
        if study.stopped_by:
            raise KeyboardInterrupt
        failed = study.progress.failed
        if check and failed:
            raise JobFailed(f"{failed} runs failed; see {study.folder.path}.", 1)
        return study.table()

    def study(
        self,
        on_change: Hearing | None = None,
        on_wait: Callable[[Task, str], None] | None = None,
        slots: Slots | None = None,
    ) -> Study:
        """Run the sweep and return its study.

        `on_wait` gets the reason why a run has no GPU yet; `slots` replace those of the negotiator.
        """
        study = Study(self.plan, on_change or (lambda *_: None))
        planned = self.points() if self.plan.trials is None else []
        study.open()
        try:
            if self.plan.trials is None:
                left = left_to_run(study, planned)
                feed: Feed = Walk(left)
                total, skipped = len(left), len(planned) - len(left)
            else:
                search = self._search(study)
                feed, total, skipped = search, search.left, self.plan.trials - search.left
            study.run(feed, total, skipped, on_wait, slots)
        finally:
            study.close()
        return study

    def _search(self, study: Study) -> OptunaFeed:
        known = [] if self.plan.is_rerun else study.known()
        at_once = TrialsAtOnce(self.plan.parallel, self.plan.needs.at)
        return OptunaFeed(self.plan, known, at_once)
