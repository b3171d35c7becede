"""Workloads: read and written as CSV, or generated, the same for the same seed.

`grn simulate` reads what `grn history --export` writes.
"""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from grn.errors import BadSetting, GrnError, UsageError
from grn.model.job import Argument
from grn.model.units import MiB, parse_size
from grn.simulate.workload import SimulatedJob

COLUMNS = (
    *("job", "type", "user", "arrival_s", "duration_s", "memory", "gpus", "load", "args"),
    *("starts_with", "grown_at", "jumps", "ram", "cpus"),
)
_NEEDED = ("type", "duration_s", "memory")
_HINT = "See docs/packing.md for the columns."
PER_MINUTE = 0.35


def read_jobs(text: str, source: str) -> list[SimulatedJob]:
    """Read a workload; a wrong line is named."""
    jobs: list[SimulatedJob] = []
    users: dict[str, int] = {}
    for line, row in _rows(text, source, _NEEDED, COLUMNS):
        try:
            jobs.append(_job(row, len(jobs), users))
        except (ValueError, GrnError) as error:
            what = error.message if isinstance(error, GrnError) else str(error)
            raise UsageError(f"{source}, line {line}: {what}", _HINT) from error
    if not jobs:
        raise UsageError(f"{source} holds no job.", _HINT)
    return jobs


def read_arrivals(text: str, source: str, jobs: Sequence[SimulatedJob]) -> list[SimulatedJob]:
    """Read the arrival times of the jobs of a list; a job may arrive more than once."""
    by_name = {job.name: job for job in jobs}
    coming: list[SimulatedJob] = []
    for line, row in _rows(text, source, ("arrival_s", "job"), ("arrival_s", "job")):
        if row["job"] not in by_name:
            raise UsageError(f"{source}, line {line}: no job is called '{row['job']}'.")
        try:
            at = _number(row["arrival_s"], 0.0, 1e9)
        except ValueError as error:
            raise UsageError(f"{source}, line {line}: {error}") from error
        coming.append(replace(by_name[row["job"]], arrival_s=at))
    if not coming:
        raise UsageError(f"{source} lets no job come.")
    return coming


def write_jobs(jobs: Iterable[SimulatedJob]) -> str:
    """Write a workload as CSV that `read_jobs` reads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for job in jobs:
        args = ";".join(f"{name}={_word(value)}" for name, value in job.arguments)
        times = (f"{job.arrival_s:.1f}", f"{job.solo_s:.1f}")
        growth = (f"{job.starts_with:g}", f"{job.grown_at:g}", int(job.is_jump))
        row = (job.name, job.job_type, job.user, *times, job.peak_bytes, job.gpus, f"{job.load:g}")
        writer.writerow((*row, args, *growth, job.ram_bytes, f"{job.cpus:g}"))
    return out.getvalue()


def _rows(
    text: str, source: str, needed: Sequence[str], known: Sequence[str]
) -> Iterable[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")))
    names = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = names
    for name in needed:
        if name not in names:
            raise UsageError(f"{source} has no column '{name}'.", _HINT)
    for name in names:
        if name not in known:
            raise UsageError(f"{source} has a column '{name}' that means nothing here.", _HINT)
    for row in reader:
        if None in row:
            raise UsageError(f"{source}, line {reader.line_num}: too many values.", _HINT)
        yield reader.line_num, {name: (value or "").strip() for name, value in row.items()}


def _job(row: Mapping[str, str], place: int, users: dict[str, int]) -> SimulatedJob:
    job_type = row["type"]
    if not job_type:
        raise ValueError("the type is missing.")
    user = row.get("user", "")
    number = int(user) if user.isdigit() else users.setdefault(user, len(users))
    return SimulatedJob(
        name=row.get("job") or f"job{place}",
        job_type=job_type,
        arrival_s=_number(row.get("arrival_s") or "0", 0.0, 1e9),
        solo_s=_number(row["duration_s"], 0.001, 1e8),
        peak_bytes=parse_size(row["memory"]),
        gpus=int(_number(row.get("gpus") or "1", 1, 1024)),
        load=_number(row.get("load") or "0.9", 0.0, 1.0),
        user=number,
        arguments=_arguments(row.get("args", "")),
        starts_with=_number(row.get("starts_with") or "1", 0.0, 1.0),
        grown_at=_number(row.get("grown_at") or "0", 0.0, 1.0),
        is_jump=(row.get("jumps") or "0") not in ("0", "no", "false"),
        ram_bytes=0 if row.get("ram", "") in ("", "0") else parse_size(row["ram"]),
        cpus=_number(row.get("cpus") or "0", 0.0, 4096),
    )


def _arguments(text: str) -> tuple[Argument, ...]:
    found: list[Argument] = []
    for piece in filter(None, text.split(";")):
        name, equals, value = piece.partition("=")
        if not name or not equals:
            raise BadSetting(f"'{piece}' is not an argument: write batch=64;opt=adam.")
        try:
            found.append((name, float(value)))
        except ValueError:
            found.append((name, value))
    return tuple(found)


def _number(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a number.") from None
    if not least <= value <= most:
        raise ValueError(f"{text} is not from {least:g} to {most:g}.")
    return value


def _word(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


# --- a generated workload ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Family:
    """Job types alike: memory = fixed + per item of a batch, loads and minutes by batch size."""

    script: str
    fixed_mib: int
    item_mib: float
    batches: tuple[int, ...]
    loads: tuple[float, ...]
    minutes: tuple[float, ...]
    gpus: int = 1
    starts_with: float = 1.0
    grown_at: float = 0.0
    is_jump: bool = False


_FAMILIES = (
    _Family("tiny_images.py", 560, 0.8, (32, 64, 128), (0.3, 0.35, 0.45), (18, 10, 6)),
    _Family("small_images.py", 760, 2.2, (32, 64, 128), (0.3, 0.35, 0.45), (40, 22, 12)),
    _Family("mobile_net.py", 700, 83.0, (32, 64, 128), (0.55, 0.75, 0.85), (30, 26, 25)),
    _Family("residual.py", 900, 96.0, (32, 64, 128), (0.75, 0.9, 0.95), (35, 33, 31)),
    _Family("deep_images.py", 1700, 157.0, (32, 64, 128), (0.75, 0.9, 0.95), (51, 47, 45)),
    _Family("detect.py", 6000, 110.0, (128,), (0.9,), (95,), 1, 0.7, 0.1),
    _Family("segment.py", 2500, 230.0, (16, 32), (0.8, 0.9), (32, 30), 1, 0.6, 0.5, True),
    _Family("words_base.py", 3000, 520.0, (8, 16, 32), (0.9, 0.9, 0.9), (40, 25, 15)),
    _Family("words_large.py", 9000, 1200.0, (8,), (0.9,), (60,), 2),
    _Family("clicks.py", 1400, 0.002, (32768,), (0.2,), (25,), 1, 0.5, 0.6),
    _Family("replay_game.py", 2200, 9.0, (64, 256), (0.4, 0.5), (50, 45), 1, 0.4, 0.9),
)
_WEIGHTS = (16, 16, 12, 14, 10, 4, 6, 8, 4, 4, 6)
_USERS = (0, 0, 0, 1, 1, 2, 3)  # some submit more than others


def generate(count: int, seed: int = 0, per_minute: float = PER_MINUTE) -> list[SimulatedJob]:
    """Return a mixed batch whose jobs arrive one by one; an eighth of the types grow."""
    draw = random.Random(f"grn workload {seed}")
    jobs, at = [], 0.0
    for number in range(count):
        family = draw.choices(_FAMILIES, _WEIGHTS)[0]
        place = draw.randrange(len(family.batches))
        batch = family.batches[place]
        peak = (family.fixed_mib + family.item_mib * batch) * math.exp(draw.gauss(0, 0.01))
        jobs.append(
            SimulatedJob(
                f"job{number}",
                family.script,
                at,
                60 * family.minutes[place] * math.exp(draw.gauss(0, 0.1)),
                int(peak * MiB),
                family.gpus,
                family.loads[place],
                draw.choice(_USERS),
                (("batch", float(batch)),),
                family.starts_with,
                family.grown_at,
                family.is_jump,
            )
        )
        at += draw.expovariate(per_minute / 60)
    return jobs


def arriving(jobs: Sequence[SimulatedJob], per_minute: float, seed: int = 0) -> list[SimulatedJob]:
    """Give jobs independent arrival times, in their order."""
    draw, at, coming = random.Random(f"grn arrivals {seed}"), 0.0, []
    for job in jobs:
        coming.append(replace(job, arrival_s=at))
        at += draw.expovariate(per_minute / 60)
    return coming
