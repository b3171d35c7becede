"""How to start a service of grn: with its own code, and apart from a surrounding job.

`python -m` searches the current folder first, so a stray or planted `random.py` would run. A job's
variables would make the service a part of that job, on its GPUs only.
"""

from __future__ import annotations

import os
import sys

SERVICE = "GRN_SERVICE"  # marks daemons and shims: they do not count as memory of jobs
_JOB = (
    "GRN_JOB_TAG", "GRN_JOB_ID", "GRN_ATTEMPT", "GRN_LEASE", "GRN_GPU_COUNT", "GRN_PEAK_FILE",
)  # fmt: skip
_LEASED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # a lease sets them too
_OLD = (
    "import sys; del sys.path[0]; import runpy; "
    "runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
)


def own_module(name: str) -> list[str]:
    """Return the command that runs a module of grn with this interpreter."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", name]
    return [sys.executable, "-c", _OLD.format(name=name)]


def service_environment(name: str) -> dict[str, str]:
    """Return the environment of a service, without the variables of a job or a lease."""
    dropped = {*_JOB, *(_LEASED if "GRN_LEASE" in os.environ else ())}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {**kept, SERVICE: name}
