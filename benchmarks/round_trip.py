"""What a lease costs: acquire + release on an idle machine against a bare echo over a unix socket.

The floor is the least that any daemon can cost: a process that does nothing but send back the
150 bytes it receives, with a blocking client. Two round trips of it: a lease is a question with an
answer, and a report that has one too unless nothing is measured at its end, as on virtual GPUs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator

import rig

import grn

ROUNDS, PER_ROUND = 15, 150
NVML_ROUNDS, NVML_PER_ROUND = 3, 30
MOST, MOST_OF_CALL = 4.0, 4.5
MESSAGE = b"x" * 150
TYPE = "benchmark::known"

PLAIN_ECHO = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print(flush=True)
peer, _ = listener.accept()
while data := peer.recv(65536):
    peer.sendall(data)
"""

ASYNCIO_ECHO = """
import asyncio, sys

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def serve():
    await asyncio.get_running_loop().create_unix_server(Echo, sys.argv[1])
    print(flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


def measure() -> list[rig.Figure]:
    """Time all on different cores, as on an idle machine, then beside other work, then on one."""
    here = sorted(os.sched_getaffinity(0))
    with (
        rig.negotiator("virtual:8x8GiB") as process,
        _echo(PLAIN_ECHO) as (plain_pid, plain),
        _echo(ASYNCIO_ECHO) as (asyncio_pid, by_asyncio),
    ):
        _teach()
        cases = {
            "plain echo": lambda: _timed(lambda: _pair(plain)),
            "asyncio echo": lambda: _timed(lambda: _pair(by_asyncio)),
            "with grn.lease(), memory stated": lambda: _timed(_lease_stated),
            "with grn.lease(), type known": lambda: _timed(_lease_known),
            "@grn.job call, memory stated": lambda: _timed(_call_stated),
            "@grn.job call, type known": lambda: _timed(_call_known),
        }
        pids = (process.pid, plain_pid, asyncio_pid)
        with rig.on_cores(here[:1], here[1:] or here[:1], *pids):
            apart = rig.interleaved(cases, ROUNDS, PER_ROUND)
            with _busy(here[:1]):
                beside = rig.interleaved(cases, ROUNDS // 3, PER_ROUND)
        with rig.on_cores(here[:1], here[:1], *pids):
            together = rig.interleaved(cases, ROUNDS // 3, PER_ROUND)
    with rig.stand_in(gpus=8) as machine:
        if machine is not None:
            with rig.negotiator("nvml", machine.env()):
                case = {"lease": lambda: _timed(_lease_stated)}
                apart["with grn.lease(), stand-in NVML"] = rig.interleaved(
                    case, NVML_ROUNDS, NVML_PER_ROUND
                )["lease"]
    floor = apart.pop("plain echo")
    figures = [
        rig.Figure(name, took * 1e6, floor * 1e6, "us", _most(name)) for name, took in apart.items()
    ]
    floor = beside.pop("plain echo")
    figures += [
        rig.Figure(f"{name}, our core is busy", took * 1e6, floor * 1e6, "us", _most(name))
        for name, took in beside.items()
        if "stated" not in name
    ]
    floor = together.pop("plain echo")
    figures += [
        rig.Figure(f"{name}, on one core", took * 1e6, floor * 1e6, "us", None)
        for name, took in together.items()
        if "stated" not in name
    ]
    return figures


def _most(name: str) -> float | None:
    """Return the target of a case; the last look at a real GPU costs what its driver does."""
    if "echo" in name or "NVML" in name:
        return None
    return MOST_OF_CALL if "call" in name else MOST


@contextlib.contextmanager
def _busy(cores: Collection[int]) -> Iterator[None]:
    """Keep cores busy with a process of normal priority, whatever the priority of this one."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setscheduler(process.pid, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(process.pid, cores)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _echo(code: str) -> Iterator[tuple[int, socket.socket]]:
    with tempfile.TemporaryDirectory(prefix="grn-bench-") as folder:
        path = os.path.join(folder, "socket")
        process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        with socket.socket(socket.AF_UNIX) as client, process:
            client.connect(path)
            yield process.pid, client
            process.terminate()


def _timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _pair(client: socket.socket) -> None:
    client.sendall(MESSAGE)
    client.recv(65536)
    client.sendall(MESSAGE)
    client.recv(65536)


def _teach() -> None:
    """Let the negotiator see a type once, so that nothing about it has to be stated."""
    with grn.lease(type=TYPE):
        pages = bytearray(os.urandom(1 << 20) * 64)  # a peak of its own: what is to be learned
    del pages


def _lease_stated() -> None:
    with grn.lease(mem="1GiB", type="benchmark::stated"):
        pass


def _lease_known() -> None:
    with grn.lease(type=TYPE):
        pass


@grn.job(mem="1GiB")
def _stated(epochs: int) -> None:
    pass


@grn.job(TYPE)
def _known(epochs: int) -> None:
    pass


def _call_stated() -> None:
    _stated(3)


def _call_known() -> None:
    _known(3)


if __name__ == "__main__":
    rig.main("acquire + release", measure)
