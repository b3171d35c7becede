"""`grn gpus` and `grn ps`: the machine as the negotiator sees it. Without click."""

from __future__ import annotations

import os

from grn import __version__, paths
from grn.cli.output import render
from grn.cli.output.terminal import echo, is_ascii, print_json, width
from grn.client import negotiator, queue
from grn.client.negotiator import ask_once
from grn.errors import DaemonNotRunning, GrnError, UsageError
from grn.paths import user_name
from grn.protocol.negotiator_rows import GpuRow, HostRow, LeaseRow, Status, WaitingRow
from grn.protocol.queue_rows import JobRow, NodeRow
from grn.protocol.rows import read, read_all  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MAX_JOBS = 20_000
MAX_SKIPPED = 500  # waiting jobs in front of those that have asked for GPUs
_BUSY = ["starting", "running", "stopping"]


def gpus(is_watched: bool, as_json: bool) -> int:
    """Show the GPUs of this machine, and those of sites."""
    if is_watched and as_json:
        raise UsageError(
            "--watch draws and --json prints.", "See `grn events --follow --only gpu`."
        )
    if is_watched:
        from grn.cli.commands.events import watch_gpus

        return watch_gpus()
    nodes = _nodes()
    try:
        status = ask_once({"op": "status"})["status"]
    except DaemonNotRunning:
        if nodes is None:
            raise
        status = {"schema": 1, "version": __version__, "gpus": []}  # this machine need not have any
    if as_json:
        keys = ("schema", "version", "gpus")
        shown = {key: status[key] for key in keys} | {"host": status.get("host")}
        return print_json(shown if nodes is None else {**shown, "nodes": nodes})
    elsewhere = read_all(NodeRow, nodes or ())
    found = read_all(GpuRow, status["gpus"])
    given = status.get("host")
    of_host = read(HostRow, given) if given else None
    echo(render.gpus(found, width(), is_ascii(), elsewhere, of_host))
    if status.get("trouble"):
        echo(f"warning: {status['trouble']}", err=True)
    return 0


def _nodes() -> list[dict[str, Any]] | None:
    """Return the nodes of the queue's sites, None without a site."""
    if "GRN_SITES" not in os.environ and not os.path.exists(paths.settings_file()):
        return None
    from grn import settings

    if not settings.load().sites:
        return None
    return list(queue.ask({"op": "sites"})["nodes"])


def ps(as_json: bool) -> int:
    """Show what runs and what waits, of all users; one's own jobs by their ids in the queue."""
    status = negotiator.status()
    if as_json:
        keys = ("schema", "version", "leases", "waiting")
        return print_json({key: status[key] for key in keys})
    found = read(Status, status)
    rows: list[LeaseRow | WaitingRow] = [*found.leases, *found.waiting]
    echo(render.ps(rows, user_name, width(), _own_jobs(rows), found.gpus))
    if found.trouble:
        echo(f"warning: {found.trouble}", err=True)
    return 0


def _own_jobs(rows: Sequence[LeaseRow | WaitingRow]) -> dict[str, JobRow]:
    """Return the jobs of this user's queue by their leases, or by the ids of their requests."""
    own = [row for row in rows if row.user == os.getuid()]
    by_tag = {row.tag: row.id for row in own if isinstance(row, WaitingRow)}
    if not own:
        return {}
    try:
        busy = _listed(_BUSY, MAX_JOBS)
        waiting = _listed(["queued"], len(by_tag) + MAX_SKIPPED) if by_tag else []
    except GrnError:
        return {}  # the leases are shown by their own ids
    jobs = {job.lease: job for job in busy if job.lease}
    return jobs | {by_tag[job.tag]: job for job in waiting if job.tag in by_tag}


def _listed(states: list[str], most: int) -> list[JobRow]:
    asked = {"op": "list", "which": "alive", "most": most, "states": states}
    return read_all(JobRow, map(queue.typed, queue.ask(asked, may_start=False)["jobs"]))
