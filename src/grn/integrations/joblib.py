"""The joblib backend "grn": calls of `Parallel` in workers that are jobs of the queue.

Importing this file registers it. `joblib.parallel_config("grn", n_jobs=8, mem="2GiB")` selects it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import joblib
from joblib.parallel import ParallelBackendBase, register_parallel_backend

from grn.client.leasing.job_request import call_arguments
from grn.group.call_group import CallGroup
from grn.group.executor import OPTIONS, checked, kind_of


class GrnBackend(ParallelBackendBase):
    """At most `n_jobs` workers that run or wait for a GPU."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, nesting_level: int | None = None, **options: Any) -> None:
        super().__init__(nesting_level=nesting_level)
        self._options = options
        self._most = 1
        self._group: CallGroup | None = None

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
        """Submit one batch of calls."""
        if self._group is None:
            options = {"reuse_workers": True, **self._options}
            self._group = CallGroup(max_workers=self._most, **checked(options))
        function, facts = _named(func)
        future = self._group.submit(func, (), {}, kind_of(function), facts=facts)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    apply_async = submit  # its name before joblib 1.5

    def retrieve_result_callback(self, future: Future[Any]) -> Any:
        """Return the results of a batch, or raise."""
        try:
            return future.result()
        except CancelledError as error:
            raise RuntimeError("the call was ended before it had an answer") from error

    def terminate(self) -> None:
        """End running calls."""
        group, self._group = self._group, None
        if group is not None:
            group.shut(is_stopping=True)
            group.join()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End running calls; the next call starts new workers."""
        self.terminate()


def _named(batch: Any) -> tuple[Callable[..., Any], dict[str, float | str]]:
    """Return the function in a batch and, if it is one call, the arguments to learn from."""
    items = getattr(batch, "items", [])
    if len(items) != 1:
        return (items[0][0] if items else batch), {}
    function, args, kwargs = items[0]
    return function, call_arguments(getattr(function, "__code__", None), args, kwargs)


register_parallel_backend("grn", GrnBackend)
