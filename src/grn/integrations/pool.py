"""Calls in fresh processes, each under a lease of its own: what the Hydra and joblib parts share.

Starts the processes and brings their answers back; when a call may run is the negotiator's choice,
which the process asks itself. Nothing outlives the program that wanted it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from grn.client.call import name_of, pack
from grn.client.daemons import ensure_negotiator
from grn.client.fingerprint import of_function
from grn.client.job_features import worth_learning
from grn.client.lease import type_and_label, wish
from grn.errors import JobFailed, UsageError
from grn.model.oom_retry import Had, again

IDLE_EXIT_S = 300.0  # a negotiator that was started for us ends when nobody needs it any more
GRACE_S = 5.0
_LOOK_S = 0.01
OPTIONS = ("gpus", "mem", "exclusive", "priority", "policy", "retry_oom")
REQUEST_FILE, ANSWER_FILE = "request", "answer"


@dataclass(frozen=True, slots=True)
class Call:
    """A function, what to call it with, and what the negotiator hears of it."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    named_after: Callable[..., Any] | None = None  # the function that is meant, if another
    facts: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallReply:
    """What a process says of its call before its answer, which may be unreadable."""

    is_good: bool
    is_out_of_memory: bool = False
    is_victim: bool = False  # others had taken its room
    text: str = ""  # the traceback of what it raised


class RemoteTraceback(Exception):
    """Where a call failed in the process that ran it; the cause of what it raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class Pool:
    """Runs calls, at most so many at once. The options are those of `grn.lease`."""

    def __init__(self, most: int, **options: Any) -> None:
        unknown = options.keys() - set(OPTIONS)
        if unknown:
            text = f"there is no option {', '.join(sorted(unknown))} for jobs of grn."
            raise UsageError(text, f"There are {', '.join(OPTIONS)}.")
        self._retry_oom: int = options.pop("retry_oom", 0)
        self._needs = options
        wish("?", "?", **options)  # whoever asks for nonsense hears of it now
        ensure_negotiator(IDLE_EXIT_S)
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="grn-call")
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def submit(self, call: Call) -> Future[Any]:
        """Run a call when it is its turn and a GPU has room for it."""
        folder = tempfile.mkdtemp(prefix="grn-call-")
        try:
            pack(folder, call.function, call.args, dict(call.kwargs))
            future = self._threads.submit(self._run, folder, self._message(call))
        except BaseException:  # nobody will come for this folder
            shutil.rmtree(folder, ignore_errors=True)
            raise
        future.add_done_callback(lambda _: shutil.rmtree(folder, ignore_errors=True))
        return future

    def stop(self) -> None:
        """End all that runs, kindly first, and forget what has not begun."""
        self._is_stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._signal_all(signal.SIGTERM)
        kill_at = time.monotonic() + GRACE_S
        try:
            while self._processes and time.monotonic() < kill_at:
                time.sleep(_LOOK_S)
        finally:  # also when somebody is impatient
            self._signal_all(signal.SIGKILL)
        self._threads.shutdown()

    def _message(self, call: Call) -> dict[str, Any]:
        function = call.named_after or call.function
        message = {**wish(*names_of(function), **self._needs), "args": dict(call.facts)}
        code = of_function(function)
        return {**message, "code": code} if code else message

    def _run(self, folder: str, message: dict[str, Any]) -> Any:
        had = Had()
        while True:
            answer = self._run_once(folder, {**message, **had.told()})
            if answer.is_good:
                return answer.value
            is_out = answer.is_out_of_memory
            following = again(had, answer.is_victim, self._retry_oom) if is_out else None
            if following is None:
                raise answer.value
            had = following

    def _run_once(self, folder: str, message: dict[str, Any]) -> _Answer:
        with open(os.path.join(folder, REQUEST_FILE), "w") as file:
            json.dump(message, file)
        process = self._start(folder)
        # Its pid is its own until it is buried: until then all it has started can be named by it.
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # this program ignores SIGCHLD: nobody is ever buried
        with self._lock:
            self._processes.discard(process)
            if self._is_stopped:
                _signal(process, signal.SIGKILL)  # what it has left behind
            status = process.wait()
        assert process.stdin is not None
        process.stdin.close()
        if self._is_stopped:
            raise CancelledError
        return _answer(folder, message["label"], status)

    def _start(self, folder: str) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_stopped:
                raise CancelledError
            process = subprocess.Popen(
                [sys.executable, "-m", "grn.integrations.worker", folder],
                stdin=subprocess.PIPE,  # never written to: it closes when we are gone
                start_new_session=True,  # Ctrl-C is for us, and we know whom to end
            )
            self._processes.add(process)
        return process

    def _signal_all(self, signum: int) -> None:
        with self._lock:
            for process in self._processes:
                _signal(process, signum)


def names_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the job type of a function and its label, the same that `@grn.job` would give it."""
    inner = getattr(function, "func", function)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is None:
        return name_of(function), name_of(function)
    return type_and_label(code.co_filename, inner.__qualname__.replace("<locals>.", ""))


def facts_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, float | str]:
    """Return what of the arguments of a call is worth learning from."""
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return worth_learning([*zip(names, args, strict=False), *kwargs.items()])


class _Answer:
    """What a call gave, or what it raised."""

    def __init__(self, told: CallReply, value: Any) -> None:
        self.is_good = told.is_good
        self.is_out_of_memory = told.is_out_of_memory
        self.is_victim = told.is_victim
        self.value = value


def _answer(folder: str, label: str, status: int) -> _Answer:
    """Read what a process has left; one that left nothing has failed."""
    path = os.path.join(folder, ANSWER_FILE)
    told = CallReply(False)
    try:
        with open(path, "rb") as file:
            told = pickle.load(file)
            value = pickle.load(file)
        os.unlink(path)  # the next try leaves its own
    except FileNotFoundError:
        end = f"signal {-status}" if status < 0 else f"exit status {status}"
        failure = f"the process of {label} ended with {end} and gave no answer."
        code = status if status >= 0 else 128 - status
        return _Answer(CallReply(False), JobFailed(failure, code))
    except Exception as error:  # an answer may break in any way where it is put together
        failure = f"the answer of {label} cannot be read: {error!r}.\n{told.text}".strip()
        return _Answer(CallReply(False), JobFailed(failure, 1))
    if told.text:
        value.__cause__ = RemoteTraceback(told.text)
    return _Answer(told, value)


def _signal(process: subprocess.Popen[bytes], signum: int) -> None:
    """Signal a process and what it has started."""
    try:
        os.killpg(process.pid, signum)
    except (ProcessLookupError, PermissionError):
        pass
