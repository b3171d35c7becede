"""A control group with a limit of memory, made by a test where the machine lets it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import wait_for

ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def a_memory_group(limit_bytes: int) -> Iterator[Path]:
    """Make a group below our own, of cgroup v2 or v1; skip the test where that is refused."""
    parent = _own_group()
    group = parent / f"grn-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here, so no kernel kill is seen: {error}")
    try:
        _limit(group, limit_bytes)
        yield group
    finally:
        procs = group / "cgroup.procs"
        wait_for(lambda: not procs.read_text().split(), "the end of all processes of the group")
        group.rmdir()


def _own_group() -> Path:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            at = ROOT / "memory" / path.lstrip("/")
            return at if at.is_dir() else ROOT / "memory"
    path = next(line[3:] for line in lines if line.startswith("0::"))
    return ROOT / path.lstrip("/")


def _limit(group: Path, size: int) -> None:
    pairs = (
        ("memory.max", "memory.swap.max"),
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    )
    for name, swap in pairs:
        if (group / name).exists():
            (group / name).write_text(str(size))
            with contextlib.suppress(OSError):  # no swap is counted there
                (group / swap).write_text("0" if name == "memory.max" else str(size))
            return
    pytest.skip("control groups of this machine do not limit memory, so no kernel kill is seen")
