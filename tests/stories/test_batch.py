"""`grn batch`: lines as jobs on negotiated GPUs, through failures, stops and a second run."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Negotiators
from tests.harness import GRN, Job, Story, is_running, wait_for

Start = Callable[..., Job]
PASS = f"{sys.executable} -c \"from act import gate; gate('go')\""  # wait at a gate


@pytest.fixture
def batch(story: Story) -> Start:
    """Start `grn batch` in the story's folder, on a file of these lines."""

    def start(lines: str | None, *words: str, **options: Any) -> Job:
        if lines is not None:
            (story.folder / "jobs.txt").write_text(lines)
        return story.start(*GRN, "batch", *words, "jobs.txt", cwd=story.folder, **options)

    return start


def report(story: Story) -> dict[str, Any]:
    return json.loads((story.folder / "jobs.txt.grn" / "report.json").read_text())


def log(story: Story, line: int) -> str:
    return (story.folder / "jobs.txt.grn" / "logs" / f"{line:04d}.log").read_text()


def test_all_lines_run_on_gpus_of_the_negotiator(negotiator: Negotiators, story, batch) -> None:
    here = negotiator("virtual:2x1GiB")

    ended = batch('echo "on $CUDA_VISIBLE_DEVICES"\n[gpus=2] echo $CUDA_VISIBLE_DEVICES\n').wait()

    assert ended.code == 0, ended.err
    assert log(story, 1) in ("on 0\n", "on 1\n")
    assert log(story, 2) == "0,1\n"
    assert "2 ok, 0 failed" in ended.out
    assert report(story)["counts"] == {"ok": 2, "failed": 0, "oom": 0, "interrupted": 0}
    assert here.leases() == []


def test_several_share_a_gpu_once_their_need_is_known(negotiator, story, batch) -> None:
    here = negotiator("virtual:1x1GiB")
    gate = story.gate("go")
    line = f"[mem=64MiB] {PASS}"

    job = batch("\n".join([line] * 4))
    here.wait_for_leases(4)
    gate.open()

    assert job.wait().code == 0


def test_a_failed_line_is_told_and_the_others_run(negotiator, story, batch) -> None:
    negotiator("virtual:1x1GiB")

    ended = batch("false\nno-such-program\necho fine\nkill -9 $$").wait()

    assert ended.code == 1
    rows = {row["line"]: (row["outcome"], row["status"]) for row in report(story)["jobs"]}
    assert rows == {1: ("failed", 1), 2: ("failed", 127), 3: ("ok", 0), 4: ("failed", -9)}
    assert "1 ok, 3 failed" in ended.out
    assert "ended by SIGKILL" in ended.out
    assert "not found" in ended.out  # the last words of the first that had any


def test_resume_runs_only_what_has_not_finished(negotiator, story, batch) -> None:
    negotiator("virtual:1x1GiB")
    lines = "echo one >> ran\ntest -e mended && echo two >> ran\necho three >> ran\n"
    assert batch(lines).wait().code == 1

    (story.folder / "mended").write_text("")
    ended = batch("echo zero >> ran\n" + lines, "--resume").wait()

    assert ended.code == 0, ended.err
    assert sorted((story.folder / "ran").read_text().split()) == ["one", "three", "two", "zero"]
    assert "2 ok, 0 failed, 2 finished before" in ended.out


def test_without_resume_all_lines_run_again(negotiator, story, batch) -> None:
    negotiator("virtual:1x1GiB")
    for _ in range(2):
        assert batch("echo one >> ran").wait().code == 0

    assert (story.folder / "ran").read_text().split() == ["one", "one"]


def test_a_line_that_fails_is_tried_again_as_often_as_asked(negotiator, story, batch) -> None:
    negotiator("virtual:1x1GiB")

    ended = batch("echo x >> tries; test $(wc -l < tries) = 3", "--retry", "2").wait()

    assert ended.code == 0, ended.err
    assert report(story)["jobs"][0]["attempts"] == 3


def test_fail_fast_starts_nothing_more(negotiator, story, batch) -> None:
    negotiator("virtual:1x1GiB")

    ended = batch("false\n" + "echo x >> ran\n" * 3, "--fail-fast", "--parallel", "1").wait()

    assert ended.code == 1
    assert not (story.folder / "ran").exists()
    assert "0 ok, 1 failed, 3 not begun" in ended.out


def test_a_dry_run_runs_nothing_and_needs_no_negotiator(story, batch) -> None:
    ended = batch("[mem=6GiB gpus=2 at=gpu2] a \\\n b\n# c\nd", "--dry-run").wait()

    assert ended.out == "1: [gpus=2 mem=6.0GiB at=gpu2] a  b\n4: d\n"
    assert not (story.folder / "jobs.txt.grn").exists()


def test_a_mistake_in_the_file_is_told_before_anything_runs(story, batch) -> None:
    ended = batch("echo x >> ran\n[gpu=1] y").wait()

    assert ended.code == 2
    assert ended.err.startswith("error: line 2: there is no option 'gpu'")
    assert not (story.folder / "ran").exists()


def test_memory_of_no_gpu_is_a_mistake(batch) -> None:
    ended = batch("true", "--gpus", "0", "--mem", "1GiB").wait()
    assert ended.code == 2
    assert ended.err.startswith("error: mem is about GPUs, and gpus is 0.")


def test_a_mistake_on_standard_input_fails_alone(negotiator, story, script) -> None:
    negotiator("virtual:1x1GiB")
    (story.folder / "lines").write_text("[gpu=1] y\necho fine\n")

    command = f"{script('grn')} batch --out here < lines"
    ended = story.start("sh", "-c", command, cwd=story.folder).wait()

    assert ended.code == 1
    assert "1 ok, 1 failed" in ended.out


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_whole_trees_and_what_was_cut_short_runs_again(
    negotiator, story, batch, signum
) -> None:
    here = negotiator("virtual:1x1GiB")
    gate = story.gate("go")
    lines = f"echo done >> ran\necho $$ > pid; {PASS} && echo late >> ran"
    job = batch(lines)
    wait_for(lambda: (story.folder / "pid").exists() and here.leases() and _pid(story))
    wait_for(lambda: (story.folder / "ran").exists())

    job.signal(signum)
    ended = job.wait()

    assert ended.code == 128 + signum
    wait_for(lambda: not is_running(_pid(story)), "the tree to end")
    assert here.leases() == []
    gate.open()
    assert batch(None, "--resume").wait().code == 0
    assert (story.folder / "ran").read_text().split() == ["done", "late"]


def _pid(story: Story) -> int:
    return int((story.folder / "pid").read_text() or 0)


def test_the_report_is_printed_as_json_when_asked(negotiator, story, batch) -> None:
    negotiator("virtual:1x1GiB")

    ended = batch("true", "--json", "-q").wait()

    assert json.loads(ended.out) == report(story)
    assert ended.err == ""


def test_standard_input_has_no_place_to_resume_from(story) -> None:
    ended = story.start(*GRN, "batch", "--resume").wait()

    assert ended.code == 2
    assert "--out" in ended.err


@pytest.mark.parametrize(
    ("file", "said"), [("nowhere.txt", "No such file or directory"), ("/", "Is a directory")]
)
def test_a_file_that_cannot_be_read_is_one_clear_line(story, file: str, said: str) -> None:
    ended = story.start(*GRN, "batch", file).wait()

    assert ended.code == 2
    assert ended.err == f"error: {file} cannot be read: {said}.\n"
