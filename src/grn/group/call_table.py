"""Decide which worker runs which call, how many workers there are, and what their ends mean.

A worker is a task of the group. Without reuse it belongs to one call from the start; with reuse it
takes calls of its kind, one after another. No clock, socket, process or thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grn.model.oom_retry import Had, again

REUSE_S = 10.0  # a worker takes calls for this long, so that leases return to the negotiator
MAX_WORKERS = 64  # that are reused, unless a number is given


@dataclass(frozen=True, slots=True)
class Kind:
    """The job type of calls that may share one worker."""

    type: str
    label: str
    code: str = ""


@dataclass(eq=False, slots=True)
class Call:
    """One call: packed, with its future and its remaining retries."""

    kind: Kind
    data: bytes
    future: Any
    name: str = ""  # for people, if each call has a job
    facts: Mapping[str, float | str] = field(default_factory=dict)
    tries_left: int = 0
    had: Had = field(default_factory=Had)
    reply: Any = None  # of the attempt in progress
    worker: CallWorker | None = None


@dataclass(eq=False, slots=True)
class CallWorker:
    """One task that runs calls."""

    number: int
    kind: Kind
    is_single: bool  # it belongs to one call
    call: Call | None = None
    began_at: float | None = None  # when it asked for its first call
    is_running: bool = False
    is_done: bool = False  # it gets no more calls
    is_cancelled: bool = False  # with its call; its job is ended, it does not end by itself
    job: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """The queue's report about an attempt of a worker."""

    is_final: bool
    is_ok: bool = True
    is_cancelled: bool = False
    is_out_of_memory: bool = False
    has_more_room: bool = False


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """The decision: calls that are over, and whether the worker may run again."""

    over: tuple[Call, ...] = ()
    may_run_again: bool = True


class CallTable:
    """The open calls and the workers of one group."""

    def __init__(
        self,
        *,
        is_reusing: bool = False,
        max_workers: int | None = None,
        retries: int = 0,
        oom_retries: int | None = None,
    ) -> None:
        """Take `oom_retries=None` to leave retries after out-of-memory to the queue."""
        self._is_reusing = is_reusing
        self.max_workers = max_workers or (MAX_WORKERS if is_reusing else None)
        self._retries = retries
        self._oom_retries = oom_retries
        self._pending: dict[Kind, deque[Call]] = {}
        self.workers: dict[int, CallWorker] = {}
        self._count = 0

    @property
    def pending(self) -> list[Call]:
        """Return the calls that no worker has."""
        return [call for calls in self._pending.values() for call in calls]

    @property
    def has_open_calls(self) -> bool:
        """True while a call is not over."""
        return any(self._pending.values()) or any(one.call for one in self.workers.values())

    @property
    def open_calls(self) -> list[Call]:
        """Return all calls that are not over."""
        held = [worker.call for worker in self.workers.values() if worker.call is not None]
        return self.pending + held

    def add(self, call: Call) -> None:
        """Add a call."""
        call.tries_left = self._retries
        self._pending.setdefault(call.kind, deque()).append(call)

    def new_worker(self) -> CallWorker | None:
        """Return a worker to start now, None if there are enough."""
        if self.max_workers is not None and len(self.workers) >= self.max_workers:
            return None
        for kind, calls in self._pending.items():
            if calls and (not self._is_reusing or len(calls) > len(self._free(kind))):
                self._count += 1
                worker = CallWorker(self._count, kind, not self._is_reusing)
                if worker.is_single:
                    self._give(worker, calls.popleft())
                self.workers[worker.number] = worker
                return worker
        return None

    def _free(self, kind: Kind) -> list[CallWorker]:
        workers = self.workers.values()
        return [one for one in workers if one.kind == kind and not one.call and not one.is_done]

    def dismiss_surplus(self) -> list[int]:
        """Return workers that wait for a GPU and for which there is no call; they get none."""
        found: list[int] = []
        for kind in self._pending if self._is_reusing else ():
            free = self._free(kind)
            waiting = [one.number for one in free if not one.is_running]
            found += waiting[max(0, len(self._pending[kind]) - (len(free) - len(waiting))) :]
        for number in found:
            self.dismiss(number)
        return found

    def take(self, number: int, now: float) -> Call | None:
        """Return the call that a worker runs next, None if there is none for it now."""
        worker = self.workers.get(number)
        if worker is None or worker.is_done:
            return None
        worker.is_running = True
        if worker.began_at is None:
            worker.began_at = now
        if worker.call is not None:
            worker.is_done = worker.is_single
            return worker.call
        calls = self._pending.get(worker.kind)
        worker.is_done = now - worker.began_at > REUSE_S
        if calls and not worker.is_done:
            self._give(worker, calls.popleft())
        return worker.call

    def dismiss(self, number: int) -> None:
        """Give a worker no more calls."""
        if number in self.workers:
            self.workers[number].is_done = True

    def is_wanted(self, kind: Kind) -> bool:
        """True while an idle worker of a kind does not block another kind."""
        others = any(calls for other, calls in self._pending.items() if other != kind)
        return not (others and len(self.workers) >= (self.max_workers or len(self.workers) + 1))

    def _give(self, worker: CallWorker, call: Call) -> None:
        call.reply = None
        call.worker, worker.call = worker, call

    def _put_back(self, call: Call) -> None:
        call.worker = call.reply = None
        self._pending.setdefault(call.kind, deque()).appendleft(call)

    def cancel(self, call: Call) -> int | None:
        """Forget a call; return its worker, which has to be cancelled."""
        worker = call.worker
        if worker is None:
            if call in self._pending.get(call.kind, ()):
                self._pending[call.kind].remove(call)
            return None
        worker.call, worker.is_done, worker.is_cancelled = None, True, True
        return worker.number

    def replied(self, number: int, reply: Any) -> CallVerdict:
        """Take a worker's reply. A call with a job, or without memory, is over when that ends."""
        worker = self.workers.get(number)
        call = worker.call if worker is not None else None
        if worker is None or call is None:  # cancelled meanwhile
            return CallVerdict()
        call.reply = reply
        if worker.is_single:
            return CallVerdict()
        if reply.is_out_of_memory:
            worker.is_done = True
            return CallVerdict()
        worker.call = None
        return self._failed(call) if not reply.is_good else CallVerdict((call,))

    def ended(self, number: int, ending: Ending) -> CallVerdict:
        """Take the end of an attempt of a worker."""
        worker = self.workers[number]
        call, has_begun = worker.call, worker.began_at is not None
        worker.is_running, worker.began_at = False, None
        if not ending.is_final:
            worker.is_done = False
            return self._not_enough(worker, ending)
        del self.workers[number]
        if call is not None:
            return self._without_worker(call, worker, ending)
        pending = self._pending.get(worker.kind)
        if pending and not ending.is_ok and not has_begun and not worker.is_done:
            return CallVerdict((pending.popleft(),))  # each worker that cannot start fails one call
        return CallVerdict()

    def _not_enough(self, worker: CallWorker, ending: Ending) -> CallVerdict:
        """Decide whether the queue may run a worker again."""
        call = worker.call
        if call is None:
            return CallVerdict(may_run_again=bool(self._pending.get(worker.kind)))
        if ending.is_out_of_memory and self._oom_retries is not None:
            had = again(call.had, not ending.has_more_room, self._oom_retries)
            if had is None:
                worker.call = None
                has_more = not worker.is_single and bool(self._pending.get(worker.kind))
                return CallVerdict((call,), has_more)
            call.had = had
        call.reply = None
        return CallVerdict()

    def _without_worker(self, call: Call, worker: CallWorker, ending: Ending) -> CallVerdict:
        """Decide what becomes of a call whose worker has ended for good."""
        if (call.reply is not None and call.reply.is_good) or ending.is_cancelled:
            return CallVerdict((call,))
        is_oom = ending.is_out_of_memory or (call.reply is not None and call.reply.is_out_of_memory)
        if is_oom:  # the queue gives up on a job that was alone on its GPU; inside a job none runs
            had = again(call.had, False, self._oom_retries or 0)
            if had is not None:
                call.had = had
                self._put_back(call)
                return CallVerdict()
        return CallVerdict((call,)) if worker.is_single else self._failed(call)

    def _failed(self, call: Call) -> CallVerdict:
        if call.tries_left <= 0:
            return CallVerdict((call,))
        call.tries_left -= 1
        self._put_back(call)
        return CallVerdict()
