"""The commands that shells call in loops and people call all day: their options, without click.

`main.py` runs them when their words are valid; `app.py` makes click commands of the same table.
"""

from __future__ import annotations

import importlib

from grn.cli.options import (
    COLOUR,
    ENDS,
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
from grn.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_WHAT = "What to run"


class QuickCommand(Record):
    """A command: where its code is, its options and its help."""

    target: str
    help: str
    options: Sequence[Opt]
    has_command: bool = False

    def function(self) -> Callable[..., int]:
        """Load its code."""
        module, _, name = self.target.partition(":")
        found: Callable[..., int] = getattr(importlib.import_module(module), name)
        return found


SUBMIT = (
    Opt("--name", TEXT, "Name of the job.", "NAME", default="", section=_WHAT),
    Opt("--tag", WORDS, "Tag of the job, to select several by (repeatable).", "WORD", dest="tags",
        section=_WHAT),
    Opt("--shell", FLAG, "Run CMD as a line of the shell.", section=_WHAT),
    Opt("--lines", TEXT, "Submit each line of FILE as a job of the shell (- for standard input).",
        "FILE", section=_WHAT),
    Opt("--array", TEXT, "Submit CMD once for each number (0-9, 0,2,4 or 0-10:2), set in"
        " GRN_ARRAY_INDEX; 0-99%4 runs at most four at a time.", "RANGE", section=_WHAT),
    Opt("--cwd", TEXT, "Run in this folder, instead of the current one.", "DIR", section=_WHAT),
    Opt("--env", WORDS, "Set an environment variable (repeatable).", "K=V", section=_WHAT),
    *NEEDS.values(),
    Opt("--after", WORDS, "Start after that job has succeeded, or with :any after it has ended"
        " (repeatable).", "ID[:ok|:any]", section=ENDS),
    Opt("--begin", TEXT, "Start no earlier than 22:00, now+2h, 'tomorrow 9:00' or"
        " '2030-01-31 9:00'.",
        "TIME", section=ENDS),
    Opt("--only", TEXT, "Start only in these hours of the day, such as 20:00-08:00.", "HOURS",
        default="", section=ENDS),
    Opt("--hold", FLAG, "Hold the job until you run `grn release`.", section=ENDS),
    Opt("--retry", WHOLE, "Retry up to N times on failure.", "N", default=0, low=0,
        high=MAX_RETRIES, section=ENDS),
    Opt("--time-limit", TEXT, "End the job after this time: 90s, 30m, 12h or 2d.", "TIME",
        section=ENDS),
    Opt("--again", FLAG, "At the time limit, stop the job and queue it again.", section=ENDS),
    Opt("--yield", FLAG, "Give way to jobs that do not yield, then run again; counts half in"
        " fair share.", dest="yields", section=ENDS),
    Opt("--at-least", TEXT, "With --yield: run this long before giving way.", "TIME",
        section=ENDS),
    Opt("--urgent", FLAG, "Make jobs that yield give way at once.", section=ENDS),
    Opt("--signal", TEXT, "Signal that asks the job to end, instead of TERM.", "NAME",
        section=ENDS),
    Opt("--grace", TEXT, "Time to end after that signal before it is killed.", "TIME",
        section=ENDS),
    Opt("--requeue", FLAG, "Run the job again if the machine goes down while it runs.",
        section=ENDS),
    Opt("--notify", TEXT, "Run CMD in the shell when the job has ended.", "CMD", default="",
        section=ENDS),
    *PLACES.values(),
    Opt("--separate-stderr", FLAG, "Keep standard error in a separate log as well.",
        section=OUTPUT),
    Opt("--wait", FLAG, "Wait until the job has ended; exit with its status.", section=OUTPUT),
    QUIET,
)  # fmt: skip
COMMANDS = {
    "submit": QuickCommand(
        "grn.cli.commands.queue.submit:run",
        "Submit CMD to your queue and return at once with its id.\n\nThe job runs when it is its"
        " turn and a GPU has room, with the current environment and folder. It does not need this"
        " terminal to stay open.",
        SUBMIT, has_command=True,
    ),
    "ls": QuickCommand(
        "grn.cli.commands.queue.listing:ls",
        "List your jobs: running, waiting and why; with -a also ended ones.\n\nThe list has jobs of"
        " the queue, lines of a batch, runs of a sweep, and calls and commands outside the queue."
        " Every command takes these ids.",
        (
            Opt("-a --all", FLAG, "Include jobs that have ended.", dest="everything", section=LIST),
            *FILTERS, rows(),
            Opt("--expand", FLAG, "Print one row for each job of an array.", section=OUTPUT),
            QUIET, JSON, COLOUR,
        ),
    ),
    "ps": QuickCommand(
        "grn.cli.commands.machine:ps",
        "Show the jobs of all users: running, waiting and why.",
        (JSON, COLOUR),
    ),
    "gpus": QuickCommand(
        "grn.cli.commands.machine:gpus",
        "Show each GPU: who uses its memory, its load, its jobs.",
        (
            Opt("-w --watch", FLAG, "Redraw until Ctrl-C.", dest="is_watched"),
            JSON, COLOUR,
        ),
    ),
}  # fmt: skip


def read_words(name: str, words: Sequence[str]) -> dict[str, Any] | None:
    """Return the options of a quick command; None for words that click has to read."""
    found = COMMANDS[name]
    return read(found.options, words, has_command=found.has_command)
