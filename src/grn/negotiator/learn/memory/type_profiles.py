"""The profiles of job types: what is remembered of their runs, and the estimates drawn from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from grn.model.host import HOST_MODEL
from grn.model.job import Estimate, Outcome, Profile, Request, Run
from grn.negotiator.learn.durations import PRIOR_SPREAD
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.estimate import Known
from grn.negotiator.learn.memory.margin import ENOUGH_RUNS, LAST_RUNS, Experience, Margin
from grn.negotiator.learn.memory.provisional import Key, RankedPeaks, RunningNeeds, guess_bytes
from grn.negotiator.learn.memory.quota import TypeQuota
from grn.negotiator.schedule.placement import Size

CHANCE = "miss_chance"  # its name in the state file
_TELLING_SHARE = 0.01  # of a GPU's memory: a process with a CUDA context uses about as much


class TypeProfiles:
    """Profiles of all job types, and the estimates drawn from them."""

    def __init__(self) -> None:
        self._types: dict[Key, Known] = {}
        self.running = RunningNeeds(self._forget_estimates)
        self._models: dict[str, set[str]] = {}  # job type -> models it was measured on
        self.quota = TypeQuota()
        self._ran_out: dict[str, set[str]] = {}  # job type -> models too small for a run of it
        self._experience = Experience()
        self._told = self._experience.margin  # the margin of all estimates,
        self._outdated: deque[Key] = deque()  # but for these, renewed one at a time
        self.version = 0  # rises whenever a need may have changed
        self.changed: dict[str, int] = {}  # job type -> the version that its need last changed in
        self._peaks = RankedPeaks(lambda: {*self._types, *self.running}, self._largest)
        self.woken: set[str] = set()  # types whose need has changed since the caller cleared this

    def load(self, profiles: Iterable[Profile], chance: float | None = None) -> None:
        """Load saved profiles."""
        if chance is not None:
            self._experience.resume(chance)
        for profile in profiles:
            key = (profile.job_type, profile.model)
            self._types[key] = Known(profile)
            self._types[key].unweighed = len(profile.runs)
            self._models.setdefault(profile.job_type, set()).add(profile.model)
            if any(run.ran_out_alone for run in profile.runs):
                self._ran_out.setdefault(profile.job_type, set()).add(profile.model)
            self._weigh(key)
            self._forget_estimates(key)
        self._told = self._experience.margin
        self._outdated.clear()

    @property
    def margin(self) -> Margin:
        """Return the current margin."""
        return self._experience.margin

    def number_to_save(self) -> float | None:
        """Return the chance that estimates accept, if it is time to save it."""
        return self._experience.chance_to_save()

    def known(self, job_type: str, model: str) -> Known | None:
        """Return the runs and estimates of a type on a model, None without runs."""
        return self._types.get((job_type, model))

    def models(self, job_type: str) -> Collection[str]:
        """Return the models a type was measured on."""
        return self._models.get(job_type, ())

    def ran_out_on(self, job_type: str) -> Collection[str]:
        """Return the models that were too small for a run of a type."""
        return self._ran_out.get(job_type, ())

    def peaks_on(self, model: str, capacity_bytes: int) -> list[int]:
        """Return the largest peak of each type on GPUs of a model, in order."""
        return self._peaks.on(model, capacity_bytes)

    def profiles(self) -> list[Profile]:
        """Return all profiles."""
        return [known.profile for known in self._types.values()]

    def profile(self, job_type: str, model: str) -> Profile | None:
        known = self._types.get((job_type, model))
        return known.profile if known else None

    def knows(self, job_type: str, model: str) -> bool:
        """True when a run of this type has shown what it needs on this model."""
        is_measured = profiling.is_known(self.profile(job_type, model))
        return is_measured or (job_type, model) in self.running

    def shows(self, job_type: str, model: str) -> bool:
        """True when a run of this type is measured on this model, or grows for long."""
        return self.knows(job_type, model) or self.running.grown_bytes((job_type, model)) > 0

    def owners(self, job_type: str) -> set[int]:
        """Return the users from whose jobs a type was learned."""
        keys = ((job_type, model) for model in self._models.get(job_type, ()))
        return {self._types[key].profile.owner for key in keys if key in self._types}

    def unknown(self, job_type: str, model: str, runs: Iterable[Run]) -> list[Run]:
        """Return the runs of another machine that are not known yet, oldest first."""
        profile = self.profile(job_type, model)
        known = {(run.ended_at, run.peak_bytes) for run in profile.runs} if profile else set()
        new = [run for run in runs if (run.ended_at, run.peak_bytes) not in known]
        return sorted(new, key=lambda run: run.ended_at)

    def add_imported(self, job_type: str, model: str, label: str, user: int, run: Run) -> None:
        """Remember a run of another machine; it says nothing of the estimates made here."""
        self._add(Profile(job_type, model, label, user), run)

    def add(self, request: Request, model: str, run: Run, total_bytes: int = 0) -> None:
        """Remember one finished run on a GPU of this size.

        One that used next to nothing does not show that estimates are wide enough.
        """
        known = self._types.get((request.job_type, model))
        if known is not None and _was_estimated(request) and profiling.is_known(known.profile):
            is_short = run.outcome is Outcome.OUT_OF_MEMORY
            if is_short or (run.peak_bytes and run.peak_bytes >= _TELLING_SHARE * total_bytes):
                self._experience.ended(is_short)
        self._add(Profile(request.job_type, model, request.label, request.user), run)

    def _add(self, empty: Profile, run: Run) -> None:
        key = (empty.job_type, empty.model)
        known = self._types.get(key)
        if known is None:
            known = self._types[key] = Known(empty)
            self._models.setdefault(empty.job_type, set()).add(empty.model)
        known.add(run)
        if len(known.profile.runs) == 1:
            self._count_going(known)
        self.quota.ran(empty.job_type, known.profile.owner, run, len(known.profile.runs))
        if run.ran_out_alone:
            self._ran_out.setdefault(empty.job_type, set()).add(empty.model)
        known.unweighed += 1
        self._weigh(key)
        self._forget_estimates(key)
        self._renew_one()

    def shown(self, request: Request, model: str, peak_bytes: int) -> None:
        """Note the peak of a running job whose memory is flat.

        It counts like that of an ended run, as long as one run more changes an estimate.
        """
        self.running.shows(request, model, peak_bytes)
        known = self._types.get((request.job_type, model))
        if known is not None and len(known.profile.runs) < LAST_RUNS:
            self._count_going(known)

    def ended(self, request: Request, model: str) -> None:
        """Drop what a run has shown while it was going."""
        self.running.ended(request, model)
        known = self._types.get((request.job_type, model))
        if known is not None and known.going:
            self._count_going(known)

    def _count_going(self, known: Known) -> None:
        """Let the estimates of a type count its flat runs that are still going."""
        key = (known.profile.job_type, known.profile.model)
        shown = self.running.shown(key)
        known.going = [one.peak_bytes for one in shown if one.code in ("", known.code)]
        known.outdate()
        self._forget_estimates(key)

    def _weigh(self, key: Key) -> None:
        """Update the margin of all types by the spread of one type's peaks."""
        known = self._types[key]
        count = len(known.profile.runs)
        if count > ENOUGH_RUNS and known.unweighed < max(ENOUGH_RUNS, count // 5):
            return
        known.unweighed = 0
        self._experience.shown(key, *profiling.spread(known.telling))
        if not self._told.is_near(self._experience.margin):
            self._told = self._experience.margin
            self._outdated = deque(self._types)

    def _renew_one(self) -> None:
        """Renew one type's estimates with a new margin: all at once would delay requests."""
        while self._outdated:
            key = self._outdated.popleft()
            if key in self._types:
                self._types[key].outdate()
                self._forget_estimates(key)
                return

    def forget(self, job_type: str) -> bool:
        """Forget a type on all models; True when there was something to forget."""
        keys = {(job_type, model) for model in self._models.get(job_type, ())}
        keys |= {key for key in self.running if key[0] == job_type}
        self.quota.forget(job_type)
        for key in keys:
            self._types.pop(key, None)
            self.running.forget(key)
            self._experience.shown(key, None)
            self._forget_estimates(key)
        self._models.pop(job_type, None)
        self._ran_out.pop(job_type, None)
        return bool(keys)

    def drop(self, job_type: str) -> None:
        """Evict a type without a trace."""
        self.forget(job_type)
        self.changed.pop(job_type, None)
        self.woken.discard(job_type)

    def version_of(self, job_type: str) -> int:
        """Return a number that rises whenever a type's need may have changed, but for guesses."""
        return self.changed.get(job_type, 0)

    def is_guess(self, job_type: str) -> bool:
        """True when a type's need is guessed from runs of other types."""
        models = self._models.get(job_type, set()) - {HOST_MODEL}
        keys = ((job_type, model) for model in models)
        return not any(self._types[key].peaks.sizes for key in keys if key in self._types)

    def least_guess(self, sizes: Mapping[str, Size]) -> int:
        """Return the least guessed need of an unknown type on any model."""
        return min(
            guess_bytes(self._peaks.on(model, size.capacity_bytes), 0, size.capacity_bytes)
            for model, size in sizes.items()
        )

    def estimate(self, job_type: str, model: str, capacity_bytes: int) -> Estimate | None:
        """Return the estimate for the next run, None for a type never measured."""
        known = self._types.get((job_type, model))
        return known.estimate(capacity_bytes, self.margin) if known else None

    def is_grower(self, job_type: str) -> bool:
        """True when runs of a type grow for long, on any model."""
        models = self._models.get(job_type, ())
        return any(profiling.is_grower(self.profile(job_type, model)) for model in models)

    def usual_s(self, job_type: str, model: str) -> float | None:
        """Return how long runs of a type usually take, None without a successful run."""
        known = self._types.get((job_type, model))
        return known.usual_s() if known else None

    def alone_s(self, request: Request, model: str, power: float) -> float | None:
        """Return how long a run with these arguments takes alone, None when unknown."""
        known = self._types.get((request.job_type, model))
        return known.alone_s(request.arguments, power) if known else None

    def spread(self, job_type: str, model: str, power: float) -> float:
        """Return the standard deviation of the logarithm of a type's durations alone."""
        known = self._types.get((job_type, model))
        return known.spread(power) if known else PRIOR_SPREAD

    def most_of_alike(self, request: Request, model: str) -> int | None:
        """Return the largest peak of runs like this one, 0 if there are none, None if unknown."""
        known = self._types.get((request.job_type, model))
        if known is None or not profiling.is_known(known.profile):
            return None
        return profiling.most_of_alike(known.of_code(request.code).telling, request.arguments)

    def settling(self, request: Request, model: str) -> profiling.Settling | None:
        """Return when runs of a type have nearly their peak, None when unknown or late."""
        known = self._types.get((request.job_type, model))
        return known.of_code(request.code).settling() if known else None

    def refresh(self) -> None:
        """Compute what new runs have changed, before a request needs it."""
        self._peaks.refresh()

    def _largest(self, key: Key, capacity_bytes: int) -> int | None:
        """Return the largest peak of a type; a flat first run counts, too."""
        estimate = self.estimate(*key, capacity_bytes)
        largest = estimate.largest_bytes if estimate else self.running.flat_bytes(key)
        return None if largest is None else min(capacity_bytes, largest)

    def _forget_estimates(self, key: Key) -> None:
        self._peaks.outdate(key)
        self._note_change(key[0])

    def _note_change(self, job_type: str) -> None:
        self.version += 1
        self.changed[job_type] = self.version
        self.woken.add(job_type)


def _was_estimated(request: Request) -> bool:
    """True when a job's reservation came from an estimate only."""
    return request.mem_bytes is None and not request.attempt and not request.is_exclusive
