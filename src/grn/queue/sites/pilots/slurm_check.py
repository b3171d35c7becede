"""A look at a Slurm site before it is used: partition, GPUs, and whether sbatch takes a pilot."""

from __future__ import annotations

import shutil

from grn.errors import UsageError
from grn.model.text import counted, harmless
from grn.model.units import show_time
from grn.queue.sites.pilots import slurm_jobs as jobs
from grn.queue.sites.pilots.slurm_commands import options, run, script
from grn.sites import SiteConfig

_NEEDED = ("sbatch", "squeue", "scancel", "srun", "scontrol")


def check(site: SiteConfig) -> str:
    """Return what is found of a site, in one line; raise UsageError with what is wrong."""
    for program in _NEEDED:
        if shutil.which(program) is None:
            raise UsageError(f"there is no {program} here: run this where you submit to Slurm.")
    version = run("sinfo", "--version")
    if not version.is_good:
        raise UsageError(f"Slurm does not answer: {version.trouble}.")
    listed = run("sinfo", "--noheader", "--format=%R|%D|%l|%a|%G", *(
        [f"--partition={site.partition}"] if site.partition else []
    ))  # fmt: skip
    if not listed.is_good:
        raise UsageError(f"Slurm does not answer: {listed.trouble}.")
    rows = [line.split("|", 4) for line in listed.out.splitlines() if line.count("|") >= 4]
    if not rows:
        raise UsageError(f"there is no partition {site.partition}{_partitions()}.")
    counts = [jobs.gpus_of(row[4]) or 0 for row in rows]
    if site.gpus > max(counts):
        most = counted(max(counts), "GPU")
        raise UsageError(f"no node of {_of(site)} has {site.gpus} GPUs: the largest has {most}.")
    tried = run("sbatch", "--test-only", *options(site, "0" * 16), data=script(site, "0" * 16))
    if not tried.is_good:
        raise UsageError(f"sbatch refuses a pilot: {tried.trouble}.")
    nodes = sum(int(row[1]) for row, count in zip(rows, counts, strict=True) if count >= site.gpus)
    return (
        f"Slurm {version.out.split()[-1]}, {_of(site)}: {counted(nodes, 'node')} for pilots of"
        f" {counted(site.gpus, 'GPU')} and {show_time(site.time_s)}, at most {site.pilots} at a"
        f" time{_modest(site)}"
    )


def _of(site: SiteConfig) -> str:
    return f"partition {site.partition}" if site.partition else "all partitions"


def _partitions() -> str:
    names = sorted(set(run("sinfo", "--noheader", "--format=%R").out.split()))
    return f", only {', '.join(map(harmless, names))}" if names else ""


def _modest(site: SiteConfig) -> str:
    """Say what a pilot gets where nothing is asked for: usually too little."""
    words = " ".join(site.options)
    is_said = any(name in words for name in ("--cpus", "-c", "--exclusive", "--ntasks"))
    return "" if is_said else "; each has one CPU unless --option says more"
