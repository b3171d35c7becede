"""The first step of `grn`: a fork of the fork server, else a quick command's file, else click."""

from __future__ import annotations

import os
import sys

from grn.cli import fork_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Run one command and exit with its status."""
    is_served = sys.argv[1:2] and sys.argv[1] in fork_client.SERVED
    if (is_served or "_GRN_COMPLETE" in os.environ) and fork_client.COLD not in os.environ:
        from grn import paths

        try:
            status = fork_client.run(paths.commands_socket(), sys.argv)
        except KeyboardInterrupt:
            status = 130
        if status is not None:
            os._exit(status)  # this process has opened and printed nothing
    try:
        run_here()
    except KeyboardInterrupt:  # while modules are imported; commands answer it themselves
        sys.exit(130)


def run_here() -> None:
    """Run one command in this process and exit with its status."""
    name, words = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name == "agent":
        from grn.cli.commands.sites import agent

        sys.exit(agent.main(words))
    if name == "exec" and words[:1] == ["--"] and words[1:]:
        from grn.cli import guard
        from grn.cli.commands.run import leased_command

        # All is written and the lease is over; taking the interpreter down would take 3 ms.
        os._exit(guard.run(lambda: leased_command.run(tuple(words[1:]))))
    from grn.cli import options, quick

    colour = os.environ.get("GRN_COLOR") or options.COLOURS[0]
    is_plain = "_GRN_COMPLETE" not in os.environ and colour in options.COLOURS
    if name in quick.COMMANDS and is_plain:
        given = quick.read_words(name, words)
        if given is not None:
            from grn.cli import guard

            sys.exit(guard.run(lambda: _run(name, given)))
    from grn.cli import app

    app.main()


def _run(name: str, given: dict[str, Any]) -> int:
    when = given.pop("color", None) or os.environ.get("GRN_COLOR")
    if when:
        from grn.cli.output import terminal

        terminal.choose_colour(when)
    from grn.cli import quick

    return quick.COMMANDS[name].function()(**given)


if __name__ == "__main__":
    main()
