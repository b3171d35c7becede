"""`grn.Executor`: a `concurrent.futures.Executor` whose workers are jobs of the queue.

Also the options and job types that joblib's backend and Hydra's launcher share.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

from grn.client.leasing.job_request import (
    call_arguments,
    code_of_function,
    lease_request,
    type_and_label,
)
from grn.client.remote_call import name_of
from grn.errors import UsageError
from grn.group.call_group import CallGroup
from grn.group.call_table import Kind

OPTIONS = (
    *("gpus", "mem", "cpus", "ram", "exclusive", "priority", "policy", "at", "on", "without"),
    "retry_oom",
    "reuse_workers",
)


class Executor(concurrent.futures.Executor):
    """Run functions as jobs: `with grn.Executor(mem="4GiB") as pool: pool.map(train, range(9))`.

    Each call is a job with a fresh interpreter; with `reuse_workers=True` a job runs several calls.
    At most `max_workers` jobs run or wait. Other options are those of `grn.submit`. Cancelling a
    future cancels its job, and all jobs end with this process.
    """

    def __init__(
        self, *, max_workers: int | None = None, reuse_workers: bool = False, **options: Any
    ) -> None:
        self._options = options
        self._type = options.pop("type", None)
        self._max_workers = max_workers
        self._reuse_workers = reuse_workers
        self._lock = threading.Lock()
        self._group: CallGroup | None = None
        self._is_shut = False

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        """Hand one call to the queue; `future.job` is its job, None before it has one."""
        with self._lock:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._group is None:
                options = dict(self._options)
                self._group = CallGroup(
                    options.pop("name", None) or "",
                    max_workers=self._max_workers,
                    is_reusing=self._reuse_workers,
                    **options,
                )
            group = self._group
        name = self._type or name_of(fn)
        facts = call_arguments(getattr(fn, "__code__", None), args, kwargs)
        return group.submit(fn, args, kwargs, Kind(name, name[-256:]), facts=facts)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; wait for the open ones, or cancel them."""
        with self._lock:
            self._is_shut = True
            group = self._group
        if group is None:
            return
        group.shut(is_stopping=cancel_futures)
        if wait:
            group.join()

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        """Wait for all calls; cancel them on Ctrl-C and `sys.exit`."""
        is_leaving = kind is not None and not issubclass(kind, Exception)
        self.shutdown(cancel_futures=is_leaving)


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a `CallGroup`; raise on unknown and invalid ones."""
    unknown = options.keys() - set(OPTIONS)
    if unknown:
        text = f"there is no option {', '.join(sorted(unknown))} for jobs of grn."
        raise UsageError(text, f"There are {', '.join(OPTIONS)}.")
    needs = dict(options)
    retries, is_reusing = needs.pop("retry_oom", 0), needs.pop("reuse_workers", False)
    lease_request("?", "?", **{name: needs[name] for name in needs if name != "at"})
    return {"oom_retries": retries, "is_reusing": is_reusing, **needs}


def kind_of(function: Callable[..., Any]) -> Kind:
    """Return the job type that `@grn.job` on a function would have."""
    inner = getattr(function, "func", function)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is None:
        name = name_of(function)
        return Kind(name[-1024:], name[-256:])
    names = type_and_label(code.co_filename, inner.__qualname__.replace("<locals>.", ""))
    return Kind(names[0][-1024:], names[1][-256:], code_of_function(function))
