"""Manual pages, in the language of man, from the same table and texts as `--help`."""

from __future__ import annotations

import click

from grn import __version__


def man_page(path: str, command: click.Command, ctx: click.Context) -> str:
    """Return the manual page of a command; `man -l -` shows it."""
    name = path.replace(" ", "-")
    about = (command.help or "").split("\n\n")
    lines = [
        f'.TH "{name.upper()}" 1 "" "grn {__version__}" "grn manual"',
        ".SH NAME",
        f"{_plain(name)} \\- {_plain(about[0]).rstrip('.')}",
        ".SH SYNOPSIS",
        f".B {_plain(path)}",
        _plain(" ".join(command.collect_usage_pieces(ctx))),
    ]
    if len(about) > 1:
        lines += [".SH DESCRIPTION", *(f"{_plain(text)}\n.PP" for text in about[1:])]
    for section, records in _sections(command, ctx).items():
        lines.append(f".SH {section.upper()}")
        for flags, text in records:
            lines += [".TP", f".B {_plain(flags)}", _plain(text)]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for inner in command.list_commands(ctx):
            found = command.get_command(ctx, inner)
            if found is not None:
                lines += [".TP", f".B {_plain(inner)}", _plain(found.get_short_help_str(200))]
    if command.epilog:
        lines += [".SH EXAMPLES", ".nf", *map(_plain, command.epilog.splitlines()), ".fi"]
    return "\n".join(lines) + "\n"


def _sections(command: click.Command, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record is not None:
            found.setdefault(getattr(param, "section", "") or "Options", []).append(record)
    return found


def _plain(text: str) -> str:
    """Escape what man would read as a request or a hyphen."""
    clean = " ".join(text.replace("\\", "\\e").replace("-", "\\-").split())
    return f"\\&{clean}" if clean.startswith((".", "'")) else clean
