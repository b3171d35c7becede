"""The first step of `grn`: quick commands go straight to their file, all others through click."""

from __future__ import annotations

import os
import sys

from grn.cli import quick

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Run one command and exit with its status."""
    name, words = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name == "agent":
        from grn.cli.commands import agent

        sys.exit(agent.main(words))
    if name in quick.COMMANDS and "_GRN_COMPLETE" not in os.environ:
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
    return quick.COMMANDS[name].function()(**given)


if __name__ == "__main__":
    main()
