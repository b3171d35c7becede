"""Processes as the kernel lists them: who works for which lease, and who is told apart."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.gpus import trees
from grn.gpus.probe import Placement
from grn.gpus.trees import TreeProcess, Trees
from grn.model.job import Holder
from grn.proc import processes
from tests.harness import wait_for

ME = os.getpid()
BEYOND = 1 << 23  # above any pid, so that no real process is looked at


@pytest.fixture
def cat() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that lives as long as the test."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def a_process(pid: int, parent: int = 1, ticks: int = 0) -> TreeProcess:
    return TreeProcess(BEYOND + pid, BEYOND + parent if parent > 1 else parent, 0, ticks, 0, 0)


def a_table(*processes: TreeProcess) -> dict[int, TreeProcess]:
    return {process.pid: process for process in processes}


def held_by(pid: int | None, lease: str = "L", ticks: int = 0) -> Placement:
    holder = Holder(BEYOND + pid, ticks) if pid is not None else None
    return Placement(lease, holder, ("GPU-0",))


def members(found: dict[int, tuple[str, ...]]) -> dict[int, tuple[str, ...]]:
    return {pid - BEYOND: leases for pid, leases in found.items()}


# --- one process ---------------------------------------------------------------------------


def test_a_process_is_read_as_it_is(cat: subprocess.Popen[bytes]) -> None:
    def read() -> TreeProcess | None:
        """Read it once it has memory, which the kernel counts a little late."""
        process = trees.read_process(cat.pid)
        return process if process and process.resident_bytes else None

    found = wait_for(read, "a process with memory")

    assert found is not None
    assert (found.pid, found.parent) == (cat.pid, ME)
    assert found == trees.read_process(cat.pid) or found.cpu_ticks >= 0


def test_a_name_full_of_brackets_hides_nothing(tmp_path: Path) -> None:
    """The kernel puts the name into the line unescaped."""
    program = shutil.copy(shutil.which("cat") or "/bin/cat", tmp_path / "a) R 1 (b\n) 7")
    process = subprocess.Popen([program], stdin=subprocess.PIPE)
    try:
        found = trees.read_process(process.pid)
        assert found is not None
        assert found.parent == ME
    finally:
        process.communicate()


def test_a_process_that_has_ended_is_gone_even_before_its_parent_looks() -> None:
    process = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(process.pid)
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()  # its exit status still is there
        assert trees.read_process(process.pid) is None
        assert trees.holder_of(process.pid) is None
    finally:
        os.close(pidfd)
        process.wait()
    assert trees.read_process(process.pid) is None
    assert trees.inner_pids(process.pid) == [process.pid]


def test_all_processes_are_listed(cat: subprocess.Popen[bytes]) -> None:
    found = trees.read_all()

    assert {ME, cat.pid} <= found.keys()
    assert all(pid == process.pid for pid, process in found.items())


def test_a_process_under_a_used_pid_is_another(cat: subprocess.Popen[bytes]) -> None:
    holder = trees.holder_of(cat.pid)
    assert holder is not None

    assert trees.is_alive(holder)
    assert not trees.is_alive(Holder(holder.pid, holder.started_ticks - 1))
    cat.communicate()
    assert not trees.is_alive(holder)


def test_the_peak_is_remembered_when_the_memory_is_gone() -> None:
    code = "x = bytearray(64 << 20); del x; print(flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()

    memories, holder = trees.Memories(), trees.holder_of(process.pid)
    assert holder is not None
    found = memories.resident_and_peak_bytes(holder)
    process.communicate(b"\n")

    assert found is not None
    now, peak = found
    assert peak >= 64 << 20 > now
    assert memories.resident_and_peak_bytes(holder) is None  # it is gone
    memories.close()


def test_outside_a_container_a_process_has_one_number() -> None:
    assert trees.inner_pids(ME)[0] == ME


def test_a_child_is_found_by_its_pid_and_a_stranger_is_not(cat: subprocess.Popen[bytes]) -> None:
    assert trees.child_of(ME, cat.pid) == trees.holder_of(cat.pid)
    assert trees.child_of(cat.pid, ME) is None
    assert trees.child_of(ME, 1) is None
    assert trees.child_of(BEYOND, cat.pid) is None


# --- ending exactly these ------------------------------------------------------------------


def test_only_the_process_that_is_meant_is_killed(cat: subprocess.Popen[bytes]) -> None:
    victim = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    meant, bystander = trees.holder_of(victim.pid), trees.holder_of(cat.pid)
    assert meant is not None
    assert bystander is not None
    reused = Holder(bystander.pid, bystander.started_ticks - 1)

    trees.end_processes([Holder(BEYOND, 0), reused, meant])

    assert victim.wait(60) == -signal.SIGKILL
    assert victim.stdin is not None
    victim.stdin.close()
    assert cat.poll() is None


def test_ending_what_has_ended_does_no_harm() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    holder = trees.holder_of(process.pid)
    assert holder is not None
    process.communicate()
    before = len(os.listdir("/proc/self/fd"))

    trees.end_processes([holder, holder])

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_of_another_user_is_left_alone_and_the_rest_is_ended() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be another user: run the tests as root for this one")
    code = """
import os, signal, subprocess
from grn.proc import processes
from grn.gpus import trees
other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # root's
os.setresuid(54321, 54321, 54321)
own = os.fork()
if own == 0:
    signal.pause()
trees.end_processes([trees.holder_of(other.pid), trees.holder_of(own)])
print(os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]), other.poll())
os._exit(0)
"""
    source = Path(trees.__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout == "-9 None\n", done.stderr


# --- who works for which lease -------------------------------------------------------------


def test_all_that_descend_from_a_holder_work_for_its_lease() -> None:
    table = a_table(
        a_process(10), a_process(11, 10), a_process(12, 11), a_process(20), a_process(21, 20)
    )

    found = Trees().members(table, [held_by(10)])

    assert members(found) == {10: ("L",), 11: ("L",), 12: ("L",)}


def test_the_nearest_holder_counts() -> None:
    table = a_table(a_process(10), a_process(11, 10), a_process(12, 11), a_process(13, 10))

    found = Trees().members(table, [held_by(10, "outer"), held_by(11, "inner")])

    assert members(found) == {10: ("outer",), 11: ("inner",), 12: ("inner",), 13: ("outer",)}


def test_a_process_that_holds_two_leases_works_for_both() -> None:
    table = a_table(a_process(10), a_process(11, 10))

    found = Trees().members(table, [held_by(10, "A"), held_by(10, "B")])

    assert members(found) == {10: ("A", "B"), 11: ("A", "B")}


@pytest.mark.parametrize("placement", [held_by(None), held_by(10, ticks=99), held_by(77)])
def test_without_a_living_holder_nobody_works_for_a_lease(placement: Placement) -> None:
    """Nobody holds it, a later process has the holder's pid, or the holder is gone."""
    assert Trees().members(a_table(a_process(10), a_process(11, 10)), [placement]) == {}


def test_an_orphan_is_remembered_by_what_it_worked_for() -> None:
    known = Trees()
    known.members(a_table(a_process(10), a_process(11, 10), a_process(12, 11)), [held_by(10)])

    orphaned = a_table(a_process(11, 1), a_process(12, 11), a_process(20, 1))
    for _ in range(3):
        assert members(known.members(orphaned, [held_by(10)])) == {11: ("L",), 12: ("L",)}


def test_an_orphans_own_children_work_for_the_lease_too() -> None:
    known = Trees()
    known.members(a_table(a_process(10), a_process(11, 10)), [held_by(10)])

    found = known.members(a_table(a_process(11, 1), a_process(30, 11)), [held_by(10)])

    assert members(found) == {11: ("L",), 30: ("L",)}


def test_an_orphan_is_forgotten_with_its_lease() -> None:
    known = Trees()
    known.members(a_table(a_process(10), a_process(11, 10)), [held_by(10)])
    orphaned = a_table(a_process(11, 1))

    assert known.members(orphaned, [held_by(50, "other")]) == {}
    assert known.members(orphaned, [held_by(10)]) == {}


def test_a_later_process_under_an_orphans_pid_is_nobodys() -> None:
    known = Trees()
    known.members(a_table(a_process(10), a_process(11, 10, ticks=1)), [held_by(10)])

    assert known.members(a_table(a_process(11, 1, ticks=2)), [held_by(10)]) == {}


def test_processes_that_are_each_others_parents_end_no_look() -> None:
    """A list read while processes come and go can contradict itself."""
    table = a_table(a_process(10, 11), a_process(11, 10), a_process(12, 12))

    assert Trees().members(table, [held_by(50)]) == {}


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.sets(st.integers(2, 31)))
def test_any_tree_is_walked_to_the_nearest_holder(parents: list[int], holders: set[int]) -> None:
    table = a_table(*(a_process(pid, parent) for pid, parent in enumerate(parents, 2)))
    present = [pid for pid in holders if BEYOND + pid in table]

    found = Trees().members(table, [held_by(pid, f"L{pid}") for pid in present])

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
        real = trees.read_process(process.pid)
        assert real is not None
        table = {real.pid: TreeProcess(real.pid, 1, 0, real.started_ticks, 0, 0)}
        own = Placement("feedbeef", None, ("GPU-0",), os.getuid())
        other = Placement("0badf00d", None, ("GPU-0",), os.getuid())

        assert Trees().members(table, [own]) == {real.pid: ("feedbeef",)}
        assert Trees().members(table, [other]) == {}
        assert Trees().members(table, []) == {}
    finally:
        process.communicate()


def test_another_user_cannot_make_its_memory_count_for_somebody_elses_lease() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be another user: run the tests as root for this one")
    process = tagged("feedbeef", uid=54321)
    try:
        real = trees.read_process(process.pid)
        assert real is not None
        table = {real.pid: TreeProcess(real.pid, 1, 0, real.started_ticks, 0, 0)}

        def found(user: int) -> dict[int, tuple[str, ...]]:
            return Trees().members(table, [Placement("feedbeef", None, ("GPU-0",), user)])

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
        me = trees.holder_of(ME)
        found = Trees().members(trees.read_all(), [Placement("L", me, ("GPU-0",))])
        assert found[ME] == ("L",)
        assert daemon.pid not in found
        assert child not in found
    finally:
        for pid in (*(processes.listed_children(daemon.pid) or ()), daemon.pid):
            os.kill(pid, signal.SIGKILL)
        daemon.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_process_of_another_user_is_reported_as_not_ended() -> None:
    with subprocess.Popen(["sleep", "600"]) as target:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setuid(65534)
                holder = trees.holder_of(target.pid)
                refused = trees.end_processes([holder] if holder else [])
                os.write(writer, b"refused" if refused == [holder] else b"ended")
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as said:
            assert said.read() == "refused"
        os.waitpid(pid, 0)
        assert target.poll() is None
        target.kill()
