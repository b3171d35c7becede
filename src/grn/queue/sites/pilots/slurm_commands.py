"""The commands of Slurm: how they are run, and those that submit a pilot and reach its agent."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from grn.model.text import harmless
from grn.proc import spawn
from grn.proc.spawn import own_module
from grn.queue.sites.pilots import slurm_jobs as jobs
from grn.sites import SiteConfig

COMMAND_S = 60.0
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")
_OURS = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", "GRN_", "CUDA_")
_PILOT = "grn.queue.sites.pilots.pilot"
PIPE_WAIT_S = 30
STEP_WAIT_S = 5  # a controller that has just started keeps a step waiting for a minute
# On the node: hand the bytes of home to the pipe of the agent, which makes the fifo.
_FEED = 'until test -p "$1"; do sleep 0.05; done; exec cat >"$1"'


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command of Slurm printed, and whether it ended well."""

    is_good: bool
    out: str
    trouble: str


def run(*argv: str, data: str = "") -> Answer:
    """Run a command of Slurm; one that takes too long or is missing has failed."""
    try:
        process = spawn.child(
            argv, stdin=spawn.PIPE, stdout=spawn.PIPE, stderr=spawn.PIPE, text=True,
            errors="replace", env=environment(),
        )  # fmt: skip
    except OSError as error:
        return Answer(False, "", f"{argv[0]}: {error.strerror}")
    try:
        out, err = process.communicate(data, COMMAND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Answer(False, "", f"{argv[0]} gave no answer within {COMMAND_S:.0f} s")
    trouble = harmless(jobs.said(err)) or f"{argv[0]} ended with status {process.returncode}"
    return Answer(process.returncode == 0, out, "" if process.returncode == 0 else trouble)


def environment() -> dict[str, str]:
    """Return the variables for commands of Slurm, without those of a job that the queue is in."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(_OURS)
    }


def dropped() -> list[str]:
    """Return the variables that `environment` leaves out."""
    return [name for name in os.environ if name not in environment()]


# --- one pilot -------------------------------------------------------------------------------


def module(site: SiteConfig, name: str) -> list[str]:
    """Return the command of a module there; without --python by this interpreter.

    A cluster's file system has it on the nodes too.
    """
    return [site.python, "-P", "-m", name] if site.python else own_module(name)


def options(site: SiteConfig, queue_id: str) -> list[str]:
    """Return the options of sbatch for one pilot; those of the site count more."""
    name = jobs.job_name(queue_id, site.name)
    own = {"gres": f"gpu:{site.gpus}", "partition": site.partition}
    return [*jobs.batch_options(name, site.time_s, own), *site.options]


def script(site: SiteConfig, queue_id: str) -> str:
    """Return the batch script of a pilot."""
    words = [*module(site, _PILOT), "--queue", queue_id]
    words += ["--idle-s", f"{site.idle_s:.0f}"]
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in site.env.items()]
    python = _word(words[0])
    missing = f"{words[0]} is not on its node: name another with --python"
    without = f"{words[0]} on its node has no grn of this kind: install grn, or name another"
    return (
        "#!/bin/sh\n# A pilot of grn: see docs/sites-slurm.md.\n"
        'say() { scontrol update "JobId=$SLURM_JOB_ID" "Comment=$1"; exit 127; }\n'
        f"{''.join(exports)}command -v {python} >/dev/null || say {shlex.quote(missing)}\n"
        f"{python} -c 'import {_PILOT}' || say {shlex.quote(f'{without} with --python')}\n"
        f"exec {_line(words)}\n"
    )


def _word(text: str) -> str:
    """Quote a word for the shell there; a leading ~/ stays the home folder there."""
    return "~/" + shlex.quote(text[2:]) if text.startswith("~/") else shlex.quote(text)


def pipe(site: SiteConfig, queue_id: str, job: int) -> list[str]:
    """Return the command whose standard input and output are the stream to a pilot's agent.

    One `srun` carries what goes to the node, another what comes back. `srun` sends small pieces
    with Nagle's algorithm; where bytes go both ways over one connection, each waits for a delayed
    acknowledgement of 40 ms. One that only receives acknowledges at once nearly always;
    `proc/nodelay.py` mends the rest.
    """
    folder = jobs.folder_of(os.getuid(), queue_id, job)
    unset = [word for name in dropped() for word in ("-u", name)]
    step = [
        *(["env", *unset] if unset else []),
        "srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--gres=none",
        "--mem=0", "--quiet", "--chdir=/", f"--immediate={STEP_WAIT_S}",
    ]  # fmt: skip
    back = [
        *step, "env", f"GRN_RUNTIME_DIR={folder}/run", *module(site, "grn.queue.sites.agent.pipe"),
        "--queue", queue_id, "--wait-s", str(PIPE_WAIT_S), "--input",
    ]  # fmt: skip
    there = [*step, "sh", "-c", _FEED, "sh"]
    fifo = f"{folder}/in-$(uname -n)-$$-$(date +%s)"
    script = (
        f"fifo={fifo}; exec 3<&0 </dev/null\n"
        f'{_line(there)} "$fifo" <&3 >&2 &\n'
        f'{_line(back)} "$fifo" 3<&-\n'
        "status=$?; kill $! 2>/dev/null; exit $status"
    )
    return ["sh", "-c", script]


def _line(words: Iterable[str]) -> str:
    return " ".join(map(_word, words))
