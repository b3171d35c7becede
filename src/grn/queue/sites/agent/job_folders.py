"""Folders of jobs on this node: packs that home sends, work trees made of them, files for home.

A pack is kept by its digest in `sent/`, for the next job with the same content. Each attempt gets
a tree of its own in `work/JOB.ATTEMPT/`, so no job changes what another one finds. Packs are
deleted when they were not used for a week, or the oldest when all of them are too large.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grn import wire
from grn.client.folder_pack import PACK_TIME, is_same_folder
from grn.errors import ProtocolError
from grn.model.fetch_patterns import is_safe, is_wanted
from grn.model.text import counted
from grn.model.units import show_size
from grn.queue.site import Attempt
from grn.queue.sites.agent.connection import AgentStream
from grn.queue.sites.stream import FilePiece, Message

KEEP_S = 7 * 86400.0
MAX_KEPT_BYTES = 4 << 30
MAX_FETCHED_BYTES, MAX_FETCHED_FILES = 1 << 30, 1000
FETCH_PIECE = 64 << 10
_NOTE = "fetch.json"
DAMAGED = "what arrived of the folder is damaged"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An attempt that begins once its folder is here."""

    digest: str
    size: int
    stream: AgentStream
    begin: Callable[[str], None]


class JobFolders:
    """The folders that home has sent, and those of attempts."""

    def __init__(self, root: str) -> None:
        self._sent = os.path.join(root, "sent")
        self._work = os.path.join(root, "work")
        self._has_work = os.path.isdir(self._work)  # few nodes are sent folders or asked for files
        self._waiting: dict[Attempt, _Waiting] = {}
        self._arriving: set[str] = set()  # packs that home was asked for
        self._tasks: set[asyncio.Task[None]] = set()

    # --- sent folders --------------------------------------------------------------------

    def prepare(
        self,
        attempt: Attempt,
        message: Message,
        source: AgentStream,
        begin: Callable[[str], None],
    ) -> None:
        """Call `begin` with the folder that an attempt runs in, once it is there."""
        send, cwd = message.get("send"), str(message["cwd"])
        if send is None or is_same_folder(wire.meant(cwd), send["inode"], send["files"]):
            if send is None:  # else it is home's own folder, which has its files already
                self._note(attempt, message, cwd)
            begin(cwd)
            return

        def noted(tree: str) -> None:
            self._note(attempt, message, tree)
            begin(tree)

        waiting = _Waiting(str(send["digest"]), int(send["bytes"]), source, noted)
        self._waiting[attempt] = waiting
        if os.path.exists(self._pack(waiting.digest)):
            self._run(self._unpack_all(waiting.digest))
        elif waiting.digest not in self._arriving:
            self._arriving.add(waiting.digest)
            have = min(_size(self._part(waiting.digest)), waiting.size)
            if have == waiting.size:
                self._run(self._arrived(waiting.digest))
            else:
                source.send({"ev": "need", "digest": waiting.digest, "offset": have})

    def waits(self, attempt: Attempt) -> bool:
        """True while the folder of an attempt is on its way."""
        return attempt in self._waiting

    def drop(self, attempt: Attempt) -> None:
        """Begin an attempt no more."""
        self._waiting.pop(attempt, None)

    def stream_lost(self) -> None:
        """Drop all attempts that have not begun: the next stream starts them again."""
        self._waiting.clear()
        self._arriving.clear()

    def receive(self, piece: FilePiece) -> None:
        """Write a part of a pack; behind its last byte unpack it."""
        wanted = [one for one in self._waiting.values() if one.digest == piece.name]
        if not wanted or piece.name not in self._arriving:
            return
        try:
            os.makedirs(self._sent, mode=0o700, exist_ok=True)
            fd = os.open(self._part(piece.name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if piece.offset > os.fstat(fd).st_size:
                    raise ProtocolError("a part of a folder is missing.")
                written = os.pwrite(fd, piece.data, piece.offset)
                if written < len(piece.data):
                    os.pwrite(fd, piece.data[written:], piece.offset + written)  # raises
            finally:
                os.close(fd)
        except OSError as error:
            self._fail(piece.name, _told(error))
            return
        if piece.offset + len(piece.data) >= wanted[0].size:
            self._run(self._arrived(piece.name))

    async def _arrived(self, digest: str) -> None:
        """Check a pack that is complete, and unpack it for the attempts that wait for it."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(None, _digest, self._part(digest))
            if found != digest:
                self._fail(digest, DAMAGED)
                return
            os.rename(self._part(digest), self._pack(digest))
            self._arriving.discard(digest)
            await loop.run_in_executor(None, self._drop_old, digest)
        except OSError as error:
            self._fail(digest, _told(error))
            return
        await self._unpack_all(digest)

    async def _unpack_all(self, digest: str) -> None:
        loop = asyncio.get_running_loop()
        for attempt, waiting in list(self._waiting.items()):
            if waiting.digest != digest or self._waiting.get(attempt) is not waiting:
                continue
            self._has_work = True
            tree = os.path.join(self._folder(attempt), "tree")
            try:
                os.utime(self._pack(digest))
                await loop.run_in_executor(None, _unpack, self._pack(digest), tree)
            except (OSError, tarfile.TarError, ProtocolError) as error:
                self._fail_one(attempt, waiting, _told(error))
                continue
            if self._waiting.get(attempt) is not waiting:  # stopped, or its stream is lost
                self.remove(attempt)
                continue
            del self._waiting[attempt]
            waiting.begin(wire.spelled(tree))

    def _fail(self, digest: str, text: str) -> None:
        self._arriving.discard(digest)
        with contextlib.suppress(OSError):
            os.unlink(self._part(digest))
        for attempt, waiting in list(self._waiting.items()):
            if waiting.digest == digest:
                self._fail_one(attempt, waiting, text)

    def _fail_one(self, attempt: Attempt, waiting: _Waiting, text: str) -> None:
        if self._waiting.get(attempt) is waiting:
            del self._waiting[attempt]
        self.remove(attempt)
        waiting.stream.send(
            {"ev": "unsent", "job": attempt.job, "attempt": attempt.number, "text": text}
        )

    def _drop_old(self, used: str) -> None:
        """Delete packs that were last used long ago, and the oldest where all are too large."""
        found = []
        for one in os.scandir(self._sent):
            with contextlib.suppress(FileNotFoundError):
                found.append((one.stat().st_mtime, one.stat().st_size, one.name))
        total = sum(size for _, size, _ in found)
        for used_at, size, name in sorted(found):
            is_spare = total > MAX_KEPT_BYTES or time.time() - used_at > KEEP_S
            if is_spare and name.partition(".")[0] not in {used, *self._arriving}:
                total -= size
                os.unlink(os.path.join(self._sent, name))

    # --- files for home ------------------------------------------------------------------

    def _note(self, attempt: Attempt, message: Message, folder: str) -> None:
        """Note where the files of an attempt are that home wants at its end."""
        patterns = [str(one) for one in message.get("fetch") or ()]
        if patterns:
            self._has_work = True
            os.makedirs(self._folder(attempt), mode=0o700, exist_ok=True)
            with open(os.path.join(self._folder(attempt), _NOTE), "w") as file:
                sent = message.get("send") is not None
                json.dump({"folder": folder, "patterns": patterns, "is_sent": sent}, file)

    def has_note(self, attempt: Attempt) -> bool:
        """True when home wants files of an attempt at its end."""
        return self._has_work and os.path.exists(os.path.join(self._folder(attempt), _NOTE))

    async def files_for_home(self, attempt: Attempt) -> Message:
        """Return the files of an attempt that home wants, as a part of the message of its end."""
        try:
            note = self._read_note(attempt)
            if note is None:
                return {}
            files = await asyncio.get_running_loop().run_in_executor(None, _list, note)
            return {"files": files, "folder": note["folder"]}
        except (OSError, ValueError, LookupError) as error:
            return {"files": {"rows": [], "note": f"not fetched: {error}"}, "folder": ""}

    def _read_note(self, attempt: Attempt) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self._folder(attempt), _NOTE)) as file:
                return dict(json.load(file))
        except FileNotFoundError:
            return None

    def give(self, attempt: Attempt, number: int, path: str, to: AgentStream) -> None:
        """Send one file home."""
        self._run(self._give(attempt, number, path, to))

    async def _give(self, attempt: Attempt, number: int, path: str, to: AgentStream) -> None:
        name, offset, hashed, text = f"{attempt.job}.{attempt.number}.{number}", 0, "", ""
        digest = hashlib.sha256()
        try:
            note = self._read_note(attempt)
            if note is None or not is_safe(path):
                raise FileNotFoundError(2, "it is not there any more")
            full = os.path.join(wire.meant(note["folder"]), wire.meant(path))
            with open(os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                while offset < MAX_FETCHED_BYTES and (data := file.read(FETCH_PIECE)):
                    digest.update(data)
                    to.send(FilePiece(name, offset, data))
                    offset += len(data)
                    if not await to.room():
                        return
            hashed = digest.hexdigest()
        except OSError as error:
            text = _told(error)
        to.send({
            "ev": "got", "job": attempt.job, "attempt": attempt.number, "file": number,
            "digest": hashed, "text": text,
        })  # fmt: skip

    # --- paths ---------------------------------------------------------------------------

    def remove(self, attempt: Attempt) -> None:
        """Delete the folder of an attempt."""
        if self._has_work:
            remove_tree(self._folder(attempt))

    def _folder(self, attempt: Attempt) -> str:
        return os.path.join(self._work, f"{attempt.job}.{attempt.number}")

    def _pack(self, digest: str) -> str:
        return os.path.join(self._sent, f"{digest}.tar")

    def _part(self, digest: str) -> str:
        return os.path.join(self._sent, f"{digest}.part")

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def remove_tree(folder: str) -> None:
    """Delete a folder, which nearly always is not there: few short jobs print anything."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _told(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _digest(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            found.update(data)
    return found.hexdigest()


def _unpack(pack: str, tree: str) -> None:
    """Make a work tree of a pack, all of it new."""
    shutil.rmtree(tree, ignore_errors=True)
    os.makedirs(tree, mode=0o700)
    with tarfile.open(pack) as tar:
        for entry in tar:
            if entry.name.startswith("/") or not {"..", ""}.isdisjoint(entry.name.split("/")):
                raise ProtocolError(DAMAGED)
            path = os.path.join(tree, entry.name)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            if entry.issym():
                os.symlink(entry.linkname, path)
                continue
            content = tar.extractfile(entry)
            if content is None:
                raise ProtocolError(DAMAGED)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path, flags, entry.mode & 0o700), "wb") as file:
                shutil.copyfileobj(content, file)
            os.utime(path, (PACK_TIME, PACK_TIME))


def _list(note: dict[str, Any]) -> Message:
    """Return the files that match: path, size, time and whether it is a program; and a note."""
    folder, patterns = wire.meant(note["folder"]), tuple(note["patterns"])
    rows: list[list[Any]] = []
    size = left = 0
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.relpath(os.path.join(where, name), folder)
            found = os.lstat(os.path.join(where, name))
            is_new = not (note["is_sent"] and found.st_mtime_ns == PACK_TIME * 10**9)
            is_file = (found.st_mode & 0o170000) == 0o100000
            spelled = wire.spelled(path)
            if not (is_file and is_new and is_safe(spelled) and is_wanted(path, patterns)):
                continue
            if size + found.st_size > MAX_FETCHED_BYTES or len(rows) >= MAX_FETCHED_FILES:
                left += 1
                continue
            size += found.st_size
            rows.append([spelled, found.st_size, found.st_mtime_ns, bool(found.st_mode & 0o100)])
    text = ""
    if left:
        most = f"{show_size(MAX_FETCHED_BYTES)} in {MAX_FETCHED_FILES} files"
        text = f"{counted(left, 'file')} not fetched: more than {most}"
    elif not rows:
        text = f"nothing new matches --fetch {' '.join(patterns)}"
    return {"rows": rows, "note": text}
