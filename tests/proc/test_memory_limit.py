"""Limits of host memory: which way works, on made-up control groups and with a false systemd.

That the kernel ends a job at its limit is the kernel's own; `tests/stories/test_kernel_kills.py`
has real kills.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from grn.proc.memory_limit import JobLimit, MemoryLimit, find, prepare

# Prints the limit that it is given, as the probe does inside a real scope.
SYSTEMD_RUN = """#!/bin/sh
echo "$@" >> {seen}
for word; do case $word in MemoryMax=*) echo "${{word#MemoryMax=}}"; esac; done
"""


class Machine:
    """The files that show the control groups of a machine."""

    def __init__(self, folder: Path) -> None:
        self.root, self.own = folder / "groups", folder / "own"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.seen = folder / "seen"
        self.queue = self.root / "work/queue"

    def has_version_2(self, controllers: str = "cpu memory", enabled: str = "") -> None:
        self.queue.mkdir(parents=True)
        (self.root / "cgroup.controllers").write_text("cpu memory")
        (self.queue / "cgroup.controllers").write_text(controllers)
        (self.queue / "cgroup.subtree_control").write_text(enabled)
        (self.queue / "cgroup.procs").write_text(f"{os.getpid()}\n")
        self.own.write_text("0::/work/queue\n")

    def has_systemd(self, text: str = SYSTEMD_RUN) -> None:
        program = self.bin / "systemd-run"
        program.write_text(text.format(seen=self.seen))
        program.chmod(0o755)
        (self.bin / "bus").touch()

    def find(self) -> MemoryLimit:
        variables = {"PATH": str(self.bin), "XDG_RUNTIME_DIR": str(self.bin)}
        return find(variables, str(self.root), str(self.own))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_with_version_1_nothing_is_limited_and_said_why(machine: Machine) -> None:
    machine.root.mkdir()
    machine.own.write_text("4:memory:/work\n0::/\n")
    way = machine.find()

    assert way.why_not == "control groups are of version 1 here; it takes version 2"
    assert JobLimit(way, 1 << 30, "a").enter(["true"]) == ["true"]
    assert not JobLimit(way, 1 << 30, "a").was_hit()


def test_in_a_container_without_delegation_nothing_is_limited_and_said_why(
    machine: Machine,
) -> None:
    machine.has_version_2()
    assert machine.find().why_not == (
        "this control group has no memory controller of its own, and there is no systemd"
    )


def test_a_group_with_the_memory_controller_gets_one_below_for_each_job(machine: Machine) -> None:
    machine.has_version_2(enabled="memory")
    way = machine.find()
    limit = JobLimit(way, 1 << 30, "q.7.1")
    argv = limit.enter(["/bin/sh", "-c", "echo ran $0", "x y"])
    group = machine.queue / "grn-job-q.7.1"

    assert way.describe() == f"by groups in {machine.queue}"
    assert (group / "memory.max").read_text() == str(1 << 30)
    assert (group / "memory.swap.max").read_text() == "0"
    assert subprocess.check_output(argv, text=True) == "ran x y\n"
    assert (group / "cgroup.procs").read_text() == "0\n"  # the kernel takes that for the writer


def test_a_limit_was_hit_where_the_kernel_counts_a_kill_in_the_group(machine: Machine) -> None:
    machine.has_version_2(enabled="memory")
    limit = JobLimit(machine.find(), 1 << 30, "q.7.1")
    limit.enter(["true"])
    events = machine.queue / "grn-job-q.7.1/memory.events"

    assert not limit.was_hit()
    events.write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\n")
    assert not limit.was_hit()
    events.write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\n")
    assert limit.was_hit()


def test_empty_groups_are_removed_by_the_next_queue_and_those_in_use_stay(
    machine: Machine,
) -> None:
    machine.has_version_2(enabled="memory")
    for name in ("grn-job-a", "grn-job-b", "else"):
        (machine.queue / name).mkdir()
    (machine.queue / "grn-job-b" / "child").mkdir()  # rmdir fails as for one with processes
    machine.find().sweep()

    assert {one.name for one in machine.queue.iterdir() if one.is_dir()} == {"grn-job-b", "else"}


def test_the_queue_leaves_its_group_so_that_jobs_can_have_groups_there(machine: Machine) -> None:
    machine.has_version_2()
    prepare(str(machine.root), str(machine.own))

    assert (machine.queue / "grn-queue/cgroup.procs").read_text() == str(os.getpid())
    assert (machine.queue / "cgroup.subtree_control").read_text() == "+memory"


@pytest.mark.parametrize("case", ["others", "no controller", "done", "leaf"])
def test_processes_of_others_are_left_where_they_are(machine: Machine, case: str) -> None:
    machine.has_version_2("cpu" if case == "no controller" else "memory",
                          "memory" if case == "done" else "")  # fmt: skip
    if case == "others":
        (machine.queue / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")
    if case == "leaf":
        machine.queue.rename(machine.queue.parent / "grn-queue")
        machine.own.write_text("0::/work/grn-queue\n")
    prepare(str(machine.root), str(machine.own))

    assert not list(machine.root.rglob("grn-queue/grn-queue"))
    assert not (machine.queue / "grn-queue").exists()


def test_systemd_gives_each_job_a_scope_that_was_tried_first(machine: Machine) -> None:
    machine.has_version_2()
    machine.has_systemd()
    way = machine.find()
    argv = JobLimit(way, 1 << 30, "q.7.1").enter(["python", "x.py"])

    assert way.describe() == "by scopes of systemd"
    assert "MemoryMax=67108864" in machine.seen.read_text()
    user = [] if os.getuid() == 0 else ["--user"]
    assert argv == [
        str(machine.bin / "systemd-run"), *user, "--scope", "--quiet", "--collect",
        "--unit=grn-job-q.7.1.scope", "-p", "MemoryMax=1073741824", "-p", "MemorySwapMax=0",
        "--", "python", "x.py",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho max\n", "no program"])
def test_a_systemd_that_does_not_limit_is_not_used(machine: Machine, text: str) -> None:
    machine.has_version_2()
    machine.has_systemd(text)
    way = machine.find()

    assert way.why_not.endswith("and systemd gives this user no scopes with a limit")
    assert JobLimit(way, 1 << 30, "a").enter(["true"]) == ["true"]
