"""`@grn.job()`: a function that runs when a GPU has room for it.

Turns a call into a lease request, holds the lease around it and reports how it went. Arguments
travel only as short facts to learn from; the function itself never leaves its process. Only
`.submit` sends a call elsewhere: to the queue, as a job.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
    from typing import Any, ParamSpec, Protocol, TypeVar, overload

    from grn.client.leasing.lease import ClientLease
    from grn.client.submit import CallHandle
    from grn.model.oom_retry import Had
    from grn.protocol.lease_messages import LeaseRequest

    Arguments = ParamSpec("Arguments")
    Result = TypeVar("Result", covariant=True)
    Profiler = TypeVar("Profiler", bound=Callable[..., Any])

    class Job(Protocol[Arguments, Result]):
        """A decorated function."""

        def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result: ...

        def profile(self, profiler: Profiler, /) -> Profiler: ...

        def submit(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> CallHandle: ...

        def options(self, **options: Any) -> Submitter[Arguments]: ...

    class Submitter(Protocol[Arguments]):
        """A decorated function with options for the queue."""

        def submit(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> CallHandle: ...

    class JobDecorator(Protocol):
        """The type of `grn.job`: a decorator, with and without parentheses."""

        @overload
        def __call__(self, jobstr: Callable[Arguments, Result], /) -> Job[Arguments, Result]: ...

        @overload
        def __call__(
            self,
            jobstr: str | None = None,
            resource_policy: str = "spread",
            continue_on_server_unavailable: bool = False,
            *,
            gpus: int = 1,
            mem: str | int | None = None,
            exclusive: bool = False,
            priority: int = 0,
            retry_oom: int = 0,
            on: str = "",
            without: Sequence[str | int] = (),
            cpus: float | None = None,
            ram: str | int | None = None,
        ) -> Callable[[Callable[Arguments, Result]], Job[Arguments, Result]]: ...


_CO_GENERATOR, _CO_COROUTINE, _CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200
_DESCRIPTION = ("type", "label", "args", "code")  # the fields that a submit has too
_POLICIES = ("spread", "spreading", "pack", "packing")


def _job(
    jobstr: Any = None,
    resource_policy: str = "spread",
    continue_on_server_unavailable: bool = False,
    *,
    gpus: int = 1,
    mem: str | int | None = None,
    exclusive: bool = False,
    priority: int = 0,
    retry_oom: int = 0,
    on: str = "",
    without: Sequence[str | int] = (),
    cpus: float | None = None,
    ram: str | int | None = None,
) -> Any:
    """Decorate a function so that each call waits for a GPU; works with and without parentheses.

    `jobstr` names the job type (default: file and function). `mem` and `gpus` state a need where
    it is known; else it is learned. `retry_oom` repeats a call that ran out of GPU memory, with
    more room, up to this many times; one whose room others took is repeated as it is, uncounted.
    `on` and `without` choose GPUs (`on="a100|h100"`); `cpus` and `ram` state cores and host memory.
    With `continue_on_server_unavailable` a call runs unmanaged when there is no negotiator.
    """
    if resource_policy not in _POLICIES:
        raise ValueError(f"resource_policy is '{resource_policy}' and must be 'spread' or 'pack'")
    if callable(jobstr):
        return _job()(jobstr)
    asked = {
        "policy": resource_policy,
        "gpus": gpus,
        "mem": mem,
        "exclusive": exclusive,
        "priority": priority,
        "on": on,
        "without": without,
        "cpus": cpus,
        "ram": ram,
    }

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        managed = _Managed(function, jobstr, asked, continue_on_server_unavailable, retry_oom)
        return managed.wrap()

    return decorate


_job.__name__ = _job.__qualname__ = "job"
job: JobDecorator = _job


class _Managed:
    """One decorated function."""

    def __init__(
        self,
        function: Callable[..., Any],
        jobstr: str | None,
        asked: dict[str, Any],
        may_run_unmanaged: bool,
        retry_oom: int,
    ) -> None:
        self.function = function
        self.profiler: Callable[..., Any] | None = None
        self._jobstr = jobstr
        self._asked = asked
        self._may_run_unmanaged = may_run_unmanaged
        self._retry_oom = retry_oom
        self._requested_as: tuple[str, str] | None = None
        self._request: LeaseRequest | None = None
        inner = getattr(function, "__func__", function)
        self._code = getattr(inner, "__code__", None)

    def wrap(self) -> Callable[..., Any]:
        """Return the replacement of the function: of the same kind, sync or async."""
        flags = self._code.co_flags if self._code is not None else 0
        if flags & _CO_COROUTINE:
            wrapper = self._wrap_async()
        elif flags & _CO_ASYNC_GENERATOR:
            wrapper = self._wrap_async_generator()
        elif flags & _CO_GENERATOR:
            wrapper = self._wrap_generator()
        else:
            wrapper = self._wrap_plain()
        wrapper.profile = self.set_profiler  # type: ignore[attr-defined]
        wrapper.submit = self.submit  # type: ignore[attr-defined]
        wrapper.options = self.options  # type: ignore[attr-defined]
        self._wrapper = wrapper
        return wrapper

    def set_profiler(self, profiler: Callable[..., Any]) -> Callable[..., Any]:
        """Name a lighter function to be run in place of the first run, to learn from."""
        if self.profiler is not None:
            raise AttributeError("this job has a profile function already")
        self.profiler = profiler
        return profiler

    def submit(self, *args: Any, **kwargs: Any) -> CallHandle:
        """Send one call to the queue, to run in a process of its own; return its handle."""
        return self.submit_with({}, args, kwargs)

    def options(self, **options: Any) -> _WithOptions:
        """Return the function with options for the queue, as of `grn.submit`: `at="lab"`."""
        return _WithOptions(self, options)

    def submit_with(
        self, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CallHandle:
        """Submit one call with options of the queue."""
        from grn.client.submit import submit_call
        from grn.errors import UsageError

        flags = self._code.co_flags if self._code is not None else 0
        if flags & (_CO_GENERATOR | _CO_ASYNC_GENERATOR):
            raise UsageError("a generator cannot be submitted: it has no one answer.")
        fields = self._described(args, kwargs).fields
        described = {name: fields[name] for name in _DESCRIPTION if name in fields}
        wanted = {**self._asked, **options}
        return submit_call((self._wrapper, args, kwargs), described, wanted)

    def _wrap_plain(self) -> Callable[..., Any]:
        @functools.wraps(self.function)
        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True  # IPython and pytest show the function's own frames
            result = attempt = None
            try:
                for attempt in self._attempts(args, kwargs):
                    with attempt as run:
                        result = run(*args, **kwargs)
            except BaseException as error:
                if attempt is not None and attempt.is_refused:
                    raise error.with_traceback(None) from None  # the caller's frames say enough
                raise
            return result

        return call

    def _wrap_generator(self) -> Callable[..., Any]:
        @functools.wraps(self.function)
        def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            __tracebackhide__ = True
            result = None
            for attempt in self._attempts(args, kwargs, may_retry=False):
                with attempt as run:
                    if attempt.is_profile:
                        _exhaust(run(*args, **kwargs))
                    else:
                        result = yield from run(*args, **kwargs)
            return result

        return call

    def _wrap_async(self) -> Callable[..., Any]:
        @functools.wraps(self.function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            result = attempt = None
            try:
                for attempt in self._attempts(args, kwargs):
                    async with attempt as run:
                        result = run(*args, **kwargs)
                        if hasattr(result, "__await__"):
                            result = await result
            except BaseException as error:
                if attempt is not None and attempt.is_refused:
                    raise error.with_traceback(None) from None
                raise
            return result

        return call

    def _wrap_async_generator(self) -> Callable[..., Any]:
        @functools.wraps(self.function)
        async def call(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            __tracebackhide__ = True
            for attempt in self._attempts(args, kwargs, may_retry=False):
                async with attempt as run:
                    items = run(*args, **kwargs)
                    if attempt.is_profile and not hasattr(items, "__aiter__"):
                        if hasattr(items, "__await__"):
                            await items
                        continue
                    async for item in items:
                        if not attempt.is_profile:
                            yield item

        return call

    def _attempts(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], may_retry: bool = True
    ) -> Iterator[_Attempt]:
        """Yield the attempts in order: the stand-in if requested, the job, its retries."""
        from grn.model.oom_retry import Had

        described = self._described(args, kwargs)
        most = self._retry_oom if may_retry else 0
        profiler, had = self.profiler, Had()
        while True:
            request = described.but(**had.told())
            retries = _Retries(had, most)
            attempt = _Attempt(self.function, request, self._may_run_unmanaged, profiler, retries)
            yield attempt
            if attempt.is_profile:
                attempt.warn_if_failed()
                attempt = _Attempt(self.function, request, self._may_run_unmanaged, None, retries)
                yield attempt
            profiler = None
            if retries.next is None:
                return
            had = retries.next

    def _described(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LeaseRequest:
        """Return the request for a lease of one call."""
        from grn.client.leasing.job_request import call_arguments, code_of_function, lease_request

        names = self._names()
        if self._request is None or names != self._requested_as:  # the same at nearly every call
            request = lease_request(*names, **self._asked)
            self._request = request.but(code=code_of_function(self.function) or None)
            self._requested_as = names
        return self._request.but(args=call_arguments(self._code, args, kwargs))

    def _names(self) -> tuple[str, str]:
        from grn.client.leasing.job_request import type_and_label

        if self._jobstr is not None:
            return str(self._jobstr), str(self._jobstr)
        name = getattr(self.function, "__qualname__", repr(self.function)).replace("<locals>.", "")
        if self._code is None:
            module = getattr(self.function, "__module__", "?")
            return f"{module}::{name}", f"{module}::{name}"
        return type_and_label(self._code.co_filename, name)


class _WithOptions:
    """A decorated function with options for the queue."""

    def __init__(self, managed: _Managed, options: dict[str, Any]) -> None:
        self._managed = managed
        self._options = options

    def submit(self, *args: Any, **kwargs: Any) -> CallHandle:
        """Send one call to the queue with these options; return its handle."""
        return self._managed.submit_with(dict(self._options), args, kwargs)


class _Retries:
    """The retries of a call after memory ran out."""

    def __init__(self, had: Had, most: int) -> None:
        self._had = had
        self._most = most
        self.next: Had | None = None  # not None once this attempt is to be repeated

    def out_of_memory(self, is_victim: bool) -> bool:
        """Note that an attempt ran out of memory; True if it is to be repeated."""
        from grn.model.oom_retry import again

        self.next = again(self._had, is_victim, self._most)
        return self.next is not None


class _Attempt:
    """One run under one lease: of the job, or of its stand-in if the type is unknown."""

    def __init__(
        self,
        function: Callable[..., Any],
        request: LeaseRequest,
        may_run_unmanaged: bool,
        profiler: Callable[..., Any] | None,
        retries: _Retries,
    ) -> None:
        from grn.client.leasing.lease import ClientLease

        self._function = function
        self._profiler = profiler
        self._may_run_unmanaged = may_run_unmanaged
        self._retries = retries
        # A call that may run without a negotiator does not wait for one.
        self._lease: ClientLease = ClientLease(request, None, False if may_run_unmanaged else None)
        self._failure: BaseException | None = None
        self.is_profile = False
        self.is_refused = False  # the wait for the lease ended in an error

    def __enter__(self) -> Callable[..., Any]:
        from grn.errors import GrnError

        try:
            self._lease.acquire()
        except (GrnError, KeyboardInterrupt) as error:
            self._run_unmanaged(error)
        return self._choose()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self._lease.__exit__(kind, error, trace)
        return self._swallows(error)

    async def __aenter__(self) -> Callable[..., Any]:
        from grn.errors import GrnError

        try:
            await self._lease.__aenter__()
        except (GrnError, KeyboardInterrupt) as error:
            self._run_unmanaged(error)
        return self._choose()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        await self._lease.__aexit__(kind, error, trace)
        return self._swallows(error)

    def warn_if_failed(self) -> None:
        """Warn that the stand-in failed: the job itself is measured instead."""
        if self._failure is not None:
            import warnings

            text = f"grn: the profile function failed ({self._failure!r}); measuring the job itself"
            warnings.warn(text, stacklevel=4)

    def _run_unmanaged(self, error: BaseException) -> None:
        from grn.errors import DaemonNotRunning

        if not self._may_run_unmanaged or not isinstance(error, DaemonNotRunning):
            self.is_refused = True
            raise error.with_traceback(None) from None
        import warnings

        warnings.warn(f"{error} Running without it.", stacklevel=4)

    def _choose(self) -> Callable[..., Any]:
        if self._profiler is not None and self._lease.is_first_run:
            self.is_profile = True
            self._lease.outcome = "profiled"
            return self._profiler
        return self._function

    def _swallows(self, error: BaseException | None) -> bool:
        """True for a stand-in's failure, and for running out of memory that is retried."""
        if error is None or not isinstance(error, Exception):
            return False
        if self.is_profile:
            self._failure = error
            return True
        from grn.client.leasing import frameworks

        is_out = frameworks.is_out_of_memory(error)
        if not is_out or not self._retries.out_of_memory(self._lease.is_victim):
            return False
        error.__traceback__ = None  # it keeps the failed call's tensors alive
        frameworks.free_caches()
        return True


def _exhaust(items: Any) -> None:
    if hasattr(items, "__next__"):
        for _ in items:
            pass
