"""Proof of life: processes are watched until they end, and never taken for one another."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from grn.model.job import Holder
from grn.proc.identity import holder_of, peer_of
from grn.proc.watch import Holders
from tests.harness import SOURCES
from tests.negotiator.live import OTHER_UID, client_of, needs_root, reachable

DEADLINE_S = 60.0


class Watched:
    """A real process that lives until it is ended, and the list of those reported gone."""

    def __init__(self) -> None:
        self.gone: list[Holder] = []
        self.holders = Holders(self.gone.append)
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        found = holder_of(self.process.pid)
        assert found is not None
        self.holder = found

    def end(self) -> None:
        self.process.communicate(timeout=DEADLINE_S)

    async def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.001)

        await asyncio.wait_for(wait(), DEADLINE_S)


def tell(story: Callable[[Watched], Awaitable[None]]) -> None:
    async def run() -> None:
        watched = Watched()
        try:
            await story(watched)
        finally:
            watched.end()
            watched.holders.close()

    before = open_files()
    asyncio.run(run())
    assert open_files() == before, "a descriptor was left open"


def open_files() -> int:
    gc.collect()  # what others have left open may be closed at any time
    return len(os.listdir("/proc/self/fd"))


def test_the_end_of_a_process_is_told_once() -> None:
    async def story(watched: Watched) -> None:
        assert watched.holders.watch(watched.holder)
        assert watched.holders.watch(watched.holder)
        assert len(watched.holders) == 1
        watched.end()
        await watched.until(lambda: bool(watched.gone))

        assert watched.gone == [watched.holder]
        assert len(watched.holders) == 0
        watched.holders.unwatch(watched.holder)  # whoever comes late does no harm

    tell(story)


def test_a_process_is_watched_until_the_last_who_asked_lets_go() -> None:
    async def story(watched: Watched) -> None:
        watched.holders.watch(watched.holder)
        watched.holders.watch(watched.holder)
        watched.holders.unwatch(watched.holder)
        assert len(watched.holders) == 1
        watched.holders.unwatch(watched.holder)

        assert len(watched.holders) == 0
        watched.end()
        await asyncio.sleep(0)
        assert watched.gone == []

    tell(story)


def test_a_second_pidfd_of_a_watched_process_is_closed() -> None:
    async def story(watched: Watched) -> None:
        watched.holders.watch(watched.holder, os.pidfd_open(watched.holder.pid))
        second = os.pidfd_open(watched.holder.pid)

        assert watched.holders.watch(watched.holder, second)

        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(second)

    tell(story)


def test_another_process_under_the_same_pid_is_not_watched() -> None:
    async def story(watched: Watched) -> None:
        earlier = Holder(watched.holder.pid, watched.holder.started_ticks - 1)

        assert not watched.holders.watch(earlier)
        assert not watched.holders.watch(earlier, os.pidfd_open(earlier.pid))
        assert len(watched.holders) == 0

    tell(story)


def test_a_process_that_is_gone_already_is_not_watched() -> None:
    async def story(watched: Watched) -> None:
        watched.end()

        assert not watched.holders.watch(watched.holder)

    tell(story)


# --- who has connected ---------------------------------------------------------------------


def test_the_kernel_says_who_has_connected() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        holder, uid, pidfd = peer_of(ours)

    assert holder == holder_of(os.getpid())
    assert uid == os.getuid()
    if pidfd is not None:
        assert not os.get_inheritable(pidfd)
        os.close(pidfd)


def test_a_peer_that_is_gone_is_nobody(tmp_path: Path) -> None:
    before = open_files()
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, path], check=True)
        connection, _ = listener.accept()
        with connection:
            holder, uid, pidfd = peer_of(connection)

    assert (holder, uid, pidfd) == (None, os.getuid(), None)
    assert open_files() == before


@needs_root
def test_the_user_is_the_one_who_connected_whoever_speaks(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with client_of(OTHER_UID, reachable(path)) as client:
            connection, _ = listener.accept()
            with connection:
                client.raw(b'{"uid": 0}')
                holder, uid, pidfd = peer_of(connection)

    assert uid == OTHER_UID
    assert holder is not None
    assert holder.pid != os.getpid()
    if pidfd is not None:
        os.close(pidfd)


REUSE = """
import os, socket, sys
from grn.proc.identity import peer_of
from grn.proc.pidfd import SO_PEERPIDFD

def reused(pid):  # in a namespace of our own nobody else takes the number
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))

path = sys.argv[1]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
first = os.fork()
if first == 0:
    socket.socket(socket.AF_UNIX).connect(path)
    os._exit(0)
connection, _ = listener.accept()
os.waitpid(first, 0)
reader, writer = os.pipe()
reused(first)
second = os.fork()
if second == 0:
    os.close(writer)
    os.read(reader, 1)
    os._exit(0)
assert second == first, (first, second)
try:
    pidfd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
except OSError:
    print("no pidfd")
else:
    os.close(pidfd)
    print(peer_of(connection)[0])
os.close(writer)
os.waitpid(second, 0)
"""


@needs_root
def test_a_process_that_has_taken_the_pid_of_a_peer_is_not_taken_for_it(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("util-linux, with its unshare, is not installed")
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no new namespaces may be made here")
    done = subprocess.run(
        [*alone, sys.executable, "-c", REUSE, str(tmp_path / "s")],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )

    assert done.returncode == 0, done.stderr
    if done.stdout == "no pidfd\n":
        pytest.skip("this kernel gives no pidfd of a peer")
    assert done.stdout == "None\n"
