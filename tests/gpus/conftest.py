"""A pretended machine with NVIDIA GPUs for each test, and a look for processes left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpus.standin.build import NoCompiler, StandIn, compile_library

Machines = Callable[..., StandIn]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile each variant of the stand-in library once."""
    made: dict[tuple[str, ...], Path] = {}
    folder = tmp_path_factory.mktemp("nvml")

    def compiled(*flags: str) -> Path:
        if flags not in made:
            try:
                made[flags] = compile_library(folder / "-".join(("lib", *flags)), *flags)
            except NoCompiler as error:
                pytest.skip(str(error))
        return made[flags]

    return compiled


@pytest.fixture
def machine(tmp_path: Path, libraries: Callable[..., Path]) -> Machines:
    """Make a machine: `machine("NO_V3")` has a driver without the newer process lists."""
    return lambda *flags: StandIn(libraries(*flags), tmp_path / "nvml")


@pytest.fixture(autouse=True)
def _no_helper_is_left_behind() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 30
    while left := list(_helpers()):
        assert time.monotonic() < deadline, f"helpers left behind: {left}"
        time.sleep(0.01)


def _helpers() -> Iterator[int]:
    """Return the live helper processes that this process started."""
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if int(fields[1]) == os.getpid() and fields[0] not in "ZX" and b"nvml_helper" in command:
            yield int(folder.name)
