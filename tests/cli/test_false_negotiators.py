"""A negotiator that lies: whatever it says, terminals stay whole and errors are one clear line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from grn.client.connection import drive
from grn.client.negotiator import ask_once, connect
from grn.client.state_mirror import StateMirror
from grn.protocol.rows import as_json
from tests.conftest import Negotiators
from tests.harness import Ended, Story, hang_up
from tests.negotiator.live import OTHER_UID, as_user, needs_root
from tests.queue.daemon import GRN

EVIL = "\x1b[31m\x9b2J\x07\x7f\u202e\r\nerror: EVIL"
MARKS = ("\x1b", "\x9b", "\x07", "\x7f", "\u202e", "\r", "\nerror: EVIL")
NO_PROTOCOL = f"(user {OTHER_UID}) does not speak the protocol"

SAYS = """
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
replies = json.load(open(sys.argv[2]))
print("ready", flush=True)
def serve(line):
    with contextlib.suppress(OSError):
        while head := line.recv(4, socket.MSG_WAITALL):
            asked = json.loads(line.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL))
            for reply in replies.get(asked["op"], [{}]):
                body = json.dumps({**reply, "id": asked["id"]}).encode()
                line.sendall(struct.pack(">I", len(body)) + body)
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""
IMPORTS = "import contextlib, json, socket, struct, threading"
Replies = dict[str, list[dict[str, Any]]]
Impostors = Callable[[Replies], None]

pytestmark = needs_root


@pytest.fixture
def replies(story: Story, negotiator: Negotiators) -> Replies:
    """Return what a real negotiator says of a job that has ended, one that runs and one more."""
    here = negotiator("virtual:1x512MiB")
    story.hold("first", mem="100MiB")
    story.gate("first").open()
    story.jobs[0].ended_well()
    story.hold("runs", mem="400MiB")
    story.hear("runs runs")
    story.hold("waits", mem="400MiB")
    here.wait_for_waiting(1)
    asked = (
        {"op": "bookings"},
        {"op": "status"},
        {"op": "why", "name": "job"},
        {"op": "profiles"},
        {"op": "ping"},
    )
    found: Replies = {str(one["op"]): [ask_once(dict(one))] for one in asked}
    row = {"at": 0.0, "uid": 0, "pid": 1, "verb": "stop", "object": "", "result": "done"}
    found["audit"] = [{"audit": [row]}]
    line = connect()
    found["follow"] = [drive(line.ask({"op": "follow"}))]
    line.close()
    row = found["status"][0]["status"]["leases"][0]
    gpu = {"index": 0, "uuid": "VIRTUAL-0"}
    granted = {"ev": "granted", "lease": row["id"], "nested": False, "visible": "0", "gpus": [gpu]}
    found["lease"] = [{"ev": "waiting", "reason": "memory", "text": "it is full"}, granted]
    found["hold"] = found["done"] = found["forget"] = found["stop"] = [{"ok": True, "ended": "ok"}]
    hang_up()
    here.stop()
    for job in story.jobs:
        if job.is_running:
            job.kill()
    return found


@pytest.fixture
def impostor(story: Story) -> Iterator[Impostors]:
    """Let another user answer under that user's name: as one who is believed."""
    run = story.folder / "run"
    started: list[subprocess.Popen[str]] = []

    def start(says: Replies) -> None:
        story.folder.chmod(0o711)
        (run / f"{os.getuid()}.sock").unlink(missing_ok=True)
        path = run / f"{OTHER_UID}.sock"
        path.unlink(missing_ok=True)
        told = story.write("replies.json", json.dumps(says))
        told.chmod(0o644)
        command = as_user(OTHER_UID, IMPORTS, SAYS, str(path), str(told))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    yield start
    for process in started:
        process.kill()
        process.communicate()


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a reply with something done to each of its values."""
    if isinstance(value, dict):
        return {name: changed(one, change) for name, one in value.items()}
    if isinstance(value, list):
        return [changed(one, change) for one in value]
    return change(value)


def poisoned(value: Any) -> Any:
    """Return a reply in which every text could drive a terminal, but for what kind it is."""
    if isinstance(value, dict):
        return {
            name: one if name in ("ev", "state") else poisoned(one) for name, one in value.items()
        }
    if isinstance(value, list):
        return [poisoned(one) for one in value]
    return value + EVIL if isinstance(value, str) else value


COMMANDS = [
    ("gpus",),
    ("ps",),
    ("why", "job"),
    ("profiles",),
    ("profiles", "show", "job"),
    ("book", "ls"),
    ("shares",),
    ("audit",),
    ("doctor",),
    ("metrics",),
    ("events",),
    ("select",),
    ("exec", "--", "true"),
    ("exec", "--", "sh", "-c", "exit 3"),
]


def run_all(story: Story) -> list[tuple[tuple[str, ...], Ended]]:
    """Run all commands that show what a negotiator says, side by side."""
    begun = [(words, story.start(*GRN, *words)) for words in COMMANDS]
    return [(words, job.wait()) for words, job in begun]


def test_no_text_of_a_negotiator_drives_a_terminal(
    story: Story, replies: Replies, impostor: Impostors
) -> None:
    impostor(poisoned(replies))
    shown = ""
    for words, ended in run_all(story):
        text = ended.out + ended.err
        assert "Traceback" not in text, (words, text)
        assert not any(mark in text for mark in MARKS), (words, text)
        shown += text
    assert shown.count("EVIL") > 20  # it was shown, spelled out
    with StateMirror(with_queue=False) as watch:
        picture = watch.look()
    texts: list[str] = []
    rows = [picture.negotiator, *picture.gpus.values(), *picture.leases.values()]
    seen = [*map(as_json, rows), *map(as_json, picture.waiting.values()), picture.trouble]
    changed(seen, lambda one: texts.append(one) if isinstance(one, str) else None)
    assert any("EVIL" in text for text in texts)
    assert all(text.isprintable() for text in texts)


def test_an_error_of_a_negotiator_drives_no_terminal(story: Story, impostor: Impostors) -> None:
    (story.folder / "run").mkdir()
    (story.folder / "run").chmod(0o1777)
    error = {"error": {"code": "GrnError", "message": EVIL, "hint": EVIL}}
    impostor({key: [error] for key in ("status", "why", "profiles", "audit", "ping", "lease")})
    for words, ended in run_all(story):
        assert "Traceback" not in ended.err
        assert not any(mark in ended.out + ended.err for mark in MARKS), words
    with pytest.raises(Exception, match="EVIL") as caught:
        ask_once({"op": "ping"})
    assert str(caught.value).isprintable()


MALFORMED: dict[str, Callable[[Replies], Replies]] = {
    "empty": lambda replies: {op: [{} for _ in told] for op, told in replies.items()},
    "flat": lambda replies: {op: [dict.fromkeys(told[0], 3)] for op, told in replies.items()},
    "texts": lambda replies: changed(replies, lambda one: "x"),
    "nothing": lambda replies: changed(replies, lambda one: None),
    "bad error": lambda replies: {op: [{"error": 3}] for op in replies},
}


def test_a_malformed_reply_is_one_clear_line(
    story: Story, replies: Replies, impostor: Impostors
) -> None:
    for how, malform in MALFORMED.items():
        impostor(malform(replies))
        told = ""
        for words, ended in run_all(story):
            text = ended.out + ended.err
            assert "Traceback" not in text, (how, words, text)
            if ended.code not in (0, 1):
                assert len([line for line in text.splitlines() if line.startswith("error: ")]) == 1
            told += text
        assert NO_PROTOCOL in told or how == "bad error", how


def test_the_terminal_view_leaves_with_one_clear_line(
    story: Story, replies: Replies, impostor: Impostors
) -> None:
    bare = [{"uuid": "VIRTUAL-0", "used_bytes": None, "load_pct": None}]
    impostor({**replies, "follow": [{**replies["follow"][0], "gpus": bare}]})
    ours, theirs = pty.openpty()
    job = story.start(*GRN, "top", env={"TERM": "xterm"}, stdin=theirs, stdout=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # nobody writes there any more
        pass
    os.close(ours)
    ended = job.wait()
    assert "Traceback" not in shown.decode(errors="replace") + ended.err
    assert NO_PROTOCOL in ended.err
    assert ended.code == 3
