"""Run one command in the foreground under a lease of its own: the work of `grn exec`.

Does without click, which takes three times as long to import as the rest.
"""

from __future__ import annotations

import functools
import os
import selectors
import signal
import sys

from grn.cli.guard import say_error
from grn.client.leasing import frameworks, torch_cap
from grn.client.leasing.gpu_environment import cores_told, for_command
from grn.client.leasing.job_request import command_profile, lease_request
from grn.client.leasing.lease import IDLE, ClientLease, LeaseConnection, bind
from grn.client.leasing.wait_line import is_quiet, is_seen
from grn.errors import DaemonNotRunning, GrnError
from grn.model.oom_retry import Had, again, again_on_host
from grn.model.text import harmless
from grn.proc import pidfd, spawn, terminate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from grn.proc.memory_limit import JobLimit
    from grn.protocol.lease_messages import LeaseRequest, Settled

OWN_TROUBLE = 125
TAIL_BYTES = 64 << 10
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
              signal.SIGUSR2)  # fmt: skip


def run(
    command: tuple[str, ...],
    *,
    job_type: str | None = None,
    retry_oom: int = 0,
    quiet: bool = False,
    **needs: Any,
) -> int:
    """Run a command when GPUs have room for it; return its status."""
    try:
        found = command_profile(command)
        request = lease_request(job_type or found.type, job_type or found.label, **needs)
        spawn.find_program(command[0], os.environ.get("PATH", os.defpath))  # before any wait
        _reach_negotiator()
        request = request.but(args=found.args, code=found.code or None, command=True)
        return _repeat(command, request, retry_oom, quiet)
    except GrnError as error:
        say_error(error)
        return OWN_TROUBLE
    except FileNotFoundError as error:
        failure = spawn.not_started(command, error)
        _say(f"grn: {harmless(failure.trouble)}")
        return failure.status


def _reach_negotiator() -> None:
    """Connect for the lease; start a negotiator in the background if none answers."""
    connection = LeaseConnection()
    try:
        connection.open()
    except DaemonNotRunning:
        from grn.client.daemons import ensure_negotiator

        ensure_negotiator()
    else:
        IDLE.give(connection)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _repeat(command: tuple[str, ...], request: LeaseRequest, retry_oom: int, quiet: bool) -> int:
    """Run the command, and again after memory ran out if retries were requested."""
    had = Had()
    while True:
        lease = ClientLease(request.but(**had.told()), _how_to_say_why(quiet))
        status = _run_once(command, lease)
        settled = lease.settled
        if settled is None or settled.outcome not in ("oom", "out-of-ram"):
            return status
        said = f"grn: the command {harmless(settled.because or 'ran out of memory')}"
        following = _following(had, settled, retry_oom)
        if following is None:
            is_futile = retry_oom and settled.was_alone and settled.outcome == "oom"
            _say(said + ("; no larger GPU is managed here" if is_futile else ""))
            return status
        room = "as it is" if settled.is_victim and following.more == had.more else "with more room"
        _say(f"{said}; it runs again {room}")
        had = following


def _following(had: Had, settled: Settled, most: int) -> Had | None:
    """Count the run after one that ran out of memory, None when there is none."""
    if settled.outcome == "out-of-ram":
        return None if settled.was_alone else again_on_host(had, settled.is_victim, most)
    return again(had, settled.is_victim, most, settled.has_larger, settled.was_alone)


def _run_once(command: tuple[str, ...], lease: ClientLease) -> int:
    """Run the command under one lease and return its status."""
    lease.acquire()
    environment = dict(os.environ)
    capped: dict[str, str] = {}
    if not lease.is_nested:  # otherwise the outer job has set all of it
        environment.update(cores_told(lease.stated_cpus, environment))
        environment = for_command(lease.id, lease.visible_devices, environment)
        capped = torch_cap.variables(command, environment, lease.memory_cap)
        environment.update(capped)
    is_scanned = not _is_same_file(1, 2) and not os.isatty(2)
    reader, writer = os.pipe() if is_scanned else (-1, -1)
    sys.stdout.flush()
    sys.stderr.flush()
    limit = _limit_of(lease)
    become = functools.partial(_become, command, lease, environment, writer, limit)
    pid = spawn.patiently(lambda: spawn.fork(become))
    if is_scanned:
        os.close(writer)
    stopped_by = _pass_signals_to(pid)
    tail = _pump(reader, pid) if is_scanned else b""
    _, raw, usage = os.wait4(pid, 0)
    status = os.waitstatus_to_exitcode(raw)
    text = tail.decode(errors="replace")
    is_oom = status != 0 and frameworks.is_out_of_memory_text(text)
    unnamed = "killed" if frameworks.is_killed(status, text) else "failed"
    unfinished = "cancelled" if stopped_by else unnamed
    outcome = "ok" if status == 0 else "oom" if is_oom else unfinished
    if limit is not None:
        outcome = "out-of-ram" if outcome == "killed" and limit.was_hit() else outcome
        limit.leave()
    if is_oom and capped and frameworks.has_reached_cap(text):
        outcome = "capped"
    said: dict[str, Any] = {"outcome": outcome, "resident": max(1, usage.ru_maxrss * 1024)}
    if is_oom and (asked := frameworks.asked_bytes(text)):
        said["asked"] = asked
    lease.release(None, **said)
    return status if status >= 0 else 128 - status


def _limit_of(lease: ClientLease) -> JobLimit | None:
    """Return the limit of the command's memory, None where it is not stated."""
    if lease.stated_ram is None or lease.is_nested:
        return None
    from grn.proc import memory_limit  # few commands need it

    return memory_limit.JobLimit(memory_limit.here(), lease.stated_ram, lease.id)


def _how_to_say_why(quiet: bool) -> Callable[[str], None] | None:
    """Return what is told the reason of a wait; None leaves it to the line of the lease."""
    if quiet or is_quiet():
        return lambda _text: None
    return None if is_seen(sys.stderr) else _say_why


def _say_why(text: str) -> None:
    _say(f"grn: waiting: {harmless(text)}")


def _become(
    command: tuple[str, ...],
    lease: ClientLease,
    environment: dict[str, str],
    writer: int,
    limit: JobLimit | None,
) -> int:
    """In the child: take the lease over, so that it outlives `grn exec`, and be the command."""
    try:
        if writer >= 0:
            os.dup2(writer, 2)
        if not lease.is_nested:  # an outer lease stays with the outer job
            _end_by_ctrl_c()
            bind(lease.id)
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; programs expect them
            signal.signal(signum, signal.SIG_DFL)
        if not lease.is_nested:
            spawn.become_first_to_end()
        program = spawn.find_program(command[0], environment.get("PATH", os.defpath))
        argv = list(command)
        if limit is not None and (limited := limit.enter(argv)) is not argv:
            program, argv = limited[0], limited
        spawn.patiently(lambda: os.execve(program, argv, environment))
    except GrnError as error:
        os.write(2, f"grn: {command[0]}: {error}\n".encode())
        return OWN_TROUBLE
    except OSError as error:
        failure = spawn.not_started(command, error)
        os.write(2, os.fsencode(f"grn: {failure.trouble}\n"))
        return failure.status
    raise AssertionError("unreachable")


def _end_by_ctrl_c() -> None:
    """Let Ctrl-C end this process as it would end the command, also before the command runs."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _pass_signals_to(pid: int) -> set[int]:
    """Pass signals on to the command; return the set of those that asked it to end."""
    stopped_by: set[int] = set()

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        if signum in (signal.SIGINT, signal.SIGTERM):
            stopped_by.add(signum)
        from_terminal = signum in (signal.SIGINT, signal.SIGQUIT) and os.isatty(0)
        if not from_terminal:  # a terminal sends those to the command as well
            terminate.signal_child(pid, signum)

    for signum in _PASSED_ON:
        signal.signal(signum, pass_on)
    return stopped_by


def _pump(reader: int, pid: int) -> bytes:
    """Copy the command's standard error to ours until it ends; return the last of it."""
    tail = b""
    life = pidfd.open_child(pid)
    with selectors.DefaultSelector() as ready:
        ready.register(reader, selectors.EVENT_READ)
        ready.register(life, selectors.EVENT_READ)
        is_running = True
        while is_running:
            keys = [key.fd for key, _ in ready.select()]
            # Once the command has ended only what is in the pipe already is taken: a process
            # it left behind may keep the other end open for ever.
            is_running = life not in keys
            os.set_blocking(reader, False)
            while (chunk := _read(reader)) is not None:
                if not chunk:
                    is_running = False
                    break
                os.write(2, chunk)
                tail = (tail + chunk)[-TAIL_BYTES:]
    os.close(life)
    os.close(reader)
    return tail


def _read(fd: int) -> bytes | None:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None


def _is_same_file(first: int, second: int) -> bool:
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return True
