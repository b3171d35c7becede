"""The state of the view: selection, filter, order, and the effect of keys.

Pure: a view and a key in, a view and perhaps an action out; `actions.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from grn.cli.top.board import SORTS, Board
from grn.cli.top.rows import Row, Section

PARTS = (Section.RUNNING, Section.WAITING, Section.ENDED)


@dataclass(frozen=True, slots=True)
class KeyAction:
    """Something to do with one job: cancel, hold, release, retry, log, explain; or quit."""

    verb: str
    row: Row | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The user's choices."""

    part: Section = Section.RUNNING
    selected: Mapping[Section, str] = field(default_factory=dict)  # the key of a row
    firsts: Mapping[Section, int] = field(default_factory=dict)  # first row to be seen
    sorts: Mapping[Section, str] = field(default_factory=dict)
    wanted: str = ""
    is_typing: bool = False  # the filter is being typed
    is_mine: bool = False
    asking: KeyAction | None = None  # an order that waits for a yes
    said: str = ""  # the result of the last action
    is_helping: bool = False
    is_following: bool = False  # the pane shows the log alone
    is_expanded: bool = False  # every job of an array has a row

    def said_of(self, text: str) -> View:
        """Return the view with a message for the last line."""
        return replace(self, said=text)

    def sort_of(self, part: Section) -> str:
        return self.sorts.get(part, SORTS[part][0])

    def place(self, board: Board, part: Section) -> int:
        """Return where the selected row is; the first when it is gone."""
        wanted = self.selected.get(part, "")
        rows = board.rows[part]
        return next((place for place, row in enumerate(rows) if row.has(wanted)), 0)

    def row(self, board: Board) -> Row | None:
        """Return the selected row of the part in focus."""
        rows = board.rows[self.part]
        return rows[self.place(board, self.part)] if rows else None


def press(view: View, key: str, board: Board, page: int = 10) -> tuple[View, KeyAction | None]:
    """Return the view after a key, and the action it triggers."""
    if view.is_typing:
        return _type(view, key), None
    if view.asking is not None:
        order = view.asking if key in ("y", "Y") else None
        return replace(view, asking=None, said="" if order else "left as it was"), order
    if view.is_helping:
        return replace(view, is_helping=False), None
    view = replace(view, said="")
    if key in _STEPS or key in ("pageup", "pagedown", "home", "end"):
        return _moved(view, board, _step(key, page)), None
    if key in _CHANGES:
        return _CHANGES[key](view), None
    return _order(view, key, board)


def point(view: View, part: Section, row: Row) -> View:
    """Select a row by a click."""
    return replace(view, part=part, selected={**view.selected, part: row.key}, said="")


def _type(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, is_typing=False)
    if key == "escape":
        return replace(view, is_typing=False, wanted="")
    if key == "backspace":
        return replace(view, wanted=view.wanted[:-1])
    text = {"space": " "}.get(key, key)
    return replace(view, wanted=view.wanted + text) if len(text) == 1 else view


def _step(key: str, page: int) -> int:
    far = 1 << 30
    steps = {"pageup": -page, "pagedown": page, "home": -far, "end": far, **_STEPS}
    return steps[key]


def _moved(view: View, board: Board, step: int) -> View:
    rows = board.rows[view.part]
    if not rows:
        return view
    place = max(0, min(len(rows) - 1, view.place(board, view.part) + step))
    return replace(view, selected={**view.selected, view.part: rows[place].key})


def _next_part(view: View, step: int) -> View:
    return replace(view, part=PARTS[(PARTS.index(view.part) + step) % len(PARTS)])


def _next_sort(view: View) -> View:
    sorts = SORTS[view.part]
    after = sorts[(sorts.index(view.sort_of(view.part)) + 1) % len(sorts)]
    return replace(view, sorts={**view.sorts, view.part: after})


def _order(view: View, key: str, board: Board) -> tuple[View, KeyAction | None]:
    if key in ("q", "ctrl+c"):
        return view, KeyAction("quit")
    verb = _VERBS.get(key)
    if verb is None:
        return view, None
    row = view.row(board)
    if row is None:
        return replace(view, said="nothing is selected"), None
    if verb == "explain":
        return view, KeyAction(verb, row)
    if row.job is None:
        return replace(
            view, said=f"{row.id} is not a job of your queue: it can only be explained"
        ), None
    if verb == "hold":
        verb = "release" if row.state == "held" else "hold"
        if row.part is not Section.WAITING:
            return replace(view, said=f"job {row.id} does not wait: it cannot be held"), None
    if verb == "retry" and row.part is not Section.ENDED:
        return replace(view, said=f"job {row.id} has not ended"), None
    if verb == "cancel":
        if row.part is Section.ENDED:
            return replace(view, said=f"job {row.id} has ended already"), None
        return replace(view, asking=KeyAction(verb, row)), None
    return view, KeyAction(verb, row)


_STEPS = {"up": -1, "down": 1, "k": -1, "j": 1}
_VERBS = {
    "c": "cancel", "h": "hold", "r": "retry", "l": "log", "f": "follow",
    "e": "explain", "enter": "explain",
}  # fmt: skip
_CHANGES: Mapping[str, Callable[[View], View]] = {
    "tab": lambda view: _next_part(view, 1),
    "shift+tab": lambda view: _next_part(view, -1),
    "s": _next_sort,
    "m": lambda view: replace(view, is_mine=not view.is_mine),
    "a": lambda view: replace(view, is_expanded=not view.is_expanded),
    "slash": lambda view: replace(view, is_typing=True),
    "/": lambda view: replace(view, is_typing=True),
    "escape": lambda view: replace(view, wanted="", is_mine=False),
    "question_mark": lambda view: replace(view, is_helping=True),
    "?": lambda view: replace(view, is_helping=True),
}
