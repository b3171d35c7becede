"""The signals that stop a runner, as bytes on a pipe that its loop can listen to."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Commands are in the background of the terminal, where using it would stop them for ever. They
# inherit that this signal is ignored.
_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


class StopSignals:
    """Signals that stop this process, as bytes on a pipe; ignored signals stay ignored."""

    def __init__(self) -> None:
        self.fd, self._end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._end, False)
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        try:
            self._fd_before = signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)
        except ValueError:
            return  # only the main thread can handle signals: leave them to its code
        for signum in _STOPS:
            handler = signal.getsignal(signum)
            if handler is not signal.SIG_IGN and handler is not None:
                self._before[signum] = handler
                signal.signal(signum, _leave_it_to_the_pipe)
        for signum in _TERMINAL:
            before = signal.signal(signum, signal.SIG_IGN)
            self._before[signum] = signal.SIG_DFL if before is None else before
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # ends would be lost
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def read(self) -> list[int]:
        """Return the received signals."""
        try:
            return [signum for signum in os.read(self.fd, 512) if signum in _STOPS]
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Restore the previous handlers."""
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        os.close(self.fd)
        os.close(self._end)


def _leave_it_to_the_pipe(signum: int, frame: FrameType | None) -> None:
    pass
