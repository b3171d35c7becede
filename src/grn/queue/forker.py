"""A small warm process that forks shims: a fork costs a tenth of an interpreter's start.

Reads orders from its standard input (length and JSON each) and answers with the shim's pid. It
leaves when the queue does; shims do not need it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import struct
import sys

from grn.queue import shim

HEADER = struct.Struct(">I")


def main() -> None:
    """Fork one shim for each order until the orders end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are reaped by the system
    gc.disable()  # nothing here makes cycles worth a walk, and shims share our pages
    gc.freeze()
    while True:
        order = _read_order()
        if order is None:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            shim.run(order)
        os.write(1, HEADER.pack(pid))


def _read_order() -> dict[str, object] | None:
    header = _read_exactly(HEADER.size)
    if header is None:
        return None
    body = _read_exactly(HEADER.unpack(header)[0])
    if body is None:
        return None
    order: dict[str, object] = json.loads(body)
    return order


def _read_exactly(count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            return None
        data += piece
    return data


if __name__ == "__main__":
    main()
    sys.exit(0)
