"""Acquire, hold, release: the primitive under every way to use a GPU through grn.

Carries the lease conversation (`protocol/lease.py`) over a socket, blocking or on an event loop. It
starts no thread and never polls; while the negotiator restarts, a waiting lease keeps its place.
After two seconds of waiting it says why, where a person looks (`wait_line.py`).
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading

from grn.client import negotiator
from grn.client.connection import ANSWER_S, drive, drive_async
from grn.client.leasing import frameworks
from grn.client.leasing.gpu_environment import GPU_ENVIRONMENT
from grn.client.leasing.job_request import lease_request, type_and_label
from grn.client.negotiator import call, garbled
from grn.errors import DaemonNotRunning, GrnError, UsageError
from grn.protocol.lease import LeaseConversation, bind_message
from grn.protocol.lease_messages import (
    Garbled,
    Granted,
    GrantedGpus,
    Reasons,
    Refused,
    Settled,
    Waiting,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any

    from grn.client.connection import Steps
    from grn.client.leasing.wait_line import WaitLine
    from grn.protocol.lease_messages import LeaseEvent, LeaseRequest

RELEASE_RECONNECT_S = 2.0
SILENT_S = 2.0  # a wait that takes longer says why

_current: contextvars.ContextVar[ClientLease | None] = contextvars.ContextVar(
    "grn_lease", default=None
)
_last_gpus: list[str] = []  # the GPUs of the last lease, in case this process cannot leave them


class LeaseConnection:
    """A lease conversation, and the socket that carries it while there is one."""

    __slots__ = ("conversation", "sock")

    def __init__(self, sock: socket.socket | None = None) -> None:
        self.conversation = LeaseConversation()
        self.sock = sock

    def open(self) -> None:
        """Connect, unless the connection is open."""
        if self.sock is None:
            self.sock = call()
            self.conversation.connection_made()

    def close(self) -> None:
        """Close the socket; the conversation can go on over another one."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def sending(self) -> tuple[str, Any, Any]:
        """Return the step that sends what the conversation has to say."""
        return ("send", self.sock, self.conversation.data_to_send())

    def events(self, data: bytes) -> list[LeaseEvent]:
        """Return the events in received bytes."""
        if not data:
            raise ConnectionResetError("the negotiator closed the connection")
        events = self.conversation.receive_data(data)
        if events and type(events[-1]) is Garbled:
            raise garbled() or events[-1].error
        return events


class _Idle:
    """The connection kept for the next lease of this process, at most one.

    A kept conversation may have no socket: then it has something to say that was not heard.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: LeaseConnection | None = None
        self._is_at_exit = False  # `confirm` is to be called at the end of the process
        os.register_at_fork(after_in_child=self._after_fork)

    def take(self) -> LeaseConnection | None:
        with self._lock:
            kept, self._kept = self._kept, None
        return kept

    def give(self, connection: LeaseConnection, is_quiet: bool = False) -> None:
        if is_quiet and not self._is_at_exit:
            import atexit

            self._is_at_exit = True
            atexit.register(self.confirm)
        with self._lock:
            if self._kept is None:
                self._kept = connection
                return
            self._kept.conversation.adopt(connection.conversation)
        connection.close()

    def confirm(self) -> None:
        """Wait until the negotiator has heard all: a process that is gone cannot be measured."""
        connection = self.take()
        if connection is None or connection.sock is None:
            return
        connection.conversation.ask_for_answers()
        with contextlib.suppress(OSError, GrnError):  # the end of the process ends its lease
            drive(_say_all(connection))
        self.give(connection)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        if self._kept is not None:
            self._kept.close()  # an open copy would let the parent's connection outlive the parent
            self._kept = None


IDLE = _Idle()


class ClientLease:
    """The right to use GPUs, from `acquire` to `release`, or for the length of a `with`.

    `is_expected` says whether to wait for a negotiator that does not answer; by default that
    depends on whether this process has reached one before. `on_wait` is told the reason of a wait,
    in place of the line on standard error.
    """

    def __init__(
        self,
        request: LeaseRequest,
        on_wait: Callable[[str], None] | None = None,
        is_expected: bool | None = None,
        key: str = "",
    ) -> None:
        self._request = request
        self._retry = negotiator.Retry(is_expected)
        self._on_wait = on_wait  # called with the reason while there is no GPU yet
        self._pause_s: float | None = SILENT_S if on_wait is None else None  # until a word is due
        self._line: WaitLine | None = None
        self._reason = ""  # as it was told last
        self._key = key or os.urandom(12).hex()
        self._connection: LeaseConnection | None = None
        self._owner_pid = 0
        self._token: contextvars.Token[ClientLease | None] | None = None
        self.id = ""
        self.gpus: tuple[int, ...] = ()
        self.visible_devices = ""
        self.stated_cpus: float | None = request.cpus
        self.stated_ram: int | None = request.ram
        self.indices: str | None = None  # the same GPUs by index, while CUDA counts as NVML does
        self.reserved_bytes = 0
        self.is_first_run = False
        self.memory_cap: float | None = None
        self.is_nested = False
        self.outcome = "ok"  # what `release` reports unless an exception says otherwise
        self.settled: Settled | None = None  # after `release`: how the negotiator saw it end
        self._may_end_quietly = False

    def __repr__(self) -> str:
        return f"<grn lease {self.id or 'not held'} on GPU {self.visible_devices or '-'}>"

    @property
    def is_held(self) -> bool:
        """True between acquire and release, in the process that acquired it."""
        return bool(self.id) and self._owner_pid == os.getpid()

    def acquire(self) -> ClientLease:
        """Wait for the GPUs and make them visible to this process."""
        __tracebackhide__ = True  # IPython and pytest show the frames around this one
        if not self._use_outer():
            try:
                self._begin(drive(self._ask()))
            except (GrnError, KeyboardInterrupt) as error:
                raise error.with_traceback(None) from None  # the caller's frames say enough
        return self

    def release(self, error: BaseException | None = None, **said: Any) -> str | None:
        """Give the GPUs back and report how the job went; return how the negotiator saw it end."""
        return drive(self._report(error, said)) if self.is_held else None

    @property
    def is_victim(self) -> bool:
        """True after `release` when memory ran out and other jobs had taken too much."""
        return self.settled is not None and self.settled.is_victim

    __enter__ = acquire  # which is one frame less above an error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_held:
            drive(self._report(error, {}, is_quiet=error is None))

    async def __aenter__(self) -> ClientLease:
        __tracebackhide__ = True
        if not self._use_outer():
            try:
                self._begin(await drive_async(self._ask()))
            except (GrnError, KeyboardInterrupt) as error:
                raise error.with_traceback(None) from None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_held:
            await drive_async(self._report(error, {}, is_quiet=error is None))

    # --- the conversation ----------------------------------------------------------------

    def _ask(self) -> Steps[GrantedGpus]:
        """Wait for the lease, through restarts of the negotiator."""
        request = self._request
        inherited = GPU_ENVIRONMENT.inherited_lease()
        if inherited:
            request = request.but(within=inherited)
        if frameworks.has_touched_gpu():
            if _last_gpus:
                request = request.but(stay=list(_last_gpus))
            elif request.gpus == 1 and "," not in _running_on():
                request = request.but(slots=[_running_on()])
        connection = IDLE.take() or LeaseConnection()

        def attempt() -> Steps[GrantedGpus]:
            try:
                grant = yield from self._wait(connection, request)
            except DaemonNotRunning:
                if not inherited or self._retry.waited_s:
                    raise
                # A job that runs under a lease goes on while the negotiator is away.
                return GrantedGpus(inherited, is_nested=True)
            return grant

        try:
            grant = yield from negotiator.through_restarts(attempt, self._retry)
        except BaseException as error:
            self._abandon(connection, is_interrupted=not isinstance(error, GrnError))
            raise
        finally:
            if self._line is not None:
                self._line.clear()
        self._connection = connection
        return grant

    def _wait(self, connection: LeaseConnection, request: LeaseRequest) -> Steps[GrantedGpus]:
        """Carry the conversation over one connection until the lease is granted."""
        may_be_stale = connection.sock is not None  # its negotiator may have been restarted
        is_answered = False
        try:
            connection.open()
            connection.conversation.request(self._key, request)
            yield connection.sending()
            while True:
                try:
                    data = yield ("recv", connection.sock, self._pause_s)
                except TimeoutError:
                    self._speak(connection.conversation)
                    yield connection.sending()
                    continue
                events = connection.events(data)
                is_answered = True
                self._retry.reached()
                for event in events:
                    if type(event) is Granted:
                        return event.grant
                    if type(event) is Refused:
                        raise event.error
                    if type(event) is Waiting:
                        self._reason = event.text
                        if self._on_wait is not None:
                            self._on_wait(event.text)
                    if type(event) is Reasons and self._line is not None:
                        self._line.tell(event.texts.get(self._key), event.words.get(self._key))
        except OSError:
            connection.close()
            if not may_be_stale or is_answered:
                raise
        grant = yield from self._wait(connection, request)
        return grant

    def _speak(self, conversation: LeaseConversation) -> None:
        """Say why this call waits, if anybody looks, and ask for the reason as it is now."""
        from grn.client.leasing import wait_line

        if self._line is None:
            self._line = wait_line.open_line(SILENT_S)
            if self._line is None:
                self._pause_s = None
                return
            self._line.tell(self._reason)
            self._pause_s = wait_line.PACE_S
        self._line.draw()
        if self._line.is_reason_due():
            conversation.ask_reasons()

    def _abandon(self, connection: LeaseConnection, is_interrupted: bool) -> None:
        """Take the request back unless it was refused; it may be granted at this moment."""
        conversation = connection.conversation
        if is_interrupted or conversation.has_open(self._key):
            connection.close()
            conversation.cancel(self._key)
        if is_interrupted:
            try:
                drive(_say_all(connection))
            except (OSError, GrnError):
                connection.close()  # the negotiator is away: said with the next request
        IDLE.give(connection)

    def _report(
        self, error: BaseException | None, said: dict[str, Any], is_quiet: bool = False
    ) -> Steps[str | None]:
        """Leave the GPUs and report the end of the lease."""
        if self.is_nested:
            self._leave()
            return None
        ending = self._ending(error)
        ending.update(said)
        if is_quiet and self._may_end_quietly:
            try:  # the negotiator is at work while this process cleans up
                yield from self._settle(self.id, ending, is_quiet=True)
            finally:
                self._leave()
            return None
        outcome = yield from self._settle(self._leave(), ending)
        return outcome

    def _settle(
        self, lease_id: str, ending: dict[str, Any], is_quiet: bool = False
    ) -> Steps[str | None]:
        """Report the end of a lease; a report that is not heard is repeated with the next request.

        Return how the negotiator saw it end, None if it does not say or the caller does not wait.
        """
        connection, self._connection = self._connection or LeaseConnection(), None
        is_quiet &= connection.sock is not None
        connection.conversation.done(lease_id, **ending, is_quiet=is_quiet)
        waited_s = 0.0
        while True:
            try:
                connection.open()
                yield connection.sending()
                while self.settled is None and not is_quiet:
                    data = yield ("recv", connection.sock, ANSWER_S)
                    for event in connection.events(data):
                        if type(event) is Settled and event.lease == lease_id:
                            self.settled = event
                break
            except (OSError, GrnError) as error:
                connection.close()
                is_quiet = False  # it is repeated over the next connection, with an answer
                if waited_s >= RELEASE_RECONNECT_S or not isinstance(error, ConnectionError):
                    break
            waited_s += 0.1
            yield ("sleep", None, 0.1)
        IDLE.give(connection, is_quiet)
        return None if self.settled is None else self.settled.outcome

    # --- this process --------------------------------------------------------------------

    def _use_outer(self) -> bool:
        """Use the lease of an outer call in this process; False when there is none."""
        outer = _current.get()
        if outer is None or not outer.is_held:  # a forked child requests: it may outlive the call
            return False
        self.id, self.gpus, self.visible_devices = outer.id, outer.gpus, outer.visible_devices
        self.indices = outer.indices
        self.is_nested, self._owner_pid = True, os.getpid()
        return True

    def _begin(self, grant: GrantedGpus) -> None:
        self.id = grant.lease
        self._owner_pid = os.getpid()
        self.is_nested = grant.is_nested
        self.gpus = grant.gpus
        self.visible_devices = grant.visible
        self.indices = grant.indices
        self.reserved_bytes = grant.reserved_bytes
        self.is_first_run = grant.is_first_run
        self.memory_cap = grant.cap
        self._may_end_quietly = grant.may_end_quietly
        self.settled = None
        if self.is_nested:
            if self._connection is not None:
                IDLE.give(self._connection)
                self._connection = None
        else:
            self._check_gpus(grant.uuids)
            GPU_ENVIRONMENT.enter(self.id, self.visible_devices, self.stated_cpus)
        self._token = _current.set(self)

    def _check_gpus(self, uuids: tuple[str, ...]) -> None:
        """Refuse a GPU that this process cannot reach any more."""
        if not _last_gpus and frameworks.has_touched_gpu():
            running_on = _running_on()
            if running_on not in (self.visible_devices, self.indices):
                drive(self._settle(self.id, {"outcome": "failed"}))
                self.id = ""
                raise UsageError(
                    f"CUDA already runs in this process on GPU {running_on}"
                    f" and the lease is for GPU {self.visible_devices}.",
                    "Take the lease before the first use of a GPU, or restart the process.",
                )
        _last_gpus[:] = uuids

    def _leave(self) -> str:
        """Put this process back as it was before the lease, and return the lease's id."""
        lease_id, self.id = self.id, ""
        if self._token is not None:
            try:
                _current.reset(self._token)
            except ValueError:  # released in another context than acquired in
                _current.set(None)
            self._token = None
        if not self.is_nested:
            GPU_ENVIRONMENT.leave()
        return lease_id

    def _ending(self, error: BaseException | None) -> dict[str, Any]:
        peak = frameworks.peak_bytes()
        said: dict[str, Any] = {} if peak is None else {"peak": peak}
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            return {"outcome": self.outcome, **said}
        if isinstance(error, (GeneratorExit, StopIteration)):
            return {"outcome": self.outcome, **said}
        if not frameworks.is_out_of_memory(error):
            return {"outcome": "failed", **said}
        asked = frameworks.asked_bytes_of(error)
        return {"outcome": "oom", **said, **({"asked": asked} if asked else {})}


def lease(
    *,
    gpus: int = 1,
    mem: str | int | None = None,
    exclusive: bool = False,
    priority: int = 0,
    policy: str = "spread",
    type: str | None = None,
    on: str = "",
    without: Sequence[str | int] = (),
    cpus: float | None = None,
    ram: str | int | None = None,
) -> ClientLease:
    """Return a lease to use as `with grn.lease(mem="6GiB", gpus=2) as lease:`."""
    if type is None:
        caller = sys._getframe(1)
        type, label = type_and_label(caller.f_code.co_filename, caller.f_code.co_name)
    else:
        label = type
    request = lease_request(
        type, label, gpus=gpus, mem=mem, exclusive=exclusive, priority=priority, policy=policy,
        on=on, without=without, cpus=cpus, ram=ram,
    )  # fmt: skip
    return ClientLease(request)


def bind(lease_id: str, pid: int | None = None) -> None:
    """Bind a lease to this process, or to its relative `pid`, through restarts."""
    negotiator.ask(bind_message(lease_id, pid))


def _running_on() -> str:
    """Return the GPUs of a process that has touched them before its first lease."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0")


def _say_all(connection: LeaseConnection) -> Steps[None]:
    """Send all that the conversation has to say, until the negotiator has acknowledged it."""
    connection.open()
    yield connection.sending()
    while not connection.conversation.is_acknowledged:
        data = yield ("recv", connection.sock, ANSWER_S)
        connection.events(data)
