"""What an agent does for one queue at home: runs attempts with the launcher and shims of a queue.

It decides nothing about jobs. It serves one stream at a time, the newest; attempts continue without
one, and their ends stay in their records until the queue has written them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from grn import __version__, wire
from grn.errors import ProtocolError
from grn.queue.jobs.job import AttemptFate, EndReason, Exit
from grn.queue.journal.rows import Command, StopRules
from grn.queue.local import attempt_files
from grn.queue.local.launcher import Launcher
from grn.queue.local.workers import LaunchSettings
from grn.queue.site import Attempt
from grn.queue.sites import stream
from grn.queue.sites.agent.connection import AgentStream, NegotiatorLink
from grn.queue.sites.agent.job_folders import JobFolders, remove_tree
from grn.queue.sites.agent.log_pusher import LogPusher
from grn.queue.sites.agent.node_environment import environment_here, epoch, is_allocated
from grn.queue.sites.stream import FilePiece, Frame, LeaseBytes, Message

log = logging.getLogger("grn.agent")
SILENT_S = 60.0  # the queue pings every ten seconds
HOLD_S = 1.0
STARTED_S = 0.02
MAX_ALONE_S = 24 * 3600.0
_BORN = time.time_ns()  # with the pid: which agent this is


class Agent:
    """The attempts on this node, and the stream of the queue."""

    def __init__(self, launch: LaunchSettings, link: type[NegotiatorLink] = NegotiatorLink) -> None:
        self._launcher = Launcher(launch, self, self._put_back)
        self._logs = LogPusher(self._launcher.folder)
        self._folders = JobFolders(launch.root)
        self._stream: AgentStream | None = None
        self._link = link(self._from_negotiator, self._negotiator_changed)
        self._linking: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._unwritten: set[Attempt] = set()  # ended, and the queue has not written it yet
        self._unasked: set[Attempt] = set()  # of those: not asked for over the present stream
        self._stopped: set[Attempt] = set()  # by the queue
        self._untold: list[Attempt] = []  # have a shim, and the queue is not told yet
        self._is_allocated = is_allocated()
        self._has_earlier = self._is_allocated and os.path.isdir(launch.root)  # of an agent before
        self._is_draining = False
        self._is_closed = False
        self.is_orphaned = False  # its allocation has ended, and it ends all that is left of it
        self.idle_since = time.monotonic()

    def open(self) -> None:
        """Get ready to run attempts."""
        self._launcher.open()

    def close(self) -> None:
        """Let go of all attempts; they continue."""
        self._is_closed = True
        self._link.close()
        if self._linking is not None:
            self._linking.cancel()
        self._launcher.close()

    def is_idle(self, idle_s: float) -> bool:
        """True when no queue has been connected for a while, and nothing is left to run or tell.

        An allocation whose queue does not come back keeps the ends of its attempts for a day.
        """
        alone_s = 0.0 if self._stream else time.monotonic() - self.idle_since
        if self._stream is not None or self._launcher.has_attempts or alone_s < idle_s:
            return False
        has_ends = bool(self._unwritten) or self._has_earlier
        return not has_ends or (self._is_allocated and alone_s >= MAX_ALONE_S)

    @property
    def may_leave(self) -> bool:
        """True when it is drained: nothing is left here, and the queue knows that it drains."""
        if self._stream is None:
            return self._is_draining and self.is_idle(0.0)
        is_empty = not self._launcher.has_attempts and not self._unwritten
        return self._is_draining and is_empty and self._stream.has_heard_of_drain

    def drain(self) -> None:
        """Take nothing new from now on."""
        if not self._is_draining:
            log.info("action=drain")
            self._is_draining = True
            self._send({"ev": "draining"})

    def end_all(self) -> None:
        """Kill all attempts."""
        for attempt in self._launcher.attempts():
            self._launcher.stop(attempt, is_now=True)

    # --- the stream ----------------------------------------------------------------------

    def new_stream(self) -> AgentStream:
        """Make the protocol of a new connection."""
        return AgentStream(self)

    def receive(self, source: AgentStream, frame: Frame) -> None:
        """Handle one frame of the queue."""
        if isinstance(frame, LeaseBytes):
            if source is self._stream:
                self._link.write(frame.data)
        elif isinstance(frame, FilePiece):
            if source is self._stream:
                self._folders.receive(frame)
        elif isinstance(frame, dict):
            if not source.is_greeted and frame.get("op") != "hello":
                raise ProtocolError("a stream begins with hello.")
            if source.is_greeted and source is not self._stream:
                return  # a newer stream has taken over
            handler = _HANDLERS.get(str(frame.get("op")))
            if handler is None:
                raise ProtocolError(f"{frame.get('op')!r} is not a message for an agent.")
            handler(self, source, frame)

    def _hello(self, source: AgentStream, message: Message) -> None:
        source.is_greeted = True
        source.send({
            "ev": "hello", "version": __version__, "stream": stream.VERSION, "epoch": epoch(),
            "host": socket.gethostname(), "at": time.time(), "agent": f"{os.getpid()}-{_BORN}",
            "draining": self._is_draining,
        })  # fmt: skip
        if message.get("version") != __version__:
            source.close()  # the queue says so with both versions
            return
        if message.get("log_bytes") is not None:
            self._launcher.log_bytes = int(message["log_bytes"])  # the queue keeps the logs
        before, self._stream = self._stream, source
        self._unasked = set(self._unwritten)
        if before is not None:
            before.abort()
            self._logs.stop()
            self._folders.stream_lost()
        log.info("action=stream-begun")
        if self._linking is not None:
            self._linking.cancel()
        self._link.close()
        self._linking = asyncio.get_running_loop().create_task(self._link.keep_connected())

    def stream_lost(self, source: AgentStream) -> None:
        """Continue without a queue; requests for leases end with the stream."""
        if source is not self._stream:
            return
        log.info("action=stream-lost")
        self._stream = None
        self.idle_since = time.monotonic()
        self._logs.stop()
        self._folders.stream_lost()
        if self._linking is not None:
            self._linking.cancel()
            self._linking = None
        self._link.close()

    def drop_silent_stream(self) -> None:
        """Drop a stream whose queue does not ping any more: its machine or network is gone."""
        if self._stream is not None and time.monotonic() - self._stream.heard_at > SILENT_S:
            log.info("action=drop-stream reason=silent")
            self._stream.abort()

    def _send(self, frame: Frame) -> None:
        if self._stream is not None:
            self._stream.send(frame)

    # --- the node's negotiator -----------------------------------------------------------

    def _from_negotiator(self, data: bytes) -> None:
        self._send(LeaseBytes(data))

    def _negotiator_changed(self, is_up: bool, text: str) -> None:
        self._send({"ev": "negotiator", "up": is_up, "text": text})

    # --- orders of the queue -------------------------------------------------------------

    def _start(self, source: AgentStream, message: Message) -> None:
        attempt = stream.attempt_in(message)
        number = int(message["environment"])
        if message.get("is_first"):
            source.environments.clear()
        if "variables" in message:
            source.environments[number] = environment_here(message["variables"])
        limit = message.get("time_limit_s")
        log_path = ""
        if message.get("has_own_log"):  # a file at home: this one is copied there, whole
            folder = self._launcher.folder(attempt)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            log_path = wire.spelled(os.path.join(folder, "log"))
        command = Command(
            tuple(map(str, message["argv"])), str(message["cwd"]), source.environments[number],
            int(message["umask"]), time_limit_s=None if limit is None else float(limit),
            extra={**dict(message["extra"])}, environment_id=number, log=log_path,
            ending=StopRules(**message.get("ending", {})), ram_bytes=message.get("ram"),
            memory_cap=message.get("cap"),
        )  # fmt: skip

        def begin(folder: str) -> None:
            there = command if folder == command.cwd else replace(command, cwd=folder)
            self._launcher.start(attempt, there, str(message["lease"]), str(message["visible"]))
            self._follow(attempt, {})

        if self._launcher.runs(attempt):
            self._follow(attempt, {})
        elif not self._folders.waits(attempt):
            self._folders.prepare(attempt, message, source, begin)

    def _stop(self, _source: AgentStream, message: Message) -> None:
        attempt = stream.attempt_in(message)
        self._stopped.add(attempt)
        if self._folders.waits(attempt):
            self._folders.drop(attempt)
            self._follow(attempt, {})
            self.attempt_ended(attempt, Exit(None, because=EndReason.CANCELLED))
            return
        is_yield = bool(message.get("yield"))
        self._launcher.stop(attempt, bool(message.get("now")), is_yield=is_yield)

    def _find(self, _source: AgentStream, message: Message) -> None:
        """Report what became of an attempt that the queue believes to be here."""
        attempt = stream.attempt_in(message)
        self._unasked.discard(attempt)
        have = {str(name): int(size) for name, size in dict(message["have"]).items()}
        if self._launcher.runs(attempt):
            fate = AttemptFate.ALIVE
        else:
            fate = self._launcher.find(attempt, message.get("epoch") == epoch()).fate
        self._folders.drop(attempt)
        self._follow(attempt, have)
        if fate in (AttemptFate.ENDED, AttemptFate.LOST):
            self._launcher.report(attempt)
            return
        found = {
            "ev": "found", "job": attempt.job, "attempt": attempt.number, "fate": fate.value,
        }  # fmt: skip
        if fate is AttemptFate.ALIVE:
            self._send(found)
        else:
            self._send_behind_output(attempt, found)

    def _all_asked(self, source: AgentStream, _message: Message) -> None:
        """Forget the ends that the queue has not asked for: it knows them already."""
        source.has_asked_all = True
        self._has_earlier = False
        self._unwritten -= self._unasked
        self._unasked.clear()

    def _written(self, _source: AgentStream, message: Message) -> None:
        """Note that the queue has an end; its copy of the output is whole unless it says so."""
        attempt = stream.attempt_in(message)
        self._unwritten.discard(attempt)
        self._stopped.discard(attempt)
        self._launcher.written(attempt)
        if not message.get("keep"):
            remove_tree(self._launcher.folder(attempt))
            self._folders.remove(attempt)

    def _remove(self, _source: AgentStream, message: Message) -> None:
        jobs = [(int(job), int(attempts)) for job, attempts in message["jobs"]]
        self._launcher.remove(jobs)
        for job, attempts in jobs:
            for number in range(1, attempts + 1):
                self._folders.remove(Attempt(job, number))

    def _get(self, source: AgentStream, message: Message) -> None:
        attempt = stream.attempt_in(message)
        self._folders.give(attempt, int(message["file"]), str(message["path"]), source)

    def _drain_heard(self, source: AgentStream, _message: Message) -> None:
        source.has_heard_of_drain = True

    def _ping(self, source: AgentStream, _message: Message) -> None:
        source.send({"ev": "pong"})

    # --- reports of the launcher ---------------------------------------------------------

    def _put_back(self, attempt: Attempt) -> bool:
        """Return an attempt that cannot begin on a full disk; True if the queue was told."""
        why = attempt_files.why_not_begun(self._launcher.folder(attempt))
        if self._stream is None or not why:
            return False
        log.warning("action=put-back job=%d reason=%r", attempt.job, why)
        self._logs.forget(attempt)
        self._folders.remove(attempt)
        self._send({
            "ev": "unsent", "job": attempt.job, "attempt": attempt.number, "text": why,
            "what": "begin a job",
        })  # fmt: skip
        return True

    def attempt_started(self, attempt: Attempt) -> None:
        """Tell the queue a moment later that an attempt has a shim, unless it has ended by then.

        Most of what a short job costs is the way of its messages through the relays.
        """
        if not self._untold:
            asyncio.get_running_loop().call_later(STARTED_S, self._tell_started)
        self._untold.append(attempt)

    def _tell_started(self) -> None:
        untold, self._untold = self._untold, []
        for attempt in untold:
            if self._launcher.runs(attempt):
                self._send({"ev": "started", "job": attempt.job, "attempt": attempt.number})

    def attempt_ended(self, attempt: Attempt, exit: Exit | None) -> None:
        """Tell the queue how an attempt ended, behind all of its output.

        How much of the output a new stream's queue has is not known before it asks for the attempt.
        Its record tells the end then; an attempt that the queue does not ask for is unknown there.
        """
        if self._stream is not None and not self._logs.follows(attempt):
            if not self._stream.has_asked_all:
                self._unwritten.add(attempt)
                self._unasked.add(attempt)
            return
        self._unwritten.add(attempt)
        may_be_of_allocation = self._is_allocated and not self._is_own_end(attempt, exit)
        hold_s = HOLD_S if may_be_of_allocation else 0.0
        message: Message = {
            "ev": "ended", "job": attempt.job, "attempt": attempt.number,
            "exit": stream.exit_to_json(exit),
        }  # fmt: skip
        self._send_behind_output(attempt, message, hold_s)

    def _is_own_end(self, attempt: Attempt, exit: Exit | None) -> bool:
        """True for an end that the end of the allocation does not explain.

        An engine that ends an allocation signals all of its processes, this one among the last.
        """
        if exit is None or exit.because is EndReason.CANCELLED:
            return exit is not None and attempt in self._stopped
        return exit.status == 0 or exit.because is not None

    def _send_behind_output(self, attempt: Attempt, message: Message, hold_s: float = 0.0) -> None:
        """Send the rest of an attempt's output, then a message; without a stream the next asks."""
        if self._stream is None:
            return
        if not hold_s and self._logs.finish_silent(attempt) and not self._folders.has_note(attempt):
            self._stream.send(message)
        else:
            sending = self._finish(self._stream, attempt, message, hold_s)
            task = asyncio.get_running_loop().create_task(sending)
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _finish(
        self, to: AgentStream, attempt: Attempt, message: Message, hold_s: float
    ) -> None:
        await self._logs.finish(attempt)
        message.update(await self._folders.files_for_home(attempt))
        if hold_s:
            await asyncio.sleep(hold_s)
        if not (hold_s and self._is_closed):  # else the engine tells how the allocation ended
            to.send(message)

    def _follow(self, attempt: Attempt, have: dict[str, int]) -> None:
        if self._stream is not None:
            self._logs.follow(attempt, have, self._stream.send, self._stream.room)


_HANDLERS: dict[str, Callable[[Agent, AgentStream, Message], None]] = {
    "hello": Agent._hello,
    "start": Agent._start,
    "stop": Agent._stop,
    "find": Agent._find,
    "all-asked": Agent._all_asked,
    "written": Agent._written,
    "remove": Agent._remove,
    "get": Agent._get,
    "drain-heard": Agent._drain_heard,
    "ping": Agent._ping,
}
