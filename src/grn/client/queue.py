"""Connection to this user's queue, which is started when none answers.

A submit carries the environment, which may hold secrets: it is sent only to a process of the same
user in the same namespaces, as the kernel reports. A user number alone proves little: containers
share it with their host.
"""

from __future__ import annotations

import os
import socket

from grn import paths, wire
from grn.client.connection import ANSWER_S, Connection, drive
from grn.errors import (
    AlreadyRunning,
    DaemonError,
    DaemonNotRunning,
    GrnError,
    MachineError,
    NotAllowed,
    ProtocolError,
)
from grn.proc import pidfd, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from grn.client.connection import Steps
    from grn.wire import Message

SUBMIT_S = 120.0
TRIES = 5
_DYING_MS = 500


def connect(*, may_start: bool = True) -> Connection:
    """Connect to this user's queue, starting it if need be."""
    try:
        return _connect_now()
    except DaemonNotRunning:
        if not may_start:
            former = _former()
            if former is None:
                raise
            return former
    from grn.client.daemons import start_aside, until_answered
    from grn.proc.spawn import own_module

    try:
        start_aside("queue", own_module("grn.queue"), is_detached=True)
    except AlreadyRunning as held:
        return until_answered(_connect_now, held)
    except GrnError:
        try:
            return _connect_now()  # another process was faster
        except DaemonNotRunning:
            pass
        raise
    return _connect_now()


def ask(
    message: Message,
    *,
    may_start: bool = True,
    timeout_s: float = SUBMIT_S,
    meanwhile: Callable[[], None] | None = None,
) -> Message:
    """Ask the queue one question; `meanwhile` is called before the answer is waited for."""
    connection = connect(may_start=may_start)
    try:
        drive(connection.send(message))
        if meanwhile is not None:
            meanwhile()
        return drive(connection.receive(timeout_s))
    except TimeoutError as error:
        raise DaemonError(
            f"the queue did not answer within {timeout_s:.0f} s.",
            "It may be stopped or its disk busy; `grn doctor` tells more.",
        ) from error
    except ConnectionError as error:
        raise DaemonError("the queue closed the connection.", "See its log, queue.log.") from error
    finally:
        connection.close()


def look(message: Message) -> Message:
    """Ask a question that changes nothing; once more if the queue ends before it has answered."""
    try:
        return ask(dict(message))
    except DaemonError:
        return ask(dict(message))


def ids(**selection: Any) -> list[int]:
    """Return the ids of the jobs that a list selects."""
    asked = {"op": "list", "most": 1_000_000, **selection}
    try:
        found: list[int] = look(asked | {"ids_only": True})["ids"]
    except ProtocolError:  # an older queue, which does not know the field
        found = [row["id"] for row in look(asked)["jobs"]]
    return found


def jobs(asked: Message, *, folds: bool) -> Message:
    """List jobs; with `folds` members of an array that are not jobs yet are one row."""
    if folds:
        try:
            return ask(asked | {"folds": True})
        except ProtocolError:  # an older queue, which does not know the field
            pass
    return ask(dict(asked))


def show(job: int, *, may_start: bool = True) -> Message:
    """Return all of one job."""
    return typed(ask({"op": "show", "job": job}, may_start=may_start)["job"])


def typed(row: Message) -> Message:
    """Return the row of a job with its words decoded, also those that are not UTF-8."""
    row["argv"] = [wire.meant(word) for word in row["argv"]]
    row["cwd"] = wire.meant(row["cwd"])
    return row


def submit(message: Message, meanwhile: Callable[[], None] | None = None) -> Message:
    """Submit; when the answer is lost, repeat it with the same key, which submits once only.

    `meanwhile` is called at each try, while the queue works.
    """
    message["key"] = os.urandom(12).hex()
    may_be_in = False
    for tries_left in reversed(range(TRIES)):
        try:
            return ask(dict(message), meanwhile=meanwhile)
        except (DaemonError, MachineError) as error:
            may_be_in = may_be_in or type(error) is DaemonError  # sent, and not answered
            if tries_left:
                continue
            if not may_be_in:
                raise
            raise DaemonError(
                f"{error.message} It is not known whether the job was accepted.",
                "Look with `grn ls` before you submit it again.",
            ) from error
    raise AssertionError("unreachable")


def end_of(job: int) -> Steps[Message]:
    """Wait for the end of one job, through restarts of the queue."""
    while True:
        connection = connect()
        try:
            yield from connection.send({"op": "wait", "jobs": [job]})
            answer = yield from connection.receive(None)
            ended: Message = answer["ended"]
            return ended
        except ConnectionError:
            continue  # the queue was restarted: ask the new one
        finally:
            connection.close()


def ends(jobs: list[int]) -> Iterator[Message]:
    """Yield how each job ended, as it ends; through restarts of the queue."""
    return (ended for ended in ends_or_pauses(jobs, None) if ended is not None)


def ends_or_pauses(jobs: list[int], pause_s: float | None) -> Iterator[Message | None]:
    """Yield how each job ended, as it ends, and None at first and after each pause."""
    left = set(jobs)
    while left:
        connection = connect()
        try:
            drive(connection.send({"op": "wait", "jobs": sorted(left)}))
            yield None
            while left:
                try:
                    ended = drive(connection.receive(pause_s))["ended"]
                except TimeoutError:
                    yield None
                    continue
                if ended["id"] in left:
                    left.discard(ended["id"])
                    yield ended
        except ConnectionError:
            continue  # the queue was restarted: ask the new one
        finally:
            connection.close()


def end_former() -> None:
    """Stop the queue of an older grn, which listens in the runtime folder: ours replaces it."""
    former = _former()
    if former is None:
        return
    try:
        drive(former.ask({"op": "stop"}))
        drive(former.receive(ANSWER_S))  # it sends no more, and closes the connection at its end
    except (OSError, GrnError):
        pass  # the journal is locked while it runs, which is reported later
    finally:
        former.close()


def _former() -> Connection | None:
    """Connect to the queue of an older grn; other processes at its socket are ignored."""
    try:
        return _connect_now(paths.former_queue_socket())
    except (DaemonNotRunning, NotAllowed):
        return None


def _connect_now(path: str = "") -> Connection:
    path = path or paths.queue_socket()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(ANSWER_S)
    try:
        sock.connect(path)
        doubt = _doubt(sock, path)
    except OSError:
        sock.close()
        raise DaemonNotRunning(path, "queue") from None
    if doubt is not None:
        sock.close()
        raise doubt
    return Connection(sock, wire.decode)  # texts of this user, undecoded


def _doubt(sock: socket.socket, path: str) -> NotAllowed | None:
    """Return why the process that answers is not trusted, or None."""
    if pidfd.credentials(sock)[1] != os.getuid():
        return NotAllowed(f"{path} is answered by another user.", "Set GRN_RUNTIME_DIR elsewhere.")
    return apart(sock)


def apart(sock: socket.socket) -> NotAllowed | None:
    """Return an error unless the peer shares this process's namespaces and root.

    For client and queue alike: a queue that ran commands for a confined client would free it.
    Raise ConnectionError when the peer has ended meanwhile.
    """
    if _shares_our_world(sock):
        return None
    return NotAllowed(
        "the queue and its client are in different containers, mount namespaces or roots,"
        " or the kernel does not show one to the other.",
        "Submit from where the queue runs, or use a queue of your own: set GRN_RUNTIME_DIR.",
    )


def _shares_our_world(sock: socket.socket) -> bool:
    pid, _ = pidfd.credentials(sock)
    if pid <= 0:  # a process of a hidden pid namespace
        return False
    fd = pidfd.of_peer(sock, pid)
    try:
        try:
            is_shared = processes.world(pid) == processes.world("self")
        except PermissionError:
            is_shared = False  # it lives, and is hidden
        except OSError:  # a process loses its namespaces a moment before it has ended
            pidfd.has_ended(fd, _DYING_MS)
            is_shared = False
        if pidfd.has_ended(fd):  # checked last: the pid was this process's
            raise ConnectionResetError("the process at the other end has ended")
        return is_shared
    finally:
        os.close(fd)
