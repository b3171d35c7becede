"""Which leases a process works for: by descent, by earlier answers, by its environment."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.gpus.attribution import Attribution
from grn.gpus.probe import Placement
from grn.model.job import Holder
from grn.proc import processes
from grn.proc.identity import holder_of, tag_of
from grn.proc.tree import Process
from tests.harness import wait_for

ME = os.getpid()
BEYOND = 1 << 23  # above any pid, so that no real process is looked at


def a_process(pid: int, parent: int = 1, ticks: int = 0) -> Process:
    return Process(BEYOND + pid, BEYOND + parent if parent > 1 else parent, started_ticks=ticks)


def a_table(*processes: Process) -> dict[int, Process]:
    return {process.pid: process for process in processes}


def held_by(pid: int | None, lease: str = "L", ticks: int = 0) -> Placement:
    holder = Holder(BEYOND + pid, ticks) if pid is not None else None
    return Placement(lease, holder, ("GPU-0",))


def members(found: dict[int, tuple[str, ...]]) -> dict[int, tuple[str, ...]]:
    return {pid - BEYOND: leases for pid, leases in found.items()}


# --- who works for which lease -------------------------------------------------------------


def test_all_that_descend_from_a_holder_work_for_its_lease() -> None:
    table = a_table(
        a_process(10), a_process(11, 10), a_process(12, 11), a_process(20), a_process(21, 20)
    )

    found = Attribution(tag_of).members(table, [held_by(10)])

    assert members(found) == {10: ("L",), 11: ("L",), 12: ("L",)}


def test_the_nearest_holder_counts() -> None:
    table = a_table(a_process(10), a_process(11, 10), a_process(12, 11), a_process(13, 10))

    found = Attribution(tag_of).members(table, [held_by(10, "outer"), held_by(11, "inner")])

    assert members(found) == {10: ("outer",), 11: ("inner",), 12: ("inner",), 13: ("outer",)}


def test_a_process_that_holds_two_leases_works_for_both() -> None:
    table = a_table(a_process(10), a_process(11, 10))

    found = Attribution(tag_of).members(table, [held_by(10, "A"), held_by(10, "B")])

    assert members(found) == {10: ("A", "B"), 11: ("A", "B")}


@pytest.mark.parametrize("placement", [held_by(None), held_by(10, ticks=99), held_by(77)])
def test_without_a_living_holder_nobody_works_for_a_lease(placement: Placement) -> None:
    """Nobody holds it, a later process has the holder's pid, or the holder is gone."""
    assert Attribution(tag_of).members(a_table(a_process(10), a_process(11, 10)), [placement]) == {}


def test_an_orphan_is_remembered_by_what_it_worked_for() -> None:
    known = Attribution(tag_of)
    known.members(a_table(a_process(10), a_process(11, 10), a_process(12, 11)), [held_by(10)])

    orphaned = a_table(a_process(11, 1), a_process(12, 11), a_process(20, 1))
    for _ in range(3):
        assert members(known.members(orphaned, [held_by(10)])) == {11: ("L",), 12: ("L",)}


def test_an_orphans_own_children_work_for_the_lease_too() -> None:
    known = Attribution(tag_of)
    known.members(a_table(a_process(10), a_process(11, 10)), [held_by(10)])

    found = known.members(a_table(a_process(11, 1), a_process(30, 11)), [held_by(10)])

    assert members(found) == {11: ("L",), 30: ("L",)}


def test_an_orphan_is_forgotten_with_its_lease() -> None:
    known = Attribution(tag_of)
    known.members(a_table(a_process(10), a_process(11, 10)), [held_by(10)])
    orphaned = a_table(a_process(11, 1))

    assert known.members(orphaned, [held_by(50, "other")]) == {}
    assert known.members(orphaned, [held_by(10)]) == {}


def test_a_later_process_under_an_orphans_pid_is_nobodys() -> None:
    known = Attribution(tag_of)
    known.members(a_table(a_process(10), a_process(11, 10, ticks=1)), [held_by(10)])

    assert known.members(a_table(a_process(11, 1, ticks=2)), [held_by(10)]) == {}


def test_processes_that_are_each_others_parents_end_no_look() -> None:
    """A list read while processes come and go can contradict itself."""
    table = a_table(a_process(10, 11), a_process(11, 10), a_process(12, 12))

    assert Attribution(tag_of).members(table, [held_by(50)]) == {}


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.sets(st.integers(2, 31)))
def test_any_tree_is_walked_to_the_nearest_holder(parents: list[int], holders: set[int]) -> None:
    table = a_table(*(a_process(pid, parent) for pid, parent in enumerate(parents, 2)))
    present = [pid for pid in holders if BEYOND + pid in table]

    found = Attribution(tag_of).members(table, [held_by(pid, f"L{pid}") for pid in present])

    for pid in range(2, len(parents) + 2):
        walked: list[int] = []
        at = pid
        while at not in present and at not in walked and BEYOND + at in table:
            walked.append(at)
            at = table[BEYOND + at].parent - BEYOND
        expected = (f"L{at}",) if at in present else ()
        assert found.get(BEYOND + pid, ()) == expected


# --- the tag -------------------------------------------------------------------------------


def tagged(lease: str, uid: int | None = None) -> subprocess.Popen[bytes]:
    """Start a process with a lease in its environment, perhaps as another user."""
    environment = {**os.environ, "GRN_LEASE": lease}
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environment, user=uid)
    shown = Path(f"/proc/{process.pid}/environ")
    wait_for(lambda: b"GRN_LEASE" in shown.read_bytes(), "the kernel to show its environment")
    return process


def test_a_process_that_left_its_tree_is_known_by_its_environment() -> None:
    process = tagged("feedbeef")
    try:
        real = processes.living(process.pid)
        assert real is not None
        table = {real.pid: Process(real.pid, started_ticks=real.started_ticks)}
        own = Placement("feedbeef", None, ("GPU-0",), os.getuid())
        other = Placement("0badf00d", None, ("GPU-0",), os.getuid())

        assert Attribution(tag_of).members(table, [own]) == {real.pid: ("feedbeef",)}
        assert Attribution(tag_of).members(table, [other]) == {}
        assert Attribution(tag_of).members(table, []) == {}
    finally:
        process.communicate()


def test_another_user_cannot_make_its_memory_count_for_somebody_elses_lease() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be another user: run the tests as root for this one")
    process = tagged("feedbeef", uid=54321)
    try:
        real = processes.living(process.pid)
        assert real is not None
        table = {real.pid: Process(real.pid, started_ticks=real.started_ticks)}

        def found(user: int) -> dict[int, tuple[str, ...]]:
            return Attribution(tag_of).members(
                table, [Placement("feedbeef", None, ("GPU-0",), user)]
            )

        assert found(user=54321) == {real.pid: ("feedbeef",)}
        assert found(user=1000) == {}
    finally:
        process.communicate()


def test_a_daemon_inside_a_job_and_what_it_runs_are_not_the_jobs() -> None:
    """Its environment is read from a real process; the holder above it is this one."""
    environment = {**os.environ, "GRN_SERVICE": "queue"}
    shell = ["/bin/sh", "-c", "sleep 600 & wait"]
    daemon = subprocess.Popen(shell, stdin=subprocess.PIPE, env=environment)
    try:
        wait_for(lambda: processes.listed_children(daemon.pid), "its child")
        (child,) = processes.listed_children(daemon.pid) or ()
        me = holder_of(ME)
        found = Attribution(tag_of).members(
            {one.pid: one for one in processes.everyone()}, [Placement("L", me, ("GPU-0",))]
        )
        assert found[ME] == ("L",)
        assert daemon.pid not in found
        assert child not in found
    finally:
        for pid in (*(processes.listed_children(daemon.pid) or ()), daemon.pid):
            os.kill(pid, signal.SIGKILL)
        daemon.communicate()
