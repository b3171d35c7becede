"""Jobs of the queue as text."""

from __future__ import annotations

from typing import Any

from grn.cli.output import job_text
from grn.cli.output.style import plain
from grn.model.units import MiB
from grn.protocol.queue_rows import JobRow
from grn.protocol.rows import read

NOW = 1000.0


def a_job_row(**changes: Any) -> JobRow:
    attempt = {"attempt": 1, "gpus": [0], "reason": None, "ran_s": None, "peak_bytes": None}
    plain = {
        "id": 41, "name": "", "state": "running", "reason": None, "why": "running", "cwd": "/home",
        "argv": ["python", "train.py"], "label": "train.py", "gpus_asked": 1, "mem_bytes": None,
        "is_exclusive": False, "submitted_at": NOW - 90, "started_at": NOW - 60, "priority": 0,
        "after": [], "folder": "/state/41.1", "reserved_bytes": 300 * MiB, "environment": ["HOME"],
        "attempts": [attempt],
    }  # fmt: skip
    return read(JobRow, plain | changes)


def test_a_job_that_runs_is_told_without_unknowns_and_without_saying_it_twice() -> None:
    text = plain(job_text.job(a_job_row(name="mine", used_bytes=200 * MiB), NOW))

    assert "  state     running\n  command   python train.py\n" in text
    assert "  asks for  1 GPU, memory as learned\n" in text
    assert "  memory    200 MiB used of 300 MiB reserved\n" in text
    assert "  attempt   1 on GPU 0: under way for 1m00s\n" in text
    assert "?" not in text


def test_many_variables_are_counted_not_listed() -> None:
    names = [f"VARIABLE_{number}" for number in range(100)]
    row = a_job_row(environment=names)
    *_, last = plain(job_text.job(row, NOW)).splitlines()

    assert last == "  variables 100 (list them with --env)"
    assert "VARIABLE_99" in plain(job_text.job(row, NOW, has_names=True))


def test_show_tells_every_option_that_was_given() -> None:
    given = {
        "retries": 3, "may_requeue": True, "time_limit_s": 10800.0, "notify": "mail me",
        "on": "a100", "without": ["0", "1"], "at": "gpu2", "array_index": "7",
    }  # fmt: skip
    text = plain(job_text.job(a_job_row(**given), NOW))

    assert text.startswith("job 41  train.py[7]\n")
    assert "  asks for  1 GPU, memory as learned, on a100, not on GPU 0, 1, at gpu2\n" in text
    assert "  array     GRN_ARRAY_INDEX=7\n" in text
    assert "  limit     3h\n" in text
    assert "  retries   up to 3 on failure, again if the machine goes down\n" in text
    assert "  notify    mail me\n" in text


def test_equal_reasons_are_written_once_on_a_terminal() -> None:
    rows = [a_job_row(id=number, state="queued", why="no room") for number in (1, 2, 3)]
    rows.append(a_job_row(id=4, state="queued", why="held"))

    *_, two, three, four = plain(job_text.jobs(rows, NOW, 100)).splitlines()
    assert (two.split()[-1], three.split()[-1], four.split()[-1]) == ("″", "″", "held")
    assert "″" not in plain(job_text.jobs(rows, NOW)), "each line of a pipe stands for itself"


def test_only_a_shell_fills_the_number_of_an_array_in() -> None:
    line = a_job_row(argv=["bash", "-c", "run ${GRN_ARRAY_INDEX}"], array_index="3")
    words = a_job_row(argv=["run", "$GRN_ARRAY_INDEX"], array_index="3")

    assert job_text.shown_command(line) == "train.py[3]: bash -c 'run 3'"
    assert job_text.shown_command(words) == "train.py[3]: run '$GRN_ARRAY_INDEX'"


def test_lines_of_the_shell_are_shown_as_they_were_written() -> None:
    row = a_job_row(argv=["/bin/sh", "-c", "a | b"], name="n")

    assert job_text.shown_command(row) == "n: a | b"
    assert job_text.spelled_command(row.argv) == "a | b"


def test_what_goes_on_is_counted_in_good_english() -> None:
    assert job_text.going_on(0) == ""
    assert job_text.going_on(1) == "; 1 running job goes on"
    assert job_text.going_on(2) == "; 2 running jobs go on"


def test_where_a_job_runs_is_a_column_only_with_other_machines() -> None:
    here, there = a_job_row(attempt=1, gpus=[0]), a_job_row(id=42, attempt=1, where="gpu2")
    waits = a_job_row(id=43, state="queued", why="no room", attempt=1, where="")

    assert "WHERE" not in plain(job_text.jobs([here, waits], NOW))
    assert "WHERE" in plain(job_text.jobs([here, waits], NOW, has_sites=True))
    lines = [line.split() for line in plain(job_text.jobs([here, there, waits], NOW)).splitlines()]
    assert lines[0][:3] == ["ID", "STATE", "WHERE"]
    assert (lines[1][2], lines[2][2]) == ("local", "gpu2")
    assert lines[3][1:3] == ["queued", "1m30s"], "one that waits is nowhere"


def test_the_past_tells_where_too() -> None:
    ended = {"state": "ended", "reason": "ok", "ended_at": NOW, "attempt": 1}

    assert "WHERE" not in plain(job_text.history([a_job_row(**ended)], NOW))
    assert " gpu2 " in plain(job_text.history([a_job_row(**ended, where="gpu2")], NOW))


def test_a_job_whose_node_is_out_of_sight_is_told_with_that() -> None:
    said = "gpu2 not heard of for 3 min"
    attempt = {"attempt": 1, "gpus": [0], "where": "gpu2"}
    row = a_job_row(why=said, where="gpu2", at="lab", attempts=[attempt])

    assert f"  state     running: {said}\n" in plain(job_text.job(row, NOW))
    assert "  asks for  1 GPU, memory as learned, at lab\n" in plain(job_text.job(row, NOW))
    assert "  attempt   1 on GPU 0 of gpu2: under way for 1m00s\n" in plain(job_text.job(row, NOW))
    assert f"running for 1m00s: {said}" in plain(job_text.explained(row, NOW))
    assert plain(job_text.jobs([row], NOW)).endswith(said)


def test_what_is_expected_has_a_column_and_does_not_unfold_an_array() -> None:
    why = "needs 2.0 GiB; starts in about {}s (1s to 9s)"
    rows = [
        JobRow(index, "queued", ("x",), name="grid", array_index=str(index), why=why.format(index))
        for index in (3, 4)
    ]
    header, line = plain(job_text.jobs(rows, 0.0, is_expanded=False)).splitlines()

    assert header.split()[-3:] == ["EXPECTED", "COMMAND", "WHY"]
    assert line.startswith("3-4")
    assert "starts in 3s  grid[3-4]: x  needs 2.0 GiB" in line
    assert "EXPECTED" not in plain(job_text.jobs([JobRow(1, "queued", ("x",))], 0.0))


def test_why_of_a_running_job_is_told_below_one_heading() -> None:
    text = plain(job_text.explained(a_job_row(), NOW, "runs on GPU 0, for 1m00s; 1 MiB used", 40))

    assert text.splitlines()[1:] == ["  runs on GPU 0, for 1m00s; 1 MiB used"]
    assert len(text.splitlines()[0].split("job ")) == 2
    wrapped = plain(job_text.explained(a_job_row(), NOW, "word " * 20, 40)).splitlines()
    assert all(len(line) <= 40 and line.startswith("  word") for line in wrapped[1:])


def test_a_worker_of_an_executor_is_shown_as_the_function_it_calls() -> None:
    argv = ["/usr/bin/python", "-P", "-m", "grn.client.remote_call", "grn-calls-0-1f2e", "1"]
    row = a_job_row(argv=argv, label="__main__::train", name="search.py")

    assert "search.py: train()" in plain(job_text.jobs([row], NOW))
    assert "grn-calls" not in plain(job_text.job(row, NOW))


def test_a_job_that_never_ran_has_no_run_time_in_the_past() -> None:
    row = a_job_row(state="ended", reason="cancelled", ended_at=NOW, attempt=0, ran_s=None)

    _, line = plain(job_text.history([row], NOW)).splitlines()
    assert "?" not in line
