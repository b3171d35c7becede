"""Which negotiator is reached and trusted, when to try again, and for how long."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grn import paths
from grn.client.connection import ANSWER_S
from grn.client.negotiator import PATIENCE_S, Retry, ask_once, connect, has_met, through_restarts
from grn.errors import DaemonError, DaemonNotRunning, NeverFits, NotTrusted
from tests.client.test_connection import a_listener
from tests.harness import DEADLINE_S, Story
from tests.negotiator.live import OTHER_UID, as_user, needs_root

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
        (AWAY, DaemonNotRunning, "no grn negotiator answers"),
        (ConnectionResetError("lost"), DaemonNotRunning, "no grn negotiator answers"),
        (TimeoutError("timed out"), DaemonError, "did not answer within 60 s"),
    ],
)
def test_patience_ends_in_a_clear_error(last: OSError, kind: type[DaemonError], text: str) -> None:
    patience = Retry(is_expected=True)
    with pytest.raises(kind, match=text):
        waited(Script(last), patience)
    assert PATIENCE_S <= patience.waited_s <= PATIENCE_S + ANSWER_S


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
    assert has_met()
    with pytest.raises(DaemonNotRunning):
        waited(Script(AWAY), Retry())
    assert not has_met()


def test_a_negotiator_of_another_folder_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meet()
    monkeypatch.setenv("GRN_RUNTIME_DIR", str(tmp_path / "elsewhere"))
    assert not has_met()


def meet() -> None:
    """Reach somebody who listens as a negotiator of this user would."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(paths.own_socket())
        listener.listen()
        connect().close()


# --- the search for one ---


def own_socket(story: Story) -> Path:
    return story.folder / "run" / f"{os.getuid()}.sock"


def test_where_nobody_listens_there_is_no_negotiator(story: Story) -> None:
    with pytest.raises(DaemonNotRunning, match=str(own_socket(story))):
        ask_once({"op": "ping"})


def test_the_socket_of_a_killed_negotiator_is_nobody(story: Story) -> None:
    with a_listener(own_socket(story)):
        pass
    assert own_socket(story).exists()

    with pytest.raises(DaemonNotRunning):
        connect()


def test_one_that_hangs_up_at_once_is_no_negotiator(story: Story) -> None:
    with a_listener(own_socket(story)) as listener:
        hangs_up = threading.Thread(target=lambda: listener.accept()[0].close())
        hangs_up.start()
        with pytest.raises(DaemonNotRunning):
            ask_once({"op": "ping"})
        hangs_up.join()


def test_ones_own_negotiator_is_asked_first_then_that_of_another_user(story: Story) -> None:
    others = own_socket(story).with_name("4242.sock")
    with a_listener(others):
        with a_listener(own_socket(story)):
            mine = connect()
            assert mine.sock.getpeername() == str(own_socket(story))
            mine.close()
        theirs = connect()  # the socket file of our own is there, but nobody behind it
        assert theirs.sock.getpeername() == str(others)
        theirs.close()


def test_a_socket_that_is_named_is_the_only_one(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRN_SOCKET", str(story.folder / "named.sock"))
    with a_listener(own_socket(story)), pytest.raises(DaemonNotRunning, match=r"named\.sock"):
        connect()


# --- impostors: other users who answer at a negotiator's socket ---

ANSWERS = """
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
print(listener.accept()[0].recv(1), flush=True)
"""


@pytest.fixture
def folder(story: Story) -> Path:
    """Return the folder where all users meet; it is ours, and open to all."""
    run = story.folder / "run"
    run.mkdir(exist_ok=True)
    story.folder.chmod(0o711)
    run.chmod(0o1777)
    return run


@contextmanager
def an_impostor(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another user listen at a path; it prints what the first who comes says."""
    command = as_user(OTHER_UID, "import socket", ANSWERS, str(path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


@needs_root
def test_another_user_under_our_name_is_told_nothing(folder: Path) -> None:
    path = folder / f"{os.getuid()}.sock"
    with an_impostor(path) as impostor:
        with pytest.raises(NotTrusted, match=f"{path} is answered by user {OTHER_UID}, not by"):
            ask_once({"op": "ping"})
        heard, _ = impostor.communicate(timeout=DEADLINE_S)

    assert heard == "b''\n"


@needs_root
def test_an_impostor_is_no_negotiator_and_no_hindrance(folder: Path) -> None:
    with an_impostor(folder / "1.sock"):
        with pytest.raises(DaemonNotRunning):
            connect()
        with a_listener(folder / "2.sock"):
            found = connect()
            assert found.sock.getpeername() == str(folder / "2.sock")
            found.close()


@needs_root
def test_the_negotiator_of_another_user_is_used_under_that_users_name(folder: Path) -> None:
    path = folder / f"{OTHER_UID}.sock"
    with an_impostor(path):
        found = connect()
        assert found.sock.getpeername() == str(path)
        found.close()


@needs_root
@pytest.mark.parametrize(
    ("trusted", "is_used"), [("", False), ("daemon, 4242", False), (f"ada,{OTHER_UID}", True)]
)
def test_trust_can_be_limited_to_some_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trusted: str, is_used: bool
) -> None:
    monkeypatch.setenv("GRN_TRUSTED_USERS", trusted)
    with an_impostor(folder / f"{OTHER_UID}.sock"):
        if is_used:
            connect().close()
        else:
            with pytest.raises(NotTrusted, match="GRN_TRUSTED_USERS"):
                connect()


@needs_root
def test_who_keeps_the_folder_is_asked_before_others(folder: Path) -> None:
    for name in ("0", "1", "2", str(OTHER_UID)):
        (folder / f"{name}.sock").touch()
    os.chown(folder, OTHER_UID, -1)

    names = [Path(path).stem for path in paths.sockets_to_try()]
    assert names == ["0", str(OTHER_UID), "1", "2"]


def test_all_others_are_asked_in_the_order_of_their_numbers(folder: Path) -> None:
    for name in ("1002", "998", "70000", "x", "12"):
        (folder / f"{name}.sock").touch()

    names = [Path(path).stem for path in paths.sockets_to_try()]
    assert names == [str(os.getuid()), "12", "998", "1002", "70000", "x"]
