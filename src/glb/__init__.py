"""The older name of grn: `import glb` and `@glb.gpu_load_balance()` go on working."""

from __future__ import annotations

from typing import Any

from grn import DaemonNotRunning, GrnError, NeverFits, __version__, job, lease

__all__ = [
    "DaemonNotRunning",
    "GrnError",
    "NeverFits",
    "__version__",
    "gpu_load_balance",
    "job",
    "lease",
]


def gpu_load_balance(continue_on_server_unavailable: bool = False) -> Any:
    """Decorate a function as `grn.job` does."""
    if callable(continue_on_server_unavailable):
        return job()(continue_on_server_unavailable)
    return job(continue_on_server_unavailable=continue_on_server_unavailable)
