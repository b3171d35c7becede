"""Acquire, hold, release: the primitive under every way to use a GPU through grn.

One lease is one conversation with the negotiator. It starts no thread and never polls; when the
negotiator restarts, a waiting lease asks again with the same key and keeps its place.
"""

from __future__ import annotations

import contextvars
import functools
import os
import sys

from grn.client import frameworks
from grn.client.connection import IDLE, Connection, connect, drive, drive_async, garbled
from grn.client.gpu_environment import SURROUNDINGS
from grn.client.retry import Retry, through_restarts
from grn.errors import DaemonNotRunning, GrnError, ProtocolError, UsageError
from grn.model import MAX_GPUS, MAX_PRIORITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from grn.client.connection import Steps
    from grn.wire import Message

RELEASE_RECONNECT_S = 2.0

_current: contextvars.ContextVar[Lease | None] = contextvars.ContextVar("grn_lease", default=None)
_unsaid: list[Message] = []  # ends that no negotiator has heard of yet
_last_gpus: list[str] = []  # where this process was last, in case it cannot leave


class Lease:
    """The right to use GPUs, from `acquire` to `release`, or for the length of a `with`.

    `is_expected` says whether a negotiator that does not answer is waited for; if not given,
    whether this process has reached one before.
    """

    def __init__(
        self,
        wish: Message,
        on_wait: Callable[[str], None] | None = None,
        is_expected: bool | None = None,
    ) -> None:
        self._wish = wish
        self._retry = Retry(is_expected)
        self._on_wait = on_wait  # hears why there is no GPU yet
        self._key = os.urandom(12).hex()
        self._connection: Connection | None = None
        self._owner_pid = 0
        self._token: contextvars.Token[Lease | None] | None = None
        self.id = ""
        self.gpus: tuple[int, ...] = ()
        self.visible_devices = ""
        self.indices: str | None = None  # the same GPUs by index, while CUDA counts as NVML does
        self.reserved_bytes = 0
        self.is_first_run = False
        self.is_nested = False
        self.outcome = "ok"  # what `release` reports unless an exception says otherwise
        self.has_larger = False  # after `release`: it was alone, and a larger GPU is managed here
        self.is_victim = False  # after `release`: memory ran out, and others had taken too much
        self.because = ""  # after `release`: whose fault it was, if memory ran out

    def __repr__(self) -> str:
        return f"<grn lease {self.id or 'not held'} on GPU {self.visible_devices or '-'}>"

    @property
    def is_held(self) -> bool:
        """True between acquire and release, in the process that acquired it."""
        return bool(self.id) and self._owner_pid == os.getpid()

    def acquire(self) -> Lease:
        """Wait for the GPUs and make them visible to this process."""
        if not self._use_outer():
            self._begin(drive(self._ask()))
        return self

    def release(self, error: BaseException | None = None, **said: Any) -> str | None:
        """Give the GPUs back and say how the job went; return how the negotiator saw it end."""
        ending = self._end(error) if self.is_held else None
        return None if ending is None else drive(self._tell({**ending, **said}))

    def __enter__(self) -> Lease:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release(error)

    async def __aenter__(self) -> Lease:
        if not self._use_outer():
            self._begin(await drive_async(self._ask()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ending = self._end(error) if self.is_held else None
        if ending is not None:
            await drive_async(self._tell(ending))

    # --- the conversation ----------------------------------------------------------------

    def _ask(self) -> Steps[Message]:
        """Ask until there is an answer, through restarts of the negotiator."""
        message = {"op": "lease", "key": self._key, **self._wish}
        inherited = SURROUNDINGS.inherited_lease()
        if inherited:
            message["within"] = inherited
        if frameworks.has_touched_gpu():
            if _last_gpus:
                message["stay"] = list(_last_gpus)
            elif message["gpus"] == 1 and "," not in _running_on():
                message["slots"] = [_running_on()]

        def attempt() -> Steps[Message]:
            try:
                answer = yield from self._ask_here(message)
            except DaemonNotRunning:
                if not inherited or self._retry.waited_s:
                    raise
                # A job that runs under a lease goes on when the negotiator is away.
                return {"lease": inherited, "nested": True, "gpus": [], "visible": ""}
            return answer

        answer = yield from through_restarts(attempt, self._retry)
        return answer

    def _ask_here(self, message: Message) -> Steps[Message]:
        idle = IDLE.take()
        connection = idle or connect()
        is_heard = False
        try:
            yield from _say_unsaid(connection)
            yield from connection.send(dict(message))
            answer = yield from connection.receive(None, is_eager=True)
            is_heard = True
            self._retry.reached()
            while answer.get("ev") == "waiting":
                if self._on_wait is not None:
                    self._on_wait(str(answer.get("text")))
                answer = yield from connection.receive(None)
            if not _is_grant(answer):
                raise garbled() or ProtocolError("the negotiator granted nothing in its reply.")
        except ConnectionError:
            connection.close()
            if idle is None or is_heard:
                raise
            answer = yield from self._ask_here(message)  # the kept one was stale: a new one
            return answer
        except ProtocolError:
            connection.close()
            raise
        except GrnError:
            IDLE.give(connection)
            raise
        except BaseException:  # Ctrl-C while it waits, above all: nobody is to hold its place
            connection.close()
            self._give_up()
            raise
        self._connection = connection
        return answer

    def _give_up(self) -> None:
        """Interrupted while waiting: the grant may have crossed with us, so take it back."""
        try:
            connection = connect()
        except DaemonNotRunning:
            return
        try:
            drive(connection.ask({"op": "cancel", "key": self._key}))
        except (OSError, GrnError):
            pass  # the negotiator is gone or does not know the key: nothing to take back
        finally:
            connection.close()

    def _tell(self, ending: Message) -> Steps[str | None]:
        """Say that the lease is over; if nobody hears it, it is said at the next chance."""
        connection = self._connection
        self._connection = None
        waited_s = 0.0
        while True:
            try:
                connection = connection or connect()
                answer = yield from connection.ask(dict(ending), is_eager=True)
                IDLE.give(connection)
                self.is_victim = bool(answer.get("victim"))
                self.has_larger = bool(answer.get("larger"))
                self.because = str(answer.get("because", ""))
                ended = answer.get("ended")
                return ended if isinstance(ended, str) else None
            except (OSError, GrnError) as error:
                if connection is not None:
                    connection.close()
                connection = None
                if isinstance(error, UsageError) and ending["outcome"] == "cancelled":
                    ending = {**ending, "outcome": "failed"}  # an older negotiator
                    continue
                if isinstance(error, GrnError) and not isinstance(error, ConnectionError):
                    return None  # it answered: the lease is not ours any more
                if waited_s >= RELEASE_RECONNECT_S or isinstance(error, TimeoutError):
                    _unsaid.append(ending)
                    return None
            waited_s += 0.1
            yield ("sleep", None, 0.1)

    # --- this process --------------------------------------------------------------------

    def _use_outer(self) -> bool:
        """Inside a call that holds a lease already, that lease serves."""
        outer = _current.get()
        if outer is None or not outer.is_held:  # a forked child asks: it may outlive the call
            return False
        self.id, self.gpus, self.visible_devices = outer.id, outer.gpus, outer.visible_devices
        self.indices = outer.indices
        self.is_nested, self._owner_pid = True, os.getpid()
        return True

    def _begin(self, answer: Message) -> None:
        self.id = answer["lease"]
        self._owner_pid = os.getpid()
        self.is_nested = answer["nested"]
        self.gpus = tuple(gpu["index"] for gpu in answer["gpus"])
        self.visible_devices = answer["visible"]
        self.indices = answer.get("indices")
        self.reserved_bytes = answer.get("reserved", 0)
        self.is_first_run = answer.get("probe", False)
        if self.is_nested:
            if self._connection is not None:
                IDLE.give(self._connection)
                self._connection = None
        else:
            self._check_gpus([gpu["uuid"] for gpu in answer["gpus"]])
            SURROUNDINGS.enter(self.id, self.visible_devices)
        self._token = _current.set(self)

    def _check_gpus(self, uuids: list[str]) -> None:
        """Refuse a GPU that this process cannot reach any more."""
        if not _last_gpus and frameworks.has_touched_gpu():
            running_on = _running_on()
            if running_on not in (self.visible_devices, self.indices):
                drive(self._tell({"op": "done", "lease": self.id, "outcome": "failed"}))
                self.id = ""
                raise UsageError(
                    f"CUDA already runs in this process on GPU {running_on}"
                    f" and the lease is for GPU {self.visible_devices}.",
                    "Take the lease before the first use of a GPU, or restart the process.",
                )
        _last_gpus[:] = uuids

    def _end(self, error: BaseException | None) -> Message | None:
        lease_id, self.id = self.id, ""
        if self._token is not None:
            try:
                _current.reset(self._token)
            except ValueError:  # released in another context than acquired in
                _current.set(None)
            self._token = None
        if self.is_nested:
            return None
        SURROUNDINGS.leave()
        return {"op": "done", "lease": lease_id, **self._ending(error)}

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
) -> Lease:
    """Return a lease to use as `with grn.lease(mem="6GiB", gpus=2) as lease:`."""
    if type is None:
        caller = sys._getframe(1)
        type, label = type_and_label(caller.f_code.co_filename, caller.f_code.co_name)
    else:
        label = type
    return Lease(
        wish(type, label, gpus=gpus, mem=mem, exclusive=exclusive, priority=priority, policy=policy)
    )


POLICIES = {"spread": "spread", "spreading": "spread", "pack": "pack", "packing": "pack"}


def wish(job_type: str, label: str, **asked: Any) -> Message:
    """Return the message for a request, checked so far as it can be without the negotiator."""
    policy = asked.get("policy", "spread")
    if policy not in POLICIES:
        raise ValueError(f"policy is '{policy}' and must be 'spread' or 'pack'")
    gpus = asked.get("gpus", 1)
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= MAX_GPUS:
        raise ValueError(f"gpus is {gpus!r} and must be a whole number from 1 up")
    priority = asked.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise ValueError(
            f"priority is {priority!r} and must be a whole number up to {MAX_PRIORITY}"
        )
    message: Message = {
        "type": _text(job_type, 1024),
        "label": _text(label, 256),
        "gpus": gpus,
        "policy": POLICIES[policy],
        "priority": priority,
        "exclusive": bool(asked.get("exclusive", False)),
    }
    if asked.get("mem") is not None:
        from grn.model.units import parse_size

        message["mem"] = parse_size(asked["mem"])
    return message


def type_and_label(file: str, name: str) -> tuple[str, str]:
    """Return the unambiguous name of a job type and the short one for people."""
    return _type_and_label(file, name, os.getcwd())


@functools.lru_cache(maxsize=1024)  # paths are slow to follow, and the same at every call
def _type_and_label(file: str, name: str, folder: str) -> tuple[str, str]:
    if "ipykernel" in file or file.startswith("<"):  # a notebook's files have new names each time
        return f"notebook in {folder}::{name}", f"notebook::{name}"
    full = os.path.realpath(file)
    short = os.path.relpath(os.path.abspath(file))
    shown = full if short.startswith("..") else short
    return f"{full}::{name}", f"{shown}::{name}"


def _is_grant(answer: Message) -> bool:
    """True when a reply has all that a lease is made of."""
    gpus = answer.get("gpus")
    texts = (answer.get("lease"), answer.get("visible"))
    if not isinstance(gpus, list) or not all(isinstance(text, str) for text in texts):
        return False
    return isinstance(answer.get("nested"), bool) and all(
        isinstance(gpu, dict)
        and isinstance(gpu.get("index"), int)
        and isinstance(gpu.get("uuid"), str)
        for gpu in gpus
    )


def _running_on() -> str:
    """Return the GPUs of a process that has touched them before its first lease."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0")


def _say_unsaid(connection: Connection) -> Steps[None]:
    while _unsaid:
        ending = _unsaid.pop()
        try:
            yield from connection.ask(dict(ending))
        except (ConnectionError, TimeoutError):
            _unsaid.append(ending)
            raise
        except GrnError:
            pass  # the negotiator does not know that lease: it has ended it itself


def _text(text: str, most: int) -> str:
    """Return a text that JSON can carry, the end kept when it is too long."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= most else "…" + clean[1 - most :]


def _after_fork() -> None:
    """A child holds no lease of its own and has said nothing yet."""
    _unsaid.clear()


os.register_at_fork(after_in_child=_after_fork)
