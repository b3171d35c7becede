"""`grn.should_stop()`: whether this job was asked to end.

The first call makes the signal a flag instead of the end of the process; the job then saves its
state and ends by itself, before its grace is over.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

STOP_SIGNAL = "GRN_STOP_SIGNAL"  # the number of the signal that `--signal` names
_asked = False
_listens = False


def should_stop() -> bool:
    """Return True once this job was asked to end; call it from the main thread first.

    For loops that save their state: `if grn.should_stop(): save(); break`.
    """
    if not _listens:
        _listen()
    return _asked


def _listen() -> None:
    global _listens
    _listens = True
    named = os.environ.get(STOP_SIGNAL, "")
    for signum in {signal.SIGTERM, int(named) if named.isdigit() else signal.SIGTERM}:
        if signal.getsignal(signum) is signal.SIG_DFL:  # a handler of the program stays
            signal.signal(signum, _note)


def _note(_signum: int, _frame: FrameType | None) -> None:
    global _asked
    _asked = True
