"""Commands on the queue: list, show, wait, logs, cancel and the like."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from grn import wire
from grn.cli import options
from grn.cli.output import job_text
from grn.cli.output.style import paint, state_style
from grn.cli.output.terminal import echo, json_flag, print_json, width
from grn.client import logs as job_logs
from grn.client import queue
from grn.client.submit import exit_code_of
from grn.errors import GrnError, UnknownJob, UsageError
from grn.model import MAX_PRIORITY
from grn.model.ranges import show_ranges
from grn.model.text import counted, harmless
from grn.model.units import parse_time, show_time
from grn.protocol.rows import JobEnd, JobRow, QueueFacts, Status, read, read_all, updated

if TYPE_CHECKING:
    from grn.cli.output.progress import ProgressLine
    from grn.group.roles import Progress

FOLLOW_S = 0.5
NEVER_RAN = 125  # exit status, as of a job that ended without having run
WAIT_S = 1.0
MAX_FOLDED = 20_000  # jobs that are asked for to show arrays as one row
MAX_NAMED = 200  # jobs that are asked for to name what runs
_ids = click.argument("jobs", nargs=-1, metavar="[ID...]")


def _selection(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select jobs by what they are, instead of by their ids."""
    for option in (
        click.option("--group", metavar="NAME", help="All jobs of this batch or sweep."),
        click.option("--tag", metavar="WORD", help="All jobs with this tag."),
        click.option("--state", "states", multiple=True, metavar="STATE",
                     help="All jobs in this state (repeatable)."),
        click.option("--name", metavar="NAME", help="All jobs of this name."),
    ):  # fmt: skip
        function = option(function)
    return function


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("-q", "--quiet", is_flag=True, help="Print nothing but ids.")(function)


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def submit(words: tuple[str, ...]) -> int:
    """Hand a command to your queue; see `grn submit --help`."""
    from grn.cli.commands import submit as quick

    return quick.main(words)


@click.command()
@options.most()
@click.option("-a", "--all", "everything", is_flag=True, help="Also what has ended.")
@click.option("--state", "states", multiple=True, metavar="STATE",
              help="Only these: queued, held, running, ok, failed, ... (repeatable).")  # fmt: skip
@click.option("--name", help="Only jobs of this name.")
@click.option("--type", "job_type", help="Only jobs of this type.")
@click.option("--tag", metavar="WORD", help="Only jobs with this tag.")
@click.option("--group", metavar="NAME", help="Only jobs of this batch or sweep.")
@click.option("--expand", is_flag=True, help="Show each job of an array in its own row.")
@_quiet
@json_flag
def ls(
    most: int,
    everything: bool,
    states: tuple[str, ...],
    name: str | None,
    job_type: str | None,
    tag: str | None,
    group: str | None,
    expand: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """List your jobs: what runs, what waits and why, with -a what has ended.

    \b
    grn ls
    grn ls -a --state failed
    grn ls -q --name sweep3 | xargs grn cancel
    """
    which = "all" if everything or states else "alive"
    asked: dict[str, Any] = {"op": "list", "which": which, "most": most, "states": list(states)}
    filters = {"name": name, "type": job_type, "group": group, "tag": tag}
    asked |= {key: value for key, value in filters.items() if value}
    answer = queue.ask(asked)
    is_folded = not (expand or quiet or as_json)
    if is_folded and len(answer["jobs"]) == most and answer["jobs"][-1].get("array_index"):
        answer = queue.ask(asked | {"most": max(most, MAX_FOLDED)})
    rows = [queue.typed(row) for row in answer["jobs"]]
    found = read_all(JobRow, rows)
    memory = _memory(found)
    if as_json:
        rows = [row | memory.get(row["id"], {}) for row in rows]
        return print_json({"schema": 1, "jobs": rows, "counts": answer["counts"]})
    if quiet:
        return _print_ids([job.id for job in found])
    shown = [updated(job, memory.get(job.id, {})) for job in found]
    has_sites = bool(answer.get("has_sites"))
    echo(
        job_text.jobs(
            shown, time.time(), width(), has_sites=has_sites, is_expanded=not is_folded, most=most
        )
    )
    is_cut = len(found) >= (MAX_FOLDED if len(found) > most else most)
    if not found or is_cut:
        note = f" ({len(found)} shown: -n shows more)" if found else ""
        echo(job_text.counts(answer["counts"]) + note, err=True)
    if answer.get("trouble"):  # a queue of an older version does not say
        click.echo(f"warning: {answer['trouble']}", err=True)
    return 0


@click.command()
@click.argument("job", metavar="ID")
@click.option("--env", "has_names", is_flag=True, help="List its environment variables by name.")
@json_flag
def show(job: str, has_names: bool, as_json: bool) -> int:
    """Tell all of one job: command, folder, options, attempts, how it ended."""
    job_id = _one(job)
    row = queue.show(job_id)
    row |= _memory([read(JobRow, row)]).get(job_id, {})
    if as_json:
        return print_json({"schema": 1, "job": row})
    echo(job_text.job(read(JobRow, row), time.time(), width(), has_names=has_names))
    return 0


@click.command()
@options.most()
@click.option("--export", "file", metavar="FILE",
              help="Write all that ended well as a workload for `grn simulate`.")  # fmt: skip
@json_flag
def history(most: int, file: str | None, as_json: bool) -> int:
    """Show what has ended: run times, peaks, exit codes; newest first."""
    if file is not None:
        from grn.cli.commands.simulate import export

        ended = queue.ask({"op": "list", "which": "ended", "most": 1_000_000})["jobs"]
        return export(read_all(JobRow, map(queue.typed, ended)), file)
    answer = queue.ask({"op": "list", "which": "ended", "most": most})
    rows = [queue.typed(row) for row in answer["jobs"]]
    if as_json:
        return print_json({"schema": 1, "jobs": rows})
    has_sites = bool(answer.get("has_sites"))
    found = read_all(JobRow, rows)
    echo(job_text.history(found, time.time(), width(), has_sites=has_sites))
    return 0


@click.command()
@click.argument("job", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--stderr", is_flag=True,
              help="Print only standard error, of a job with --separate-stderr.")  # fmt: skip
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Of an earlier attempt.")
def logs(job: str, follow: bool, stderr: bool, attempt: int | None) -> int:
    """Print what a job has printed."""
    job_id = _one(job)
    row = read(JobRow, queue.show(job_id))
    if stderr and (row.folder or follow):
        folder = row.folder_of(attempt or row.attempt) if row.folder else None
        job_logs.check_stderr(folder, job_id, row.environment)
    name = "err" if stderr else "log"
    if follow and attempt is None:
        return _follow(job_id, name)
    if row.log and row.attempt:
        sys.stdout.flush()
        sys.stdout.buffer.write(job_logs.read_from(wire.meant(row.log), 0))
        return 0
    if row.folder is None:
        when = "never ran" if row.has_ended else "has not run yet"
        why = (row.why or row.reason or "").rstrip(".")
        raise UsageError(f"job {job_id} {when}: {why}.")
    if attempt is not None and attempt > row.attempt:
        raise UsageError(f"job {job_id} was tried {counted(row.attempt, 'time')}.")
    sys.stdout.flush()
    folder = row.folder_of(attempt or row.attempt)
    sys.stdout.buffer.write(job_logs.read_log(folder, name))
    return 0


@click.command()
@click.argument("jobs", nargs=-1, metavar="[ID...]")
@click.option("--all", "everything", is_flag=True, help="All jobs that have not ended.")
@_quiet
def wait(jobs: tuple[str, ...], everything: bool, quiet: bool) -> int:
    """Wait until jobs have ended; the exit status is that of the first that failed.

    Held jobs are not waited for: grn names them, and the exit status is 125 unless with --all.
    """
    if everything:
        rows = queue.ask({"op": "list", "which": "alive", "most": 1_000_000})["jobs"]
        ids = [row["id"] for row in rows]
    elif jobs:
        ids = _resolve(jobs)
    else:
        raise UsageError("there is nothing to wait for.", "Name jobs, or use --all.")
    ids, are_held = _without_held(ids)
    from grn.cli.output.progress import ProgressLine
    from grn.group.roles import Progress

    failed: list[JobEnd] = []
    line = ProgressLine(sys.stderr, is_quiet=quiet)
    now = Progress(len(ids))
    try:
        for row in queue.ends_or_pauses(ids, WAIT_S if line.is_terminal and not quiet else None):
            if row is None:
                now = _at_work(now, line, set(ids))
                continue
            ended = _end(row)
            now = now.plus(finished=ended.reason == "ok", failed=ended.reason != "ok")
            if ended.reason != "ok":
                failed.append(ended)
                text = f" ({harmless(ended.text)})" if ended.text else ""
                how = paint(ended.reason, state_style(ended.reason))
                line.say(f"job {ended.id}: {how}{text}")
            if quiet:
                click.echo(ended.id)
            line.tell(now)
        if line.is_terminal and len(ids) > 1:
            bad = paint(f"{now.failed} failed", "failed" if now.failed else "")
            line.say(f"{counted(now.done, 'job')} ended, {bad}, in {show_time(line.passed_s)}")
    finally:
        line.finish()
    if failed:
        return _exit_code(failed[0])
    return NEVER_RAN if are_held and not everything else 0


def _without_held(ids: list[int]) -> tuple[list[int], bool]:
    """Leave out jobs that nothing will start, and say how to release them."""
    asked = {"op": "list", "which": "alive", "most": 1_000_000}
    # A job of a running batch is held only until its process has read how it ended.
    held = {row["id"] for row in queue.ask(asked | {"states": ["held"]})["jobs"]
            if not row["group"]}  # fmt: skip
    if not held:
        return ids, False
    blocked = set(held)
    rows = sorted(queue.ask(asked)["jobs"], key=lambda row: int(row["id"]))
    for row in rows:  # a job comes after earlier ones only
        if any(job in blocked for job, _ in row["after"]):
            blocked.add(row["id"])
    skipped = blocked.intersection(ids)
    if skipped:
        named = sorted(skipped & held) or sorted(held)
        verb = "job is" if len(named) == 1 else "jobs are"
        text = f"{len(named)} {verb} held: run `grn release {' '.join(map(str, named))}`"
        others = len(skipped - held)
        follow = f"; {counted(others, 'job')} wait{'s' * (others == 1)} for that" if others else ""
        click.echo(text + follow, err=True)
    return [job for job in ids if job not in skipped], bool(skipped)


def _at_work(now: Progress, line: ProgressLine, ids: set[int]) -> Progress:
    """Show which of the jobs run, or why the first of them waits."""
    if not line.is_terminal:
        return now
    try:
        alive = queue.ask({"op": "list", "which": "alive", "most": MAX_NAMED})["jobs"]
    except GrnError:
        return now  # the queue restarts: the next pause asks again
    rows = [job for job in read_all(JobRow, map(queue.typed, alive)) if job.id in ids]
    names = [
        f"{job.id} {job.name or job_text.spelled_command(job.argv)}"
        for job in rows
        if not job.is_waiting
    ]
    now = replace(now, running=len(names), names=tuple(names))
    line.tell(now)
    waiting = next((job for job in rows if job.is_waiting), None)
    if waiting is not None:
        line.wait(waiting, f"job {waiting.id}: {waiting.why}")
    return now


@click.command()
@click.argument("jobs", nargs=-1, metavar="[ID...]")
@click.option("--all", "everything", is_flag=True, help="All jobs that have not ended.")
@_selection
@click.option("--now", is_flag=True, help="Kill at once, without the grace to end by itself.")
def cancel(jobs: tuple[str, ...], everything: bool, now: bool, **which: Any) -> int:
    """End jobs, with every process they have started."""
    is_by_facts = everything or any(which.values())
    if not jobs and not is_by_facts:
        raise UsageError("there is nothing to cancel.", "Name jobs, or use --all.")
    ids = _selected(jobs, "alive", **which) if is_by_facts else _resolve(jobs, "alive")
    cancelled = _change({"op": "cancel", "jobs": ids, "now": now})["cancelled"]
    over = sorted(set(ids) - set(cancelled))
    if over:
        click.echo(f"ended already: {', '.join(map(str, over))}", err=True)
    _say_done(cancelled, "cancelled")
    return 0 if cancelled or is_by_facts else 1


@click.command()
@_ids
@_selection
def hold(jobs: tuple[str, ...], **which: Any) -> int:
    """Hold queued jobs until you run `grn release`."""
    ids = _selected(jobs, "queued", **which)
    _change({"op": "hold", "jobs": ids, "held": True})
    return _say_done(ids, "held")


@click.command()
@_ids
@_selection
def release(jobs: tuple[str, ...], **which: Any) -> int:
    """Let held jobs start."""
    ids = _selected(jobs, "queued", **which)
    _change({"op": "hold", "jobs": ids, "held": False})
    return _say_done(ids, "released")


@click.command()
@_ids
@click.option(
    "--priority",
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    metavar="N",
    help="Higher goes first; 0 is usual.",
)
@click.option("--front", "front", flag_value="front", help="Before all others of its priority.")
@click.option("--back", "front", flag_value="back", help="Behind all others of its priority.")
def move(jobs: tuple[str, ...], priority: int | None, front: str | None) -> int:
    """Give queued jobs another place in the line."""
    if priority is None and front is None:
        raise UsageError("where to?", "Use --priority N, --front or --back.")
    ids = _selected(jobs, "queued")
    message: dict[str, Any] = {"op": "move", "jobs": ids}
    if priority is not None:
        message["priority"] = priority
    if front is not None:
        message["front"] = front == "front"
    _change(message)
    return _say_done(ids, "moved")


@click.command()
@click.argument("job", metavar="ID")
@click.option("--name", metavar="NAME", help="Its new name.")
@options.needs(has_defaults=False, without="type")
@click.option("--retry", type=int, metavar="N", help="Retry up to N times on failure.")
@click.option("--time-limit", metavar="TIME", help="End it after 90s, 30m, 12h or 2d; 0 for none.")
@click.option(
    "--begin", metavar="TIME", help="Start no earlier, as of `grn submit`; now for any time."
)
@click.option("--only", metavar="HOURS", help="Start only in these hours, 20:00-08:00; '' for all.")
@click.option("--at", metavar="PLACE", help="Run it at this site or node, or local.")
@click.option("--notify", metavar="CMD", help="Run CMD by the shell when it has ended.")
@click.option("--tag", "tags", multiple=True, metavar="WORD", help="Its tags, instead of the old.")
def edit(job: str, **given: Any) -> int:
    """Give a job that waits other options; those that you do not name stay.

    \b
    grn edit 41 --mem 12GiB --priority 5
    grn edit 41 --time-limit 0
    """
    from grn.client.submit import edited

    job_id = _one(job, "queued")
    given["without"] = list(given.pop("avoid")) or None
    given["tags"] = list(given["tags"]) or None
    wanted = {name: value for name, value in given.items() if value is not None}
    if not wanted:
        raise UsageError("there is nothing to change.", "Name an option, as in --mem 12GiB.")
    _change({"op": "edit", "job": job_id, **edited(wanted)})
    return _say_done([job_id], "edited")


@click.command()
@_ids
@_selection
def retry(jobs: tuple[str, ...], **which: Any) -> int:
    """Submit ended jobs once more, as new jobs; prints their ids."""
    answer = queue.submit({"op": "retry", "jobs": _selected(jobs, "ended", **which)})
    return _print_ids(list(range(answer["first"], answer["first"] + answer["count"])))


@click.command()
@click.option("--off", is_flag=True, help="Go on starting jobs.")
def drain(off: bool) -> int:
    """Start nothing more and let what runs finish; --off goes on."""
    running = _change({"op": "drain", "drained": not off})["running"]
    if not off:
        text = f"{counted(running, 'job')} still {'runs' if running == 1 else 'run'}"
        click.echo(f"draining: {text}; `grn drain --off` goes on", err=True)
    return 0


@click.command()
@click.option("--older-than", default="0s", metavar="TIME", help="Only what ended so long ago: 7d.")
def clean(older_than: str) -> int:
    """Forget jobs that have ended, with their logs."""
    older_s = 0.0 if older_than in ("0", "0s") else parse_time(older_than)
    cleaned = queue.ask({"op": "clean", "older_than_s": older_s})["cleaned"]
    click.echo(f"{counted(cleaned, 'job')} forgotten", err=True)
    return 0


@click.command("queue")
@click.argument("what", type=click.Choice(["status", "start", "stop"]), default="status")
@json_flag
def queue_command(what: str, as_json: bool) -> int:
    """Show, start or stop your queue. Stopping it harms no running job.

    `grn submit` starts it by itself; after a reboot or logout see `grn service`.
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


def _say_done(ids: Sequence[int], done: str) -> int:
    """Confirm a change in one line on a terminal; a script hears nothing."""
    if ids and sys.stderr.isatty():
        jobs = f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs ({show_ranges(ids)})"
        click.echo(f"{jobs} {done}", err=True)
    return 0


def _selected(
    names: Sequence[str],
    state: str,
    *,
    name: str | None = None,
    states: Sequence[str] = (),
    tag: str | None = None,
    group: str | None = None,
) -> list[int]:
    """Return the jobs that people name, and those in `state` that the options select."""
    filters = {key: value for key, value in
               {"name": name, "tag": tag, "group": group}.items() if value}  # fmt: skip
    if names and not (filters or states):
        return _resolve(names, state)
    if not filters and not states and state != "alive":
        raise UsageError("there is no job named.", "Give ids or names, or --name, --state, --tag.")
    which = "ended" if state == "ended" else "alive"
    asked = {"op": "list", "which": which, "most": 1_000_000, "states": list(states), **filters}
    rows = queue.ask(asked)["jobs"]
    found = [row["id"] for row in rows if state != "queued" or row["state"] in ("queued", "held")]
    if names:
        named = set(_resolve(names, state))
        found = [job for job in found if job in named]
    if not found and (filters or states):
        raise UnknownJob("no job matches.", "See `grn ls -a`.")
    return sorted(found)


def _resolve(names: Sequence[str], which: str = "all") -> list[int]:
    """Return the ids of jobs that people name; `-` reads names from standard input.

    The beginning of an id is enough to read a job. Commands that change jobs (`which` is not
    "all") need whole ids: job 3 may have been cleaned, and 3 must not select job 30.
    """
    words = [word for name in names for word in (_piped() if name == "-" else [name])]
    asked = {"op": "names", "names": words, "whole": which != "all", "which": which}
    found: list[int] = queue.ask(asked)["jobs"]
    return found


def _one(name: str, which: str = "all") -> int:
    """Return the id of the one job that a name stands for."""
    found = _resolve([name], which)
    if len(found) != 1:
        text = f"{len(found)} jobs are called {name}: {show_ranges(found)}."
        raise UsageError(text, "Name one of them by its id.")
    return found[0]


def _piped() -> list[str]:
    data = sys.stdin.buffer.read() if sys.stdin is not None else b""
    return data.decode("utf-8", "backslashreplace").split()


def _print_ids(ids: Sequence[int]) -> int:
    if ids:
        click.echo("\n".join(map(str, ids)))
    return 0


def _memory(jobs: Sequence[JobRow]) -> dict[int, dict[str, int | None]]:
    """Return the memory that running jobs use and reserve, by the negotiator."""
    if not any(job.lease and job.state == "running" and not job.where for job in jobs):
        return {}
    from grn.client import negotiator

    try:
        leases = {row.id: row for row in read(Status, negotiator.status()).leases}
    except GrnError:
        return {}  # the list is good without it
    running = [(job, leases.get(job.lease or "")) for job in jobs if job.state == "running"]
    return {
        job.id: {"used_bytes": lease.used_bytes, "reserved_bytes": lease.reserved_bytes}
        for job, lease in running
        if lease is not None
    }


def _end(row: dict[str, Any]) -> JobEnd:
    return read(JobEnd, row)


def _exit_code(ended: JobEnd) -> int:
    return exit_code_of(ended.reason, ended.status, ended.signal)


def _follow(job_id: int, name: str) -> int:
    """Print a log as it grows, through attempts, until the job has ended."""
    shown: dict[str, int] = {}  # file -> how much of it was printed
    row: JobRow | None = None
    attempt = 0  # the one that is printed
    for ended in queue.ends_or_pauses([job_id], FOLLOW_S):
        if ended is not None or row is None or not row.attempt:
            row = read(JobRow, queue.show(job_id))
            attempt = attempt or row.attempt
        while row.attempt:
            own = [wire.meant(row.log)] if row.log else []
            for file in own or job_logs.parts(os.path.join(row.folder_of(attempt), name)):
                data = job_logs.read_from(file, shown.get(file, 0))
                shown[file] = shown.get(file, 0) + len(data)
                sys.stdout.buffer.write(data)
            if attempt >= row.attempt and not os.path.isdir(row.folder_of(attempt + 1)):
                break
            attempt += 1
        sys.stdout.flush()
        if ended is not None:
            return _exit_code(_end(ended))
    raise AssertionError("the iterator ends with the end of the job")
