"""Floods of requests by one user, and how long somebody else waits for an answer meanwhile.

Shared by the campaign that holds the bounds and the benchmark that shows the times. Both sides are
processes of their own, as another user where we are root, so that neither slows the other's clock.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grn import paths, wire
from tests.negotiator.live import Client, a_wish, frame

GPUS = "virtual:4x8GiB"  # a process that floods or asks is no larger than what it reserves
OTHER_UID = 54321
PER_CONNECTION = 1000  # requests that wait
AT_ONCE = 100
TYPES = 50
CONNECTIONS = 50  # that ask for listings
MIN_ASKED = 20
_PACE_S = 0.002
_END = {signal.SIGTERM}

Asked = list[float]  # how long each answer took


@contextlib.contextmanager
def asker() -> Iterator[Callable[[], Asked]]:
    """Let somebody ping, take a lease and end it all the time; call to hear how long each took."""
    with aside(_ask_on, may_be_other=False) as said:
        yield said


def _ask_on(tell: Callable[[Any], None]) -> None:
    took: Asked = []
    is_over = False

    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END)
    with Client(paths.own_socket()) as client:
        while not is_over or len(took) < MIN_ASKED:
            began = time.perf_counter()
            assert client.is_served()
            took.append(time.perf_counter() - began)
            began = time.perf_counter()
            lease = client.lease(key=_key(), type="asker", mem=64 << 20)["lease"]
            client.ask("done", lease=lease, outcome="ok")
            took.append(time.perf_counter() - began)
            time.sleep(_PACE_S)
    tell(took)


@contextlib.contextmanager
def aside(
    work: Callable[[Callable[[Any], None]], None], may_be_other: bool = True
) -> Iterator[Callable[[], Any]]:
    """Work in a process of its own; call to ask it to end, and to hear what it told."""
    listening, speaking = os.pipe()
    path = paths.own_socket()
    signal.pthread_sigmask(signal.SIG_BLOCK, _END)  # it is heard when it can be
    pid = os.fork()
    if not pid:
        try:
            os.environ["GRN_SOCKET"] = path
            if may_be_other and os.getuid() == 0:
                os.setresuid(0, OTHER_UID, 0)
                ctypes.CDLL(None).setfsuid(0)  # to reach the socket; the kernel shows the other
            work(lambda said: _write(speaking, json.dumps(said).encode()))
            os._exit(0)
        except BaseException as error:
            os.write(2, f"a flood failed: {error!r}\n".encode())
            os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END)
    os.close(speaking)
    heard: list[Any] = []

    def end() -> Any:
        if not heard:
            os.kill(pid, signal.SIGTERM)
            heard.append(_read(listening))
        return heard[0]

    try:
        yield end
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(listening)


def told(work: Callable[[Callable[[Any], None]], None]) -> Any:
    """Work in a process of its own and return what it told."""
    with aside(work) as end:
        return end()  # it ends by itself


def _write(fd: int, body: bytes) -> None:
    while body:
        body = body[os.write(fd, body) :]
    os.close(fd)


def _read(fd: int) -> Any:
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    assert parts, "a process of a flood failed"
    return json.loads(b"".join(parts))


def _key() -> str:
    """Return a request key that no process that was forked uses as well."""
    return os.urandom(12).hex()


def p99(took: Sequence[float]) -> float:
    """Return what 99 of 100 answers do not exceed."""
    return sorted(took)[len(took) * 99 // 100]


def memory_kib(pid: int) -> int:
    """Return the most memory a process has ever had resident."""
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


# --- floods --------------------------------------------------------------------------------


def unfinished_frames(count: int) -> int:
    """Send nearly all of a large frame on each of many connections; return how many are kept."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    almost = wire.HEADER.pack(wire.MAX_REQUEST_BYTES) + b"{" * (wire.MAX_REQUEST_BYTES - 1)
    kept = []
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(paths.own_socket())
            sock.settimeout(5.0)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(almost)
                kept.append(sock)
        return sum(_is_open(sock) for sock in kept)


def _is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        sock.recv(1)
    except BlockingIOError:
        return True
    except ConnectionResetError:
        pass
    return False


def garbage_frames(count: int, chance: random.Random) -> None:
    """Send frames of random bytes; read the complaints."""
    with Client(paths.own_socket()) as client:
        for _ in range(count // AT_ONCE):
            client.raw(b"".join(frame(chance.randbytes(60)) for _ in range(AT_ONCE)))
            for _ in range(AT_ONCE):
                assert client.hear() is not None


def few_types(number: int) -> dict[str, Any]:
    """Return one of a few long types."""
    return {"type": f"{number % TYPES:04}" + "t" * 1020}


def long_names(number: int) -> dict[str, Any]:
    """Return a type, a label and arguments that are as long as they may be."""
    arguments = {f"{one:02}{number:08}" + "a" * 54: "v" * 64 for one in range(32)}
    name = f"{number:08}"
    return {"type": name + "t" * 1016, "label": name + "l" * 248, "args": arguments}


@contextlib.contextmanager
def many_waiting(count: int, names: Callable[[int], dict[str, Any]]) -> Iterator[None]:
    """Let so many requests of a process wait for whole GPUs; it has a little of each already."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(Client(paths.own_socket()))
        holder.lease(key=_key(), gpus=4, type="holder", mem=1 << 30)
        for begin in range(0, count, PER_CONNECTION):
            client = stack.enter_context(Client(paths.own_socket()))
            for number in range(begin, min(count, begin + PER_CONNECTION), AT_ONCE):
                ids = range(number, min(count, number + AT_ONCE))
                client.say(
                    *(a_wish(id=one, key=_key(), exclusive=True, **names(one)) for one in ids)
                )
                for _ in ids:
                    answer = client.hear()
                    assert answer is not None
                    assert answer.get("ev") == "waiting", answer
        yield


def ask_in_a_loop(questions: Sequence[dict[str, Any]], count: int) -> int:
    """Ask on many connections, again as soon as there is an answer; return the longest one."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(paths.own_socket())) for _ in range(CONNECTIONS)]
        by_fd = {client.sock.fileno(): client for client in clients}
        asked, heard, largest = 0, 0, 0
        for client in clients:
            client.say(questions[asked % len(questions)])
            asked += 1
        while heard < count:
            for fd in select.select(list(by_fd), [], [])[0]:
                answer = by_fd[fd].hear()
                assert answer is not None
                assert "error" not in answer, answer
                rows = answer["status"]["waiting"] if "status" in answer else answer.get("why", ())
                largest = max(largest, len(rows))
                heard += 1
                by_fd[fd].say(questions[asked % len(questions)])
                asked += 1
        return largest


LISTINGS: Sequence[dict[str, Any]] = (
    {"op": "status", "id": 1},
    {"op": "status", "id": 2, "after": "999999999.0"},  # has the order of all made anew
    {"op": "why", "id": 3, "name": "holder"},
    {"op": "why", "id": 4, "name": "t.py"},
    {"op": "profiles", "id": 5},
)


def joining_followers(count: int) -> int:
    """Follow, read the first part, and leave; return the size of the largest one in rows."""
    largest = 0
    for _ in range(count):
        with Client(paths.own_socket()) as client:
            first = client.ask("follow")
            largest = max(largest, len(first["waiting"]) + len(first["leases"]))
    return largest


def new_types(count: int) -> None:
    """Take leases of ever new types, many at once."""
    with Client(paths.own_socket()) as client:
        for begin in range(0, count, AT_ONCE):
            ids = range(begin, begin + AT_ONCE)
            client.say(*(a_wish(id=one, key=_key(), **long_names(one)) for one in ids))
            leases = set[str]()
            while len(leases) < AT_ONCE:
                answer = client.hear()
                assert answer is not None
                if answer.get("ev") == "granted":
                    leases.add(answer["lease"])
            ends = [{"op": "done", "id": 1, "lease": one, "outcome": "ok", "resident": 1 << 20}
                    for one in leases]  # fmt: skip
            client.say(*ends)
            for _ in ends:
                assert client.hear() is not None
