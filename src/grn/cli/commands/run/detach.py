"""A batch or a sweep in the background: away from the terminal, and back to its output."""

from __future__ import annotations

import fcntl
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence

import click

from grn import wire
from grn.client import queue
from grn.client.logs import read_from
from grn.errors import GrnError, MachineError, UsageError
from grn.proc import spawn

OUTPUT = "output.txt"
LOOK_S = 0.1
_END = "ended with status "


def run_detached(folder: str, attach: str, run: Callable[[], int]) -> int:
    """Run a function in a background process, with its output in the folder."""
    try:
        os.makedirs(folder, exist_ok=True)
        fd = os.open(os.path.join(folder, OUTPUT), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # for as long as the process lives
        os.ftruncate(fd, 0)
    except BlockingIOError as error:
        raise UsageError(f"{folder} runs in the background already.", f"See `{attach}`.") from error
    except OSError as error:
        hint = "Choose another with --out DIR."
        raise MachineError(f"{folder} cannot be used: {error.strerror}.", hint) from error
    sys.stdout.flush()
    pid = spawn.fork(lambda: _run_aside(fd, run))
    os.close(fd)
    click.echo(f"runs in the background as process {pid}; `{attach}` shows how far it is", err=True)
    return 0


def _run_aside(fd: int, run: Callable[[], int]) -> int:
    code = 1
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((null, 0), (fd, 1), (fd, 2)):
        os.dup2(ours, theirs)
    os.close(fd)
    try:
        code = run()
    except GrnError as error:
        code = error.exit_code
        click.echo(f"error: {error.message} {error.hint}".rstrip(), err=True)
    except BaseException:  # the last edge of this process
        traceback.print_exc()
    click.echo(f"{_END}{code}")
    sys.stdout.flush()
    return code


def attach(name: str, folders: Sequence[str]) -> int:
    """Print the output of a background batch or sweep until it ends; return its status."""
    found = next(filter(_has_output, [*folders, *_folders_of(name)]), None)
    if found is None:
        raise UsageError(
            f"no batch or sweep '{name}' was started with --detach.", "`grn ls` shows its jobs."
        )
    path, shown, is_over = os.path.join(found, OUTPUT), 0, False
    text = b""
    while not is_over:
        is_over = not _is_locked(path)  # checked first, so that later output is still read
        data = read_from(path, shown)
        shown += len(data)
        text = (text + data)[-1000:]
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        if not is_over:
            time.sleep(LOOK_S)
    last = text.decode(errors="replace").strip().splitlines()[-1:]
    if last and last[0].startswith(_END):
        return int(last[0].removeprefix(_END))
    raise MachineError(f"{name} was killed before its end; its jobs were cancelled with it.")


def _has_output(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, OUTPUT))


def _folders_of(name: str) -> list[str]:
    """Return the folders above the log of a job of that group, if the queue knows one."""
    try:
        rows = queue.ask({"op": "list", "group": name, "most": 1}, may_start=False)["jobs"]
    except GrnError:
        return []
    folders = []
    for row in rows:
        folder = os.path.dirname(wire.meant(row["log"]))
        for _ in range(2):  # DIR/logs/1.log of a batch, DIR/runs/RUN/log.txt of a sweep
            folder = os.path.dirname(folder)
            folders.append(folder)
    return folders


def _is_locked(path: str) -> bool:
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
