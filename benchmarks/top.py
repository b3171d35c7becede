"""What `grn top` costs: itself, and those it looks at, with 8 GPUs and 1,000 jobs.

One client holds and waits for leases; some end and others come all the time, so that there is
something to draw. Then 1,000 queued jobs of one's own are added, of which some change all the
time. The terminal is a pseudo-terminal of 200 columns and 60 lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import rig
from rig import Figure

from grn import wire
from grn.client import queue
from grn.client.negotiator import connect

GPUS = "virtual:8x24GiB"
JOBS = 1000
HELD = 160
SECONDS = 15.0
CHANGES_PER_S = 10
SETTLE_S = 3.0


class Crowd:
    """One connection that asks for all the leases, and passes them on."""

    def __init__(self) -> None:
        self._sock = connect().sock
        self._frames = wire.Frames(wire.MAX_REPLY_BYTES)
        self._count = 0
        self._leases: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._churn)

    def __enter__(self) -> Crowd:
        for _ in range(JOBS):
            self._ask()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._sock.close()

    def _ask(self) -> None:
        self._count += 1
        kind = f"train{self._count % 40}.py"
        message = {
            "op": "lease", "key": f"{self._count:016x}", "type": kind, "label": f"{kind}::fit",
            "mem": (8 * 24 << 30) // (HELD + 20), "command": True,
        }  # fmt: skip
        self._send(message)

    def _send(self, message: dict[str, object]) -> None:
        self._sock.sendall(wire.encode({"id": self._count, "v": wire.PROTOCOL, **message}))
        self._hear(0.0)

    def _hear(self, patience_s: float) -> None:
        self._sock.settimeout(patience_s or 0.0)
        with contextlib.suppress(BlockingIOError, TimeoutError):
            for body in self._frames.feed(self._sock.recv(1 << 18)):
                answer = wire.decode(body)
                if answer.get("ev") == "granted":
                    self._leases.append(answer["lease"])
        self._sock.settimeout(None)

    def _churn(self) -> None:
        while not self._is_over.wait(1 / CHANGES_PER_S):
            self._hear(0.001)
            if self._leases:
                self._send({"op": "done", "lease": self._leases.pop(0), "outcome": "ok"})
                self._ask()


@contextlib.contextmanager
def own_queue() -> Iterator[int]:
    """Run a queue with jobs that are kept back, and let some of them change places."""
    pid = int(queue.ask({"op": "ping"})["pid"])
    job = {"argv": ["python", "train.py", "--lr", "0.1"], "type": "train.py", "label": "train.py"}
    shared = {"cwd": "/", "env": {}, "held": True}
    first = queue.submit({"op": "submit", "jobs": [job] * JOBS, **shared})["first"]
    is_over = threading.Event()

    def churn() -> None:
        place = 0
        while not is_over.wait(1 / CHANGES_PER_S):
            place = (place + 7) % JOBS
            queue.ask({"op": "move", "jobs": [first + place], "front": True})

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        yield pid
    finally:
        is_over.set()
        thread.join()
        queue.ask({"op": "stop"})
        while Path(f"/proc/{pid}").exists() and "Z" not in _state(pid):
            time.sleep(0.05)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@contextlib.contextmanager
def top() -> Iterator[subprocess.Popen[bytes]]:
    """Run `grn top` in a terminal of its own that is read all the time."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
    command = [sys.executable, "-c", "from grn.cli.main import main; main()", "top", "--unicode"]
    env = {**os.environ, "TERM": "xterm-256color"}
    env.pop("COLUMNS", None)
    env.pop("LINES", None)
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    reader = threading.Thread(target=_drain, args=(ours,))
    reader.start()
    try:
        yield process
    finally:
        os.write(ours, b"q")
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        os.close(ours)


DRAWN = [0]


def _drain(fd: int) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(fd, 1 << 16):
            DRAWN[0] += len(data)


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def percent(pid: int) -> float:
    """Return what share of a core a process takes from now on for a while."""
    before, began = cpu_s(pid), time.monotonic()
    time.sleep(SECONDS)
    return 100 * (cpu_s(pid) - before) / (time.monotonic() - began)


def measure() -> list[Figure]:
    with rig.negotiator(GPUS) as negotiator, Crowd():
        time.sleep(SETTLE_S)
        alone = percent(negotiator.pid)
        with top() as process:
            time.sleep(SETTLE_S)
            before, written, began = cpu_s(negotiator.pid), DRAWN[0], time.monotonic()
            ours = percent(process.pid)
            took_s = time.monotonic() - began
            followed = 100 * (cpu_s(negotiator.pid) - before) / took_s
            rate = (DRAWN[0] - written) / took_s / 1000
        with own_queue() as queue_pid:
            queue_alone = percent(queue_pid)
            with top() as process:
                time.sleep(SETTLE_S)
                before, began = cpu_s(queue_pid), time.monotonic()
                with_queue = percent(process.pid)
                queue_followed = 100 * (cpu_s(queue_pid) - before) / (time.monotonic() - began)
    unit = "% of a core"
    return [
        Figure("grn top, 2 Hz, 200x60, 1,000 jobs, 10 changes a second", ours, 5.0, unit),
        Figure("and 1,000 jobs of one's own queue, 10 changes a second", with_queue, 5.0, unit),
        Figure("negotiator with it, against without", followed, alone, unit, None),
        Figure("queue with it, against without", queue_followed, queue_alone, unit, None),
        Figure("written to the terminal", rate, 20.0, "kB/s", None),
    ]


if __name__ == "__main__":
    rig.main("grn top", measure)
