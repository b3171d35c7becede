"""Pilots as Slurm's commands describe them, and how many of them are wanted. Pure.

A pilot is a batch job with a fixed name. Answers are parsed here; a line that cannot be read is
no evidence of anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from grn.model.units import show_time
from grn.queue.sites.leases.choice import Demand

LIST_FORMAT = "%A|%T|%r|%L|%M|%k"  # of squeue
ACCOUNT_FORMAT = "JobIDRaw,JobName,State"  # of sacct
FAILED_AT_ONCE_S = 60.0
MAX_DRAIN_S, MIN_DRAIN_S = 1800.0, 60.0
UNLISTED = "UNLISTED"  # ours: it was listed before, and nothing is known of its end
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
_ENDS = {
    "COMPLETED": "ended",
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "FAILED": "failed",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "lost its node",
    "PREEMPTED": "was preempted",
    "OUT_OF_MEMORY": "ran out of memory",
    "DEADLINE": "reached its deadline",
    "REVOKED": "was revoked",
}
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_NEXT_ID = re.compile(r"^NEXT_JOB_ID\s*=\s*(\d+)", re.MULTILINE)
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PilotJob:
    """One batch job, at one moment."""

    job: int
    state: str
    reason: str = ""
    left_s: float | None = None
    ran_s: float | None = None
    comment: str = ""

    @property
    def is_running(self) -> bool:
        return self.state == "RUNNING"

    @property
    def is_over(self) -> bool:
        """True in a final state; COMPLETING is none, its processes may still run."""
        return self.state in _ENDS

    @property
    def is_waiting(self) -> bool:
        return self.state in _WAITING

    @property
    def has_failed_at_once(self) -> bool:
        """True when it ended before it could have been of use."""
        is_bad = self.state in ("FAILED", "BOOT_FAIL", "OUT_OF_MEMORY")
        return is_bad and (self.ran_s is None or self.ran_s < FAILED_AT_ONCE_S)

    @property
    def is_listed(self) -> bool:
        return self.state != UNLISTED

    def shown(self) -> str:
        """Return its state for people."""
        state = self.state.lower().replace("_", " ")
        return f"{state} ({self.reason})" if self.reason else state


def read_list(text: str) -> list[PilotJob]:
    """Read the output of squeue in `LIST_FORMAT`."""
    return [pilot for pilot in map(_pilot, text.splitlines()) if pilot is not None]


def with_unlisted(now: Iterable[PilotJob], before: Iterable[PilotJob]) -> list[PilotJob]:
    """Add the pilots that lived at the last look and are not listed any more."""
    listed = {pilot.job: pilot for pilot in now}
    missing = [
        replace(pilot, state=UNLISTED, reason="", left_s=None)
        for pilot in before
        if pilot.job not in listed and not pilot.is_over
    ]
    return [*listed.values(), *missing]


def _pilot(line: str) -> PilotJob | None:
    parts = line.strip().split("|", 5)
    if len(parts) != 6 or not parts[0].isdecimal():
        return None
    job, state, reason, left, ran, comment = parts
    return PilotJob(
        int(job), state, _known(reason), clock_s(left), clock_s(ran), _known(comment)
    )  # fmt: skip


def _known(text: str) -> str:
    return "" if text in ("None", "(null)", "N/A") else text.strip("()")


def clock_s(text: str) -> float | None:
    """Read a time as squeue spells it, like 1-02:03:04 or 3:04; None for INVALID and the like."""
    found = _CLOCK.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def read_accounts(text: str, name: str) -> dict[int, tuple[str, str]]:
    """Read the output of sacct in `ACCOUNT_FORMAT`: final states of jobs of a name, and by whom."""
    ends = {}
    for line in text.splitlines():
        job, _, rest = line.strip().partition("|")
        job_name, _, state = rest.rpartition("|")
        word, _, by = state.partition(" by ")
        if job.isdecimal() and job_name == name and word in _ENDS:
            ends[int(job)] = (word, by)
    return ends


def in_words(node: str, state: str, by: str = "") -> str:
    """Say how a pilot ended."""
    return f"the pilot {node} {_ENDS[state]}{f' by user {by}' if by else ''} ({state})"


def next_id(config: str) -> int | None:
    """Return the number of the next job from the output of `scontrol show config`."""
    found = _NEXT_ID.search(config)
    return int(found[1]) if found else None


def kill_wait_s(config: str) -> float | None:
    """Return how long Slurm waits between SIGTERM and SIGKILL."""
    found = _KILL_WAIT.search(config)
    return float(found[1]) if found else None


# --- names -----------------------------------------------------------------------------------


def job_name(queue_id: str, site: str) -> str:
    """Return the name of all pilots of one queue at one site."""
    return f"grn-{queue_id[:12]}-{site}"


def node_name(site: str, job: int) -> str:
    """Return the name of a pilot's node."""
    return f"{site}-{job}"


def job_of(node: str, site: str) -> int | None:
    """Return the job of a node; None for a name that is not of this site."""
    prefix, _, number = node.rpartition("-")
    return int(number) if prefix == site and number.isdecimal() else None


def folder_of(user: int, queue_id: str, job: int | str) -> str:
    """Return the folder of a pilot on its node; short, for the sockets in it."""
    return f"/tmp/grn-{user}-{queue_id[:8]}-{job}"


# --- how many --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """The size of a pilot, and how many there may be."""

    gpus: int
    pilots: int


def to_submit(demand: Demand, limits: Limits, pilots: Iterable[PilotJob], fresh: int) -> int:
    """Return how many pilots to submit now.

    `fresh` of the running ones have not been asked for leases yet, so they count as coming.
    """
    alive = [pilot for pilot in pilots if not pilot.is_over]
    coming = sum(pilot.is_waiting for pilot in alive) + fresh
    return max(0, min(limits.pilots - len(alive), demand.pilots(limits.gpus) - coming))


def in_excess(demand: Demand, limits: Limits, pilots: Iterable[PilotJob]) -> list[int]:
    """Return the waiting pilots that no job needs, the newest first."""
    waiting = sorted((pilot.job for pilot in pilots if pilot.is_waiting), reverse=True)
    return waiting[: max(0, len(waiting) - demand.pilots(limits.gpus))]


def idle(
    demand: Demand, pilots: Iterable[PilotJob], site: str, known: Collection[str]
) -> list[int]:
    """Return the running pilots that have neither attempts nor a job that waits."""
    if demand.jobs:
        return []
    return [
        pilot.job
        for pilot in pilots
        if pilot.is_running and node_name(site, pilot.job) not in known
    ]


def drain_s(time_s: float) -> float:
    """Return how long before its limit a pilot takes nothing new."""
    return min(MAX_DRAIN_S, max(MIN_DRAIN_S, time_s / 10), time_s / 2)


def failure(site: str, pilot: PilotJob) -> str:
    """Say why a pilot was of no use."""
    why = pilot.comment or pilot.reason or "see the log of the site's --output option"
    after = "at once" if pilot.ran_s is None else f"after {show_time(pilot.ran_s)}"
    return f"{node_name(site, pilot.job)} failed {after}: {why}"


# --- submitting ------------------------------------------------------------------------------


def gpus_of(gres: str) -> int | None:
    """Return the GPUs of a node as sinfo spells them, like gpu:a100:4(S:0-1); None if unknown."""
    counts = [int(count) for count in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", gres)]
    return sum(counts) if counts else None


def said(text: str) -> str:
    """Return what a command of Slurm complains about, without its own name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [re.sub(r"^[a-z]+: (?:error: |fatal: )?", "", line) for line in lines]
    return named[-1] if named else ""


def batch_options(name: str, site_time_s: float, options: Mapping[str, str]) -> list[str]:
    """Return the options of sbatch for one pilot."""
    minutes = max(1, math.ceil(site_time_s / 60))
    fixed = {
        "job-name": name,
        "nodes": "1",
        "ntasks": "1",
        "time": str(minutes),
        "signal": f"B:USR1@{drain_s(site_time_s):.0f}",
        "output": "/dev/null",
        "chdir": "/",
        **options,
    }
    return ["--no-requeue", *(f"--{key}={value}" for key, value in fixed.items() if value)]
