"""A real process for tests of what /proc shows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture
def cat() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that lives as long as the test."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()
