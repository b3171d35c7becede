"""Commands that only look: gpus, ps, shares, audit, profiles. Each can speak JSON."""

from __future__ import annotations

import time
from typing import Any

import click

from grn.cli.output import render
from grn.cli.output.table import table
from grn.cli.output.terminal import is_ascii, json_flag, print_json, width
from grn.client import negotiator
from grn.client.negotiator import ask_once
from grn.errors import UnknownJob, UsageError
from grn.model.text import harmless
from grn.paths import user_name


@click.command()
@click.option("-w", "--watch", "is_watched", is_flag=True, help="Go on, until Ctrl-C.")
@json_flag
def gpus(is_watched: bool, as_json: bool) -> int:
    """Show each GPU: its memory by who has it, its load, its jobs."""
    if is_watched and as_json:
        raise UsageError(
            "--watch draws and --json prints.", "See `grn events --follow --only gpu`."
        )
    if is_watched:
        from grn.cli.top.gpus_watch import watch_gpus

        return watch_gpus()
    status = ask_once({"op": "status"})["status"]
    if as_json:
        keys = ("schema", "version", "gpus")
        return print_json({key: status[key] for key in keys})
    click.echo(render.gpus(status, width(), is_ascii()))
    _say_trouble(status)
    return 0


@click.command()
@json_flag
def ps(as_json: bool) -> int:
    """Show the jobs of all users: what runs, what waits, and why it waits."""
    status = negotiator.status()
    if as_json:
        keys = ("schema", "version", "leases", "waiting")
        return print_json({key: status[key] for key in keys})
    click.echo(render.ps(status, user_name, width()))
    _say_trouble(status)
    return 0


@click.command()
@json_flag
def shares(as_json: bool) -> int:
    """Show what each user has had of the GPUs lately: who has had the least is next in turn."""
    status = ask_once({"op": "status"})["status"]
    if as_json:
        return print_json({key: status[key] for key in ("schema", "version", "shares")})
    click.echo(render.shares(status["shares"], user_name, width()))
    return 0


@click.command()
@click.option(
    "-n",
    "most",
    type=click.IntRange(1, 100_000),
    default=50,
    metavar="N",
    help="So many at the most; 50 if not given.",
)
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
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"])),
            user_name(row["uid"]),
            "?" if row["pid"] is None else str(row["pid"]),
            row["verb"],
            harmless(row["object"]),
            row["result"],
        )
        for row in rows
    ]
    headers = ("WHEN", "USER", "PID", "VERB", "OBJECT", "RESULT")
    none = "nothing yet: nobody was refused, forgot a profile or stopped the negotiator"
    click.echo(table(headers, lines, width(), elastic=("OBJECT",), spare=("PID",)) or none)
    return 0


@click.group(invoke_without_command=True)
@json_flag
@click.pass_context
def profiles(ctx: click.Context, as_json: bool) -> int:
    """Show what was learned of job types: runs, peaks, and the estimate for the next run."""
    if ctx.invoked_subcommand is not None:
        return 0
    rows = negotiator.ask_all({"op": "profiles"})["profiles"]
    if as_json:
        return print_json({"schema": 1, "profiles": rows})
    click.echo(render.profiles(rows, width()))
    return 0


@profiles.command("show")
@click.argument("job_type", metavar="TYPE")
@json_flag
def profiles_show(job_type: str, as_json: bool) -> int:
    """Explain what is believed of TYPE and why, run by run."""
    rows = negotiator.ask_all({"op": "profiles", "type": job_type})["profiles"]
    if not rows:
        raise UnknownJob(f"no job type '{job_type}' is known.", "See `grn profiles`.")
    if as_json:
        return print_json({"schema": 1, "profiles": rows})
    click.echo("\n\n".join(render.profile(row, is_ascii(), width()) for row in rows))
    return 0


@profiles.command("forget")
@click.argument("job_type", metavar="TYPE")
def profiles_forget(job_type: str) -> int:
    """Forget what was learned of TYPE: its next run is measured again."""
    ask_once({"op": "forget", "type": job_type})
    click.echo(f"forgotten: {job_type}", err=True)
    return 0


def _say_trouble(status: dict[str, Any]) -> None:
    if status["trouble"]:
        click.echo(f"warning: {status['trouble']}", err=True)
