"""Send folders to a node, and fetch the files of its attempts: the side of home.

A pack goes over the stream in pieces, as fast as the node takes them. A new stream continues behind
what the node has. Decides nothing about jobs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from grn import wire
from grn.errors import ProtocolError
from grn.queue.journal.rows import Command, SentFolder
from grn.queue.site import Attempt
from grn.queue.sites.files.fetched_files import Fetch, offered
from grn.queue.sites.stream import FILE_NAME, FilePiece, Frame, Message

log = logging.getLogger(__name__)
SEND_PIECE = 64 << 10
NOT_KEPT = "the folder that was packed for it is not kept any more: submit it again"


class NodeFolders:
    """The folders on their way to one node, and the files on their way back."""

    def __init__(self, send: Callable[[Frame], None], room: Callable[[], Awaitable[bool]]) -> None:
        self._send = send
        self._room = room
        self._packs: dict[str, str] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._fetches: dict[Attempt, Fetch] = {}

    def order(self, command: Command) -> Message:
        """Return what the start of an attempt says about its folder."""
        message: Message = {"fetch": command.fetch} if command.fetch else {}
        if (sent := command.send) is not None:
            self._packs[sent.digest] = wire.meant(sent.pack)
            message["send"] = {
                "digest": sent.digest, "bytes": sent.bytes, "inode": sent.inode,
                "files": sent.files,
            }  # fmt: skip
        return message

    def needed(self, message: Message) -> None:
        """Send a pack that the node does not have, from an offset."""
        digest, offset = message.get("digest"), message.get("offset")
        if not isinstance(digest, str) or digest not in self._packs or type(offset) is not int:
            raise ProtocolError("a folder is wanted that was not offered.")
        if digest in self._sending:
            self._sending[digest].cancel()
        task = asyncio.get_running_loop().create_task(self._send_pack(digest, max(0, offset)))
        self._sending[digest] = task

    async def _send_pack(self, digest: str, offset: int) -> None:
        try:
            with open(self._packs[digest], "rb") as file:
                file.seek(offset)
                while data := file.read(SEND_PIECE):
                    self._send(FilePiece(digest, offset, data))
                    offset += len(data)
                    if not await self._room():
                        return
            os.utime(self._packs[digest])  # it is in use
        except OSError as error:
            log.error("action=send-folder result=failed reason=%r", str(error))

    def fetch(
        self, attempt: Attempt, command: Command, files: Any, then: Callable[[str], None]
    ) -> None:
        """Fetch the files of an attempt that has ended; say in the end what is missing."""
        found, note = offered(files, command.fetch)

        def done(faults: list[str]) -> None:
            self._fetches.pop(attempt, None)
            told = [f"not fetched: {'; '.join(faults)}"] if faults else []
            then("; ".join([*told, *([note] if note else [])]))

        if (before := self._fetches.pop(attempt, None)) is not None:
            before.close()
        self._fetches[attempt] = Fetch(attempt, command, self._send, done)
        self._fetches[attempt].begin(found)

    def receive(self, piece: FilePiece) -> None:
        """Pass on a part of a fetched file."""
        if FILE_NAME.fullmatch(piece.name) and piece.name.count(".") == 2:
            job, number, _ = map(int, piece.name.split("."))
            if (fetch := self._fetches.get(Attempt(job, number))) is not None:
                fetch.receive(piece)

    def got(self, attempt: Attempt, message: Message) -> None:
        """Note that a file is complete, or cannot be had."""
        if (fetch := self._fetches.get(attempt)) is not None:
            fetch.got(message)

    def stream_lost(self) -> None:
        """Drop what is on its way: the next stream begins it again."""
        for task in self._sending.values():
            task.cancel()
        for fetch in self._fetches.values():
            fetch.close()
        self._sending.clear()
        self._fetches.clear()


def is_kept(sent: SentFolder | None) -> bool:
    """True when nothing has to be sent, or the pack is there."""
    return sent is None or os.path.exists(wire.meant(sent.pack))
