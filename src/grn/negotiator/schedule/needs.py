"""What a request needs: of GPU memory and time on each model, and of the host.

Draws on all that is learned. Where a request is placed is decided elsewhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from grn.model.host import HOST_MODEL
from grn.model.job import Request
from grn.model.units import GiB
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.memory.type_needs import TypeNeeds
from grn.negotiator.schedule.placement import Need, allowed
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.host_ledger import HostNeed
from grn.negotiator.schedule.room.ledger import Rules

_LATE = 1.2  # a job may take this many times its usual time
_MAX_GUESSED = 0.5  # of the host, for a type that no run has shown,
_GUESSED = "guessed from other types"
_FIRST_RUN, _MAX_FIRST_RUN_BYTES = 1 / 3, 32 * GiB  # of its memory, for a first run


class RequestNeeds:
    """The estimated needs of requests here."""

    def __init__(
        self,
        rules: Rules,
        type_needs: TypeNeeds,
        loads: Loads,
        holdings: Holdings,
    ) -> None:
        self._short_s = rules.short_s
        self._type_needs = type_needs
        self._memory = type_needs.profiles
        self._loads = loads
        self._holdings = holdings
        self._least_guess = (-1, 0)  # the version of all profiles, and the guess they lead to

    def of(self, request: Request) -> dict[str, Need]:
        """Return the estimated need of a request on each GPU model."""
        if not request.gpus:
            return {}
        needs = self._type_needs.of(request, self._holdings.sizes(), self._reach(request))
        for model, need in needs.items():
            load = self._loads.of(request.job_type, model, request.arguments)
            beside = self._loads.slower_beside(request.job_type, model)
            if load is not None or beside:
                needs[model] = replace(
                    need, load=load, beside=beside, power=self._loads.power(model)
                )
        return self._by_speed(request, needs) if len(needs) > 1 else needs

    def never_fits(self, request: Request) -> str | None:
        """Return why no GPU here can ever serve a request, None when one may."""
        reach = self._reach(request)
        sizes = self._holdings.sizes()
        return self._type_needs.never_fits(request, sizes, sizes if reach is None else reach)

    def _reach(self, request: Request) -> Mapping[str, int] | None:
        """Return how many GPUs of each model a request may use, None for all."""
        if not request.slots and not request.stay:
            return None
        books = allowed(request, list(self._holdings.books.values()))
        stay = [book for book in books if book.gpu.uuid in request.stay]
        return Counter(book.gpu.model for book in stay or books)

    def _by_speed(self, request: Request, needs: dict[str, Need]) -> dict[str, Need]:
        """Add to needs on several models the relative duration on each, where it is known."""
        alone = {model: self.alone_s(request, model) for model in needs}
        times = [each for each in alone.values() if each is not None]
        if len(times) < 2:
            return needs
        return {
            model: replace(need, longer=(alone[model] or min(times)) / min(times))
            for model, need in needs.items()
        }

    def guess(self) -> int:
        """Return the least need of a type without a profile."""
        if self._least_guess[0] != self._memory.version:
            least = self._memory.least_guess(self._holdings.sizes())
            self._least_guess = (self._memory.version, least)
        return self._least_guess[1]

    def renew(self, request: Request) -> None:
        """Compute what new runs have changed for such a request, before the next one needs it."""
        self.of(request)
        self.of_host(request, 0)
        for model in self.models(request):
            self._memory.usual_s(request.job_type, model)

    def is_short(self, request: Request) -> bool:
        """True when such runs are known to be short, or no run has shown what they need.

        A first run goes first: until it is measured, it and its siblings need more room than they
        use.
        """
        if self._is_unmeasured(request):
            return True
        for model in self.models(request):
            alone_s = self.alone_s(request, model)
            if alone_s is not None and alone_s <= self._short_s:
                return True
        return False

    def _is_unmeasured(self, request: Request) -> bool:
        if request.mem_bytes is not None or request.is_exclusive or not request.gpus:
            return False
        return not any(
            self._memory.shows(request.job_type, model) for model in self._holdings.sizes()
        )

    def models(self, request: Request) -> Collection[str]:
        """Return the GPU models a request may be placed on; the host for one without GPUs."""
        return self._holdings.sizes() if request.gpus else (HOST_MODEL,)

    def alone_s(self, request: Request, model: str) -> float | None:
        """Return how long such runs take alone on a GPU model, None when unknown."""
        return self._memory.alone_s(request, model, self._loads.power(model))

    def lasts_s(self, request: Request, unknown_s: float = math.inf) -> float:
        """Return how long a job may take on any GPU here, `unknown_s` when no run has shown it.

        It changes only with the profile of the type, which retries all groups of the type.
        """
        alone = [self.alone_s(request, model) for model in self.models(request)]
        usual_s = max(math.inf if each is None else each for each in alone)
        return longest_s(request, usual_s, unknown_s)

    def of_host(self, request: Request, gpu_bytes: int) -> HostNeed:
        """Return the need of a request on the host, given what it reserves on GPUs.

        What no run has shown is the median of other types, running ones included. Memory is at most
        the part that the request has of all GPUs, and as much while no type is known. A first run,
        which does not state its GPU memory, counts as a third of the host, at most 32 GiB: few
        start at once until one has shown its need.
        """
        host, known = self._holdings.host, self._holdings.host_profiles
        need = known.need(request, host.capacity_bytes, self._memory.margin)
        size = host.size
        if not need.is_guess or size is None:
            return need
        if request.gpus:
            share = min(_MAX_GUESSED, gpu_bytes / max(1, self._holdings.capacity_bytes))
        else:
            share = min(1.0, (request.cpus or 1.0) / size.cpus)
        ram, cpus = known.guess()
        ram_bytes, because = need.ram_bytes, need.because
        if ram_bytes < 0:
            room = max(0, host.capacity_bytes - host.strangers_bytes)
            most = int(room * share)
            if request.gpus and request.mem_bytes is None:
                most = max(most, min(int(room * _FIRST_RUN), _MAX_FIRST_RUN_BYTES))
            ram_bytes = most if ram is None else min(ram, most)
            because = _GUESSED
        cores, cpus_because = need.cpus, need.cpus_because
        if cores < 0:
            most_cpus = size.cpus * share if request.gpus else 1.0
            room_cpus = max(0.0, min(most_cpus, 1.0, host.free_cpus()))
            cores = room_cpus if cpus is None else min(cpus, most_cpus)
            cpus_because = _GUESSED
        return HostNeed(
            ram_bytes, cores, because, cpus_because, need.is_ram_stated, need.are_cpus_stated, True
        )

    def version_of(self, job_type: str) -> int:
        """Return a number that rises whenever the needs of a type may have changed."""
        host = self._holdings.host_profiles
        return self._memory.version_of(job_type) + host.version_of(job_type)


def longest_s(request: Request, usual_s: float, unknown_s: float = math.inf) -> float:
    """Return how long a job may take: some more than usual, and no longer than its time limit."""
    limit_s = math.inf if request.time_limit_s is None else request.time_limit_s
    return min(_LATE * usual_s if usual_s < math.inf else unknown_s, limit_s)


def remaining_s(request: Request, usual_s: float | None, passed_s: float) -> float:
    """Return how long a job runs on: what is left of its usual time, a share of it when late.

    That is no longer than its time limit allows.
    """
    limit_s = math.inf if request.time_limit_s is None else request.time_limit_s
    left_s = math.inf if usual_s is None else usual_s - passed_s
    return min(left_s if left_s >= 0 else passed_s / 4, max(0.0, limit_s - passed_s))
