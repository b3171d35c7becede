"""Forced reuse of pids, inside a pid namespace. Run as `python -m tests.queue_faults.reuse WHAT`.

A stranger gets the number of a shim or of a job's process that is gone; it notes every signal it
gets. What went wrong is printed, one line each.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from grn.queue.local import attempt_files as attempts
from tests.harness import Story, is_running, wait_for
from tests.queue_faults.rig import PATIENCE_S, Rig, command_line, gone, kill, pause

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
JOBS = 8
# A job whose child is gone and buried at once when it dies; says when it was asked to end.
PARENT = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
def asked(*_):
    open(sys.argv[2], "w").close()
signal.signal(signal.SIGTERM, asked)
with open(sys.argv[1], "w") as file:
    file.write(str(child.pid))
child.wait()
open(sys.argv[1] + ".buried", "w").close()
while True:
    signal.pause()
"""


class Stranger:
    """A process that has nothing to do with any job and wants to be left alone."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._notes = folder / f"stranger-{pid}"
        self.pid = wait_for(lambda: self._be_born(pid), f"{pid} to be free", 20.0)
        wait_for(lambda: _text(self._notes), "a stranger to be born")

    def _be_born(self, pid: int) -> int:
        """Try to be born with a number; 0 when it is still in use."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # we are the first process here and bury all orphans
        LAST_PID.write_text(str(pid - 1))
        born = os.fork()
        if born == pid:
            return pid
        if born:
            os.kill(born, signal.SIGKILL)
            os.waitpid(born, 0)
            self._notes.unlink(missing_ok=True)
            return 0
        for signum in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, self._note)
        self._note("born", None)
        while True:
            signal.pause()

    def _note(self, signum: object, _frame: object) -> None:
        with self._notes.open("a") as file:
            file.write(f"{signum} ")

    def complaint(self) -> list[str]:
        """Return what was done to it; it is gone afterwards."""
        noted = self._notes.read_text().split()[1:]
        alive = is_running(self.pid)
        if alive:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        signals = [f"a stranger at {self.pid} got the signals {noted}"] if noted else []
        return signals if alive else [*signals, f"a stranger at {self.pid} was killed"]


def shims(rig: Rig) -> list[str]:
    """Give the numbers of killed shims to strangers, restart the queue, and cancel the jobs."""
    return _after_restart(rig, with_lock=False)


def shims_with_lock(rig: Rig) -> list[str]:
    """The same, while the locks seem to be held for a moment longer."""
    return _after_restart(rig, with_lock=True)


def _after_restart(rig: Rig, *, with_lock: bool) -> list[str]:
    rig.start()
    jobs = [rig.submit(["sleep", "1000"]) for _ in range(JOBS)]
    for job in jobs:
        rig.running(job)
    numbers = [rig.shim_of(job) for job in jobs]
    assert rig.queue is not None
    rig.queue.kill()
    gone(kill(numbers))
    gone(kill(rig.services()["forker"]))
    pause(0.03)  # the time of a start is known to 10 ms only
    strangers = [Stranger(number, rig.story.folder) for number in numbers]
    locks = (
        [_hold(Path(attempts.record_of(str(rig.folder(job))))) for job in jobs] if with_lock else []
    )
    daemon = rig.spawn()
    if locks:
        assert daemon.is_running
        pause(0.7)  # it looks at them again and again, and believes them no more than at first
        for lock in locks:
            os.close(lock)
    assert daemon.line() == "ready"
    rig.ask("cancel", jobs=jobs)
    try:
        reasons = {rig.ended(job, 5.0 if rig.mutant else PATIENCE_S)["reason"] for job in jobs}
    except AssertionError as error:
        reasons = {str(error)}
    wrong = [f"jobs ended as {reasons}"] if reasons - {"lost", "cancelled"} else []
    return wrong + [one for stranger in strangers for one in stranger.complaint()]


def _hold(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def children(rig: Rig) -> list[str]:
    """Give the number of a job's child to a stranger just before the shim signals it."""
    rig.start()
    child, asked = (rig.story.folder / name for name in ("child", "asked"))
    job = rig.submit([sys.executable, "-c", PARENT, str(child), str(asked)])
    number = int(wait_for(lambda: _text(child), "the child"))
    tracer = _slow_down(rig.shim_of(job))
    rig.ask("cancel", jobs=[job])
    wait_for(asked.exists, "the job to be asked")
    gone(kill([number]))
    wait_for(Path(f"{child}.buried").exists, "the burial")
    stranger = Stranger(number, rig.story.folder)
    rig.ended(job)
    tracer.send_signal(signal.SIGINT)
    tracer.wait()
    return stranger.complaint()


def _slow_down(pid: int) -> subprocess.Popen[bytes]:
    """Let a moment pass before each signal that a process sends."""
    calls = "kill,pidfd_send_signal"
    argv = ["strace", "-p", str(pid), "-o", "/dev/null", "-e", f"trace={calls}"]
    tracer = subprocess.Popen([*argv, "-e", f"inject={calls}:delay_enter=400000"])
    status = Path(f"/proc/{pid}/status")
    wait_for(lambda: "TracerPid:\t0\n" not in status.read_text(), "strace to attach")
    return tracer


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


WHAT: dict[str, Callable[[Rig], list[str]]] = {
    "shims": shims,
    "shims-with-lock": shims_with_lock,
    "children": children,
}


def main(what: str, mutant: str = "") -> None:
    """Run one of them in this namespace and print what went wrong."""
    assert command_line(1), "not in a pid namespace of our own"
    story = Story.begin()
    rig = Rig(story, mutant)
    for name in ("GRN_RUNTIME_DIR", "GRN_STATE_DIR", "GRN_CONFIG"):
        os.environ[name] = story.env[name]
    try:
        for line in WHAT[what](rig):
            print(line)
        print("done")
    finally:
        rig.close()
        story.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
