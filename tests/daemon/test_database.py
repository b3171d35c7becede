"""What the databases of both daemons share."""

from __future__ import annotations

import errno
import sqlite3

import pytest

from grn.daemon.database import way_out


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "Free some disk space"),
        (sqlite3.OperationalError("database or disk is full"), "Free some disk space"),
        (PermissionError(errno.EACCES, "Permission denied"), "Make it writable"),
    ],
)
def test_a_folder_that_cannot_be_used_comes_with_what_to_do(error: Exception, first: str) -> None:
    assert way_out(error) == f"{first}, or name another in GRN_STATE_DIR."
