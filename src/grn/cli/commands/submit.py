"""`grn submit`: submit a command and print its id. Light: shells call it in loops."""

from __future__ import annotations

import argparse
import sys

from grn.cli.options import NEEDS, PLACE, WHEN
from grn.errors import GrnError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

DESCRIPTION = """\
Hand CMD to your queue and return at once with its id. It runs when its turn
comes and a GPU has room, with this environment and in this folder, whatever
happens to this terminal."""
EPILOG = """\
examples:
  grn submit -- python train.py --lr 0.1
  grn submit --gpus 2 --mem 12GiB -- torchrun --nproc-per-node=gpu train.py
  grn submit --retry 2 --time-limit 12h -- python train.py
  grn submit --begin 22:00 -- python train.py
  grn submit --after 41 --shell -- 'python eval.py > eval.txt'
  grn submit --array 0-9 --shell -- 'python train.py --seed $GRN_ARRAY_INDEX'
  grep -v skip commands.txt | grn submit --lines -

See the jobs with `grn ls`, their output with `grn logs ID`, wait for them
with `grn wait ID`."""


class _Parser(argparse.ArgumentParser):
    """A parser that reports misuse as errors of grn."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.", f"See `{self.prog} --help`.")


def parser() -> argparse.ArgumentParser:
    """Return the parser of `grn submit`."""
    made = _Parser(
        prog="grn submit",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--name", default="", help="a name to find it by")
    add("--tag", dest="tags", action="append", default=[], metavar="WORD",
        help="a word to find it by, with others (repeatable)")  # fmt: skip
    add("-n", "--gpus", type=int, default=1, metavar="N", help=NEEDS["gpus"])
    add("--mem", metavar="SIZE", help=NEEDS["mem"])
    add("--exclusive", action="store_true", help=NEEDS["exclusive"])
    add("--type", metavar="NAME", help=NEEDS["type"])
    add("--priority", type=int, default=0, metavar="N", help=NEEDS["priority"])
    add("--on", default="", metavar="GPUS", help=NEEDS["on"])
    add("--not", dest="avoid", action="append", default=[], metavar="GPU", help=NEEDS["not"])
    add("--after", action="append", default=[], metavar="ID[:ok|:any]",
        help="start when that job has ended well (or however it ended)")  # fmt: skip
    add("--begin", metavar="TIME", help=WHEN["begin"])
    add("--only", default="", metavar="HOURS", help=WHEN["only"])
    add("--retry", type=int, default=0, metavar="N", help="retry up to N times on failure")
    add("--time-limit", metavar="TIME", help="end it after 90s, 30m, 12h or 2d")
    add("--cwd", metavar="DIR", help="run it in this folder")
    add("--env", action="append", default=[], metavar="K=V", help="set a variable for it")
    add("--shell", action="store_true", help="CMD is a line for the shell")
    add("--lines", metavar="FILE", help="submit each line of FILE (- for stdin), run by the shell")
    add("--array", metavar="RANGE",
        help="submit CMD for each number (0-9, 0,2,4 or 0-10:2), in GRN_ARRAY_INDEX;"
        " 0-99%%4 runs at most four at a time")  # fmt: skip
    add("--at", default="", metavar="PLACE", help=PLACE["at"])
    add("--nodes", type=int, default=1, metavar="N", help=PLACE["nodes"])
    add("--send", action="store_true", help=PLACE["send"])
    add("--fetch", action="append", default=[], metavar="PATTERN", help=PLACE["fetch"])
    add("--requeue", action="store_true", help="run it again if the machine goes down under it")
    add("--hold", action="store_true", help="hold the job until you run `grn release`")
    add("--notify", default="", metavar="CMD", help="run CMD by the shell when it has ended")
    add("--separate-stderr", action="store_true", help="keep standard error in a log of its own")
    add("--wait", action="store_true", help="wait for the end, and exit as `grn wait` does")
    add("-q", "--quiet", action="store_true", help="print nothing but ids")
    add("command", nargs=argparse.REMAINDER, metavar="-- CMD ...")
    return made


def main(argv: Sequence[str]) -> int:
    """Submit and print the ids, one a line."""
    try:
        options = parser().parse_args(argv)
        ids = _submit(options)
    except (GrnError, ValueError, TypeError) as error:
        message = error.message if isinstance(error, GrnError) else str(error)
        print(f"error: {message}", file=sys.stderr)
        if isinstance(error, GrnError) and error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code if isinstance(error, GrnError) else 2
    except KeyboardInterrupt:
        return 130
    print("\n".join(map(str, ids)), flush=True)
    if options.wait:
        from grn.cli import app

        app.main(["wait", *(["--quiet"] if options.quiet else []), *map(str, ids)])
    return 0


def _submit(options: argparse.Namespace) -> list[int]:
    from grn.client.submit import request, send, wanted, words

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.lines and (command or options.array):
        raise UsageError("--lines goes without a command.", "Give one or the other.")
    if options.lines:
        commands = [["/bin/sh", "-c", line] for line in _lines(options.lines)]
    elif command:
        commands = [words(" ".join(command) if options.shell else command, options.shell)]
    else:
        raise UsageError("there is no command.", "Write it at the end: grn submit -- CMD ...")
    jobs = [wanted(argv, options.type, options.name, options.cwd) for argv in commands]
    limit = 0
    if options.array:
        from grn.model.ranges import parse_array

        numbers, limit = parse_array(options.array)
        jobs = [{**jobs[0], "extra": {"GRN_ARRAY_INDEX": str(index)}} for index in numbers]
    shared = request(**_shared(options), array_limit=limit)
    return send(jobs, shared, is_quiet=options.quiet)


def _shared(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "gpus": options.gpus,
        "mem": options.mem,
        "exclusive": options.exclusive,
        "priority": options.priority,
        "after": options.after,
        "begin": options.begin,
        "only": options.only,
        "retry": options.retry,
        "time_limit": options.time_limit,
        "cwd": options.cwd,
        "env": dict(_pair(text) for text in options.env),
        "on": options.on,
        "without": options.avoid,
        "at": options.at,
        "nodes": options.nodes,
        "send": options.send,
        "fetch": options.fetch,
        "requeue": options.requeue,
        "hold": options.hold,
        "notify": options.notify,
        "tags": options.tags,
        "separate_stderr": options.separate_stderr,
    }


def _lines(path: str) -> list[str]:
    try:
        if path == "-":
            text = sys.stdin.buffer.read() if sys.stdin else b""
        else:
            with open(path, "rb") as file:
                text = file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    lines = [line.strip() for line in text.decode("utf-8", "surrogateescape").split("\n")]
    commands = [line for line in lines if line and not line.startswith("#")]
    if not commands:
        raise UsageError(f"there is no command in {path}.")
    return commands


def _pair(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise UsageError(f"'{text}' sets no variable.", "Write --env NAME=VALUE.")
    return name, value
