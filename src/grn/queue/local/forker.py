"""A small warm process that forks shims; a fork costs a tenth of an interpreter start.

Each message on its standard input carries one end of a channel, which a new shim serves. The forker
exits with the queue; shims do not need it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import socket

from grn.proc import spawn
from grn.queue.local import shim


def main() -> None:
    """Fork one shim for each channel until no more come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are reaped by the system
    gc.disable()  # no cycles are made here, and shims share these pages
    gc.freeze()
    orders = socket.socket(fileno=0)
    while True:
        data, channels, _, _ = socket.recv_fds(orders, 1, 1)
        if not data:
            return
        for channel in channels:
            with contextlib.suppress(OSError):  # no room: the queue sees it close and asks again
                spawn.fork(functools.partial(_be_shim, channel))
            os.close(channel)


def _be_shim(channel: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.set_inheritable(channel, False)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    shim.serve(channel)


if __name__ == "__main__":
    main()
