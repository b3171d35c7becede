"""The process around one command: lock, output, exit status, process tree.

Forked from a warm process (forker.py) and reused for the next command. It never waits for the
queue: it records how the command ended and exits when the queue is gone. Order: create the record
with claim and lock, start the command as the reaper of its orphans, wait, end leftovers, record the
end, release the lock.
"""

from __future__ import annotations

import contextlib
import ctypes  # noqa: F401 - loaded before we fork, for adopt_orphans
import errno
import functools
import os
import select
import signal
import time

from grn import wire
from grn.client import logs
from grn.client.connection import drive
from grn.client.leasing import frameworks, gpu_environment, torch_cap
from grn.client.logs import SEPARATE_STDERR
from grn.client.negotiator import connect
from grn.errors import GrnError
from grn.model.record import Record, fields_of
from grn.proc import processes, spawn, terminate
from grn.protocol.lease import bind_message
from grn.queue.local import attempt_files, output_log
from grn.queue.local.channel import Channel, GoOrder, StartOrder, read_some
from grn.queue.local.termination import Termination, listen_for_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from grn.client.connection import Connection
    from grn.proc.memory_limit import JobLimit

HOLD_AFTER_S, HOLD_AGAIN_S, HOLD_ANSWER_S = 0.03, 0.5, 2.0
TAIL_BYTES = 64 << 10
NOT_BEGUN = "ended before its command began"
FULL_DISK_S = 0.2
PIPE_READS = 16  # enough to empty the largest pipe
# A job must not depend on which signals the shell that started the queue had it ignore.
_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class StartedCommand(Record):
    """A running command and its output pipes.

    One pipe for both streams, since two could not keep their order; two if standard error is to
    be kept apart; none if it has its own log.
    """

    pid: int
    pipes: tuple[int, ...]
    log_start: int = 0  # how long its log was before
    is_capped: bool = False  # its framework was told how much GPU memory it may take


class Shim:
    """One attempt at one command."""

    def __init__(
        self, order: StartOrder, environment: dict[str, str], wake: int, channel: Channel
    ) -> None:
        self._order = order
        self._environment = environment  # of the command
        self._wake = wake  # gets a byte for each signal
        self._channel = channel
        self._folder = order.folder
        self._stopping = Termination(order, wake, channel)
        self._main = 0  # pid of the command
        self._hold_at: float | None = None  # when to bind the lease to the command
        self._line: Connection | None = None  # to the negotiator, once the lease is bound
        self._is_capped = False
        self._limit: JobLimit | None = None  # of its memory
        self._tail = bytearray()  # the end of its output, of standard error if that is apart
        self._file = -1  # the attempt's record, and our lock

    def run(self) -> bytes:
        """Run the attempt; return the exit record when it is written."""
        record = attempt_files.begin(self._folder, _identity(os.getpid()), self._order.spare)
        if record is None:
            return b"\n"  # another shim has begun it, or a queue has forbidden it
        self._file = record
        attempt_files.note_begun(self._order.begun, self._order.tag)
        try:
            return self._run_claimed()
        finally:
            os.close(record)

    def _run_claimed(self) -> bytes:
        began = time.monotonic()
        started = self._start()
        if isinstance(started, dict):
            if self._limit is not None:
                self._limit.leave()
            return self._write_exit(started, began)
        self._main, self._is_capped = started.pid, started.is_capped
        self._hold_at = began + HOLD_AFTER_S
        status, usage = self._wait(started.pipes)
        if not started.pipes:
            log = wire.meant(self._order.log)
            self._tail[:] = logs.tail(log, TAIL_BYTES, started.log_start)
        self._stopping.end_leftovers(self._ended_main)
        record = self._record(status)
        if self._limit is not None:
            if record.get("killed") and self._limit.was_hit():
                record["because"] = "out-of-ram"
            self._limit.leave()
        if (peak_bytes := attempt_files.take_peak(self._folder)) is not None:
            record["gpu_peak"] = peak_bytes
        record["resident"] = usage.ru_maxrss * 1024
        self._report_end(record)
        return self._write_exit(record, began)

    # --- starting ------------------------------------------------------------------------

    def _start(self) -> StartedCommand | dict[str, Any]:
        """Start the command under its lease, or return the record of one that did not begin."""
        pauses = spawn.pauses()
        if self._order.ram is not None:
            from grn.proc import memory_limit  # few jobs need it

            self._limit = memory_limit.JobLimit(
                memory_limit.here(), self._order.ram, self._order.tag
            )
        while True:
            is_leased = self._is_leased()
            if self._stopping.why:
                return {"status": None, "because": self._stopping.why, "text": NOT_BEGUN}
            if not is_leased:
                return _not_yet("its lease ended with its queue before it began")
            try:
                return start_command(self._order, self._environment, self._limit)
            except spawn.NotStarted as error:
                if not error.is_passing:
                    return _not_runnable(error)
                pause = next(pauses, None)
                if pause is None:
                    return _not_yet(f"could not be started yet: {error.trouble}")
            self._pause(pause)

    def _is_leased(self) -> bool:
        """True when the lease is held: by our queue, or by us if the queue is gone.

        Without a queue the lease ends within seconds, so it is taken over before the command
        begins. A command that has not begun can be given back; one that runs cannot.
        """
        if self._stopping.hear_queue() or not self._order.lease:
            return True
        while not self._stopping.why:
            is_bound = self._bind(None)
            if is_bound is not None:
                return is_bound
            self._pause(HOLD_AGAIN_S)
        return False

    def _pause(self, seconds: float) -> None:
        """Wait before the command begins; an order to stop ends the wait."""
        until = time.monotonic() + seconds
        while not self._stopping.why and (left := until - time.monotonic()) > 0:
            select.select([self._wake], [], [], left)  # a start that fails wakes us, by SIGCHLD
            self._stopping.hear_signals()
            self._stopping.hear_queue()

    def _hold(self) -> None:
        """Bind the lease to the command, so that it outlives the queue; try again if need be.

        A command that is over by now never needs it: until then the queue holds the lease.
        """
        self._hold_at = None
        if self._order.lease and self._bind(self._main) is None:
            self._hold_at = time.monotonic() + HOLD_AGAIN_S

    def _bind(self, pid: int | None) -> bool | None:
        """Bind the lease to a child or to this shim; False when it has ended, None to try again."""
        try:
            connection = connect()
        except GrnError:
            return None
        is_kept = False
        try:
            drive(connection.ask(bind_message(self._order.lease, pid), HOLD_ANSWER_S))
            is_kept = pid is not None
        except OSError:
            return None
        except GrnError:
            return False
        finally:
            if not is_kept:
                connection.close()
        self._line = connection if is_kept else None
        return True

    def _report_end(self, record: dict[str, Any]) -> None:
        """Report a good end of a bound lease: its GPUs are given on while the queue hears of it.

        The queue reports every end, and is answered with this one. A report that is lost is none.
        """
        if self._line is None:
            return
        if record["status"] == 0 and "because" not in record:
            message = {"op": "done", "lease": self._order.lease, "outcome": "ok", "quiet": True,
                       "resident": record["resident"]}  # fmt: skip
            if record.get("gpu_peak"):
                message["peak"] = record["gpu_peak"]
            with contextlib.suppress(OSError):
                drive(self._line.send(message))
        self._line.close()

    # --- waiting -------------------------------------------------------------------------

    def _wait(self, ends: tuple[int, ...]) -> tuple[int, Any]:
        """Copy the output into files until the command ends; enforce its time limit."""
        cap = self._order.log_bytes
        log = output_log.CappedLog(os.path.join(self._folder, "log"), cap)
        errors = output_log.CappedLog(os.path.join(self._folder, "err"), cap)
        pipes = dict(zip(ends, ((log,), (log, errors)), strict=False))
        last = ends[-1] if ends else -1
        poll = select.poll()
        for fd in (*ends, self._wake):
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        stopping = self._stopping
        if stopping.hear_queue():  # an order may have come in already
            poll.register(self._channel.fd, select.POLLIN)
        ended = None
        while ended is None:
            for fd, _ in poll.poll(self._patience_ms()):
                if fd in pipes:
                    is_open = self._carry(fd, pipes[fd], fd == last)
                else:
                    is_open = stopping.hear_signals() if fd == self._wake else stopping.hear_queue()
                if not is_open:
                    poll.unregister(fd)
            stopping.keep_time()
            if self._hold_at is not None and time.monotonic() >= self._hold_at:
                self._hold()
            ended = self._ended_main()
        for fd, targets in pipes.items():  # output in the pipes belongs to the log
            for _ in range(PIPE_READS):  # bounded: leftover processes may write for ever
                if self._carry(fd, targets, fd == last) != 1:
                    break
            os.close(fd)
        log.close()
        errors.close()
        return ended

    def _carry(self, fd: int, targets: tuple[output_log.CappedLog, ...], is_scanned: bool) -> int:
        """Copy one piece of output; 0 at its end, 1 when copied, 2 when there is none yet."""
        data = read_some(fd)
        if data is None:
            return 2
        for target in targets:
            target.write(data)
        if is_scanned:
            self._tail += data
            if len(self._tail) > 2 * TAIL_BYTES:
                del self._tail[:-TAIL_BYTES]
        return 1 if data else 0

    def _ended_main(self) -> tuple[int, Any] | None:
        """Reap ended children; return the command's status when it is among them."""
        found = None
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == self._main:
                found = (status, usage)

    def _patience_ms(self) -> int | None:
        times = [at for at in (self._stopping.next_at(), self._hold_at) if at is not None]
        if not times:
            return None
        return max(1, int((min(times) - time.monotonic()) * 1000) + 1)

    # --- the record ----------------------------------------------------------------------

    def _record(self, status: int) -> dict[str, Any]:
        code = os.waitstatus_to_exitcode(status)
        record: dict[str, Any] = {"status": code if code >= 0 else None}
        if code < 0:
            record["signal"] = -code
        text = self._tail[-TAIL_BYTES:].decode(errors="replace")
        # One that yields often saves its state and ends well: it is run again all the same.
        if self._stopping.why and (code != 0 or self._stopping.why == "yielded"):
            record["because"] = self._stopping.why
            record["text"] = self._stopping.text
        elif code != 0 and frameworks.is_out_of_memory_text(text):
            record["because"] = "out-of-memory"
            record["asked"] = frameworks.asked_bytes(text)
            if self._is_capped and frameworks.has_reached_cap(text):
                record["capped"] = True
        elif frameworks.is_killed(code, text):
            record["killed"] = True
        return record

    def _write_exit(self, record: dict[str, Any], began: float) -> bytes:
        record["ran_s"] = time.monotonic() - began
        record["ended_at"] = time.time()
        while True:
            is_synced = not _is_held(self._order.queue_lock)
            try:
                return attempt_files.write_exit(
                    self._file, self._folder, record, is_synced=is_synced
                )
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
            time.sleep(FULL_DISK_S)  # without the record its end would be lost


def serve(fd: int) -> None:
    """Serve one order after the other, until the queue closes the channel."""
    os.setsid()
    wake = listen_for_signals()
    channel = Channel(fd)
    environments: dict[int, dict[str, str]] = {}
    environment: dict[str, str] = {}
    start: StartOrder | None = None
    while True:
        order = channel.next()
        if order is None:
            if not channel.is_open:
                os._exit(0)
            channel.wait()
            continue
        if isinstance(order, StartOrder):
            if order.new_environment is not None:
                environments[order.environment_id] = _meant(order.new_environment)
            start, environment = order, environments[order.environment_id] | _meant(order.extra)
        elif isinstance(order, GoOrder):
            if start is None:
                os._exit(1)  # the queue starts it with another shim
            start = start.but(**fields_of(order), is_ahead=False)
        if start is not None and not start.is_ahead:
            order, start = start, None
            channel.say_done(run(order, environment, wake, channel))
            if terminate.has_children():  # a daemon that the command has started: not our tree
                os._exit(0)


def run(order: StartOrder, environment: dict[str, str], wake: int, channel: Channel) -> bytes:
    """Run one attempt; return its exit record."""
    try:
        return Shim(order, environment, wake, channel).run()
    except Exception:
        # The last resort: leave the traceback beside the record; the queue finds a free lock
        # without an end and reports the attempt as lost.
        import traceback

        with open(attempt_files.trouble_of(order.folder), "w") as file:
            traceback.print_exc(file=file)
        os._exit(1)


def start_command(
    order: StartOrder, environment: dict[str, str], limit: JobLimit | None = None
) -> StartedCommand:
    """Start the command of an order in this environment; raise NotStarted."""
    argv = [wire.meant(word) for word in order.argv]
    opened: list[int] = []
    mask = os.umask(order.umask)
    try:
        os.chdir(wire.meant(order.cwd))
        opened.append(null := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        pipes: tuple[int, ...] = ()
        log_start = 0
        if order.log:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            opened.append(out_end := os.open(wire.meant(order.log), flags, 0o666))
            err_end, log_start = out_end, os.fstat(out_end).st_size
        else:
            out, out_end = os.pipe()
            opened += (out, out_end)
            pipes, err_end = (out,), out_end
            if environment.get(SEPARATE_STDERR, "0") not in ("", "0"):
                err, err_end = os.pipe()
                opened += (err, err_end)
                pipes = (out, err)
        environment = {**gpu_environment.LOGGED_UNLESS_SET, **environment}
        environment = gpu_environment.for_command(order.lease, order.visible, environment)
        capped = torch_cap.variables(argv, environment, order.cap)
        environment.update(capped)
        files = (null, out_end, err_end)
        if limit is not None:
            spawn.find_program(argv[0], environment.get("PATH") or os.defpath)
            argv = limit.enter(argv)
        pid = spawn.command(argv, environment, files, _SIGNALS, setsid=True)
        opened = [fd for fd in opened if fd not in pipes]
    except OSError as error:
        raise spawn.not_started(argv, error) from error
    finally:
        os.umask(mask)
        for fd in opened:
            os.close(fd)
    return StartedCommand(pid, pipes, log_start, bool(capped))


def _meant(environment: dict[str, str]) -> dict[str, str]:
    """Decode an environment."""
    return {wire.meant(name): wire.meant(value) for name, value in environment.items()}


def _not_runnable(error: spawn.NotStarted) -> dict[str, Any]:
    """Return the exit record of a command that could not start, with a shell's status."""
    plain = error.trouble.encode("utf-8", "backslashreplace").decode()
    return {"status": error.status, "because": "not-runnable", "text": plain}


def _not_yet(why: str) -> dict[str, Any]:
    """Return the exit record of a command that is to start later."""
    return {"status": None, "because": "not-started", "text": why}


@functools.lru_cache(maxsize=1)
def _identity(pid: int) -> str:
    """Return the identity of this process: pid and start time."""
    own = processes.look(pid)
    assert own is not None
    return f"{pid} {own.started_ticks}"


def _is_held(lock_path: str) -> bool:
    """True while the queue lives: it persists the end, so the shim need not sync it."""
    try:
        return attempt_files.is_file_locked(lock_path)
    except OSError:  # no locks there: unknown
        return False
