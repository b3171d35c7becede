"""The process that forks commands of `grn` for clients: started at the first one, as by inetd.

The queue only listens; the conversation is in `grn.cli.fork_server`, which is started by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess

from grn.proc import spawn

log = logging.getLogger(__name__)
MODULE = "grn.cli.fork_server"
BACKLOG = 128


class ForkServer:
    """The socket at which clients order commands, and the process that serves it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None  # its other end closes with the process

    def open(self) -> None:
        """Listen; without the socket, commands have an interpreter of their own."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)  # the queue has its lock, so no process listens there
            listener.bind(self._path)
            os.chmod(self._path, 0o600)
            listener.listen(BACKLOG)
        except OSError as error:
            log.warning("action=listen-for-commands result=failed reason=%r", str(error))
            listener.close()
            return
        self._listener = listener
        self._await_client()

    def close(self) -> None:
        """Stop listening; commands that run continue."""
        if self._listener is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        if self._line is not None:
            loop.remove_reader(self._line)
            self._line.close()
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _await_client(self) -> None:
        assert self._listener is not None
        asyncio.get_running_loop().add_reader(self._listener, self._start)

    def _start(self) -> None:
        """Start the process for a client that waits in the backlog."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._line, theirs = socket.socketpair()
        try:
            self._process = spawn.child(
                spawn.own_module(MODULE),
                stdin=self._listener.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,
                env=spawn.service_environment("commands"),
            )
        except OSError as error:
            log.error("action=start-fork-server result=failed reason=%r", str(error))
            self._decline()
        finally:
            theirs.close()
        loop.add_reader(self._line, self._ended)

    def _decline(self) -> None:
        """Close the connections that wait: their commands get an interpreter of their own."""
        assert self._listener is not None
        self._listener.setblocking(False)
        with contextlib.suppress(OSError):
            while True:
                self._listener.accept()[0].close()

    def _ended(self) -> None:
        """Listen again once the process has left."""
        assert self._line is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._line)
        self._line.close()
        self._line = None
        if self._process is not None and self._process.wait() != 0:
            log.error("action=end-fork-server status=%s", self._process.returncode)
            self._decline()  # it may have failed for a reason that stays
        self._process = None
        self._await_client()
