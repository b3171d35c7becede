"""The engine's state as plain messages for clients to show. Documented in docs/json.md.

Only reads; every text of a user passes `harmless` on its way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from grn.model.gpu import ComputeMode, GpuKind
from grn.model.job import Profile, Request, Run, tag_of
from grn.model.text import harmless
from grn.negotiator.actions import Grant
from grn.negotiator.engine_view import EngineView
from grn.negotiator.events import Booking, Lease, LeaseState
from grn.negotiator.learn.idle_leases import held_bytes
from grn.negotiator.learn.memory import profiling
from grn.negotiator.schedule.room.ledger import Book
from grn.negotiator.schedule.turns.order import Turn, WaitingRequest
from grn.protocol.negotiator_rows import BookingRow, ShareRow

Row = dict[str, Any]


def status(view: EngineView, at: float, most: int | None = None) -> Row:
    """Return GPUs, leases and waiting requests, in turn; at most `most` of each, if given."""
    return {
        "gpus": [
            gpu(book) | idle_on(view, book, lambda since: {"idle_for_s": at - since})
            for book in view.books.values()
        ],
        "leases": [lease(view, one, at) for one in islice(view.leases.values(), most)],
        "waiting": [waiting(view, one, place, at) for place, one in islice(in_turn(view), most)],
        "shares": shares(view, at),
    }


def shares(view: EngineView, at: float) -> list[ShareRow]:
    """Return the usage of each user, the lowest weighted usage first."""
    waiting = view.waitlist.count_by_user()
    users = sorted({*view.usage.users(), *waiting}, key=lambda user: view.usage.level(user, at))
    return [
        ShareRow(
            user,
            weight=view.usage.weight(user),
            had_gpu_h=view.usage.used_h(user, at),
            gpus_now=view.usage.rate(user),
            waits=waiting.get(user, 0),
        )
        for user in users
    ]


def bookings(view: EngineView, at: float) -> list[BookingRow]:
    """Return all bookings, the first to begin first."""
    found = sorted(view.bookings.values(), key=lambda one: (one.start_at, one.id))
    return [booking(view, one, at) for one in found]


def booking(view: EngineView, booking: Booking, at: float) -> BookingRow:
    """Return one booking."""
    is_active = booking.start_at <= view.booking_clock(at)
    return BookingRow(
        booking.id,
        booking.user,
        harmless(booking.user_name),
        booking.count,
        tuple(sorted(view.books[uuid].gpu.index for uuid in booking.gpus)),
        booking.start_at,
        booking.end_at,
        "active" if is_active else "ahead",
        booking.is_used,
    )


def profiles(view: EngineView, job_type: str | None) -> list[Row]:
    """Return the profiles of one type (by its full name or its label) or of all."""
    return [profile(view, one) for one in profiles_of(view, job_type)]


def profiles_of(view: EngineView, job_type: str | None) -> list[Profile]:
    """Find the profiles of one type, by its full name, its label or the end of its path, or all."""
    ending = f"/{job_type}" if job_type and "/" in job_type else None
    return [
        profile
        for profile in view.memory.profiles()
        if job_type is None
        or job_type in (profile.job_type, profile.label)
        or (ending is not None and profile.job_type.endswith(ending))
    ]


def granted(
    grant: Grant, indices_hold: bool, cap: float | None = None, may_end_quietly: bool = False
) -> Row:
    """Return a lease as its client needs it.

    CUDA_VISIBLE_DEVICES takes the UUIDs of physical GPUs: they name the same GPU whatever happens
    to the others, before the job starts or while it runs.
    """
    kinds = {gpu.kind for gpu in grant.gpus}
    indices = None
    if indices_hold and GpuKind.MIG not in kinds:
        indices = ",".join(str(gpu.index) for gpu in grant.gpus)
    uuids = ",".join(gpu.uuid for gpu in grant.gpus)
    return {
        "ev": "granted",
        "lease": grant.lease.id,
        "visible": indices if indices and kinds == {GpuKind.VIRTUAL} else uuids,
        "indices": indices,
        "gpus": [{"index": gpu.index, "uuid": gpu.uuid} for gpu in grant.gpus],
        "reserved": grant.lease.reserved_bytes,
        "probe": grant.lease.is_probe,
        "cap": cap,
        "nested": False,
        "quiet": may_end_quietly,
    }


def reasons(view: EngineView, user: int, keys: Iterable[str], at: float) -> Row:
    """Return by key why requests of a user wait; requests of one group share the answer."""
    found: Row = {}
    said: dict[int, Row] = {}
    for key in keys:
        group = view.waitlist.group_of(key)
        if group is None or group.members[key].request.user != user:
            continue
        if group.number not in said:
            said[group.number] = _reason(view, key, at)
        found[key] = said[group.number]
    return found


def _reason(view: EngineView, key: str, at: float) -> Row:
    wait = view.why(key, at)
    return {
        "reason": wait.reason.value if wait else None,
        "why": harmless(wait.text) if wait else "",
    }


def is_meant(name: str, request: Request, shown_id: str) -> bool:
    """True when a name is the beginning of an id, or the pid, the type or the label of a job."""
    if shown_id.startswith(name) or name in (request.label, request.job_type):
        return True
    return request.holder is not None and name == str(request.holder.pid)


def gpu(book: Book) -> Row:
    """Return one GPU."""
    reading, is_shut = book.reading, book.is_read and book.mode is ComputeMode.PROHIBITED
    return {
        "index": book.gpu.index,
        "uuid": book.gpu.uuid,
        "model": harmless(book.gpu.model),
        "kind": book.gpu.kind.value,
        "health": ComputeMode.PROHIBITED.value if is_shut else reading.health.value,
        "total_bytes": book.gpu.total_bytes,
        "guard_bytes": book.guard_bytes,
        "used_bytes": reading.used_bytes,
        "reserved_bytes": sum(lease.reserved_on(book.gpu.uuid) for lease in book.leases.values()),
        "strangers_bytes": book.strangers_bytes,
        "unexplained_bytes": book.unexplained_bytes,
        "free_bytes": max(0, book.free_bytes) if book.is_usable else None,
        "load_pct": reading.load_pct,
        "temperature_c": reading.temperature_c,
        "power_w": reading.power_w,
        "clock_mhz": reading.clock_mhz,
        "load_cap": book.load_cap,
        "links": [
            {"to": link.to, "by": link.kind.value, "lanes": link.lanes or None}
            for link in book.gpu.links
        ],
        "leases": list(book.leases),
    }


def idle_on(view: EngineView, book: Book, when: Callable[[float], Row]) -> Row:
    """Return what is idle on one GPU; `when` spells since when."""
    leases = [lease for lease in book.leases.values() if lease.idle_since is not None]
    found = view.idle_strangers.get(book.gpu.uuid, {}).values()
    strangers = [
        {
            "pid": one.pid,
            "user": one.user,
            "used_bytes": book.used_by_stranger(one.pid),
            **when(one.since),
        }
        for one in found
    ]
    held = sum(held_bytes(book, lease) for lease in leases)
    return {
        "idle_bytes": held + sum(book.used_by_stranger(one.pid) for one in found),
        "idle_leases": [lease.id for lease in leases],
        "idle_strangers": strangers,
    }


def host(view: EngineView) -> Row | None:
    """Return memory and cores of the machine, None where they are not limited."""
    ledger = view.host
    if ledger.size is None:
        return None
    return {
        "cpus": ledger.size.cpus,
        "ram_bytes": ledger.size.ram_bytes,
        "guard_bytes": ledger.guard_bytes,
        "used_bytes": ledger.used_bytes,
        "reserved_bytes": ledger.booked_bytes,
        "strangers_bytes": ledger.strangers_bytes,
        "free_bytes": max(0, ledger.free_bytes()),
        "reserved_cpus": round(ledger.booked_cpus, 2),
        "strangers_cpus": round(ledger.strangers_cpus, 2),
        "free_cpus": round(max(0.0, ledger.free_cpus(are_stated=True)), 2),
    }


def request(request: Request) -> Row:
    """Return a request."""
    return {
        "id": request.lease,
        "type": harmless(request.job_type),
        "label": harmless(request.label),
        "user": request.user,
        "pid": request.holder.pid if request.holder else None,
        "gpus_asked": request.gpus,
        "mem_bytes": request.mem_bytes,
        "cpus": request.cpus,
        "ram_bytes": request.ram_bytes,
        "exclusive": request.is_exclusive,
        "priority": request.priority,
        "policy": request.policy.value,
        "attempt": request.attempt,
    }


def used_by(view: EngineView, lease: Lease) -> int | None:
    """Return the present use of a lease on its fullest GPU."""
    used = [view.books[uuid].measured.get(lease.id) for uuid in lease.gpus]
    return max((size for size in used if size is not None), default=None)


def lease(view: EngineView, lease: Lease, at: float) -> Row:
    """Return one lease."""
    for_s = max(0.0, at - lease.granted_at)  # a long answer may include a newer one
    idle_for_s = None if lease.idle_since is None else max(0.0, at - lease.idle_since)
    times = {"for_s": for_s, "idle_for_s": idle_for_s, "ends_in_s": None}
    return granted_lease(view, lease) | moving_parts(view, lease) | times


def granted_lease(view: EngineView, lease: Lease) -> Row:
    """Return the constant fields of a lease."""
    indices = [view.books[uuid].gpu.index for uuid in lease.gpus]
    held = lease.state is LeaseState.HELD
    return request(lease.request) | {
        "state": "running" if held else "draining",
        "gpus": indices,
        "reserved_bytes": lease.reserved_bytes,
        "reserved_ram_bytes": lease.ram_bytes,
        "reserved_cpus": round(lease.cpus, 2),
        "first_run": lease.is_probe,
        "idled_s": lease.idled_s,
        "reason": None if held else "memory-not-gone",
        "why": harmless(_why_running(lease, indices)),
    }


def moving_parts(view: EngineView, lease: Lease) -> Row:
    """Return the fields of a lease that change from sample to sample."""
    peak = view.watch(lease.id).peak_bytes or None
    cpus = view.host.cpus_of(lease.id)
    return {
        "used_bytes": used_by(view, lease),
        "peak_bytes": peak,
        "used_ram_bytes": view.host.ram_of(lease.id),
        "used_cpus": None if cpus is None else round(cpus, 2),
    }


def _why_running(lease: Lease, indices: list[int]) -> str:
    where = "GPU " + ", ".join(map(str, indices)) if indices else "the host"
    if lease.state is LeaseState.DRAINING:
        return f"its process is gone; {where} still shows its memory"
    if lease.is_probe:
        return f"runs on {where}; first run of its type, so it has all that was free there"
    return f"runs on {where}"


def in_turn(view: EngineView) -> Iterator[tuple[int, WaitingRequest]]:
    """Yield the waiting requests, the next first, each with its place.

    The first few cost little, however many there are: groups and their members are in turn already,
    so a group is read only when its head may be next.
    """
    groups = view.waitlist.in_turn()
    group = next(groups, None)
    heads: list[tuple[Turn, int, WaitingRequest, Iterator[WaitingRequest]]] = []
    place = 0
    while heads or group is not None:
        while group is not None and (not heads or group.turn <= heads[0][0]):
            line = group.in_line()
            one = next(line)
            heappush(heads, (view.turn(one), group.number, one, line))
            group = next(groups, None)
        _, number, one, line = heappop(heads)
        place += 1
        yield place, one
        following = next(line, None)
        if following is not None:
            heappush(heads, (view.turn(following), number, following, line))


def waiting(view: EngineView, waiting: WaitingRequest, place: int, at: float) -> Row:
    """Return a waiting request."""
    return request(waiting.request) | {
        "state": "waiting",
        "place": place,
        "for_s": at - waiting.since,
        "had_gpu_h": view.usage.used_h(waiting.request.user, at),
        "starts_in_s": None,  # unknown; `pages.py` adds the forecast
        "users_before": view.users_before(waiting.request.user, at),
        "tag": tag_of(waiting.request.key),
        **_reason(view, waiting.request.key, at),
    }


def profile(view: EngineView, profile: Profile) -> Row:
    """Return the profile of one type on one GPU model."""
    book = next((b for b in view.books.values() if b.gpu.model == profile.model), None)
    known, margin = view.memory.known(profile.job_type, profile.model), view.memory.margin
    estimate = known.estimate(book.capacity_bytes, margin) if known and book else None
    telling = known.telling if known else profile
    peaks = [run.peak_bytes for run in telling.runs if profiling.counts_in_full(run)]
    by_arguments = known.by_arguments.sentences() if known else []
    return {
        "type": harmless(profile.job_type),
        "label": harmless(profile.label),
        "model": harmless(profile.model),
        "owner": profile.owner,
        "runs": len(profile.runs),
        "known": bool(peaks),
        "largest_bytes": max(peaks, default=None),
        "estimate_bytes": estimate.need_bytes if estimate else None,
        "because": estimate.because if estimate else "no run has shown yet what it needs",
        "by_arguments": [harmless(text) for text in by_arguments],
        "notes": [*profiling.left_out(profile, telling), *margin.sentences(len(peaks))],
        "usual_duration_s": profiling.usual_duration_s(profile),
        "load": view.loads.of(profile.job_type, profile.model),
        "load_cap": book.load_cap if book else None,
        "load_cap_because": book.cap_because if book else "",
        "slower_beside": _slower_beside(view, profile),
        **_of_host(view, profile),
        "history": [_run(run, run in telling.runs) for run in profile.runs[-20:]],
    }


def _run(run: Run, is_telling: bool) -> Row:
    return {
        "outcome": run.outcome.lease_word,
        "peak_bytes": run.peak_bytes,
        "reserved_bytes": run.reserved_bytes,
        "duration_s": run.duration_s,
        "ended_at": run.ended_at,
        "load": run.load,
        "ram_bytes": run.ram_bytes,
        "cpus": _rounded(run.cpus),
        "peak_cpus": _rounded(run.peak_cpus),
        "args": {harmless(name): _shown(value) for name, value in run.arguments},
        "code": run.code or None,
        "counts": profiling.counts_in_full(run),
        "outdated": not is_telling,
        "note": harmless(run.note),
    }


def _of_host(view: EngineView, profile: Profile) -> Row:
    """Return what the next run of a type is believed to need of the host."""
    known, capacity = view.host_profiles, view.host.capacity_bytes
    estimate = known.estimate(profile.job_type, capacity) if capacity else None
    usual, most = known.usual(profile.job_type) or (None, None)
    return {
        "ram_bytes": estimate[0] if estimate else None,
        "ram_because": estimate[1] if estimate else "",
        "cpus": _rounded(usual),
        "peak_cpus": _rounded(most),
    }


def _rounded(cpus: float | None) -> float | None:
    return None if cpus is None else round(cpus, 2)


def _slower_beside(view: EngineView, profile: Profile) -> Row:
    """Return the slowdown beside other types beyond that of their load."""
    beside = view.loads.slower_beside(profile.job_type, profile.model) or {}
    return {harmless(other): slower for other, slower in beside.items()}


def _shown(value: float | str) -> float | str:
    return harmless(value) if isinstance(value, str) else value
