"""The only place that turns errors into text and exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys

from grn.errors import GrnError, MachineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130


def run(act: Callable[[], int | None]) -> int:
    """Do what a command does; say what went wrong, and return the exit status."""
    _open_streams()
    try:
        status = act() or 0
        sys.stdout.flush()
    except GrnError as error:
        return _report(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries once more at its end
        if error.errno == errno.EPIPE:
            return 0  # the reader closed the pipe: no error
        say_error(MachineError(f"the output cannot be written: {error.strerror}."))
        return MachineError.exit_code
    except Exception as error:
        return _report(error)  # a malformed reply of another user's negotiator, or a bug
    return status


def _report(error: Exception) -> int:
    """Say an error of grn, or who has sent what cannot be read; raise all others."""
    from grn.client.negotiator import MALFORMED, garbled

    blamed = garbled() if isinstance(error, MALFORMED) else None
    if blamed is None and not isinstance(error, GrnError):
        raise error
    said = blamed or error
    assert isinstance(said, GrnError)
    say_error(said)
    return said.exit_code


def say_error(error: GrnError) -> None:
    """Print an error and its hint, a line each."""
    from grn.cli.output import terminal
    from grn.cli.output.style import paint
    from grn.model.text import harmless

    terminal.echo(paint("error: ", "error") + harmless(error.message), err=True)
    if error.hint:
        terminal.echo(paint("hint: ", "hint") + harmless(error.hint), err=True)


def _open_streams() -> None:
    """Have streams that can print anything; Python has none where they were closed (`>&-`)."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open until the end
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files and jobs may be in any script
            stream.reconfigure(errors="backslashreplace")
