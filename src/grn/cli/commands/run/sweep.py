"""`grn sweep`: parameters into runs, runs into one table, the table into pictures."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from grn import option_file
from grn.cli.commands.run.detach import attach, run_detached
from grn.cli.help import GrnCommand, GrnGroup, flag, group, write_commands
from grn.cli.options import needs, place
from grn.cli.output import sweep_text
from grn.cli.output.progress import ProgressLine
from grn.cli.output.terminal import echo, is_ascii, print_json, width
from grn.cli.report import sweep_chart, sweep_page, sweep_png
from grn.errors import UsageError
from grn.sweep import plan, space
from grn.sweep.manifest import About, SweepFolder, write_text
from grn.sweep.plan import Plan
from grn.sweep.results import Table, rank, ranked
from grn.sweep.space import Parameter
from grn.sweep.sweep import Sweep
from grn.sweep.sweep_run import Study, left_to_run

FAILED = 1
MAX_SHOWN = 20
_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|-inf")
_VALUES_FLAGS = ("-p", "--param")


class RunOrLook(GrnGroup):
    """A group whose first word may be a command of the user's: then it is run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_completed = not args and ctx.resilient_parsing  # then all commands are offered
        if not is_completed and (not args or args[0] not in self.commands):
            args = ["run", *args]
        return super().parse_args(ctx, args)


class WithValues(GrnCommand):
    """A command whose `-p NAME` takes all values up to the next flag."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, rest = take_values(args)
        left = super().parse_args(ctx, rest)
        ctx.params["param"] = given
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        write_commands([show, plot], formatter)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Leave `run` out, as everybody does."""
        formatter.write_usage("grn sweep", " ".join(self.collect_usage_pieces(ctx)))


def take_values(args: Sequence[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Take each `-p NAME VALUES...` out of the words of a command line."""
    given: list[tuple[str, list[str]]] = []
    rest: list[str] = []
    words = list(args)
    while words:
        word = words.pop(0)
        if word == "--":
            return given, [*rest, word, *words]
        name = next((word[len(flag) :] for flag in ("-p", "--param=") if word.startswith(flag)), "")
        if word in _VALUES_FLAGS:
            name = words.pop(0) if words and not _is_flag(words[0]) else ""
            if not name:
                raise UsageError(f"{word} has no name.", "Write -p lr 1e-3 1e-4.")
        elif not name or (word.startswith("--") and not word.startswith("--param=")):
            rest.append(word)
            continue
        values = []
        while words and not _is_flag(words[0]):
            values.append(words.pop(0))
        name, mark, first = name.partition("=")
        given.append((name, [first, *values] if mark else values))
    return given, rest


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


@group("sweep", cls=RunOrLook)
def sweep() -> None:
    """Run a command for many parameter values, and keep the result of each run."""


def _flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that are options of a sweep, by the names they have in a file."""
    size, number = click.IntRange(1), click.IntRange(0)
    options = [
        flag("-p", "--param", multiple=True, metavar="NAME VALUES...",
                     section="Parameters",
             help="A parameter and its values, or a range: log:1e-5..1e-2."),
        flag("--zip", "zip", multiple=True, metavar="A,B",
             section="Parameters", help="Vary these parameters together."),
        flag("--if", "if", multiple=True, metavar="COND",
             section="Parameters", help="Run only points that meet this condition."),
        flag("--shuffle", is_flag=True, default=None,
             section="Parameters", help="Run the points in random order."),
        flag("--n-samples", type=size, metavar="N",
             section="Parameters", help="Number of points to sample from ranges."),
        flag("--seed", type=int, metavar="S",
             section="Parameters", help="Seed for sampling and shuffling (default: 0)."),
        flag("--seeds", type=size, metavar="N",
             section="Parameters", help="Run each point N times, with {seed}."),
        flag("--out", metavar="DIR",
             section="Output", help="Folder of the sweep (default: sweeps/NAME)."),
        flag("--name", metavar="NAME",
             section="Output", help="Name of the sweep (default: from the command)."),
        needs(names={"job_type": "type", "without": "not"}, has_defaults=False,
              gpus="GPUs for each run."),
        place(has_defaults=False, at="Run it all at this site or node, or `local`."),
        flag("--shell", is_flag=True, default=None,
             section="How it runs", help="Run the command in the shell."),
        flag("--retry", type=number, metavar="N",
             section="How it runs", help="Retry a run up to N times on failure."),
        flag("--keep-going/--fail-fast", "keep_going", default=None,
             section="How it runs",
             help="When a run fails, go on (default) or start no more."),
        flag("--result", metavar="FILE",
             section="Output",
             help="File in its folder where a run leaves its"
                     " result; the last JSON line it prints if not given."),
        flag("--parallel", type=size, metavar="N",
             section="How it runs", help="Run at most N at once."),
        flag("--rerun", is_flag=True, default=None,
             section="How it runs", help="Also run points that have finished."),
        flag("--sampler", metavar="NAME",
             section="Search", help="Let Optuna choose the points, by this sampler."),
        flag("--maximize", metavar="METRIC",
             section="Search", help="Metric to maximize."),
        flag("--minimize", metavar="METRIC",
             section="Search", help="Metric to minimize."),
        flag("--trials", type=size, metavar="N",
             section="Search", help="Number of points for the sampler to try."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@sweep.command("run", cls=WithValues)
@_flags
@flag("--file", "path", metavar="FILE", help="Read the sweep from TOML, JSON or YAML.")
@flag("--dry-run", is_flag=True, help="Print the commands and run nothing.")
@flag("--detach", is_flag=True, help="Run in the background; survives the terminal.")
@flag("--attach", "attached", metavar="NAME", help="Show a sweep that was detached.")
@flag("-q", "--quiet", is_flag=True, help="Show no progress.")
@flag("--json", "as_json", is_flag=True, help="Print JSON (see docs/sweeps.md).")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar='"CMD"')
def run(
    param: list[tuple[str, list[str]]],
    path: str | None,
    dry_run: bool,
    detach: bool,
    attached: str | None,
    quiet: bool,
    as_json: bool,
    command: tuple[str, ...],
    **given: Any,
) -> int:
    """Run CMD once for each combination of its parameters, on GPUs with room.

    The same command again runs only what has not finished.
    """
    if attached is not None:
        name = os.path.basename(os.path.normpath(attached))
        return attach(name, [os.path.join("sweeps", attached), attached])
    made = plan.make(options_of(param, path, command, given))
    if dry_run:
        return _dry(made, as_json)
    if detach:
        return run_detached(
            made.out, f"grn sweep --attach {made.out}", lambda: _run(made, False, as_json)
        )
    return _run(made, quiet, as_json)


def _run(made: Plan, quiet: bool, as_json: bool) -> int:
    line = ProgressLine(sys.stderr, is_quiet=quiet)
    told = sweep_text.SweepProgress(line, made)
    try:
        study = Sweep.from_plan(made).study(told, line.wait)
    finally:
        line.finish()
    _report(study, as_json)
    if study.stopped_by:
        return 128 + study.stopped_by
    return FAILED if study.progress.failed else 0


def options_of(
    param: Sequence[tuple[str, list[str]]],
    path: str | None,
    command: tuple[str, ...],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Put together what a file says and what the command line says, which goes first."""
    options = option_file.read(path) if path else {}
    parameters = options.get("parameters", {})
    typed: dict[str, Parameter] = {}
    for name, values in param:
        if name in typed:
            raise UsageError(f"parameter '{name}' is given twice.", "Put all its values together.")
        typed[name] = space.from_words(name, values)
    if isinstance(parameters, dict):
        options["parameters"] = {**parameters, **typed}
    if command:
        options["command"] = command[0] if len(command) == 1 else list(command)
    for name, value in given.items():
        if value is None or value == ():
            continue
        if name == "zip":
            value = [group.split(",") for group in value]
        options[name] = list(value) if isinstance(value, tuple) else value
    typed_metrics = [name for name in ("maximize", "minimize") if given.get(name)]
    if len(typed_metrics) == 1:  # it takes the place of the other one in a file
        options.pop("minimize" if typed_metrics == ["maximize"] else "maximize", None)
    return options


def _dry(made: Plan, as_json: bool) -> int:
    if made.trials is not None:
        raise UsageError("the points of a search are only known as it goes.", "Leave --dry-run.")
    points = Sweep.from_plan(made).points()
    study = Study(made, lambda *_: None)
    study.read()
    left = left_to_run(study, points)
    is_shell = made.command is not None and made.command.is_shell
    for point in left:
        run = study.run_of(point)
        if as_json:
            row = {"run": run.run, "params": run.params, "command": run.command}
            click.echo(json.dumps(row))
        else:
            click.echo(run.command[2] if is_shell else shlex.join(run.command))
    done = f", {len(points) - len(left)} finished already" if len(points) > len(left) else ""
    click.echo(f"{len(left)} to run{done}, in {made.out}", err=True)
    return 0


def _report(study: Study, as_json: bool) -> None:
    table, about = study.table(), study.folder.about()
    assert about is not None
    if as_json:
        print_json(_as_json(study.folder, about, table))
        return
    echo(sweep_text.results(table, rank(table, about), width(), MAX_SHOWN, is_ascii()))
    echo(sweep_text.summary(study.progress, table, study.plan.out), err=True)


def _as_json(folder: SweepFolder, about: About, table: Table) -> dict[str, Any]:
    ranking = rank(table, about)
    return {
        "schema": 1,
        "name": about.name,
        "command": about.command,
        "out": folder.path,
        "metric": ranking.metric if ranking else None,
        "is_maximized": ranking.is_maximized if ranking else None,
        "best": ranking.rows[0]["run"] if ranking else None,
        "runs": list(table),
    }


_dir = click.argument("folder", metavar="DIR", type=click.Path())
_metric = flag("--metric", metavar="M", help="Result that decides which run is best.")
_direction = flag(
    "--maximize/--minimize",
    "is_maximized",
    default=None,
    help="Whether a larger or a smaller result is better.",
)


@sweep.command("show")
@_dir
@_metric
@_direction
@flag(
    "-n",
    "--rows",
    "most",
    type=click.IntRange(0),
    default=MAX_SHOWN,
    metavar="N",
    help="Print at most N rows; 0 for all.",
)
@flag("--csv", "as_csv", is_flag=True, help="Print all rows as CSV.")
@flag("--json", "as_json", is_flag=True, help="Print JSON (see docs/sweeps.md).")
def show(
    folder: str,
    metric: str | None,
    is_maximized: bool | None,
    most: int,
    as_csv: bool,
    as_json: bool,
) -> int:
    """Show the results of the sweep in DIR, best first."""
    about, table, ranking = ranked(folder, metric, is_maximized)
    if as_csv:
        click.echo(table.to_csv(), nl=False)
    elif as_json:
        print_json(_as_json(SweepFolder(folder), about, table))
    else:
        echo(sweep_text.results(table, ranking, width(), most, is_ascii()))
    return 0


@sweep.command("plot")
@_dir
@_metric
@_direction
@flag("--html", "html", metavar="FILE", help="Write the page to FILE (default: DIR/plot.html).")
@flag("--png", "png", metavar="FILE", help="Write the picture to FILE (default: DIR/plot.png).")
@flag("--no-png", is_flag=True, help="Do not write the picture.")
def plot(
    folder: str,
    metric: str | None,
    is_maximized: bool | None,
    html: str | None,
    png: str | None,
    no_png: bool,
) -> int:
    """Draw the sweep in DIR: an HTML page that works offline, a PNG, and a table here."""
    about, table, ranking = ranked(folder, metric, is_maximized)
    if ranking is None:
        raise UsageError(
            f"no run in {folder} has given a number.",
            'A run prints its result as a JSON line, like {"loss": 0.1}.',
        )
    made = sweep_chart.draw(about, table, ranking)
    echo(sweep_text.results(table, ranking, width(), MAX_SHOWN, is_ascii()))
    page = html or os.path.join(folder, "plot.html")
    seen_from = os.path.relpath(folder, os.path.dirname(page) or ".")
    write_text(page, sweep_page.page(made, seen_from))
    click.echo(f"page     {page}", err=True)
    if not no_png:
        target = png or os.path.join(folder, "plot.png")
        if sweep_png.write_png(made, target, is_needed=png is not None):
            click.echo(f"picture  {target}", err=True)
        else:
            click.echo(f"no picture: {sweep_png.HOW_TO_DRAW}", err=True)
    return 0
