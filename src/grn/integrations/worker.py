"""The other end of a pool: take a lease, run one call under it, leave its answer.

Run as `python -m grn.integrations.worker FOLDER`. Ends, with all it has started, when the program
that wanted the answer is gone.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
from typing import Any

from grn.client import frameworks
from grn.client.lease import Lease
from grn.integrations.pool import ANSWER_FILE, GRACE_S, REQUEST_FILE, CallReply


def main(folder: str) -> int:
    """Run the call of a folder; 0 when it returned, 1 when it raised."""
    life = os.dup(0)
    os.set_inheritable(life, False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    threading.Thread(target=_follow, args=(life, folder), name="grn-life", daemon=True).start()
    with open(os.path.join(folder, REQUEST_FILE)) as file:
        message = json.load(file)
    lease = Lease(message, is_expected=True)  # the pool has made sure of a negotiator
    try:
        with lease:
            _leave(folder, CallReply(True), _call(folder))  # what it gave may live on the GPU
    except Exception as error:  # whatever the call raises goes back to whoever asked for it
        _leave_failure(folder, error, lease.is_victim)
        return 1
    return 0


def _call(folder: str) -> Any:
    """Put the call together, under the lease since its arguments may live on a GPU; make it."""
    with open(os.path.join(folder, "call"), "rb") as file:
        sys.path[:] = pickle.load(file)
        function, args, kwargs = pickle.load(file)
    return function(*args, **kwargs)


def _leave_failure(folder: str, error: Exception, is_victim: bool) -> None:
    is_out = frameworks.is_out_of_memory(error)
    told = CallReply(False, is_out, is_victim, traceback.format_exc())
    error.__cause__ = error.__context__ = error.__traceback__ = None  # the text tells of them
    try:
        _leave(folder, told, error)
    except Exception:  # it cannot travel: its text does
        _leave(folder, told, RuntimeError(repr(error)))


def _leave(folder: str, told: CallReply, answer: object) -> None:
    import cloudpickle

    temporary = os.path.join(folder, ANSWER_FILE + ".tmp")
    with open(temporary, "wb") as file:
        pickle.dump(told, file)  # first: the answer may need what cannot be read there
        cloudpickle.dump(answer, file)
    os.rename(temporary, os.path.join(folder, ANSWER_FILE))


def _follow(life: int, folder: str) -> None:
    """Wait until whoever started us is gone, and go too, with all that we have started."""
    while os.read(life, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signum)
        else:  # the call has left its group
            os.kill(os.getpid(), signum)
        time.sleep(GRACE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
