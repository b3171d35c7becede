"""Commands on jobs of the queue: show, history, cancel, hold, edit and the like."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from grn.cli import options, quick, selection
from grn.cli.commands.queue.listing import as_lease_json, memory_of, own_status, print_ids
from grn.cli.help import command, flag
from grn.cli.options import json_flag
from grn.cli.output import job_text, render
from grn.cli.output.terminal import echo, print_json, width
from grn.client import queue
from grn.errors import UnknownJob, UsageError
from grn.model import MAX_PRIORITY
from grn.model.ranges import show_ranges
from grn.model.text import counted
from grn.model.units import parse_time
from grn.paths import user_name
from grn.proc import pidfd, processes
from grn.protocol.negotiator_rows import LeaseRow, WaitingRow
from grn.protocol.queue_rows import JobRow, QueueFacts
from grn.protocol.rows import read, read_all

MAX_ENDED = 1_000_000
_EDITABLE = ("name", "tags", "gpus", "mem", "cpus", "ram", "exclusive", "priority", "on", "without",
             "idle_limit", "begin", "only", "retry", "time_limit", "notify", "at")  # fmt: skip
_ids = click.argument("jobs", nargs=-1, metavar="[ID...]")


def _selection(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select jobs by what they are, instead of by their ids."""
    for option in (
        flag("--group", metavar="NAME", help="Select the jobs of this batch or sweep."),
        flag("--tag", metavar="WORD", help="Select jobs with this tag."),
        flag("--state", "states", multiple=True, metavar="STATE",
                     help="Select jobs in this state (repeatable)."),
        flag("--name", metavar="NAME", help="Select jobs of this name."),
    ):  # fmt: skip
        function = option(function)
    return function


@command()
@click.argument("jobs", nargs=-1, required=True, metavar="ID...")
@flag("--env", "has_names", is_flag=True, help="List the names of its environment variables.")
@json_flag
def show(jobs: tuple[str, ...], has_names: bool, as_json: bool) -> int:
    """Show all about jobs: command, folder, options, attempts, how they ended."""
    ids, leases = selection.jobs_and_leases(jobs)
    if as_json and len(ids) + len(leases) > 1:
        rows = [_all_of(job) for job in ids]
        return print_json({"schema": 1, "jobs": rows, "leases": list(map(as_lease_json, leases))})
    if as_json and leases:
        return print_json({"schema": 1, "lease": as_lease_json(leases[0])})
    if as_json:
        return print_json({"schema": 1, "job": _all_of(ids[0])})
    for place, job in enumerate(ids):
        row = read(JobRow, _all_of(job))
        text = job_text.job(row, time.time(), width(), has_names=has_names)
        echo(f"\n{text}" if place else text)
    if leases:
        echo(("\n" if ids else "") + render.why(leases, user_name))
    return 0


def _all_of(job: int) -> dict[str, Any]:
    row = queue.show(job)
    return row | memory_of([read(JobRow, row)], own_status()).get(row["id"], {})


@command()
@options.click_options([*options.FILTERS, options.rows()])
@flag("--since", metavar="TIME", section=options.LIST,
      help="Only jobs that ended in the last 90s, 30m, 12h or 2d.")  # fmt: skip
@flag("--export", "file", metavar="FILE", section=options.OUTPUT,
      help="Write the jobs that succeeded as a workload for `grn simulate`.")  # fmt: skip
@json_flag
def history(
    most: int, since: str | None, file: str | None, as_json: bool, states: tuple[str, ...],
    job_type: str | None, **filters: str | None,
) -> int:  # fmt: skip
    """Show jobs that have ended, newest first: outcome, run time, peak memory, exit status."""
    asked: dict[str, Any] = {"op": "list", "which": "ended", "states": list(states)}
    asked |= {name: value for name, value in (filters | {"type": job_type}).items() if value}
    answer = queue.ask(asked | {"most": MAX_ENDED if file or since else most})
    rows = [queue.typed(row) for row in answer["jobs"]]
    if since is not None:
        after = time.time() - parse_time(since)
        rows = [row for row in rows if (row["ended_at"] or 0.0) >= after]
    if file is not None:
        from grn.cli.commands.simulate import export

        return export(read_all(JobRow, rows), file)
    rows = rows[:most]
    if as_json:
        return print_json({"schema": 1, "jobs": rows})
    has_sites = bool(answer.get("has_sites"))
    found = read_all(JobRow, rows)
    echo(job_text.history(found, time.time(), width(), has_sites=has_sites))
    return 0


@command()
@click.argument("jobs", nargs=-1, metavar="[ID...]")
@flag("--all", "everything", is_flag=True, help="Select all jobs that have not ended.")
@_selection
@flag("--now", is_flag=True, help="Kill at once, without time to end by themselves.")
def cancel(jobs: tuple[str, ...], everything: bool, now: bool, **which: Any) -> int:
    """Cancel jobs, with every process they have started."""
    is_by_facts = everything or any(which.values())
    if not jobs and not is_by_facts:
        raise UsageError("there is nothing to cancel.", "Name jobs, or use --all.")
    leases: list[LeaseRow | WaitingRow] = []
    if is_by_facts:
        ids = selection.selected(jobs, "alive", **which)
    else:
        ids, leases = selection.jobs_and_leases(jobs, "alive")
    for row in leases:
        _end_outside(row, now=now)
    if leases and not ids:
        return 0
    cancelled = _change({"op": "cancel", "jobs": ids, "now": now})["cancelled"]
    over = sorted(set(ids) - set(cancelled))
    if over:
        click.echo(f"ended already: {', '.join(map(str, over))}", err=True)
    _say_done(cancelled, "cancelled")
    return 0 if cancelled or is_by_facts else 1


def _end_outside(row: LeaseRow | WaitingRow, *, now: bool) -> None:
    """Ask the process of a call or of `grn exec` to end; it passes that on to its command."""
    if row.pid is None:
        raise UsageError(f"the process of {row.id} is not known.")
    process = processes.look(row.pid)
    # Asked after the look: a lease that is still there has still the same process.
    if process is None or selection.lease_outside(row.id) is None:
        raise UnknownJob(f"{row.id} has ended already.")
    pidfd.send(process, signal.SIGKILL if now else signal.SIGTERM)
    _say(f"{row.id} ({row.label}, pid {row.pid}) was asked to end")


@command()
@_ids
@_selection
def hold(jobs: tuple[str, ...], **which: Any) -> int:
    """Hold queued jobs until you run `grn release`."""
    selection.refuse_outside(jobs, "held")
    ids = selection.selected(jobs, "queued", **which)
    _change({"op": "hold", "jobs": ids, "held": True})
    return _say_done(ids, "held")


@command()
@_ids
@_selection
def release(jobs: tuple[str, ...], **which: Any) -> int:
    """Let held jobs start."""
    ids = selection.selected(jobs, "queued", **which)
    _change({"op": "hold", "jobs": ids, "held": False})
    return _say_done(ids, "released")


@command()
@_ids
@flag(
    "--priority",
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    metavar="N",
    help="New priority; higher starts first.",
)
@flag("--front", "front", flag_value="front", help="Move before all others of the same priority.")
@flag("--back", "front", flag_value="back", help="Move behind all others of the same priority.")
def move(jobs: tuple[str, ...], priority: int | None, front: str | None) -> int:
    """Move jobs in the queue."""
    if priority is None and front is None:
        raise UsageError("no position is given.", "Use --priority N, --front or --back.")
    selection.refuse_outside(jobs, "moved")
    ids = selection.selected(jobs, "queued")
    message: dict[str, Any] = {"op": "move", "jobs": ids}
    if priority is not None:
        message["priority"] = priority
    if front is not None:
        message["front"] = front == "front"
    _change(message)
    return _say_done(ids, "moved")


@command()
@click.argument("job", metavar="ID")
@options.click_options(
    [opt for opt in quick.SUBMIT if opt.dest in _EDITABLE], has_defaults=False,
    name="New name.", tags="New tags, which replace the old ones (repeatable).",
    begin="Start no earlier than this time, as in `grn submit`; now: any time.",
    only="Start only in these hours, such as 20:00-08:00; '' for any.",
    time_limit="End the job after 90s, 30m, 12h or 2d; 0 for no limit.",
    idle_limit="Count as idle after this time below 5% GPU load; 0: as set for the machine.",
)  # fmt: skip
@flag("--file", metavar="FILE", help="Take the options from this file (- for standard input).")
def edit(job: str, file: str | None, **given: Any) -> int:
    """Change the options of a waiting job; options that you do not name stay.

    Without options your editor (VISUAL or EDITOR) opens them as a file. --time-limit 0 and --mem 0
    remove the old value.
    """
    from grn.cli.commands.queue import editing
    from grn.client.job_options import edited

    selection.refuse_outside([job], "edited")
    job_id = selection.one(job, "queued")
    given["without"] = list(given["without"]) or None
    given["tags"] = list(given["tags"]) or None
    wanted = {name: value for name, value in given.items() if value is not None}
    if wanted and file is not None:
        raise UsageError("--file goes without other options.", "Give one or the other.")
    if wanted:
        _change({"op": "edit", "job": job_id, **edited(wanted)})
    elif not editing.edit(read(JobRow, queue.show(job_id)), file, _change):
        _say(f"job {job_id} was not changed")
        return 0
    return _say_done([job_id], "edited")


@command()
@_ids
@_selection
def retry(jobs: tuple[str, ...], **which: Any) -> int:
    """Submit ended jobs again, as new jobs; prints their ids."""
    answer = queue.submit({"op": "retry", "jobs": selection.selected(jobs, "ended", **which)})
    return print_ids(list(range(answer["first"], answer["first"] + answer["count"])))


@command()
@flag("--off", is_flag=True, help="Resume the queue.")
def drain(off: bool) -> int:
    """Pause the queue: start no more jobs and let running ones finish."""
    running = _change({"op": "drain", "drained": not off})["running"]
    if not off:
        text = f"{counted(running, 'job')} still {'runs' if running == 1 else 'run'}"
        echo(f"the queue is paused, {text}; run `grn drain --off` to resume", err=True)
    else:
        _say("the queue starts jobs again")
    return 0


@command()
@flag(
    "--older-than",
    default="0s",
    metavar="TIME",
    help="Only jobs that ended longer ago than this, such as 7d.",
)
def clean(older_than: str) -> int:
    """Delete ended jobs and their logs."""
    older_s = 0.0 if older_than in ("0", "0s") else parse_time(older_than)
    cleaned = queue.ask({"op": "clean", "older_than_s": older_s})["cleaned"]
    click.echo(f"{counted(cleaned, 'job')} forgotten", err=True)
    return 0


@command("queue")
@click.argument("what", type=click.Choice(["status", "start", "stop"]), default="status")
@json_flag
def queue_command(what: str, as_json: bool) -> int:
    """Show, start or stop your queue. Running jobs continue without it.

    `grn submit` starts the queue when needed; for reboots and logouts see `grn service`.
    """
    if what == "stop":
        said = queue.ask({"op": "stop"}, may_start=False)
        click.echo(f"queue stopped{job_text.going_on(said['running'])}", err=True)
        return 0
    said = queue.ask({"op": "ping"}, may_start=what == "start")
    counts = queue.ask({"op": "count"})["counts"]
    if as_json:
        said.pop("id")
        return print_json({"schema": 1, **said, "counts": counts})
    facts = read(QueueFacts, said)
    echo(f"queue {facts.version} answers (pid {facts.pid}): {job_text.counts(counts)}")
    if facts.drained:
        echo("the queue is paused: run `grn drain --off` to resume", err=True)
    if facts.trouble:
        click.echo(f"warning: {facts.trouble}", err=True)
    return 0


def _change(message: dict[str, Any]) -> dict[str, Any]:
    """Ask for a change, and warn when it is not written and so not done."""
    answer = queue.ask(message)
    if answer.get("trouble"):
        text = f"warning: not done yet: {answer['trouble']} The queue tries again until it ends."
        click.echo(text, err=True)
    return answer


def _say(text: str) -> None:
    """Confirm a success in one line on a terminal; a script hears nothing."""
    if sys.stderr.isatty():
        echo(text, err=True)


def _say_done(ids: Sequence[int], done: str) -> int:
    """Confirm a change in one line on a terminal; a script hears nothing."""
    if ids:
        jobs = f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs ({show_ranges(ids)})"
        _say(f"{jobs} {done}")
    return 0
