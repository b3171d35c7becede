"""`grn select`: GPUs for a script that needs only their numbers.

The calling process holds the lease, and the lease ends with that process.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import stat
from types import FrameType
from typing import Any

import click

from grn.cli.help import command, flag
from grn.cli.options import json_flag, needs
from grn.cli.output.terminal import print_json
from grn.client import negotiator
from grn.client.daemons import ensure_negotiator
from grn.client.leasing.gpu_environment import for_command
from grn.client.leasing.job_request import lease_request
from grn.client.leasing.lease import ClientLease, bind
from grn.errors import DaemonNotRunning, MachineError, UsageError
from grn.model.text import harmless
from grn.proc import processes
from grn.protocol.lease_messages import LeaseRequest
from grn.protocol.negotiator_rows import Status
from grn.protocol.rows import read

NOT_NOW = 1
_NEEDS = ("gpus", "mem", "cpus", "ram", "priority", "on", "without", "idle_limit")


class _TooLong(Exception):
    """The timeout has passed."""


@command()
@needs(without="exclusive", mem="Memory on each GPU, such as 6GiB; whole GPUs if not given.",
       job_type="Ask for what this job type needs.")  # fmt: skip
@flag("--pack", is_flag=True, help="Prefer the fullest GPU that fits.")
@flag("--timeout", type=click.FloatRange(0), metavar="S",
              help="Wait at most S seconds, then exit with 1; 0: do not wait.")  # fmt: skip
@flag("--for", "pid", type=click.IntRange(1), metavar="PID",
              help="Process that holds the GPUs, an ancestor of this one, such as $$.")  # fmt: skip
@flag("--release", is_flag=True, help="Release the GPUs that this process has selected.")
@flag("--uuid", "naming", flag_value="uuid", help="Print UUIDs instead of numbers.")
@flag("--index", "naming", flag_value="index",
              help="Print numbers, or fail where they could be misleading.")  # fmt: skip
@flag("--export", is_flag=True, help="Print lines for the shell's eval.")
@json_flag
@flag("-q", "--quiet", is_flag=True, help="Do not print why it waits.")
def select(pid: int | None, release: bool, timeout: float | None, **options: Any) -> int:
    """Reserve GPUs for the calling process and print their numbers.

    The GPUs stay reserved until that process, usually the shell of a script, ends, selects again,
    or releases them with --release.
    """
    holder = pid or _calling_process()
    mark = _mark_of(holder)
    if mark is None or not _is_above(holder):
        raise UsageError(
            f"process {holder} is not an ancestor of `grn select`: it cannot hold GPUs.",
            "Name the shell that runs this one, as $$ does.",
        )
    if release:
        return 0 if _give_back(mark) else NOT_NOW
    ensure_negotiator()
    request = _request(holder, options)
    former = _leases()
    try:
        lease = _wait(mark, request, timeout, options["quiet"])
        if lease.id in former and not lease.is_nested:  # of the same key: selected before
            lease.release(None, outcome="ok")
            lease = _wait(mark, request, timeout, options["quiet"])
    except _TooLong:
        return NOT_NOW
    if options["naming"] == "index" and lease.indices is None:
        if not lease.is_nested:
            lease.release(None, outcome="failed")
        raise MachineError(
            "GPU numbers cannot be trusted here: a GPU is lost, a MIG slice, or counted"
            " differently in this container.",
            "Leave out --index: UUIDs are printed then, which CUDA_VISIBLE_DEVICES takes as well.",
        )
    if not lease.is_nested:
        _bind(lease, holder)
    return _show(lease, holder, options)


def _request(holder: int, options: dict[str, Any]) -> LeaseRequest:
    full, label = _name_of(holder)
    job_type, mem = options["job_type"], options["mem"]
    request = lease_request(
        job_type or full, job_type or label,
        # The end of the work is not reported, so nothing can be learned from it.
        exclusive=mem is None and job_type is None,
        policy="pack" if options["pack"] else "spread",
        **{name: options[name] for name in _NEEDS},
    )  # fmt: skip
    return request.but(command=True)


def _wait(mark: str, request: LeaseRequest, timeout_s: float | None, is_quiet: bool) -> ClientLease:
    """Wait for the GPUs, for ever without a timeout."""

    def hear(text: str) -> None:
        if not is_quiet:
            click.echo(f"grn: waiting: {harmless(text)}", err=True)
        if timeout_s == 0:
            raise _TooLong

    def ring(_signum: int, _frame: FrameType | None) -> None:
        raise _TooLong

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s or 0)
    try:
        return ClientLease(request, hear, key=mark).acquire()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _bind(lease: ClientLease, holder: int) -> None:
    """Bind the lease to the process it is for; end it if that fails."""
    try:
        bind(lease.id, holder)
    except BaseException:  # Ctrl-C as well: the numbers of these GPUs are not printed yet
        lease.release(None, outcome="failed")
        raise


def _give_back(mark: str) -> bool:
    """End the lease of the process of a mark; False when it has none."""
    os.environ.pop("GRN_LEASE", None)  # perhaps the very one, exported
    former = _leases()
    request = lease_request("grn select", "grn select").but(mem=1, command=True)
    try:
        lease = _wait(mark, request, 0, is_quiet=True) if former else None
    except _TooLong:
        return False
    if lease is None:
        return False
    is_former = lease.id in former
    lease.release(None, outcome="ok" if is_former else "failed")
    return is_former


def _leases() -> set[str]:
    """Return the ids of all leases that are held now; none without a negotiator."""
    try:
        return {row.id for row in read(Status, negotiator.status(negotiator.ask)).leases}
    except DaemonNotRunning:
        return set()


def _show(lease: ClientLease, holder: int, options: dict[str, Any]) -> int:
    # Inside another job it is that job's GPUs, as they are named there.
    visible = lease.visible_devices or os.environ.get("CUDA_VISIBLE_DEVICES", "")
    status = read(Status, negotiator.ask({"op": "status"})["status"])
    uuids = [gpu.uuid for gpu in status.gpus if lease.id in gpu.leases]
    if options["as_json"]:
        return print_json(
            {
                "schema": 1,
                "lease": lease.id,
                "gpus": list(lease.gpus),
                "uuids": uuids,
                "visible": visible,
                "pid": holder,
                "reserved_bytes": lease.reserved_bytes,
                "nested": lease.is_nested,
            }
        )
    if options["naming"] == "uuid":
        visible = ",".join(uuids)
    elif options["naming"] == "index" or not options["export"]:
        visible = lease.indices or visible
    if options["export"]:
        for name, value in for_command(lease.id, visible, {}).items():
            click.echo(f"export {name}={shlex.quote(value)}")
    else:
        click.echo(visible)
    return 0


# --- the process that called, which will hold the lease -----------------------------------


def _calling_process() -> int:
    """Return the pid of the shell or program that called us.

    Some shells put a copy of themselves in between for `$(…)`, which is gone as soon as our output
    is read. Such a copy writes into the same pipe as we do and runs the program of its parent.
    """
    pid = os.getppid()
    while (parent := _parent(pid)) > 0 and _writes_where_we_do(pid) and _is_copy(pid, parent):
        pid = parent
    return pid


def _is_above(pid: int) -> bool:
    """True for our parent, its parent, and so on."""
    above = os.getppid()
    while above not in (0, pid):
        above = _parent(above)
    return above == pid


def _mark_of(pid: int) -> str | None:
    """Return a key that no other process has, also in another container; None if it is gone."""
    found = processes.living(pid)
    if found is None:
        return None
    named = f"{processes.pid_namespace()}.{pid}.{found.started_ticks}"
    return hashlib.sha256(named.encode()).hexdigest()[:24]


def _name_of(pid: int) -> tuple[str, str]:
    """Name what a process runs, unambiguous and for people: its script, or where it is."""
    words = processes.words(pid)
    folder = processes.folder(pid) or os.getcwd()
    program = os.path.basename(words[0]).lstrip("-") if words else "?"
    for word in words[1:]:
        path = os.path.join(folder, word)
        if not word.startswith("-") and os.path.isfile(path):
            return os.path.realpath(path), word
    return f"{program} in {folder}", program


def _parent(pid: int) -> int:
    found = processes.look(pid)
    return found.parent if found is not None else 0


def _is_copy(pid: int, parent: int) -> bool:
    """True for a process that was forked and has become nothing else."""
    program = processes.program(pid)
    is_same = program is not None and program == processes.program(parent)
    return is_same and processes.words(pid) == processes.words(parent)


def _writes_where_we_do(pid: int) -> bool:
    ours, theirs = processes.file_status(os.getpid(), 1), processes.file_status(pid, 1)
    if ours is None or theirs is None:
        return False
    return stat.S_ISFIFO(ours.st_mode) and os.path.samestat(ours, theirs)
