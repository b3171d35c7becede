"""`grn gpus` and `grn ps`: the machine as the negotiator sees it. Without click."""

from __future__ import annotations

import os

from grn import __version__, paths
from grn.cli.output import ps_text, render
from grn.cli.output.terminal import echo, is_ascii, print_json, width
from grn.client import negotiator, queue
from grn.client.negotiator import ask_once
from grn.errors import DaemonNotRunning, GrnError, UsageError
from grn.paths import user_name
from grn.protocol.negotiator_rows import GpuRow, HostRow, Status, WaitingRow
from grn.protocol.queue_rows import JobRow, NodeRow
from grn.protocol.rows import read, read_all  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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
    nodes = nodes_of_sites()
    status = status_with(nodes, lambda: dict(ask_once({"op": "status"})["status"]))
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


def status_with(
    nodes: list[dict[str, Any]] | None, ask: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the state of this machine, which need not have a negotiator where there are sites."""
    try:
        return ask()
    except DaemonNotRunning:
        if nodes is None:
            raise
    return {
        "schema": 1, "version": __version__, "pid": 0, "trouble": None, "gpus": [], "leases": [],
        "waiting": [],
    }  # fmt: skip


def nodes_of_sites() -> list[dict[str, Any]] | None:
    """Return the nodes of the queue's sites, None without a site."""
    if "GRN_SITES" not in os.environ and not os.path.exists(paths.settings_file()):
        return None
    from grn import settings

    if not settings.load().sites:
        return None
    return list(queue.ask({"op": "sites"})["nodes"])


def ps(as_json: bool) -> int:
    """Show what runs and what waits, of all users; one's own jobs by their ids in the queue."""
    nodes = nodes_of_sites()
    status = status_with(nodes, negotiator.status)
    if as_json:
        keys = ("schema", "version", "leases", "waiting")
        shown = {key: status[key] for key in keys}
        return print_json(shown if nodes is None else {**shown, "nodes": nodes})
    found = read(Status, status)
    places = [ps_text.MachineRows("local", [*found.leases, *found.waiting], found.gpus)]
    for node in read_all(NodeRow, nodes or ()):
        places.append(ps_text.MachineRows(node.node, [*node.leases, *node.requests], node.gpus))
    echo(ps_text.ps(places, user_name, width(), _own_jobs(places)))
    if found.trouble:
        echo(f"warning: {found.trouble}", err=True)
    return 0


def _own_jobs(places: Sequence[ps_text.MachineRows]) -> dict[tuple[str, str], JobRow]:
    """Return the jobs of this user's queue by place and lease, or by place and request."""
    here, *_ = places
    own = [row for row in here.rows if row.user == os.getuid()]
    own += [row for place in places[1:] for row in place.rows]  # users there have other numbers
    by_tag: dict[str | None, list[tuple[str, str]]] = {}
    for place in places:
        for row in place.rows:
            if isinstance(row, WaitingRow):
                by_tag.setdefault(row.tag, []).append((place.name, row.id))
    if not own:
        return {}
    try:
        busy = _listed(_BUSY, MAX_JOBS)
        waiting = _listed(["queued"], len(by_tag) + MAX_SKIPPED) if by_tag else []
    except GrnError:
        return {}  # the leases are shown by their own ids
    jobs = {(job.where or "local", job.lease.rpartition("/")[2]): job for job in busy if job.lease}
    asked = {request: job for job in waiting if job.tag for request in by_tag.get(job.tag, ())}
    return jobs | asked


def _listed(states: list[str], most: int) -> list[JobRow]:
    asked = {"op": "list", "which": "alive", "most": most, "states": states}
    return read_all(JobRow, map(queue.typed, queue.ask(asked, may_start=False)["jobs"]))
