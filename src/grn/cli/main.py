"""The first step of `grn`: quick commands go straight to their file, all others through click."""

from __future__ import annotations

import sys


def main() -> None:
    """Run one command and exit with its status."""
    if sys.argv[1:2] == ["submit"]:
        from grn.cli.commands import submit

        sys.exit(submit.main(sys.argv[2:]))
    if sys.argv[1:2] == ["agent"]:
        from grn.cli.commands import agent

        sys.exit(agent.main(sys.argv[2:]))
    from grn.cli import app

    app.main()


if __name__ == "__main__":
    main()
