"""Calls in another process: what their tracebacks show."""

from __future__ import annotations

import traceback

import pytest

import grn
from grn.client.remote_call import RemoteTraceback, Reply, pack, run


def broken(number: int) -> None:
    try:
        int("no number")
    except ValueError as error:
        raise RuntimeError(f"call {number}") from error


def unfit() -> None:
    grn.lease(mem="no size")


def test_the_traceback_of_a_call_shows_frames_of_the_user_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reply = Reply.read(run(pack(broken, (7,), {})))
    error = reply.value()

    assert isinstance(error, RuntimeError)
    assert isinstance(error.__cause__, RemoteTraceback)
    files = [line for line in reply.text.splitlines() if line.startswith("  File ")]
    assert len(files) == 2
    assert all(__file__ in line for line in files)
    assert "invalid literal" in reply.text
    assert capsys.readouterr().err == reply.text


def test_a_mistake_in_a_call_of_grn_ends_where_the_user_made_it() -> None:
    reply = Reply.read(run(pack(unfit, (), {})))

    lines = [line.strip() for line in reply.text.splitlines()]
    assert [line for line in lines if line.startswith("File ")][-1].endswith("in unfit")
    assert "no size" in lines[-1]
    assert traceback.format_exception(reply.value())
