"""End a command: the reason, its grace period, and every process it has started.

Signals go to every process below the shim, so only a shim may use this. Daemons of grn that the
command started, and processes of other attempts, are left alone.
"""

from __future__ import annotations

import os
import signal
import time

from grn.model.units import show_limit
from grn.proc import processes, services, terminate
from grn.proc.tree import Escalation
from grn.queue.local.channel import Channel, StartOrder, StopOrder, read_some

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LEFTOVER_S = 1.0  # for leftover processes to end by themselves
KILL_AGAIN_S = 0.2


def listen_for_signals() -> int:
    """Turn signals into bytes on a pipe: TERM stops the command, USR1 kills it at once."""
    terminate.adopt_orphans()
    wake, wake_end = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    return wake


class Termination:
    """Whether a command is being ended, why, and the next step."""

    def __init__(self, order: StartOrder, wake: int, channel: Channel) -> None:
        self.why = ""  # cancelled, timed-out, yielded
        self._signal = order.stop_signal
        self._limit_why = "yielded" if order.again else "timed-out"
        self._folder = order.folder
        self._tag = order.tag
        self._steps = Escalation(order.grace_s, again_s=KILL_AGAIN_S)
        self._limit_s = order.time_limit_s
        self._is_over_limit = False
        self._began = time.monotonic()
        self._wake = wake  # gets a byte for each signal
        self._channel = channel

    # --- orders to end -------------------------------------------------------------------

    def hear_signals(self) -> bool:
        """Read signals: TERM ends with grace, USR1 kills."""
        signals = read_some(self._wake) or b""
        if signal.SIGUSR1 in signals:
            self._kill_now()
        elif signal.SIGTERM in signals:
            self._begin("cancelled")
        return True

    def hear_queue(self) -> bool:
        """Read orders of the queue to end; False when it is gone, and the shim continues alone."""
        while (order := self._channel.next()) is not None:
            if isinstance(order, StopOrder) and order.folder == self._folder:
                if order.is_now:
                    self._kill_now()
                else:
                    self._begin("yielded" if order.is_yield else "cancelled")
        return self._channel.is_open

    def keep_time(self) -> None:
        """End a command over its time limit, and kill one that does not end."""
        now = time.monotonic()
        if self._limit_s is not None and now - self._began >= self._limit_s and not self.why:
            self._begin(self._limit_why)
            self._is_over_limit = True
        self._take_step()

    @property
    def text(self) -> str:
        """Say why the command was ended, where the queue does not know it."""
        if not self._is_over_limit or self._limit_s is None:
            return ""
        return f"ran longer than its limit of {show_limit(self._limit_s)}"

    def next_at(self) -> float | None:
        """Return when `keep_time` must be called again."""
        if self._limit_s is None or self.why:
            return self._steps.next_at
        return self._began + self._limit_s

    # --- steps --------------------------------------------------------------------

    def _begin(self, why: str) -> None:
        if not self.why:
            self.why = why
            self._steps.begin(time.monotonic())
            self._take_step()

    def _kill_now(self) -> None:
        self.why = self.why or "cancelled"
        self._steps.hurry(time.monotonic())
        self._take_step()

    def end_leftovers(self, reap: Callable[[], object]) -> None:
        """End the processes that the command left: orphans are children of the shim."""
        begin_at = time.monotonic() + LEFTOVER_S
        has_begun = False
        while terminate.has_children() and not self._are_all_spared():
            self.hear_signals()
            self.hear_queue()
            now = time.monotonic()
            if not has_begun and (self.why or now >= begin_at):
                has_begun = True
                self._steps.begin(now)
            if has_begun:
                self._take_step()
            time.sleep(0.02 if has_begun else 0.005)
            reap()

    def _take_step(self) -> None:
        step = self._steps.due(time.monotonic())
        if step:
            self.signal_all(step)

    def signal_all(self, step: str) -> None:
        """Take a step with every process below the shim; later forks are met by the next step."""
        terminate.below_us(step, self._tag, self._signal)

    def _are_all_spared(self) -> bool:
        """True when only daemons and other attempts are left below the shim."""
        return all(
            services.is_service(pid) or services.is_of_another(pid, self._tag)
            for pid in processes.children()
        )
