"""The attempts on one node as home sees them: orders to its agent, and what it tells of them.

An attempt is believed to be there until its end is written at home, or its agent or engine says
that it is not. `node.py` has the stream and the leases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from grn.errors import ProtocolError
from grn.model.text import harmless
from grn.queue.jobs.job import AttemptFate, EndReason, Exit
from grn.queue.journal.rows import Command
from grn.queue.site import Attempt
from grn.queue.sites import stream
from grn.queue.sites.files.log_copy import LogCopies
from grn.queue.sites.files.node_folders import NOT_KEPT, NodeFolders, is_kept
from grn.queue.sites.leases.remote_lease import RemoteLease
from grn.queue.sites.stream import FilePiece, LogPiece, Message

if TYPE_CHECKING:
    from grn.queue.sites.node import Node, NodeListener

log = logging.getLogger(__name__)
MAX_SKEW_S = 2.0  # below, the difference may be the time that a greeting takes
MAX_KNOWN = 128


class NodeAttempts:
    """The attempts of one node, their output and their folders."""

    def __init__(
        self,
        node: Node,
        listener: NodeListener,
        folder_of: Callable[[Attempt], str],
        log_bytes: int,
    ) -> None:
        self.leases: dict[Attempt, RemoteLease] = {}  # believed to be there
        self._node = node
        self._listener = listener
        self._logs = LogCopies(folder_of, log_bytes)
        self._folders = NodeFolders(node.send, node.room)
        self._cwds: dict[Attempt, str] = {}  # of those that this queue has started
        self._unwritten: set[Attempt] = set()  # whose ends were heard over the present stream
        self._missing: set[Attempt] = set()  # files of these were not fetched
        self._known: set[int] = set()  # environments that the agent has over this stream

    def stream_made(self) -> None:
        """Begin a stream, over which the agent knows nothing yet."""
        self._known = set()

    def stream_lost(self) -> None:
        """Stop sending and fetching."""
        self._folders.stream_lost()

    # --- frames of the agent -------------------------------------------------------------

    def receive(self, frame: LogPiece | FilePiece | Message) -> None:
        """Take a frame about an attempt; one of an unknown kind is of a newer version."""
        if isinstance(frame, LogPiece):
            if frame.attempt in self.leases:
                self._logs.write(frame)
        elif isinstance(frame, FilePiece):
            self._folders.receive(frame)
        elif handler := _HANDLERS.get(str(frame.get("ev"))):
            handler(self, frame)

    def _started(self, message: Message) -> None:
        attempt = stream.attempt_in(message)
        if attempt in self.leases:
            self._listener.attempt_started(attempt)

    def _ended(self, message: Message) -> None:
        attempt = stream.attempt_in(message)
        if attempt not in self.leases:
            self._node.send(
                {**_about("written", attempt), "keep": True}
            )  # the end was heard before
            return
        self._unwritten.add(attempt)
        exit = stream.exit_from_json(message.get("exit"))
        if exit is not None and exit.because is EndReason.NOT_RUNNABLE:
            exit = replace(exit, text=self._not_runnable(attempt, exit.text))
        if exit is not None and exit.ended_at and abs(self._node.clock_skew_s) > MAX_SKEW_S:
            exit = replace(exit, ended_at=exit.ended_at - self._node.clock_skew_s)
        if "files" not in message:
            self._listener.attempt_ended(attempt, exit)
            return

        def fetched(note: str) -> None:
            if exit is None and note:  # its shim was lost: the attempt says that already
                log.warning("action=fetch job=%d note=%r", attempt.job, note)
            told = exit and replace(exit, note=note)
            self._listener.attempt_ended(attempt, told)

        self._fetch(attempt, message, fetched)

    def _fetch(self, attempt: Attempt, message: Message, then: Callable[[str], None]) -> None:
        """Fetch the files of an attempt before its end is told; the rest stays on the node."""
        command = self._listener.command_of(attempt)
        if command is None:
            then("not fetched: the journal's record of the job is damaged")
            return

        def done(note: str) -> None:
            folder = harmless(str(message.get("folder", "")))
            if note.startswith("not fetched") or " not fetched" in note:
                self._missing.add(attempt)
                note = f"{note}; see {folder} on {self._node.name}" if folder else note
            then(note)

        self._folders.fetch(attempt, command, message["files"], done)

    def _got(self, message: Message) -> None:
        self._folders.got(stream.attempt_in(message), message)

    def _need(self, message: Message) -> None:
        self._folders.needed(message)

    def _unsent(self, message: Message) -> None:
        """Put a job back that has no room on the node, and ask it for nothing for a while."""
        attempt = stream.attempt_in(message)
        if attempt not in self.leases:
            return
        text = harmless(str(message.get("text", "")))
        what = harmless(str(message.get("what", "take the folder of a job")))
        trouble = f"{self._node.name} could not {what}: {text}"
        log.error("action=put-back node=%s job=%d reason=%r", self._node.name, attempt.job, text)
        self._node.full(trouble)
        self._listener.attempt_found(attempt, AttemptFate.NOT_BEGUN, trouble)

    def _not_runnable(self, attempt: Attempt, text: str) -> str:
        """Say where a command could not be run, and what to do about a missing folder."""
        name, cwd = self._node.name, harmless(self._cwds.get(attempt, ""))
        if cwd and text.startswith(f"{cwd}: "):
            return (
                f"the folder {cwd} cannot be used on {name} ({text[len(cwd) + 2 :]}): submit"
                f" it with --send, or name a folder that {name} has with --cwd"
            )
        return f"on {self._node.name}: {text}"

    def _found(self, message: Message) -> None:
        attempt = stream.attempt_in(message)
        if attempt not in self.leases:
            return
        try:
            fate = AttemptFate(message.get("fate"))
        except ValueError as error:
            raise ProtocolError("the fate of an attempt is not as it should be.") from error
        text = f"{self._node.name} went down"
        if fate is AttemptFate.NOT_BEGUN:
            text = f"the connection to {self._node.name} was cut before it began"
        elif fate is AttemptFate.INTERRUPTED:
            self._unwritten.add(attempt)
            if "files" in message:

                def fetched(note: str) -> None:
                    if note:
                        log.warning("action=fetch job=%d note=%r", attempt.job, note)
                    self._listener.attempt_found(attempt, fate, text)

                self._fetch(attempt, message, fetched)
                return
        self._listener.attempt_found(attempt, fate, text)

    # --- orders of the queue -------------------------------------------------------------

    def start(self, attempt: Attempt, command: Command, lease: RemoteLease, visible: str) -> None:
        """Start an attempt under a lease, unless its agent is gone or takes nothing new."""
        self.leases[attempt] = lease
        self._cwds[attempt] = command.cwd
        if not self._node.holds(lease.lease):
            loop = asyncio.get_running_loop()
            why = "takes nothing new" if self._node.is_draining else "ended before it began"
            fate, text = AttemptFate.NOT_BEGUN, f"the agent on {self._node.name} {why}"
            loop.call_soon(self._listener.attempt_found, attempt, fate, text)
            return
        if fault := self._fault_of_folder(command):
            exit = Exit(None, because=EndReason.NOT_RUNNABLE, text=fault)
            asyncio.get_running_loop().call_soon(self._listener.attempt_ended, attempt, exit)
            return
        self._logs.begin(attempt, command)
        number = command.environment_id
        message: Message = {
            **_about("start", attempt), "argv": command.argv, "cwd": command.cwd,
            "environment": number, "extra": command.extra, "umask": command.umask,
            "time_limit_s": command.time_limit_s, "has_own_log": bool(command.log),
            "ending": command.ending, "ram": command.ram_bytes, "cap": command.memory_cap,
            "lease": lease.lease, "visible": visible, **self._folders.order(command),
        }  # fmt: skip
        if number not in self._known:
            if len(self._known) >= MAX_KNOWN:  # neither side keeps them for ever
                self._known.clear()
            message["is_first"] = not self._known
            self._known.add(number)
            message["variables"] = command.environment
        self._node.send(message)  # without a stream: the next one asks what became of it

    def _fault_of_folder(self, command: Command) -> str:
        """Return why the folder of a job cannot be brought there; empty if it can."""
        if not is_kept(command.send):
            return NOT_KEPT
        is_old = (command.send is not None or command.fetch) and self._node.stream_version < 2
        fault = f"the agent on {self._node.name} knows no --send and --fetch"
        return f"{fault}: {self._node.address.remedy}" if is_old else ""

    def stop(self, attempt: Attempt, is_now: bool, is_yield: bool) -> None:
        """Make the agent end an attempt; said again when the node is found again."""
        self._node.send({**_about("stop", attempt), "now": is_now, "yield": is_yield})

    def expect(self, attempt: Attempt, lease: RemoteLease) -> None:
        """Note an attempt that an earlier queue started there."""
        self.leases[attempt] = lease

    def ask_for_all(self) -> None:
        """Ask a new stream what became of all attempts."""
        for attempt, lease in list(self.leases.items()):
            self.ask_for(attempt, lease)

    def ask_for(self, attempt: Attempt, lease: RemoteLease) -> None:
        """Ask the agent what became of an attempt."""
        have = self._logs.sizes(attempt)
        self._node.send({**_about("find", attempt), "epoch": lease.epoch, "have": have})

    def written(self, attempt: Attempt) -> None:
        """Tell the agent that the end of an attempt is in the journal."""
        self.leases.pop(attempt, None)
        self._cwds.pop(attempt, None)
        if attempt in self._unwritten:
            self._unwritten.discard(attempt)
            is_whole = self._logs.is_whole(attempt) and attempt not in self._missing
            self._node.send({**_about("written", attempt), "keep": not is_whole})
        self._logs.forget(attempt)
        self._missing.discard(attempt)

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        """Delete the files of jobs on the node; one that is away keeps them."""
        self._node.send({"op": "remove", "jobs": jobs})


_HANDLERS: dict[str, Callable[[NodeAttempts, Message], None]] = {
    "started": NodeAttempts._started,
    "ended": NodeAttempts._ended,
    "found": NodeAttempts._found,
    "need": NodeAttempts._need,
    "unsent": NodeAttempts._unsent,
    "got": NodeAttempts._got,
}


def _about(op: str, attempt: Attempt) -> Message:
    return {"op": op, "job": attempt.job, "attempt": attempt.number}
