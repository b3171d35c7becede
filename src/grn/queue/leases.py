"""The queue's lease conversation with the negotiator, carried by asyncio.

Translates between jobs and keys; the engine chooses which jobs request a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from grn.client import daemons
from grn.client.negotiator import call
from grn.errors import GrnError
from grn.model.gpu import Gpu, GpuKind
from grn.protocol.lease import LeaseConversation
from grn.protocol.lease_messages import (
    Answered,
    Garbled,
    Granted,
    GrantedGpus,
    IdleTold,
    LeaseRequest,
    Reasons,
    Refused,
    Settled,
    Waiting,
    YieldWanted,
)
from grn.protocol.negotiator_rows import BookingRow, GpuRow, HostRow, LeaseRow, WaitingRow
from grn.protocol.rows import BadRow, read_all
from grn.queue.events import AskLease
from grn.queue.jobs.job import Settlement

if TYPE_CHECKING:
    from grn.protocol.lease_messages import LeaseEvent

log = logging.getLogger(__name__)
RETRY_S = 1.0
SETTLE_S = 5.0
REASONS_S = 1.0  # timeout of a question for reasons
LOOK_S = 1.0  # how long the GPUs of an answer count as fresh
MAX_LEASES_SEEN = 500


class LeaseListener(Protocol):
    """The queue's loop, as the lease conversation sees it."""

    def has_work(self) -> bool: ...

    def connected(self) -> None: ...

    def disconnected(self) -> None: ...

    def granted(self, job: int, grant: GrantedGpus) -> None: ...

    def awaited(self, job: int, text: str) -> None: ...

    def reasons(self, texts: dict[int, str]) -> None: ...

    def refused(self, job: int, text: str) -> None: ...

    def yield_asked(self, lease: str, is_idle: bool) -> None: ...

    def idle_told(self, told: IdleTold) -> None: ...


class Leases(asyncio.Protocol):
    """One connection to the negotiator, made again whenever it is lost."""

    def __init__(self, queue_id: str, listener: LeaseListener) -> None:
        self.queue_id = queue_id  # begins each key
        self._listener = listener
        self._conversation = LeaseConversation(is_queue=True)
        self._transport: asyncio.Transport | None = None
        self._jobs: dict[str, int] = {}  # key of an open request -> job
        self._keys: dict[int, str] = {}  # and back
        self._cancelled: Counter[int] = Counter()  # requests taken back, by job
        self._status_asked = 0  # number of the question for the negotiator's state
        self._when_fresh: list[Callable[[], None]] = []  # wait for the answer about reasons
        # By lease: what waits for its end, and the timer that ends the wait.
        self._settling: dict[str, tuple[Callable[[Settlement], None], asyncio.TimerHandle]] = {}
        self._lost = asyncio.Event()
        self._wanted = asyncio.Event()
        self.trouble = ""  # why there is no negotiator
        self.retry_s = RETRY_S
        self.host: HostRow | None = None  # None if not known or not limited
        self.gpu_bytes: list[int] = []  # memory of each GPU, largest first; empty if not known
        self.gpu_facts: list[Gpu] = []  # what GPUs there are; empty if not known
        # Gets the leases of the negotiator once for each connection, page by page.
        self.on_leases: Callable[[list[dict[str, Any]]], None] | None = None
        self.on_connected: Callable[[], None] | None = None
        self._answers: dict[int, Callable[[dict[str, Any]], None]] = {}  # by number of a question
        self.gpus: list[GpuRow] = []  # as of the last look
        self.leases: list[LeaseRow] = []
        self.waiting: list[WaitingRow] = []
        self.bookings: list[BookingRow] = []
        self._look_asked = 0  # number of the question of a look
        self._looked_at = 0.0
        self._when_seen: list[Callable[[], None]] = []  # wait for the answer of a look

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    def want(self) -> None:
        """There is work: a negotiator is needed."""
        self._wanted.set()

    # --- what the loop asks for ----------------------------------------------------------

    def ask(self, asked: AskLease, facts: dict[str, Any], code: str = "") -> None:
        """Request the lease of one attempt."""
        job = asked.spec.id
        key = self._keys.get(job) or self._key(job, asked.attempt)
        self._keys[job], self._jobs[key] = key, job
        self._conversation.request(key, _request(asked, facts, code))
        self._send()

    def drop(self, job: int) -> None:
        """Take a request back."""
        key = self._keys.pop(job, None)
        if key is not None:
            del self._jobs[key]
            self._conversation.cancel(key)
            self._cancelled[job] += 1
            self._send()

    def pass_on(self, job: int, heir: AskLease, facts: dict[str, Any], code: str = "") -> bool:
        """Let another job have the open request of this one; False if it was granted."""
        key = self._keys.pop(job, None)
        if key is None:
            return False
        self._keys[heir.spec.id], self._jobs[key] = key, heir.spec.id
        self._conversation.request(key, _request(heir, facts, code))
        return True

    def key_of(self, job: int) -> str | None:
        """Return the key of the open request of a job, None when it has none."""
        return self._keys.get(job)

    def refresh(self, then: Callable[[], None]) -> None:
        """Ask why all open requests wait, then call `then`; at once if there are none.

        The listener gets the answers first. `then` is called without them after a timeout.
        """
        if self._transport is None or not self._keys:
            then()
            return
        self._when_fresh.append(then)
        if len(self._when_fresh) == 1:
            self._conversation.ask_reasons()
            self._send()
            asyncio.get_running_loop().call_later(REASONS_S, self._refreshed, then)

    def look(self, then: Callable[[], None]) -> None:
        """Ask what is there unless it is fresh, then call `then`; after a timeout too.

        Only of use while someone looks: nothing is decided by the answer.
        """
        if self._transport is None or time.monotonic() - self._looked_at < LOOK_S:
            then()
            return
        self._when_seen.append(then)
        if len(self._when_seen) == 1:
            self.tell({"op": "bookings"}, self._take_bookings)
            self._look_asked = self._conversation.ask({"op": "status"})
            self._send()
            asyncio.get_running_loop().call_later(REASONS_S, self._seen, then)

    def watch(self, lease: str) -> None:
        """Promise to report the end of a lease that an earlier queue requested."""
        self._conversation.watch(lease)
        self._send()

    def done(self, lease: str, ending: dict[str, Any], then: Callable[[Settlement], None]) -> None:
        """Report how a lease ended; `then` gets the negotiator's view of it, if there is one."""
        self._conversation.done(lease, **ending)
        if self._transport is None:
            then(Settlement())
            return
        self._send()
        in_time = asyncio.get_running_loop().call_later(SETTLE_S, self._settle, lease, Settlement())
        self._settling[lease] = then, in_time

    def _key(self, job: int, attempt: int) -> str:
        """Return the key of a request, the same after a restart of either side.

        The key of a request that was taken back is never used again: a grant may be on its way.
        """
        return f"{self.queue_id}{job:012x}{attempt:04x}{self._cancelled[job]:04x}"

    # --- the connection ------------------------------------------------------------------

    async def keep_connected(self) -> None:
        """Connect, and connect again after a loss; start a negotiator if none answers."""
        while True:
            if await self._connect():
                self.trouble = ""
                self._listener.connected()
                await self._lost.wait()
                self._listener.disconnected()
            elif not self._listener.has_work():
                self.trouble = ""  # of the last try; until the next one more may have changed
                self._wanted.clear()
                await self._wanted.wait()
            else:
                await self._start_negotiator()
                await asyncio.sleep(self.retry_s if self.trouble else 0)

    async def _connect(self) -> bool:
        loop = asyncio.get_running_loop()
        try:
            called = await loop.run_in_executor(None, call)
            await loop.create_unix_connection(lambda: self, sock=called)
        except OSError:
            return False
        return True

    async def _start_negotiator(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, daemons.ensure_negotiator, None)
        except GrnError as error:
            if self.trouble != error.message:
                log.warning("action=start-negotiator result=failed reason=%r", error.message)
            self.trouble = error.message
        else:
            self.trouble = ""

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._lost.clear()
        self._conversation.connection_made()
        self._answers.clear()
        self._status_asked = self._conversation.ask({"op": "status"})
        if self.on_connected is not None:
            self.on_connected()
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.gpu_bytes, self.gpu_facts, self.gpus, self.leases = [], [], [], []
        self.waiting, self.bookings = [], []
        self._looked_at = 0.0
        self._seen()
        settling, self._settling = self._settling, {}
        for then, in_time in settling.values():
            in_time.cancel()
            then(Settlement())
        self._refreshed()
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        for event in self._conversation.receive_data(data):
            self._handle(event)
        self._send()

    def _send(self) -> None:
        if self._transport is not None and (data := self._conversation.data_to_send()):
            self._transport.write(data)

    def _handle(self, event: LeaseEvent) -> None:
        match event:
            case Waiting():
                self._listener.awaited(self._jobs[event.key], event.text)
            case Granted():
                self._listener.granted(self._closed(event.key), event.grant)
            case Refused() if event.name in self._jobs:
                error = event.error
                text = f"{error.message} {error.hint}".strip()
                self._listener.refused(self._closed(event.name), text)
            case YieldWanted():
                self._listener.yield_asked(event.lease, event.is_idle)
            case IdleTold():
                self._listener.idle_told(event)
            case Settled():
                self._settle(event.lease, _settled(event))
            case Reasons():
                jobs = self._jobs
                texts = {jobs[key]: text for key, text in event.texts.items() if key in jobs}
                self._listener.reasons(texts)
                self._refreshed()
            case Answered() if event.number == self._status_asked and "status" in event.message:
                self._take_status(event.message)
            case Answered() if event.number in self._answers:
                self._answers.pop(event.number)(event.message)
            case Answered() if event.number == self._look_asked and "status" in event.message:
                self._take_look(event.message["status"])
            case Garbled():
                log.error("action=listen result=failed reason=%r", event.error.message)
                self.close()

    def tell(self, message: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        """Ask the negotiator a question that is not repeated; `then` gets an answer, if any."""
        if self._transport is not None:
            self._answers[self._conversation.ask(message)] = then
            self._send()

    def _take_status(self, message: dict[str, Any]) -> None:
        status = message["status"]
        if "gpus" in status:  # only the first page has them
            self.host = _host(status.get("host"))
            self.gpu_bytes = sorted((gpu["total_bytes"] for gpu in status["gpus"]), reverse=True)
            self.gpu_facts = [_facts(gpu) for gpu in status["gpus"]]
        if self.on_leases is not None:
            self.on_leases(status["leases"])
            if "more" in message:
                again = {"op": "status", "after": message["more"]}
                self._status_asked = self._conversation.ask(again)

    def _take_look(self, status: dict[str, Any]) -> None:
        try:
            self.gpus = read_all(GpuRow, status["gpus"])
            self.leases = read_all(LeaseRow, status["leases"][:MAX_LEASES_SEEN])
            self.waiting = read_all(WaitingRow, status["waiting"][:MAX_LEASES_SEEN])
        except (BadRow, LookupError, TypeError):  # of another version: its GPUs are not shown
            self.gpus, self.leases, self.waiting = [], [], []
        self._looked_at = time.monotonic()
        self._seen()

    def _take_bookings(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BadRow, LookupError, TypeError):  # of another version
            self.bookings = read_all(BookingRow, message["bookings"][:MAX_LEASES_SEEN])

    def _seen(self, first: Callable[[], None] | None = None) -> None:
        """Call all that wait for a look; after the timeout only if `first` still waits."""
        if first is not None and first not in self._when_seen:
            return
        waited, self._when_seen = self._when_seen, []
        for then in waited:
            then()

    def _closed(self, key: str) -> int:
        """Forget a request that was answered, and return its job."""
        job = self._jobs.pop(key)
        del self._keys[job]
        return job

    def _refreshed(self, first: Callable[[], None] | None = None) -> None:
        """Call all that wait for reasons; after the timeout only if `first` still waits."""
        if first is not None and first not in self._when_fresh:
            return
        waited, self._when_fresh = self._when_fresh, []
        for then in waited:
            then()

    def _settle(self, lease: str, settled: Settlement) -> None:
        """Call what waits for the end of a lease, and leave no timer to wake an idle queue."""
        if lease in self._settling:
            then, in_time = self._settling.pop(lease)
            in_time.cancel()
            then(settled)


def _host(row: object) -> HostRow | None:
    try:
        return read_all(HostRow, [row])[0] if row else None
    except BadRow:  # of another version
        return None


def _facts(row: dict[str, Any]) -> Gpu:
    """Return what never changes of a GPU."""
    kind = row.get("kind", GpuKind.CARD.value)
    known = GpuKind(kind) if kind in {one.value for one in GpuKind} else GpuKind.CARD
    return Gpu(row.get("uuid", ""), row.get("index", 0), row.get("model", ""),
               row["total_bytes"], known)  # fmt: skip


def _request(asked: AskLease, facts: dict[str, Any], code: str) -> LeaseRequest:
    spec = asked.spec
    return LeaseRequest(
        spec.job_type, spec.label, gpus=spec.gpus, mem=spec.mem_bytes, exclusive=spec.is_exclusive,
        priority=spec.priority, attempt=asked.memory_attempt, args=facts, code=code or None,
        policy=spec.policy or "spread", on=spec.on, without=spec.without, command=True,
        spared=asked.is_spared, yields=spec.yields, at_least=spec.at_least_s,
        urgent=spec.is_urgent, cpus=spec.cpus, ram=spec.ram_bytes, idle_limit=spec.idle_limit_s,
        time_limit=spec.time_limit_s,
    )  # fmt: skip


def _settled(reply: Settled) -> Settlement:
    return Settlement(
        reply.outcome, reply.was_alone, reply.peak_bytes, reply.is_victim, reply.because,
        reply.has_larger,
    )  # fmt: skip
