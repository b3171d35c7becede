"""`grn.Executor`: a `concurrent.futures.Executor` whose workers are jobs of the queue.

Each call travels by cloudpickle into a fresh interpreter that runs when a GPU has room; its result
or its exception comes back. Files of a call live in a folder of this user's and go when it is done.
"""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from grn import paths
from grn.client import queue
from grn.client.call import name_of, pack
from grn.client.submit import exit_code_of, submit
from grn.errors import JobFailed, UsageError


class Executor(concurrent.futures.Executor):
    """Run functions as jobs: `with grn.Executor(mem="4GiB") as pool: pool.map(train, range(9))`.

    Options are those of `grn.submit`; cancelling a future cancels its job.
    """

    def __init__(self, **options: Any) -> None:
        self._options = {"type": None, **options}
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._is_shut = False

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        """Hand one call to the queue."""
        call = _Call(fn, args, kwargs)
        with self._lock:
            if self._is_shut:
                shutil.rmtree(call.folder, ignore_errors=True)
                raise RuntimeError("cannot schedule new futures after shutdown")
            options = dict(self._options)
            options["type"] = options["type"] or name_of(fn)
            try:
                handle = submit([sys.executable, "-m", "grn.client.call", call.folder], **options)
            except BaseException:
                shutil.rmtree(call.folder, ignore_errors=True)
                raise
            call.future.job = handle  # type: ignore[attr-defined]
            self._calls[handle.id] = call
            call.future.add_done_callback(lambda _: self._forget(handle.id))
            name = f"grn-job-{handle.id}"
            threading.Thread(target=call.wait, args=(handle.id,), name=name, daemon=True).start()
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; wait for, or cancel, those under way."""
        with self._lock:
            self._is_shut = True
            calls = dict(self._calls)
        if cancel_futures and calls:
            queue.ask({"op": "cancel", "jobs": list(calls)})
        if wait:
            concurrent.futures.wait([call.future for call in calls.values()])

    def _forget(self, job_id: int) -> None:
        call = self._calls.pop(job_id, None)
        if call is None:
            return
        if call.future.cancelled():
            queue.ask({"op": "cancel", "jobs": [job_id]})
        shutil.rmtree(call.folder, ignore_errors=True)


class _Call:
    """One call on its way: its folder and its future."""

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        parent = os.path.join(paths.state_dir(), "calls")
        os.makedirs(parent, mode=0o700, exist_ok=True)
        self.folder = tempfile.mkdtemp(dir=parent)
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            pack(self.folder, fn, args, kwargs)
        except UsageError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def wait(self, job_id: int) -> None:
        """Wait for the end of the call's job."""
        try:
            ended = next(queue.ends([job_id]))
        except Exception as error:  # whatever kept us from hearing of it is the future's answer
            if self.future.set_running_or_notify_cancel():
                self.future.set_exception(error)
            return
        self.finish(ended)

    def finish(self, ended: dict[str, Any]) -> None:
        """Set the future's result from what the call left behind."""
        if not self.future.set_running_or_notify_cancel():
            return
        is_good, answer = self._answer(ended)
        # Before anybody hears of it: a program may end with its last result.
        shutil.rmtree(self.folder, ignore_errors=True)
        if is_good:
            self.future.set_result(answer)
        else:
            self.future.set_exception(answer)

    def _answer(self, ended: dict[str, Any]) -> tuple[bool, Any]:
        if ended["reason"] == "cancelled":
            return False, concurrent.futures.CancelledError()
        try:
            with open(os.path.join(self.folder, "answer"), "rb") as file:
                is_good, answer = pickle.load(file)
        except FileNotFoundError:
            text = f": {ended['text']}" if ended["text"] else ""
            message = f"job {ended['id']} ended as {ended['reason']}{text}."
            return False, JobFailed(message, exit_code_of(ended))
        except Exception as error:  # an answer may break in any way where it is put together
            message = f"the answer of job {ended['id']} cannot be read: {error!r}."
            return False, JobFailed(message, 1)
        return is_good, answer
