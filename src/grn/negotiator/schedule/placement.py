"""Place a request: `Place`, or `Wait` with the reason.

Reads the books and changes nothing; the order of requests is decided before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from grn.model.job import Policy, Request
from grn.model.text import counted
from grn.model.units import show_size
from grn.negotiator.events import Wait, WaitReason
from grn.negotiator.learn.interference import is_worth
from grn.negotiator.schedule.gang import Candidate, choose
from grn.negotiator.schedule.room.ledger import MIN_LOAD, Book

LOW_LOAD = 0.5  # of a GPU's time, by all its jobs together
_BUSY = "learned from past runs"
_MAX_NAMED = 4  # groups of GPUs whose jobs a reason names

_TINY = 1e-9  # for the rounding errors of summed shares


class Need(Struct, frozen=True):
    """What a request needs on a GPU of one model. A probe takes all that is free there."""

    need_bytes: int
    is_probe: bool
    because: str
    load: float | None = None  # the estimated share of the GPU's time
    beside: Mapping[str, float] | None = None  # interfering type -> mutual slowdown
    power: float = 1.0  # how fast time grows with load on this model
    longer: float = 1.0  # duration here relative to the fastest model


class Size(Struct, frozen=True):
    """The GPUs of one model: the memory of the largest, and how much of it may be reserved."""

    total_bytes: int
    capacity_bytes: int
    count: int = 1  # of the largest


class Place(Struct, frozen=True):
    """A placement: the GPUs, and the memory reserved on each."""

    gpus: tuple[str, ...]
    reserved: tuple[int, ...]
    is_probe: bool
    ram_bytes: int = 0  # of the host,
    cpus: float = 0.0  # and its cores


Entry = tuple[float, int]  # the room on a GPU, and its index among the books


class FreeSpace(Struct, frozen=True):
    """The room on GPUs, the least first, and the number of empty ones, for quick refusals."""

    free: Sequence[Entry]
    empty: int
    calm: Sequence[Entry]  # the same without GPUs that are too busy for a known load,
    for_probe: Sequence[Entry]  # and without those that have a first run
    without: Collection[int] = ()  # the indices of GPUs in these lists that do not count

    def most(self, gpus: int, is_load_known: bool = False, is_probe: bool = False) -> float:
        """Return the largest need that a number of GPUs can take each."""
        if not gpus:
            return math.inf
        free = self.calm if is_load_known else self.free
        if is_probe:
            free = self.for_probe
        if not self.without:
            return free[-gpus][0] if len(free) >= gpus else -math.inf
        rooms = (room for room, index in reversed(free) if index not in self.without)
        return next(islice(rooms, gpus - 1, None), -math.inf)

    def has(
        self, gpus: int, need_bytes: float, is_load_known: bool = False, is_probe: bool = False
    ) -> bool:
        """True when a number of GPUs can take a need each."""
        return self.most(gpus, is_load_known, is_probe) >= need_bytes


def is_taking(book: Book) -> bool:
    """True when a GPU may be open to a process that has nothing on it yet."""
    return book.is_usable and not (book.leases and book.is_exclusive)


def is_empty(book: Book) -> bool:
    """True when no job is here; a desktop may be."""
    return book.is_usable and not book.leases and book.strangers_bytes <= book.guard_bytes


def is_calm(book: Book) -> bool:
    """True when a GPU has time left for a job of known load."""
    return not book.leases or book.load <= book.load_cap - MIN_LOAD + _TINY


def place(
    request: Request,
    needs: Mapping[str, Need],
    books: Sequence[Book],
    closed: Collection[str] = (),
) -> Place | Wait:
    """Choose GPUs for a request among `books`, the GPUs it may use at all."""
    homes = pinned(request, books)
    if homes and len(homes) < request.gpus:
        names = ", ".join(str(book.gpu.index) for book in homes)
        text = f"this process already uses GPU {names} and cannot get {request.gpus} GPUs"
        return Wait(WaitReason.STAYS_ON_ITS_GPU, text)
    if homes and _is_too_much(request, homes):
        names = ", ".join(str(book.gpu.index) for book in homes)
        asked = show_size(request.mem_bytes)
        text = f"this process already uses GPU {names} and cannot get {asked} there"
        return Wait(WaitReason.STAYS_ON_ITS_GPU, text)
    candidates = homes or books
    if homes:  # it cannot move to GPUs with more time or memory
        needs = _within(_but_for_load(needs), homes)
    usable = [book for book in candidates if book.is_usable]
    if len(usable) < request.gpus:
        return _silent(candidates)
    if request.gpus == 1 and request.policy is Policy.SPREAD and not closed:
        best = _fit_on_roomiest(request, needs, usable)
        if best is not None:
            return Place((best.book.gpu.uuid,), (best.reserve_bytes,), False)
    fits = [fit for book in usable if (fit := _fit(request, needs[book.gpu.model], book))]
    open_to_it = [fit for fit in fits if fit.book.gpu.uuid not in closed] if closed else fits
    chosen = choose(request, open_to_it)
    if chosen:
        return Place(
            tuple(fit.book.gpu.uuid for fit in chosen),
            tuple(fit.reserve_bytes for fit in chosen),
            any(fit.is_probe for fit in chosen),
        )
    if choose(request, fits):
        return Wait(
            WaitReason.YIELDS_TO_OLDER, "a GPU is reserved for a job that has waited longer"
        )
    return _why(request, needs, usable, fits, bool(homes))


def allowed(request: Request, books: Sequence[Book]) -> list[Book]:
    """Return the GPUs that a request may use at all."""
    if not request.slots:
        return list(books)
    return [book for book in books if any(name in request.slots for name in book.names)]


def is_anywhere(request: Request) -> bool:
    """True when a request may use any GPU, whatever its process has used before."""
    is_own = request.holder is not None and not request.is_command
    return not (request.slots or request.stay or is_own)


def pinned(request: Request, books: Sequence[Book]) -> list[Book]:
    """Return the GPUs that the requesting process cannot leave: a CUDA context does not move."""
    stay = [book for book in books if book.gpu.uuid in request.stay] if request.stay else []
    if stay or request.holder is None or request.is_command:
        return stay
    pid = request.holder.pid
    return [book for book in books if (book.leases or book.reading.uses) and book.has_pid(pid)]


def _is_too_much(request: Request, homes: Sequence[Book]) -> bool:
    """True when the GPUs that a process cannot leave are smaller than what it states to need."""
    if request.mem_bytes is None:
        return False
    return sum(book.gpu.total_bytes >= request.mem_bytes for book in homes) < request.gpus


def could_take(request: Request, need: Need, book: Book) -> bool:
    """True when a request would fit on a GPU without leases."""
    if not book.reading.uses:  # as on most free GPUs: a shortcut
        return need.need_bytes <= book.once_empty_bytes
    strangers = book.strangers_bytes - _own_bytes(request, book)
    if (request.is_exclusive or book.is_exclusive) and strangers > book.guard_bytes:
        return False
    return need.need_bytes <= book.beside_bytes(strangers + book.unexplained_bytes)


def to_keep(
    request: Request,
    needs: Mapping[str, Need],
    books: Sequence[Book],
    ready_s: Callable[[Book, Need], float] = lambda book, need: 0.0,
) -> list[Book]:
    """Return the GPUs to reserve for a request: the soonest ready, then the roomiest.

    `ready_s` returns how long it takes until a GPU has room for a need.
    """
    homes = pinned(request, books) or books
    good = [
        book
        for book in homes
        if book.is_usable and could_take(request, needs[book.gpu.model], book)
    ]
    if len(good) < request.gpus:
        return []
    soonest = sorted(
        good, key=lambda book: (ready_s(book, needs[book.gpu.model]), -book.free_bytes)
    )
    return soonest[: request.gpus]


def _own_bytes(request: Request, book: Book) -> int:
    """Return the memory the requesting process still has here: its job may reuse it."""
    if request.holder is None or request.is_command:
        return 0
    return book.used_by_stranger(request.holder.pid)


def _free_for(request: Request, book: Book) -> int:
    return book.free_bytes + (_own_bytes(request, book) if book.reading.uses else 0)


def _fit_on_roomiest(
    request: Request, needs: Mapping[str, Need], books: Sequence[Book]
) -> Candidate | None:
    """Try the GPU that the policy prefers; if it fits, the others need not be tried."""

    def preference(book: Book) -> tuple[float, bool, int, int]:
        free = _free_for(request, book) if book.reading.uses else book.free_bytes
        return (_slowed(book, needs[book.gpu.model]), bool(book.leases), -free, book.gpu.index)

    first = min(books, key=preference)
    fit = _fit(request, needs[first.gpu.model], first)
    return None if fit is None or fit.is_probe else fit


def _slowed(book: Book, need: Need) -> float:
    """Return the estimated slowdown if one more job runs here, rounded to 0.1."""
    slowed = need.longer * max(1.0, book.load + (need.load or 0.0))
    if need.beside and book.leases:
        slowed *= _slower_beside(need, need.beside, book)
    return slowed if slowed == 1.0 else round(slowed, 1)


def _slower_beside(need: Need, beside: Mapping[str, float], book: Book) -> float:
    """Return the slowdown that pairs of types add; infinity when throughput would fall.

    Jobs of little load do not interfere, whatever their durations suggest.
    """
    if need.load is not None and book.load + need.load <= LOW_LOAD:
        return 1.0
    slower = [beside.get(lease.request.job_type, 1.0) for lease in book.leases.values()]
    most = max(slower)
    if most > 1.0 and not is_worth(book.load, need.load or 0.0, slower, need.power):
        return math.inf
    return most


def _fit(request: Request, need: Need, book: Book) -> Candidate | None:
    if not could_take(request, need, book):
        return None
    free = _free_for(request, book)
    is_alone = request.is_exclusive or book.is_exclusive
    if book.leases and (is_alone or need.need_bytes > free or book.has_exclusive):
        return None
    if need.load is not None and book.leases and book.load + need.load > book.load_cap + _TINY:
        return None
    slowed = _slowed(book, need)
    if slowed == math.inf:
        return None
    if need.is_probe and not request.is_exclusive:  # alone, its need does not matter
        return None if book.has_probe else Candidate(book, free, free, True, slowed)
    reserve = free if is_alone else min(need.need_bytes, free)
    return Candidate(book, free, reserve, False, slowed)


def _but_for_load(needs: Mapping[str, Need]) -> dict[str, Need]:
    return {model: replace(need, load=None, beside=None) for model, need in needs.items()}


def _within(needs: Mapping[str, Need], homes: Sequence[Book]) -> dict[str, Need]:
    """Cap needs inferred from other models for a process that cannot leave its GPUs."""
    within = dict(needs)
    for book in homes:
        need, most = within[book.gpu.model], book.capacity_bytes
        if need.need_bytes > most:
            within[book.gpu.model] = replace(need, need_bytes=most, is_probe=True)
    return within


def _but_for_pairs(needs: Mapping[str, Need]) -> dict[str, Need]:
    return {model: replace(need, beside=None) for model, need in needs.items()}


def _could(request: Request, needs: Mapping[str, Need], books: Sequence[Book]) -> bool:
    """True when a request with these needs would be placed."""
    fits = [fit for book in books if (fit := _fit(request, needs[book.gpu.model], book))]
    return bool(choose(request, fits))


def _interferes(beside: Mapping[str, float], books: Sequence[Book]) -> Wait:
    """Name the types that a job should not run beside, though there is room and time."""
    for book in books:
        for lease in book.leases.values():
            if lease.request.job_type in beside:
                text = f"sharing GPU {book.gpu.index} with {lease.request.label} would slow both "
                text += f"down too much ({_BUSY})"
                return Wait(WaitReason.GPUS_BUSY, text)
    return Wait(WaitReason.GPUS_BUSY, f"sharing a GPU would slow its jobs down too much ({_BUSY})")


def _silent(books: Sequence[Book]) -> Wait:
    silent = ", ".join(str(book.gpu.index) for book in books if not book.is_read)
    shut = ", ".join(str(book.gpu.index) for book in books if book.is_read and not book.is_usable)
    texts = [f"the driver does not answer for GPU {silent}"] if silent else []
    texts += [f"the driver lets no job start on GPU {shut} (compute mode)"] if shut else []
    return Wait(WaitReason.GPU_SILENT, "; ".join(texts))


def _holders(books: Sequence[Book], one: str = "has", many: str = "have") -> str:
    """Name the jobs on GPUs: `GPU 0 has train.py (lease 1f2e3d4c)`."""
    parts: dict[str, list[int]] = {}
    for book in books:
        if book.leases or book.strangers_bytes:
            parts.setdefault(_jobs_of(book), []).append(book.gpu.index)
    texts = [
        f"{_gpus(indices)} {one if len(indices) == 1 else many} {jobs}"
        for jobs, indices in list(parts.items())[:_MAX_NAMED]
    ]
    more = sum(map(len, list(parts.values())[_MAX_NAMED:]))
    if more:
        texts.append(f"{counted(more, 'other GPU')} {'is' if more == 1 else 'are'} in use")
    return ", ".join(texts) or "none is empty"


def _gpus(indices: Sequence[int]) -> str:
    *first, last = map(str, indices)
    return f"GPUs {', '.join(first)} and {last}" if first else f"GPU {last}"


def _jobs_of(book: Book) -> str:
    leases = list(book.leases.values())
    if not leases:
        return "processes without a lease"
    first = f"{leases[0].request.label} (lease {leases[0].id}"
    first += ", exclusive)" if leases[0].request.is_exclusive else ")"
    return first + (f" and {counted(len(leases) - 1, 'other job')}" if leases[1:] else "")


def _why(
    request: Request,
    needs: Mapping[str, Need],
    usable: Sequence[Book],
    fits: Sequence[Candidate],
    is_pinned: bool,
) -> Wait:
    able = [book for book in usable if needs[book.gpu.model].need_bytes <= book.capacity_bytes]
    # Memory that an exclusive job has not reserved is not free either.
    best = max(able or usable, key=lambda book: (not book.has_exclusive, book.free_bytes))
    need = needs[best.gpu.model]
    is_choosy = 0 < len(able) < len(usable)  # a smaller GPU may have more free
    among = "of the GPUs large enough for it, " if is_choosy else ""
    room = f"{among}GPU {best.gpu.index} has the most free, {show_size(max(0, best.free_bytes))}"
    if best.free_bytes <= 0 or best.has_exclusive:
        which = "any GPU" if len(able or usable) > 1 else f"GPU {best.gpu.index}"
        room = f"nothing is free on {which}{' large enough for it' if is_choosy else ''}"
        if held := [book for book in able or usable if book.has_exclusive]:
            room = _holders(held)
            if len(held) == len(able or usable) and not is_pinned and not request.is_exclusive:
                what = WaitReason.NO_ROOM_FOR_FIRST_RUN if need.is_probe else WaitReason.NO_ROOM
                return Wait(what, _holders(held, "is held by", "are held by"))
    if best.is_closed:
        room += f"; GPU {best.gpu.index} is closed while a job there outgrows what it reserved"
    strangers = best.strangers_bytes + best.unexplained_bytes
    if strangers > best.guard_bytes:
        room += f" ({show_size(strangers)} is used by processes without a lease)"
    if is_pinned:
        text = f"this process already uses GPU {best.gpu.index} and cannot move; it needs "
        return Wait(WaitReason.STAYS_ON_ITS_GPU, f"{text}{show_size(need.need_bytes)}; {room}")
    if request.gpus > 1 and fits:
        each = f"at once with {show_size(need.need_bytes)} each"
        text = f"needs {request.gpus} GPUs {'to itself' if request.is_exclusive else each}"
        text += f"; only {len(fits)} can take it now"
        if request.is_exclusive:
            text += f": {_holders(usable)}"
        return Wait(WaitReason.NOT_ENOUGH_GPUS, text)
    if request.is_exclusive or best.is_exclusive:
        mode = "" if request.is_exclusive else f" (compute mode of GPU {best.gpu.index})"
        text = f"needs {'a GPU' if request.gpus == 1 else f'{request.gpus} GPUs'} to itself{mode}; "
        return Wait(WaitReason.NO_EMPTY_GPU, text + _holders(usable))
    if need.beside and _could(request, _but_for_pairs(needs), usable):
        return _interferes(need.beside, usable)
    if need.load is not None and _could(request, _but_for_load(needs), usable):
        text = f"would use {need.load:.0%} of a GPU's time ({_BUSY})"
        calmest = min(usable, key=lambda book: book.load)
        text += (
            f"; GPU {calmest.gpu.index} is the least busy: its jobs use {calmest.load:.0%} of at "
        )
        text += f"most {calmest.load_cap:.0%} ({calmest.cap_because})"
        return Wait(WaitReason.GPUS_BUSY, text)
    if need.is_probe:
        text = (
            f"first run of this type: needs a GPU with at least {show_size(need.need_bytes)} free "
        )
        text += f"and no other first run on it; {room}"
        return Wait(WaitReason.NO_ROOM_FOR_FIRST_RUN, text)
    text = f"needs {show_size(need.need_bytes)} ({need.because}); {room}"
    return Wait(WaitReason.NO_ROOM, text)
