"""A real negotiator in folders of its own, and real jobs beside it: what stories are told with.

Knows processes, files and deadlines. Jobs wait at gates and say lines, so that a story goes on when
something has happened and never because time has passed.
"""

from __future__ import annotations

import fcntl
import functools
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

import grn
from grn.client import negotiator, queue
from grn.client.leasing.lease import IDLE
from grn.client.negotiator import ask_once
from grn.errors import DaemonError, GrnError
from tests import warm
from tests.gpus.standin.build import FAKE_TORCH

Found = TypeVar("Found")
DEADLINE_S = 100.0  # nobody waits so long but on a machine that has much else to do
PATIENCE_S = 60.0  # the same for a daemon to get ready
FIRST_PAUSE_S, MAX_PAUSE_S = 0.003, 0.05  # most waits are short, and looking costs both sides
SOURCES = Path(grn.__file__).resolve().parents[1]
STAGE = Path(__file__).resolve().parent / "stories" / "stage"
ROOT = Path(__file__).resolve().parents[1]
PYTHON_PATH = os.pathsep.join((str(SOURCES), str(STAGE), str(ROOT)))
TWO_SMALL = "virtual:2x512MiB"
GRN = (sys.executable, "-c", "from grn.cli.main import main; main()")
NEGOTIATOR = (sys.executable, "-m", "grn.negotiator")
# Variables of a user's shell that no test may see. Without bytecode each start of a daemon compiles
# grn, which takes four times as long as the start itself.
FOREIGN = (
    *("GRN_", "XDG_", "CUDA_", "TF_FORCE", "XLA_PYTHON"),
    *("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"),
)


def wait_for(
    condition: Callable[[], Found],
    what: str | Callable[[], object] = "",
    deadline_s: float = DEADLINE_S,
) -> Found:
    """Return what a condition gives once it is true; fail when the deadline has passed."""
    pause, pause_s = threading.Event(), FIRST_PAUSE_S
    until = time.monotonic() + deadline_s
    while not (found := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"waited in vain for {what() if callable(what) else what}")
        pause.wait(pause_s)
        pause_s = min(1.5 * pause_s, MAX_PAUSE_S)
    return found


def is_running(pid: int) -> bool:
    """True while a process lives; one of which only the exit status is left does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@functools.cache
def unshare(*spaces: str) -> tuple[str, ...]:
    """Return the command that runs another in namespaces of its own; skip where none may."""
    tried = ""
    probe = ("mount", "-t", "tmpfs", "none", "/mnt") if "--mount" in spaces else ("true",)
    for rights in ((), ("--user", "--map-root-user")):
        command = ("unshare", *rights, *spaces)
        try:
            done = subprocess.run([*command, *probe], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no `unshare` here")
        if done.returncode == 0:
            return command
        tried = done.stderr.strip()
    pytest.skip(f"namespaces are not permitted here: {tried}")


def faketime() -> str:
    """Return the path of the library that changes the wall clock of a process; skip without it."""
    found = next(glob.iglob("/usr/lib/*/faketime/libfaketime.so.1"), None)
    if found is None:
        pytest.skip("LIBFAKETIME IS MISSING (on Debian: apt-get install faketime)")
    return found


Process = subprocess.Popen[bytes] | warm.Forked


@functools.cache
def _forker() -> warm.Forker:
    """Start the forker of this process; it belongs to no story, whichever is the first."""
    foreign = (*FOREIGN, "STORY")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return warm.Forker({**env, "PYTHONPATH": PYTHON_PATH})


def start_process(
    command: list[str],
    env: dict[str, str],
    *,
    cwd: Path,
    pass_fds: tuple[int, ...] = (),
    **options: Any,
) -> Process:
    """Start a command; one of grn's own is forked where that makes no difference."""
    words = tuple(command)
    is_daemon = words[:2] == NEGOTIATOR[:2] and words[2] in warm.DAEMONS
    is_quick = is_daemon or (words[:3] == GRN and not warm.COLD & set(words[3:4]))
    is_session = options.get("start_new_session", False)
    if is_quick and options.keys() - {"start_new_session"} == {"stdin", "stdout", "stderr"}:
        forker = _forker()
        read = {**env}
        if words[2] == NEGOTIATOR[2]:  # its helper loads the driver, and only jobs import torch
            read.pop("LD_LIBRARY_PATH", None)
            read["PYTHONPATH"] = env.get("PYTHONPATH", "").removeprefix(f"{FAKE_TORCH}{os.pathsep}")
        streams = [options[name] for name in ("stdin", "stdout", "stderr")]
        files = [one if isinstance(one, int) else one.fileno() for one in streams]
        if forker.fits(read) and min(files) >= 0:  # below zero: subprocess.PIPE and its like
            numbers = [*zip(files, (0, 1, 2), strict=True), *((one, one) for one in pass_fds)]
            return forker.start(command, env, cwd, numbers, is_session)
    return subprocess.Popen(command, env=env, cwd=cwd, pass_fds=pass_fds, **options)


def hang_up() -> None:
    """Close the connection this process keeps for its next lease: it leads to another story."""
    kept = IDLE.take()
    if kept is not None:
        kept.close()


def stop_queue() -> None:
    """End the queue of a story, if it has one."""
    try:
        queue.ask({"op": "stop"}, may_start=False)
    except GrnError:
        return


class Daemon:
    """One run of a daemon, with the pipe it says `ready` on."""

    def __init__(
        self, argv: Sequence[str], env: dict[str, str], log: Path, *, is_session: bool = True
    ) -> None:
        reader, writer = os.pipe()
        with log.open("ab") as file, open(os.devnull, "rb") as nothing:
            self.process = start_process(
                [*argv, "--ready-fd", str(writer)],
                env,
                cwd=Path.cwd(),
                stdin=nothing,
                stdout=file,
                stderr=file,
                pass_fds=(writer,),
                start_new_session=is_session,
            )
        os.close(writer)
        self._said = reader

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def line(self, deadline_s: float = PATIENCE_S) -> str:
        """Wait for what it says when it is ready, or why not; nothing when it died before."""
        text = b""
        until = time.monotonic() + deadline_s
        while self._said >= 0 and not text.endswith(b"\n"):
            ready, _, _ = select.select([self._said], [], [], max(0.0, until - time.monotonic()))
            assert ready, "a service did not get ready in time"
            piece = os.read(self._said, 4096)
            text += piece
            if not piece:
                break
        self._close()
        return text.decode().strip()

    def kill(self) -> None:
        """End it as a lack of memory would, and wait until it is gone."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._close()

    def stop(self) -> int:
        """End it kindly and return its status."""
        self.process.terminate()
        self._close()
        return self.process.wait(DEADLINE_S)

    def _close(self) -> None:
        if self._said >= 0:
            os.close(self._said)
            self._said = -1


@dataclass(frozen=True)
class Ended:
    """A process that has ended and what it said."""

    code: int
    out: str
    err: str


class Job:
    """A process of a story; what it says goes to files, so that it never waits for a reader."""

    def __init__(self, process: Process, out: Path, err: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._out = out
        self._err = err

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def out_bytes(self) -> bytes:
        return self._out.read_bytes()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def kill(self) -> None:
        """End it as the kernel's own killer would, and wait until it is gone."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def wait(self, deadline_s: float = DEADLINE_S) -> Ended:
        """Wait for its end."""
        code = self.process.wait(deadline_s)
        return Ended(code, self.out, self.err)

    def ended_well(self) -> Ended:
        """Wait for its end, which must be a good one."""
        ended = self.wait()
        assert ended.code == 0, f"{self.process.args}: {ended}"
        return ended


class Gate:
    """Holds up all jobs that come to it until it is opened. Shut from the start."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._file = path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        """Let all pass, for ever."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self._file.close()


@dataclass
class Story:
    """One folder under /tmp, short enough for sockets, with all that belongs to one test."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)  # for all processes of the story
    jobs: list[Job] = field(default_factory=list)
    _gates: dict[str, Gate] = field(default_factory=dict)
    _count: int = 0

    @classmethod
    def begin(cls) -> Story:
        folder = Path(tempfile.mkdtemp(prefix="grn-t", dir="/tmp"))
        story = cls(folder)
        story.env = {
            "GRN_RUNTIME_DIR": str(folder / "run"),
            "GRN_STATE_DIR": str(folder / "state"),
            "GRN_CONFIG": str(folder / "config.toml"),
            "GRN_SAMPLE_S": "0.1",
            "GRN_COLD_START": "1",  # commands come from `tests/warm.py`
            "GRN_HOST": "256x1TiB",  # whatever else runs here leaves it room
            "STORY": str(folder),
            "PYTHONPATH": PYTHON_PATH,
        }
        return story

    def environment(self, **more: str | None) -> dict[str, str]:
        """Return the variables of a process in this story; None takes one away."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        both = {**kept, **self.env, **more}
        return {name: value for name, value in both.items() if value is not None}

    def prepend_path(self, folder: str | Path) -> None:
        """Let all Python programs of the story find modules in a folder first."""
        self.env["PYTHONPATH"] = os.pathsep.join((str(folder), self.env["PYTHONPATH"]))

    # --- what jobs do --------------------------------------------------------------------

    def gate(self, name: str) -> Gate:
        """Make a gate for `act.gate(name)`, or return it."""
        if name not in self._gates:
            self._gates[name] = Gate(self.folder / "gates" / name)
        return self._gates[name]

    def said(self) -> list[str]:
        """Return all lines that jobs have said with `act.say`, in order."""
        path = self.folder / "said"
        return path.read_text().splitlines() if path.exists() else []

    def hear(self, *lines: str) -> None:
        """Wait until these lines have been said."""
        wait_for(lambda: set(lines) <= set(self.said()), lambda: f"{lines}; heard {self.said()}")

    # --- starting processes --------------------------------------------------------------

    def start(
        self,
        *command: str | Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        **options: Any,
    ) -> Job:
        """Start a command."""
        self._count += 1
        out, err = (self.folder / f"{self._count}.{end}" for end in ("out", "err"))
        with (
            open(os.devnull, "rb") as nothing,
            out.open("wb") as out_file,
            err.open("wb") as err_file,
        ):
            process = start_process(
                [str(word) for word in command],
                self.environment(**(env or {})),
                cwd=cwd or self.folder,
                **{"stdin": nothing, "stdout": out_file, "stderr": err_file, **options},
            )
        self.jobs.append(Job(process, out, err))
        return self.jobs[-1]

    def write(self, name: str, text: str) -> Path:
        """Write a file of the story, without the indentation of the test."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def start_script(self, text: str, *arguments: str, name: str = "job.py", **options: Any) -> Job:
        """Write a Python script and start it."""
        path = self.write(name, text)
        return self.start(sys.executable, path, *arguments, **options)

    def run_script(self, text: str, *arguments: str, name: str = "job.py", **options: Any) -> Ended:
        """Write a Python script, run it, and return how it ended, which must be well."""
        return self.start_script(text, *arguments, name=name, **options).ended_well()

    def hold(self, name: str, type: str = "job", **options: Any) -> Job:
        """Start a job that says `NAME runs`, holds its lease at the gate of its name, and ends.

        `take` is how many MiB it takes, `fails` whether it raises at the end; all other options
        are those of `grn.job`.
        """
        self.gate(name)
        script = STAGE / "hold.py"
        return self.start(sys.executable, script, name, json.dumps({"type": type, **options}))

    # --- the end -------------------------------------------------------------------------

    def end(self) -> None:
        """End what the test started itself; all else must have ended by then."""
        for gate in self._gates.values():
            gate.close()
        for job in self.jobs:
            if job.is_running:
                job.kill()
        try:
            wait_for(lambda: not list(self.left_behind()), "left-behind processes to end", 30)
        except AssertionError:
            left = {pid: _command(pid) for pid in self.left_behind()}
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"processes are left behind: {left}") from None
        finally:
            shutil.rmtree(self.folder)

    def left_behind(self) -> Iterator[int]:
        """Return all live processes that were started with the environment of this story."""
        mark = f"STORY={self.folder}".encode()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environment = file.read()
            except OSError:
                continue
            # Each test ends with this look at all processes: the first question is the quick one.
            is_marked = mark in environment and mark in environment.split(b"\0")
            if is_marked and pid != os.getpid() and is_running(pid):
                yield pid


class Negotiator:
    """The negotiator of a story: a process that can be killed and started again."""

    def __init__(self, story: Story, gpus: str | None, arguments: tuple[str, ...] = ()) -> None:
        self.story = story
        self._gpus = gpus
        self._arguments = arguments
        self.process: Process | None = None
        self.log_path = story.folder / "negotiator.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> Negotiator:
        """Start it and return when it is ready."""
        command = [*NEGOTIATOR, *self._arguments]
        command += ["--gpus", self._gpus] if self._gpus else []
        daemon = Daemon(command, self.story.environment(), self.log_path, is_session=False)
        self.process = daemon.process
        line = daemon.line()
        assert line == "ready", f"{line}\n{self.log}"
        return self

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """End it by a signal and return its exit status."""
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """End it without a chance to clean up."""
        assert self.stop(signal.SIGKILL) == -signal.SIGKILL

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    # --- what it says --------------------------------------------------------------------

    def ask(self, op: str, **more: Any) -> dict[str, Any]:
        return ask_once({"op": op, **more})

    def status(self) -> dict[str, Any]:
        return negotiator.status()

    def leases(self) -> list[dict[str, Any]]:
        return list(self.status()["leases"])

    def waiting(self) -> list[dict[str, Any]]:
        return list(self.status()["waiting"])

    def profiles(self) -> list[dict[str, Any]]:
        return list(negotiator.ask_all({"op": "profiles"})["profiles"])

    def history(self) -> list[dict[str, Any]]:
        """Return all remembered runs of all types."""
        return [run for profile in self.profiles() for run in profile["history"]]

    def wait_for_leases(self, count: int) -> list[dict[str, Any]]:
        """Return the leases once there are so many."""
        wait_for(lambda: len(self.leases()) == count, lambda: f"{count} leases:\n{self.log}")
        return self.leases()

    def wait_for_waiting(self, count: int) -> list[dict[str, Any]]:
        """Return who waits once there are so many."""
        wait_for(lambda: len(self.waiting()) == count, lambda: f"{count} waiting:\n{self.log}")
        return self.waiting()

    def is_answering(self) -> bool:
        try:
            return bool(self.ask("ping"))
        except DaemonError:
            return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "?"
