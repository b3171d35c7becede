"""What an earlier run has left, and what follows from it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest

from grn.compat.tasks.done_marks import (
    DoneMark,
    Folder,
    InstanceRun,
    Mark,
    RefuseRun,
    Skip,
    decide,
    finished_of_log,
)

TEST = {"lr": "0.1"}
COMMON = {"epochs": "200"}
WANTED = Mark(False, TEST, COMMON)
FINISHED = Mark(True, TEST, COMMON)
BEGUN = Mark(False, TEST, COMMON)


# --- the decision --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (DoneMark(), InstanceRun),
        (DoneMark(has_files=True), InstanceRun),  # a folder alone proves nothing
        (DoneMark(BEGUN, has_files=True), InstanceRun),
        (DoneMark(FINISHED, has_files=True), Skip),
        (DoneMark(has_files=True, is_older_result=True), Skip),
        (DoneMark(Mark(True, {"lr": "0.2"}, COMMON), has_files=True), RefuseRun),
        (DoneMark(Mark(False, {"lr": "0.2"}, COMMON), has_files=True), RefuseRun),
    ],
)
def test_what_has_finished_is_skipped_and_all_else_is_run(found: DoneMark, kind: type) -> None:
    assert isinstance(decide(WANTED, found, is_forced=False), kind)
    assert decide(WANTED, found, is_forced=True) == InstanceRun()


def test_a_first_run_needs_no_words_and_another_says_why() -> None:
    assert decide(WANTED, DoneMark(), is_forced=False) == InstanceRun("")
    assert decide(WANTED, DoneMark(BEGUN), is_forced=False) == InstanceRun(
        "it did not finish before"
    )
    assert decide(WANTED, DoneMark(FINISHED), is_forced=False) == Skip("")


def test_a_change_of_the_global_config_is_told_and_not_run() -> None:
    before = Mark(True, TEST, {"epochs": "100", "old": "1"})

    assert decide(WANTED, DoneMark(before), is_forced=False) == Skip(
        "it finished with another global_config, epochs was 100 and is 200; "
        "old was 1 and is not set; see force_rerun"
    )


# --- the folder ----------------------------------------------------------------------------


def test_a_mark_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "a/b"), "MyTask")
    folder.write(FINISHED)

    assert folder.look(False, None) == DoneMark(FINISHED, has_files=True)
    assert os.listdir(folder.path) == [".grn-MyTask.json"]


def test_a_mark_that_was_half_written_says_nothing_of_an_end(tmp_path: Path) -> None:
    """A crash leaves the beginning of the new mark and the rest of the one before."""
    folder, path = Folder(str(tmp_path), "T"), tmp_path / ".grn-T.json"
    saved = []
    for mark in (Mark(True, TEST, {"epochs": "a longer one"}), BEGUN, FINISHED):
        folder.write(mark)
        saved.append(path.read_bytes())

    for before, after in itertools.pairwise(saved):
        for length in range(len(after)):
            mixed = after[:length] + before[length:]
            path.write_bytes(mixed)
            found = folder.look(False, None).mark
            assert found is None or not found.is_finished or mixed in saved


def test_an_instance_that_began_finishes_in_place(tmp_path: Path) -> None:
    folder, path = Folder(str(tmp_path), "T"), tmp_path / ".grn-T.json"
    folder.write(BEGUN)
    before = path.stat()
    folder.finish()

    assert folder.look(False, None).mark == FINISHED
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)


def test_a_folder_that_its_task_removed_is_made_again_for_the_mark(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "a"), "T")
    folder.write(BEGUN)
    shutil.rmtree(folder.path)
    folder.finish()

    assert folder.look(False, None).mark == FINISHED


def test_a_mark_of_the_first_release_can_be_read(tmp_path: Path) -> None:
    saved = {"version": 1, "is_finished": True, "test": TEST, "common": COMMON}
    (tmp_path / ".grn-MyTask.json").write_text(json.dumps(saved))

    assert Folder(str(tmp_path), "MyTask").look(False, None).mark == FINISHED


def test_two_tasks_in_one_folder_have_a_mark_each(tmp_path: Path) -> None:
    Folder(str(tmp_path), "Train").write(FINISHED)
    Folder(str(tmp_path), "Evaluate").write(BEGUN)

    assert Folder(str(tmp_path), "Train").look(False, None).mark == FINISHED
    assert Folder(str(tmp_path), "Evaluate").look(False, None).mark == BEGUN


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"is_finished": 1, "test": 3}', "\x00"])
def test_a_mark_that_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ".grn-T.json").write_text(text)

    assert Folder(str(tmp_path), "T").look(True, None) == DoneMark(None, has_files=True)


def test_a_folder_is_for_one_scheduler_at_a_time(tmp_path: Path) -> None:
    first, second = (Folder(str(tmp_path), "T") for _ in range(2))

    assert first.take()
    assert not second.take()
    first.let_go()
    assert second.take()
    second.let_go()


# --- results of the older tool ---------------------------------------------------------------

OLDER_LINE = "Mon, 16 Nov 2020 02:00:00 gpu_task_scheduler.py[line:66] INFO gpu0 {} task {}\n"


@pytest.mark.parametrize(
    ("has_line", "log", "is_finished"),
    [
        (True, "epoch 200: done\n", True),
        (True, "Traceback (most recent call last):\n  ...\nValueError: no\n", False),
        (True, None, False),
        (False, "epoch 200: done\n", False),
    ],
)
def test_an_older_result_counts_if_both_logs_say_that_it_finished(
    tmp_path: Path, has_line: bool, log: str | None, is_finished: bool
) -> None:
    (tmp_path / "model").touch()
    if log is not None:
        (tmp_path / "worker.log").write_text(log)

    found = Folder(str(tmp_path), "T").look(has_line, "worker.log")
    assert found.is_older_result is is_finished


def test_an_empty_folder_is_no_result(tmp_path: Path) -> None:
    assert Folder(str(tmp_path), "T").look(True, None) == DoneMark()


def test_a_folder_that_we_have_used_is_not_the_older_tools(tmp_path: Path) -> None:
    (tmp_path / "worker.log").touch()
    Folder(str(tmp_path), "Train").write(FINISHED)

    assert not Folder(str(tmp_path), "Evaluate").look(True, "worker.log").is_older_result


def test_the_older_log_is_read_for_what_finished(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.log"
    path.write_text(
        OLDER_LINE.format("receives", "a-1,")
        + OLDER_LINE.format("finishes", "a-1, b,")
        + OLDER_LINE.format("receives", "a-2,")
    )

    assert finished_of_log(str(path)) == {"a-1, b,"}
    assert finished_of_log(str(tmp_path / "none")) == finished_of_log(None) == set()
