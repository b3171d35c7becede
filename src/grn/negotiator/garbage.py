"""When the negotiator collects garbage: after answers, not in the middle of a decision.

Only objects in cycles need it, as those of closed connections; all others are freed at once.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

MAX_YOUNG = 300  # new objects: to look at them takes a quarter of a millisecond
_EACH_MIDDLE = 3  # collections of new objects, before those that they have left are looked at again
_SAFETY = (10_000, 10, 1_000_000)  # thresholds of the collector itself
_TIDY_S = 60.0


class Garbage:
    """Collects new objects a few at a time, and all of them while the server is idle.

    The collector's own choice of the moment would stop a decision for 5 to 12 ms, and to walk a
    hundred thousand waiting requests takes it a tenth of a second. What has outlived two looks is
    old: it waits until the server is idle.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._is_due = False
        self._turn = 0
        self._tidied_at = time.monotonic()

    def begin(self) -> None:
        """Leave out what exists now, and take over from the collector."""
        gc.freeze()
        gc.set_threshold(*_SAFETY)

    def after_event(self) -> None:
        """Collect new objects once the messages that have arrived are answered, if it is time."""
        if gc.get_count()[0] >= MAX_YOUNG and not self._is_due:
            self._is_due = True
            self._call_soon(self._collect_young)

    def _collect_young(self) -> None:
        self._is_due = False
        self._turn = (self._turn + 1) % _EACH_MIDDLE
        gc.collect(0 if self._turn else 1)

    def tidy(self) -> None:
        """Collect everything, while nothing happens and if the last time is a minute ago."""
        if time.monotonic() - self._tidied_at >= _TIDY_S:
            gc.collect()
            self._tidied_at = time.monotonic()
