"""The ground a service stands on: its lock, its socket file, and a local folder for its state.

One lock decides who the negotiator of a machine is, or the queue of a user; it is held for life
and taken before the socket is touched, so a stale socket is never a live one's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import socket
import stat
import time
from types import TracebackType

from grn import places
from grn.errors import AlreadyRunning, MachineError

LOCK_PATIENCE_S = 2.0
FRESH_S = 3600.0
_OCTAL = re.compile(r"\\([0-7]{3})")  # how the kernel spells blanks in names
_REMOTE = ("nfs", "cifs", "smb", "fuse.", "lustre", "gpfs", "beegfs", "ceph", "9p", "afs")


class Ground:
    """Holds the lock; `listen` then makes the socket, for all users or for this one alone."""

    def __init__(self, socket_path: str | None = None, *, is_private: bool = False) -> None:
        self.socket_path = os.path.abspath(socket_path or places.own_socket())
        self._is_private = is_private
        self._folder = os.path.dirname(self.socket_path)
        self.lock_path = os.path.join(self._folder, "lock")
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
        """Make the socket."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.socket_path)  # the lock is ours, so nobody listens there
            listener.bind(self.socket_path)
            os.chmod(self.socket_path, 0o600 if self._is_private else 0o666)
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
            for path in (self.socket_path, self.lock_path):
                with contextlib.suppress(OSError):
                    os.utime(path)
            await asyncio.sleep(FRESH_S)

    def _make_folder(self) -> None:
        if self._is_private:
            _make_shared(os.path.dirname(self._folder))
            make_own(self._folder, "runtime", "GRN_RUNTIME_DIR")
        else:
            _make_shared(self._folder)

    def _open_lock(self) -> int:
        path = self.lock_path
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o644)
            with contextlib.suppress(OSError):  # somebody else may just have made it
                os.fchmod(fd, 0o644)  # all may lock it, whatever our umask says
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
                    raise self._already_running() from None
                time.sleep(0.05)

    def _already_running(self) -> AlreadyRunning:
        if self._is_private:
            text = f"a queue of this user already runs ({self._folder})."
            return AlreadyRunning(text, "Use it as it is, or end it first with `grn queue stop`.")
        text = f"a negotiator already runs on this machine ({self._folder})."
        return AlreadyRunning(text, "Use it as it is, or end it first with `grn stop`.")


def _make_shared(folder: str) -> None:
    """Make a folder like /tmp itself: anyone may serve there, nobody removes another's files."""
    with contextlib.suppress(FileExistsError):
        os.makedirs(folder)
        os.chmod(folder, 0o1777)


def boot_id() -> str:
    """Return the name of this boot: leases of another one are over."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def mounts() -> str:
    """Return what is mounted where, a line each."""
    try:
        with open("/proc/self/mounts", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def state_folder(mounted: str, local_base: str = "/var/tmp") -> tuple[str, str]:
    """Return a local folder for the state, and a note when the usual one is not local."""
    wanted = places.state_dir()
    kind = file_system_of(wanted, mounted)
    if os.environ.get("GRN_STATE_DIR") or not kind.startswith(_REMOTE):
        return wanted, ""
    local = os.path.join(local_base, f"grn-{os.getuid()}")
    make_own(local)
    return local, f"{wanted} is on {kind}, where databases break: using {local} instead"


def make_own(folder: str, what: str = "state", variable: str = "GRN_STATE_DIR") -> None:
    """Make a folder where everybody may: what another has put there is not trusted."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError as error:
        raise MachineError(
            f"the {what} folder {folder} cannot be made: {error.strerror}.",
            f"Name a folder on a local disk in {variable}.",
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise MachineError(
            f"the {what} folder {folder} was made by another user.",
            f"Name a folder of your own on a local disk in {variable}.",
        )


def file_system_of(path: str, mounted: str) -> str:
    """Return the type of the file system that holds a path, which need not exist yet."""
    path = os.path.realpath(path)
    best, kind = "", ""
    for line in mounted.splitlines():
        fields = line.split(" ")
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def set_aside(path: str) -> str:
    """Put a database that is none out of the way, and return where it is kept."""
    number = 1
    while os.path.lexists(f"{path}.broken-{number}"):
        number += 1
    aside = f"{path}.broken-{number}"
    for part in ("-wal", "-shm", "-journal", ""):  # what is left of it must not meet the next one
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + part, aside + part)
    return aside
