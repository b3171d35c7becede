"""What the negotiator remembers of job types, and what a request is believed to need.

Turns finished runs into profiles and profiles into needs; it grants nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from grn.model.job import Argument, Request
from grn.model.profile import Estimate, Profile, Run
from grn.model.sizes import show_size
from grn.negotiator import arguments, learn
from grn.negotiator.place import Need, Size

Key = tuple[str, str]  # job type, GPU model
_ANY_CAPACITY = 1 << 60
_MOST_DRAWN = 1000
_What = tuple[str, int, tuple[Argument, ...]]  # GPU model, capacity, arguments
_Flat = tuple[str, int, tuple[Argument, ...]]  # lease, need, arguments


class Memory:
    """Profiles of all job types, and the estimates drawn from them."""

    def __init__(self) -> None:
        self._profiles: dict[Key, Profile] = {}
        self._peaks: dict[Key, learn.Peaks] = {}  # of those profiles that had a new run
        self._estimates: dict[Key, dict[int, Estimate | None]] = {}
        self._running: dict[Key, _Flat] = {}  # what a flat first run shows
        self._arguments: dict[Key, learn.ByArguments] = {}
        self._drawn: dict[str, dict[_What, Need]] = {}  # job type -> what its arguments lead to
        self._usual: dict[Key, float | None] = {}
        self._models: dict[str, set[str]] = {}  # job type -> models it was measured on
        self.version = 0  # rises whenever a need may have changed
        self.changed: dict[str, int] = {}  # job type -> the version that its need last changed in
        self._known: dict[tuple[str, int], dict[str, int]] = {}  # (model, capacity) -> type -> need
        self._ranked: dict[tuple[str, int], list[int]] = {}  # the same needs in order
        self._stale: set[Key] = set()  # what in there is not right any more
        self.woken: set[str] = set()  # types whose need has changed since somebody asked

    def load(self, profiles: Iterable[Profile]) -> None:
        """Take in what was saved."""
        for profile in profiles:
            self._put(profile)

    def profiles(self) -> list[Profile]:
        """Return all profiles."""
        return list(self._profiles.values())

    def profile(self, job_type: str, model: str) -> Profile | None:
        return self._profiles.get((job_type, model))

    def knows(self, job_type: str, model: str) -> bool:
        """True when a run of this type has shown what it needs on this model."""
        key = (job_type, model)
        return key in self._running or learn.is_known(self._profiles.get(key))

    def add(self, request: Request, model: str, run: Run) -> None:
        """Remember one finished run."""
        key = (request.job_type, model)
        before = self._profiles.get(key)
        if before is None:
            before = Profile(request.job_type, model, request.label, request.user)
        after = learn.add_run(before, run)
        if key not in self._peaks:
            self._peaks[key] = learn.Peaks.of(before)
        self._peaks[key].add(run)
        dropped = before.runs[0] if len(after.runs) == len(before.runs) else None
        if dropped is not None:
            self._peaks[key].drop_oldest(dropped)
        known = self._arguments.get(key)
        self._put(after)
        if known is not None and known.stays(run, dropped, self._peaks[key]):
            self._arguments[key] = known

    def shown_while_running(self, request: Request, model: str, need_bytes: int) -> None:
        """Remember what a first run seems to need before it has ended."""
        self._running[(request.job_type, model)] = (request.lease, need_bytes, request.arguments)
        self._note_change(request.job_type)

    def run_over(self, request: Request, model: str) -> None:
        """Drop what a first run seemed to need, when it is this one that has ended."""
        key = (request.job_type, model)
        if key in self._running and self._running[key][0] == request.lease:
            del self._running[key]
            self._note_change(request.job_type)

    def forget(self, job_type: str) -> bool:
        """Forget a type on all models; True when there was something to forget."""
        keys = {key for key in (*self._profiles, *self._running) if key[0] == job_type}
        for key in keys:
            self._profiles.pop(key, None)
            self._running.pop(key, None)
            self._peaks.pop(key, None)
            self._forget_estimates(key)
        self._models.pop(job_type, None)
        return bool(keys)

    def version_of(self, job_type: str) -> int:
        """Return a number that rises whenever a type may need something else, unless by a guess."""
        return self.changed.get(job_type, 0)

    def is_guess(self, job_type: str) -> bool:
        """True when only runs of other types tell what a type may need."""
        models = self._models.get(job_type, ())
        return not any(self.estimate(job_type, model, _ANY_CAPACITY) for model in models)

    def least_guess(self, sizes: Mapping[str, Size]) -> int:
        """Return what a type nobody knows is believed to need at least, on any model."""
        return min(
            learn.guess_bytes(
                self._known_on(model, size.capacity_bytes), 0, size.capacity_bytes, is_ranked=True
            )
            for model, size in sizes.items()
        )

    def estimate(self, job_type: str, model: str, capacity_bytes: int) -> Estimate | None:
        """Return what is believed of the next run, None for a type never measured."""
        key = (job_type, model)
        by_capacity = self._estimates.get(key)
        if by_capacity is None:
            by_capacity = self._estimates[key] = {}
        if capacity_bytes not in by_capacity:
            profile = self._profiles.get(key)
            by_capacity[capacity_bytes] = (
                learn.estimate(profile, capacity_bytes, self._peaks.get(key)) if profile else None
            )
        return by_capacity[capacity_bytes]

    def usual_s(self, job_type: str, model: str) -> float | None:
        """Return how long runs of a type usually take, None when no good one was seen."""
        key = (job_type, model)
        if key not in self._usual:
            self._usual[key] = learn.usual_duration_s(self._profiles.get(key))
        return self._usual[key]

    def refresh(self) -> None:
        """Draw the estimates that new runs have changed, so that nobody waits for that later."""
        stale, self._stale = self._stale, set()  # a set that was large once is slow to empty
        for key in stale:
            for (model, capacity_bytes), known in self._known.items():
                if model == key[1]:
                    ranked = self._ranked[(model, capacity_bytes)]
                    before = known.pop(key[0], None)
                    if before is not None:
                        del ranked[bisect_left(ranked, before)]
                    if estimate := self.estimate(*key, capacity_bytes):
                        known[key[0]] = estimate.need_bytes
                        insort(ranked, estimate.need_bytes)

    def needs(self, request: Request, sizes: Mapping[str, Size]) -> dict[str, Need]:
        """Return the need on each GPU model."""
        return {model: self._need(request, model, size) for model, size in sizes.items()}

    def _need(self, request: Request, model: str, size: Size) -> Need:
        believed = self._believed(request, model, size.capacity_bytes)
        stated = request.mem_bytes
        if stated is None:
            return self._raised(request, believed, size.capacity_bytes)
        if stated > size.total_bytes:
            return Need(stated, False, "as stated")  # this model is too small for it
        stated = min(stated, size.capacity_bytes)  # "all of it" means all that can be promised
        if believed.is_probe:  # a guess gives way to a word, but not what failed runs have shown
            floor = self._floor((request.job_type, model), size.capacity_bytes)
            believed = Need(floor, False, f"a failed run already needed {show_size(floor)}")
        text = "as stated" if stated >= believed.need_bytes else believed.because
        need = Need(max(stated, believed.need_bytes), False, text)
        return self._raised(request, need, size.capacity_bytes)

    def _believed(self, request: Request, model: str, capacity_bytes: int) -> Need:
        key = (request.job_type, model)
        estimate = self.estimate(request.job_type, model, capacity_bytes)
        running = self._running.get(key)
        if estimate is not None:
            if not request.arguments:
                return Need(estimate.need_bytes, False, estimate.because)
            drawn = self._drawn.setdefault(request.job_type, {})
            what = (model, capacity_bytes, request.arguments)
            if what not in drawn:
                if len(drawn) >= _MOST_DRAWN:
                    drawn.clear()
                drawn[what] = self._by_arguments(request, key, capacity_bytes, estimate)
            return drawn[what]
        if running and arguments.exceeds(request.arguments, [dict(running[2])]) is None:
            need = max(running[1], self._floor(key, capacity_bytes))
            because = "its first run, still going, is flat at that"
            return Need(min(need, capacity_bytes), False, because)
        guess = self._guess(key, capacity_bytes)
        return Need(guess, True, f"never measured, guessed {show_size(guess)}")

    def _by_arguments(
        self, request: Request, key: Key, capacity_bytes: int, estimate: Estimate
    ) -> Need:
        """Return what a type of which something is known needs with these arguments."""
        known = self._arguments.get(key)
        if known is None:
            known = self._arguments[key] = learn.ByArguments.of(self._profiles[key])
        said = known.bound(request.arguments, capacity_bytes)
        need, because = said or (estimate.need_bytes, estimate.because)
        floor = self._floor(key, capacity_bytes) if known.has_failed else 0
        beyond = arguments.exceeds(request.arguments, known.seen)
        if beyond is None:
            return Need(min(capacity_bytes, max(need, floor)), False, because)
        running = self._running.get(key)
        if running and arguments.exceeds(request.arguments, [dict(running[2])]) is None:
            shown = min(capacity_bytes, max(running[1], floor))
            return Need(shown, False, "a run that is still going is flat at that")
        if known.line is None or known.line.name != beyond.name:
            # Memory grows at most as fast as what it is made for, and there may be a fixed part.
            need = int(min(float(capacity_bytes), need * beyond.times))
        need = min(capacity_bytes, max(need, estimate.need_bytes, floor))
        because = f"guessed {show_size(need)}: no run had such a {beyond.name}"
        return Need(need, True, because)

    def _guess(self, key: Key, capacity_bytes: int) -> int:
        floor = self._floor(key, capacity_bytes)
        elsewhere = [
            estimate.need_bytes
            for model in self._models.get(key[0], ())
            if (estimate := self.estimate(key[0], model, _ANY_CAPACITY))
        ]
        if elsewhere:  # the same type on another model says more than other types on this one
            return min(capacity_bytes, max(floor, *elsewhere))
        known = self._known_on(key[1], capacity_bytes)
        return learn.guess_bytes(known, floor, capacity_bytes, is_ranked=True)

    def _floor(self, key: Key, capacity_bytes: int) -> int:
        profile = self._profiles.get(key)
        return learn.lower_bound_bytes(profile, capacity_bytes) if profile else 0

    def _known_on(self, model: str, capacity_bytes: int) -> list[int]:
        self.refresh()
        slot = (model, capacity_bytes)
        if slot not in self._known:
            self._known[slot] = {
                key[0]: estimate.need_bytes
                for key in self._profiles
                if key[1] == model and (estimate := self.estimate(*key, capacity_bytes))
            }
            self._ranked[slot] = sorted(self._known[slot].values())
        return self._ranked[slot]

    def _put(self, profile: Profile) -> None:
        key = (profile.job_type, profile.model)
        self._profiles[key] = profile
        self._models.setdefault(profile.job_type, set()).add(profile.model)
        self._forget_estimates(key)

    @staticmethod
    def _raised(request: Request, need: Need, capacity_bytes: int) -> Need:
        """Give a job that ran out of memory more room than was believed enough."""
        if not request.attempt:
            return need
        more = learn.after_out_of_memory(need.need_bytes, request.attempt, capacity_bytes)
        because = f"ran out of memory {request.attempt}x before"
        return Need(more, need.is_probe, because)

    def _forget_estimates(self, key: Key) -> None:
        self._estimates.pop(key, None)
        self._arguments.pop(key, None)
        self._usual.pop(key, None)
        self._stale.add(key)
        self._note_change(key[0])

    def _note_change(self, job_type: str) -> None:
        self.version += 1
        self.changed[job_type] = self.version
        self.woken.add(job_type)
        self._drawn.pop(job_type, None)
