"""The agent on a node: runs attempts for one queue at home, with the launcher and shims of a queue.

It decides nothing about jobs. It serves one stream at a time, the newest; attempts continue without
one, and their ends stay in their records until the queue has written them. Run as
`python -m grn.queue.sites.agent`; `pipe.py` starts it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from grn import __version__, paths, settings, wire
from grn.client import daemons
from grn.client.negotiator import call
from grn.daemon import process
from grn.daemon.lockfile import DaemonLock, state_folder
from grn.errors import GrnError, ProtocolError
from grn.model.job import Holder
from grn.proc import pidfd, terminate
from grn.proc.pidfd import credentials
from grn.proc.processes import boot_id, mounts
from grn.proc.spawn import SERVICE
from grn.proc.watch import Watches
from grn.queue.job import AttemptFate, EndReason, Exit
from grn.queue.journal.rows import Command
from grn.queue.local.launcher import Launcher
from grn.queue.local.workers import LaunchSettings
from grn.queue.site import Attempt
from grn.queue.sites import stream
from grn.queue.sites.log_pusher import LogPusher
from grn.queue.sites.pipe import socket_of, version_file
from grn.queue.sites.stream import Frame, LeaseBytes, Message

log = logging.getLogger("grn.agent")
IDLE_EXIT_S = 60.0
SILENT_S = 60.0  # the queue pings every ten seconds
LOOK_S = 1.0
HOLD_S = 1.0
END_S = 10.0
LEFT = 10  # exit status of an agent that left because nothing is to be done here any more
RETRY_S = 1.0
MAX_UNSENT = 8 << 20
_BORN = time.time_ns()  # with the pid: which agent this is
ALLOCATION = "GRN_ALLOCATION"  # the engine's name of the allocation that this node belongs to
QUEUE_ID = re.compile(r"[0-9a-f]{8,64}")
# Variables that name things of one machine: a job gets those of the node that it runs on.
_OF_MACHINE = re.compile(
    r"(GRN_(?!SEPARATE_STDERR$)|SLURM_|RAY_|XDG_|SSH_|DBUS_|CUDA_VISIBLE_DEVICES$|CUDA_DEVICE_ORDER$|TMPDIR$|TMP$|TEMP$"
    r"|HOSTNAME$|DISPLAY$|WAYLAND_DISPLAY$|XAUTHORITY$|PWD$|OLDPWD$|SHLVL$|TERM"
    r"|HOME$|USER$|LOGNAME$|SHELL$|MAIL$)"
)


def epoch() -> str:
    """Return the life of this node: its boot, and the allocation that it belongs to."""
    allocation = os.environ.get(ALLOCATION, "")
    return f"{boot_id()[:13]}{'+' if allocation else ''}{allocation}"


def is_allocated() -> bool:
    """True on a node that an engine gave for a time, and takes back."""
    return ALLOCATION in os.environ


class AgentStream(asyncio.Protocol):
    """One connection of the queue."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._reader = stream.FrameReader()
        self._transport: asyncio.Transport | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.is_greeted = False
        self.heard_at = time.monotonic()
        self.has_heard_of_drain = False  # the queue starts nothing new here
        self.environments: dict[int, dict[str, str]] = {}  # by the queue's number of each

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(MAX_UNSENT)
        peer = transport.get_extra_info("socket")
        if credentials(peer)[1] != os.getuid():
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        try:
            for frame in self._reader.feed(data):
                self._agent.receive(self, frame)
        except (GrnError, OSError, LookupError, TypeError, ValueError) as error:
            text = error.message if isinstance(error, GrnError) else str(error)
            log.error("action=receive result=failed reason=%r", text)
            self.send({"ev": "refused", "text": text})
            self.close()

    def send(self, frame: Frame) -> None:
        """Send one frame; without a connection it is dropped."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(stream.encode(frame))

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    async def room(self) -> bool:
        """Wait until the queue reads on; False when the connection is lost."""
        await self._may_write.wait()
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close the connection once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once: the other end may not read any more."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._may_write.set()
        self._agent.stream_lost(self)


class Agent:
    """The attempts on this node, and the stream of the queue."""

    def __init__(self, launch: LaunchSettings) -> None:
        self._launcher = Launcher(launch, self)
        self._logs = LogPusher(self._launcher.folder)
        self._stream: AgentStream | None = None
        self._link = NegotiatorLink(self._from_negotiator, self._negotiator_changed)
        self._linking: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._unwritten: set[Attempt] = set()  # ended, and the queue has not written it yet
        self._stopped: set[Attempt] = set()  # by the queue
        self._has_earlier = is_allocated() and os.path.isdir(launch.root)  # of an agent before
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

    @property
    def is_idle(self) -> bool:
        """True when no queue is connected, no attempt runs, and none has an end to be told."""
        return self._stream is None and self._is_empty and not self._has_earlier

    @property
    def _is_empty(self) -> bool:
        return not self._launcher.has_attempts and not self._unwritten

    @property
    def may_leave(self) -> bool:
        """True when it is drained: nothing is left here, and the queue knows that it drains."""
        if self._stream is None:
            return self._is_draining and self.is_idle
        return self._is_draining and self._is_empty and self._stream.has_heard_of_drain

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
        elif isinstance(frame, dict):
            if not source.is_greeted and frame.get("op") != "hello":
                raise ProtocolError("a stream begins with hello.")
            if source.is_greeted and source is not self._stream:
                return  # a newer stream has taken over
            handler = _HANDLERS.get(str(frame.get("op")))
            if handler is None:
                raise ProtocolError(f"{frame.get('op')!r} is no message for an agent.")
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
        self._has_earlier = False  # the queue asks for all that it does not know the end of
        if before is not None:
            before.abort()
            self._logs.stop()
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
            source.environments[number] = _environment_here(message["variables"])
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
        )  # fmt: skip
        if not self._launcher.runs(attempt):
            self._launcher.start(attempt, command, str(message["lease"]), str(message["visible"]))
        self._follow(attempt, {})

    def _stop(self, _source: AgentStream, message: Message) -> None:
        attempt = stream.attempt_in(message)
        self._stopped.add(attempt)
        self._launcher.stop(attempt, bool(message.get("now")))

    def _find(self, _source: AgentStream, message: Message) -> None:
        """Report what became of an attempt that the queue believes to be here."""
        attempt = stream.attempt_in(message)
        have = {str(name): int(size) for name, size in dict(message["have"]).items()}
        if self._launcher.runs(attempt):
            fate = AttemptFate.ALIVE
        else:
            fate = self._launcher.find(attempt, message.get("epoch") == epoch()).fate
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

    def _written(self, _source: AgentStream, message: Message) -> None:
        """Note that the queue has an end; its copy of the output is whole unless it says so."""
        attempt = stream.attempt_in(message)
        self._unwritten.discard(attempt)
        self._stopped.discard(attempt)
        self._launcher.written(attempt)
        if not message.get("keep"):
            shutil.rmtree(self._launcher.folder(attempt), ignore_errors=True)

    def _remove(self, _source: AgentStream, message: Message) -> None:
        jobs = [(int(job), int(attempts)) for job, attempts in message["jobs"]]
        self._launcher.remove(jobs)

    def _drain_heard(self, source: AgentStream, _message: Message) -> None:
        source.has_heard_of_drain = True

    def _ping(self, source: AgentStream, _message: Message) -> None:
        source.send({"ev": "pong"})

    # --- reports of the launcher ---------------------------------------------------------

    def attempt_started(self, attempt: Attempt) -> None:
        """Tell the queue that an attempt has a shim."""
        self._send({"ev": "started", "job": attempt.job, "attempt": attempt.number})

    def attempt_ended(self, attempt: Attempt, exit: Exit | None) -> None:
        """Tell the queue how an attempt ended, behind all of its output."""
        self._unwritten.add(attempt)
        may_be_of_allocation = is_allocated() and not self._is_own_end(attempt, exit)
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
        if self._stream is not None:
            sending = self._finish(self._stream, attempt, message, hold_s)
            task = asyncio.get_running_loop().create_task(sending)
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _finish(
        self, to: AgentStream, attempt: Attempt, message: Message, hold_s: float
    ) -> None:
        await self._logs.finish(attempt)
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
    "written": Agent._written,
    "remove": Agent._remove,
    "drain-heard": Agent._drain_heard,
    "ping": Agent._ping,
}


class NegotiatorLink(asyncio.Protocol):
    """A connection to the node's negotiator; its bytes are relayed unread."""

    def __init__(
        self, received: Callable[[bytes], None], changed: Callable[[bool, str], None]
    ) -> None:
        self._received = received
        self._changed = changed
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()

    async def keep_connected(self) -> None:
        """Connect, and connect again after a loss; start a negotiator if none answers."""
        loop = asyncio.get_running_loop()
        told: str | None = None
        while True:
            trouble = ""
            try:
                await loop.run_in_executor(None, daemons.ensure_negotiator, None)
                self._lost.clear()
                sock = await loop.run_in_executor(None, call)
                await loop.create_unix_connection(lambda: self, sock=sock)
            except GrnError as error:
                trouble = f"{error.message} {error.hint}".strip()
            except OSError as error:
                trouble = str(error)
            else:
                told = None
                self._changed(True, "")
                await self._lost.wait()
                self._changed(False, "its negotiator has ended")
            if trouble and trouble != told:
                told = trouble
                self._changed(False, trouble)
            await asyncio.sleep(RETRY_S if trouble else 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()

    def write(self, data: bytes) -> None:
        """Pass bytes on; without a negotiator they are dropped, and asked again later."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


def _environment_here(variables: Any) -> dict[str, str]:
    """Return the submitter's variables, with those of a machine taken from this node."""
    sent = {str(name): str(value) for name, value in dict(variables).items()}
    kept = {name: value for name, value in sent.items() if not is_of_machine(name)}
    here = {
        wire.spelled(name): wire.spelled(value)
        for name, value in os.environ.items() if is_of_machine(name)
    }  # fmt: skip
    return {**here, **kept, "PATH": _path(kept.get("PATH", ""))}


def _path(sent: str) -> str:
    """Return the submitter's PATH, and behind it what only this node has."""
    folders = [*wire.meant(sent).split(os.pathsep), *os.get_exec_path()]
    return wire.spelled(os.pathsep.join(filter(None, dict.fromkeys(folders))))


def is_of_machine(name: str) -> bool:
    """True for a variable that names something of one machine."""
    return _OF_MACHINE.match(name) is not None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until it is idle or a signal stops it."""
    parser = process.parser("grn.queue.sites.agent")
    parser.add_argument("--queue", required=True, help="the identity of the queue it works for")
    parser.add_argument("--stay", action="store_true", help="do not exit when idle")
    parser.add_argument("--idle-s", type=float, default=IDLE_EXIT_S, help="exit when so long idle")
    parser.add_argument("--draining", action="store_true", help="take nothing new")
    parser.add_argument("--bound-to", metavar="PID[:TICKS]",
                        help="kill all attempts when this process ends")  # fmt: skip
    arguments = parser.parse_args(argv)
    process.log_to_stderr(arguments.log)
    os.environ.pop(SERVICE, None)
    try:
        if not QUEUE_ID.fullmatch(arguments.queue):
            raise ProtocolError(f"{arguments.queue!r} is no identity of a queue.")
        chosen = settings.load()
        with DaemonLock(socket_of(arguments.queue), is_private=True) as lock:
            return asyncio.run(_serve(chosen, lock, arguments))
    except GrnError as error:
        process.report(arguments.ready_fd, f"error: {error.message} {error.hint}".strip())
        print(f"error: {error.message} {error.hint}".strip(), file=sys.stderr)
        return error.exit_code


async def _serve(chosen: settings.Settings, lock: DaemonLock, arguments: argparse.Namespace) -> int:
    state, note = state_folder(mounts())
    if note:
        log.warning(note)
    agent = Agent(LaunchSettings(
        root=os.path.join(state, "agent", arguments.queue),
        queue_id=arguments.queue,
        queue_lock=lock.lock_path,
        grace_s=chosen.grace_to_end_s,
        log_bytes=chosen.log_bytes,
    ))  # fmt: skip
    stopped = process.stop_event()
    agent.open()
    await lock.serve(agent.new_stream)
    _write_version(version_file(arguments.queue))
    idle_s = None if arguments.stay else arguments.idle_s
    leaving = asyncio.create_task(_until_done(agent, idle_s))
    leaving.add_done_callback(lambda _: stopped.set())
    tasks = [asyncio.create_task(lock.look_after(stopped.set)), leaving]
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, agent.drain)
    if arguments.draining:
        agent.drain()
    if arguments.bound_to:
        _bind(agent, arguments.bound_to, stopped)
    log.info("action=ready epoch=%s", epoch())
    process.report(arguments.ready_fd, "ready")
    await stopped.wait()
    has_left = leaving.done()
    if has_left and is_allocated():
        with contextlib.suppress(OSError), open(left_mark(lock.socket_path), "w"):
            pass  # before the socket is closed: else this looks like the end of a killed agent
    lock.close()
    for task in tasks:
        task.cancel()
    agent.close()
    if agent.is_orphaned:
        end_allocation()
    return LEFT if has_left else 0


async def _until_done(agent: Agent, idle_s: float | None) -> None:
    """Drop dead streams until the agent is drained, or has been idle for a while."""
    while not agent.may_leave:
        agent.drop_silent_stream()
        idle_for_s = time.monotonic() - agent.idle_since
        if idle_s is not None and agent.is_idle and idle_for_s >= idle_s:
            return
        await asyncio.sleep(LOOK_S)


def _bind(agent: Agent, holder: str, stopped: asyncio.Event) -> None:
    """End with a process, and kill all attempts then.

    Without the time of its start it is the parent of this process.
    """
    pid, _, ticks = holder.partition(":")

    def gone(_pid: int) -> None:
        log.error("action=end-all reason='the process that keeps this agent has ended'")
        agent.end_all()
        agent.is_orphaned = bool(ticks)
        stopped.set()

    fd = pidfd.open_pidfd(Holder(int(pid), int(ticks))) if ticks else pidfd.of_parent(int(pid))
    if fd is None:
        gone(int(pid))
    else:
        Watches(gone).add(int(pid), fd)


def left_mark(socket_path: str) -> str:
    """Return the file that shows that the agent of a socket has left on purpose."""
    return os.path.join(os.path.dirname(socket_path), "left")


def end_allocation() -> int:
    """Kill every process of this allocation but this one, and remove the folders named after it.

    Return how many processes could not be killed.
    """
    name = os.environ[ALLOCATION]
    left = terminate.end_having(f"{ALLOCATION}={name}", END_S)
    for folder in (os.path.dirname(paths.runtime_dir()), paths.state_dir()):
        if not left and os.path.basename(folder) == name:
            shutil.rmtree(folder, ignore_errors=True)
    return left


def _write_version(path: str) -> None:
    """Let a pipe see whether this agent is of its own version; without the file it is not."""
    with contextlib.suppress(OSError), open(path, "w") as file:
        file.write(__version__)


if __name__ == "__main__":
    sys.exit(main())
