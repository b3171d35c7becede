"""Options that several commands share: what a job needs, where it runs, how many rows to print.

`grn submit` reads the same table through argparse, so click is imported only when used.
"""

from __future__ import annotations

from grn.model import MAX_PRIORITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NEEDS = {
    "gpus": "how many GPUs",
    "mem": "memory per GPU, e.g. 6GiB; learned if not given",
    "exclusive": "GPUs to itself",
    "type": "job type; the program if not given",
    "priority": "higher goes first",
    "on": "only GPUs like these: a100, 'a100|h100', '>=40GiB'",
    "not": "not this GPU, by index or UUID",
}
WHEN = {
    "begin": "start no earlier: 22:00, now+2h, 'tomorrow 9:00' or '2030-01-31 9:00'",
    "only": "start only in these hours of each day: 20:00-08:00",
}
PLACE = {
    "at": "run it at this site or node, or local",
    "nodes": "machines for one job; more than 1 is not possible yet",
    "send": "send this folder to a node that does not have it, as git sees it",
    "fetch": "bring files of the job's folder on a node back here when it ends",
}


def needs(
    *,
    type_name: str = "job_type",
    not_name: str = "avoid",
    has_defaults: bool = True,
    without: str = "",
    **helps: str,
) -> Callable[[Any], Any]:
    """Add the options that state the needs of a job to a click command.

    Without defaults an option that was not given is None, so that a file can supply it.
    """
    import click

    def spoken(name: str) -> str:
        text = helps.get(name, NEEDS[name])
        return f"{text[0].upper()}{text[1:]}."

    usual = (1, False, 0) if has_defaults else (None, None, None)
    made = {
        "gpus": click.option("-n", "--gpus", type=click.IntRange(1), default=usual[0],
                             metavar="N", help=spoken("gpus")),
        "mem": click.option("--mem", metavar="SIZE", help=spoken("mem")),
        "exclusive": click.option("--exclusive", is_flag=True, default=usual[1],
                                  help=spoken("exclusive")),
        "type": click.option("--type", type_name, metavar="NAME", help=spoken("type")),
        "priority": click.option("--priority", type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
                                 default=usual[2], metavar="N", help=spoken("priority")),
        "on": click.option("--on", default="" if has_defaults else None, metavar="GPUS",
                           help=spoken("on")),
        "not": click.option("--not", not_name, multiple=True, metavar="GPU", help=spoken("not")),
    }  # fmt: skip

    def add(command: Any) -> Any:
        for name in reversed(made):
            command = command if name == without else made[name](command)
        return command

    return add


def place(*, has_defaults: bool = True, **helps: str) -> Callable[[Any], Any]:
    """Add where a job runs, and what happens to its folder there, to a click command."""
    import click

    def spoken(name: str) -> str:
        text = helps.get(name, PLACE[name])
        return f"{text[0].upper()}{text[1:]}."

    at = click.option("--at", default="" if has_defaults else None, metavar="PLACE",
                      help=spoken("at"))  # fmt: skip
    nodes = click.option("--nodes", type=click.IntRange(1), default=1 if has_defaults else None,
                         metavar="N", help=spoken("nodes"))  # fmt: skip
    send = click.option("--send", is_flag=True, default=False if has_defaults else None,
                        help=spoken("send"))  # fmt: skip
    fetch = click.option("--fetch", multiple=True, metavar="PATTERN", help=spoken("fetch"))
    return lambda command: at(nodes(send(fetch(command))))


def most(usual: int = 50, largest: int | None = None) -> Callable[[Any], Any]:
    """Add `-n`, the number of rows that a listing prints, to a click command."""
    import click

    return click.option(
        "-n", "most", type=click.IntRange(1, largest), default=usual, metavar="N",
        help=f"Show at most N (default: {usual}).",
    )  # fmt: skip
