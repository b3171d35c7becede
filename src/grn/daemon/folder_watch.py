"""Changes in folders, told by inotify: a daemon that guards files sleeps until one is touched.

Python has no inotify, so libc is called. Where it cannot be used, and for what it does not tell,
such as a folder above that was renamed, `changed` also returns now and then.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Collection

SELDOM_S = 300.0
OFTEN_S = 2.0  # without inotify, or while a folder is not there
_TOGETHER_S = 0.1  # changes come in bursts, and others may make them on purpose
_CHUNK_BYTES = 65536
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _ONLY_FOLDERS = 0x400, 0x800, 0x1000000
_EVENTS = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLY_FOLDERS
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class FolderWatch:
    """Notices files that are made, renamed or removed in some folders."""

    def __init__(self, folders: Collection[str]) -> None:
        self._folders = folders
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._open()
        self._is_complete = False  # all folders are watched

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def renew(self) -> None:
        """Watch the folders that are at their paths now; changes from here on are noticed."""
        if self._fd < 0:
            return
        self._drain()
        found = [
            self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _EVENTS)
            for folder in self._folders
        ]
        self._is_complete = min(found, default=0) >= 0

    async def changed(self) -> None:
        """Return after a change since `renew`, or after a while."""
        if not self._is_complete:
            await asyncio.sleep(OFTEN_S)
            return
        loop = asyncio.get_running_loop()
        told = loop.create_future()

        def tell() -> None:
            if not told.done():
                told.set_result(None)

        timer = loop.call_later(SELDOM_S, tell)
        loop.add_reader(self._fd, tell)
        try:
            await told
        finally:
            timer.cancel()
            loop.remove_reader(self._fd)
        await asyncio.sleep(_TOGETHER_S)

    def _open(self) -> int:
        try:
            return int(self._libc.inotify_init1(_FLAGS))
        except AttributeError:  # a libc without it
            return -1

    def _drain(self) -> None:
        """Forget the changes until now."""
        try:
            while os.read(self._fd, _CHUNK_BYTES):
                pass
        except BlockingIOError:
            pass
