"""Lock, socket file and state folder of a daemon.

Two locks decide which process is the negotiator of a machine, or the queue of a user: an abstract
socket, which no file operation can remove, and a lock file. Both are taken before the socket is
touched and held until the daemon ends, so a stale socket never belongs to a live daemon. Removed
files are made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import socket
import stat
import time
from collections.abc import Callable
from types import TracebackType

from grn import paths
from grn.daemon.folder_watch import FolderWatch
from grn.errors import AlreadyRunning, MachineError
from grn.proc.pidfd import credentials
from grn.proc.processes import mount_namespace

log = logging.getLogger(__name__)
LOCK_PATIENCE_S = 2.0
RELOCK_PATIENCE_S = 0.2  # a shim that checks for its queue shares the lock for a moment
LOOK_S = 2.0
FRESH_S = 3600.0
_OCTAL = re.compile(r"\\([0-7]{3})")  # how the kernel spells blanks in names
_REMOTE = ("nfs", "cifs", "smb", "fuse.", "lustre", "gpfs", "beegfs", "ceph", "9p", "afs")

FileId = tuple[int, int]  # device and inode


class DaemonLock:
    """Holds the lock; `listen` then makes the socket, for all users or for this one alone."""

    def __init__(self, socket_path: str | None = None, *, is_private: bool = False) -> None:
        self.socket_path = os.path.abspath(socket_path or paths.own_socket())
        self._is_private = is_private
        self._folder = os.path.dirname(self.socket_path)
        self.lock_path = os.path.join(self._folder, "lock")
        self._lock_fd = -1
        self._lock_file: FileId | None = None
        self._name_lock: socket.socket | None = None
        self._socket_file: FileId | None = None
        self._server: asyncio.Server | None = None
        self._connection: Callable[[], asyncio.BaseProtocol] = asyncio.Protocol

    def __enter__(self) -> DaemonLock:
        if len(os.fsencode(self.socket_path)) > 107:
            raise MachineError(
                f"the socket path {self.socket_path} is longer than the system allows.",
                "Name a shorter folder in GRN_RUNTIME_DIR.",
            )
        self._name_lock = self._take_name()
        try:
            self._take_lock(LOCK_PATIENCE_S)
        except BaseException:
            self._free_name()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._socket_file is not None and _file_at(self.socket_path) == self._socket_file:
            with contextlib.suppress(OSError):
                os.unlink(self.socket_path)
        os.close(self._lock_fd)
        self._free_name()

    # --- the socket ----------------------------------------------------------------------

    def listen(self) -> socket.socket:
        """Make the socket."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.socket_path)  # the lock is ours, so no process listens there
            listener.bind(self.socket_path)
            os.chmod(self.socket_path, 0o600 if self._is_private else 0o666)
        except OSError as error:
            listener.close()
            raise MachineError(
                f"the socket {self.socket_path} cannot be made: {error.strerror}.",
                "Name another folder in GRN_RUNTIME_DIR.",
            ) from error
        listener.listen(1024)
        self._socket_file = _file_at(self.socket_path)
        return listener

    async def serve(self, connection: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections on a new socket; those of an earlier socket stay open."""
        self.hold()  # a driver may have taken long to start
        before, self._connection = self._server, connection
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(connection, sock=self.listen())
        if before is not None:
            before.close()

    def close(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()

    # --- upkeep of the files ---------------------------------------------------------

    async def look_after(
        self, leave: Callable[[], None], state: str = "", keep_state: Callable[[], bool] = bool
    ) -> None:
        """Make a removed lock or socket again; leave when another process holds the lock.

        `keep_state` does the same for the daemon's files in the folder `state`; it returns True
        while something is wrong with them. All are looked at when something in the folders has
        changed, and soon again after a failure. The files are also touched now and then: cleaners
        of /tmp remove what looks old.
        """
        watch = FolderWatch([folder for folder in (self._folder, state) if folder])
        self._answer_callers()
        trouble, touched_at = "", -FRESH_S
        try:
            while True:
                if time.monotonic() - touched_at >= FRESH_S:
                    touched_at = time.monotonic()
                    self._touch()
                watch.renew()
                try:
                    await self._look()
                except AlreadyRunning as error:
                    log.error("action=leave reason=%r", error.message)
                    leave()
                    return
                except (MachineError, OSError) as error:  # a full disk: the next round tries again
                    if str(error) != trouble:
                        log.error("action=look-after result=failed reason=%r", str(error))
                    trouble = str(error)
                else:
                    trouble = ""
                if keep_state() or trouble:
                    await asyncio.sleep(LOOK_S)
                else:
                    await watch.changed()
        finally:
            watch.close()

    async def _look(self) -> None:
        self.hold()
        found = _file_at(self.socket_path)
        if found is None or found != self._socket_file:
            log.warning("action=listen-again socket=%s", self.socket_path)
            await self.serve(self._connection)

    def _touch(self) -> None:
        for path in (self.socket_path, self.lock_path):
            with contextlib.suppress(OSError):
                os.utime(path)

    # --- the locks -----------------------------------------------------------------------

    def hold(self) -> None:
        """Take the lock again if its file was removed or replaced; raise if another holds it."""
        if _file_at(self.lock_path) == self._lock_file:
            return
        log.warning("action=lock-again path=%s", self.lock_path)
        before = self._lock_fd
        self._take_lock(RELOCK_PATIENCE_S)
        os.close(before)

    def _take_lock(self, patience_s: float) -> None:
        """Lock the file; a lock can outlive a killed owner by a moment, so try for a while."""
        deadline = time.monotonic() + patience_s
        try:
            self._make_folder()
            while not self._is_locked_now():
                if time.monotonic() > deadline:
                    raise self._already_running()
                time.sleep(0.05)
        except OSError as error:
            raise MachineError(
                f"the folder {self._folder} cannot be used: {error.strerror}.",
                "Make it writable, or name another in GRN_RUNTIME_DIR.",
            ) from error

    def _is_locked_now(self) -> bool:
        """Try to take the lock; True when it is ours."""
        fd = self._open_lock()
        try:
            lock(fd, self._folder, "GRN_RUNTIME_DIR")
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        locked = _file_id(os.fstat(fd))
        if _file_at(self.lock_path) != locked:  # removed meanwhile: no other process sees it
            os.close(fd)
            return False
        self._lock_fd, self._lock_file = fd, locked
        return True

    def _take_name(self) -> socket.socket | None:
        """Bind an abstract socket: it cannot be removed, and is visible from every /tmp."""
        deadline = time.monotonic() + LOCK_PATIENCE_S
        name_lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name_lock.setblocking(False)
        while True:
            try:
                name_lock.bind(self._name())
                name_lock.listen(8)  # a process that connects gets our credentials from the kernel
                return name_lock
            except OSError as error:
                if error.errno != errno.EADDRINUSE:  # a sandbox forbids it: the file has to do
                    log.warning("action=lock-name result=failed reason=%r", str(error))
                    name_lock.close()
                    return None
                if time.monotonic() > deadline:
                    name_lock.close()
                    raise self._already_running() from None
            time.sleep(0.05)

    def _name(self) -> bytes:
        kind, place = "negotiator", self._folder
        if self._is_private:
            # The queue in a container that shares the host's network is another queue.
            kind, place = "queue", f"{mount_namespace()} {self._folder}"
        return f"\0grn-{kind}-{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}".encode()

    def _free_name(self) -> None:
        if self._name_lock is not None:
            self._name_lock.close()

    def _answer_callers(self) -> None:
        """Close connections that ask for the holder of the name, as they come."""
        if self._name_lock is not None:
            asyncio.get_running_loop().add_reader(self._name_lock, self._hang_up)

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            while self._name_lock is not None:
                self._name_lock.accept()[0].close()

    def _holder(self) -> tuple[int, int] | None:
        """Return pid and user of the holder of the name, None when the kernel hides them."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            try:
                sock.connect(self._name())
                return credentials(sock)
            except OSError:
                return None

    def _make_folder(self) -> None:
        if self._is_private:
            os.makedirs(os.path.dirname(self._folder), exist_ok=True)
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
            with contextlib.suppress(OSError):  # another process may just have made it
                os.fchmod(fd, 0o644)  # all may lock it, whatever the umask
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(0, f"{path} is not a file", path)
        return fd

    def _already_running(self) -> AlreadyRunning:
        where, stop = self._folder, "`grn queue stop`" if self._is_private else "`grn stop`"
        hint = f"Use it as it is, or end it first with {stop}"
        holder = self._holder()
        if holder is not None and holder[0] not in (0, os.getpid()):
            where += f", process {holder[0]} of user {paths.user_name(holder[1])}"
            hint += f"; if that does not reach it, with `kill {holder[0]}`"
        if self._is_private:
            return AlreadyRunning(f"a queue of this user already runs ({where}).", f"{hint}.")
        return AlreadyRunning(f"a negotiator already runs on this machine ({where}).", f"{hint}.")


def _file_id(found: os.stat_result) -> FileId:
    return found.st_dev, found.st_ino


def _file_at(path: str) -> FileId | None:
    """Return the identity of the file at a path, None when there is none."""
    try:
        return _file_id(os.lstat(path))
    except OSError:
        return None


def lock(fd: int, folder: str, variable: str) -> None:
    """Lock a file, or raise BlockingIOError; MachineError where the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        raise MachineError(
            f"files in {folder} cannot be locked: {error.strerror}.",
            f"Name a folder on a local disk in {variable}.",
        ) from error


def _make_shared(folder: str) -> None:
    """Make a folder like /tmp: any user may serve there, but not remove another's files."""
    _refuse_distrusted(folder)
    try:
        os.makedirs(folder)
        is_new = True
    except FileExistsError:
        is_new = False
        _refuse_distrusted(folder)  # another process may just have made it
    fd = os.open(os.path.realpath(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        is_open = found.st_uid == os.getuid() and found.st_mode & stat.S_IWOTH
        if is_new or (is_open and not found.st_mode & stat.S_ISVTX):
            os.fchmod(fd, 0o1777)
    finally:
        os.close(fd)
    other = paths.owner_apart(folder)
    if other:
        log.warning("%s belongs to user %s, who can remove lock and socket", folder, other)


def _refuse_distrusted(folder: str) -> None:
    trouble = paths.distrust(folder)
    if trouble:
        raise MachineError(
            f"the runtime folder is not to be trusted: {trouble}",
            "Remove it, or let root own it with the rights of /tmp (`chown root`, `chmod 1777`),"
            " or name another in GRN_RUNTIME_DIR.",
        )


def state_folder(mounted: str, local_base: str = "/var/tmp") -> tuple[str, str]:
    """Return a local folder for the state, and a note when the usual one is not local."""
    wanted = paths.state_dir()
    kind = file_system_of(wanted, mounted)
    if os.environ.get("GRN_STATE_DIR") or not kind.startswith(_REMOTE):
        return wanted, ""
    local = os.path.join(local_base, f"grn-{os.getuid()}")
    make_own(local)
    return local, f"{wanted} is on {kind}, where databases break: using {local} instead"


def make_own(folder: str, what: str = "state", variable: str = "GRN_STATE_DIR") -> None:
    """Make a folder in a place open to all users; distrust one that another user made."""
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
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise MachineError(
            f"others may write into the {what} folder {folder}.",
            f"`chmod 700 {folder}`, or name another in {variable}.",
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
