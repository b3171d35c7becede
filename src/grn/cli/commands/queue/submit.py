"""`grn submit`: submit a command and print its id. Light: shells call it in loops."""

from __future__ import annotations

import sys

from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(
    command: tuple[str, ...], *, name: str, job_type: str | None, shell: bool, lines: str | None,
    array: str | None, env: tuple[str, ...], wait: bool, quiet: bool, **shared: Any,
) -> int:  # fmt: skip
    """Submit and print the ids, one a line."""
    from grn.client.submit import request, send, wanted

    commands = _commands(command, shell, lines, array)
    numbers, limit = "", 0
    if array:
        from grn.model.ranges import parse_array

        numbers, limit = parse_array(array)
    jobs = (wanted(argv, job_type, name, shared["cwd"]) for argv in commands)
    pairs = dict(_pair(text) for text in env)
    cwd, is_here = shared["cwd"], shared["at"] in ("", "local")
    message = request(**shared, env=pairs, array=numbers, array_limit=limit)
    ids = send(jobs, message, is_quiet=quiet)
    if not shell and not lines and is_here:
        _warn_of_missing(command[0], cwd, pairs.get("PATH"))
    if not quiet and not wait and sys.stdout.isatty() and sys.stderr.isatty():
        from grn.cli.commands.queue import submitted

        submitted.say(ids)
        return 0
    sys.stdout.write("\n".join(map(str, ids)) + "\n")
    sys.stdout.flush()
    return _wait(ids, quiet) if wait else 0


def _commands(
    command: tuple[str, ...], shell: bool, lines: str | None, array: str | None
) -> list[list[str]]:
    from grn.client.submit import words

    if lines and (command or array):
        raise UsageError("--lines goes without a command.", "Give one or the other.")
    if lines:
        return [["/bin/sh", "-c", line] for line in _lines(lines)]
    if not command:
        raise UsageError("there is no command.", "Write it at the end: grn submit -- CMD ...")
    return [words(" ".join(command) if shell else list(command), shell)]


def _wait(ids: list[int], quiet: bool) -> int:
    from grn.cli import app

    app.main(["wait", *(["--quiet"] if quiet else []), *map(str, ids)])
    return 0


def _warn_of_missing(program: str, cwd: str | None, path: str | None) -> None:
    """Warn of a program that the queue will not find; the job is accepted all the same."""
    from grn.client.leasing.job_request import program_file

    if program_file(program, cwd or "", path) is None:
        from grn.cli.commands.queue import submitted

        submitted.warn_of_missing(program, path)


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
        raise UsageError(f"'{text}' does not set a variable.", "Write --env NAME=VALUE.")
    return name, value
