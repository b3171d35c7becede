"""The pytest fixture `grn_gpu`: a lease for the length of a test, with xdist in each worker.

pytest reads this file wherever grn is installed, so nothing of grn is loaded before a test wants
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from grn.client.leasing.lease import ClientLease

MARKER = (
    "grn_gpu(mem=None, gpus=1, exclusive=False, priority=0, policy='spread', type=None): "
    "run this test under a lease of GPUs"
)
HELD: pytest.StashKey[ClientLease] = pytest.StashKey()
TROUBLE: pytest.StashKey[str] = pytest.StashKey()  # why no test of this session gets a GPU


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one flag."""
    parser.getgroup("grn").addoption(
        "--grn-required",
        action="store_true",
        help="tests that want a GPU of grn fail where none can be had, instead of being skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test with the marker the fixture."""
    names = getattr(item, "fixturenames", None)
    if names is not None and item.get_closest_marker("grn_gpu") and "grn_gpu" not in names:
        names.insert(0, "grn_gpu")


@pytest.fixture
def grn_gpu(request: pytest.FixtureRequest) -> Iterator[ClientLease]:
    """Hold a lease for the length of the test: its GPUs are in CUDA_VISIBLE_DEVICES."""
    lease = request.node.stash[HELD] = _acquire(request)
    yield lease
    lease.release()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """Report the test's result to its lease: running out of memory is learned from."""
    lease = item.stash.get(HELD, None)
    if lease is None or call.when != "call" or call.excinfo is None:
        return
    from grn.client.leasing.frameworks import is_out_of_memory

    error = call.excinfo.value
    if not isinstance(error, (pytest.skip.Exception, pytest.xfail.Exception)):
        lease.outcome = "oom" if is_out_of_memory(error) else "failed"


def _acquire(request: pytest.FixtureRequest) -> ClientLease:
    from grn.client.daemons import ensure_negotiator
    from grn.errors import DaemonError, MachineError, NeverFits

    lease = _lease_for(request.node)
    stash, is_required = request.config.stash, request.config.getoption("--grn-required")
    if TROUBLE in stash:
        pytest.skip(stash[TROUBLE])
    try:
        ensure_negotiator()
    except (MachineError, DaemonError) as error:
        if is_required:
            raise
        stash[TROUBLE] = f"no GPU negotiator runs, and none can be started: {error}"
        pytest.skip(stash[TROUBLE])
    try:
        return lease.acquire()
    except NeverFits as error:
        if is_required:
            raise
        pytest.skip(f"this machine has no GPU for this test: {error}")


def _lease_for(node: Any) -> ClientLease:
    """Read the marks of a test and those around it; the nearest counts."""
    from grn.client.leasing.job_request import lease_request
    from grn.client.leasing.lease import ClientLease

    options: dict[str, Any] = {}
    for mark in reversed(list(node.iter_markers("grn_gpu"))):
        if mark.args:
            raise pytest.UsageError(f"{node.nodeid}: write grn_gpu(mem='2GiB'), with names")
        options.update(mark.kwargs)
    unknown = options.keys() - {"mem", "gpus", "exclusive", "priority", "policy", "type"}
    if unknown:
        raise pytest.UsageError(f"{node.nodeid}: grn_gpu knows no {', '.join(sorted(unknown))}")
    label = node.nodeid.partition("[")[0]
    full = f"{node.path}::{label.partition('::')[2]}"
    name = options.pop("type", None)
    return ClientLease(lease_request(name or full, name or label, **options))
