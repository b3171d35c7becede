"""What all tests share: an environment without the user's own negotiator, and stories to tell."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.gpus.conftest import libraries
from tests.gpus.standin.build import FAKE_TORCH, StandIn
from tests.harness import FOREIGN, ROOT, TWO_SMALL, Negotiator, Story, hang_up, stop_queue
from tests.queue.daemon import start_daemon

__all__ = ["libraries"]
NOWHERE = "/tmp/grn-t-nobody-makes-this-folder"

# What a test that starts processes has: one of these fixtures, or one of these modules.
PROCESS_FIXTURES = {"story", "rigs", "libraries", "chromium", "script", "home", "lab"}
PROCESS_MODULES = (
    *("subprocess", "multiprocessing"),
    *("tests.harness", "tests.negotiator.live", "tests.queue.daemon"),
)
SPAWNING = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.system")

# What `make test` installs beside the tests, by the tests that wait for it; also for a browser.
INSTALLED = {
    "tests/sites/": "debian",
    "tests/queue_faults/test_clocks.py": "debian",
    "tests/queue_faults/test_containers.py": "debian",
    "tests/queue_faults/test_disk.py": "debian",
    "tests/test_docs.py::test_the_site_": "debian",
    "tests/examples/": "examples",
}

WITH_SOAK = bool(os.environ.get("GRN_SOAK"))  # read before the tests clear what is the user's

Negotiators = Callable[..., Negotiator]
Scripts = Callable[[str], Path]

# A busy machine makes no example wrong: none has a deadline. New examples are left to `make soak`.
settings.register_profile(
    "grn",
    deadline=None,
    derandomize=not WITH_SOAK,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("grn")
if not WITH_SOAK and hasattr(providers, "_get_local_constants"):
    # Hypothesis also draws constants of the modules that are loaded, which differ from run to run
    # with the tests that this worker had before: the examples would not be the same each time.
    providers._get_local_constants = providers.Constants


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Mark the tests that start processes; leave out what `make soak` and `test-engines` run."""
    left_out = set() if WITH_SOAK else {"soak"}
    if "engines" not in str(config.option.markexpr):
        left_out.add("engines")
    for name in left_out:
        others = [item for item in items if item.get_closest_marker(name)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if not item.get_closest_marker(name)]
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & PROCESS_FIXTURES or _starts_processes(getattr(item, "module", None)):
            item.add_marker("process")
    yield
    items[:] = _dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Give each worker, which begins with a stretch of the list, the same share of each kind.

    Short tests come last, so that no worker is left alone with a long one at the end; those that
    need installations come late.
    """
    kinds: tuple[list[pytest.Item], ...] = ([], [], [])
    for item in items:
        is_process = item.get_closest_marker("process") is not None
        kinds[1 if _installation(item) else 0 if is_process else 2].append(item)
    kinds[1].sort(
        key=lambda item: "ray" in item.nodeid
    )  # few workers start a cluster of each engine
    return [
        item
        for turn in range(workers)
        for kind in kinds
        for item in kind[len(kind) * turn // workers : len(kind) * (turn + 1) // workers]
    ]


def _installation(item: pytest.Item) -> str | None:
    """Return which installation beside the tests this test has to wait for."""
    if "chromium" in getattr(item, "fixturenames", ()):
        return "debian"
    return next((what for where, what in INSTALLED.items() if where in item.nodeid), None)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for installations; this time is none of the test's."""
    what = _installation(item)
    if what and (waited_for := ROOT / f".venv-{what}.wait").exists():
        with waited_for.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is collected out of the reach of the garbage collector: it stays to the end."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@cache
def _starts_processes(module: ModuleType | None) -> bool:
    """True when a test module has imported something that starts processes."""
    owners = set()
    for one in vars(module).values() if module else ():
        owner = one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", None)
        owners.add(owner if isinstance(owner, str) else None)
    return not owners.isdisjoint(PROCESS_MODULES)


def pytest_configure(config: pytest.Config) -> None:
    """Let a test that starts a process unmarked fail in a run without processes.

    Ctrl-C is heeded again: a shell has commands in the background ignore it, and so would all that
    tests start, where tests that interrupt them wait in vain.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if "not process" in str(config.option.markexpr):
        sys.addaudithook(_refuse_processes)


def _refuse_processes(event: str, _arguments: object) -> None:
    if event in SPAWNING and "PYTEST_CURRENT_TEST" in os.environ:
        raise AssertionError(f"this test starts a process ({event}) and is not marked so")


@pytest.fixture(autouse=True)
def _the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep each test away from a negotiator, a state and settings that are not its own."""
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GRN_RUNTIME_DIR", f"{NOWHERE}/run")
    monkeypatch.setenv("GRN_STATE_DIR", f"{NOWHERE}/state")
    monkeypatch.setenv("GRN_CONFIG", f"{NOWHERE}/config.toml")
    monkeypatch.setenv("GRN_COLD_START", "1")


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    """Begin a story whose negotiator this process can ask too; nothing may be left of it."""
    begun = Story.begin()
    for name in ("GRN_RUNTIME_DIR", "GRN_STATE_DIR", "GRN_CONFIG"):
        monkeypatch.setenv(name, begun.env[name])
    yield begun
    hang_up()
    stop_queue()
    begun.end()


@pytest.fixture
def negotiator(story: Story, request: pytest.FixtureRequest) -> Iterator[Negotiators]:
    """Start the story's negotiator: `negotiator("virtual:1x1GiB", GRN_FLAT_S="0.2")`."""
    submits = request.node.get_closest_marker("submits")
    started: list[Negotiator] = []

    def start(gpus: str | None = TWO_SMALL, *arguments: str, **settings: str) -> Negotiator:
        story.env.update(settings)
        made = Negotiator(story, gpus, arguments)
        started.append(made)
        made.start()
        if submits:
            start_daemon(story, "queue")
        return made

    yield start
    for one in started:
        if one.process is not None and one.process.poll() is None:
            one.stop()


@pytest.fixture
def standin(story: Story, libraries: Callable[..., Path]) -> StandIn:
    """Give the story a machine with NVIDIA GPUs, to be written, and a torch to use them with."""
    machine = StandIn(libraries(), story.folder / "nvml")
    story.env.update(machine.env())
    story.prepend_path(FAKE_TORCH)
    return machine


@pytest.fixture(scope="session")
def script() -> Scripts:
    """Find a console script of the environment the tests run in."""

    def find(name: str) -> Path:
        path = Path(sys.executable).parent / name
        if not path.exists():
            try:
                metadata.distribution("gpu-resource-negotiator")
            except metadata.PackageNotFoundError:
                pytest.skip("grn is not installed here: run the tests with `make test`")
        return path

    return find
