"""What runs in the fresh process: it reads its order and is the task.

It comes with the order, compiled, and runs as the main module: nothing is searched or imported
before the environment, the module path and the arguments are those of the scheduler. The task's
module comes in when its class is read.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What `python -c` is told, with the order as its argument.
START = """import sys,marshal
with open(sys.argv[1],'rb') as file:
    order=marshal.loads(file.read())
code=marshal.loads(order['worker'])
__file__=code.co_filename
exec(code)
main(sys.argv[1],order)
"""

is_loading_a_task = False  # a scheduler that is started meanwhile would never end


def main(path: str, order: dict[str, Any]) -> None:
    """Run the task of an order; say in one line beside it why it failed."""
    try:
        _made(order).main()
    except SystemExit as error:
        if error.code not in (None, 0):
            _leave_note(path, f"sys.exit({error.code!r})")
        raise
    except BaseException as error:  # a task may fail in any way, also by Ctrl-C: say how
        lines = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        _leave_note(path, text)
        raise


def _made(order: dict[str, Any]) -> Any:
    """Make this process like the scheduler's; return the task."""
    global is_loading_a_task
    is_loading_a_task = True
    os.environ.update(order["environment"])
    sys.path[:] = order["path"]
    sys.argv[:] = order["argv"]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # for `tail -f`
    if "name" in order:
        task = _found(*order["name"])(order["config"], order["work_dir"])
    else:
        task = _unpickled(*order["pickles"])
    is_loading_a_task = False
    return task


def _found(module: str, name: str) -> Any:
    """Import a class by its name."""
    __import__(module)
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _unpickled(first: bytes, arguments: bytes | None = None) -> Any:
    """Read a task, or its class and what to make it from."""
    from _pickle import loads  # not for all: it takes a fifth of the time Python takes to start

    found = loads(first)
    return found if arguments is None else found(*loads(arguments))


def _leave_note(path: str, text: str) -> None:
    try:
        with open(f"{path}.note", "w", errors="replace") as file:
            file.write(text[:1000])
    except OSError:
        pass  # the log has it all, and the exit status tells
