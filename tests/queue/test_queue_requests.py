"""What clients may say to the queue: closed schemas, and words that a system can take."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn import wire
from grn.errors import ProtocolError, UsageError, VersionMismatch
from grn.protocol import queue_requests
from grn.protocol.schemas import Rejected

JOB = {"argv": ["true"], "type": "t", "label": "t"}
SUBMIT = {"op": "submit", "id": 1, "key": "0" * 8, "jobs": [JOB], "cwd": "/", "env": {}}


def read(message: dict[str, Any]) -> Any:
    return queue_requests.read(wire.encode(message)[wire.HEADER.size :])


def submit(**changes: Any) -> queue_requests.SubmitRequest:
    found = read(SUBMIT | changes)
    assert isinstance(found, queue_requests.SubmitRequest)
    return found


@given(st.binary().filter(lambda data: b"\0" not in data))
def test_every_word_of_the_system_travels(data: bytes) -> None:
    word = os.fsdecode(data)
    spelled = wire.spelled(word)
    spelled.encode()  # it is text now
    assert wire.meant(spelled) == word
    assert os.fsencode(wire.meant(spelled)) == data
    if word == spelled:
        assert not word.startswith("\0")


def test_text_travels_as_it_is() -> None:
    for word in ("", "plain", "é ü 😀", "a\nb"):
        assert wire.spelled(word) == wire.meant(word) == word


def test_a_submit_says_what_it_must_and_the_rest_has_defaults() -> None:
    asked = submit()
    assert (asked.gpus, asked.mem, asked.retry, asked.held, asked.after) == (1, None, 0, False, [])
    full = submit(after=[[3, False]], mem=5, time_limit_s=1.5, jobs=[JOB | {"extra": {"A": "1"}}])
    assert (full.after, full.mem, full.jobs[0].extra) == ([(3, False)], 5, {"A": "1"})


@pytest.mark.parametrize(
    "changes",
    [
        {"colour": "red"},
        {"key": "short"},
        {"key": "G" * 8},
        {"jobs": []},
        {"jobs": [JOB | {"argv": []}]},
        {"jobs": [JOB | {"name": "n" * 129}]},
        {"jobs": [JOB] * 10_001},
        {"gpus": -1},
        {"cpus": 0},
        {"gpus": "2"},
        {"mem": 0},
        {"priority": 1001},
        {"retry": -1},
        {"after": [[0, True]]},
        {"after": [3]},
        {"umask": 0o1000},
        {"time_limit_s": 0},
        {"env": {"A": 1}},
        {"cwd": None},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_what_is_not_in_the_schema_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Rejected) as caught:
        read(SUBMIT | changes)
    assert isinstance(caught.value.error, ProtocolError)
    assert caught.value.message_id == 1


def test_another_version_is_told_what_to_do() -> None:
    with pytest.raises(Rejected) as caught:
        read(SUBMIT | {"v": wire.PROTOCOL + 1})
    assert isinstance(caught.value.error, VersionMismatch)
    assert "grn queue stop" in caught.value.error.hint


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"env": {"A": "", "é": "ü=x"}, "cwd": "/a b"},
        {"jobs": [JOB | {"argv": ["", "\0\xff", "\0a"]}], "env": {"\0\xe9": "\0\x80"}},
    ],
)
def test_words_that_a_system_takes_are_fine(changes: dict[str, Any]) -> None:
    queue_requests.check_words(submit(**changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"jobs": [JOB | {"argv": ["a\0b"]}]}, "NUL"),
        ({"jobs": [JOB | {"argv": ["\0a\0"]}]}, "NUL"),
        ({"jobs": [JOB | {"argv": ["\0\u0100"]}]}, "NUL"),
        ({"jobs": [JOB, JOB | {"extra": {"A": "x\0"}}]}, "NUL"),
        ({"cwd": "/\0"}, "NUL"),
        ({"env": {"A": "x\0"}}, "NUL"),
        ({"env": {"A\0": "x"}}, "NUL"),
        ({"env": {"": "x"}}, "'' cannot be the name of a variable"),
        ({"env": {"A=B": "x"}}, "'A=B' cannot be the name of a variable"),
        ({"jobs": [JOB | {"extra": {"=": "x"}}]}, "'=' cannot be the name of a variable"),
    ],
)
def test_words_that_no_system_takes_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        queue_requests.check_words(submit(**changes))
