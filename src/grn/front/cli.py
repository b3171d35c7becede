"""The command line: names, help, and the only place that turns errors into text and exit codes.

Commands live in their own files and are loaded when called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from grn import __version__
from grn.errors import GrnError

EPILOG = """\b
Exit status: 0 fine, 1 no, 2 misuse, 3 no negotiator, 4 impossible on this machine.
`grn exec` and `grn run` return the job's own status (128 + signal), 125 for grn's own
trouble, 126/127 for a command that cannot be run or found."""

COMMANDS = {
    "start": ("grn.front.daemon:start", "Start the negotiator (in the foreground)."),
    "stop": ("grn.front.daemon:stop", "Stop the negotiator; running jobs go on."),
    "run": ("grn.front.run:run", "Run commands beside a negotiator, started if need be."),
    "exec": ("grn.front.execute:execute", "Run one command when a GPU has room for it."),
    "gpus": ("grn.front.look:gpus", "Show the GPUs: memory used, reserved, free."),
    "ps": ("grn.front.look:ps", "Show what runs and what waits, and why."),
    "why": ("grn.front.look:why", "Explain why a job waits, or where it runs."),
    "profiles": ("grn.front.look:profiles", "Show or forget what was learned of job types."),
    "demo": ("grn.front.demo:demo", "Watch real jobs share virtual GPUs for half a minute."),
    "doctor": ("grn.front.doctor:doctor", "Check this machine and say what to do."),
    "completion": ("grn.front.doctor:completion", "Print the shell completion script."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and loads one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="grn")
def grn() -> None:
    """Share the GPUs of this machine among many jobs.

    Start the negotiator once (`grn start`, or `grn start --virtual 2x2GiB` without a GPU), then
    run scripts with @grn.job functions, or any command with `grn exec -- CMD`.
    """


def main(argv: Sequence[str] | None = None, prefix: Sequence[str] = ()) -> None:
    """Run one command and exit with its status."""
    arguments = [*prefix, *(sys.argv[1:] if argv is None else argv)]
    try:
        status = grn.main(arguments, prog_name="grn", standalone_mode=False)
    except click.exceptions.Abort:
        status = 130
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except GrnError as error:
        say_error(error)
        status = error.exit_code
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough
        status = 0
    sys.exit(status if isinstance(status, int) else 0)


def start_main() -> None:
    """Be `grn-start` and `glb-start`."""
    main(prefix=["start"])


def run_main() -> None:
    """Be `grn-run` and `glb-run`."""
    main(prefix=["run"])


def say_error(error: GrnError) -> None:
    """Print an error and its hint, a line each."""
    click.echo(click.style("error: ", fg="red", bold=True) + error.message, err=True)
    if error.hint:
        click.echo(click.style("hint: ", fg="cyan") + error.hint, err=True)
