"""The ground a negotiator stands on: its lock, its socket file, and a local folder for its state.

One lock per machine decides who the negotiator is; it is held for life and taken before the
socket is touched, so a stale socket is never a live one's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
import time
from types import TracebackType

from grn import places
from grn.errors import AlreadyRunning, MachineError

LOCK_PATIENCE_S = 2.0
FRESH_S = 3600.0
_REMOTE = ("nfs", "cifs", "smb", "fuse.", "lustre", "gpfs", "beegfs", "ceph", "9p", "afs")


class Ground:
    """Holds the machine's lock; `listen` then makes the socket."""

    def __init__(self) -> None:
        self.socket_path = places.own_socket()
        self._folder = os.path.dirname(self.socket_path)
        self._lock_fd = -1

    def __enter__(self) -> Ground:
        if len(os.fsencode(self.socket_path)) > 107:
            raise MachineError(
                f"the socket path {self.socket_path} is longer than the system allows.",
                "Name a shorter folder in GRN_RUNTIME_DIR.",
            )
        try:
            self._make_folder()
            self._lock_fd = self._open_lock()
        except OSError as error:
            raise MachineError(
                f"the folder {self._folder} cannot be used: {error.strerror}.",
                "Make it writable, or name another in GRN_RUNTIME_DIR.",
            ) from error
        self._take_lock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None or not issubclass(kind, AlreadyRunning):
            with contextlib.suppress(OSError):
                os.unlink(self.socket_path)
        os.close(self._lock_fd)

    def listen(self) -> socket.socket:
        """Make the socket that all users of this machine may connect to."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket_path)  # the lock is ours, so nobody listens there
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self.socket_path)
            os.chmod(self.socket_path, 0o666)
        except OSError as error:
            listener.close()
            raise MachineError(
                f"the socket {self.socket_path} cannot be made: {error.strerror}.",
                "Name another folder in GRN_RUNTIME_DIR.",
            ) from error
        listener.listen(1024)
        return listener

    async def keep_fresh(self) -> None:
        """Touch our files now and then: cleaners of /tmp remove what looks old."""
        while True:
            for path in (self.socket_path, os.path.join(self._folder, "lock")):
                with contextlib.suppress(OSError):
                    os.utime(path)
            await asyncio.sleep(FRESH_S)

    def _make_folder(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.makedirs(self._folder)
            # Like /tmp itself: anyone may become the negotiator, nobody removes another's files.
            os.chmod(self._folder, 0o1777)

    def _open_lock(self) -> int:
        path = os.path.join(self._folder, "lock")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o644)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(0, f"{path} is not a file", path)
        return fd

    def _take_lock(self) -> None:
        """Take the lock; it can outlive a killed owner by a moment, so try for a while."""
        deadline = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(self._lock_fd)
                    raise AlreadyRunning(
                        f"a negotiator already runs on this machine ({self._folder}).",
                        "Use it as it is, or end it first with `grn stop`.",
                    ) from None
                time.sleep(0.05)


def boot_id() -> str:
    """Return the name of this boot: leases of another one are over."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def state_folder() -> tuple[str, str]:
    """Return a local folder for the state, and a note when the usual one is not local."""
    wanted = places.state_dir()
    kind = file_system_of(wanted)
    if os.environ.get("GRN_STATE_DIR") or not kind.startswith(_REMOTE):
        return wanted, ""
    local = f"/var/tmp/grn-{os.getuid()}"
    return local, f"{wanted} is on {kind}, where databases break: using {local} instead"


def file_system_of(path: str) -> str:
    """Return the type of the file system that holds a path, which need not exist yet."""
    path = os.path.realpath(path)
    best, kind = "", ""
    try:
        with open("/proc/self/mounts") as mounts:
            lines = mounts.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split(" ")
        point = fields[1].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind
