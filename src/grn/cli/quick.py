"""The commands that shells call in loops and people call all day: their options, without click.

`main.py` runs them when their words are valid; `app.py` makes click commands of the same table.
"""

from __future__ import annotations

import importlib

from grn.cli.options import (
    COLOUR,
    FILTERS,
    FLAG,
    JSON,
    LIST,
    NEEDS,
    OUTPUT,
    PLACES,
    QUIET,
    TEXT,
    WHOLE,
    WORDS,
    Opt,
    read,
    rows,
)
from grn.model import MAX_RETRIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_WHAT, _ENDS = "What to run", "When it starts and ends"


class QuickCommand:
    """A command: where its code is, its options and its help."""

    __slots__ = ("has_command", "help", "options", "target")

    def __init__(
        self, target: str, help: str, options: Sequence[Opt], *, has_command: bool = False
    ) -> None:
        self.target = target
        self.help = help
        self.options = options
        self.has_command = has_command

    def function(self) -> Callable[..., int]:
        """Load its code."""
        module, _, name = self.target.partition(":")
        found: Callable[..., int] = getattr(importlib.import_module(module), name)
        return found


SUBMIT = (
    Opt("--name", TEXT, "A name to find it by.", "NAME", default="", section=_WHAT),
    Opt("--tag", WORDS, "A word to find it and others by (repeatable).", "WORD", dest="tags",
        section=_WHAT),
    Opt("--shell", FLAG, "CMD is a line for the shell.", section=_WHAT),
    Opt("--lines", TEXT, "Submit each line of FILE (- for standard input), run by the shell.",
        "FILE", section=_WHAT),
    Opt("--array", TEXT, "Submit CMD for each number of 0-9, 0,2,4 or 0-10:2, in GRN_ARRAY_INDEX;"
        " 0-99%4 runs at most four at a time.", "RANGE", section=_WHAT),
    Opt("--cwd", TEXT, "Run it in this folder.", "DIR", section=_WHAT),
    Opt("--env", WORDS, "Set a variable for it (repeatable).", "K=V", section=_WHAT),
    *NEEDS.values(),
    Opt("--after", WORDS, "Start when that job has ended well, or with :any when it has ended"
        " (repeatable).", "ID[:ok|:any]", section=_ENDS),
    Opt("--begin", TEXT, "Start no earlier: 22:00, now+2h, 'tomorrow 9:00' or '2030-01-31 9:00'.",
        "TIME", section=_ENDS),
    Opt("--only", TEXT, "Start only in these hours of each day: 20:00-08:00.", "HOURS",
        default="", section=_ENDS),
    Opt("--hold", FLAG, "Hold the job until you run `grn release`.", section=_ENDS),
    Opt("--retry", WHOLE, "Retry up to N times on failure.", "N", default=0, low=0,
        high=MAX_RETRIES, section=_ENDS),
    Opt("--time-limit", TEXT, "End it after 90s, 30m, 12h or 2d.", "TIME", section=_ENDS),
    Opt("--again", FLAG, "At the time limit, stop it and queue it again.", section=_ENDS),
    Opt("--yield", FLAG, "Give way to jobs that do not yield, and run again; costs half in fair"
        " share.", dest="yields", section=_ENDS),
    Opt("--at-least", TEXT, "With --yield: let each attempt run this long first.", "TIME",
        section=_ENDS),
    Opt("--urgent", FLAG, "Make jobs that yield give way to it at once.", section=_ENDS),
    Opt("--signal", TEXT, "Ask it to end by this signal instead of TERM.", "NAME",
        section=_ENDS),
    Opt("--grace", TEXT, "How long it may take to end before it is killed.", "TIME",
        section=_ENDS),
    Opt("--requeue", FLAG, "Run it again if the machine goes down under it.", section=_ENDS),
    Opt("--notify", TEXT, "Run CMD by the shell when it has ended.", "CMD", default="",
        section=_ENDS),
    *PLACES.values(),
    Opt("--separate-stderr", FLAG, "Also keep standard error in a log of its own.",
        section=OUTPUT),
    Opt("--wait", FLAG, "Wait for the end, and exit as `grn wait` does.", section=OUTPUT),
    QUIET,
)  # fmt: skip
COMMANDS = {
    "submit": QuickCommand(
        "grn.cli.commands.submit:run",
        "Hand CMD to your queue and return at once with its id.\n\nIt runs when its turn comes and"
        " a GPU has room, with this environment and in this folder, whatever happens to this"
        " terminal.",
        SUBMIT, has_command=True,
    ),
    "ls": QuickCommand(
        "grn.cli.commands.listing:ls",
        "List your jobs: what runs, what waits and why; with -a also what has ended.\n\nJobs of"
        " the queue, lines of a batch, runs of a sweep, and calls and commands that run outside"
        " the queue. Every command takes the ids.",
        (
            Opt("-a --all", FLAG, "Also jobs that have ended.", dest="everything", section=LIST),
            *FILTERS, rows(),
            Opt("--expand", FLAG, "Print each job of an array in its own row.", section=OUTPUT),
            QUIET, JSON, COLOUR,
        ),
    ),
    "ps": QuickCommand(
        "grn.cli.commands.machine:ps",
        "Show the jobs of all users: what runs, what waits, and why it waits.",
        (JSON, COLOUR),
    ),
    "gpus": QuickCommand(
        "grn.cli.commands.machine:gpus",
        "Show each GPU: its memory by who has it, its load, its jobs.",
        (
            Opt("-w --watch", FLAG, "Keep drawing until Ctrl-C.", dest="is_watched"),
            JSON, COLOUR,
        ),
    ),
}  # fmt: skip


def read_words(name: str, words: Sequence[str]) -> dict[str, Any] | None:
    """Return the options of a quick command; None for words that click has to read."""
    found = COMMANDS[name]
    return read(found.options, words, has_command=found.has_command)
