"""The need of a request on each GPU model, by the profile of its type and by what else is known.

Where the type has no runs on a model, runs that are still going, runs on other models and other
types tell. It remembers nothing but results, and grants nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from grn.model.host import HOST_MODEL
from grn.model.job import Argument, Estimate, Request
from grn.model.units import show_size
from grn.negotiator.learn.arguments import mattering
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.estimate import Known
from grn.negotiator.learn.memory.provisional import (
    GANG_SHARE,
    Key,
    LowerBound,
    fitted,
    guess_bytes,
    ran_out_alone,
    takes_all,
)
from grn.negotiator.learn.memory.type_profiles import TypeProfiles
from grn.negotiator.schedule.placement import Need, Size

_ANY_CAPACITY = 1 << 60
_OF_GUARD = 0.5  # of a GPU, that headroom may reach into
_SURE = 0.95  # of a need by arguments, that runs have used
_MAX_DRAWN = 1000  # needs of one type by arguments,
_MAX_DRAWN_IN_ALL = 20_000  # and of all together
_What = tuple[str, int, tuple[Argument, ...], str]  # GPU model, capacity, arguments, code


class TypeNeeds:
    """Needs of requests, computed from the profiles of all types."""

    def __init__(self, profiles: TypeProfiles) -> None:
        self.profiles = profiles
        # By job type: the version of its need, and needs by arguments.
        self._drawn: dict[str, tuple[int, dict[_What, Need]]] = {}
        self._drawn_count = 0  # an upper bound of their number

    def of(
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
        names = self.profiles.ran_out_on(request.job_type)
        if not names:
            return None
        found = [self.profiles.profile(request.job_type, model) for model in names]
        return ran_out_alone(request, [profile for profile in found if profile], sizes)

    def _need(self, request: Request, model: str, sizes: Mapping[str, Size]) -> Need:
        size = sizes[model]
        if request.mem_bytes is not None and request.mem_bytes > size.total_bytes:
            return Need(request.mem_bytes, False, "as stated")  # this model is too small for it
        need = self._as_said(request, model, sizes)
        need = self.profiles.running.raised(request, model, size.capacity_bytes, need)
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
        running = self.profiles.running.sibling_bytes(request, model)
        if running is not None:
            need = max(running, self._floor(key, capacity_bytes))
            because = "its first run, still going, is flat at that"
            return Need(min(need, capacity_bytes), False, because)
        floor = max(self._floor(key, capacity_bytes), self.profiles.running.grown_bytes(key))
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
        seen = self.profiles.known(request.job_type, model)
        known = seen.of_code(request.code) if seen else None
        if known is None or known.settling() is None:
            return need
        least = int(need.need_bytes * _SURE)
        if not request.arguments:
            estimate = known.estimate(size.capacity_bytes, self.profiles.margin)
            least = estimate.largest_bytes if estimate else need.need_bytes
        part = int((size.total_bytes - size.capacity_bytes) * _OF_GUARD)
        lower = max(least, need.need_bytes - part)
        return replace(need, need_bytes=lower) if lower < need.need_bytes else need

    def _as_elsewhere(
        self, request: Request, model: str, sizes: Mapping[str, Size], guessed: Need
    ) -> Need:
        """Raise a need that is guessed from other arguments to that of the same ones elsewhere."""
        if not guessed.is_probe or len(self.profiles.models(request.job_type)) < 2:
            return guessed
        elsewhere = self._elsewhere(request, model, sizes, is_sure=True)
        if elsewhere is None or elsewhere[0] <= guessed.need_bytes:
            return guessed
        return Need(elsewhere[0], True, f"as on {elsewhere[1]}")

    def _measured(self, request: Request, model: str, capacity_bytes: int) -> Need | None:
        """Return the need by runs on this very model, None when there are none."""
        key = (request.job_type, model)
        seen = self.profiles.known(*key)
        known = seen.of_code(request.code) if seen else None
        estimate = known.estimate(capacity_bytes, self.profiles.margin) if known else None
        if known is not None and estimate is not None:
            if not request.arguments:
                return Need(estimate.need_bytes, False, estimate.because)
            drawn = self._drawn_of(request.job_type)
            what = (model, capacity_bytes, mattering(request.arguments), request.code)
            if what not in drawn:
                if len(drawn) >= _MAX_DRAWN:
                    drawn.clear()
                self._drawn_count += 1
                if self._drawn_count > _MAX_DRAWN_IN_ALL:
                    self._drawn.clear()
                    self._drawn_count = 1
                    drawn = self._drawn_of(request.job_type)
                drawn[what] = self._by_arguments(request, known, capacity_bytes, estimate)
            return drawn[what]
        return None

    def _drawn_of(self, job_type: str) -> dict[_What, Need]:
        """Return the needs of a type by arguments that still hold."""
        version = self.profiles.version_of(job_type)
        kept = self._drawn.get(job_type)
        if kept is None or kept[0] != version:
            kept = self._drawn[job_type] = (version, {})
        return kept[1]

    def _by_arguments(
        self, request: Request, known: Known, capacity_bytes: int, estimate: Estimate
    ) -> Need:
        """Return the need of a known type with these arguments."""
        told = known.by_arguments
        said = told.bound(request.arguments, capacity_bytes, self.profiles.margin)
        need, because = said or (estimate.need_bytes, estimate.because)
        floor = known.floor_bytes(capacity_bytes) if told.has_failed else 0
        beyond = told.beyond(request.arguments)
        if beyond is None:
            return Need(min(capacity_bytes, max(need, floor)), False, because)
        running = self.profiles.running.sibling_bytes(request, known.profile.model)
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
        for other in self.profiles.models(request.job_type):
            estimate = self.profiles.estimate(request.job_type, other, _ANY_CAPACITY)
            if other in (model, HOST_MODEL) or estimate is None:
                continue
            size = sizes.get(other)
            capacity_bytes = size.capacity_bytes if size else _ANY_CAPACITY
            need = self._measured(request, other, capacity_bytes)
            if is_sure and (need is None or need.is_probe):
                continue
            largest = self.profiles.most_of_alike(request, other) or estimate.largest_bytes
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
        for model in self.profiles.models(job_type):
            estimate = self.profiles.estimate(job_type, model, _ANY_CAPACITY)
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
        if len(sizes) == 1 and not self.profiles.models(job_type):
            return found  # as on most machines: a shortcut
        full = self._filled(job_type, sizes)
        for other in dict.fromkeys((*sizes, *self.profiles.models(job_type))):
            if other == model or (other in full and len(set(full.values())) > 1):
                continue
            used = self.profiles.running.used_bytes((job_type, other))
            if (known := self.profiles.known(job_type, other)) is not None:
                used = max([used, *(run.peak_bytes for run in known.telling.runs)])
            found = max(found, (used, other))
        return found

    def _guess(self, key: Key, floor: int, capacity_bytes: int, gpus: int) -> int:
        if gpus > 1:  # a job on several GPUs has probably found one too small
            floor = max(floor, int(capacity_bytes * GANG_SHARE))
        return guess_bytes(self.profiles.peaks_on(key[1], capacity_bytes), floor, capacity_bytes)

    def _floor(self, key: Key, capacity_bytes: int) -> int:
        known = self.profiles.known(*key)
        return known.floor_bytes(capacity_bytes) if known else 0

    @staticmethod
    def _raised(request: Request, need: Need, capacity_bytes: int) -> Need:
        """Raise the need of a job that ran out of memory above its estimate."""
        if not request.attempt or need.need_bytes > capacity_bytes:
            return need
        more = profiling.after_out_of_memory(need.need_bytes, request.attempt, capacity_bytes)
        because = f"ran out of memory {request.attempt}x before"
        return Need(more, need.is_probe, because)
