"""`grn why`: the sentence behind a wait, from the user's queue or the negotiator."""

from __future__ import annotations

import time
from typing import Any

import click

from grn.cli.output import job_text, render
from grn.cli.output.terminal import json_flag, print_json
from grn.client import negotiator, queue
from grn.client.submit import is_id
from grn.errors import GrnError, UnknownJob
from grn.paths import user_name
from grn.protocol.rows import JobRow

Row = dict[str, Any]


@click.command()
@click.argument("job")
@json_flag
def why(job: str, as_json: bool) -> int:
    """Explain why JOB waits, or where it runs.

    JOB is the id of a job of yours from `grn ls`, the beginning of an id from `grn ps`, a pid, or
    a job type.
    """
    own = _own_job(job)
    if own is not None and own["state"] != "ended":
        rows = _of_lease(own["lease"])
    else:
        own, rows = _of_machine(job, own)
    if as_json:
        return print_json({"schema": 1, "jobs": rows} | ({} if own is None else {"job": own}))
    if own is not None:
        click.echo(job_text.explained(JobRow.from_json(own), time.time()))
    if rows:
        click.echo(render.why(rows, user_name))
    return 0


def _own_job(job: str) -> Row | None:
    """Return the job of this user's queue, if the queue runs and knows it."""
    if not is_id(job):
        return None
    try:
        return queue.show(int(job), may_start=False)
    except GrnError:
        return None


def _of_lease(lease: str | None) -> list[Row]:
    try:
        return list(negotiator.ask_all({"op": "why", "name": lease})["why"]) if lease else []
    except GrnError:
        return []  # what the queue says is good without it


def _of_machine(job: str, ended: Row | None) -> tuple[Row | None, list[Row]]:
    """Prefer what lives under that name, a process for one, to a job that has ended."""
    try:
        return None, negotiator.ask_all({"op": "why", "name": job})["why"]
    except UnknownJob:
        if ended is None:
            raise
        return ended, []
