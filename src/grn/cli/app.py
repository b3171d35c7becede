"""The command line: names, help, and the only place that turns errors into text and exit codes.

Commands live in their own files and are loaded when called.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from grn import __version__
from grn.cli.output import terminal
from grn.cli.output.style import paint
from grn.client.negotiator import MALFORMED, garbled
from grn.errors import GrnError, MachineError
from grn.model.text import harmless

EPILOG = """
`grn COMMAND --help` has its options and examples.

Exit status: 0 fine, 1 no, 2 misuse, 3 no negotiator or queue, 4 impossible on this machine.
`grn exec` returns the command's own status (128 + signal), 125 for grn's own trouble,
126/127 for a command that cannot be run or found; `grn run` that of the first that failed.
`grn wait` returns that of the first job that failed: 124 timed out, 125 without a status."""

COMMANDS = {
    "start": ("grn.cli.commands.daemon:start", "Start the negotiator (in the foreground)."),
    "stop": ("grn.cli.commands.daemon:stop", "Stop the negotiator; running jobs go on."),
    "run": ("grn.cli.commands.daemon:run", "Run commands beside a negotiator, started if need be."),
    "exec": ("grn.cli.commands.execute:execute", "Run one command when a GPU has room for it."),
    "select": (
        "grn.cli.commands.select:select",
        "Print the numbers of GPUs and hold them for a script.",
    ),
    "submit": ("grn.cli.commands.jobs:submit", "Hand a command to your queue; prints its id."),
    "ls": ("grn.cli.commands.jobs:ls", "List your jobs: running, waiting and why."),
    "show": ("grn.cli.commands.jobs:show", "Tell all of one job."),
    "logs": ("grn.cli.commands.jobs:logs", "Print what a job has printed."),
    "wait": ("grn.cli.commands.jobs:wait", "Wait until jobs have ended."),
    "cancel": ("grn.cli.commands.jobs:cancel", "End jobs with all their processes."),
    "retry": ("grn.cli.commands.jobs:retry", "Submit ended jobs once more."),
    "hold": ("grn.cli.commands.jobs:hold", "Keep queued jobs back."),
    "release": ("grn.cli.commands.jobs:release", "Let held jobs go."),
    "move": ("grn.cli.commands.jobs:move", "Give queued jobs another place."),
    "edit": ("grn.cli.commands.jobs:edit", "Change the options of a job that waits."),
    "drain": ("grn.cli.commands.jobs:drain", "Start nothing more; let what runs finish."),
    "history": ("grn.cli.commands.jobs:history", "Show what has ended."),
    "clean": ("grn.cli.commands.jobs:clean", "Forget what has ended."),
    "queue": ("grn.cli.commands.jobs:queue_command", "Show, start or stop your queue."),
    "site": ("grn.cli.commands.site:site", "Add other machines to your queue."),
    "sites": ("grn.cli.commands.site:all_sites", "Show the machines of your queue."),
    "service": ("grn.cli.commands.service:service", "Keep your queue through logout and reboot."),
    "sweep": ("grn.cli.commands.sweep:sweep", "Run a command for many values of its parameters."),
    "batch": ("grn.cli.commands.batch:batch", "Run the lines of a file on GPUs that have room."),
    "top": ("grn.cli.top.app:top", "Watch GPUs and jobs on one screen."),
    "gpus": ("grn.cli.commands.status:gpus", "Show the GPUs: memory used, reserved, free."),
    "ps": ("grn.cli.commands.status:ps", "Show what runs and what waits, and why."),
    "when": ("grn.cli.commands.status:when", "Tell when a job would start if submitted now."),
    "why": ("grn.cli.commands.status:why", "Explain why a job waits, or where it runs."),
    "shares": ("grn.cli.commands.status:shares", "Show what users have had of the GPUs lately."),
    "events": ("grn.cli.commands.events:events", "Print what happens, as JSON lines."),
    "metrics": ("grn.cli.commands.events:metrics", "Print numbers for Prometheus."),
    "profiles": (
        "grn.cli.commands.status:profiles",
        "Show or forget what was learned of job types.",
    ),
    "audit": ("grn.cli.commands.status:audit", "Show who changed what belongs to others."),
    "simulate": (
        "grn.cli.commands.simulate:simulate",
        "Replay a workload on GPUs that you do not have.",
    ),
    "web": ("grn.cli.web.command:web", "Show it all as a page, on this machine only."),
    "report": ("grn.cli.report.command:report", "Write a period or a sweep as one HTML file."),
    "demo": ("grn.cli.commands.demo:demo", "Watch real jobs share virtual GPUs for half a minute."),
    "doctor": ("grn.cli.commands.doctor:doctor", "Check this machine and say what to do."),
    "completion": ("grn.cli.commands.doctor:completion", "Print the shell completion script."),
}

# What `grn --help` lists together.
SECTIONS = {
    "Run now": "exec run select batch sweep",
    "Submit and walk away": "submit ls show logs wait cancel retry hold release move edit drain "
    "history clean queue service site sites",
    "Look": "top web gpus ps why when profiles shares report events metrics",
    "The negotiator": "start stop audit",
    "Try and set up": "demo simulate doctor completion",
}

# Those that are not here have examples among their own text.
EXAMPLES = {
    "start": ("grn start", "grn start --virtual 2x2GiB --background"),
    "stop": ("grn stop",),
    "show": ("grn show 41",),
    "logs": ("grn logs 41", "grn logs -f 41"),
    "wait": ("grn wait 41 42", "grn wait --all"),
    "cancel": ("grn cancel 41", "grn cancel 40-45 train 'grid[3]'", "grn cancel --tag night"),
    "retry": ("grn retry 41", "grn retry --name grid --state failed"),
    "hold": ("grn hold 41 42", "grn hold --tag night"),
    "release": ("grn release 41",),
    "move": ("grn move --front 41", "grn move --priority 10 41 42"),
    "drain": ("grn drain", "grn drain --off"),
    "history": ("grn history -n 10", "grn history --export jobs.csv"),
    "clean": ("grn clean --older-than 7d",),
    "queue": ("grn queue", "grn queue stop"),
    "site": ("grn site add lab --ssh gpu2 gpu3", "grn site check lab"),
    "sites": ("grn sites",),
    "service": ("grn service install",),
    "sweep": (
        "grn sweep 'python train.py --lr {lr} --bs {bs}' -p lr 1e-3 1e-4 -p bs 32 64",
        "grn sweep show sweeps/train-3fa2c1",
        "grn sweep plot sweeps/train-3fa2c1",
    ),
    "top": ("grn top",),
    "gpus": ("grn gpus", "grn gpus --json"),
    "ps": ("grn ps", "grn ps --json"),
    "metrics": ("grn metrics",),
    "shares": ("grn shares", "grn shares --json"),
    "when": ("grn when --gpus 2 --mem 20GiB --for 6h", "grn when --type train.py --json"),
    "why": ("grn why 41", "grn why 264f", "grn why train.py::fit"),
    "audit": ("grn audit", "grn audit -n 500 --json"),
    "profiles": ("grn profiles", "grn profiles show train.py", "grn profiles forget train.py"),
    "demo": ("grn demo",),
    "doctor": ("grn doctor",),
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
        if cmd_name in EXAMPLES:
            lines = [f"  {line}" for line in EXAMPLES[cmd_name]]
            command.epilog = "\n".join(("\b", "Examples:", *lines))
        names = {one.name for one in command.params}
        if "as_json" in names and "color" not in names:  # a list: `grn ls --color always`
            command.params.append(_color(is_hidden=True))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], COMMANDS, cutoff=0.65)
            if not near:
                raise
            text = f"{error.message} Did you mean {' or '.join(near)}?"
            raise click.UsageError(text, ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(n.ljust(longest), COMMANDS[n][1]) for n in names.split()])


def _color(*, is_hidden: bool = False) -> click.Option:
    return click.Option(
        ["--color"], type=click.Choice(terminal.WHEN), expose_value=False, hidden=is_hidden,
        envvar=None if is_hidden else "GRN_COLOR", show_envvar=not is_hidden, metavar="WHEN",
        callback=lambda _ctx, _option, when: terminal.choose_colour(when),
        help="Colour: auto (on a terminal), always or never; NO_COLOR counts too.",
    )  # fmt: skip


@click.group(cls=LazyGroup, epilog=EPILOG, params=[_color()], invoke_without_command=True,
             context_settings={"help_option_names": ["-h", "--help"]})  # fmt: skip
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


def main(argv: Sequence[str] | None = None, prefix: Sequence[str] = ()) -> None:
    """Run one command and exit with its status."""
    arguments = [*prefix, *(sys.argv[1:] if argv is None else argv)]
    # Python has none where they were closed (`>&-`).
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open until the end
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files and jobs may be in any script
            stream.reconfigure(errors="backslashreplace")
    stdout = sys.stdout
    try:
        status = grn.main(arguments, prog_name="grn", standalone_mode=False)
    except click.exceptions.Abort:
        status = 130
    except click.ClickException as error:
        say_error(_in_our_words(error))
        status = error.exit_code
    except GrnError as error:
        blamed = (garbled() if isinstance(error, MALFORMED) else None) or error
        say_error(blamed)
        status = blamed.exit_code
    except KeyboardInterrupt:
        status = 130
    except SystemExit:
        if sys.stdout is stdout:
            raise
        status = 0  # the reader closed the pipe: no error
    except MALFORMED:
        stranger = garbled()
        if stranger is None:
            raise
        say_error(stranger)
        status = stranger.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries once more at its end
        say_error(MachineError(f"the output cannot be written: {error.strerror}."))
        status = MachineError.exit_code
    sys.exit(status if isinstance(status, int) else 0)


def start_main() -> None:
    """Run `grn-start` and `glb-start`."""
    main(prefix=["start"])


def run_main() -> None:
    """Run `grn-run` and `glb-run`."""
    main(prefix=["run"])


def _in_our_words(error: click.ClickException) -> GrnError:
    """Return a usage error of click as an error of grn, with a hint."""
    text = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"See `{context.command_path} --help`." if context else ""
    return GrnError(text[:1].lower() + text[1:], hint)


def say_error(error: GrnError) -> None:
    """Print an error and its hint, a line each."""
    terminal.echo(paint("error: ", "error") + harmless(error.message), err=True)
    if error.hint:
        terminal.echo(paint("hint: ", "hint") + harmless(error.hint), err=True)
