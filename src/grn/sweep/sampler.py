"""A search by Optuna: it proposes each point and receives its result.

Trials run in parallel and end in any order. Earlier runs of the same sweep are reported first, so
an interrupted search continues with all its results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from grn.errors import UsageError
from grn.sweep.manifest import RunManifest, RunState
from grn.sweep.plan import Plan
from grn.sweep.results import flat
from grn.sweep.space import Drawn, Listed, Point
from grn.sweep.values import fingerprint, is_number, number_or_text

MAX_REFUSED = 500  # points in a row that the conditions leave out


class OptunaFeed:
    """The feed of a search: at most `parallel()` trials are out at a time."""

    def __init__(
        self, plan: Plan, known: Sequence[RunManifest], parallel: Callable[[], int]
    ) -> None:
        try:
            import optuna
        except ImportError as error:
            raise UsageError(
                "Optuna is not installed.",
                "Install it: pip install optuna",
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._plan = plan
        self._parallel = parallel
        self._distributions = {one.name: self._distribution(one) for one in plan.space.parameters}
        self._out: dict[str, list[Any]] = {}  # trials under way, by the fingerprint of their point
        self._ended: dict[str, RunManifest] = {}
        self._study = self._begun(known)
        done = sum(run.state is RunState.FINISHED for run in self._ended.values())
        self.left = max(0, (plan.trials or 0) - done)
        self._to_ask = self.left

    # --- a feed --------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True when all trials have been proposed."""
        return self._to_ask <= 0

    def next_point(self) -> Point | None:
        """Return the next point that has not been run, None while enough are under way."""
        while not self.is_over and len(self._out) < self._parallel():
            trial, point = self._asked()
            self._to_ask -= 1
            mark = fingerprint(point)
            before = self._ended.get(mark)
            if before is not None:  # its result is known
                self._tell(trial, before)
            elif mark in self._out:
                self._out[mark].append(trial)
            else:
                self._out[mark] = [trial]
                return point
        return None

    def heard(self, run: RunManifest) -> RunManifest:
        """Report the end of a trial; one without a number for the metric has failed."""
        if run.state is RunState.FINISHED and self._value(run) is None:
            run = replace(
                run, state=RunState.FAILED, trouble=f"it gave no number '{self._plan.metric}'"
            )
        if run.state in (RunState.FINISHED, RunState.FAILED):
            self._ended[run.fingerprint] = run
        for trial in self._out.pop(run.fingerprint, []):
            self._tell(trial, run)
        return run

    # --- Optuna --------------------------------------------------------------------------

    def _begun(self, known: Sequence[RunManifest]) -> Any:
        """Make the study and report the earlier runs to it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant_liar: new, and made for trials in parallel
            # Another seed each time, else a resumed search would propose the same points.
            sampler = self._optuna.samplers.TPESampler(
                seed=self._plan.seed + len(known), constant_liar=True
            )
        direction = "maximize" if self._plan.is_maximized else "minimize"
        study = self._optuna.create_study(direction=direction, sampler=sampler)
        for run in known:
            params = self._params(run)
            if params is None:
                continue  # the space has changed since
            value = self._value(run) if run.state is RunState.FINISHED else None
            if value is not None:
                self._ended[run.fingerprint] = run
                study.add_trial(
                    self._optuna.trial.create_trial(
                        params=params, distributions=self._distributions, value=value
                    )
                )
            elif run.state is RunState.INTERRUPTED:
                study.enqueue_trial(params)
        return study

    def _asked(self) -> tuple[Any, Point]:
        for _ in range(MAX_REFUSED):
            trial = self._study.ask(self._distributions)
            point = {
                one.name: self._chosen(one, trial.params[one.name])
                for one in self._plan.space.parameters
            }
            if all(condition.holds(point) for condition in self._plan.space.conditions):
                return trial, point
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        raise UsageError("the conditions leave hardly any point to try.", "Relax them.")

    def _tell(self, trial: Any, run: RunManifest) -> None:
        value = self._value(run) if run.state is RunState.FINISHED else None
        if value is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, value)

    def _value(self, run: RunManifest) -> float | None:
        value = dict(flat(run.result)).get(self._plan.metric)
        return float(value) if is_number(value) else None

    # --- values --------------------------------------------------------------------------

    def _distribution(self, one: Listed | Drawn) -> Any:
        kinds = self._optuna.distributions
        if isinstance(one, Listed):
            return kinds.CategoricalDistribution(_choices(one))
        if one.kind == "int":
            return kinds.IntDistribution(int(one.low), int(one.high))
        return kinds.FloatDistribution(one.low, one.high, log=one.kind == "log")

    def _chosen(self, one: Listed | Drawn, value: Any) -> object:
        if isinstance(one, Drawn):
            return one.spelled(value)
        return one.values[_choices(one).index(value)]

    def _params(self, run: RunManifest) -> dict[str, Any] | None:
        """Return the parameters of an earlier run as Optuna knows them, None if they differ."""
        params: dict[str, Any] = {}
        if set(run.params) != set(self._distributions):
            return None
        for one in self._plan.space.parameters:
            value = run.params[one.name]
            if isinstance(one, Listed):
                if value not in one.values:
                    return None
                params[one.name] = _choices(one)[one.values.index(value)]
                continue
            number = number_or_text(value)
            if not isinstance(number, (int, float)) or not one.low <= number <= one.high:
                return None
            params[one.name] = number
        return params


def _choices(one: Listed) -> Sequence[Any]:
    """Return the values for Optuna: as they are, or their indices in the list."""
    plain = all(value is None or isinstance(value, (bool, int, float, str)) for value in one.values)
    return one.values if plain else range(len(one.values))
