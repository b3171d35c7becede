"""How a service of ours is started: with its own code, and with no part of a surrounding job.

`python -m` looks into the current folder first, and a stray `random.py`, or a planted one, would be
run instead. A job's variables would make the service a part of that job, on its GPUs only.
"""

from __future__ import annotations

import os
import sys

SERVICE = "GRN_SERVICE"  # marks daemons and shims for whoever adds up the memory of jobs
_JOB = (
    "GRN_JOB_TAG", "GRN_JOB_ID", "GRN_ATTEMPT", "GRN_LEASE", "GRN_GPU_COUNT", "GRN_PEAK_FILE",
)  # fmt: skip
_LEASED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # a lease sets them too
_OLD = (
    "import sys; del sys.path[0]; import runpy; "
    "runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
)


def own_module(name: str) -> list[str]:
    """Return the command that runs a module of ours with this interpreter."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", name]
    return [sys.executable, "-c", _OLD.format(name=name)]


def service_environment(name: str) -> dict[str, str]:
    """Return the environment of a service: ours, without what a job or a lease has set."""
    dropped = {*_JOB, *(_LEASED if "GRN_LEASE" in os.environ else ())}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {**kept, SERVICE: name}
