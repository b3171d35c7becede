"""Judge runs that end, and learn from them.

A run that ran out of memory is judged with what ran beside it; its profile is updated later, when
no request waits for the decision.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from grn.model.job import Outcome, Run
from grn.model.units import show_size
from grn.negotiator.actions import Action, SaveNumber, SaveRun
from grn.negotiator.events import Lease, LeaseSettled, LeaseState, Released
from grn.negotiator.learn.blame import Fault, Participant, Scene, Verdict, judge
from grn.negotiator.learn.host_profiles import HostWatch
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.margin import ENOUGH_RUNS
from grn.negotiator.learn.memory.type_profiles import CHANCE, TypeProfiles
from grn.negotiator.schedule.placement import allowed
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.ledger import Book, Rules

_WITHIN = 1.05  # times its reservation of host memory: sizes of processes are samples


class EndedRun(Struct, frozen=True):
    """A run whose end was judged, with what was seen of it."""

    lease: Lease
    event: Released
    model: str
    watch: profiling.RunWatch
    host: HostWatch
    was_sharing: bool
    verdict: Verdict | None
    note: str
    is_vain: bool = False  # no command has run: nothing is learned


class EndedRuns:
    """Finds the cause of each end, and turns runs into updates of job types."""

    def __init__(
        self, rules: Rules, memory: TypeProfiles, loads: Loads, holdings: Holdings
    ) -> None:
        self._rules = rules
        self._memory = memory
        self._loads = loads
        self._holdings = holdings
        self._guilt: dict[str, str] = {}  # leases whose growth made other jobs run out of memory
        self.wall_offset_s = 0.0

    def judge(self, lease: Lease, event: Released) -> tuple[LeaseSettled, EndedRun]:
        """Judge the end of a run; return the outcome, and what `learn` is to be given."""
        peak = max(self._holdings.watches[lease.id].peak_bytes, event.peak_bytes or 0) or None
        was_sharing = self._holdings.is_sharing(lease)
        settled, verdict = LeaseSettled(event.outcome, not was_sharing, peak), None
        if event.outcome is Outcome.OUT_OF_RAM:
            verdict = self._host_verdict(lease, event)
            settled = replace(settled, was_alone=verdict.fault in (Fault.OWN, Fault.LIMIT))
        elif event.outcome is Outcome.OUT_OF_MEMORY and event.is_limit:
            # More room is a higher cap, also for a job that was alone on its GPU.
            verdict = _at_its_cap(lease)
            event = replace(event, peak_bytes=max(peak or 0, lease.reserved_bytes))
            was_sharing = True
            settled = replace(settled, was_alone=False)
        elif event.outcome is Outcome.OUT_OF_MEMORY and lease.gpus:
            verdict = self._verdict(lease, peak or 0, event.asked_bytes)
        if verdict is not None:
            self._note_guilt(lease, verdict)
            settled = replace(
                settled,
                is_victim=verdict.is_victim,
                because=verdict.text,
                has_larger=verdict.has_larger,
            )
        model = self._holdings.model_of(lease)
        self._memory.ended(lease.request, model)
        return settled, EndedRun(
            lease, event, model, self._holdings.watches[lease.id],
            self._holdings.host_profiles.watches[lease.id], was_sharing, verdict,
            self._guilt.pop(lease.id, ""),
        )  # fmt: skip

    def is_ordinary(self, run: EndedRun) -> bool:
        """True when a run changes little: one more of a known type, within its reservation."""
        lease, resident_bytes = run.lease, run.event.resident_bytes or 0
        profile = self._memory.profile(lease.request.job_type, run.model)
        if profile is None or len(profile.runs) < ENOUGH_RUNS:
            return False
        peak = max(run.watch.peak_bytes, run.event.peak_bytes or 0)
        ram = max(run.host.ram.peak_bytes, resident_bytes)
        return peak <= lease.reserved_bytes and (not lease.ram_bytes or ram <= lease.ram_bytes)

    def learn(self, ended: EndedRun) -> Iterator[Action]:
        """Remember a run that shows the job's need."""
        lease, event, model, verdict = ended.lease, ended.event, ended.model, ended.verdict
        request, watch, host = lease.request, ended.watch, ended.host
        outcome, asked, note = event.outcome, event.asked_bytes, ended.note
        ran_out_alone = False
        if verdict is not None:
            note = verdict.text
            is_gpu = (
                outcome is Outcome.OUT_OF_MEMORY and self._holdings.only_model_of(lease) is not None
            )
            ran_out_alone = verdict.fault is Fault.OWN and is_gpu
            if verdict.is_innocent:  # the peak counts, and the estimate of its type does not grow
                outcome, asked = Outcome.FAILED, None
        end = profiling.RunEnd(
            outcome=outcome,
            at=event.at,
            peak_bytes=event.peak_bytes,
            asked_bytes=asked,
            reserved_bytes=lease.reserved_bytes,
            was_sharing=ended.was_sharing,
            ran_out_alone=ran_out_alone,
            wall_offset_s=self.wall_offset_s,
            arguments=request.arguments,
            code=request.code,
        )
        usual_s = None
        if outcome in profiling.CUT_SHORT:  # only these are compared with the usual duration
            usual_s = profiling.usual_duration_s(self._memory.profile(request.job_type, model))
        if lease.gpus:
            run = profiling.finished_run(end, watch, usual_s, self._rules.flat_s)
            run = self._loads.ended(request, model, run)
        else:
            watch = host.ram
            run = profiling.finished_run(end, watch, usual_s, self._rules.flat_s)
            run = None if run is None else replace(run, peak_bytes=0)
        if run is not None and not ended.is_vain:
            run = replace(
                run, note=note, grown=watch.grown_share(event.at), cpus=host.cpus,
                peak_cpus=host.peak_cpus, ram_bytes=_host_bytes(lease, run, host, event),
            )  # fmt: skip
            self._holdings.set_caps(model)
            size = self._holdings.sizes().get(model)
            self._memory.add(request, model, run, 0 if size is None else size.capacity_bytes)
            self._holdings.host_profiles.add(request.job_type, run)
            yield SaveRun(request.job_type, model, request.label, request.user, run)
            chance = self._memory.number_to_save()
            if chance is not None:
                yield SaveNumber(CHANCE, chance)

    def _verdict(self, lease: Lease, peak_bytes: int, asked_bytes: int | None) -> Verdict:
        """Find the cause of a job's running out of memory."""
        job = Participant(lease.id, lease.request.label, lease.reserved_bytes, peak_bytes)
        books = self._holdings.books_of(lease)
        beside = {
            other.id: _part(other, book) for book in books for other in book.leases.values()
        } | {one: _part(book.leases[one], book) for book in books for one in book.outgrown()}
        beside.pop(lease.id)
        worst = max(books, key=lambda book: book.strangers_bytes - book.guard_bytes)
        strangers, guard = worst.strangers_bytes, worst.guard_bytes
        where = " and ".join(f"GPU {book.gpu.index}" for book in books)
        where += f" ({show_size(max(book.gpu.total_bytes for book in books))})"
        verdict = judge(Scene(job, asked_bytes, tuple(beside.values()), strangers, guard, where))
        if verdict.fault is Fault.OWN and self._has_larger(lease, job.used_bytes, asked_bytes):
            text = f"ran out of memory with all of {where}; a larger GPU is managed here"
            return replace(verdict, text=text, has_larger=True)
        return verdict

    def _host_verdict(self, lease: Lease, event: Released) -> Verdict:
        """Find the cause of a kill by the kernel, or of reaching a limit that was stated."""
        if event.is_limit:
            stated = lease.request.ram_bytes
            size = f" of {show_size(stated)}" if stated else ""
            return Verdict(Fault.LIMIT, text=f"reached its own limit{size} of host memory")
        host, watches = self._holdings.host, self._holdings.host_profiles.watches
        if host.size is None:
            return Verdict(Fault.NOBODY, text="was killed by the kernel: host memory ran out")
        peak = max(watches[lease.id].ram.peak_bytes, event.resident_bytes or 0)
        held = [one for one in self._holdings.leases.values() if one.state is LeaseState.HELD]
        beside = [_host_part(one, host.ram_of(one.id) or 0) for one in held if one.id != lease.id]
        spare = host.capacity_bytes - sum(one.ram_bytes for one in held)
        job, where = _host_part(lease, peak), "this machine"
        scene = Scene(job, None, beside, host.strangers_bytes, host.guard_bytes, where, True, spare)
        return judge(scene)

    def _has_larger(self, lease: Lease, used_bytes: int, asked_bytes: int | None) -> bool:
        """True when a job that ran out of memory alone can use a larger GPU."""
        request, model = lease.request, self._holdings.only_model_of(lease)
        if model is None or not (request.has_parent or request.is_command):
            return False  # the process has used its GPU, and its CUDA context cannot move
        had = self._holdings.sizes()[model].capacity_bytes
        enough = max(had + 1, used_bytes + (asked_bytes or 0))
        books = allowed(request, list(self._holdings.books.values()))
        return sum(book.capacity_bytes >= enough for book in books) >= request.gpus

    def _note_guilt(self, victim: Lease, verdict: Verdict) -> None:
        for part in verdict.offenders:
            if verdict.is_victim and self._holdings.leases[part.lease].state is LeaseState.HELD:
                text = f"took the room of {victim.request.label}, which ran out of memory"
                self._guilt[part.lease] = text


def _host_bytes(lease: Lease, run: Run, host: HostWatch, event: Released) -> int | None:
    """Return the most that a run used of the host's memory, None when unknown."""
    most = max(host.ram.peak_bytes, event.resident_bytes or 0)
    if run.outcome is Outcome.OUT_OF_RAM:
        most = max(most, lease.ram_bytes)
    return most or None


def _at_its_cap(lease: Lease) -> Verdict:
    text = f"reached its cap: {show_size(lease.reserved_bytes)} were reserved"
    return Verdict(Fault.LIMIT, text=text)


def _host_part(lease: Lease, used_bytes: int) -> Participant:
    """Return a job's reservation and use of host memory; a little more than that is within it."""
    reserved = lease.ram_bytes
    used = reserved if reserved < used_bytes <= reserved * _WITHIN else used_bytes
    return Participant(lease.id, lease.request.label, reserved, used)


def _part(lease: Lease, book: Book) -> Participant:
    """Return a neighbour's reservation and use; a gone or unclear one counts as within it."""
    reserved = lease.reserved_on(book.gpu.uuid)
    used = book.measured.get(lease.id) or 0
    if used > reserved and lease.id not in book.outgrown():
        used = reserved
    return Participant(lease.id, lease.request.label, reserved, used)
