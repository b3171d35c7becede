"""What is noted of those who change what belongs to others, and who may read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from grn.negotiator.storage import audit
from grn.negotiator.storage.audit import Audit
from tests.harness import Story
from tests.negotiator.live import OTHER_UID, client_of, inside, needs_root, reachable


def test_lines_are_read_again_oldest_first(tmp_path: Path) -> None:
    for number in range(5):
        Audit(str(tmp_path)).note(1000, number, "forget", f"type {number}", "done")

    rows = Audit(str(tmp_path)).last(3)

    assert [row["object"] for row in rows] == ["type 2", "type 3", "type 4"]
    assert rows[0].keys() == {"at", "uid", "pid", "verb", "object", "result"}
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_cut_off_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_bytes(b'{"at": 1.0, "ver\n')
    notes = Audit(str(tmp_path))
    notes.note(0, None, "stop", "", "done")

    assert [row["verb"] for row in notes.last(10)] == ["stop"]


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_BYTES", 2000)
    notes = Audit(str(tmp_path))
    for number in range(100):
        notes.note(0, 1, "forget", str(number), "done")

    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5000
    assert notes.last(1)[0]["object"] == "99"


def test_a_disk_that_takes_no_line_is_no_error(tmp_path: Path) -> None:
    Audit(str(tmp_path / "nowhere")).note(0, 1, "stop", "", "done")

    assert Audit(str(tmp_path / "nowhere")).last(1) == []


@needs_root
def test_root_and_those_who_may_not_are_noted_and_daily_work_is_not(story: Story) -> None:
    with inside(story.folder) as server:
        path = reachable(server.path)
        with server.client() as root, client_of(OTHER_UID, path) as user:
            mine, theirs = root.lease()["lease"], user.lease()["lease"]
            assert user.ask("done", lease=mine, outcome="ok")["error"]["code"] == "NotAllowed"
            assert root.ask("done", lease=theirs, outcome="ok")["ok"]
            assert root.ask("done", lease=mine, outcome="ok")["ok"]
            user.ask("forget", type="no such type")

            rows = root.ask("audit")["audit"]
            assert [(row["uid"], row["verb"], row["object"], row["result"]) for row in rows] == [
                (OTHER_UID, "done", mine, "refused"),
                (0, "done", theirs, "done"),
            ]
            assert user.ask("audit")["error"]["code"] == "NotAllowed"
