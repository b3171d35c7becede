"""Calls of this process as one group of jobs, for `grn.Executor`, joblib and Hydra.

One thread runs the group, one accepts workers, and each worker that runs has a thread that hands it
calls over a unix socket. `call_table.py` decides, the runner of the group runs. The address of the
socket is abstract, so no file is left when this process is killed. At another place than this
machine each call is a job of its own, which has the call in its variables.
"""

from __future__ import annotations

import concurrent.futures
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from grn.client import remote_call
from grn.client.submit import JobHandle, request
from grn.errors import JobFailed, from_code
from grn.group.call_table import Call, CallTable, CallVerdict, CallWorker, Ending, Kind
from grn.group.choose_runner import NestedSlots, runner_for
from grn.group.roles import RunControl
from grn.group.task import CommandEnd, Needs, Slot, Task
from grn.model.oom_retry import MAX_MEMORY_ATTEMPTS
from grn.proc import pidfd
from grn.proc.spawn import own_module

IDLE_S = 1.0  # an idle worker waits this long for the next call
MAX_WAITING_NESTED = 4
MAX_AHEAD = 1_000_000
_MARK = "GRN_CALLS"
_QUEUE_ONLY = ("after", "time_limit", "requeue", "hold", "notify")

Future = concurrent.futures.Future[Any]


class CallGroup:
    """The calls of one executor. The options are those of `grn.submit`."""

    def __init__(
        self,
        group: str = "",
        *,
        max_workers: int | None = None,
        is_reusing: bool = False,
        oom_retries: int | None = None,
        **options: Any,
    ) -> None:
        self._shared = request(**options)  # raises on wrong options
        self._is_elsewhere = self._shared.get("at", "") not in ("", "local")
        is_reusing = is_reusing and not self._is_elsewhere
        self._name = group or os.path.basename(sys.argv[0] or "python") or "python"
        retries = self._shared.get("retry", 0)
        needs_queue = any(options.get(name) for name in _QUEUE_ONLY)
        is_nestable = not needs_queue and not self._is_elsewhere
        self._slots = NestedSlots.here() if is_nestable else None
        is_nested = self._slots is not None
        if is_nested and oom_retries is None:
            oom_retries = MAX_MEMORY_ATTEMPTS
        self._table = CallTable(
            is_reusing=is_reusing, max_workers=max_workers, retries=retries,
            oom_retries=oom_retries,
        )  # fmt: skip
        self._needs = Needs(
            self._shared.get("gpus", 1), self._shared.get("mem"),
            self._shared.get("exclusive", False), self._shared.get("priority", 0),
            cpus=self._shared.get("cpus"), ram_bytes=self._shared.get("ram"),
        )  # fmt: skip
        self._folder = options.get("cwd")
        self._environment = dict(options.get("env") or {}) if is_nested else {}
        self._is_reusing = is_reusing
        self._retries = 0 if is_reusing else retries
        self._lock = threading.Condition()
        self._accepted: set[int] = set()  # workers that are jobs, for `submit` to return
        self._error: BaseException | None = None  # why the group broke
        self._to_cancel: list[int] = []
        self._is_shut = self._is_stopping = False
        self._runner: RunControl | None = None
        self._thread: threading.Thread | None = None

    # --- for programs --------------------------------------------------------------------

    def submit(
        self, function: Callable[..., Any], args: Any, kwargs: Any, kind: Kind, name: str = "",
        facts: Mapping[str, float | str] | None = None,
    ) -> Future:  # fmt: skip
        """Add a call; without reuse return once it is a job, so that `future.job` is set."""
        future: Future = concurrent.futures.Future()
        future.job = None  # type: ignore[attr-defined]
        call = Call(kind, remote_call.pack(function, args, kwargs), future, name, facts or {})
        if self._is_elsewhere:
            remote_call.to_variables(call.data)  # raises when it is too large
        with self._lock:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._check()
            self._table.add(call)
            self._start()
            self._lock.notify_all()
        future.add_done_callback(lambda _: self._dropped(call))
        self._wake()
        if not self._is_reusing and self._slots is None:
            self._wait_until_accepted(call)
        return future

    def shut(self, *, is_stopping: bool = False) -> None:
        """Accept no more calls; with `is_stopping` end the open ones."""
        with self._lock:
            self._is_shut = True
            self._is_stopping = self._is_stopping or (is_stopping and self._table.has_open_calls)
            self._lock.notify_all()
        self._wake()

    def join(self) -> None:
        """Wait until the last worker has ended."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _wait_until_accepted(self, call: Call) -> None:
        if threading.current_thread() is self._thread:
            return  # a callback of a future submits: this thread is the one that would accept
        with self._lock:
            self._lock.wait_for(lambda: self._is_settled(call))
            self._check()
            if isinstance(call.reply, Exception):
                raise call.reply

    def _is_settled(self, call: Call) -> bool:
        """True once a call is a job, is over, or is not yet allowed to become a job."""
        if call.future.done() or isinstance(call.reply, Exception) or self._error is not None:
            return True
        worker = call.worker
        if worker is None:
            return len(self._table.workers) >= (self._table.max_workers or MAX_AHEAD)
        return worker.number in self._accepted

    def _dropped(self, call: Call) -> None:
        """Cancel the worker of a call whose future was cancelled."""
        if not call.future.cancelled():
            return
        with self._lock:
            number = self._table.cancel(call)
            if number is not None:
                self._to_cancel.append(number)
            self._lock.notify_all()
        self._wake()

    # --- the runner's thread -------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is not None:
            return
        self._awake, self._waker = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._waker, False)
        self._address = f"grn-calls-{os.getuid()}-{os.urandom(16).hex()}"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(f"\0{self._address}")
        self._server.listen(1024)
        threading.Thread(target=self._accept, name="grn-calls-accept", daemon=True).start()
        self._thread = threading.Thread(target=self._run, name="grn-calls", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._runner = runner_for(
                self, self, self._name, slots=self._slots, retries=self._retries,
                on_submit=self._submitted, shared=self._shared, ahead=MAX_AHEAD,
                mark=f"{_MARK}={self._address}", may_nest=False,
            )  # fmt: skip
            self._runner.run()
        except BaseException as raised:  # the error belongs to the callers of the open calls
            error = raised
        with self._lock:
            self._error = error
            self._is_shut = True
            over = self._table.open_calls
            self._lock.notify_all()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for call in over:
            _settle(call, error or concurrent.futures.CancelledError())
        with self._lock:
            os.close(self._waker)
            os.close(self._awake)
            self._waker = -1

    def _wake(self) -> None:
        with self._lock:
            if self._thread is not None and self._waker >= 0:
                try:
                    os.write(self._waker, b"x")
                except BlockingIOError:
                    pass  # it is awake

    @property
    def is_over(self) -> bool:
        """True when no call will come, none is left, and no worker has to be cancelled."""
        with self._lock:
            return self._is_shut and not self._table.has_open_calls and not self._to_cancel

    def fileno(self) -> int | None:
        """Return the pipe that wakes the runner."""
        return self._awake

    def hear(self) -> None:
        """Cancel workers that are not needed any more."""
        try:
            os.read(self._awake, 1 << 16)
        except BlockingIOError:
            pass
        assert self._runner is not None
        with self._lock:
            numbers, self._to_cancel = self._to_cancel, []
            surplus = self._table.dismiss_surplus()
            is_stopping = self._is_stopping
        if numbers:
            self._runner.cancel(numbers)
        if surplus:
            self._runner.cancel(surplus, is_queued_only=True)
        if is_stopping and not self._runner.is_stopping:
            self._runner.stop()

    def next_task(self) -> Task | None:
        """Return the next worker to start."""
        with self._lock:
            workers = self._table.workers.values() if self._slots is not None else ()
            if sum(not one.is_running for one in workers) >= MAX_WAITING_NESTED:
                return None
            worker = self._table.new_worker()
            return None if worker is None else self._task(worker)

    def _task(self, worker: CallWorker) -> Task:
        kind, call = worker.kind, worker.call
        profile: dict[str, object] = {"type": kind.type, "label": kind.label}
        if call is not None:
            profile["args"] = dict(call.facts)
        if kind.code:
            profile["code"] = kind.code
        argv = own_module("grn.client.remote_call")
        if self._is_elsewhere and call is not None:
            own = remote_call.to_variables(call.data)
        else:
            argv, own = [*argv, self._address, str(worker.number)], {_MARK: self._address}
        return Task(
            worker.number,
            tuple(argv),
            call.name if call is not None else "",
            environment={**self._environment, **own},
            folder=self._folder if self._slots is not None else None,
            needs=self._needs,
            profile=profile,
        )

    def _submitted(self, task: Task, job: int) -> None:
        with self._lock:
            worker = self._table.workers.get(task.number)
            if worker is not None:
                worker.job = job
                if worker.call is not None:
                    worker.call.future.job = JobHandle(job)
            self._accepted.add(task.number)
            self._lock.notify_all()

    def starting(self, runner: RunControl, task: Task, slot: Slot) -> None:
        """Note that a worker has a GPU."""
        with self._lock:
            self._table.workers[task.number].is_running = True

    def ended(self, runner: RunControl, ended: CommandEnd) -> None:
        """Settle the calls of a worker that has ended."""
        number = ended.task.number
        reply = self._reply_of(ended)
        with self._lock:
            worker = self._table.workers[number]
            if worker.call is not None and reply is not None:
                worker.call.reply = reply
            verdict = self._table.ended(number, Ending(
                not ended.runs_again, ended.status == 0, ended.is_cancelled,
                ended.is_out_of_memory, ended.has_more_room,
            ))  # fmt: skip
            refusal = _refusal(ended)
            if refusal is not None and number not in self._accepted:
                for call in verdict.over:
                    call.reply = refusal
            self._accepted.discard(number)
            self._lock.notify_all()
        if ended.runs_again and not verdict.may_run_again:
            runner.cancel([number])
        self._settle(verdict, worker, refusal or _failure(ended, worker))
        self._wake()

    def _reply_of(self, ended: CommandEnd) -> remote_call.Reply | None:
        """Return the reply that a call at another place has left with its job."""
        job = self._table.workers[ended.task.number].job
        if not self._is_elsewhere or ended.runs_again or not job:
            return None
        return remote_call.read_reply(JobHandle(job).status()["folder"])

    def _settle(self, verdict: CallVerdict, worker: CallWorker, failure: BaseException) -> None:
        for call in verdict.over:  # outside of the lock: callbacks may submit
            _settle(call, failure, f"job {worker.job}" if worker.job else worker.kind.label)

    # --- workers -------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # the group is over
            if pidfd.credentials(connection)[1] != os.getuid():
                connection.close()
                continue
            serve = threading.Thread(
                target=self._serve, args=(connection,), name="grn-calls-worker", daemon=True
            )
            serve.start()

    def _serve(self, connection: socket.socket) -> None:
        """Hand calls to one worker until there are none for it, or it ends."""
        with connection:
            hello = remote_call.receive(connection)
            if hello is None:
                return
            (number,) = remote_call.HELLO.unpack(hello)
            try:
                while (call := self._next_call(number)) is not None:
                    is_last = not self._is_reusing
                    remote_call.send_call(connection, call.data, is_last=is_last)
                    message = remote_call.receive(connection)
                    if message is None:
                        return  # it died: the end of its job settles the call
                    self._replied(number, remote_call.Reply.read(message))
                if not self._is_cancelled(number):  # else it waits for the cancel of its job
                    remote_call.send_end(connection)
            except ConnectionError:
                return  # as above

    def _is_cancelled(self, number: int) -> bool:
        with self._lock:
            worker = self._table.workers.get(number)
            return worker is not None and worker.is_cancelled

    def _next_call(self, number: int) -> Call | None:
        until = time.monotonic() + IDLE_S
        with self._lock:
            while True:
                call = self._table.take(number, time.monotonic())
                worker = self._table.workers.get(number)
                left_s = until - time.monotonic()
                if call is not None or worker is None or worker.is_done:
                    break
                if self._is_shut or left_s <= 0 or not self._table.is_wanted(worker.kind):
                    self._table.dismiss(number)
                    break
                self._lock.wait(left_s)
            if call is not None and worker is not None and worker.job:
                call.future.job = JobHandle(worker.job)
            return call

    def _replied(self, number: int, reply: remote_call.Reply) -> None:
        with self._lock:
            verdict = self._table.replied(number, reply)
            worker = self._table.workers.get(number)
        if worker is not None:
            self._settle(verdict, worker, concurrent.futures.CancelledError())
        self._wake()


def _settle(call: Call, failure: BaseException, where: str = "") -> None:
    """Set a future from the reply of its call, or from the failure when there is none."""
    reply, call.data = call.reply, b""
    if not call.future.set_running_or_notify_cancel():
        return
    if isinstance(reply, Exception):
        call.future.set_exception(reply)
        return
    if reply is None:
        call.future.set_exception(failure)
        return
    try:
        value = reply.value()
    except Exception as error:  # unpickling may fail in any way
        text = f"the answer of {where} cannot be read: {error!r}.\n{reply.text}".strip()
        call.future.set_exception(JobFailed(text, 1))
        return
    if reply.is_good:
        call.future.set_result(value)
    else:
        call.future.set_exception(value)


def _refusal(ended: CommandEnd) -> Exception | None:
    """Return the error with which the queue refused a worker, None if it did not."""
    is_refused = ended.trouble and ended.reason[:1].isupper()
    return from_code(ended.reason, ended.trouble) if is_refused else None


def _failure(ended: CommandEnd, worker: CallWorker) -> BaseException:
    """Describe the end of a worker that gave no reply."""
    if ended.is_cancelled:
        return concurrent.futures.CancelledError()
    how = f"ended by signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
    reason = ended.reason or ("out-of-memory" if ended.is_out_of_memory else "failed")
    code = (
        124 if reason == "timed-out" else ended.status if ended.status >= 0 else 128 - ended.status
    )
    what = f"job {worker.job}" if worker.job else f"the process of {worker.kind.label}"
    return JobFailed(
        f"{what} ended as {reason}: {ended.text or ended.trouble or how}.", code or 125
    )
