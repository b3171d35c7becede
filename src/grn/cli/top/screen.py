"""The whole of `grn top` as lines: a picture and a view in, pieces of text out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from grn.cli.top import draw
from grn.cli.top.draw import Line, Marks
from grn.cli.top.rows import Board, Row, Section
from grn.cli.top.state import PARTS, View
from grn.model.text import harmless
from grn.model.units import short_size
from grn.protocol.snapshot import NEGOTIATOR, QUEUE, Snapshot

MIN_ROWS = 6  # for jobs, before GPUs give way


@dataclass(frozen=True, slots=True)
class Look:
    """The fixed facts of a screen: the size of the terminal, its characters, its user."""

    width: int
    height: int
    marks: Marks
    uid: int
    user_name: Callable[[int], str]
    host: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A screen: its lines, the rows that can be clicked, and the view with its windows moved."""

    lines: list[Line]
    targets: Mapping[int, tuple[Section, Row]]
    view: View
    page: int  # rows of the part in focus


def compose(picture: Snapshot, board: Board, view: View, look: Look, now: float) -> Shown:
    """Draw everything."""
    head = [_title(picture, board, view, look, now), *_troubles(picture, look)]
    gpus = gpu_lines(picture, look, look.height - len(head) - 1 - MIN_ROWS)
    room = max(3, look.height - len(head) - len(gpus) - 1)
    shares = draw.heights(room, [len(board.rows[part]) for part in PARTS])
    lines, targets, page = [*head, *gpus], {}, 1
    for part, size in zip(PARTS, shares, strict=True):
        rows = board.rows[part]
        place = view.place(board, part)
        first = draw.window(place, len(rows), size - 1, view.firsts.get(part, 0))
        view = replace(view, firsts={**view.firsts, part: first})
        begin = len(lines)
        lines += _part(board, view, part, size, look, now)
        for step, row in enumerate(rows[first : first + size - 1], 1):
            targets[begin + step] = (part, row)
        page = max(1, size - 2) if part is view.part else page
    lines = [*lines[: look.height - 1], footer(view, look)]
    return Shown(lines, targets, view, page)


def gpu_lines(picture: Snapshot, look: Look, most: int) -> list[Line]:
    """Draw the GPUs and what the marks mean; those that find no room are counted."""
    gpus = sorted(picture.gpus.values(), key=lambda gpu: gpu.index)
    fitting = gpus if len(gpus) + 1 <= most else gpus[: max(1, most - 2)]
    lines = []
    for gpu in fitting:
        past = picture.samples.get(gpu.uuid)
        loads = list(past.load_pct) if past is not None else []
        line = draw.gpu_line(gpu, picture.leases, loads, look.width, look.marks)
        lines.append(draw.clipped(line, look.width, look.marks))
    if len(fitting) < len(gpus):
        text = f"    and {len(gpus) - len(fitting)} more: make the window higher"
        lines.append([(draw.cut(text, look.width, look.marks), "dim")])
    lines += node_lines(picture, look, most - len(lines) - 1)
    return [*lines, legend(look)] if lines else []


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
        text, style = f" {view.asking.verb} job {row.id} ({row.what})? y or n", "ask"
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
    counts = "  ".join(f"{board.totals[part]} {part.value}" for part in PARTS[:2])
    parts = [
        f" grn {picture.negotiator.version}".rstrip(),
        f"on {look.host}" if look.host and look.width >= 110 else "",
        f"{len(gpus)} GPUs",
        f"{short_size(free)} free of {short_size(total)}" if gpus else "",
        counts,
    ]
    queued = picture.queue.counts.get("queued", 0) - sum(
        job.is_waiting for job in picture.jobs.values()
    )
    if queued > 0:
        parts.append(f"(+{queued} queued)")
    if view.wanted and not view.is_typing:
        parts.append(f"filter: {view.wanted}")
    if view.is_mine:
        parts.append("mine")
    if picture.queue.drained:
        parts.append("DRAINED")
    text = "  ".join(part for part in parts if part)
    return [(draw.cut(text, look.width, look.marks), "title")]


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


def _part(board: Board, view: View, part: Section, size: int, look: Look, now: float) -> list[Line]:
    if size <= 0:
        return []
    rows, total = board.rows[part], board.totals[part]
    count = str(total) if len(rows) == total else f"{len(rows)}/{total}"
    is_focused = part is view.part
    sort = view.sort_of(part)
    where = draw.where_size(rows)
    lines = [draw.heading(part, look.width, count, sort, is_focused, look.marks, where)]
    first, selected = view.firsts.get(part, 0), view.place(board, part)
    for place, row in enumerate(rows[first : first + size - 1], first):
        user = look.user_name(row.user)
        is_selected = is_focused and place == selected
        lines.append(draw.job_line(row, now, look.width, user, look.marks, is_selected, where))
    if not rows and size > 1:
        text = _EMPTY[part] if not total else "none that the filter lets through"
        lines.append([(draw.cut(f" {text}", look.width, look.marks), "dim")])
    blank: Line = [(" " * look.width, "plain")]
    return lines + [blank] * (size - len(lines))


_KEYS = " q quit  Tab part  / filter  s sort  e explain  l log  c cancel  h hold  ? keys"
_FEW_KEYS = " q quit  Tab part  / filter  e explain  ? help"
_EMPTY = {
    Section.RUNNING: "nothing runs: try `grn submit -- python train.py`",
    Section.WAITING: "nobody waits",
    Section.ENDED: "nothing has ended yet",
}
_HELP = (
    ("Tab, Shift+Tab", "the next part: running, waiting, ended"),
    ("Up Down PgUp", "move in it; Home and End, j and k too"),
    ("/", "filter by id, name, state or reason; `gpu 3` for one GPU, or a node; Esc drops it"),
    ("s", "sort this part in another way"),
    ("m", "only my own jobs"),
    ("e, Enter", "explain: why it waits, where it runs, its memory over time"),
    ("l", "follow the log of a job of my queue"),
    ("c", "cancel it, with all its processes; asks first"),
    ("h", "hold it back, or let it go"),
    ("r", "submit it once more, when it has ended"),
    ("q", "quit; nothing ends with it"),
    ("", ""),
    ("0A", "in the bar of GPU 0, the part that begins with A"),
)
