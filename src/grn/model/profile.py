"""The measured runs of a job type, and the estimate for its next run."""

from __future__ import annotations

from dataclasses import dataclass

from grn.model.job import Argument, Outcome


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run: its highest memory on any one of its GPUs."""

    outcome: Outcome
    peak_bytes: int
    duration_s: float
    ended_at: float
    reserved_bytes: int = 0
    arguments: tuple[Argument, ...] = ()
    is_full: bool = False  # a failed run that was flat long enough to count like a good one
    note: str = ""  # the cause of running out of memory, as text
    load: float | None = None  # the share of a GPU's time it used, None when unknown
    crowd: float | None = None  # the mean of ln U, U being all loads on its GPU, at least 1
    beside: tuple[tuple[str, float], ...] = ()  # types it shared with, for which part of its time
    code: str = ""  # fingerprint of the code; empty when unknown
    ran_out_alone: bool = False  # memory ran out though it had its GPUs to itself
    grown: float | None = None  # the share of its time after which it had 95 % of its peak


@dataclass(frozen=True, slots=True)
class Profile:
    """All remembered runs of one job type on one GPU model, oldest first."""

    job_type: str
    model: str
    label: str
    owner: int
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated need of the next run on each GPU, and the reason."""

    need_bytes: int
    runs: int
    largest_bytes: int
    because: str
