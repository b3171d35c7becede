"""The command line: names, help, and the only place that turns errors into text and exit codes.

Commands live in their own files and are loaded when called.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

from grn import __version__
from grn.cli import complete, guard, quick
from grn.cli.help import GrnGroup, SectionOption, command, flag
from grn.cli.options import COLOUR, COLOURS, Opt, click_options
from grn.cli.output import terminal
from grn.errors import UsageError

EPILOG = """
Run `grn help COMMAND` for its options and examples.

Exit status: 0 success, 1 failure or no, 2 misuse, 3 no negotiator or queue, 4 impossible on this
machine. `grn exec` returns the status of its command (128 + signal), 125 for an error of grn,
126/127 for a command that cannot be run or found. `grn run` and `grn wait` return the status of
the first command or job that failed; `grn wait` 124 for a timeout, 125 for a job without one."""

COMMANDS = {
    "start": ("grn.cli.commands.daemon:start", "Start the negotiator (in the foreground)."),
    "stop": ("grn.cli.commands.daemon:stop", "Stop the negotiator; running jobs go on."),
    "run": ("grn.cli.commands.daemon:run", "Run commands with a negotiator, started if needed."),
    "exec": ("grn.cli.commands.run.execute:execute", "Run one command when a GPU has room."),
    "select": (
        "grn.cli.commands.run.select:select",
        "Reserve GPUs for a script and print their numbers.",
    ),
    "submit": (
        "grn.cli.commands.queue.submit:run",
        "Submit a command to your queue; prints its id.",
    ),
    "ls": ("grn.cli.commands.queue.listing:ls", "List your jobs: running, waiting and why."),
    "show": ("grn.cli.commands.queue.jobs:show", "Show all about one job."),
    "logs": ("grn.cli.commands.queue.logs:logs", "Print the output of a job."),
    "wait": ("grn.cli.commands.queue.waiting:wait", "Wait until jobs have ended."),
    "cancel": ("grn.cli.commands.queue.jobs:cancel", "Cancel jobs, with all their processes."),
    "retry": ("grn.cli.commands.queue.jobs:retry", "Submit ended jobs again."),
    "hold": ("grn.cli.commands.queue.jobs:hold", "Hold queued jobs."),
    "release": ("grn.cli.commands.queue.jobs:release", "Release held jobs."),
    "move": ("grn.cli.commands.queue.jobs:move", "Move jobs in the queue."),
    "edit": ("grn.cli.commands.queue.jobs:edit", "Change the options of a waiting job."),
    "drain": ("grn.cli.commands.queue.jobs:drain", "Pause or resume your queue."),
    "history": ("grn.cli.commands.queue.jobs:history", "Show jobs that have ended."),
    "clean": ("grn.cli.commands.queue.jobs:clean", "Delete ended jobs and their logs."),
    "queue": ("grn.cli.commands.queue.jobs:queue_command", "Show, start or stop your queue."),
    "site": ("grn.cli.commands.sites.site:site", "Add other machines to your queue."),
    "sites": ("grn.cli.commands.sites.site:all_sites", "Show the machines of your queue."),
    "notify": ("grn.cli.commands.notify:notify", "Send a message when a job has ended."),
    "service": (
        "grn.cli.commands.service:service",
        "Keep your queue running through logout and reboot.",
    ),
    "sweep": ("grn.cli.commands.run.sweep:sweep", "Run a command for many parameter values."),
    "batch": ("grn.cli.commands.run.batch:batch", "Run each line of a file on GPUs with room."),
    "top": ("grn.cli.top.app:top", "Watch GPUs and jobs on one screen."),
    "gpus": ("grn.cli.commands.machine:gpus", "Show the GPUs: memory used, reserved, free."),
    "ps": ("grn.cli.commands.machine:ps", "Show the jobs of all users, and why they wait."),
    "when": ("grn.cli.commands.status:when", "Estimate when a job would start."),
    "book": ("grn.cli.commands.book:book", "Book GPUs for a time, list and remove bookings."),
    "why": ("grn.cli.commands.status:why", "Explain why a job waits, or where it runs."),
    "shares": ("grn.cli.commands.status:shares", "Show the recent GPU use of each user."),
    "idle": ("grn.cli.commands.status:idle", "Show who holds GPUs and does not use them."),
    "events": ("grn.cli.commands.events:events", "Print events as JSON lines."),
    "metrics": ("grn.cli.commands.events:metrics", "Print metrics for Prometheus."),
    "profiles": (
        "grn.cli.commands.status:profiles",
        "Show or forget what was learned about job types.",
    ),
    "audit": ("grn.cli.commands.status:audit", "Show who changed what belongs to others."),
    "simulate": (
        "grn.cli.commands.simulate:simulate",
        "Replay a workload on GPUs that you do not have.",
    ),
    "web": ("grn.cli.web.command:web", "Serve GPUs and jobs as a page on this machine."),
    "report": ("grn.cli.report.command:report", "Write an HTML report of a period or a sweep."),
    "demo": ("grn.cli.commands.demo:demo", "Watch real jobs share virtual GPUs for half a minute."),
    "doctor": ("grn.cli.commands.doctor:doctor", "Check this machine and suggest fixes."),
    "help": ("grn.cli.app:show_help", "Show the help of a command."),
    "completion": ("grn.cli.commands.doctor:completion", "Print the shell completion script."),
}

# What `grn --help` lists together.
SECTIONS = {
    "Run now": "exec run select batch sweep",
    "Submit and walk away": "submit ls show logs wait cancel retry hold release move edit drain "
    "history clean notify queue service site sites",
    "Look": "top web gpus ps why when idle profiles shares report events metrics",
    "The negotiator": "start stop book audit",
    "Try and set up": "demo simulate doctor completion help",
}

EXAMPLES = {
    "submit": (
        "grn submit -- python train.py --lr 0.1",
        "grn submit --gpus 2 --mem 12GiB -- torchrun --nproc-per-node=gpu train.py",
        "grn submit --retry 2 --time-limit 12h -- python train.py",
        "grn submit --begin 22:00 -- python train.py",
        "grn submit --after 41 --shell -- 'python eval.py > eval.txt'",
        "grn submit --array 0-9 --shell -- 'python train.py --seed $GRN_ARRAY_INDEX'",
        "grep -v skip commands.txt | grn submit --lines -",
    ),
    "ls": ("grn ls", "grn ls -a --state failed", "grn ls -q --name sweep3 | xargs grn cancel"),
    "exec": (
        "grn exec -- python train.py --lr 0.1",
        "grn exec --gpus 2 --mem 12GiB -- torchrun --nproc-per-node=gpu train.py",
    ),
    "run": ('grn run "python job.py" "python job.py"', 'grn run "doit -n 9"'),
    "select": (
        "gpu=$(grn select --mem 6GiB) || exit",
        "CUDA_VISIBLE_DEVICES=$gpu python train.py",
        "grn select --release",
    ),
    "batch": (
        "grn batch jobs.txt",
        "grn batch jobs.txt --resume --retry 1",
        "generate_jobs | grn batch --mem 6GiB",
    ),
    "edit": ("grn edit 41 --mem 12GiB --priority 5", "grn edit 41 --time-limit 0"),
    "events": (
        "grn events --follow --only ended",
        "grn events --follow --only waiting --only granted | jq .data.why",
    ),
    "simulate": (
        "grn simulate --gpus 4x40GB --generate 100",
        "grn history --export jobs.csv && grn simulate --gpus 6x24GB --jobs jobs.csv",
    ),
    "web": ("grn web", "grn web --port 8642 --open", "grn web --link"),
    "report": ("grn report --since 4w --out october.html", "grn report --sweep sweeps/lr"),
    "completion": (
        'eval "$(grn completion bash)"   # in ~/.bashrc',
        'eval "$(grn completion zsh)"    # in ~/.zshrc',
        "grn completion fish > ~/.config/fish/completions/grn.fish",
    ),
    "help": ("grn help submit", "grn help profiles show", "grn help --man submit | man -l -"),
    "start": ("grn start", "grn start --virtual 2x2GiB --background"),
    "stop": ("grn stop",),
    "show": ("grn show 41",),
    "logs": ("grn logs 41", "grn logs -f 41", "grn logs -n 20 40-45 train"),
    "wait": ("grn wait 41 42", "grn wait --all"),
    "cancel": ("grn cancel 41", "grn cancel 40-45 train 'grid[3]'", "grn cancel --tag night"),
    "retry": ("grn retry 41", "grn retry --name grid --state failed"),
    "hold": ("grn hold 41 42", "grn hold --tag night"),
    "release": ("grn release 41",),
    "move": ("grn move --front 41", "grn move --priority 10 41 42"),
    "drain": ("grn drain", "grn drain --off"),
    "history": (
        "grn history -n 10",
        "grn history --since 1d --state failed",
        "grn history --export jobs.csv",
    ),
    "clean": ("grn clean --older-than 7d",),
    "notify": (
        "grn submit --notify 'grn notify --ntfy https://ntfy.sh/my-jobs' -- python train.py",
        "grn notify --slack @~/.config/grn/webhook 'the data is there'",
    ),
    "queue": ("grn queue", "grn queue stop"),
    "site": (
        "grn site add lab --ssh gpu2 gpu3",
        "grn site add uni --slurm --gpus 4 --time 24h --partition gpu",
        "grn site add cloud --ray auto --gpus 1",
        "grn site check lab",
    ),
    "sites": ("grn sites",),
    "service": ("grn service install",),
    "sweep": (
        "grn sweep 'python train.py --lr {lr} --bs {bs}' -p lr 1e-3 1e-4 -p bs 32 64",
        "grn sweep 'python train.py --lr {lr}' -p lr log:1e-5..1e-2 --n-samples 20",
        "grn sweep --file sweep.toml --dry-run",
        "grn sweep show sweeps/train-3fa2c1 --metric accuracy --maximize -n 5",
        "grn sweep plot sweeps/train-3fa2c1",
    ),
    "top": ("grn top",),
    "gpus": ("grn gpus", "grn gpus --json"),
    "ps": ("grn ps", "grn ps --json"),
    "metrics": ("grn metrics",),
    "shares": ("grn shares", "grn shares --json"),
    "idle": ("grn idle", "grn idle --json"),
    "when": ("grn when --gpus 2 --mem 20GiB --for 6h", "grn when --type train.py --json"),
    "book": (
        "grn book -g 2 --from 'tomorrow 9:00' --for 4h",
        "grn book --from 22:00 --for 8h --on a100",
        "grn book ls",
        "grn book rm 3",
    ),
    "why": ("grn why 41", "grn why 264f", "grn why train.py::fit"),
    "audit": ("grn audit", "grn audit -n 500 --json"),
    "profiles": ("grn profiles", "grn profiles show train.py", "grn profiles forget train.py"),
    "demo": ("grn demo",),
    "doctor": ("grn doctor",),
}


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
            raise click.UsageError(f"No such command '{name}'.", ctx)
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
    sys.exit(guard.run(lambda: _through_click(arguments)))


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
            name = error.param.metavar or str(error.param.name).upper()
            text = f"The argument {name} is missing."
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
