"""Lines for a terminal out of rows: pieces of text, each with the name of a style.

Pure. Everything can be told apart without colour, and in plain ASCII.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from grn.cli.output.render import short_model
from grn.cli.top.rows import Row, Section, letters
from grn.model.text import columns_of, counted, harmless
from grn.model.text import cut as text_cut
from grn.model.units import middle_s, short_size, show_time
from grn.protocol.negotiator_rows import GpuRow, LeaseRow
from grn.protocol.queue_rows import NodeRow

Piece = tuple[str, str]  # text, style
Line = list[Piece]


@dataclass(frozen=True, slots=True)
class Marks:
    """The characters things are drawn with."""

    used: str = "█"
    reserved: str = "▒"
    strangers: str = "╳"
    unexplained: str = "?"
    guard: str = "╱"
    free: str = "·"
    spark: str = " ▁▂▃▄▅▆▇█"
    cut: str = "…"
    rule: str = "─"
    selected: str = "▶"
    same: str = "″"
    degree: str = "°C"
    frame: str = "╭╮├┤╰╯│"  # corners on top, joints, corners below, side


UNICODE = Marks()
ASCII = Marks("#", "=", "x", "?", "/", ".", " .:-=+*#@", "~", "-", ">", '"', "C", "++++++|")


# --- small things --------------------------------------------------------------------------


def age(seconds: float) -> str:
    """Spell how long something takes; it changes once a second at most."""
    return show_time(float(max(0, int(seconds)))) if seconds >= 10 else f"{max(0, int(seconds))}s"


def spark(values: Sequence[float | None], size: int, most: float, marks: Marks) -> str:
    """Draw the latest values, one character each; the newest is on the right, unknown is a gap."""
    shown = list(values)[-size:]
    steps = len(marks.spark) - 1
    drawn = "".join(
        " "
        if value is None
        else marks.spark[max(int(value > 0), min(steps, round(steps * value / most)))]
        for value in shown
    )
    return drawn.rjust(size)


def squeezed(values: Sequence[int | None], size: int) -> list[int | None]:
    """Return at most `size` values, each the maximum of its share of them."""
    size = min(size, len(values))
    parts = [
        values[len(values) * place // size : len(values) * (place + 1) // size]
        for place in range(size)
    ]
    return [max((value for value in part if value is not None), default=None) for part in parts]


def framed(title: Line, rest: Line, width: int, ends: str, marks: Marks, style: str) -> Line:
    """Draw an edge of a frame with a title at its left and a note at its right."""
    room = width - 4 - width_of(title) - width_of(rest)
    if room < 1:
        title, rest = clipped(title, max(0, width - 5), marks), []
        room = width - 4 - width_of(title)
    return [
        (ends[0] + marks.rule, style), *title, (marks.rule * room, style), *rest,
        (marks.rule + ends[1], style),
    ]  # fmt: skip


def boxed(line: Line, marks: Marks, style: str = "frame") -> Line:
    """Put the sides of a frame around a line."""
    return [(marks.frame[6], style), *line, (marks.frame[6], style)]


def cut(text: str, size: int, marks: Marks) -> str:
    """Fit a text into `size` columns, with a mark where it is cut."""
    shown = text_cut(text, size, marks.cut)
    return shown + " " * (size - columns_of(shown))


def width_of(line: Iterable[Piece]) -> int:
    """Return how many columns a line takes."""
    return sum(columns_of(text) for text, _ in line)


def plain(line: Iterable[Piece]) -> str:
    """Return a line without styles."""
    return "".join(text for text, _ in line).rstrip()


# --- a GPU ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuColumns:
    """How wide the parts of a GPU's line are."""

    bar: int
    spark: int
    model: int
    sensors: int = 0

    @staticmethod
    def of(width: int, sensors: int = 0) -> GpuColumns:
        """Share what is left of a line beside its fixed parts."""
        left = max(24, width - _GPU_FIXED - sensors)
        model = min(26, max(12, left // 5))
        past = min(60, (left - model) // 4)
        return GpuColumns(left - model - past, past, model, sensors)


def sensors_of(gpus: Iterable[GpuRow], width: int) -> int:
    """Return the width of temperature, power and clock; 0 without room, or where none is told."""
    found = list(gpus)
    if width >= _CLOCK_FROM and any(gpu.clock_mhz is not None for gpu in found):
        return _SENSORS + _CLOCK
    is_told = any(gpu.temperature_c is not None or gpu.power_w is not None for gpu in found)
    return _SENSORS if is_told and width >= _SENSORS_FROM else 0


def gpu_line(gpu: GpuRow, leases: Mapping[str, LeaseRow], loads: Sequence[float | None],
             width: int, marks: Marks, sensors: int = 0) -> Line:  # fmt: skip
    """Draw one GPU: who has its memory, how much is used, its load now and before, its model."""
    columns = GpuColumns.of(width, sensors)
    index: Piece = (f"{gpu.index:>3} ", "index")
    idle = len(gpu.idle_leases) + len(gpu.idle_strangers)
    name = f"{idle} idle, {short_model(gpu.model)}" if idle else short_model(gpu.model)
    model: Piece = (" " + cut(name, columns.model, marks), "note" if idle else "dim")
    if gpu.health != "ok":
        text = _SICK.get(gpu.health, gpu.health)
        room = columns.bar + columns.spark + columns.sensors + _GPU_FIXED - 4 - 1
        return [index, (cut(f" {text} ", room, marks), "bad"), model]
    used = f"{short_size(gpu.used_bytes)}/{short_size(gpu.total_bytes)}"
    heat = "" if gpu.temperature_c is None else f"{gpu.temperature_c}{marks.degree}"
    power = "" if gpu.power_w is None else f"{gpu.power_w}W"
    clock = "" if gpu.clock_mhz is None else f"{gpu.clock_mhz}MHz"
    readings = f"{heat:>5} {power:>5} " + (f"{clock:>7} " if sensors > _SENSORS else "")
    load = "  ?" if gpu.load_pct is None else f"{gpu.load_pct:3.0f}"
    return [
        index,
        *bar(gpu, leases, columns.bar, marks),
        (f" {used:>11}", "plain"),
        (f" {load}% ", "bold" if (gpu.load_pct or 0) >= 90 else "plain"),
        *([(readings, "plain")] if sensors else []),
        (spark(loads, columns.spark, 100.0, marks), "spark"),
        model,
    ]


def bar(gpu: GpuRow, leases: Mapping[str, LeaseRow], size: int, marks: Marks) -> Line:
    """Draw the memory of a GPU: each job from its letter on, what it uses and what is reserved."""
    total = gpu.total_bytes or 1
    cells: list[tuple[str, str, int]] = []  # mark, style, bytes
    for lease_id, letter in letters(gpu).items():
        lease = leases.get(lease_id)
        used = lease.used_bytes or 0 if lease is not None else 0
        rest = max(0, lease.reserved_bytes - used) if lease is not None else 0
        style = job_style(letter)
        cells += [(letter, style, 0), (marks.used, style, used), (marks.reserved, style, rest)]
    cells.append((marks.strangers, "strangers", gpu.strangers_bytes))
    cells.append((marks.unexplained, "strangers", gpu.unexplained_bytes))
    guard = _cells(gpu.guard_bytes, total, size)
    drawn = _fill(cells, size / total, size - guard)
    free = size - guard - width_of(drawn)
    return _joined([*drawn, (marks.free * free, "free"), (marks.guard * guard, "guard")])


def job_style(letter: str) -> str:
    """Return the style of a job by its letter on a GPU: neighbours differ."""
    return f"job{(ord(letter) - ord('A')) % 6}"


def _fill(cells: Sequence[tuple[str, str, int]], per_byte: float, size: int) -> Line:
    """Lay parts side by side; each boundary is rounded once, so that sums stay true."""
    line: Line = []
    at, place, letter = 0.0, 0, ""
    for mark, style, size_bytes in cells:
        if mark.isalpha() and mark.isascii() and mark.isupper():
            letter = mark
            continue
        at += size_bytes * per_byte
        least = place + 1 if letter or size_bytes * per_byte > 1 else 0
        until = min(size, max(round(at), least))
        count = max(0, until - place)
        if letter and count:
            line.append((letter, f"{style} letter"))
            count, letter = count - 1, ""
        line.append((mark * count, style))
        place = max(place, until)
    return line


def _cells(part: int, total: int, size: int) -> int:
    return min(size, max(1, round(size * part / total)) if part else 0)


def _joined(line: Line) -> Line:
    return [piece for piece in line if piece[0]]


# --- nodes ---------------------------------------------------------------------------------


def node_head(node: NodeRow, width: int, marks: Marks) -> Line:
    """Draw the line of one node: its GPUs in sum, its jobs, or why it cannot be used."""
    name = harmless(node.site if node.node == "-" else f"{node.node} ({node.site})")
    if not node.gpus:
        said = ": ".join(filter(None, (node.state, node.trouble)))
        return [(cut(f"  {name}: {harmless(said)}", width, marks), "bad")]
    used = sum(gpu.used_bytes or 0 for gpu in node.gpus)
    total = sum(gpu.total_bytes for gpu in node.gpus)
    facts = [
        counted(len(node.gpus), "GPU"), f"{short_size(used)}/{short_size(total)} used",
        f"{counted(node.jobs, 'job')} of yours" if node.jobs else "",
    ]  # fmt: skip
    return [(cut(f"  {name}: {', '.join(filter(None, facts))}", width, marks), "bold")]


# --- jobs ----------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def columns(
    part: Section, width: int, where: int = 0, has_times: bool = False
) -> tuple[tuple[str, int], ...]:
    """Return the names and sizes of a part's columns; those to the right have a size below 0.

    `where` is the size of the column for nodes, 0 without it. `has_times` adds a column for
    expected ends and starts.
    """
    times = [("LEFT" if part is Section.RUNNING else "START", -7)] if has_times else []
    user = [("USER", 9)] if width >= _WIDE_FROM else []
    node = [("WHERE", where)] if where else []
    if part is Section.RUNNING:
        fixed = [*node, ("GPU", 6), ("USED/RESERVED", -13), ("FOR", -6), *times, *user]
    elif part is Section.WAITING:
        fixed = [
            ("FOR", -6),
            *times,
            *user,
            ("JOB", 20 if width < _WIDE_FROM else min(60, width // 4)),
        ]
    else:
        fixed = [("HOW", 13), *node, ("RAN", -6), ("PEAK", -6), ("AGO", -6), *user]
    taken = _LEAD + sum(abs(size) + 2 for _, size in fixed)
    return (*fixed, ("WHY" if part is Section.WAITING else "JOB", max(8, width - taken)))


def where_size(rows: Iterable[Row]) -> int:
    """Return the size of the column that names nodes; 0 where all is on this machine."""
    longest = max((len(row.where) for row in rows), default=0)
    return min(16, max(5, longest)) if longest else 0


def heading(
    part: Section, width: int, count: str, sort: str, is_focused: bool, marks: Marks,
    where: int = 0, has_times: bool = False,
) -> Line:  # fmt: skip
    """Draw the heading of one part: its name, how many there are, and its columns."""
    text = column_names(part, width, f"{part.value.upper()} {count}", marks, where, has_times)
    by = f" by {sort}"
    by = by if not text[width - len(by) :].strip() else ""
    style = "heading focus" if is_focused else "heading"
    return [(text[: width - len(by)] + by, style)]


def column_names(
    part: Section, width: int, lead: str, marks: Marks, where: int = 0, has_times: bool = False
) -> str:
    """Return the names of the columns, after the word above the ids."""
    named = columns(part, width, where, has_times)
    cells = [name.rjust(-size) if size < 0 else name.ljust(size) for name, size in named]
    return cut(cut(lead, _LEAD, marks) + "  ".join(cells), width, marks)


def job_line(
    row: Row, now: float, width: int, user: str, marks: Marks, is_selected: bool = False,
    where: int = 0, has_times: bool = False,
) -> Line:  # fmt: skip
    """Draw one job."""
    mark = marks.selected if is_selected else " "
    line: Line = [(mark, "mark"), (cut(row.id, _LEAD - 1, marks), "id")]
    cells = _CELLS[row.part](row, now) | {"USER": (user, "dim")}
    cells["WHERE"] = (harmless(row.where) or "local", "plain" if row.where else "dim")
    for place, (name, size) in enumerate(columns(row.part, width, where, has_times)):
        text, style = cells[name]
        shown = text.rjust(-size) if size < 0 else cut(text, size, marks)
        line.append(("  " * (place > 0), style))
        line += _name_first(shown, style, row) if name == "JOB" else [(shown, style)]
    line = clipped(line, width, marks)
    return [(text, f"{style} selected") for text, style in line] if is_selected else line


def _name_first(shown: str, style: str, row: Row) -> Line:
    """Dim the command that follows the name of a job."""
    if not row.name or not shown.startswith(row.name):
        return [(shown, style)]
    end = len(row.name)
    if shown.startswith(" [", end):  # its state
        end = shown.find("]", end) + 1 or len(shown)
    rest = shown[end:]
    return [(shown[:end], style), (rest, "dim" if rest.strip() else style)]


def clipped(line: Line, width: int, marks: Marks) -> Line:
    """Cut a line to the width of the terminal, and fill it."""
    out: Line = []
    left = width
    for text, style in line:
        if left <= 0:
            break
        size = min(left, columns_of(text))
        out.append((text if columns_of(text) <= left else cut(text, left, marks), style))
        left -= size
    return [*out, (" " * left, "plain")] if left > 0 else out


def _running(row: Row, now: float) -> dict[str, Piece]:
    state = "" if row.state == "running" else f"[{row.state}]"
    if row.state == "idle" and row.idle_since_at is not None:
        state = f"[idle {age(now - row.idle_since_at)}]"
    name = row.name if row.what.startswith(row.name) else ""  # a name is worth more columns
    what = (
        " ".join(filter(None, (name, state))) + row.what[len(name) :]
        if name or not state
        else (f"{state} {row.what}")
    )
    style = "bad" if row.state == "draining" else "plain" if row.state in _CALM_STATES else "note"
    letter = next((char for char in row.seats if char.isalpha()), None)
    return {
        "GPU": (row.seats, f"seat {job_style(letter)}" if letter else "seat"),
        "USED/RESERVED": (
            f"{short_size(row.used_bytes)}/{short_size(row.reserved_bytes)}",
            "plain",
        ),
        "FOR": (age(now - row.since_at), "plain"),
        "LEFT": (_expected(row, now), "dim"),
        "JOB": (what, style),
    }


def _waiting(row: Row, now: float) -> dict[str, Piece]:
    return {
        "FOR": (age(now - row.since_at), "plain"),
        "START": (_expected(row, now), "dim"),
        "JOB": (row.name or row.what, "plain"),
        "WHY": (row.why, "note" if row.state == "held" else "why"),  # held: a person must act
    }


def _expected(row: Row, now: float) -> str:
    """Spell in how long a job is expected to end or start; empty when unknown."""
    if row.expected_at is None:
        return ""
    low, high = (max(0.0, at - now) for at in row.expected_at)
    return "soon" if high < 1 else f"~{age(middle_s((low, high)))}"


def _ended(row: Row, now: float) -> dict[str, Piece]:
    outcome = row.state.rpartition(" ")[2]
    style = "good" if outcome in ("ok", "profiled") else "dim" if outcome in _CALM else "bad"
    return {
        "HOW": (row.state, style),
        "RAN": (age(row.ended_at - row.since_at), "plain"),
        "PEAK": (short_size(row.used_bytes), "plain"),
        "AGO": (age(now - row.ended_at), "dim"),
        "JOB": (f"{row.what}  ({row.why})" if row.why else row.what, "plain"),
    }


def heights(room: int, wanted: Sequence[int]) -> list[int]:
    """Share lines among parts: each gets what it wants while there is room, else alike.

    Every part has a heading of its own in its share.
    """
    shares = [0] * len(wanted)
    asked = [1 + max(1, count) for count in wanted]
    left = room
    while left > 0 and any(share < ask for share, ask in zip(shares, asked, strict=True)):
        hungry = [place for place, ask in enumerate(asked) if shares[place] < ask]
        portion = max(1, left // len(hungry))
        for place in hungry:
            given = min(portion, asked[place] - shares[place], left)
            shares[place] += given
            left -= given
    shares[-1] += left
    return shares


def window(selected: int, count: int, size: int, first: int) -> int:
    """Return the first line to show so that the selected one is seen, moving no more than need."""
    if size <= 0 or count <= size:
        return 0
    if selected < first:
        first = selected
    elif selected >= first + size:
        first = selected - size + 1
    return max(0, min(first, count - size))


_CELLS = {Section.RUNNING: _running, Section.WAITING: _waiting, Section.ENDED: _ended}
_CALM_STATES = ("running", "first run", "starting", "stopping")  # these need no action
_CALM = ("cancelled", "skipped", "not-started", "requeued", "interrupted")
_GPU_FIXED = 4 + 12 + 6 + 1
_SENSORS, _SENSORS_FROM = 12, 78  # columns of temperature and power, and of the terminal
_CLOCK, _CLOCK_FROM = 8, 100
_LEAD = 13
_WIDE_FROM = 110
_SICK = {
    "unknown": "the driver does not answer for this GPU: no new jobs",
    "lost": "the driver says that this GPU is gone",
    "prohibited": "the compute mode of this GPU lets no job start",
}
