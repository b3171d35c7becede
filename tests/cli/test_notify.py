"""`grn notify`: what a hook is told becomes a message to a phone, a channel or a mailbox."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from email.header import decode_header, make_header
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grn.cli import app
from grn.cli.commands.notify import message
from tests.harness import wait_for
from tests.queue.daemon import SMALL, a_queue

ENDED = {
    "GRN_EVENT": "end", "GRN_JOB_ID": "41", "GRN_REASON": "failed", "GRN_JOB_NAME": "gpt2",
    "GRN_JOB_COMMAND": "python train.py", "GRN_JOB_STATUS": "3", "GRN_JOB_RUN_S": "75.0",
    "GRN_JOB_TAIL": "epoch 1\nout of luck",
}  # fmt: skip


class Channel(ThreadingHTTPServer):
    """A server that keeps what is posted to it; a path with 500 in it is refused."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Posts)
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Posts(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, dict(self.headers), data))  # type: ignore[attr-defined]
        self.send_response(500 if "500" in self.path else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


@pytest.fixture
def channel() -> Iterator[Channel]:
    with Channel() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        app.main(["notify", *words])
    return int(caught.value.code or 0)


def test_a_failed_job_is_told_with_its_last_lines_and_a_good_one_without() -> None:
    assert message(ENDED) == (
        "job 41 gpt2: failed, exit status 3",
        "python train.py\nran for 1m15s\n\nepoch 1\nout of luck",
    )
    good = ENDED | {"GRN_REASON": "ok", "GRN_JOB_STATUS": "0", "GRN_JOB_NAME": ""}
    assert message(good) == ("job 41: ok", "python train.py\nran for 1m15s")
    assert message({"GRN_EVENT": "empty"}) == ("the queue is empty", "")
    idle = {"GRN_EVENT": "idle", "GRN_IDLE_S": "5400", "GRN_IDLE_BYTES": str(6 << 30)}
    assert message(ENDED | idle)[0] == "job 41 gpt2 holds 6.0 GiB and has been idle for 1h30m"


def test_a_text_goes_wherever_it_is_sent(channel: Channel, tmp_path: Path) -> None:
    secret = tmp_path / "webhook"
    secret.write_text(f"{channel.url}/hook\n")
    assert (
        run(
            "--ntfy",
            f"{channel.url}/jobs",
            "--slack",
            f"@{secret}",
            "fertig,",
            "Überraschung" + "g" * 60,
        )
        == 0
    )
    (first, headers, text), (second, _, said) = channel.posts
    assert (first, second) == ("/jobs", "/hook")
    assert str(make_header(decode_header(headers["Title"]))) == "fertig, Überraschung" + "g" * 60
    assert text.decode() == "fertig, Überraschung" + "g" * 60
    assert json.loads(said) == {"text": f"*{text.decode()}*"}


def test_what_cannot_be_sent_is_one_line(
    channel: Channel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRN_EVENT", raising=False)
    for words, text in (
        (["x"], "there is nowhere to send to."),
        (["--ntfy", channel.url], "no hook has said what happened."),
        (["--ntfy", "file:///etc/passwd", "x"], "'file:///etc/passwd' is not an address."),
        (["--slack", "@/no/such/file", "x"], "/no/such/file cannot be read: No such file"),
        (["--ntfy", f"{channel.url}/500", "x"], "did not take the message: Internal Server Error."),
        (["--ntfy", "http://127.0.0.1:1", "x"], "did not take the message: Connection refused."),
    ):
        assert run(*words) != 0
        (line, *_) = capsys.readouterr().err.splitlines()
        assert text in line


def test_a_job_tells_its_end_by_mail_and_to_a_channel(channel: Channel) -> None:
    with a_queue() as queue:
        folder = queue.story.folder / "bin"
        folder.mkdir()
        (folder / "sendmail").write_text(
            f"#!/bin/sh\ncat > {folder}/letter.new && mv {folder}/letter.new {folder}/letter\n"
        )
        (folder / "sendmail").chmod(0o755)
        hook = f"PATH={folder}:$PATH grn notify --mail me@example.org --ntfy {channel.url}/jobs"
        job = queue.submit(*SMALL, "--notify", hook, "--shell", "--", "echo so sad; exit 3")
        assert queue.ended(job)["reason"] == "failed"
        wait_for(lambda: channel.posts and (folder / "letter").exists(), "the messages")
        ((path, headers, text),) = channel.posts
        letter = (folder / "letter").read_text()
    assert (path, headers["Title"]) == ("/jobs", f"job {job}: failed, exit status 3")
    assert text.decode().endswith("so sad")
    assert f"Subject: job {job}: failed, exit status 3" in letter
    assert "so sad" in letter
