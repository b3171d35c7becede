"""`@grn.job` as a function's owner sees it: what goes in, what comes out, what is refused."""

from __future__ import annotations

import asyncio
import os
import pickle
import warnings
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import glb
import grn
from grn.client.leasing.job_request import code_of_function
from tests.harness import Negotiator


@grn.job()
def by_reference(number: int) -> int:
    return number + 1


# What comes out


def test_the_return_value_passes_through(here: Negotiator) -> None:
    found = object()

    @grn.job()
    def job(*args: object, **named: object) -> object:
        return found, args, named

    assert job(1, two=2) == (found, (1,), {"two": 2})


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_passes_through_as_it_is(here: Negotiator, kind: type[BaseException]) -> None:
    raised = kind("mine")

    @grn.job()
    def job() -> None:
        raise raised

    with pytest.raises(kind) as caught:
        job()
    assert caught.value is raised
    assert raised.__cause__ is None
    assert raised.__context__ is None


def test_parentheses_may_be_left_out(here: Negotiator) -> None:
    @grn.job
    def job(number: int) -> int:
        """Add."""
        return number + 1

    assert job(1) == 2
    assert (job.__name__, job.__doc__) == ("job", "Add.")  # type: ignore[attr-defined]


def test_a_decorated_function_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(by_reference)) is by_reference


def test_the_older_names_are_the_same() -> None:
    assert glb.job is grn.job
    assert glb.GrnError is grn.GrnError


@pytest.mark.parametrize("decorate", [glb.gpu_load_balance, glb.gpu_load_balance()])
def test_the_older_decorator_works_with_and_without_parentheses(
    here: Negotiator, decorate: Any
) -> None:
    assert decorate(lambda: os.environ["CUDA_VISIBLE_DEVICES"])() in ("0", "1")


def test_the_environment_is_the_leases_during_the_call_and_ones_own_again_after_it(
    here: Negotiator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "mine")
    before = dict(os.environ)

    @grn.job()
    def job() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if before.get(name) != value}

    changed = job()
    assert len(changed.pop("GRN_LEASE")) == 8
    assert changed.pop("CUDA_VISIBLE_DEVICES") in ("0", "1")
    assert changed == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "GRN_GPU_COUNT": "1",
    }
    assert dict(os.environ) == before


# What is refused


@pytest.mark.parametrize("policy", ["spread", "spreading", "pack", "packing"])
def test_known_policies_are_taken(here: Negotiator, policy: str) -> None:
    @grn.job(resource_policy=policy)
    def job() -> str:
        (lease,) = here.leases()
        return str(lease["policy"])

    assert policy.startswith(job())


@pytest.mark.parametrize("policy", ["", "SPREAD", "best-fit", None])
def test_an_unknown_policy_is_refused_at_decoration(policy: str) -> None:
    with pytest.raises(ValueError, match="must be 'spread' or 'pack'"):
        grn.job(resource_policy=policy)


def test_without_a_negotiator_the_error_says_so_in_the_old_words_and_what_to_do() -> None:
    @grn.job()
    def job() -> None:
        pytest.fail("it has no GPU")

    with pytest.raises(ConnectionError, match=r"GPU Master is not available\.") as caught:
        job()
    assert isinstance(caught.value, grn.GrnError)
    assert str(caught.value).startswith("no grn negotiator answers at ")
    assert "grn start" in str(caught.value)


def test_asked_to_go_on_without_a_negotiator_it_warns_and_runs() -> None:
    @grn.job(continue_on_server_unavailable=True)
    def job(number: int) -> int:
        assert "GRN_LEASE" not in os.environ
        return number + 1

    with pytest.warns(UserWarning, match=r"GPU Master is not available\.") as caught:
        assert job(1) == 2
    assert caught[0].filename == __file__  # it points at the call, not into grn


def test_asked_to_go_on_without_a_negotiator_the_profiler_is_not_run() -> None:
    @glb.gpu_load_balance(continue_on_server_unavailable=True)
    def job() -> str:
        return "job"

    @job.profile
    def profiler() -> None:
        pytest.fail("nobody would learn from it")

    with pytest.warns(UserWarning, match="not available"):
        assert job() == "job"


def test_asked_to_go_on_without_a_negotiator_async_and_generator_functions_run_too() -> None:
    @grn.job(continue_on_server_unavailable=True)
    async def coroutine() -> int:
        return 1

    @grn.job(continue_on_server_unavailable=True)
    def generator() -> Iterator[int]:
        yield 2

    with pytest.warns(UserWarning, match="not available"):
        assert asyncio.run(coroutine()) == 1
    with pytest.warns(UserWarning, match="not available"):
        assert list(generator()) == [2]


def test_with_a_negotiator_nobody_is_warned(here: Negotiator) -> None:
    @grn.job(continue_on_server_unavailable=True)
    def job() -> str:
        return os.environ["GRN_LEASE"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert job()


def test_a_need_larger_than_any_gpu_is_refused_at_once(here: Negotiator) -> None:
    @grn.job(mem="513MiB")
    def job() -> None:
        pytest.fail("it cannot fit")

    with pytest.raises(MemoryError, match="you asked for 513 MiB of memory") as caught:
        job()
    assert isinstance(caught.value, grn.GrnError)


def test_more_gpus_than_there_are_are_refused_at_once(here: Negotiator) -> None:
    @grn.job(gpus=3)
    def job() -> None:
        pytest.fail("it cannot fit")

    with pytest.raises(grn.NeverFits, match="you asked for 3 GPUs; this machine has 2"):
        job()


# What it is called


def test_the_type_is_file_and_function_shown_short(
    here: Negotiator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))

    @grn.job()
    def gpu_job() -> dict[str, Any]:
        return here.leases()[0]

    lease = gpu_job()
    name = "test_the_type_is_file_and_function_shown_short.gpu_job"
    assert lease["label"] == f"tests/client/test_decorator.py::{name}"
    assert lease["type"] == f"{os.path.realpath(__file__)}::{name}"


def test_a_given_name_is_the_type(here: Negotiator) -> None:
    @grn.job("my job")
    def job() -> dict[str, Any]:
        return here.leases()[0]

    lease = job()
    assert (lease["type"], lease["label"]) == ("my job", "my job")


def test_arguments_are_remembered_by_name_but_not_secrets(here: Negotiator) -> None:
    @grn.job("arguments")
    def job(batch: int, model: str, password: str, *, layers: float = 1.5) -> None:
        pass

    job(64, "resnet", "swordfish", layers=3)
    (profile,) = here.ask("profiles", type="arguments")["profiles"]
    assert profile["history"][-1]["args"] == {"batch": 64.0, "model": "resnet", "layers": 3.0}
    assert profile["history"][-1]["code"] == code_of_function(job.__wrapped__)  # type: ignore[attr-defined]


# Functions of other kinds


def test_methods_keep_their_object(here: Negotiator) -> None:
    class Model:
        size = 3

        @grn.job()
        def train(self, epochs: int) -> int:
            return self.size * epochs

        @staticmethod
        @grn.job()
        def fixed(epochs: int) -> int:
            return epochs

        @classmethod
        @grn.job()
        def of_class(cls, epochs: int) -> int:
            return cls.size + epochs

    assert (Model().train(2), Model.fixed(2), Model.of_class(2)) == (6, 2, 5)


def test_a_generator_holds_its_gpu_from_the_first_item_to_the_last(here: Negotiator) -> None:
    @grn.job()
    def job(count: int) -> Iterator[str]:
        for _ in range(count):
            yield os.environ["GRN_LEASE"]
        return "done"

    items = job(3)
    assert here.leases() == []  # nothing has been asked for yet
    first = next(items)
    assert [lease["id"] for lease in here.leases()] == [first]
    assert list(items) == [first, first]
    assert here.leases() == []


def test_a_generator_takes_what_is_sent_and_returns_its_value(here: Negotiator) -> None:
    @grn.job()
    def job() -> Iterator[int]:
        got = yield 1
        return got

    items: Any = job()
    next(items)
    with pytest.raises(StopIteration) as caught:
        items.send("sent")
    assert caught.value.value == "sent"


def test_a_generator_left_half_way_gives_its_gpu_back(here: Negotiator) -> None:
    @grn.job("left half way")
    def job() -> Iterator[int]:
        yield 1
        yield 2

    items: Any = job()
    next(items)
    items.close()
    assert here.leases() == []
    (profile,) = here.ask("profiles", type="left half way")["profiles"]
    assert [run["outcome"] for run in profile["history"]] == ["ok"]


def test_async_functions_and_generators_hold_a_gpu(here: Negotiator) -> None:
    @grn.job()
    async def coroutine(number: int) -> tuple[int, str]:
        await asyncio.sleep(0)
        return number, os.environ["GRN_LEASE"]

    @grn.job()
    async def generator() -> AsyncIterator[str]:
        yield os.environ["GRN_LEASE"]
        await asyncio.sleep(0)
        yield os.environ["GRN_LEASE"]

    async def both() -> None:
        number, lease = await coroutine(1)
        assert number == 1
        leases = [lease async for lease in generator()]
        assert leases[0] == leases[1] != lease

    asyncio.run(both())
    assert "GRN_LEASE" not in os.environ


def test_an_async_exception_passes_through(here: Negotiator) -> None:
    @grn.job()
    async def job() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(job())


def test_many_async_calls_at_once_all_come_through(here: Negotiator) -> None:
    @grn.job(mem="16MiB")
    async def job(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def all_at_once() -> list[int]:
        return list(await asyncio.gather(*(job(number) for number in range(20))))

    assert asyncio.run(all_at_once()) == list(range(20))
    assert "GRN_LEASE" not in os.environ


def test_many_threads_at_once_all_come_through(here: Negotiator) -> None:
    @grn.job(mem="16MiB")
    def job(number: int) -> tuple[int, str]:
        return number, os.environ["CUDA_VISIBLE_DEVICES"]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(job, range(40)))
    assert [number for number, _ in found] == list(range(40))
    assert {visible for _, visible in found} <= {"0", "1"}
    assert "GRN_LEASE" not in os.environ


# A stand-in to measure by


def test_profile_gives_the_profiler_back_unchanged() -> None:
    def profiler() -> None:
        pass

    job = grn.job()(lambda: None)
    assert job.profile(profiler) is profiler
    with pytest.raises(AttributeError, match="profile function already"):
        job.profile(profiler)


def test_the_profiler_gets_the_arguments_and_runs_once(here: Negotiator) -> None:
    ran: list[tuple[str, object]] = []

    @grn.job("with a profiler")
    def job(*args: int, **named: int) -> str:
        ran.append(("job", (args, named)))
        return "result"

    @job.profile
    def profiler(*args: int, **named: int) -> str:
        ran.append(("profiler", (args, named)))
        return "not the result"

    assert [job(1, two=2), job(3)] == ["result", "result"]
    assert ran == [
        ("profiler", ((1,), {"two": 2})),
        ("job", ((1,), {"two": 2})),
        ("job", ((3,), {})),
    ]
    (profile,) = here.ask("profiles", type="with a profiler")["profiles"]
    assert [run["outcome"] for run in profile["history"]] == ["profiled", "ok", "ok"]


def test_a_profiler_that_fails_is_told_of_and_the_job_is_measured_itself(here: Negotiator) -> None:
    ran: list[str] = []

    @grn.job("with a failing profiler")
    def job() -> None:
        ran.append("job")

    @job.profile
    def profiler() -> None:
        ran.append("profiler")
        raise ValueError("too short a run")

    with pytest.warns(UserWarning, match="too short a run"):
        job()
    job()
    assert ran == ["profiler", "job", "job"]


def test_profilers_of_other_kinds_of_functions_run_too(here: Negotiator) -> None:
    ran: list[str] = []

    @grn.job()
    async def coroutine() -> None:
        ran.append("coroutine")

    @coroutine.profile
    async def shorter_coroutine() -> None:
        ran.append("shorter coroutine")

    @grn.job()
    def generator() -> Iterator[int]:
        ran.append("generator")
        yield 1

    @generator.profile
    def shorter_generator() -> Iterator[int]:
        ran.append("shorter generator")
        yield 2

    @grn.job()
    async def async_generator() -> AsyncIterator[int]:
        ran.append("async generator")
        yield 3

    @async_generator.profile
    def plain() -> None:
        ran.append("plain")

    async def all_items() -> list[int]:
        return [item async for item in async_generator()]

    asyncio.run(coroutine())
    assert list(generator()) == [1]
    assert asyncio.run(all_items()) == [3]
    assert ran == [
        "shorter coroutine", "coroutine", "shorter generator", "generator", "plain",
        "async generator",
    ]  # fmt: skip


# Running out of memory


class OutOfMemoryError(RuntimeError):
    """As torch's, by name."""


def test_a_job_out_of_memory_is_repeated_so_many_times(here: Negotiator) -> None:
    attempts: list[int] = []

    @grn.job(retry_oom=2, mem="16MiB")
    def job() -> str:
        attempts.append(here.leases()[0]["attempt"])
        if len(attempts) < 3:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return "done"

    assert job() == "done"
    assert attempts == [0, 1, 2]


def test_the_last_out_of_memory_error_passes_through(here: Negotiator) -> None:
    attempts: list[int] = []

    @grn.job(retry_oom=1)
    async def job() -> None:
        attempts.append(1)
        raise OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(OutOfMemoryError):
        asyncio.run(job())
    assert len(attempts) == 2


def test_other_failures_are_not_repeated(here: Negotiator) -> None:
    attempts: list[int] = []

    @grn.job(retry_oom=3)
    def job() -> None:
        attempts.append(1)
        raise MemoryError("the host's memory, not the GPU's")

    with pytest.raises(MemoryError):
        job()
    assert len(attempts) == 1
