"""How click shows the options of grn: in sections, with defaults, examples; and as a manual page.

A manual page is made from the same table and texts as `--help`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from grn import __version__
from grn.cli.catalog import EXIT_STATUS
from grn.cli.options import FLAG, WHOLE, WORDS, Opt
from grn.cli.output.style import paint

WIDEST = 100
_LAST = ("Output", "Options")  # sections that come behind all others


class SectionOption(click.Option):
    """An option that is listed in a section; its range is refused, not shown."""

    def __init__(self, *args: Any, section: str = "", alias: str = "", **given: Any) -> None:
        super().__init__(*args, **given)
        self.section = section
        self._aliases = [alias] if alias else []

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Accept an older flag that help, errors and completion leave out."""
        shown, self.opts = self.opts, [*self.opts, *self._aliases]
        super().add_to_parser(parser, ctx)
        self.opts = shown

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class _Formatter(click.HelpFormatter):
    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, paint("Usage: ", "strong"))

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{paint(f'{heading}:', 'strong')}\n")


class GrnContext(click.Context):
    """A context whose help is coloured and as wide as the terminal, within reason."""

    formatter_class = _Formatter

    def __init__(self, *args: Any, **given: Any) -> None:
        given.setdefault("max_content_width", WIDEST)
        given.setdefault("help_option_names", ["-h", "--help"])
        super().__init__(*args, **given)


class GrnCommand(click.Command):
    """A command whose help lists options by section."""

    context_class = GrnContext

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self, formatter)


class GrnGroup(click.Group):
    """A group of such commands."""

    context_class = GrnContext
    command_class = GrnCommand

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_commands([command for _, command in sorted(self.commands.items())], formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self, formatter)


def write_sections(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """List the options of a command by section; those of none are plain options."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record is not None:
            section = getattr(param, "section", "") or "Options"
            sections.setdefault(section, []).append(record)
    names = [name for name in sections if name not in _LAST]
    for name in [*names, *(name for name in _LAST if name in sections)]:
        with formatter.section(name):
            formatter.write_dl(sections[name])


def write_commands(commands: Sequence[click.Command], formatter: click.HelpFormatter) -> None:
    """List commands below a group, each with its first paragraph."""
    with formatter.section("Commands"):
        about = [(str(one.name), (one.help or "").partition("\n\n")[0]) for one in commands]
        formatter.write_dl([(name, " ".join(text.split())) for name, text in about])


def write_examples(command: click.Command, formatter: click.HelpFormatter) -> None:
    """Write the examples of a command, a line each."""
    if command.epilog:
        with formatter.section("Examples"):
            for line in command.epilog.splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def command(name: str | None = None, **given: Any) -> Callable[[Any], click.Command]:
    """Make a click command out of a function."""
    return click.command(name, cls=GrnCommand, **given)


def group(name: str | None = None, **given: Any) -> Callable[[Any], click.Group]:
    """Make a click group out of a function."""
    return click.group(name, **{"cls": GrnGroup, **given})


def flag(*names: str, section: str = "", **given: Any) -> Callable[[Any], Any]:
    """Add an option to a click command, in a section, with its default in the help."""
    given.setdefault("show_default", given.get("default") not in (None, "", "0s", False))
    return click.option(*names, cls=SectionOption, section=section, **given)


def option(opt: Opt, name: str, text: str, *, has_default: bool = True) -> Callable[[Any], Any]:
    """Add an option that is written as data to a click command, as a parameter of this name."""
    return flag(*opt.flags, name, **_as_click(opt, text, has_default))


def _as_click(opt: Opt, text: str, has_default: bool) -> dict[str, Any]:
    given: dict[str, Any] = {
        "help": text, "section": opt.section, "metavar": opt.metavar, "alias": opt.alias,
    }  # fmt: skip
    if opt.kind == FLAG:
        return {**given, "is_flag": True, "default": opt.default if has_default else None}
    if opt.kind == WORDS:
        given["multiple"] = True
    elif has_default:
        given |= {"default": opt.default, "show_default": opt.default not in (None, "")}
    if opt.choices:
        given["type"] = click.Choice(opt.choices)
    elif opt.kind == WHOLE:
        given["type"] = click.IntRange(opt.low, opt.high)
    return given


# --- manual pages --------------------------------------------------------------------------


def man_page(path: str, command: click.Command, ctx: click.Context) -> str:
    """Return the manual page of a command; `man -l -` shows it."""
    name = path.replace(" ", "-")
    about = (command.help or "").split("\n\n")
    lines = [
        f'.TH "{name.upper()}" 1 "" "grn {__version__}" "grn manual"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(about[0]).rstrip('.')}",
        ".SH SYNOPSIS",
        f".B {_roff(path)}",
        _roff(" ".join(command.collect_usage_pieces(ctx))),
    ]
    if len(about) > 1:
        lines += [".SH DESCRIPTION", *(f"{_roff(text)}\n.PP" for text in about[1:])]
    for section, records in _option_records(command, ctx).items():
        lines.append(f".SH {section.upper()}")
        for flags, text in records:
            lines += [".TP", f".B {_roff(flags)}", _roff(text)]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for inner in command.list_commands(ctx):
            found = command.get_command(ctx, inner)
            if found is not None:
                lines += [".TP", f".B {_roff(inner)}", _roff(found.get_short_help_str(200))]
    if command.epilog:
        lines += [".SH EXAMPLES", ".nf", *map(_roff, command.epilog.splitlines()), ".fi"]
    lines += [".SH EXIT STATUS", _roff(EXIT_STATUS if path == "grn" else "See grn(1).")]
    return "\n".join(lines) + "\n"


def _option_records(command: click.Command, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record is not None:
            found.setdefault(getattr(param, "section", "") or "Options", []).append(record)
    return found


def _roff(text: str) -> str:
    """Escape what man would read as a request or a hyphen."""
    clean = " ".join(text.replace("\\", "\\e").replace("-", "\\-").split())
    return f"\\&{clean}" if clean.startswith((".", "'")) else clean
