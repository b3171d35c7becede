"""`grn` for tests of the command line."""

from __future__ import annotations

import pytest

from tests.cli.live import Shell
from tests.harness import Story


@pytest.fixture
def grn(story: Story) -> Shell:
    """Run `grn` in the environment of this test's story: `grn("ps", "--json")`."""
    return Shell(story)
