"""Keep a working NVML helper: replace one that hangs or ends, and retry with backoff.

Tracks the GPU that a helper got stuck in and how long to skip it; does not decide about jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from grn.gpus.nvml_facts import CannotOpen, Figures, Joined, Peak
from grn.gpus.nvml_pipe import (
    Helper,
    HelperLate,
    HelperLost,
    HelperSilent,
    Launched,
    Patience,
    launch,
)


@dataclass(slots=True)
class ProbeBackoff:
    """When to try again: later after each failure, and never while the last try is still stuck."""

    first_s: float
    longest_s: float
    wait_s: float = 0.0
    at: float = 0.0
    stuck: Helper | None = None

    def is_due(self) -> bool:
        """Return whether it is time for another try."""
        # A killed helper that does not die proves that the call still hangs.
        return time.monotonic() >= self.at and (self.stuck is None or self.stuck.is_gone)

    def fail(self, stuck: Helper | None = None) -> None:
        """Wait longer than last time."""
        self.wait_s = min(self.longest_s, max(self.first_s, 2 * self.wait_s))
        self.at = time.monotonic() + self.wait_s
        self.stuck = stuck

    def clear(self) -> None:
        """Forget past failures."""
        self.wait_s = self.at = 0.0
        self.stuck = None


class NvmlWatch:
    """The helper in use, and a second one that retries lost GPUs.

    Retries run in a second helper, the scout. It takes over only when it reads at least as many
    GPUs, so that a retry for one lost GPU never costs the others.
    """

    def __init__(self, patience: Patience, waits: tuple[float, float], env: Mapping[str, str]):
        self._patience = patience
        self._waits = waits
        self._env = env
        self._wanted: tuple[str, ...] | None = None
        self._helper: Helper | None = None
        self._opened: frozenset[str] = frozenset()  # GPUs open in that helper
        self._has_accounting = False
        self._ok = 0  # GPUs that answered at the last reading
        self._hung: dict[int, ProbeBackoff] = {}  # by index
        self._driver = ProbeBackoff(*waits)
        self._recheck = ProbeBackoff(*waits)
        self._scout: asyncio.Task[Launched | None] | None = None
        self._leaving: list[Helper] = []
        self._is_closed = False
        self.index_of: dict[str, int] = {}  # where each GPU was seen last

    @property
    def helper_pid(self) -> int | None:
        """Return the pid of the helper in use."""
        return None if self._helper is None else self._helper.pid

    @property
    def hung(self) -> Collection[int]:
        """Return the indices of GPUs inside which a helper hung or crashed."""
        return self._hung.keys()

    @property
    def has_accounting(self) -> bool:
        """Return whether the driver keeps the exact peaks of processes, on some GPU at least."""
        return self._helper is not None and self._has_accounting

    def is_missing(self, uuid: str) -> bool:
        """Return whether the driver works and does not list this GPU."""
        is_known = uuid in self._opened or self.index_of.get(uuid) in self._hung
        return self._helper is not None and not is_known

    async def open(self) -> Launched:
        """Launch a helper; a GPU that hangs or crashes it is left out of the next try."""
        skip = self._waiting()
        while True:
            try:
                return await launch(self._env, frozenset(skip), self._wanted, self._patience)
            except HelperLost as error:
                inside = error.helper.inside
                self._blame(error.helper, inside)
                # With a working helper in use there is no need to find out more.
                if inside is None or self._helper is not None:
                    raise
                skip.add(inside)

    async def joined(self, fresh: Launched) -> tuple[Launched, list[Joined]]:
        """Read once which GPUs are near each other; replace a helper that hangs in that.

        No GPU is blamed for that: a driver may read GPUs well and fail on their links.
        """
        found: list[Joined] = []
        try:
            request = {"do": "links"}
            async for fact in fresh.helper.ask(request, self._patience.read_s, self._until()):
                if isinstance(fact, Joined):
                    found.append(fact)
        except (HelperLate, HelperLost, CannotOpen):
            fresh.helper.kill()
            self._see_leave(fresh.helper)
            fresh = await self.open()
        return fresh, found

    def use(self, fresh: Launched, wanted: Sequence[str]) -> None:
        """Read these GPUs from now on, beginning with this helper."""
        self._wanted = tuple(wanted)
        self._adopt(fresh)

    async def read(self) -> dict[str, Figures]:
        """Read all readable GPUs; after a hang continue with the rest in a new helper."""
        self._take_scout()
        self._send_scout_if_due()
        until = self._until()
        figures: dict[str, Figures] = {}
        while await self._is_ready(until):
            try:
                await self._read_missing(until, figures)
            except HelperLate:
                break
            except (HelperLost, CannotOpen) as error:
                self._drop(error)
            else:
                self._driver.clear()
                break
        self._ok = sum(1 for said in figures.values() if said.code == 0)
        return figures

    async def peaks(self, pids: Sequence[int]) -> list[Peak]:
        """Return the exact peaks that the driver's accounting keeps of these processes."""
        peaks: list[Peak] = []
        if self._helper is None:
            return peaks
        request = {"do": "peaks", "pids": [*pids]}
        try:
            async for fact in self._helper.ask(request, self._patience.read_s, self._until()):
                if isinstance(fact, Peak):
                    peaks.append(fact)
        except HelperLate:
            pass  # the answers in time count
        except (HelperLost, CannotOpen) as error:
            self._drop(error)
        return peaks

    async def close(self) -> None:
        """End all helpers; one that is stuck in the driver is abandoned."""
        self._is_closed = True
        if self._scout is not None:
            self._scout.cancel()
            await asyncio.wait({self._scout})
            self._take_scout()
        if self._helper is not None:
            self._retire(self._helper)
            self._helper = None
        await asyncio.gather(*(helper.see_off() for helper in self._leaving))

    def _until(self) -> float:
        """Return the deadline of a caller: time for one hang and its replacement."""
        return asyncio.get_running_loop().time() + 2 * self._patience.read_s

    async def _read_missing(self, until: float, figures: dict[str, Figures]) -> None:
        waiting = self._waiting()
        uuids = [
            uuid
            for uuid in self._wanted or ()
            if uuid in self._opened and uuid not in figures and self.index_of[uuid] not in waiting
        ]
        if self._helper is None or not uuids:
            return
        request = {"do": "sample", "uuids": uuids}
        async for fact in self._helper.ask(request, self._patience.read_s, until):
            if isinstance(fact, Figures):
                figures[fact.uuid] = fact

    async def _is_ready(self, until: float) -> bool:
        """Wait for a helper that is being started; return whether there is one."""
        if self._helper is None and self._scout is not None:
            left_s = until - asyncio.get_running_loop().time()
            await asyncio.wait({self._scout}, timeout=max(0.0, left_s))
            self._take_scout()
        return self._helper is not None

    def _waiting(self) -> set[int]:
        return {index for index, backoff in self._hung.items() if not backoff.is_due()}

    def _send_scout_if_due(self) -> None:
        if self._helper is None:
            is_due = self._driver.is_due()
        else:
            places = [self.index_of[uuid] for uuid in self._wanted or ()]
            failing = sum(1 for index in places if index not in self._hung) - self._ok
            is_due = any(self._hung[index].is_due() for index in places if index in self._hung) or (
                failing > 0 and self._recheck.is_due()
            )
        if is_due:
            self._send_scout()

    def _send_scout(self) -> None:
        if self._scout is None and not self._is_closed:
            self._scout = asyncio.create_task(self._look_out())

    async def _look_out(self) -> Launched | None:
        try:
            return await self.open()
        except (CannotOpen, HelperLost, OSError):
            return None

    def _take_scout(self) -> None:
        """Switch to the scout's helper when it is ready, unless the present one reads more."""
        if self._scout is None or not self._scout.done():
            return
        fresh = None if self._scout.cancelled() else self._scout.result()
        self._scout = None
        if fresh is not None and (self._helper is None or _answering(fresh) >= self._ok):
            self._adopt(fresh)
            return
        for backoff in (self._recheck, *self._hung.values()):
            if backoff.is_due():
                backoff.fail()
        if fresh is not None:
            self._retire(fresh.helper)
        elif self._helper is None:
            self._driver.fail(self._driver.stuck)

    def _adopt(self, fresh: Launched) -> None:
        if self._helper is not None:
            self._retire(self._helper)
        self._helper = fresh.helper
        self._opened = frozenset(found.uuid for found in fresh.found)
        self._has_accounting = any(found.has_accounting for found in fresh.found)
        self.index_of.update((found.uuid, found.index) for found in fresh.found)
        self._ok = _answering(fresh)
        for index in self._hung.keys() - fresh.skipped:
            del self._hung[index]
        if self._ok < len(self._wanted or ()):
            self._recheck.fail()
        else:
            self._recheck.clear()

    def _drop(self, error: HelperLost | CannotOpen) -> None:
        """Give up the helper in use, and start another at once unless one failed just before."""
        helper, self._helper = self._helper, None
        if helper is None:
            return
        helper.kill()
        hung_at = helper.inside if isinstance(error, HelperSilent) else None
        # The end of a helper is not blamed on a GPU yet: it may have been killed.
        is_worth_it = hung_at is not None or self._driver.is_due()
        self._blame(helper, hung_at)
        if is_worth_it:
            self._send_scout()

    def _blame(self, helper: Helper, index: int | None) -> None:
        """Remember where a helper failed: in a GPU, or else in the driver as a whole."""
        self._see_leave(helper)
        if index is None:
            self._driver.fail(helper)
        else:
            self._hung.setdefault(index, ProbeBackoff(*self._waits)).fail(helper)

    def _retire(self, helper: Helper) -> None:
        helper.retire()
        self._see_leave(helper)

    def _see_leave(self, helper: Helper) -> None:
        self._leaving = [one for one in (*self._leaving, helper) if not one.is_gone]


def _answering(fresh: Launched) -> int:
    return sum(1 for said in fresh.figures if said.code == 0)
