"""The whole of `grn top` as lines: a picture and a view in, pieces of text out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from grn.cli.top import detail, draw
from grn.cli.top.board import Board
from grn.cli.top.detail import Detail
from grn.cli.top.draw import Line, Marks
from grn.cli.top.rows import Row, Section
from grn.cli.top.state import PARTS, View
from grn.model.text import columns_of, counted, cut, harmless
from grn.model.units import short_size, show_cores
from grn.model.windows import show_moment, show_span
from grn.protocol.negotiator_rows import BookingRow
from grn.protocol.snapshot import NEGOTIATOR, QUEUE, Snapshot

MIN_ROWS = 6  # for jobs, before GPUs give way
PANE_FROM = 120  # columns
MIN_FRAMED = 14  # lines for jobs, below which frames would take too many of them
COMMAND_FROM = 100  # columns of a table, from which names in frames are followed by the command
AIR_FROM = 22  # lines for jobs, from which empty lines stand between the parts


@dataclass(frozen=True, slots=True)
class Look:
    """The fixed facts of a screen: the size of the terminal, its characters, its user."""

    width: int
    height: int
    marks: Marks
    uid: int
    user_name: Callable[[int], str]
    host: str = ""
    use: str = ""  # CPU and memory of this machine, in words


@dataclass(frozen=True, slots=True)
class Shown:
    """A screen: its lines, the rows that can be clicked, and the view with its windows moved."""

    lines: list[Line]
    targets: Mapping[int, tuple[Section, Row]]
    view: View
    page: int  # rows of the part in focus


def compose(
    picture: Snapshot, board: Board, view: View, look: Look, now: float,
    known: Detail | None = None,
) -> Shown:  # fmt: skip
    """Draw everything: with frames and a pane at the right where the terminal is wide enough."""
    head = [_title(picture, board, view, look, now), *_troubles(picture, look)]
    gpus = gpu_lines(picture, look, look.height - len(head) - 1 - MIN_ROWS, now)
    room = max(3, look.height - len(head) - len(gpus) - 1)
    if has_pane(picture, look):
        inner = replace(look, width=look.width - 2)
        most = look.height - len(head) - 2 - MIN_ROWS
        gpus = _gpu_frame(gpu_lines(picture, inner, most, now), look)
        return _wide(picture, board, view, look, now, [*head, *gpus], known or Detail())
    gap = 1 if room >= AIR_FROM else 0
    shares = draw.heights(room - gap * len(PARTS), _wanted(board))
    lines, page = [*head, *gpus], 1
    targets: dict[int, tuple[Section, Row]] = {}
    for part, size in zip(PARTS, shares, strict=True):
        lines += [_blank(look.width)] * gap
        view, drawn, rows = _part(board, view, part, size, look, now)
        targets |= {len(lines) + step: (part, row) for step, row in rows.items()}
        lines += drawn
        page = max(1, size - 2) if part is view.part else page
    lines = [*lines[: look.height - 1], footer(view, look)]
    return Shown(lines, targets, view, page)


def _wanted(board: Board) -> list[int]:
    """Return how many lines each part could fill."""
    rest = {Section.WAITING: bool(board.unlisted)}
    return [len(board.rows[part]) + rest.get(part, 0) for part in PARTS]


def has_pane(picture: Snapshot, look: Look) -> bool:
    """True when there is room for the pane of one job beside the tables."""
    gpus = len(picture.gpus) + sum(1 + len(node.gpus) for node in picture.nodes.values())
    return look.width >= PANE_FROM and look.height - gpus - 5 >= MIN_FRAMED


def _wide(
    picture: Snapshot, board: Board, view: View, look: Look, now: float, head: list[Line],
    known: Detail,
) -> Shown:  # fmt: skip
    """Draw the tables in frames, and the selected job beside them."""
    marks = look.marks
    side = max(46, look.width * 2 // 5)
    left = look.width - side - 1
    table = replace(look, width=left - 2)
    height = look.height - len(head) - 1
    shares = draw.heights(height - 1 - len(PARTS), _wanted(board))
    lines: list[Line] = []
    targets: dict[int, tuple[Section, Row]] = {}
    page = 1
    for place, (part, size) in enumerate(zip(PARTS, shares, strict=True)):
        ends = marks.frame[2:4] if place else marks.frame[:2]
        lines.append(_part_edge(board, view, part, left, ends, marks))
        view, drawn, rows = _part(board, view, part, size, table, now, is_framed=True)
        targets |= {len(head) + len(lines) + step: (part, row) for step, row in rows.items()}
        lines += [draw.boxed(line, marks) for line in drawn]
        page = max(1, size - 2) if part is view.part else page
    lines.append(draw.framed([], [], left, marks.frame[4:6], marks, "frame"))
    row = view.row(board)
    right = _pane_frame(row, known, (side, height), look, now, view)
    both = [
        [*one, (" ", "plain"), *other] for one, other in zip(lines[:height], right, strict=True)
    ]
    return Shown([*head, *both, footer(view, look)], targets, view, page)


def _part_edge(
    board: Board, view: View, part: Section, width: int, ends: str, marks: Marks
) -> Line:
    style = "title focus" if part is view.part else "heading"
    title: Line = [(f" {part.value.upper()} {_count(board, view, part)} ", style)]
    return draw.framed(title, [(f" by {view.sort_of(part)} ", "dim")], width, ends, marks, "frame")


def _pane_frame(
    row: Row | None, known: Detail, size: tuple[int, int], look: Look, now: float, view: View
) -> list[Line]:
    marks, (width, height) = look.marks, size
    name = "" if row is None else f" job {row.id} " if row.job is not None else f" lease {row.id} "
    note = " following, f goes back " if view.is_following else ""
    user = look.user_name(row.user) if row is not None else ""
    inner = detail.pane(
        row, known, (width - 2, height - 2), now, marks, user, is_following=view.is_following
    )
    top = draw.framed([(name, "heading")], [(note, "dim")], width, marks.frame[:2], marks, "frame")
    below = draw.framed([], [], width, marks.frame[4:6], marks, "frame")
    return [top, *(draw.boxed(line, marks) for line in inner), below]


def _gpu_frame(lines: list[Line], look: Look) -> list[Line]:
    if not lines:
        return []
    marks = look.marks
    note: Line = [(f" {look.use} ", "dim")] if look.use else []
    title: Line = [(" GPUS ", "heading")]
    key: Line = [(f" {draw.plain(lines[-1]).strip()} ", "dim")]
    return [
        draw.framed(title, note, look.width, marks.frame[:2], marks, "frame"),
        *(draw.boxed(line, marks) for line in lines[:-1]),
        draw.framed(key, [], look.width, marks.frame[4:6], marks, "frame"),
    ]


def _blank(width: int) -> Line:
    return [(" " * width, "plain")]


def gpu_lines(picture: Snapshot, look: Look, most: int, now: float) -> list[Line]:
    """Draw the GPUs, the bookings and what the marks mean; GPUs without room are counted."""
    gpus = sorted(picture.gpus.values(), key=lambda gpu: gpu.index)
    booked = booked_line(picture.negotiator.bookings, look, now)
    most -= bool(booked)
    fitting = gpus if len(gpus) + 1 <= most else gpus[: max(1, most - 2)]
    lines = []
    sensors = draw.sensors_of(gpus, look.width)
    for gpu in fitting:
        past = picture.samples.get(gpu.uuid)
        loads = list(past.load_pct) if past is not None else []
        line = draw.gpu_line(gpu, picture.leases, loads, look.width, look.marks, sensors)
        lines.append(draw.clipped(line, look.width, look.marks))
    if len(fitting) < len(gpus):
        text = f"    and {len(gpus) - len(fitting)} more: make the window higher"
        lines.append([(draw.cut(text, look.width, look.marks), "dim")])
    lines += booked
    lines += node_lines(picture, look, most - len(lines) - 1)
    return [*lines, legend(look)] if lines else []


def booked_line(bookings: Sequence[BookingRow], look: Look, now: float) -> list[Line]:
    """Tell in one line what is booked, the first to begin first; empty without bookings."""
    if not bookings:
        return []
    line: Line = [("    booked: ", "dim")]
    for place, one in enumerate(bookings):
        which = ",".join(map(str, one.gpus))
        where = f"GPU {which}" if which else counted(one.gpus_asked, "GPU")
        is_active = one.state == "active"
        when = (
            f"until {show_moment(one.until_at, now)}"
            if is_active
            else show_span(one.from_at, one.until_at, now)
        )
        text = f"{where} for {harmless(one.user_name)} {when}"
        line += [("; " * bool(place), "dim"), (text, "note" if is_active else "plain")]
    return [draw.clipped(line, look.width, look.marks)]


def node_lines(picture: Snapshot, look: Look, most: int) -> list[Line]:
    """Draw the nodes of sites: each with its GPUs while there is room, else one line for each."""
    nodes = sorted(picture.nodes.values(), key=lambda node: node.key)
    heads = [draw.node_head(node, look.width, look.marks) for node in nodes]
    if len(nodes) + sum(len(node.gpus) for node in nodes) > most:
        if len(heads) > max(1, most):
            left = len(heads) - max(0, most - 1)
            text = f"  and {left} more nodes: see `grn sites`"
            heads[max(0, most - 1) :] = [[(draw.cut(text, look.width, look.marks), "dim")]]
        return heads
    lines: list[Line] = []
    for node, head in zip(nodes, heads, strict=True):
        leases = {lease.id: lease for lease in node.leases}
        drawn = [draw.gpu_line(gpu, leases, (), look.width, look.marks) for gpu in node.gpus]
        lines += [head, *(draw.clipped(line, look.width, look.marks) for line in drawn)]
    return lines


def legend(look: Look) -> Line:
    """Explain the marks of a bar."""
    marks = look.marks
    text = (
        f"    A{marks.used * 2} used  {marks.reserved * 2} reserved  {marks.free * 2} free  "
        f"{marks.strangers * 2} others  {marks.guard * 2} guard"
    )
    return [(draw.cut(text, look.width, marks), "dim")]


def footer(view: View, look: Look) -> Line:
    """Draw the last line: a question, the typed filter, the last message, else the keys."""
    if view.asking is not None and view.asking.row is not None:
        row = view.asking.row
        what = f"{len(row.members):,} jobs of an array" if row.members else f"job {row.id}"
        asked, end = f" {view.asking.verb} {what} (", ")? y or n"
        room = max(1, look.width - columns_of(asked) - columns_of(end))
        text, style = f"{asked}{cut(harmless(row.what), room, look.marks.cut)}{end}", "ask"
    elif view.is_typing:
        text, style = f" filter: {view.wanted}_   (Enter keeps it, Esc drops it)", "ask"
    elif view.said:
        text, style = f" {view.said}", "ask"
    else:
        text, style = _KEYS if look.width >= 78 else _FEW_KEYS, "keys"
    return [(draw.cut(harmless(text), look.width, look.marks), style)]


def help_lines(look: Look) -> list[Line]:
    """Draw the page of keys."""
    lines: list[Line] = [[("grn top: keys", "bold")], [("", "plain")]]
    lines += [[(f"  {key:<16}", "bold"), (text, "plain")] for key, text in _HELP]
    lines += [[("", "plain")], [("any key goes back", "dim")]]
    return full(lines, look)


def full(lines: Sequence[Line], look: Look) -> list[Line]:
    """Fill the terminal with lines, cut to its size."""
    shown = [draw.clipped(line, look.width, look.marks) for line in lines[: look.height]]
    return shown + [[(" " * look.width, "plain")]] * (look.height - len(shown))


def _title(picture: Snapshot, board: Board, view: View, look: Look, now: float) -> Line:
    gpus = [*picture.gpus.values(), *(g for node in picture.nodes.values() for g in node.gpus)]
    free = sum(gpu.free_bytes or 0 for gpu in gpus)
    total = sum(gpu.total_bytes for gpu in gpus)
    counts = "  ".join(f"{board.totals[part]:,} {part.value}" for part in PARTS[:2])
    parts = [
        f" grn {picture.negotiator.version}".rstrip(),
        f"on {look.host}" if look.host and look.width >= 110 else "",
        counted(len(gpus), "GPU") if gpus else "",
        f"{short_size(free)} free of {short_size(total)}" if gpus else "",
        counts,
    ]
    if view.wanted and not view.is_typing:
        parts.append(f"filter: {view.wanted}")
    if view.is_mine:
        parts.append("mine")
    if picture.queue.drained:
        parts.append("DRAINED")
    if not (picture.has_heard(NEGOTIATOR) and picture.has_heard(QUEUE)):
        parts.append("loading")
    free_on_host = _free_on_host(picture)
    if free_on_host and len("  ".join([*filter(None, parts), free_on_host])) <= look.width:
        parts.append(free_on_host)
    if look.use and not has_pane(picture, look):
        parts += (
            [look.use] if len("  ".join([*filter(None, parts), look.use])) <= look.width else []
        )
    text = "  ".join(part for part in parts if part)
    return [(draw.cut(text, look.width, look.marks), "title")]


def _free_on_host(picture: Snapshot) -> str:
    """Tell the host memory and the cores that jobs may still have."""
    host = picture.negotiator.host
    if host is None or picture.trouble[NEGOTIATOR]:
        return ""
    return f"{short_size(host.free_bytes)} RAM, {show_cores(host.free_cpus)} cores free"


def _troubles(picture: Snapshot, look: Look) -> list[Line]:
    texts = []
    has_others = any(node.gpus for node in picture.nodes.values())  # then none is needed here
    if (why := picture.trouble[NEGOTIATOR]) and not has_others:
        texts.append(f"{why.partition(' at /')[0].rstrip('.')}: `grn start` starts one.")
    elif picture.negotiator.trouble:
        texts.append(f"negotiator: {picture.negotiator.trouble}")
    if picture.queue.version and picture.trouble[QUEUE]:
        texts.append(picture.trouble[QUEUE])
    elif picture.queue.trouble:
        texts.append(f"queue: {picture.queue.trouble}")
    return [[(draw.cut(f" ! {harmless(text)}", look.width, look.marks), "bad")] for text in texts]


def _part(
    board: Board, view: View, part: Section, size: int, look: Look, now: float,
    *, is_framed: bool = False,
) -> tuple[View, list[Line], dict[int, Row]]:  # fmt: skip
    """Draw one part; return the view with its window moved, and the row of each line."""
    if size <= 0:
        return view, [], {}
    rows, total = board.rows[part], board.totals[part]
    rest = board.unlisted if part is Section.WAITING and size > 2 else 0
    room = size - 1 - bool(rest)
    selected = view.place(board, part)
    first = draw.window(selected, len(rows), room, view.firsts.get(part, 0))
    view = replace(view, firsts={**view.firsts, part: first})
    is_focused = part is view.part
    where, has_times = draw.where_size(rows), any(row.expected_at for row in rows)
    if is_framed:
        names = draw.column_names(part, look.width, " ID", look.marks, where, has_times)
        lines: list[Line] = [[(names, "dim")]]
    else:
        count, sort = _count(board, view, part), view.sort_of(part)
        lines = [
            draw.heading(part, look.width, count, sort, is_focused, look.marks, where, has_times)
        ]
    shown = rows[first : first + room]
    before = ""
    for place, row in enumerate(shown, first):
        is_same = part is Section.WAITING and bool(row.why) and row.why == before
        before = row.why
        told = row._replace(why=look.marks.same) if is_same else row
        if is_framed and row.name and look.width < COMMAND_FROM:  # the pane has the command
            told = told._replace(what=row.name)
        is_selected = is_focused and place == selected
        user = look.user_name(row.user)
        lines.append(
            draw.job_line(told, now, look.width, user, look.marks, is_selected, where, has_times)
        )
    if rest and rows:
        text = f" and {rest:,} more of your queue: `grn ls` lists them"
        lines.append([(draw.cut(text, look.width, look.marks), "dim")])
    elif not rows and size > 1:
        text = _EMPTY[part] if not total else "no job matches the filter"
        lines.append([(draw.cut(f" {text}", look.width, look.marks), "dim")])
    lines += [_blank(look.width)] * (size - len(lines))
    return view, lines, dict(enumerate(shown, 1))


def _count(board: Board, view: View, part: Section) -> str:
    shown, total = board.shown[part], board.totals[part]
    is_filtered = (view.wanted or view.is_mine) and shown != total
    return f"{shown:,}/{total:,}" if is_filtered else f"{total:,}"


_KEYS = " q quit  Tab part  / filter  s sort  e explain  l log  c cancel  h hold  ? keys"
_FEW_KEYS = " q quit  Tab part  / filter  e explain  ? help"
_EMPTY = {
    Section.RUNNING: "nothing runs: try `grn submit -- python train.py`",
    Section.WAITING: "nothing waits",
    Section.ENDED: "nothing has ended yet",
}
_HELP = (
    ("Tab, Shift+Tab", "go to the next part: running, waiting, ended"),
    ("Up Down PgUp", "select a job in it; so do Home, End, j and k"),
    ("/", "filter by id, name, state or reason, `gpu 3` or a node"),
    ("Esc", "drop the filter"),
    ("s", "sort the part in another way"),
    ("m", "show only my own jobs, or all"),
    ("a", "show an array as one row, or each of its jobs"),
    ("e, Enter", "explain the job: why it waits, where it runs, its memory"),
    ("l", "follow its log on the whole screen (jobs of my queue)"),
    ("f", "follow its log in the pane at the right, or go back"),
    ("c", "cancel it with all its processes; asks first"),
    ("h", "hold it, or release it"),
    ("r", "submit it again, once it has ended"),
    ("q", "quit; nothing ends with it"),
    ("", ""),
    ("0A", "the job with GPU 0; A begins its part of that bar"),
)
