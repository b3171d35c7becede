"""Plain text for people out of the negotiator's answers: pure, so it can be tested as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from grn.cli.output.ps_text import idle_text
from grn.cli.output.style import paint, plain, state_style
from grn.cli.output.table import indented, labelled, paint_bar, table
from grn.model.text import columns_of, harmless
from grn.model.units import show_expected, show_size, show_time
from grn.model.windows import show_moment
from grn.protocol.negotiator_rows import (
    BookingRow,
    GpuRow,
    HostRow,
    LeaseRow,
    ProfileRow,
    RunRow,
    ShareRow,
    WaitingRow,
)
from grn.protocol.queue_rows import NodeRow

UserName = Callable[[int], str]

BLOCKS = ("█", "▒", "░", "·")
ASCII_BLOCKS = ("#", "=", "x", ".")
BAR, SHORTEST_BAR = 20, 8
_GPU_HEADERS = ("GPU", "MODEL", "MEMORY", "USED", "RESERVED", "FREE", "TOTAL", "LOAD", "JOBS")
_WIDE_FROM = 100  # columns of a terminal


def gpus(
    found: Sequence[GpuRow], width: int = 0, is_ascii: bool = False, nodes: Sequence[NodeRow] = (),
    of_host: HostRow | None = None,
) -> str:  # fmt: skip
    """Draw one line for each GPU, those of nodes below those of this machine."""
    used, reserved, strangers, _ = ASCII_BLOCKS if is_ascii else BLOCKS
    kinds = ((used, "used by jobs"), (reserved, "reserved"), (strangers, "others and guard"))
    legend = "  ".join(paint_bar(block) + paint(f" {text}", "reason") for block, text in kinds)
    everywhere = [("local", gpu) for gpu in found]
    everywhere += [(harmless(node.node), gpu) for node in nodes for gpu in node.gpus]
    where = ["WHERE"] if nodes else []
    headers = (*where, *_GPU_HEADERS)
    size = BAR
    if width:
        longest = table(headers, _gpu_rows(everywhere, BAR, is_ascii, where, is_short=True))
        over = columns_of(plain(longest.partition("\n")[0])) - width
        size = min(BAR, max(SHORTEST_BAR, BAR - over))
    rows = _gpu_rows(everywhere, size, is_ascii, where, is_short=bool(width))
    drawn = table(headers, rows, width, elastic=("MODEL",), spare=("TOTAL", "MEMORY", "LOAD"))
    legends = [legend] if "MEMORY" in drawn else []
    away = [node_line(node) for node in nodes if not node.gpus]
    below = [host(of_host)] if of_host is not None else []
    return "\n".join(filter(None, (drawn, *legends, *_links(found), *below, *away)))


def node_line(node: NodeRow) -> str:
    """Tell in one line why a node shows no GPUs."""
    name = f"{node.node} ({node.site})" if node.node != "-" else node.site
    text = harmless(": ".join(filter(None, (f"{name} is {node.state}", node.trouble))))
    return paint(text, state_style(node.state))


def _gpu_rows(
    everywhere: Sequence[tuple[str, GpuRow]], size: int, is_ascii: bool, where: Sequence[str],
    *, is_short: bool,
) -> list[tuple[str, ...]]:  # fmt: skip
    rows = []
    for place, gpu in everywhere:
        index, model, *rest = _gpu_row(gpu, size, is_ascii)
        model = short_model(model) if is_short else model
        rows.append((*([place] if where else []), index, model, *rest))
    return rows


def short_model(name: str) -> str:
    """Leave out what all GPUs of a maker are called."""
    for word in ("NVIDIA ", "GeForce ", "Tesla "):
        name = name.removeprefix(word)
    return name


def _links(gpus: Sequence[GpuRow]) -> list[str]:
    """Name the GPUs that are all linked to each other, a line for each kind of link."""
    index = {gpu.uuid: gpu.index for gpu in gpus}
    kinds: dict[str, set[tuple[int, int]]] = {}
    for gpu in gpus:
        for link in gpu.links:
            if link.to in index:
                kind = link.by + (f" x{link.lanes}" if link.lanes else "")
                kinds.setdefault(kind, set()).add((gpu.index, index[link.to]))
    return [
        f"{kind}: {'  '.join(','.join(map(str, each)) for each in _linked_sets(pairs))}"
        for kind, pairs in sorted(kinds.items())
    ]


def _linked_sets(pairs: set[tuple[int, int]]) -> list[list[int]]:
    """Cover all links by sets in which each has a link to each."""
    all_gpus = sorted({one for one, _ in pairs})
    sets: list[list[int]] = []
    left = {pair for pair in pairs if pair[0] < pair[1]}
    while left:
        found = list(min(left))
        for gpu in all_gpus:
            if gpu not in found and all((gpu, other) in pairs for other in found):
                found.append(gpu)
        sets.append(sorted(found))
        left -= {(one, other) for one in found for other in found}
    return sets


def why(rows: Sequence[LeaseRow | WaitingRow], user_name: UserName, width: int = 0) -> str:
    """Explain each of the jobs meant."""
    return "\n".join(_explained(row, user_name, width) for row in rows)


def shares(rows: Sequence[ShareRow], user_name: UserName, width: int = 0) -> str:
    """List users by whose turn it is."""
    if not rows:
        return "no GPU has been used lately"
    total = sum(row.had_gpu_h for row in rows) or 1.0
    lines = [
        (
            user_name(row.user),
            f"{row.weight:g}",
            f"{row.had_gpu_h:.2f}",
            f"{row.had_gpu_h / total:.0%}",
            f"{row.gpus_now:.1f}",
            str(row.waits),
        )
        for row in rows
    ]
    return table(("USER", "WEIGHT", "GPU HOURS", "SHARE", "GPUS NOW", "WAITS"), lines, width)


def bookings(
    rows: Sequence[BookingRow], user_name: UserName, now: float, width: int = 0, *,
    has_sites: bool = False,
) -> str:  # fmt: skip
    """List bookings; a node itself names the users of its own."""
    if not rows:
        return "nothing is booked"
    lines = [
        (
            str(row.id),
            harmless(row.user_name) if row.where else user_name(row.user),
            *([harmless(row.where) or "local"] if has_sites else []),
            str(row.gpus_asked),
            ", ".join(map(str, row.gpus)),
            show_moment(row.from_at, now),
            show_moment(row.until_at, now),
            show_time(row.until_at - row.from_at),
            "unused" if row.state == "active" and not row.used else row.state,
        )
        for row in rows
    ]
    where = ["WHERE"] if has_sites else []
    headers = ("ID", "USER", *where, "GPUS", "WHICH", "BEGINS", "ENDS", "LASTS", "STATE")
    return table(headers, lines, width, spare=("LASTS", "WHICH"))


def profiles(rows: Sequence[ProfileRow], width: int = 0) -> str:
    """List what was learned, a line for each job type and GPU model."""
    if not rows:
        return "nothing was learned yet: run a job first"
    names = _told_apart(rows)
    lines = [
        (
            names[row.type],
            row.model,
            str(row.runs),
            show_size(row.largest_bytes),
            show_size(row.estimate_bytes),
            show_time(row.usual_duration_s),
        )
        for row in rows
    ]
    headers = ("TYPE", "GPU MODEL", "RUNS", "LARGEST", "ESTIMATE", "USUAL TIME")
    return table(headers, lines, width, elastic=("TYPE", "GPU MODEL"), spare=("USUAL TIME",))


def _told_apart(rows: Sequence[ProfileRow]) -> dict[str, str]:
    """Return a name for each type: its label, with folders where two types share a label."""
    names = {row.type: row.label for row in rows}
    shared = {label for label in names.values() if list(names.values()).count(label) > 1}
    for label in shared:
        alike = [type_ for type_ in names if names[type_] == label]
        short: dict[str, str] = {}
        for parts in range(2, 12):
            short = {type_: "/".join(type_.split("/")[-parts:]) for type_ in alike}
            if len(set(short.values())) == len(alike):
                break
        names |= short
    return names


def profile(row: ProfileRow, is_ascii: bool = False, width: int = 0) -> str:
    """Explain one profile in words and draw the peaks of its runs beside the estimate."""
    notes = [*row.by_arguments, *row.notes]
    lines = [
        ("type", row.type),
        ("estimate", f"{show_size(row.estimate_bytes)}: {row.because}"),
        *(("", text) for text in notes),
        *_load_lines(row),
        *_host_lines(row),
        ("runs", f"{row.runs}, the last {len(row.history)}:"),
        *_run_lines(row, 12 if 0 < width < _WIDE_FROM else 24, is_ascii),
    ]
    head = f"{paint(row.label, 'strong')} on {row.model}"
    return "\n".join([head, *(labelled(label, text, width) for label, text in lines)])


def _run_lines(row: ProfileRow, size: int, is_ascii: bool) -> Iterator[tuple[str, str]]:
    """Draw each run, and the estimate for the next."""
    most = max([row.estimate_bytes or 0, *(run.peak_bytes for run in row.history)]) or 1
    solid, reserved, faint, _ = ASCII_BLOCKS if is_ascii else BLOCKS
    for run in row.history:
        block, style = (faint, "free") if run.outdated else (solid, "used")
        peak = run.peak_bytes
        drawn = f"{paint(_peak(peak / most, size, block), style)} {show_size(peak):>9}"
        yield run.outcome, f"{drawn} {_told(run)}"
        if run.note:
            yield "", run.note
    if row.estimate_bytes and row.history:
        estimate = row.estimate_bytes
        drawn = paint(_peak(estimate / most, size, reserved), "reserved")
        drawn += f" {show_size(estimate):>9}"
        which = " where its arguments tell nothing" if row.by_arguments else ""
        yield "next", f"{drawn} as estimated{which}"


def _peak(share: float, size: int, block: str) -> str:
    return (block * max(1, round(size * share))).ljust(size)


def _told(run: RunRow) -> str:
    facts = " ".join(f"{name}={_value(value)}" for name, value in run.args.items())
    note = "" if run.counts else "  (at least: it did not end well)"
    if run.outdated:
        note = "  (older: does not count any more)"
    return f"in {show_time(run.duration_s):>6} {facts}{note}"


def _load_lines(row: ProfileRow) -> Iterator[tuple[str, str]]:
    """Say how busy a type keeps a GPU, and beside whom it takes longer."""
    if row.load:
        text = f"{row.load:.0%} of a GPU's time"
        if row.load_cap:
            text += f"; shared up to {row.load_cap:.0%} ({row.load_cap_because})"
        yield "load", text
    for other, slower in row.slower_beside.items():
        yield "beside", f"{other}: {slower:.1f} times as long as load tells"


def _host_lines(row: ProfileRow) -> Iterator[tuple[str, str]]:
    """Say what a type needs of the machine beside its GPUs."""
    if row.ram_bytes is not None:
        yield "host RAM", f"{show_size(row.ram_bytes)}: {row.ram_because}"
    if row.cpus is not None:
        most = "" if row.peak_cpus is None else f", {row.peak_cpus:.3g} at most"
        yield "cores", f"{row.cpus:.3g} usually{most}"


def host(row: HostRow) -> str:
    """Tell in one line what is left of the memory and the cores of this machine."""
    ram = f"{show_size(row.free_bytes)} of {show_size(row.ram_bytes)} free"
    ram += f", {show_size(row.reserved_bytes)} reserved"
    if row.strangers_bytes:
        ram += f", {show_size(row.strangers_bytes)} of others"
    cores = f"{row.free_cpus:.3g} of {row.cpus:.3g} cores free, {row.reserved_cpus:.3g} reserved"
    return paint(f"host RAM: {ram}; {cores}", "reason")


def bar(gpu: GpuRow, size: int, is_ascii: bool = False) -> str:
    """Draw the memory of a GPU: used by jobs, reserved beyond that, others and guard, free."""
    used_block, reserved_block, others_block, free_block = ASCII_BLOCKS if is_ascii else BLOCKS
    if gpu.used_bytes is None:
        return "?" * size
    others = gpu.strangers_bytes + gpu.unexplained_bytes
    used = max(0, gpu.used_bytes - others)
    reserved = max(0, gpu.reserved_bytes - used)
    others += gpu.guard_bytes
    parts = [_cells(part, gpu.total_bytes, size) for part in (used, reserved, others)]
    drawn = used_block * parts[0] + reserved_block * parts[1]
    drawn = drawn[: size - parts[2]].ljust(size - parts[2], free_block)
    return (drawn + others_block * parts[2])[:size]


def _cells(part: int, total: int, size: int) -> int:
    return min(size, max(1, round(size * part / total)) if part else 0)


def _gpu_row(gpu: GpuRow, size: int, is_ascii: bool) -> tuple[str, ...]:
    load = "?" if gpu.load_pct is None else f"{gpu.load_pct:.0f}%"
    health = "" if gpu.health == "ok" else f" ({gpu.health})"
    return (
        str(gpu.index),
        gpu.model + health,
        bar(gpu, size, is_ascii),
        show_size(gpu.used_bytes),
        show_size(gpu.reserved_bytes),
        show_size(gpu.free_bytes),
        show_size(gpu.total_bytes),
        load,
        _job_count(gpu),
    )


def _job_count(gpu: GpuRow) -> str:
    idle = len(gpu.idle_leases) + len(gpu.idle_strangers)
    return f"{len(gpu.leases)} ({idle} idle)" if idle else str(len(gpu.leases))


def _explained(row: LeaseRow | WaitingRow, user_name: UserName, width: int) -> str:
    who = f"{paint(row.id, 'id')}  {row.label}  of {user_name(row.user)} (pid {row.pid or '?'})"
    if isinstance(row, WaitingRow):
        verb = f"waits for {show_time(row.for_s)}, place {row.place}"
        turn = ""
        if before := row.users_before:
            others = (
                "another user with a waiting job has" if before == 1 else f"{before} others have"
            )
            turn = f"\n  its user has had {row.had_gpu_h:.1f} GPU hours lately; {others} had less"
        if row.starts_in_s is not None:
            turn = f"\n  {show_expected('starts', row.starts_in_s)}{turn}"
        reason = paint(f"[{row.reason}]", "reason")
        said = f"{paint(verb, 'waiting')}: {row.why}  {reason}"
        return f"{who}\n{indented(said, width)}{turn}"
    return f"{who}\n{indented(held(row), width)}"


def held(row: LeaseRow) -> str:
    """Say where a job runs, for how long, with how much memory, and when it is to end."""
    idle = f"; {idle_text(row)}" if row.idle_for_s is not None else ""
    memory = f"{show_size(row.used_bytes)} used of {show_size(row.reserved_bytes)} reserved"
    end = f"; {show_expected('ends', row.ends_in_s)}" if row.ends_in_s is not None else ""
    return f"{paint(row.why, 'running')}, for {show_time(row.for_s)}; {memory}{end}{idle}"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
