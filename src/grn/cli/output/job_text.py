"""Plain text for people out of the queue's answers: pure, so it can be tested as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from grn.cli.output.style import paint, state_style
from grn.cli.output.table import indented, labelled, table
from grn.model.ranges import show_ranges
from grn.model.shell_line import line_of, with_index
from grn.model.text import counted, harmless
from grn.model.units import show_expected, show_limit, show_size, show_time
from grn.protocol.negotiator_rows import LeaseRow, WaitingRow
from grn.protocol.queue_rows import AttemptRow, JobRow

_WORKER = "grn.client.remote_call"  # runs calls of an executor
_STARTS = "; starts "  # before the expected start, in a reason


class Folded(NamedTuple):
    """Jobs of one array that are shown as one row; of other jobs each is alone."""

    rows: tuple[JobRow, ...]

    @property
    def first(self) -> JobRow:
        return self.rows[0]

    @property
    def ids(self) -> str:
        return show_ranges(self._jobs)

    @property
    def state(self) -> str:
        state, count = shown_state(self.first), len(self._jobs)
        return state if count == 1 else f"{count} {state}"

    @property
    def command(self) -> str:
        if len(self._jobs) == 1:
            return shown_command(self.first)
        indices = show_ranges([index for row in self.rows for index in row.indices])
        return named_command(f"{_base_name(self.first)}[{indices}]", self.first.argv)

    @property
    def _jobs(self) -> list[int]:
        return [job for row in self.rows for job in row.ids]


def fold(rows: Sequence[JobRow]) -> list[Folded]:
    """Put neighbours of one array together that wait for the same reason, or ended alike."""
    folded: list[list[JobRow]] = []
    for row in rows:
        if folded and _is_alike(folded[-1][-1], row):
            folded[-1].append(row)
        else:
            folded.append([row])
    return [Folded(tuple(one)) for one in folded]


def _is_alike(one: JobRow, other: JobRow) -> bool:
    is_array = one.array_index.isdecimal() and other.array_index.isdecimal()
    if not is_array or not (one.is_waiting or one.has_ended):
        return False
    return _alike(one) == _alike(other)


def _alike(row: JobRow) -> tuple[object, ...]:
    text = _without_start(row.why) if row.is_waiting else row.text
    return (row.name, row.argv, row.cwd, shown_state(row), row.where, row.priority, text)


def jobs(
    rows: Sequence[JobRow],
    now: float,
    width: int = 0,
    *,
    has_sites: bool = False,
    is_expanded: bool = True,
    most: int | None = None,
    outside: Sequence[LeaseRow | WaitingRow] = (),
    leases: Mapping[str, LeaseRow] | None = None,
) -> str:
    """List jobs of the queue; with sites, or with jobs that ran elsewhere, tell where.

    Unless expanded, an array takes one row for each of its states. On a terminal a reason is
    written once, and `″` where the next row has the same.
    """
    if not rows and not outside:
        return "no jobs"
    has_where = has_sites or any(row.where for row in rows)
    folded = ([Folded((row,)) for row in rows] if is_expanded else fold(rows))[:most]
    reasons = [reason(one.first, one.ids) for one in folded]
    lines = [
        [
            one.ids,
            one.state,
            *([shown_where(one.first)] if has_where else []),
            ",".join(map(str, one.first.gpus)) if not one.first.is_waiting else "",
            _job_memory(one.first) if len(one.rows) == 1 else "",
            *_times(one.first, now),
            _expected(one.first, leases or {}),
            one.command,
            "″" if width and why and why == before else why,
        ]
        for one, why, before in zip(folded, reasons, ["", *reasons], strict=False)
    ]
    busy = sum(not one.first.is_waiting and not one.first.has_ended for one in folded)
    lines[busy:busy] = [_lease_line(row, has_where) for row in outside if isinstance(row, LeaseRow)]
    lines += [_lease_line(row, has_where) for row in outside if isinstance(row, WaitingRow)]
    where = ["WHERE"] if has_where else []
    headers = ["ID", "STATE", *where, "GPU", "USED/RESERVED", "FOR", "AGO", "EXPECTED", "COMMAND",
               "WHY"]  # fmt: skip
    for name in ("AGO", "EXPECTED"):  # of ended jobs, and where something is expected
        place = headers.index(name)
        if not any(line[place] for line in lines):
            headers, lines = _without(headers, place), [_without(line, place) for line in lines]
    spare = ("USED/RESERVED", "EXPECTED")
    return table(headers, lines, width, elastic=("COMMAND", "WHY"), spare=spare)


def _expected(row: JobRow, leases: Mapping[str, LeaseRow]) -> str:
    """Say when a waiting job is expected to start, or a running one to end."""
    if row.is_waiting:
        return _soon(row.why.rpartition("; ")[2]) if _STARTS in row.why else ""
    lease = leases.get(row.lease or "")
    return _ends(lease) if lease is not None and not row.has_ended else ""


def _ends(lease: LeaseRow) -> str:
    found = lease.ends_in_s
    return _soon(show_expected("ends", found)) if found is not None else ""


def _soon(expected: str) -> str:
    """Shorten an expected time for a column that is called so."""
    return expected.partition(" (")[0].replace(" about ", " ")


def _without_start(why: str) -> str:
    """Return a reason without the expected start, which has a column of its own."""
    return why.rpartition("; ")[0] if _STARTS in why else why


def _times(row: JobRow, now: float) -> tuple[str, str]:
    """Return how long a job has waited or run, and how long ago it ended."""
    if not row.has_ended:
        return show_time(now - _since(row)), ""
    return show_time(row.ran_s) if row.ran_s is not None else "", show_time(now - _since(row))


def _without(cells: list[str], place: int) -> list[str]:
    return cells[:place] + cells[place + 1 :]


def _lease_line(row: LeaseRow | WaitingRow, has_where: bool) -> list[str]:
    """Return the row of a call or command that runs or waits outside the queue."""
    gpus = memory = why = ""
    if isinstance(row, LeaseRow):
        gpus = ",".join(map(str, row.gpus))
        memory = f"{show_size(row.used_bytes)}/{show_size(row.reserved_bytes)}"
    else:
        why = harmless(row.why)
    where = ["local"] if has_where else []
    expected = ""
    if isinstance(row, LeaseRow):
        expected = _ends(row)
    elif row.starts_in_s is not None:
        expected = _soon(show_expected("starts", row.starts_in_s))
    return [row.id, row.state, *where, gpus, memory, show_time(row.for_s), "", expected,
            called(row), why]  # fmt: skip


def called(row: LeaseRow | WaitingRow) -> str:
    """Spell a call as its function, a command as its program."""
    label = harmless(row.label)
    _, mark, function = label.rpartition("::")
    return f"{function}()" if mark else label


def history(rows: Sequence[JobRow], now: float, width: int = 0, *, has_sites: bool = False) -> str:
    """List jobs that have ended."""
    if not rows:
        return "nothing has ended yet"
    has_where = has_sites or any(row.where for row in rows)
    lines = [
        [
            str(row.id),
            row.reason or "",
            _exit_text(row),
            show_time(row.ran_s) if row.attempt else "",
            show_size(row.peak_bytes) if row.attempt else "",
            *([shown_where(row)] if has_where else []),
            ",".join(map(str, row.gpus)),
            str(row.attempt or ""),
            show_time(now - _since(row)) + " ago",
            shown_command(row),
        ]
        for row in rows
    ]
    where = ["WHERE"] if has_where else []
    headers = ["ID", "ENDED", "EXIT", "RAN", "PEAK", *where, "GPU", "TRIES", "WHEN", "COMMAND"]
    spare = ("TRIES", "PEAK", "EXIT")
    return table(headers, lines, width, elastic=("COMMAND",), spare=spare)


def job(row: JobRow, now: float, width: int = 0, *, has_names: bool = False) -> str:
    """Show all of one job; of its environment the number of variables, or their names."""
    why = _why(row)
    after = ", ".join(f"{one}{'' if must else ':any'}" for one, must in row.after)
    lines = [
        ("state", _painted_state(row) + (f": {why}" if why else "")),
        ("command", spelled(row)),
        ("folder", harmless(row.cwd)),
        ("type", harmless(row.label)),
        ("asks for", _asked(row)),
        ("memory", _memory_now(row)),
        ("submitted", f"{show_time(now - row.submitted_at)} ago, priority {row.priority}"),
        ("array", _array(row)),
        ("after", after),
        ("starts", _starts(row, now)),
        ("limit", _limit(row)),
        ("ending", _ending(row)),
        ("idle limit", show_limit(row.idle_limit_s) if row.idle_limit_s else ""),
        ("retries", _retries(row)),
        ("notify", harmless(row.notify)),
        ("tags", harmless(" ".join(row.tags))),
        ("nodes", _folders(row)),
        ("files", row.folder or ""),
        *(line for one in row.attempts for line in _attempt(one, row, now)),
        ("variables", _variables(row.environment, has_names)),
    ]
    head = paint(f"job {row.id}  {harmless(shown_name(row))}".rstrip(), "id")
    return "\n".join([head, *(labelled(label, text, width) for label, text in lines if text)])


def explained(row: JobRow, now: float, held: str = "", width: int = 0) -> str:
    """Say in a line or two what a job waits for, or where it runs: `held` tells its lease."""
    head = f"{paint(f'job {row.id}', 'id')}  {shown_command(row)}"
    state, since = _painted_state(row), show_time(now - _since(row))
    why = _why(row)
    if row.has_ended:
        said = f"ended {since} ago, {state}{f': {harmless(row.why)}' if row.why else ''}"
    elif held and row.state == "running" and not why:
        said = held
    else:
        said = f"{state} for {since}{f': {why}' if why else ''}{f'; {held}' if held else ''}"
    return f"{head}\n{indented(said, width)}"


def _attempt(one: AttemptRow, row: JobRow, now: float) -> Iterator[tuple[str, str]]:
    """Describe where an attempt ran and how it ended, where known."""
    ran_s = one.ran_s
    if not one.reason and row.started_at:
        ran_s = now - row.started_at
    text = one.reason or "under way"
    if ran_s is not None:
        text += f" {'after' if one.reason else 'for'} {show_time(ran_s)}"
    if one.peak_bytes is not None:
        text += f", peak {show_size(one.peak_bytes)}"
    where = f"GPU {','.join(map(str, one.gpus))}" if one.gpus else "no GPU"
    where += f" of {harmless(one.where)}" if one.where else ""
    yield "attempt", f"{one.attempt} on {where}: {text}"
    yield "", harmless(one.text or "")


def _memory_now(row: JobRow) -> str:
    if not row.used_bytes:  # known of running jobs only
        return ""
    return f"{show_size(row.used_bytes)} used of {show_size(row.reserved_bytes)} reserved"


def _variables(names: Sequence[str], has_names: bool) -> str:
    if has_names or not names:
        return harmless(", ".join(names))
    return f"{len(names)} (list them with --env)"


def _retries(row: JobRow) -> str:
    """Say when a job is run again."""
    parts = [f"up to {row.retries} on failure"] if row.retries else []
    parts += ["again if the machine goes down"] if row.may_requeue else []
    return ", ".join(parts)


def _array(row: JobRow) -> str:
    limit = f", at most {row.array_limit} at once" if row.array_limit else ""
    return f"GRN_ARRAY_INDEX={harmless(row.array_index)}{limit}" if row.array_index else ""


def _starts(row: JobRow, now: float) -> str:
    """Say when a job may start, if that was stated."""
    if not row.begin_at and not row.only:
        return ""
    from grn.model.windows import show_moment

    parts = [f"no earlier than {show_moment(row.begin_at, now)}"] if row.begin_at else []
    parts += [f"only {harmless(row.only)}"] if row.only else []
    return ", ".join(parts)


def reason(row: JobRow, ids: str = "") -> str:
    """Say why a job waits, or all jobs of these ids; of a held one how to release it."""
    if row.state == "held":
        return f"run `grn release {ids or row.id}` to let it start"
    return "" if row.why in ("running", "starting") else harmless(_without_start(row.why))


def _why(row: JobRow) -> str:
    if row.state == "held":
        return reason(row)
    return harmless(row.why) if row.why != row.state else ""


def counts(numbers: dict[str, int]) -> str:
    """Say how many jobs are in each state."""
    parts = [
        (numbers["running"], "running", "running"),
        (numbers["queued"], "queued", "waiting"),
        *([(numbers["held"], "held", "attention")] if numbers.get("held") else []),
        (numbers["ended"], "ended", "ended"),
    ]
    return ", ".join(paint(f"{count} {word}", style) for count, word, style in parts)


def shown_state(row: JobRow) -> str:
    """Name the state of a job, or how it ended."""
    return str(row.reason) if row.has_ended else row.state


def _painted_state(row: JobRow) -> str:
    state = shown_state(row)
    return paint(state, state_style(state))


def shown_where(row: JobRow) -> str:
    """Name the machine of a job that has begun."""
    if row.is_waiting or not row.attempt:
        return ""
    return harmless(row.where) or "local"


def shown_command(row: JobRow) -> str:
    """Spell the command of a job, after its name if it has one; with the number in its array."""
    return _named(shown_name(row), spelled(row))


def _base_name(row: JobRow) -> str:
    return row.name or row.label


def shown_name(row: JobRow) -> str:
    """Return the name of a job, with its number in its array; empty if it has none."""
    return f"{_base_name(row)}[{row.array_index}]" if row.array_index else row.name


def filled_command(row: JobRow) -> Sequence[str]:
    """Return the command as the shell reads it: with the number in its array filled in."""
    if not row.array_index or line_of(row.argv) is None:
        return row.argv
    return [with_index(word, row.array_index) for word in row.argv]


def named_command(name: str, argv: Sequence[str]) -> str:
    """Spell a command, after the name of its job if it has one."""
    return _named(name, spelled_command(argv))


def _named(name: str, command: str) -> str:
    return f"{harmless(name)}: {command}" if name else command


def spelled(row: JobRow) -> str:
    """Spell what a job runs as one would type it: a command, or the function it calls."""
    return called_function(row) or spelled_command(filled_command(row))


def called_function(row: JobRow) -> str:
    """Return the function that a worker of an executor calls; empty for a command."""
    return f"{harmless(row.label).rpartition('::')[2]}()" if _WORKER in row.argv[:4] else ""


def spelled_command(argv: Sequence[str]) -> str:
    """Spell a command as one would type it."""
    is_line = tuple(argv[:2]) == ("/bin/sh", "-c") and len(argv) == 3
    return harmless(argv[2] if is_line else shlex.join(argv))


def going_on(running: int) -> str:
    """State that running jobs continue, if there are any."""
    verb = "goes" if running == 1 else "go"
    return f"; {counted(running, 'running job')} {verb} on" if running else ""


def _since(row: JobRow) -> float:
    """Return when a job entered its state."""
    if row.has_ended:
        return row.ended_at or row.submitted_at
    return row.submitted_at if row.is_waiting else row.started_at or row.submitted_at


def _job_memory(row: JobRow) -> str:
    if row.is_waiting or row.reserved_bytes is None:
        return ""
    used = row.peak_bytes if row.has_ended else row.used_bytes
    return f"{show_size(used)}/{show_size(row.reserved_bytes)}"


def _asked(row: JobRow) -> str:
    """Say what a job needs and which GPUs it may use."""
    memory = show_size(row.mem_bytes) if row.mem_bytes else "memory as learned"
    parts = [
        f"{counted(row.gpus_asked, 'GPU')}, {memory}" if row.gpus_asked else "no GPU",
        f"{row.cpus:g} {'core' if row.cpus == 1 else 'cores'}" if row.cpus else "",
        f"{show_size(row.ram_bytes)} of host memory" if row.ram_bytes else "",
        "to itself" if row.is_exclusive else "",
        f"on {harmless(row.on)}" if row.on else "",
        f"not on GPU {harmless(', '.join(row.without))}" if row.without else "",
        f"at {harmless(row.at)}" if row.at else "",
        "urgent" if row.is_urgent else "",
        "yields" if row.yields else "",
        f"after at least {show_limit(row.at_least_s)}" if row.at_least_s else "",
    ]
    return ", ".join(filter(None, parts))


def _limit(row: JobRow) -> str:
    if not row.time_limit_s:
        return ""
    return show_limit(row.time_limit_s) + (", then queued again" if row.again else "")


def _ending(row: JobRow) -> str:
    """Say how a job is asked to end, where that was stated."""
    asked = f"asked by {harmless(row.stop_signal)}" if row.stop_signal else ""
    grace = f"{show_limit(row.grace_s)} to end" if row.grace_s is not None else ""
    return ", ".join(filter(None, (asked, grace)))


def _folders(row: JobRow) -> str:
    """Say which files go to a node and come back."""
    fetched = f"fetches {harmless(', '.join(row.fetch))}" if row.fetch else ""
    return ", ".join(filter(None, ("its folder is sent" if row.sends else "", fetched)))


def _exit_text(row: JobRow) -> str:
    if row.signal:
        return f"signal {row.signal}"
    return "" if row.status is None else str(row.status)
