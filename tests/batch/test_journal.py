"""What a batch remembers from one run to the next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grn.batch.file import jobs
from grn.batch.journal import JOURNAL, BatchJournal, Entry, finished, id_of
from grn.errors import MachineError, UsageError
from grn.group.task import Needs


def an_entry(id: str = "a", outcome: str = "ok", line: int = 1) -> Entry:
    return Entry(id, line, "true", outcome, 0, "0", 1.0, 2.0, 1, None, "x.log")


def keep(folder: Path, *entries: Entry, is_resumed: bool = False) -> dict[str, Entry]:
    journal = BatchJournal(str(folder))
    before = journal.open(is_resumed=is_resumed)
    for entry in entries:
        journal.add(entry)
    journal.close()
    return before


def test_what_finished_is_known_to_the_next_run(tmp_path):
    keep(tmp_path, an_entry("a"), an_entry("b", "failed"), an_entry("c", "interrupted"))

    assert keep(tmp_path, is_resumed=True) == {"a": an_entry("a")}


def test_what_failed_after_it_had_finished_is_to_run_again(tmp_path):
    keep(tmp_path, an_entry("a"), an_entry("a", "failed"))

    assert finished(str(tmp_path)) == {}


def test_a_batch_that_is_begun_anew_knows_nothing(tmp_path):
    keep(tmp_path, an_entry("a"))
    assert keep(tmp_path, an_entry("b")) == {}

    assert set(finished(str(tmp_path))) == {"b"}


def test_a_line_that_was_cut_short_is_passed_over(tmp_path):
    keep(tmp_path, an_entry("a"), an_entry("b"))
    path = tmp_path / JOURNAL
    path.write_bytes(path.read_bytes()[:-20])

    assert set(finished(str(tmp_path))) == {"a"}


def test_a_damaged_line_is_passed_over(tmp_path):
    keep(tmp_path, an_entry("a"), an_entry("b"))
    path = tmp_path / JOURNAL
    first, second, third = path.read_text().splitlines()
    path.write_text("\n".join((first, second, third.replace("2.0", '"2.0"'))) + "\n")

    assert set(finished(str(tmp_path))) == {"a"}


@pytest.mark.parametrize("row", [[], 7, {"id": 7, "line": 1, "outcome": "ok"}, {"id": "x"}])
def test_a_line_of_another_making_is_passed_over(tmp_path, row):
    keep(tmp_path, an_entry("a"))
    with open(tmp_path / JOURNAL, "a") as file:
        file.write(json.dumps(row) + "\n")

    assert set(finished(str(tmp_path))) == {"a"}


def test_two_batches_do_not_share_a_folder(tmp_path):
    first = BatchJournal(str(tmp_path))
    first.open(is_resumed=False)
    with pytest.raises(UsageError, match="another batch"):
        BatchJournal(str(tmp_path)).open(is_resumed=True)
    first.close()

    keep(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be used"):
        BatchJournal(str(tmp_path / "file" / "x")).open(is_resumed=False)


def test_a_disk_that_is_full_is_one_clear_line(tmp_path):
    journal = BatchJournal(str(tmp_path))
    (tmp_path / JOURNAL).symlink_to("/dev/full")
    with pytest.raises(MachineError, match="cannot be written"):
        journal.open(is_resumed=False)
    journal.close()


def test_a_job_is_known_by_its_text_wherever_its_line_is():
    before = [id_of(job) for job in jobs([b"a", b"b", b"b"], Needs())]
    after = [id_of(job) for job in jobs([b"# new", b"b", b"[mem=1GiB] a", b"b"], Needs())]

    assert len(set(before)) == 3
    assert set(before) == set(after)
