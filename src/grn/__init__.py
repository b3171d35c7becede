"""grn, the GPU Resource Negotiator: share the GPUs of one machine among many jobs.

`@grn.job()` runs a function when a GPU has room for it; `grn.lease()` is the primitive under it.
Everything else loads on first use, so importing grn costs a training script next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.client.leasing.decorator import job
    from grn.client.leasing.lease import lease
    from grn.client.leasing.stop_request import should_stop
    from grn.client.submit import CallHandle, JobHandle, submit
    from grn.client.tables import gpus, jobs, profiles
    from grn.errors import DaemonNotRunning, GrnError, JobFailed, NeverFits
    from grn.group.executor import Executor
    from grn.sweep.sweep import Sweep

__version__ = "0.1.0"
__all__ = [
    "CallHandle",
    "DaemonNotRunning",
    "Executor",
    "GrnError",
    "JobFailed",
    "JobHandle",
    "NeverFits",
    "Sweep",
    "__version__",
    "gpus",
    "job",
    "jobs",
    "lease",
    "profiles",
    "should_stop",
    "submit",
]

_HOMES = {
    "job": "grn.client.leasing.decorator",
    "lease": "grn.client.leasing.lease",
    "should_stop": "grn.client.leasing.stop_request",
    "submit": "grn.client.submit",
    "jobs": "grn.client.tables",
    "gpus": "grn.client.tables",
    "profiles": "grn.client.tables",
    "JobHandle": "grn.client.submit",
    "CallHandle": "grn.client.submit",
    "Executor": "grn.group.executor",
    "Sweep": "grn.sweep.sweep",
    "JobFailed": "grn.errors",
    "GrnError": "grn.errors",
    "DaemonNotRunning": "grn.errors",
    "NeverFits": "grn.errors",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'grn' has no attribute '{name}'")
    import importlib

    found: object = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
