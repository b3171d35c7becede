"""The command line: names, help, and the only place that turns errors into text and exit codes.

Commands live in their own files and are loaded when called.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

from grn import __version__
from grn.cli import complete, guard, quick
from grn.cli.catalog import COMMANDS, EPILOG, EXAMPLES, SECTIONS, SYNONYMS
from grn.cli.help import GrnGroup, SectionOption, command, flag
from grn.cli.options import COLOUR, COLOURS, Opt, click_options
from grn.cli.output import terminal
from grn.errors import UsageError


class LazyGroup(GrnGroup):
    """A group that knows its commands by name and loads one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in quick.COMMANDS:
            command = _from_table(cmd_name)
        else:
            module, _, name = COMMANDS[cmd_name][0].partition(":")
            command = getattr(importlib.import_module(module), name)
        command.epilog = "\n".join(EXAMPLES[cmd_name])
        if cmd_name == "sweep" and isinstance(command, click.Group):
            command.commands["run"].epilog = command.epilog  # its help is that of the group
        names = {one.name for one in command.params}
        if "as_json" in names and "color" not in names:  # a list: `grn history --color always`
            command.params.append(_color())
        below = command.commands.values() if isinstance(command, click.Group) else ()
        for one in (command, *below):
            for param in one.params:
                complete.attach(param)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = " or ".join(difflib.get_close_matches(args[0], COMMANDS, cutoff=0.65))
            meant = SYNONYMS.get(args[0], near)
            if not meant:
                raise
            text = f"{error.message} Did you mean {meant}?"
            raise click.UsageError(text, ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(n.ljust(longest), COMMANDS[n][1]) for n in names.split()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        for paragraph in EPILOG.strip().split("\n\n"):
            formatter.write_text(paragraph)
            formatter.write_paragraph()


def _from_table(name: str) -> click.Command:
    """Make a click command of a quick one."""
    made = quick.COMMANDS[name]
    options: list[Opt] = list(made.options)
    if made.has_command:
        words = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD ...")
        settings = {"allow_interspersed_args": False}
    else:
        words, settings = (lambda function: function), {}

    def run(**given: Any) -> int:
        terminal.choose_colour(given.pop("color", None))
        return made.function()(**given)

    run.__doc__ = made.help
    return command(name, context_settings=settings)(click_options(options)(words(run)))


def _color() -> click.Option:
    return SectionOption(
        ["--color"], type=click.Choice(COLOURS), expose_value=False, metavar="WHEN",
        callback=lambda _ctx, _option, when: terminal.choose_colour(when), help=COLOUR.help,
        section=COLOUR.section,
    )  # fmt: skip


@click.group(cls=LazyGroup, invoke_without_command=True)
@click.option(
    "--color",
    type=click.Choice(COLOURS),
    expose_value=False,
    metavar="WHEN",
    envvar="GRN_COLOR",
    show_envvar=True,
    callback=lambda _ctx, _option, when: terminal.choose_colour(when),
    help="When to use colour: auto (on a terminal), always or never. NO_COLOR means never.",
)
@click.version_option(__version__, "-V", "--version", prog_name="grn")
@click.pass_context
def grn(ctx: click.Context) -> None:
    """Share the GPUs of this machine among many jobs.

    Start the negotiator once (`grn start`, or `grn start --virtual 2x2GiB` without a GPU), then
    run scripts with @grn.job functions, any command with `grn exec -- CMD`, or hand commands to
    your queue with `grn submit -- CMD` and walk away.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command("help")
@click.argument("names", nargs=-1, metavar="[COMMAND]")
@flag("--man", "is_man", is_flag=True, help="Print a manual page, for `man -l -`.")
@click.pass_context
def show_help(ctx: click.Context, names: tuple[str, ...], is_man: bool) -> int:
    """Show the help of a command."""
    found: click.Command = grn
    inner = ctx.find_root()
    for name in names:
        inner = found.make_context(name, [], parent=inner, resilient_parsing=True)
        below = found.get_command(inner, name) if isinstance(found, click.Group) else None
        if below is None:
            raise click.UsageError(f"No such command '{name}'.", inner.parent)
        found = below
    if names == ("sweep",) and isinstance(found, click.Group):
        found = found.commands["run"]  # `grn sweep` runs one
    path = " ".join(["grn", *names])
    with found.context_class(found, info_name=path) as shown:
        if is_man:
            from grn.cli.help import man_page

            click.echo(man_page(path, found, shown), nl=False)
        else:
            click.echo(found.get_help(shown))
    return 0


def main(argv: Sequence[str] | None = None, prefix: Sequence[str] = ()) -> None:
    """Run one command and exit with its status."""
    arguments = [*prefix, *(sys.argv[1:] if argv is None else argv)]
    status = guard.run(lambda: _through_click(arguments))
    gc.freeze()  # the collections at the interpreter's end would walk all that is about to go
    sys.exit(status)


def _through_click(arguments: list[str]) -> int:
    stdout = sys.stdout
    try:
        status = grn.main(arguments, prog_name="grn", standalone_mode=False)
    except click.exceptions.Abort:
        return guard.INTERRUPTED
    except click.ClickException as error:
        raise _in_our_words(error, arguments) from error
    except SystemExit:
        if sys.stdout is stdout:
            raise
        return 0  # the reader closed the pipe: no error
    return status if isinstance(status, int) else 0


def start_main() -> None:
    """Run `grn-start` and `glb-start`."""
    main(prefix=["start"])


def run_main() -> None:
    """Run `grn-run` and `glb-run`."""
    main(prefix=["run"])


def _in_our_words(error: click.ClickException, arguments: Sequence[str]) -> UsageError:
    """Return a usage error of click as an error of grn, with a hint."""
    text = error.format_message()
    if isinstance(error, click.NoSuchOption):
        near = difflib.get_close_matches(error.option_name, error.possibilities or [], 1, 0.7)
        text = f"No such option {error.option_name}." + (
            f" Did you mean {near[0]}?" if near else ""
        )
    elif isinstance(error, click.BadParameter) and error.param is not None:
        said = re.sub(r"a valid (integer|float)( range)?", "a number", error.message)
        variable = f" ({error.param.envvar})" if error.param.envvar else ""
        names = "/".join(error.param.opts)
        text = f"Invalid value for {names}{variable}: {said}"
        if isinstance(error.param, click.Argument):  # its name is not one that people type
            text = said
        if (outside := re.match(r"(\S+) is not in the range", said)) is not None:
            flags, allowed = "/".join(error.param.opts), _range(error.param.type)
            text = f"{flags} is {outside[1]} and must be {allowed}."
        if isinstance(error, click.MissingParameter):
            choices = getattr(error.param.type, "choices", ())
            name = error.param.metavar or "|".join(choices) or str(error.param.name).upper()
            text = f"The argument {name.removesuffix('...')} is missing."
            if isinstance(error.param, click.Option):
                text = f"The option {error.param.opts[-1]} {name} is missing."
            elif name.startswith("--"):
                text = "There is no command: write it after `--`."
    elif (extra := re.match(r"Got unexpected extra arguments? \((.*)\)", text)) is not None:
        words = extra[1].split()
        text = f"Unexpected argument{'s' * (len(words) > 1)}: {extra[1]}."
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else " ".join(["grn", *arguments[:1]])
    hint = f"See `{path} --help`."
    made = UsageError(text[:1].lower() + text[1:], hint)
    made.exit_code = error.exit_code
    return made


def _range(kind: Any) -> str:
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if high is None:
        return f"{low} or more"
    return f"a number from {low} to {high}"
