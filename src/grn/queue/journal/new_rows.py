"""The rows of new and edited jobs, with their checksums.

Columns that are equal in consecutive jobs are spelled once: thousands are submitted together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from grn.daemon.database import SEPARATOR, joined, text_checksum
from grn.queue.jobs.job import OF_ONE, JobState
from grn.queue.journal.rows import (
    STATE,
    NewJob,
    SharedCommand,
    options_of,
    show_tags,
    to_json,
)
from grn.queue.journal.shared_columns import Texts, shared_texts, submitted_text


def of_jobs(
    ids: Iterable[int],
    jobs: Iterable[NewJob],
    environments: Callable[[SharedCommand], int],
    now: float,
    is_held: bool,
) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of new jobs, as SQLite returns them."""
    shape: tuple[Any, ...] = ()
    common = None
    for job_id, job in zip(ids, jobs, strict=False):
        spec = job.spec
        found = (job.shared, job.log, spec[OF_ONE:])
        if common is None or found != shape:
            shape, common = found, _Common.of(job, environments(job.shared), now, is_held)
        yield common.row(job_id, job)


def of_edited(job: NewJob, environment: int, submitted_at: float) -> tuple[Any, ...]:
    """Return the values of `REPLACE`: the submitted columns of an edited job."""
    common = _Common.of(job, environment, submitted_at, is_held=False)
    row = common.row(job.spec.id, job)
    return (*row[: -len(STATE) - 1], job.spec.id)


@dataclass(frozen=True, slots=True)
class _Common:
    """Columns that jobs of one submit share, as values and as parts of the checksums' texts."""

    place: tuple[Any, ...]
    limits: tuple[Any, ...]
    needs: tuple[Any, ...]
    group: tuple[Any, ...]
    state: tuple[Any, ...]
    texts: Texts
    state_text: str

    @classmethod
    def of(cls, job: NewJob, environment: int, now: float, is_held: bool) -> _Common:
        shared, spec = job.shared, job.spec
        after = json.dumps([[one.job, one.must_be_ok] for one in spec.after]) if spec.after else ""
        limit_s = spec.time_limit_s
        place = (shared.cwd, environment)
        limits = (shared.umask, shared.notify, None if limit_s is None else float(limit_s))
        needs = (
            spec.gpus, spec.mem_bytes, int(spec.is_exclusive), after, spec.retries,
            int(spec.may_requeue), float(now),
        )  # fmt: skip
        group = (
            spec.group, spec.submitter, job.log, int(spec.is_fail_fast), spec.policy, spec.at,
            options_of(spec, shared), show_tags(spec.tags),
        )  # fmt: skip
        state = (JobState.QUEUED.value, 0, spec.retries, 0, int(is_held), spec.priority)
        texts = shared_texts(place, limits, needs, group)
        return cls(place, limits, needs, group, state, texts, joined(state))

    def row(self, job_id: int, job: NewJob) -> tuple[Any, ...]:
        """Return the row of one of the jobs."""
        spec = job.spec
        extra = to_json(job.extra) if job.extra else "{}"
        arguments = to_json(job.arguments) if job.arguments else "{}"
        submitted = (
            job_id, job.name, to_json(job.argv), *self.place, extra, *self.limits, spec.job_type,
            spec.label, arguments, *self.needs, job.code, *self.group,
        )  # fmt: skip
        return (
            *submitted, text_checksum(submitted_text(submitted, self.texts)), *self.state,
            job_id, 0, text_checksum(f"{self.state_text}{SEPARATOR}{job_id}{SEPARATOR}0"),
        )  # fmt: skip
