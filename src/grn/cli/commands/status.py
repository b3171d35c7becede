"""Commands that only look: why, when, shares, audit, profiles. Each can print JSON."""

from __future__ import annotations

import time
from typing import Any

import click

from grn.cli import options
from grn.cli.commands import machine
from grn.cli.help import command, flag, group
from grn.cli.options import json_flag
from grn.cli.output import idle_text, job_text, render
from grn.cli.output.table import table
from grn.cli.output.terminal import echo, is_ascii, print_json, width
from grn.client import negotiator, queue
from grn.client.negotiator import ask_once
from grn.client.submit import is_id
from grn.errors import GrnError, UnknownJob
from grn.model.text import harmless
from grn.model.units import parse_memory, parse_time, show_expected
from grn.paths import user_name
from grn.protocol.negotiator_rows import (
    AuditRow,
    LeaseRow,
    ProfileRow,
    Status,
    When,
    lease_or_request,
)
from grn.protocol.queue_rows import JobRow, NodeRow
from grn.protocol.rows import as_json as as_row
from grn.protocol.rows import read, read_all

Row = dict[str, Any]


@command()
@click.argument("job", metavar="JOB")
@json_flag
def why(job: str, as_json: bool) -> int:
    """Explain why JOB waits, or where it runs.

    JOB is an id from `grn ls`, the beginning of an id from `grn ps`, a pid, or a job type.
    """
    own = _own_job(job)
    if own is not None and own["state"] != "ended":
        rows = _of_node(own) if own.get("where") else _of_lease(own["lease"])
    else:
        own, rows = _of_machine(job, own)
    if as_json:
        return print_json({"schema": 1, "jobs": rows} | ({} if own is None else {"job": own}))
    found = [*map(lease_or_request, rows)]
    if own is not None:
        held = "; ".join(render.held(row) for row in found if isinstance(row, LeaseRow))
        echo(job_text.explained(read(JobRow, own), time.time(), held, width()))
    elif found:
        echo(render.why(found, user_name, width()))
    return 0


@command()
@options.click_options([options.gpu_count()])
@flag("--mem", metavar="SIZE", help="Memory on each GPU, such as 20GiB.")
@flag("--exclusive", is_flag=True, help="Do not share the GPUs with other jobs.")
@flag("--priority", type=int, default=0, metavar="N", help="Priority of the job.")
@flag("--type", "job_type", metavar="NAME", help="Job type that grn knows, from `grn profiles`.")
@flag("--for", "lasts", metavar="TIME", help="How long the job would run, such as 6h.")
@json_flag
def when(
    gpus: int, mem: str | None, exclusive: bool, priority: int, job_type: str | None,
    lasts: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Estimate when a job would start if it were submitted now.

    Nothing is submitted. The answer is a range, or unknown while the durations of the jobs before
    it are not known.
    """
    asked: Row = {"op": "when", "gpus": gpus, "exclusive": exclusive, "priority": priority}
    lasts_s = parse_time(lasts) if lasts is not None else None
    given = {"mem": parse_memory(mem) if mem else None, "type": job_type, "lasts_s": lasts_s}
    asked |= {name: value for name, value in given.items() if value is not None}
    expected = read(When, ask_once(asked)).starts_in_s
    ends = None
    if expected is not None and lasts_s is not None:
        ends = (expected[0] + lasts_s, expected[1] + lasts_s)
    if as_json:
        return print_json({"schema": 1, "starts_in_s": expected, "ends_in_s": ends})
    if expected is None:
        echo("unknown: the durations of the jobs before it are not known")
        return 0
    echo(show_expected("starts", expected) + (f"; {show_expected('ends', ends)}" if ends else ""))
    return 0


@command()
@json_flag
def shares(as_json: bool) -> int:
    """Show the recent GPU use of each user. The user with the least is next in turn."""
    status = ask_once({"op": "status"})["status"]
    if as_json:
        return print_json({key: status[key] for key in ("schema", "version", "shares")})
    echo(render.shares(read(Status, status).shares, user_name, width()))
    return 0


@command("idle")
@json_flag
def idle(as_json: bool) -> int:
    """Show who holds memory of a GPU and does not use it, here and on nodes of sites."""
    nodes = machine.nodes_of_sites()
    status = machine.status_with(nodes, negotiator.status)
    found = read(Status, status)
    rows = idle_text.idle_rows(found.gpus, found.leases, read_all(NodeRow, nodes or ()))
    if as_json:
        shown = [as_row(row) for row in rows]
        return print_json({"schema": 1, "version": status["version"], "idle": shown})
    echo(idle_text.idle(rows, user_name, width(), has_sites=nodes is not None))
    return 0


@command()
@options.most(largest=100_000)
@json_flag
def audit(most: int, as_json: bool) -> int:
    """Show who changed what belongs to others, or tried to.

    For root and for the user who started the negotiator.
    """
    rows = ask_once({"op": "audit", "most": most})["audit"]
    if as_json:
        return print_json({"schema": 1, "audit": rows})
    lines = [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.at)),
            user_name(row.uid),
            "?" if row.pid is None else str(row.pid),
            row.verb,
            harmless(row.object),
            row.result,
        )
        for row in read_all(AuditRow, rows)
    ]
    headers = ("WHEN", "USER", "PID", "VERB", "OBJECT", "RESULT")
    none = "nothing yet: no refusal, no forgotten profile, no stop of the negotiator"
    echo(table(headers, lines, width(), elastic=("OBJECT",), spare=("PID",)) or none)
    return 0


@group(invoke_without_command=True)
@json_flag
@click.pass_context
def profiles(ctx: click.Context, as_json: bool) -> int:
    """Show what was learned about job types: runs, peaks, and the estimate for the next run."""
    if ctx.invoked_subcommand is not None:
        return 0
    rows = negotiator.ask_all({"op": "profiles"})["profiles"]
    if as_json:
        return print_json({"schema": 1, "profiles": rows})
    echo(render.profiles(read_all(ProfileRow, rows), width()))
    return 0


@profiles.command("show")
@click.argument("job_type", metavar="TYPE")
@json_flag
def profiles_show(job_type: str, as_json: bool) -> int:
    """Explain the estimate for TYPE, run by run."""
    rows = negotiator.ask_all({"op": "profiles", "type": job_type})["profiles"]
    if not rows:
        raise UnknownJob(f"no job type '{job_type}' is known.", "See `grn profiles`.")
    if as_json:
        return print_json({"schema": 1, "profiles": rows})
    found = read_all(ProfileRow, rows)
    echo("\n\n".join(render.profile(row, is_ascii(), width()) for row in found))
    return 0


@profiles.command("forget")
@click.argument("job_type", metavar="TYPE")
def profiles_forget(job_type: str) -> int:
    """Forget what was learned about TYPE; its next run is measured again."""
    ask_once({"op": "forget", "type": job_type})
    click.echo(f"forgotten: {job_type}", err=True)
    return 0


def _own_job(job: str) -> Row | None:
    """Return the job of this user's queue, if the queue runs and knows it."""
    try:
        asked = {"op": "names", "names": [job], "whole": False, "which": "all"}
        found = [int(job)] if is_id(job) else queue.ask(asked, may_start=False)["jobs"]
        return queue.show(found[0], may_start=False) if len(found) == 1 else None
    except GrnError:
        return None


def _of_lease(lease: str | None) -> list[Row]:
    try:
        return list(negotiator.ask_all({"op": "why", "name": lease})["why"]) if lease else []
    except GrnError:
        return []  # what the queue says is good without it


def _of_node(own: Row) -> list[Row]:
    """Return the lease of a job as the node that it runs on shows it."""
    nodes = queue.ask({"op": "sites"}, may_start=False)["nodes"]
    leases = {lease["id"]: lease for node in nodes if node["node"] == own["where"]
              for lease in node["leases"]}  # fmt: skip
    lease = leases.get((own["lease"] or "").rpartition("/")[2])
    return [] if lease is None else [lease]


def _of_machine(job: str, ended: Row | None) -> tuple[Row | None, list[Row]]:
    """Prefer what lives under that name, a process for one, to a job that has ended."""
    try:
        return None, negotiator.ask_all({"op": "why", "name": job})["why"]
    except UnknownJob:
        if ended is None:
            raise
        return ended, []
