"""`grn top`: the machine and one's jobs on one screen. Draws what changed and carries out orders.

`rows`, `draw`, `state` and `screen` decide what is shown; this file has the terminal and the keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from grn.cli.help import command, flag
from grn.cli.top import actions, draw, screen, state
from grn.cli.top.board import Board, board
from grn.cli.top.detail import Detail
from grn.cli.top.draw import Line, Marks
from grn.cli.top.rows import Row, Section
from grn.cli.top.screen import Look, Shown
from grn.cli.top.state import KeyAction, View
from grn.client.negotiator import MALFORMED, expected_at, garbled
from grn.client.state_mirror import StateMirror
from grn.errors import GrnError, UsageError
from grn.model import ansi
from grn.model.units import short_size
from grn.paths import user_name
from grn.proc import host
from grn.protocol.snapshot import Snapshot

PACE_S = 0.5
FIRST_LOOK_S = 1.0
DETAIL_S = 1.0  # between two readings of the selected job
HOST_S = 2.0
EXPECTED_S = 5.0  # between two questions for expected starts and ends
_COLOURS = {
    "title": "bold reverse",
    "heading": "bold color(6)",
    "focus": "reverse",
    "selected": "reverse",
    "keys": "dim",
    "ask": "bold color(3)",
    "bad": "color(1)",
    "good": "color(2)",
    "note": "color(3)",
    "why": "dim",
    "id": "bold",
    "index": "bold",
    "bold": "bold",
    "dim": "dim",
    "free": "dim",
    "guard": "dim",
    "spark": "color(2)",
    "limit": "color(3)",
    "frame": "dim",
    "strangers": "color(1)",
    "seat": "bold",
    "letter": "bold reverse",
    "job0": "color(4)", "job1": "color(5)", "job2": "color(6)",
    "job3": "color(3)", "job4": "color(2)", "job5": "color(12)",
}  # fmt: skip


class Canvas(Widget, can_focus=True):
    """Lines of text; only those that differ from before are drawn again."""

    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; }"

    def __init__(self, has_colour: bool) -> None:
        super().__init__()
        self._lines: list[Line] = []
        self._strips: list[Strip] = []
        self.drawn = 0  # lines, since the start
        self._style = _styles(has_colour)

    def show(self, lines: list[Line]) -> None:
        """Show these lines."""
        regions = []
        for place, line in enumerate(lines):
            if place >= len(self._lines) or self._lines[place] != line:
                strip = Strip([Segment(text, self._style(style)) for text, style in line])
                if place < len(self._strips):
                    self._strips[place] = strip
                else:
                    self._strips.append(strip)
                regions.append(Region(0, place, self.size.width, 1))
        if len(lines) < len(self._lines):
            del self._strips[len(lines) :]
            regions = [self.size.region]
        self._lines = lines
        self.drawn += len(regions)
        if regions:
            self.refresh(*regions)

    def text(self) -> str:
        """Return what is shown, without styles."""
        return "\n".join(map(draw.plain, self._lines))

    def render_line(self, y: int) -> Strip:
        """Return one line, as textual asks for it."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)


class Top(App[None]):
    """The terminal view."""

    CSS = "Screen { background: ansi_default; }"
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False
    TITLE = "grn top"

    def __init__(self, watch: StateMirror, marks: Marks, has_colour: bool = True) -> None:
        super().__init__(ansi_color=True)
        self.canvas = Canvas(has_colour)
        self.garbled: GrnError | None = None  # why it has left by itself
        self.view = View()
        self._watch = watch
        self._marks = marks
        self._shown: Shown | None = None
        self._drawn_of: tuple[object, ...] = ()
        self._page: actions.LogPage | None = None
        self._orders: set[asyncio.Task[None]] = set()
        self._detail = Detail()
        self._detail_at = 0.0
        self._detail_task: asyncio.Task[None] | None = None
        self._expected_task: asyncio.Task[None] | None = None
        self._host = _HostLoad()

    @property
    def picture(self) -> Snapshot:
        return self._watch.picture

    def compose(self) -> ComposeResult:
        yield self.canvas

    def on_mount(self) -> None:
        self.canvas.focus()
        self.set_interval(PACE_S, self.tick)
        self._expected_task = asyncio.get_running_loop().create_task(self._keep_expected())
        self.call_after_refresh(self.tick)

    def on_unmount(self) -> None:
        for task in (*self._orders, *filter(None, [self._detail_task, self._expected_task])):
            task.cancel()

    # --- drawing -------------------------------------------------------------------------

    def tick(self) -> None:
        """Take in what has changed and draw it."""
        try:
            self._watch.take()
            self.garbled = self._watch.garbled
            self.draw()
            self._read_detail()
        except MALFORMED:
            self.garbled = garbled()
            if self.garbled is None:
                raise
        if self.garbled is not None:
            self.exit()

    def draw(self) -> None:
        """Draw what there is; what has not changed is not touched."""
        size = self.canvas.size
        if not size.width or not size.height:
            return
        look = self._look(size.width, size.height)
        if self._page is not None:
            self.canvas.show(self._page.lines(look))
        elif self.view.is_helping:
            self.canvas.show(screen.help_lines(look))
        else:
            self._draw_board(look)

    def _draw_board(self, look: Look) -> None:
        now = time.time()
        drawn_of = self._drawn(look, now)
        if drawn_of == self._drawn_of and self._shown is not None:
            self.canvas.show(self._shown.lines)
            return
        found = self._board()
        shown = screen.compose(self.picture, found, self.view, look, now, self._detail)
        self.view, self._shown = shown.view, shown
        self._drawn_of = self._drawn(look, now)
        self.canvas.show(shown.lines)

    def _drawn(self, look: Look, now: float) -> tuple[object, ...]:
        """Return all that the board is drawn from."""
        facts = (look.width, look.height, look.use, int(now))
        return (self.picture.version, self.view, self._detail, *facts)

    def _read_detail(self) -> None:
        """Read the selected job again, beside the screen, if a pane shows it."""
        row = self.view.row(self._board()) if self._has_pane() else None
        if row is None or self._page is not None or self._detail_task is not None:
            return
        is_new = self._detail.row != (row.part, row.id)
        is_due = time.monotonic() - self._detail_at >= DETAIL_S
        if is_new or (is_due and row.part is Section.RUNNING):
            self._detail_at = time.monotonic()
            self._detail_task = asyncio.get_running_loop().create_task(self._take_detail(row))

    async def _take_detail(self, row: Row) -> None:
        try:
            self._detail = await asyncio.to_thread(actions.read_detail, row)
        finally:
            self._detail_task = None
        self.draw()

    async def _keep_expected(self) -> None:
        """Ask again and again for expected starts and ends, which the change feed does not tell."""
        while True:
            await asyncio.sleep(EXPECTED_S if self.picture.expected_at else PACE_S)
            with contextlib.suppress(GrnError):  # the screen tells why nothing answers
                self._watch.expect(await asyncio.to_thread(expected_at, time.time()))

    def _has_pane(self) -> bool:
        size = self.canvas.size
        return screen.has_pane(self.picture, self._look(size.width, size.height))

    def _board(self) -> Board:
        chosen = self.view
        return board(
            self.picture, os.getuid(), chosen.wanted, chosen.is_mine, chosen.sorts,
            is_expanded=chosen.is_expanded,
        )  # fmt: skip

    def _look(self, width: int, height: int) -> Look:
        use = self._host.text(time.monotonic())
        return Look(width, height, self._marks, os.getuid(), user_name, _host_name(), use)

    # --- keys and clicks -----------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        key = event.character if event.is_printable and event.character else event.key
        if self._page is not None:
            if not self._page.press(key, self.canvas.size.height):
                self._page = None
            self.draw()
            return
        page = self._shown.page if self._shown is not None else 10
        self.view, order = state.press(self.view, key, self._board(), page)
        if order is not None and order.verb == "follow" and self._has_pane():
            self.view = replace(self.view, is_following=not self.view.is_following)
        elif order is not None:
            self._carry_out(order)
        self.draw()
        self._read_detail()

    def on_click(self, event: events.Click) -> None:
        target = self._shown.targets.get(event.y) if self._shown is not None else None
        if target is not None and self._page is None:
            self.view = state.point(self.view, *target)
            self.draw()
            self._read_detail()

    def on_mouse_scroll_down(self, _event: events.MouseScrollDown) -> None:
        self._scroll("down")

    def on_mouse_scroll_up(self, _event: events.MouseScrollUp) -> None:
        self._scroll("up")

    def _scroll(self, key: str) -> None:
        if self._page is not None:
            self._page.press(key, self.canvas.size.height)
        else:
            self.view, _ = state.press(self.view, key, self._board())
        self.draw()

    # --- orders --------------------------------------------------------------------------

    def _carry_out(self, order: KeyAction) -> None:
        if order.verb == "quit":
            self.exit()
            return
        task = asyncio.get_running_loop().create_task(self._do(order))
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)

    async def _do(self, order: KeyAction) -> None:
        try:
            done = await asyncio.to_thread(actions.carry_out, order, self._marks)
        except GrnError as error:
            done = actions.Done(said=f"{error.message} {error.hint}".strip())
        self.view = self.view.said_of(done.said)
        self._page = done.page or self._page
        self.tick()


class _HostLoad:
    """CPU and memory of this machine, read again every two seconds."""

    def __init__(self) -> None:
        self._ticks: host.CpuTicks | None = None
        self._read_at = float("-inf")
        self._has_load = False
        self._text = ""

    def text(self, now: float) -> str:
        """Return them in words; what is not known is left out."""
        pace_s = HOST_S if self._has_load else PACE_S
        if now - self._read_at >= pace_s:
            ticks = host.cpu_ticks()
            use = host.use(self._ticks, ticks)
            self._has_load = self._ticks is not None  # it takes two readings
            self._ticks, self._read_at = ticks, now
            parts = []
            if use.cpu_pct is not None:
                parts.append(f"CPU {use.cpu_pct:.0f}% of {use.cpus}")
            if use.used_bytes is not None:
                parts.append(f"RAM {short_size(use.used_bytes)}/{short_size(use.total_bytes)}")
            self._text = "  ".join(parts)
        return self._text


@lru_cache
def _host_name() -> str:
    return socket.gethostname().partition(".")[0]


def _styles(has_colour: bool) -> Callable[[str], Style]:
    @lru_cache(maxsize=256)
    def style(names: str) -> Style:
        if names.startswith("sgr:"):
            return _style_of_output(names.removeprefix("sgr:"), has_colour)
        found = [_COLOURS.get(name, "") for name in names.split()]
        words = [word for text in found for word in text.split()]
        is_selected = "selected" in names.split()
        if is_selected or not has_colour:
            words = [word for word in words if not word.startswith("color(")]
        if is_selected and "dim" in words:
            words.remove("dim")
        return Style.parse(" ".join(words) or "none")

    return style


def _style_of_output(parameters: str, has_colour: bool) -> Style:
    """Return the style that a program chose for its output by an SGR sequence."""
    chosen = ansi.with_sgr(ansi.PLAIN, parameters)
    colours = (chosen.colour, chosen.background) if has_colour else (None, None)
    front, back = (None if number is None else f"color({number})" for number in colours)
    return Style(
        color=front, bgcolor=back, bold=chosen.is_bold, dim=chosen.is_dim, italic=chosen.is_italic,
        underline=chosen.is_underlined, reverse=chosen.is_inverse,
    )  # fmt: skip


def is_plain(environment: Mapping[str, str]) -> bool:
    """True when the locale promises no more than ASCII; Python itself speaks UTF-8 anyway."""
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    chosen = next((environment[name] for name in names if environment.get(name)), "C")
    return "utf" not in chosen.lower()


@command()
@flag("--ascii/--unicode", "as_ascii", default=None,
              help="Draw with ASCII or Unicode characters (default: by locale).")  # fmt: skip
def top(as_ascii: bool | None) -> int:
    """Watch GPUs and jobs on one screen; `?` shows the keys, `q` quits.

    Shows GPUs with their memory by job, load over time, and jobs: running, waiting and why, ended.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("`grn top` needs a terminal.", "`grn gpus` and `grn ps` print once.")
    has_colour = not os.environ.get("NO_COLOR")
    plain = is_plain(os.environ) if as_ascii is None else as_ascii
    marks = draw.ASCII if plain else draw.UNICODE
    with StateMirror() as watch, contextlib.suppress(KeyboardInterrupt):
        watch.look(FIRST_LOOK_S)
        app = Top(watch, marks, has_colour)
        app.run()
        if app.garbled is not None:
            raise app.garbled
    return 0
