"""Columns that consecutive jobs share: spelled once for their checksums, and read once.

Thousands of jobs are submitted together. A row that differs in more is left to `rows.kept`.
"""

from __future__ import annotations

from typing import Any

from grn.daemon.database import SEPARATOR, joined, text_checksum
from grn.queue.jobs.job import OF_ONE, JobSpec, JobState, Kept
from grn.queue.journal import rows

Texts = tuple[str, str, str, str]
_PLACE, _LIMITS, _NEEDS = slice(3, 5), slice(6, 9), slice(12, 19)
_GROUP, _CHECKSUM, _STATE, _OWN_STATE = slice(20, 28), 28, slice(29, 35), slice(35, 38)


def shared_texts(
    place: tuple[Any, ...], limits: tuple[Any, ...], needs: tuple[Any, ...], group: tuple[Any, ...]
) -> Texts:
    """Spell the submitted columns that jobs share, as parts of the text of a checksum."""
    return joined(place), joined(limits), joined(needs), joined(("", *rows.told(group)))


def submitted_text(row: tuple[Any, ...], texts: Texts) -> str:
    """Return the text of the checksum of a job's submitted columns."""
    place, limits, needs, group = texts
    return (
        f"{row[0]}{SEPARATOR}{row[1]}{SEPARATOR}{row[2]}{SEPARATOR}{place}{SEPARATOR}{row[5]}"
        f"{SEPARATOR}{limits}{SEPARATOR}{row[9]}{SEPARATOR}{row[10]}{SEPARATOR}"
        f"{row[11]}{SEPARATOR}{needs}{SEPARATOR}{row[19]}{group}"
    )


class KeptReader:
    """Reads rows of queued jobs, each most likely like the one before.

    The values in use are those of the first row: a row whose columns merely compare equal to them,
    as 1.0 does to 1, passes by the checksum of what is used.
    """

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names  # equal texts are shared between jobs
        self._shared: tuple[Any, ...] = ()
        self._texts: Texts = ("", "", "", "")
        self._state_text = ""
        self._spec: tuple[Any, ...] = ()  # the fields of a JobSpec that are shared
        self._counts: tuple[Any, ...] = ()  # of attempts, as a `Kept` has them

    def read(self, row: tuple[Any, ...]) -> Kept | None:
        """Return a queued job; None for any other, and for a damaged one."""
        shared = row[_PLACE], row[_LIMITS], row[_NEEDS], row[_GROUP], row[_STATE]
        if shared != self._shared and not self._learn(row, shared):
            return None
        place, spared, state_sum = row[_OWN_STATE]
        state = f"{self._state_text}{SEPARATOR}{place}{SEPARATOR}{spared}"
        if state_sum != text_checksum(state):
            return None
        if row[_CHECKSUM] != text_checksum(submitted_text(row, self._texts)):
            return None
        share = self._names.setdefault
        job_type, label = row[9], row[10]
        spec = JobSpec._make((row[0], share(job_type, job_type), share(label, label), *self._spec))
        attempt, tries_left, memory_attempt, is_held = self._counts
        return Kept(
            spec, JobState.QUEUED, attempt, tries_left, memory_attempt, is_held, place,
            spared=spared,
        )  # fmt: skip

    def _learn(self, row: tuple[Any, ...], shared: tuple[Any, ...]) -> bool:
        """Take what the next rows probably share; False unless the row is a sound queued job."""
        self._shared = ()
        if row[_STATE][0] != JobState.QUEUED.value:
            return False
        one = rows.kept(row, self._names, lambda _job: None)
        if one.fault:
            return False
        *columns, state = shared
        self._shared, self._texts = shared, shared_texts(*columns)
        self._state_text = joined(state)
        self._spec = one.spec[OF_ONE:]
        self._counts = one.attempt, one.tries_left, one.memory_attempt, one.is_held
        return True
