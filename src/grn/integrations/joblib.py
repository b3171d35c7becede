"""The joblib backend "grn": each batch of calls in a process of its own, under a lease.

Importing this file registers it. `joblib.parallel_config("grn", n_jobs=8, mem="2GiB")` then sends
the calls of `Parallel` to the negotiator's GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import joblib
from joblib.parallel import ParallelBackendBase, register_parallel_backend

from grn.integrations.pool import OPTIONS, Call, Pool, facts_of


class GrnBackend(ParallelBackendBase):
    """At most `n_jobs` processes that run or wait; the options are those of `grn.lease`."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, nesting_level: int | None = None, **options: Any) -> None:
        super().__init__(nesting_level=nesting_level)
        self._options = options
        self._most = 1
        self._pool: Pool | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many calls may run or wait side by side: -1 means one for each core."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        wanted = self.default_n_jobs if n_jobs is None else n_jobs
        return wanted if wanted > 0 else max(1, joblib.cpu_count() + 1 + wanted)

    def configure(
        self, n_jobs: int = 1, parallel: Any = None, prefer: Any = None, require: Any = None,
        **more: Any,
    ) -> int:  # fmt: skip
        """Get ready for a call of `Parallel`."""
        if require == "sharedmem":
            raise ValueError("the grn backend runs calls in other processes: no shared memory.")
        self.parallel = parallel
        self._options.update((name, more[name]) for name in OPTIONS if name in more)
        self._most = self.effective_n_jobs(n_jobs)
        return max(2, self._most)  # with 1 joblib would make the calls here, without a lease

    def submit(
        self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None
    ) -> Future[Any]:
        """Hand over one batch of calls."""
        if self._pool is None:
            self._pool = Pool(self._most, **self._options)
        future = self._pool.submit(_call(func))
        if callback is not None:
            future.add_done_callback(callback)
        return future

    apply_async = submit  # its name before joblib 1.5

    def retrieve_result_callback(self, future: Future[Any]) -> Any:
        """Return what a batch gave, or raise."""
        try:
            return future.result()
        except CancelledError as error:
            raise RuntimeError("the call was ended before it had an answer") from error

    def terminate(self) -> None:
        """End what still runs."""
        if self._pool is not None:
            self._pool.stop()
            self._pool = None

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End what still runs; the next call begins anew."""
        self.terminate()


def _call(batch: Any) -> Call:
    """Name a batch after the function in it; a single call has facts to learn from."""
    items = getattr(batch, "items", [])
    function = items[0][0] if items else batch
    facts = facts_of(*items[0]) if len(items) == 1 else {}
    return Call(batch, named_after=function, facts=facts)


register_parallel_backend("grn", GrnBackend)
