"""Rows of replies, read from JSON."""

from __future__ import annotations

import pytest

from grn.errors import ProtocolError
from grn.protocol.rows import JobRow

PLAIN = {"id": 1, "state": "queued", "argv": ["a"]}


def test_fields_that_an_older_daemon_leaves_out_have_their_defaults() -> None:
    row = JobRow.from_json({**PLAIN, "new_in_a_later_release": 1})

    assert (row.id, row.argv, row.gpus, row.used_bytes) == (1, ("a",), (), None)
    assert row.is_waiting
    assert not row.has_ended


def test_attempts_and_dependencies_are_values_too() -> None:
    attempt = {"attempt": 2, "gpus": [0, 1], "reason": "failed", "ran_s": 3}
    row = JobRow.from_json({**PLAIN, "after": [[7, True]], "attempts": [attempt]})

    assert row.after == ((7, True),)
    assert (row.attempts[0].attempt, row.attempts[0].gpus) == (2, (0, 1))


@pytest.mark.parametrize("field", ["id", "state", "priority", "submitted_at", "peak_bytes"])
def test_a_value_of_the_wrong_type_is_refused_by_name(field: str) -> None:
    with pytest.raises(ProtocolError, match=field):
        JobRow.from_json({**PLAIN, field: ["no"]})
