"""The process of a Slurm pilot's batch step: keep an agent running, and leave nothing behind.

Started by the batch script that `slurm.py` submits. SIGUSR1 (some time before the limit, or when
the pilot is idle) makes the agent drain; when it has left, the pilot ends. All processes of the
pilot stay below this one, also where Slurm does not track them by cgroups.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Sequence

from grn.errors import GrnError, MachineError
from grn.model.text import harmless
from grn.proc import processes, spawn, terminate
from grn.proc.spawn import own_module, service_environment
from grn.proc.tree import Escalation, Process
from grn.queue.local.channel import read_some
from grn.queue.local.termination import listen_for_signals
from grn.queue.sites.agent.node_environment import ALLOCATION
from grn.queue.sites.agent.process import LEFT
from grn.queue.sites.pilots.slurm_jobs import folder_of

GRACE_S = 20.0  # below the 30 s that Slurm waits before it kills
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 15.0
SHORT_LIFE_S, MAX_SHORT_LIVES = 10.0, 5
LOG_TAIL = 4096


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent of a queue until it leaves, the allocation ends or it cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m grn.queue.sites.pilots.pilot")
    parser.add_argument("--queue", required=True, help="the identity of the queue at home")
    parser.add_argument("--idle-s", type=float, required=True, help="leave when so long idle")
    arguments = parser.parse_args(argv)
    wake = listen_for_signals()
    try:
        job = os.environ["SLURM_JOB_ID"]
        folder, lock = take_folder(folder_of(os.getuid(), arguments.queue, job))
    except (GrnError, KeyError) as error:
        text = error.message if isinstance(error, GrnError) else "this is not a job of Slurm."
        return _complain(text)
    sweep(os.getuid())
    pilot = PilotSupervisor(arguments.queue, arguments.idle_s, folder, wake)
    try:
        return pilot.run()
    finally:
        pilot.end_all()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def take_folder(folder: str) -> tuple[str, int]:
    """Make a folder that no other user can use, and lock it while this process lives."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise MachineError(f"{folder} belongs to somebody else.")
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise MachineError(f"{folder} cannot be used: {error.strerror}.") from error
    return folder, lock


def sweep(user: int) -> None:
    """Remove the folders of pilots that were killed on this node."""
    for entry in os.scandir("/tmp"):
        if re.fullmatch(rf"grn-{user}-[0-9a-f]{{8}}-\d+", entry.name):
            with contextlib.suppress(OSError):  # another user's, or one that still lives
                fd = os.open(os.path.join(entry.path, "lock"), os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(fd)


class PilotSupervisor:
    """The agent, started again whenever it dies."""

    def __init__(self, queue_id: str, idle_s: float, folder: str, wake: int) -> None:
        self._queue_id = queue_id
        self._idle_s = idle_s
        self._folder = folder
        # A controller that lost its state, or a requeue, gives out a number again.
        self._allocation = f"{os.environ['SLURM_JOB_ID']}.{time.time_ns():x}"
        self._wake = wake  # gets a byte for each signal
        self._is_draining = False
        self._is_ending = False
        self._agent = 0  # its pid, 0 when none runs
        self._status = 0  # of the last agent

    def run(self) -> int:
        """Return the exit status of the pilot."""
        pause_s, short_lives = FIRST_PAUSE_S, 0
        while not self._is_ending:
            began = time.monotonic()
            self._start_agent()
            while self._agent and not self._is_ending:
                self._wait(None)
            if self._status == LEFT or self._is_ending:
                break
            is_short = time.monotonic() - began < SHORT_LIFE_S
            pause_s = min(2 * pause_s, MAX_PAUSE_S) if is_short else FIRST_PAUSE_S
            short_lives = short_lives + 1 if is_short else 0
            if short_lives >= MAX_SHORT_LIVES:
                return _complain(self._last_words())
            self._wait(pause_s)
        return 0

    def _start_agent(self) -> None:
        state = self._state_folder()
        os.makedirs(state, mode=0o700, exist_ok=True)
        log = os.path.join(state, "agent.log")
        environment = {
            **service_environment("agent"),
            "GRN_RUNTIME_DIR": os.path.join(self._folder, "run"),
            "GRN_STATE_DIR": state,
            ALLOCATION: self._allocation,
        }
        argv = [
            *own_module("grn.queue.sites.agent.process"), "--queue", self._queue_id, "--log", log,
            "--idle-s", str(self._idle_s), "--bound-to", str(os.getpid()),
            *(["--draining"] if self._is_draining else []),
        ]  # fmt: skip
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = spawn.child(
                argv, stdin=spawn.NO_INPUT, stdout=fd, stderr=fd, env=environment,
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(fd)
        self._agent = process.pid
        process.returncode = 0  # reaped here, with all orphans

    def _state_folder(self) -> str:
        """Return a folder on the disk that the cluster gives to the job, if there is one."""
        given = os.environ.get("SLURM_TMPDIR", "")
        return os.path.join(given if os.path.isdir(given) else self._folder, "state")

    def _wait(self, limit_s: float | None) -> None:
        """Wait for a signal, and handle it."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.poll(None if limit_s is None else int(limit_s * 1000))
        signals = read_some(self._wake) or b""
        self._reap()
        if signal.SIGTERM in signals:
            self._is_ending = True
        elif signal.SIGUSR1 in signals:
            self._is_draining = True
            if self._agent:
                terminate.signal_child(self._agent, signal.SIGUSR1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._agent:
                self._agent, self._status = 0, os.waitstatus_to_exitcode(status)

    def end_all(self) -> None:
        """End every process of the pilot."""

        def left() -> list[Process]:
            self._reap()
            return processes.all_below(os.getpid())

        terminate.end(left, Escalation(GRACE_S, again_s=0.2, give_up_s=GRACE_S + 5), look_s=0.05)

    def _last_words(self) -> str:
        try:
            with open(os.path.join(self._state_folder(), "agent.log"), "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - LOG_TAIL))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return str(error)
        said = [line for line in lines if line.strip()]
        return said[-1] if said else f"the agent ended with status {self._status}"


def _complain(text: str) -> int:
    """Leave the reason of a failure with Slurm, where the adapter at home reads it."""
    said = harmless(text)
    print(f"grn: {said}", file=sys.stderr)
    job = os.environ.get("SLURM_JOB_ID", "")
    with contextlib.suppress(OSError):
        spawn.child(["scontrol", "update", f"JobId={job}", f"Comment={said}"]).wait()
    return 1


if __name__ == "__main__":
    sys.exit(main())
