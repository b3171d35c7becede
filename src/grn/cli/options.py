"""The options of the command line as data: names, kinds, defaults, help, and their sections.

`read` takes the words of a command apart without click, which would double the time of `grn ls`. It
accepts valid words only: click reads all others, and its texts are what people see.
"""

from __future__ import annotations

from grn.model import MAX_PRIORITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

TEXT, WHOLE, FLAG, WORDS = "text", "whole", "flag", "words"  # a repeatable option gives words
MAX_DIGITS = 18


class Opt:
    """One option."""

    __slots__ = ("alias", "choices", "default", "dest", "flags", "help", "high", "kind", "low",
                 "metavar", "section")  # fmt: skip

    def __init__(
        self, flags: str, kind: str, help: str, metavar: str | None = None, *, dest: str = "",
        default: Any = None, low: int | None = None, high: int | None = None, section: str = "",
        choices: tuple[str, ...] = (), alias: str = "",
    ) -> None:  # fmt: skip
        self.flags = flags.split()
        self.kind = kind
        self.help = help
        self.metavar = metavar
        self.dest = dest or self.flags[-1].lstrip("-").replace("-", "_")
        self.default = {FLAG: False, WORDS: ()}.get(kind) if default is None else default
        self.low, self.high = low, high
        self.section = section
        self.choices = choices
        self.alias = alias  # an older flag that is accepted and not shown

    def value(self, text: str) -> Any:
        """Return the value that a word gives; None if it is not valid."""
        if self.choices and text not in self.choices:
            return None
        if self.kind != WHOLE:
            return text
        digits = text[1:] if text.startswith("-") else text
        if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS):
            return None
        number = int(text)
        is_within = (self.low is None or number >= self.low) and (
            self.high is None or number <= self.high
        )
        return number if is_within else None


NEED, PLACE, LIST, OUTPUT = "What it needs", "Where it runs", "Which jobs", "Output"
ENDS = "When it starts and ends"


def gpu_count(help: str = "Number of GPUs.", low: int = 1, section: str = "") -> Opt:
    """Return `-g`, a number of GPUs; `-n` is a number of rows everywhere else."""
    return Opt("-g --gpus", WHOLE, help, "N", default=1, low=low, section=section, alias="-n")


NEEDS = {
    "gpus": gpu_count("Number of GPUs; 0 for a job that needs none.", 0, NEED),
    "mem": Opt("--mem", TEXT, "Memory on each GPU, such as 6GiB (default: learned).", "SIZE",
               section=NEED),
    "cpus": Opt("--cpus", TEXT, "Cores, such as 8 or 0.5 (default: learned).", "N",
                section=NEED),
    "ram": Opt("--ram", TEXT, "Host memory, such as 32GiB (default: learned).", "SIZE",
               section=NEED),
    "exclusive": Opt("--exclusive", FLAG, "Do not share the GPUs with other jobs.", section=NEED),
    "type": Opt("--type", TEXT, "Job type, for learning (default: the program or script).",
                "NAME", dest="job_type", section=NEED),
    "priority": Opt("--priority", WHOLE, "Jobs with a higher priority start first.", "N", default=0,
                    low=-MAX_PRIORITY, high=MAX_PRIORITY, section=NEED),
    "on": Opt("--on", TEXT, "Use only GPUs that match: a100, 'a100|h100', '>=40GiB'.", "GPUS",
              default="", section=NEED),
    "not": Opt("--not", WORDS, "Do not use this GPU, by index or UUID (repeatable).", "GPU",
               dest="without", section=NEED),
    "idle_limit": Opt("--idle-limit", TEXT, "Count as idle after this time below 5% GPU load"
                      " (default: as set for the machine).", "TIME", section=ENDS),
}  # fmt: skip
PLACES = {
    "at": Opt("--at", TEXT, "Run at this site or node, or `local`.", "PLACE", default="",
              section=PLACE),
    "nodes": Opt("--nodes", WHOLE, "Machines for one job; only 1 is supported.", "N", default=1,
                 low=1, section=PLACE),
    "send": Opt("--send", FLAG, "Send this folder, without files that git ignores, to a node"
                " without it.",
                section=PLACE),
    "fetch": Opt("--fetch", WORDS, "Copy files back from a node when the job ends"
                 " (repeatable).", "PATTERN", section=PLACE),
}  # fmt: skip
JSON = Opt("--json", FLAG, "Print JSON (see docs/json.md).", dest="as_json", section=OUTPUT)
QUIET = Opt("-q --quiet", FLAG, "Print only ids.", section=OUTPUT)
COLOURS = ("auto", "always", "never")
COLOUR = Opt("--color", TEXT, "When to use colour: auto, always or never.", "WHEN",
             choices=COLOURS, section=OUTPUT)  # fmt: skip
FILTERS = (
    Opt("--state", WORDS, "Only jobs in this state: queued, held, running, ok, failed, ..."
        " (repeatable).", "STATE", dest="states", section=LIST),
    Opt("--name", TEXT, "Only jobs of this name.", "NAME", section=LIST),
    Opt("--type", TEXT, "Only jobs of this type.", "NAME", dest="job_type", section=LIST),
    Opt("--tag", TEXT, "Only jobs with this tag.", "WORD", section=LIST),
    Opt("--group", TEXT, "Only jobs of this batch or sweep.", "NAME", section=LIST),
)  # fmt: skip


def rows(usual: int = 50, largest: int | None = None) -> Opt:
    """Return `-n`, the number of rows that a list prints."""
    return Opt("-n --rows", WHOLE, "Print at most N rows.", "N", dest="most", default=usual,
               low=1, high=largest, section=OUTPUT)  # fmt: skip


# --- reading words -------------------------------------------------------------------------


def read(
    table: Sequence[Opt], words: Sequence[str], *, has_command: bool = False
) -> dict[str, Any] | None:
    """Return the value of each option; None for words that click has to explain or refuse.

    With a command, the first word that is no option begins it, and so does `--`.
    """
    by_flag = {flag: opt for opt in table for flag in (*opt.flags, opt.alias)}
    found: dict[str, Any] = {opt.dest: opt.default for opt in table}
    at = 0
    while at < len(words) and words[at][:1] == "-" and words[at] not in ("-", "--"):
        flag, mark, given = words[at].partition("=")
        is_long = flag.startswith("--")
        opt = by_flag.get(flag)
        if opt is None or (mark and (opt.kind == FLAG or not is_long)):
            return None
        if opt.kind == FLAG:
            found[opt.dest] = True
            at += 1
            continue
        at += 1 if mark else 2
        if at > len(words):
            return None
        value = opt.value(given if mark else words[at - 1])
        if value is None:
            return None
        found[opt.dest] = (*found[opt.dest], value) if opt.kind == WORDS else value
    rest = list(words[at:])
    if rest and not has_command:
        return None
    if has_command:
        found["command"] = tuple(rest[1:] if rest[:1] == ["--"] else rest)
    return found


# --- for click -----------------------------------------------------------------------------


def click_options(
    table: Sequence[Opt], *, has_defaults: bool = True, names: dict[str, str] | None = None,
    **helps: str,
) -> Callable[[Any], Any]:  # fmt: skip
    """Add options to a click command, some with a help text or a parameter name of their own.

    Without defaults an option that was not given is None, so that a file can supply it.
    """
    from grn.cli.help import option

    def add(command: Any) -> Any:
        for opt in reversed(table):
            text, name = helps.get(opt.dest, opt.help), (names or {}).get(opt.dest, opt.dest)
            command = option(opt, name, text, has_default=has_defaults)(command)
        return command

    return add


def needs(
    *, has_defaults: bool = True, without: str = "", names: dict[str, str] | None = None,
    **helps: str,
) -> Callable[[Any], Any]:  # fmt: skip
    """Add the options that state the needs of a job to a click command."""
    table = [opt for name, opt in NEEDS.items() if name != without]
    return click_options(table, has_defaults=has_defaults, names=names, **helps)


def place(*, has_defaults: bool = True, **helps: str) -> Callable[[Any], Any]:
    """Add where a job runs, and what happens to its folder there, to a click command."""
    return click_options(list(PLACES.values()), has_defaults=has_defaults, names=None, **helps)


def most(usual: int = 50, largest: int | None = None) -> Callable[[Any], Any]:
    """Add `-n`, the number of rows that a list prints, to a click command."""
    return click_options([rows(usual, largest)])


def json_flag(command: Any) -> Any:
    """Add `--json` to a click command."""
    return click_options([JSON])(command)
