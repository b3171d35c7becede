"""The small process around one command: proof of life, its output, its end, its whole tree.

Forked from a warm process (forker.py), so it costs no interpreter start, and used again for the
next command when one is waiting. It never waits for the queue: it writes down how the command
ended, and leaves when the queue is gone. Order: lock, claim, start the command as the reaper of its
orphans, wait, end what is left, write the exit record, let the lock go.
"""

from __future__ import annotations

import ctypes  # noqa: F401 - loaded before we fork, for adopt_orphans
import errno
import fcntl
import json
import os
import select
import signal
import struct
import time

from grn import processes, wire
from grn.client import frameworks, surroundings
from grn.client.connection import connect, drive
from grn.errors import GrnError
from grn.queue import attempt, logs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOT_RUNNABLE, NOT_FOUND = 126, 127
HOLD_AFTER_S, HOLD_AGAIN_S, HOLD_ANSWER_S = 0.03, 0.5, 2.0
LEFTOVER_S = 1.0  # what the command leaves behind may end by itself for so long
TAIL_BYTES = 64 << 10
FULL_DISK_S = 0.2
PIPE_READS = 16  # so many empty the largest pipe there is
HEADER = struct.Struct(">I")
_COMMON_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE,
                   signal.SIGXFSZ, signal.SIGCHLD)  # fmt: skip


class Shim:
    """One attempt at one command."""

    def __init__(self, order: dict[str, Any], wake: int, channel: Channel | None = None) -> None:
        self._order = order
        self._wake = wake  # gets a byte for each signal
        self._channel = channel
        self._folder: str = order["folder"]
        self._grace_s: float = order["grace_s"]
        self._main = 0  # pid of the command
        self._stop = ""  # why it is being ended: cancelled, timed-out
        self._kill_at: float | None = None
        self._hold_at: float | None = None  # when to bind the lease to the command
        self._error_tail = b""

    def run(self) -> None:
        """Do all of it; return when the exit record is written."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        lock = attempt.take_lock(self._folder)
        if lock is None:
            return  # somebody else has begun it
        try:
            if attempt.claim(self._folder, f"{os.getpid()} {_started_ticks()}"):
                self._run_claimed()
        finally:
            os.close(lock)

    def _run_claimed(self) -> None:
        began = time.monotonic()
        try:
            out, err = self._start()
        except OSError as error:
            self._write_exit(self._not_started(error), began, None)
            return
        self._hold_at = began + HOLD_AFTER_S
        status, usage = self._wait(out, err, began)
        self._end_leftovers()
        self._write_exit(self._record(status), began, usage)

    # --- starting ------------------------------------------------------------------------

    def _start(self) -> tuple[int, int]:
        """Start the command; return the pipes its output comes from."""
        order = self._order
        os.chdir(wire.meant(order["cwd"]))
        own = {wire.meant(name): wire.meant(value) for name, value in order["env"].items()}
        environment = surroundings.for_command(order["lease"], order["visible"], own)
        argv = [wire.meant(word) for word in order["argv"]]
        program = processes.find_program(argv[0], environment.get("PATH", os.defpath))
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        mask = os.umask(order["umask"])
        try:
            self._main = os.posix_spawn(
                program,
                argv,
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, out_end, 1),
                    (os.POSIX_SPAWN_DUP2, err_end, 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=_COMMON_SIGNALS,
            )
        except OSError:
            os.close(out)
            os.close(err)
            raise
        finally:
            os.umask(mask)
            for fd in (null, out_end, err_end):
                os.close(fd)
        return out, err

    def _not_started(self, error: OSError) -> dict[str, Any]:
        known = error.errno in (errno.ENOENT, errno.ENOTDIR)
        text = f"{error.filename or self._order['argv'][0]}: {error.strerror}"
        status = NOT_FOUND if known else NOT_RUNNABLE
        plain = text.encode("utf-8", "backslashreplace").decode()
        return {"status": status, "because": "not-runnable", "text": plain}

    def _hold(self) -> None:
        """Bind the lease to the command, so that it outlives the queue; try again if need be.

        A command that is over by now never needs it: until then the queue holds the lease.
        """
        self._hold_at = None
        if not self._order["lease"]:
            return
        try:
            connection = connect()
        except GrnError:
            self._hold_at = time.monotonic() + HOLD_AGAIN_S
            return
        try:
            message = {"op": "hold", "lease": self._order["lease"], "pid": self._main}
            drive(connection.ask(message, HOLD_ANSWER_S))
        except OSError:
            self._hold_at = time.monotonic() + HOLD_AGAIN_S
        except GrnError:
            pass  # the lease has ended meanwhile: there is nothing to hold
        finally:
            connection.close()

    # --- waiting -------------------------------------------------------------------------

    def _wait(self, out: int, err: int, began: float) -> tuple[int, Any]:
        """Carry the output into files until the command ends; keep to its time limit."""
        cap = self._order["log_bytes"]
        log = logs.CappedLog(os.path.join(self._folder, "log"), cap)
        errors = logs.CappedLog(os.path.join(self._folder, "err"), cap)
        pipes = {out: (log,), err: (log, errors)}
        poll = select.poll()
        for fd in (out, err, self._wake):
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        if self._channel is not None and self._hear_queue():  # it may have spoken already
            poll.register(self._channel.fd, select.POLLIN)
        ended = None
        while ended is None:
            for fd, _ in poll.poll(self._patience_ms(began)):
                if fd in pipes:
                    is_open = self._carry(fd, pipes[fd], fd == err)
                else:
                    is_open = self._hear_signals() if fd == self._wake else self._hear_queue()
                if not is_open:
                    poll.unregister(fd)
            self._keep_time(began)
            ended = self._ended_main()
        for fd, targets in pipes.items():  # what is in the pipes already belongs to the log
            for _ in range(PIPE_READS):  # and no more: what is left behind may write for ever
                if self._carry(fd, targets, fd == err) != 1:
                    break
            os.close(fd)
        log.close()
        errors.close()
        return ended

    def _carry(self, fd: int, targets: tuple[logs.CappedLog, ...], is_error: bool) -> int:
        """Move one piece of output; 0 at its end, 1 when moved, 2 when there is none now."""
        data = _read_some(fd)
        if data is None:
            return 2
        for target in targets:
            target.write(data)
        if is_error and data:
            self._error_tail = (self._error_tail + data)[-TAIL_BYTES:]
        return 1 if data else 0

    def _ended_main(self) -> tuple[int, Any] | None:
        """Reap what has ended; return the command's status when it is among it."""
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

    def _hear_signals(self) -> bool:
        signals = _read_some(self._wake) or b""
        if signal.SIGUSR1 in signals:
            self._kill_now()
        elif signal.SIGTERM in signals:
            self._begin_stop("cancelled")
        return True

    def _hear_queue(self) -> bool:
        """Hear the queue ask for the end; False when it is gone, and we go on without it."""
        assert self._channel is not None
        while (order := self._channel.next()) is not None:
            if order.get("stop") == self._folder:
                if order["now"]:
                    self._kill_now()
                else:
                    self._begin_stop("cancelled")
        return self._channel.is_open

    def _kill_now(self) -> None:
        self._stop = self._stop or "cancelled"
        self._grace_s = 0.0  # for what forks meanwhile
        self._signal_all(signal.SIGKILL)

    def _keep_time(self, began: float) -> None:
        now = time.monotonic()
        limit = self._order["time_limit_s"]
        if limit is not None and now - began >= limit and not self._stop:
            self._begin_stop("timed-out")
        if self._hold_at is not None and now >= self._hold_at:
            self._hold()
        if self._kill_at is not None and now >= self._kill_at:
            self._signal_all(signal.SIGKILL)
            self._kill_at = now + 1.0

    def _patience_ms(self, began: float) -> int | None:
        times = [at for at in (self._kill_at, self._hold_at) if at is not None]
        if self._order["time_limit_s"] is not None and not self._stop:
            times.append(began + self._order["time_limit_s"])
        if not times:
            return None
        return max(1, int((min(times) - time.monotonic()) * 1000) + 1)

    def _begin_stop(self, why: str) -> None:
        if not self._stop:
            self._stop = why
            self._kill_at = time.monotonic() + self._grace_s
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # a stopped process hears nothing

    # --- the whole tree ------------------------------------------------------------------

    def _end_leftovers(self) -> None:
        """End what the command left behind: orphans are our children now."""
        deadline = time.monotonic() + LEFTOVER_S
        step = "wait"
        while processes.has_children():
            self._hear_signals()
            if self._channel is not None:
                self._hear_queue()
            now = time.monotonic()
            if step == "wait" and (self._stop or now >= deadline):
                self._signal_all(signal.SIGTERM)
                self._signal_all(signal.SIGCONT)
                step, deadline = "asked", now + self._grace_s
            elif step == "asked" and (now >= deadline or not self._grace_s):
                self._signal_all(signal.SIGKILL)
                deadline = now + 0.2
            time.sleep(0.005 if step == "wait" else 0.02)
            self._ended_main()

    def _signal_all(self, signum: int) -> None:
        """Signal every process below us; those that fork meanwhile are met at the next look."""
        for process in processes.below(os.getpid()):
            processes.send(process, signum)  # false when it changed its user: not ours any more
        if signum == signal.SIGKILL:
            processes.kill_children()

    # --- the record ----------------------------------------------------------------------

    def _record(self, status: int) -> dict[str, Any]:
        code = os.waitstatus_to_exitcode(status)
        record: dict[str, Any] = {"status": code if code >= 0 else None}
        if code < 0:
            record["signal"] = -code
        text = self._error_tail.decode(errors="replace")
        if self._stop and code != 0:
            record["because"] = self._stop
        elif code != 0 and frameworks.is_out_of_memory_text(text):
            record["because"] = "out-of-memory"
            record["asked"] = frameworks.asked_bytes(text)
        return record

    def _write_exit(self, record: dict[str, Any], began: float, usage: Any) -> None:
        record["ran_s"] = time.monotonic() - began
        record["ended_at"] = time.time()
        if usage is not None:
            record["resident"] = usage.ru_maxrss * 1024
        while True:
            is_synced = not _is_held(self._order["queue_lock"])
            try:
                attempt.write_exit(self._folder, record, is_synced=is_synced)
                return
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
            time.sleep(FULL_DISK_S)  # without the record nobody would ever know how it ended


class Channel:
    """The line to the queue: orders come in, one byte goes out for each that is done."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_open = True
        self._buffer = b""
        os.set_blocking(fd, False)

    def next(self) -> dict[str, Any] | None:
        """Return the next order that has come in whole; notes when the queue is gone."""
        while self.is_open and (data := _read_some(self.fd)) is not None:
            self.is_open = bool(data)
            self._buffer += data
        if len(self._buffer) < HEADER.size:
            return None
        end = HEADER.size + HEADER.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        order: dict[str, Any] = json.loads(self._buffer[HEADER.size : end])
        self._buffer = self._buffer[end:]
        return order

    def wait(self) -> None:
        """Wait for something to read."""
        select.select([self.fd], [], [])

    def say_done(self) -> None:
        """Tell the queue that the order is done; a queue that is gone need not know."""
        try:
            os.write(self.fd, b".")
        except OSError:
            self.is_open = False


def serve(fd: int) -> None:
    """Be a shim for one order after the other, until the queue hangs up."""
    os.setsid()
    wake = listen_for_signals()
    channel = Channel(fd)
    environments: dict[int, dict[str, str]] = {}
    while True:
        order = channel.next()
        if order is None:
            if not channel.is_open:
                os._exit(0)
            channel.wait()
        elif "folder" in order:
            environments.update({int(name): env for name, env in order["new"].items()})
            order["env"] = {**environments[order["base"]], **order["extra"]}
            run(order, wake, channel)
            channel.say_done()


def run(order: dict[str, Any], wake: int, channel: Channel | None = None) -> None:
    """Be the shim of one attempt."""
    try:
        Shim(order, wake, channel).run()
    except Exception:
        # The last edge of this process: say in the attempt's folder what broke; the queue sees a
        # free lock without an exit record and calls the attempt lost.
        import traceback

        with open(os.path.join(order["folder"], "shim-error"), "w") as file:
            traceback.print_exc(file=file)
        os._exit(1)


def listen_for_signals() -> int:
    """Turn signals into bytes on a pipe: TERM stops the command, USR1 kills it at once."""
    processes.adopt_orphans()
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    return wake


def _read_some(fd: int) -> bytes | None:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None


def _started_ticks() -> int:
    own = processes.look(os.getpid())
    assert own is not None
    return own.started_ticks


def _is_held(lock_path: str) -> bool:
    """True while the queue lives: then it keeps what we write and we need not wait for the disk."""
    try:
        fd = os.open(lock_path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
