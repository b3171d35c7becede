"""When to try again, and for how long: the rule, without a negotiator and without waiting."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grn import paths
from grn.client import connection
from grn.client.retry import PATIENCE_S, Retry, through_restarts
from grn.errors import DaemonError, DaemonNotRunning, NeverFits

AWAY = DaemonNotRunning("/nowhere")
Outcome = OSError | Exception | str


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Meet elsewhere than any other test of this process; warnings are not the point."""
    monkeypatch.setenv("GRN_RUNTIME_DIR", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Script:
    """What each try comes to, in order; the last one again and again."""

    def __init__(self, *tries: Outcome) -> None:
        self.tries = list(tries)
        self.count = 0

    def __call__(self) -> Any:
        self.count += 1
        outcome = self.tries.pop(0) if len(self.tries) > 1 else self.tries[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome
        yield  # the steps of a conversation are a generator


def waited(script: Script, expected: Retry) -> tuple[Any, float]:
    """Return what came of it and how long it would have slept."""
    steps = through_restarts(script, expected)
    slept_s = 0.0
    try:
        while True:
            verb, _, pause_s = next(steps)
            assert verb == "sleep"
            slept_s += pause_s
    except StopIteration as done:
        return done.value, slept_s


def test_a_process_that_never_reached_a_negotiator_is_told_at_once() -> None:
    script = Script(AWAY)
    with pytest.raises(DaemonNotRunning):
        next(through_restarts(script, Retry()))
    assert script.count == 1


def test_a_process_that_has_reached_one_waits_for_the_next() -> None:
    result, slept_s = waited(Script(AWAY, AWAY, AWAY, "there"), Retry(is_expected=True))
    assert result == "there"
    assert 0 < slept_s < 1


def test_a_lost_answer_is_asked_for_again() -> None:
    script = Script(ConnectionResetError("lost"), AWAY, "there")
    assert waited(script, Retry())[0] == "there"


@pytest.mark.parametrize(
    ("last", "kind", "text"),
    [
        (AWAY, DaemonNotRunning, "No grn negotiator answers"),
        (ConnectionResetError("lost"), DaemonNotRunning, "No grn negotiator answers"),
        (TimeoutError("timed out"), DaemonError, "did not answer within 60 s"),
    ],
)
def test_patience_ends_in_a_clear_error(last: OSError, kind: type[DaemonError], text: str) -> None:
    patience = Retry(is_expected=True)
    with pytest.raises(kind, match=text):
        waited(Script(last), patience)
    assert PATIENCE_S <= patience.waited_s <= PATIENCE_S + connection.ANSWER_S


def test_an_answer_gives_the_whole_patience_again() -> None:
    patience = Retry(is_expected=True)
    for _ in range(5):
        steps = through_restarts(Script(AWAY), patience)
        slept_s = 0.0
        while slept_s < PATIENCE_S * 0.8:
            slept_s += next(steps)[2]
        patience.reached()


def test_a_refusal_is_an_answer_and_not_asked_for_again() -> None:
    script = Script(NeverFits("too large."))
    with pytest.raises(NeverFits):
        waited(script, Retry(is_expected=True))
    assert script.count == 1


def test_once_given_up_the_next_call_is_told_at_once() -> None:
    meet()
    assert connection.has_met()
    with pytest.raises(DaemonNotRunning):
        waited(Script(AWAY), Retry())
    assert not connection.has_met()


def test_a_negotiator_of_another_folder_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meet()
    monkeypatch.setenv("GRN_RUNTIME_DIR", str(tmp_path / "elsewhere"))
    assert not connection.has_met()


def meet() -> None:
    """Reach somebody who listens as a negotiator of this user would."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(paths.own_socket())
        listener.listen()
        connection.connect().close()
