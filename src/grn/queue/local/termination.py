"""End a command: the reason, its grace period, and every process it has started.

Signals go to every process below the shim, so only a shim may use this. Daemons of grn that the
command started, and processes of other attempts, are left alone.
"""

from __future__ import annotations

import os
import signal
import time

from grn.proc import processes, services
from grn.queue.local.channel import Channel, read_some

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LEFTOVER_S = 1.0  # what the command leaves behind may end by itself for so long


class Termination:
    """Whether a command is being ended, why, and what comes next."""

    def __init__(self, order: dict[str, Any], wake: int, channel: Channel | None) -> None:
        self.why = ""  # cancelled, timed-out
        self._folder: str = order["folder"]
        self._tag: str = order["extra"].get(services.TAG, "")
        self._grace_s: float = order["grace_s"]
        self._limit_s: float | None = order["time_limit_s"]
        self._began = time.monotonic()
        self._kill_at: float | None = None
        self._wake = wake  # gets a byte for each signal
        self._channel = channel

    # --- who asks for it -----------------------------------------------------------------

    def hear_signals(self) -> bool:
        """Hear TERM, which asks, and USR1, which does not."""
        signals = read_some(self._wake) or b""
        if signal.SIGUSR1 in signals:
            self._kill_now()
        elif signal.SIGTERM in signals:
            self._begin("cancelled")
        return True

    def hear_queue(self) -> bool:
        """Hear the queue ask for the end; False when it is gone, and we go on without it."""
        if self._channel is None:
            return False
        while (order := self._channel.next()) is not None:
            if order.get("stop") == self._folder:
                if order["now"]:
                    self._kill_now()
                else:
                    self._begin("cancelled")
        return self._channel.is_open

    def keep_time(self) -> None:
        """End what is over its time limit, and kill what does not end."""
        now = time.monotonic()
        if self._limit_s is not None and now - self._began >= self._limit_s and not self.why:
            self._begin("timed-out")
        if self._kill_at is not None and now >= self._kill_at:
            self.signal_all(signal.SIGKILL)
            self._kill_at = now + 1.0

    def next_at(self) -> float | None:
        """Return when the time must be looked at again."""
        if self._limit_s is None or self.why:
            return self._kill_at
        return self._began + self._limit_s

    # --- what is done --------------------------------------------------------------------

    def _begin(self, why: str) -> None:
        if not self.why:
            self.why = why
            self._kill_at = time.monotonic() + self._grace_s
            self._ask_all()

    def _kill_now(self) -> None:
        self.why = self.why or "cancelled"
        self._grace_s = 0.0  # for what forks meanwhile
        self.signal_all(signal.SIGKILL)

    def end_leftovers(self, reap: Callable[[], object]) -> None:
        """End what the command left behind: orphans are our children now."""
        deadline = time.monotonic() + LEFTOVER_S
        step = "wait"
        while processes.has_children() and not self._are_all_spared():
            self.hear_signals()
            self.hear_queue()
            now = time.monotonic()
            if step == "wait" and (self.why or now >= deadline):
                self._ask_all()
                step, deadline = "asked", now + self._grace_s
            elif step == "asked" and (now >= deadline or not self._grace_s):
                self.signal_all(signal.SIGKILL)
                deadline = now + 0.2
            time.sleep(0.005 if step == "wait" else 0.02)
            reap()

    def _ask_all(self) -> None:
        self.signal_all(signal.SIGTERM)
        self.signal_all(signal.SIGCONT)  # a stopped process hears nothing

    def signal_all(self, signum: int) -> None:
        """Signal every process below us; those that fork meanwhile are met at the next look."""
        found = processes.below(os.getpid())
        spared = services.spared(found, self._tag)
        for process in found:
            if process.pid not in spared:
                processes.send(process, signum)  # false when it changed its user: not ours any more
        if signum == signal.SIGKILL:
            processes.kill_children(spared)

    def _are_all_spared(self) -> bool:
        """True when nothing but daemons and other attempts is left below us."""
        return all(
            services.is_service(pid) or services.is_of_another(pid, self._tag)
            for pid in processes.children()
        )
