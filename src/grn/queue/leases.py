"""The queue's connection to the negotiator: many lease requests, kept through restarts.

Translates between messages and calls; the engine chooses which jobs request a lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, cast

from grn import wire
from grn.client import daemons
from grn.client.connection import call
from grn.errors import GrnError, ProtocolError
from grn.queue.events import AskLease
from grn.queue.job import Settled

log = logging.getLogger(__name__)
RETRY_S = 1.0
SETTLE_S = 5.0
REASONS_S = 1.0  # a question about reasons waits so long for its answer


class LeaseListener(Protocol):
    """What the loop does when the negotiator speaks."""

    def has_work(self) -> bool: ...

    def connected(self) -> None: ...

    def disconnected(self) -> None: ...

    def granted(self, job: int, answer: dict[str, Any]) -> None: ...

    def awaited(self, job: int, text: str) -> None: ...

    def reasons(self, texts: dict[int, str]) -> None: ...

    def refused(self, job: int, text: str) -> None: ...


class Leases(asyncio.Protocol):
    """One connection to the negotiator, made again whenever it is lost."""

    def __init__(self, queue_id: str, listener: LeaseListener) -> None:
        self.queue_id = queue_id  # begins each key
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._frames = wire.Frames(wire.MAX_REPLY_BYTES)
        self._last_id = 0
        self._jobs: dict[int, int] = {}  # message id -> job it asked a lease for
        self._keys: dict[int, str] = {}  # job -> the key it is asked for under
        self._taken_back: Counter[int] = Counter()  # how often a job's request was
        self._gpus_asked = 0  # id of the message that asks which GPUs there are
        self._reasons_asked = 0  # id of the message that asks for reasons, 0 when none is open
        self._when_fresh: list[Callable[[], None]] = []  # who waits for its answer
        self._settling: dict[int, Callable[[Settled], None]] = {}
        self._unheard: dict[int, dict[str, Any]] = {}  # said, and to be said again if it is lost
        self._lost = asyncio.Event()
        self._wanted = asyncio.Event()
        self.trouble = ""  # why there is no negotiator
        self.gpu_bytes: list[int] = []  # memory of each GPU, largest first; empty if not known

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    def want(self) -> None:
        """There is work: a negotiator is needed."""
        self._wanted.set()

    # --- what the loop asks for ----------------------------------------------------------

    def ask(self, asked: AskLease, facts: dict[str, Any], code: str = "") -> None:
        """Ask for the lease of one attempt."""
        spec = asked.spec
        key = self._keys.setdefault(spec.id, self._key(spec.id, asked.attempt))
        message: dict[str, Any] = {
            "op": "lease",
            "key": key,
            "type": spec.job_type,
            "label": spec.label,
            "gpus": spec.gpus,
            "exclusive": spec.is_exclusive,
            "priority": spec.priority,
            "attempt": asked.memory_attempt,
            "args": facts,
            "command": True,
            "spared": asked.is_spared,
        }
        if spec.mem_bytes is not None:
            message["mem"] = spec.mem_bytes
        if spec.policy:
            message["policy"] = spec.policy
        if code:
            message["code"] = code
        self._jobs[self._send(message)] = spec.id

    def drop(self, job: int) -> None:
        """Take a request back."""
        for message_id, asked in list(self._jobs.items()):
            if asked == job:
                del self._jobs[message_id]
        key = self._keys.pop(job, None)
        if key is not None:
            self._insist({"op": "cancel", "key": key})
            self._taken_back[job] += 1

    def pass_on(self, job: int, heir: int) -> bool:
        """Let another job have what was asked for under this one's key; False if it was granted."""
        key = self._keys.pop(job, None)
        if key is None:
            return False
        self._keys[heir] = key
        for message_id, asked in self._jobs.items():
            if asked == job:
                self._jobs[message_id] = heir
        return True

    def key_of(self, job: int) -> str | None:
        """Return the key a job is asked for under, None when it is not."""
        return self._keys.get(job)

    def refresh(self, then: Callable[[], None]) -> None:
        """Ask why all open requests wait, then call `then`; at once if there are none.

        The listener hears the answers first. `then` is called without them if they take too long.
        """
        if self._transport is None or not self._keys:
            then()
            return
        self._when_fresh.append(then)
        if not self._reasons_asked:
            asked = self._send({"op": "reasons", "keys": list(self._keys.values())})
            self._reasons_asked = asked
            asyncio.get_running_loop().call_later(REASONS_S, self._refreshed, asked)

    def watch(self, lease: str) -> None:
        """Promise to say how a lease ends."""
        self._send({"op": "watch", "lease": lease})

    def done(self, lease: str, ending: dict[str, Any], then: Callable[[Settled], None]) -> None:
        """Say how a lease ended; `then` hears what the negotiator makes of it, or nothing."""
        message_id = self._insist({"op": "done", "lease": lease, **ending})
        if self._transport is None:
            then(Settled())
            return
        self._settling[message_id] = then
        asyncio.get_running_loop().call_later(SETTLE_S, self._settle, message_id, Settled())

    def _key(self, job: int, attempt: int) -> str:
        """Return the name of a request, the same after a restart of either side.

        One that was taken back is never used again: a grant for it may still be on its way.
        """
        return f"{self.queue_id}{job:012x}{attempt:04x}{self._taken_back[job]:04x}"

    # --- the connection ------------------------------------------------------------------

    async def keep_connected(self) -> None:
        """Connect, and connect again when the line is lost; start a negotiator if none answers."""
        while True:
            if await self._connect():
                self.trouble = ""
                self._say_again()
                self._gpus_asked = self._send({"op": "status"})
                self._listener.connected()
                await self._lost.wait()
                self._listener.disconnected()
            elif not self._listener.has_work():
                self._wanted.clear()
                await self._wanted.wait()
            else:
                await self._start_negotiator()
                await asyncio.sleep(RETRY_S if self.trouble else 0)

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
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._frames = wire.Frames(wire.MAX_REPLY_BYTES)
        self._lost.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._jobs.clear()
        self.gpu_bytes = []
        for message_id in list(self._settling):
            self._settle(message_id, Settled())
        self._refreshed(self._reasons_asked)
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._hear(wire.decode_reply(body))
        except ProtocolError:
            log.exception("action=listen result=failed")
            self.close()

    def _hear(self, message: dict[str, Any]) -> None:
        message_id = message.get("id")
        self._unheard.pop(cast(int, message_id), None)
        job = self._jobs.get(message_id) if isinstance(message_id, int) else None
        error = message.get("error")
        if message_id == self._gpus_asked and not error:
            gpus = message["status"]["gpus"]
            self.gpu_bytes = sorted((gpu["total_bytes"] for gpu in gpus), reverse=True)
        elif message_id == self._reasons_asked:
            self._hear_reasons({} if error else message["reasons"])
        elif message_id in self._settling:
            said = Settled() if error else _settled(message)
            self._settle(cast(int, message_id), said)
        elif job is None:
            if message.get("ev") == "granted":
                # Taken back while the grant was on its way: give it back.
                self.done(message["lease"], {"outcome": "failed"}, lambda _: None)
        elif error is not None:
            del self._jobs[cast(int, message_id)]
            self._keys.pop(job, None)
            self._listener.refused(job, f"{error['message']} {error['hint']}".strip())
        elif message.get("ev") == "waiting":
            self._listener.awaited(job, message["text"])
        elif message.get("ev") == "granted":
            del self._jobs[cast(int, message_id)]
            self._keys.pop(job, None)
            self._listener.granted(job, message)

    def _hear_reasons(self, reasons: dict[str, Any]) -> None:
        jobs = {key: job for job, key in self._keys.items()}
        said = {jobs[key]: str(one["why"]) for key, one in reasons.items() if key in jobs}
        self._listener.reasons(said)
        self._refreshed(self._reasons_asked)

    def _refreshed(self, asked: int) -> None:
        """Go on with what waited for the answer to a question about reasons."""
        if asked != self._reasons_asked:
            return
        self._reasons_asked = 0
        waited, self._when_fresh = self._when_fresh, []
        for then in waited:
            then()

    def _settle(self, message_id: int, settled: Settled) -> None:
        then = self._settling.pop(message_id, None)
        if then is not None:
            then(settled)

    def _insist(self, message: dict[str, Any]) -> int:
        """Say something that must be heard: else a lease would stay for as long as we live."""
        message_id = self._send(message)
        self._unheard[message_id] = message
        return message_id

    def _say_again(self) -> None:
        unheard, self._unheard = self._unheard, {}
        for message in unheard.values():
            self._insist(message)

    def _send(self, message: dict[str, Any]) -> int:
        self._last_id += 1
        message["id"], message["v"] = self._last_id, wire.PROTOCOL
        if self._transport is not None:
            self._transport.write(wire.encode(message))
        return self._last_id


def _settled(message: dict[str, Any]) -> Settled:
    return Settled(
        message.get("ended"),
        bool(message.get("alone", True)),
        message.get("peak"),
        bool(message.get("victim")),
        str(message.get("because", "")),
        bool(message.get("larger")),
    )
