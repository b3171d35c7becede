"""`grn book`: keep GPUs for a time, list the bookings, remove them."""

from __future__ import annotations

import time
from typing import Any

import click

from grn.cli.commands import machine
from grn.cli.help import flag, group
from grn.cli.options import NEEDS, click_options, gpu_count, json_flag
from grn.cli.output import render
from grn.cli.output.terminal import echo, print_json, width
from grn.client.negotiator import ask_once
from grn.errors import UsageError
from grn.model.text import counted
from grn.model.units import parse_time
from grn.model.windows import parse_moment, show_span
from grn.paths import user_name
from grn.protocol.negotiator_rows import BookingRow
from grn.protocol.rows import read, read_all


@group(invoke_without_command=True)
@click_options([gpu_count()])
@flag("--from", "begin", default="now", metavar="TIME",
      help="When it begins: 22:00, now+2h, 'tomorrow 9:00', '2030-01-31 9:00'.")  # fmt: skip
@flag("--for", "lasts", metavar="TIME", help="How long it lasts, such as 4h.")
@click_options([NEEDS["on"], NEEDS["not"]])
@json_flag
@click.pass_context
def book(
    ctx: click.Context, gpus: int, begin: str, lasts: str | None, on: str, without: tuple[str, ...],
    as_json: bool,
) -> int:  # fmt: skip
    """Book GPUs for your jobs; prints the number of the booking.

    Jobs of others that would run into it are not started on its GPUs, unless they give way
    (--yield) or usually end before. Your jobs need no option to use it. It ends early if none of
    them has used it for some time after its start.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    now = time.time()
    if lasts is None:
        raise UsageError("say how long the booking lasts.", "Such as --for 4h.")
    from_at = parse_moment(begin, now)
    asked: dict[str, Any] = {"op": "book", "gpus": gpus, "from_at": from_at}
    asked |= {"until_at": from_at + parse_time(lasts), "on": on, "without": list(without)}
    said = ask_once(asked)["booking"]
    if as_json:
        return print_json({"schema": 1, "booking": said})
    row = read(BookingRow, said)
    click.echo(str(row.id))
    span = show_span(row.from_at, row.until_at, now)
    echo(f"booked {counted(row.gpus_asked, 'GPU')} {span}", err=True)
    return 0


@book.command("ls")
@json_flag
def book_ls(as_json: bool) -> int:
    """List the bookings of all users, here and on nodes of sites; the first to begin first."""
    nodes = machine.nodes_of_sites()
    said = machine.status_with(nodes, lambda: ask_once({"op": "bookings"}))
    rows = [{**row, "where": ""} for row in said.get("bookings", ())]
    for node in nodes or ():
        rows += [{**row, "where": node["node"]} for row in node["bookings"]]
    rows.sort(key=lambda row: row["from_at"])
    if as_json:
        return print_json({"schema": 1, "bookings": rows})
    found = read_all(BookingRow, rows)
    shown = render.bookings(found, user_name, time.time(), width(), has_sites=nodes is not None)
    echo(shown)
    return 0


@book.command("rm")
@click.argument("bookings", nargs=-1, required=True, type=click.IntRange(0), metavar="ID...")
def book_rm(bookings: tuple[int, ...]) -> int:
    """Remove bookings of yours; root may remove those of others."""
    for booking in bookings:
        ask_once({"op": "unbook", "booking": booking})
        click.echo(f"removed: booking {booking}", err=True)
    return 0
