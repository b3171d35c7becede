"""The profiles of job types, and the estimated need of a request.

Turns finished runs into profiles and profiles into needs; it grants nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from grn.model.host import HOST_MODEL
from grn.model.job import Argument, Estimate, Outcome, Profile, Request, Run
from grn.model.units import show_size
from grn.negotiator.learn.arguments import mattering
from grn.negotiator.learn.durations import PRIOR_SPREAD
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.estimate import Known
from grn.negotiator.learn.memory.margin import ENOUGH_RUNS, LAST_RUNS, Experience, Margin
from grn.negotiator.learn.memory.provisional import (
    GANG_SHARE,
    Key,
    LowerBound,
    RankedPeaks,
    RunningNeeds,
    fitted,
    guess_bytes,
    ran_out_alone,
    takes_all,
)  # fmt: skip
from grn.negotiator.learn.memory.quota import TypeQuota
from grn.negotiator.schedule.placement import Need, Size

CHANCE = "miss_chance"  # its name in the state file
_TELLING_SHARE = 0.01  # of a GPU's memory: a process with a CUDA context uses about as much
_ANY_CAPACITY = 1 << 60
_OF_GUARD = 0.5  # of a GPU, that headroom may reach into
_SURE = 0.95  # of a need by arguments, that runs have used
_MAX_DRAWN = 1000  # estimates of one type,
_MAX_DRAWN_IN_ALL = 20_000  # and of all together
_What = tuple[str, int, tuple[Argument, ...], str]  # GPU model, capacity, arguments, code


class TypeProfiles:
    """Profiles of all job types, and the estimates drawn from them."""

    def __init__(self) -> None:
        self._types: dict[Key, Known] = {}
        self.running = RunningNeeds(self._forget_estimates)
        self._drawn: dict[str, dict[_What, Need]] = {}  # job type -> needs by arguments
        self._drawn_count = 0  # an upper bound of their number
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

    def needs(
        self, request: Request, sizes: Mapping[str, Size], reach: Mapping[str, int] | None = None
    ) -> dict[str, Need]:
        """Return the need on each GPU model.

        `reach` is how many GPUs of each model the request may use, None for all.
        """
        needs = {model: self._need(request, model, sizes) for model in sizes}
        bound = self._bound(request, sizes)
        if reach is None:
            reach = {model: size.count for model, size in sizes.items()}
        return fitted(request, needs, bound, sizes, reach)

    def never_fits(
        self, request: Request, sizes: Mapping[str, Size], reach: Collection[str]
    ) -> str | None:
        """Return why no GPU here can serve a request: all proved too small."""
        bound = self._bound(request, sizes) if request.mem_bytes is None else None
        if bound is None or not reach:
            return None
        largest = max(reach, key=lambda model: sizes[model].capacity_bytes)
        told = self._elsewhere(request, largest, sizes)
        size = sizes[largest]
        if bound.model != largest or told is None or told[0] <= size.capacity_bytes:
            return None
        return (
            f"{request.label} needs {show_size(told[0])}, as on {told[1]}, and ran out of memory "
            f"on {largest}, the largest GPU it may use here ({show_size(size.total_bytes)})."
        )

    def _bound(self, request: Request, sizes: Mapping[str, Size]) -> LowerBound | None:
        """Return the lower bound by runs that ran out of memory alone on a GPU."""
        names = self._ran_out.get(request.job_type)
        if not names:
            return None
        profiles = [self._types[(request.job_type, model)].profile for model in names]
        return ran_out_alone(request, profiles, sizes)

    def _need(self, request: Request, model: str, sizes: Mapping[str, Size]) -> Need:
        size = sizes[model]
        if request.mem_bytes is not None and request.mem_bytes > size.total_bytes:
            return Need(request.mem_bytes, False, "as stated")  # this model is too small for it
        need = self._as_said(request, model, sizes)
        need = self.running.raised(request, model, size.capacity_bytes, need)
        return self._raised(request, need, size.capacity_bytes)

    def _as_said(self, request: Request, model: str, sizes: Mapping[str, Size]) -> Need:
        """Return the larger of the estimated and the stated need."""
        size = sizes[model]
        believed = self._believed(request, model, sizes)
        stated = request.mem_bytes
        if stated is None:
            return believed
        stated = min(stated, size.capacity_bytes)  # "all of it" means all that can be reserved
        if believed.is_probe:  # a stated need replaces a guess, but not a bound of failed runs
            floor = self._floor((request.job_type, model), size.capacity_bytes)
            believed = Need(floor, False, f"a failed run already needed {show_size(floor)}")
        text = "as stated" if stated >= believed.need_bytes else believed.because
        return Need(max(stated, believed.need_bytes), False, text)

    def _believed(self, request: Request, model: str, sizes: Mapping[str, Size]) -> Need:
        key, capacity_bytes = (request.job_type, model), sizes[model].capacity_bytes
        measured = self._measured(request, model, capacity_bytes)
        if measured is not None:
            if not measured.is_probe:
                return self._into_guard(request, model, sizes[model], measured)
            return self._as_elsewhere(request, model, sizes, measured)
        running = self.running.sibling_bytes(request, model)
        if running is not None:
            need = max(running, self._floor(key, capacity_bytes))
            because = "its first run, still going, is flat at that"
            return Need(min(need, capacity_bytes), False, because)
        floor = max(self._floor(key, capacity_bytes), self.running.grown_bytes(key))
        floor = min(capacity_bytes, floor)
        elsewhere = self._elsewhere(request, model, sizes)
        if elsewhere is not None:
            return Need(max(floor, elsewhere[0]), True, f"as on {elsewhere[1]}")
        guess = self._guess(key, floor, capacity_bytes, request.gpus)
        least, other = self._used_elsewhere(request.job_type, model, sizes)
        if least > guess:
            return Need(least, True, f"a run on {other} used {show_size(least)}")
        return Need(guess, True, f"never measured, guessed {show_size(guess)}")

    def _into_guard(self, request: Request, model: str, size: Size, need: Need) -> Need:
        """Let headroom reach into the guard if runs of this type soon have all their memory.

        It is room for less than a minute, then the run keeps what it uses. Only what no run has
        used yet may lie there.
        """
        known = self._types[(request.job_type, model)].of_code(request.code)
        if known.settling() is None:
            return need
        least = int(need.need_bytes * _SURE)
        if not request.arguments:
            estimate = known.estimate(size.capacity_bytes, self.margin)
            least = estimate.largest_bytes if estimate else need.need_bytes
        part = int((size.total_bytes - size.capacity_bytes) * _OF_GUARD)
        lower = max(least, need.need_bytes - part)
        return replace(need, need_bytes=lower) if lower < need.need_bytes else need

    def _as_elsewhere(
        self, request: Request, model: str, sizes: Mapping[str, Size], guessed: Need
    ) -> Need:
        """Raise a need that is guessed from other arguments to that of the same ones elsewhere."""
        if not guessed.is_probe or len(self._models[request.job_type]) < 2:
            return guessed
        elsewhere = self._elsewhere(request, model, sizes, is_sure=True)
        if elsewhere is None or elsewhere[0] <= guessed.need_bytes:
            return guessed
        return Need(elsewhere[0], True, f"as on {elsewhere[1]}")

    def _measured(self, request: Request, model: str, capacity_bytes: int) -> Need | None:
        """Return the need by runs on this very model, None when there are none."""
        key = (request.job_type, model)
        seen = self._types.get(key)
        known = seen.of_code(request.code) if seen else None
        estimate = known.estimate(capacity_bytes, self.margin) if known else None
        if known is not None and estimate is not None:
            if not request.arguments:
                return Need(estimate.need_bytes, False, estimate.because)
            drawn = self._drawn.setdefault(request.job_type, {})
            what = (model, capacity_bytes, mattering(request.arguments), request.code)
            if what not in drawn:
                if len(drawn) >= _MAX_DRAWN:
                    drawn.clear()
                self._drawn_count += 1
                if self._drawn_count > _MAX_DRAWN_IN_ALL:
                    self._drawn = {request.job_type: drawn}
                    self._drawn_count = len(drawn) + 1
                drawn[what] = self._by_arguments(request, known, capacity_bytes, estimate)
            return drawn[what]
        return None

    def _by_arguments(
        self, request: Request, known: Known, capacity_bytes: int, estimate: Estimate
    ) -> Need:
        """Return the need of a known type with these arguments."""
        told = known.by_arguments
        said = told.bound(request.arguments, capacity_bytes, self.margin)
        need, because = said or (estimate.need_bytes, estimate.because)
        floor = known.floor_bytes(capacity_bytes) if told.has_failed else 0
        beyond = told.beyond(request.arguments)
        if beyond is None:
            return Need(min(capacity_bytes, max(need, floor)), False, because)
        running = self.running.sibling_bytes(request, known.profile.model)
        if running is not None:
            if running < estimate.need_bytes:  # other values took more than this larger one
                return Need(max(floor, estimate.need_bytes), False, estimate.because)
            shown = min(capacity_bytes, max(running, floor))
            return Need(shown, False, "a run that is still going is flat at that")
        if told.line is None or beyond.name not in (told.line.text, *told.line.names):
            # Memory grows at most in proportion to the argument, and there may be a fixed part.
            need = int(min(float(capacity_bytes), need * told.times_beyond(beyond)))
        need = min(capacity_bytes, max(need, estimate.need_bytes, floor))
        because = f"guessed {show_size(need)}: no run had such a {beyond.name}"
        return Need(need, True, because)

    def _elsewhere(
        self, request: Request, model: str, sizes: Mapping[str, Size], is_sure: bool = False
    ) -> tuple[int, str] | None:
        """Return the need by runs on other models, and that model; None when unknown.

        The same type on another model is better evidence than other types on this one. The need is
        not capped to this model's memory, except for headroom: a run that would fit here without
        headroom gets the whole GPU as a first run. With `is_sure` only runs with such arguments
        count. A type that used all memory of a GPU may need more elsewhere; one that did so on GPUs
        of two sizes uses whatever there is.
        """
        most = sizes[model].capacity_bytes
        found: tuple[int, str] | None = None
        full = self._filled(request.job_type, sizes)
        for other in self._models.get(request.job_type, ()):
            estimate = self.estimate(request.job_type, other, _ANY_CAPACITY)
            if other in (model, HOST_MODEL) or estimate is None:
                continue
            size = sizes.get(other)
            capacity_bytes = size.capacity_bytes if size else _ANY_CAPACITY
            need = self._measured(request, other, capacity_bytes)
            if is_sure and (need is None or need.is_probe):
                continue
            largest = self.most_of_alike(request, other) or estimate.largest_bytes
            if other in full and (len(set(full.values())) > 1 or largest <= most):
                continue
            need_bytes = need.need_bytes if need else estimate.need_bytes
            if largest <= most:
                need_bytes = min(need_bytes, most)
            if found is None or need_bytes > found[0]:
                found = (need_bytes, other)
        return found

    def _filled(self, job_type: str, sizes: Mapping[str, Size]) -> dict[str, int]:
        """Return the models of which a type used nearly all memory, with that memory."""
        found = {}
        for model in self._models.get(job_type, ()):
            estimate = self.estimate(job_type, model, _ANY_CAPACITY)
            if estimate and model in sizes and takes_all(estimate.largest_bytes, sizes[model]):
                found[model] = sizes[model].capacity_bytes
        return found

    def _used_elsewhere(
        self, job_type: str, model: str, sizes: Mapping[str, Size]
    ) -> tuple[int, str]:
        """Return the most that a type used on another model, and that model.

        The runs are still going, have failed, or used all memory of a GPU: a lower bound.
        """
        found = (0, "")
        if len(sizes) == 1 and job_type not in self._models:
            return found  # as on most machines: a shortcut
        full = self._filled(job_type, sizes)
        for other in dict.fromkeys((*sizes, *self._models.get(job_type, ()))):
            if other == model or (other in full and len(set(full.values())) > 1):
                continue
            used = self.running.used_bytes((job_type, other))
            if (known := self._types.get((job_type, other))) is not None:
                used = max([used, *(run.peak_bytes for run in known.telling.runs)])
            found = max(found, (used, other))
        return found

    def _guess(self, key: Key, floor: int, capacity_bytes: int, gpus: int) -> int:
        if gpus > 1:  # a job on several GPUs has probably found one too small
            floor = max(floor, int(capacity_bytes * GANG_SHARE))
        return guess_bytes(self._peaks.on(key[1], capacity_bytes), floor, capacity_bytes)

    def _floor(self, key: Key, capacity_bytes: int) -> int:
        known = self._types.get(key)
        return known.floor_bytes(capacity_bytes) if known else 0

    def _largest(self, key: Key, capacity_bytes: int) -> int | None:
        """Return the largest peak of a type; a flat first run counts, too."""
        estimate = self.estimate(*key, capacity_bytes)
        largest = estimate.largest_bytes if estimate else self.running.flat_bytes(key)
        return None if largest is None else min(capacity_bytes, largest)

    @staticmethod
    def _raised(request: Request, need: Need, capacity_bytes: int) -> Need:
        """Raise the need of a job that ran out of memory above its estimate."""
        if not request.attempt or need.need_bytes > capacity_bytes:
            return need
        more = profiling.after_out_of_memory(need.need_bytes, request.attempt, capacity_bytes)
        because = f"ran out of memory {request.attempt}x before"
        return Need(more, need.is_probe, because)

    def _forget_estimates(self, key: Key) -> None:
        self._peaks.outdate(key)
        self._note_change(key[0])

    def _note_change(self, job_type: str) -> None:
        self.version += 1
        self.changed[job_type] = self.version
        self.woken.add(job_type)
        self._drawn.pop(job_type, None)


def _was_estimated(request: Request) -> bool:
    """True when a job's reservation came from an estimate only."""
    return request.mem_bytes is None and not request.attempt and not request.is_exclusive
