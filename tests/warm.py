"""A process with grn imported that forks one for each `grn` command and daemon of the tests.

Importing grn takes ten times as long as what most commands do. A fork has arguments, environment,
folder and files of its own, also as `/proc` shows them, and the exit status of an interpreter.
Commands that hold leases are not started so: a fork shares the memory of its parent, and memory of
holders is measured.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

MAX_ORDER = 1 << 20
# Modules that are daemons when run by `python -m`.
DAEMONS = ("grn.negotiator", "grn.queue", "tests.queue_faults.mutants")
# Room in the memory where the kernel finds a command line and an environment to show.
ARGUMENTS_ROOM, ENVIRONMENT_ROOM = 4096, 1 << 16
# What an interpreter or a library reads once, at its start.
AT_START = ("PYTHON", "LC_", "LANG", "LD_")
# They hold leases or start daemons, which look at those who start them.
COLD = {"start", "run", "exec", "select", "demo"}


class Forked:
    """A process that was forked; the part of `subprocess.Popen` that tests use."""

    def __init__(self, args: Sequence[str], pid: int, report: socket.socket) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self._report = report

    def poll(self) -> int | None:
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], timeout_s)[0]:
            self.returncode = int(self._report.recv(16))
            self._report.close()
        return self.returncode


class Forker:
    """The process that forks, as those see it who ask for a process."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._read_at_start = read_at_start(env)
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_ORDER)
        with theirs:
            command = [sys.executable, __file__, "." * ARGUMENTS_ROOM]
            roomy = {**env, "ROOM": "." * ENVIRONMENT_ROOM}
            self._process = subprocess.Popen(command, env=roomy, stdin=theirs)
        atexit.register(self.close)

    def fits(self, env: Mapping[str, str]) -> bool:
        """True when an interpreter started with this environment would be like this one."""
        return read_at_start(env) == self._read_at_start

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        fds: Sequence[tuple[int, int]],
        is_session: bool = False,
    ) -> Forked:
        """Fork a process; `fds` are our files, each with its number there."""
        ours, theirs = socket.socketpair()
        order = {
            "argv": [*command],
            "env": {**env},
            "cwd": str(cwd),
            "fds": [there for _, there in fds],
            "is_session": is_session,
        }
        with theirs:
            files = [theirs.fileno(), *(here for here, _ in fds)]
            socket.send_fds(self._line, [json.dumps(order).encode()], files)
            pid = int(self._line.recv(16))
        return Forked(command, pid, ours)

    def close(self) -> None:
        self._line.close()
        self._process.wait()


def read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(AT_START)}


# --- in the process that forks --------------------------------------------------------------


def load() -> None:
    """Import all that commands and the negotiator will want."""
    from grn.cli import catalog

    for name, (where, _) in catalog.COMMANDS.items():
        if name not in COLD:
            importlib.import_module(where.partition(":")[0])
    others = ("grn.cli.commands.queue.submit", "rich.console", "uvicorn", "grn.queue.sites.fleet")
    daemons = ("grn.negotiator.__main__", "grn.queue.__main__", "concurrent.futures.thread")
    for name in (*others, *daemons):
        importlib.import_module(name)
    from grn import settings

    os.environ["GRN_CONFIG"] = os.devnull
    settings.load()  # what is worked out once in a process, and at the start of each daemon
    gc.collect()
    gc.freeze()


def serve(line: socket.socket) -> list[str] | None:
    """Fork until nobody is left to ask: returns in each fork its command, None at the end."""
    reports: dict[int, tuple[int, int]] = {}  # by pidfd: whom to tell, and of which process
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while True:
        for file, _ in poll.poll():
            if file in reports:
                poll.unregister(file)
                report, pid = reports.pop(file)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):
                    os.write(report, b"%d" % code)
                os.close(report)
                os.close(file)
                continue
            body, files, _, _ = socket.recv_fds(line, MAX_ORDER, 32)
            if not body:
                return None
            pid = os.fork()
            if not pid:
                line.close()
                for pidfd, (report, _) in reports.items():
                    os.close(pidfd)
                    os.close(report)
                os.close(files.pop(0))
                return become(json.loads(body), files)
            line.send(b"%d" % pid)
            pidfd = os.pidfd_open(pid)
            reports[pidfd] = (files[0], pid)
            poll.register(pidfd, select.POLLIN)
            for one in files[1:]:
                os.close(one)


def become(order: dict[str, object], files: list[int]) -> list[str]:
    """Let this fork be the process that was ordered; return its command."""
    import fcntl

    wanted = order["fds"]
    assert isinstance(wanted, list)
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 200 + max(wanted)) for one in files]
    for one in files:
        os.close(one)
    for one, number in zip(high, wanted, strict=True):
        os.dup2(one, number)
        os.close(one)
    os.chdir(str(order["cwd"]))
    if order["is_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(order["env"])  # type: ignore[call-overload]
    time.tzset()
    argv = order["argv"]
    assert isinstance(argv, list)
    show(argv)
    return argv


def show(argv: list[str]) -> None:
    """Let `/proc` show this command and environment, where those of the forker stood."""
    with open("/proc/self/stat", "rb") as file:
        numbers = [int(word) for word in file.read().rpartition(b")")[2].split()[45:49]]
    environment = sorted(os.environb.items(), key=lambda one: one[0] != b"STORY")
    for (begin, end), words in (
        (numbers[:2], [os.fsencode(word) for word in argv]),
        (numbers[2:], [b"=".join(one) for one in environment]),
    ):
        text = b"".join(word + b"\0" for word in words)[: end - begin - 1]
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def end(code: object) -> NoReturn:
    """End this fork; by the short way where nothing but standard streams is left to be closed.

    An interpreter takes all its objects apart before it ends. A fork would copy each page for that:
    four fifths of the processor time of most commands.
    """
    if (code is None or isinstance(code, int)) and threading.active_count() == 1:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit((code or 0) & 0xFF)
    sys.exit(code)  # type: ignore[arg-type]


def main() -> None:
    line = socket.socket(fileno=os.dup(0))
    sys.path[0] = ""  # as with -c and -m
    load()
    command = serve(line)
    if command is None:
        return
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        ours = getattr(sys, name)
        buffering = 1 if number == 2 or os.isatty(number) else -1
        file = os.fdopen(number, mode, buffering, ours.encoding, ours.errors, closefd=False)
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    if command[1] == "-m":
        sys.argv = command[2:]
        name = command[2] if command[2].startswith("tests.") else f"{command[2]}.__main__"
        end(importlib.import_module(name).main())
    sys.argv = command[2:]
    sys.argv[0] = "-c"
    from grn.cli.main import main as grn

    try:
        grn()
    except SystemExit as asked:
        end(asked.code)


if __name__ == "__main__":
    main()
