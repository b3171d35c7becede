"""Every form in which grn keeps state has a version, and a file of each form before is read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from grn.batch import journal as batch_journal
from grn.errors import UsageError
from grn.negotiator.storage import schema, store
from grn.queue.journal import journal_file
from grn.queue.local import attempt_files
from grn.queue.sites import fleet
from grn.sweep import manifest

DATA = Path(__file__).parent / "data"
FORMS = {  # version, and the folder in tests/data with the form before it
    "journal of the queue": (journal_file.SCHEMA_VERSION, 11, "queue-c17b805"),
    "record of an attempt": (attempt_files.FORMAT, 5, "queue-3260378"),
    "state of the negotiator": (schema.SCHEMA_VERSION, 10, "negotiator-148b250"),
    "journal of a batch": (batch_journal.VERSION, 2, "batch-3368bb6"),
    "manifests of a sweep": (manifest.VERSION, 1, None),  # the first
    "ways to nodes": (fleet.MEMORY_VERSION, 1, None),  # nodes-1.json is of this form
}


NEGOTIATORS = [
    "negotiator-b8da9a9",
    "negotiator-2f3c940",
    "negotiator-330f68c",
    "negotiator-148b250",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_new_version_of_a_stored_form_comes_with_a_file_of_the_one_before(form: str) -> None:
    version, listed, folder = FORMS[form]

    assert version == listed, "add a file of the version before to tests/data"
    assert (version == 1) if folder is None else (DATA / folder).is_dir()


@pytest.mark.parametrize("folder", NEGOTIATORS)
def test_the_state_of_an_older_negotiator_is_read(folder: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / store.FILE_NAME)) as db:
        db.executescript((DATA / folder / "negotiator.sql").read_text())

    with closing(store.Store(str(tmp_path), "boot")) as opened:
        found = opened.load()

    assert [one.id for one in found.leases] == ["lease-1"]
    assert [len(one.runs) for one in found.profiles] == [2]


def test_the_journal_of_an_older_batch_is_read() -> None:
    assert set(batch_journal.finished(str(DATA / "batch-3368bb6"))) == {"a", "c"}


def test_the_journal_of_a_newer_batch_is_refused(tmp_path: Path) -> None:
    (tmp_path / batch_journal.JOURNAL).write_text('{"version": 99}\n{"id": "a"}\n')

    with pytest.raises(UsageError, match="newer grn"):
        batch_journal.finished(str(tmp_path))
