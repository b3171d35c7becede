"""The environment variables of a lease, set at its start and restored at its end.

The environment belongs to the whole process, so leases held at once by several threads share one
setting; they are on the same GPUs, since a process cannot leave its GPUs.
"""

from __future__ import annotations

import os
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ALWAYS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
UNLESS_SET = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
# For commands whose output goes to a log that somebody may follow.
LOGGED_UNLESS_SET = {"PYTHONUNBUFFERED": "1"}


def cores_told(cpus: float | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that tell a job its stated cores; those of the user stay."""
    if cpus is None:
        return {}
    threads = {"OMP_NUM_THREADS": str(max(1, int(cpus)))}
    return {"GRN_CPUS": f"{cpus:g}", **{k: v for k, v in threads.items() if k not in environment}}


def for_command(lease_id: str, visible: str, environment: dict[str, str]) -> dict[str, str]:
    """Return the environment for a command that runs under a lease."""
    chosen = {**UNLESS_SET, **environment, **ALWAYS}
    chosen["CUDA_VISIBLE_DEVICES"] = visible
    chosen["GRN_LEASE"] = lease_id
    chosen["GRN_GPU_COUNT"] = str(_count(visible))
    return chosen


def _count(visible: str) -> int:
    return visible.count(",") + 1 if visible else 0


class GpuEnvironment:
    """The variables of this process while it holds leases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[str, str | None] = {}
        self._holds = 0
        os.register_at_fork(after_in_child=self._after_fork)

    def enter(self, lease_id: str, visible: str, cpus: float | None = None) -> None:
        """Set the variables, unless another lease of this process has done so."""
        with self._lock:
            self._holds += 1
            if self._holds > 1:
                return
            for name, value in UNLESS_SET.items():
                if os.environ.get(name) is None:
                    self._before[name] = None
                    os.environ[name] = value
            for name, value in ALWAYS.items():
                self._set(name, value)
            self._set("CUDA_VISIBLE_DEVICES", visible)
            self._set("GRN_LEASE", lease_id)
            self._set("GRN_GPU_COUNT", str(_count(visible)))
            for name, value in cores_told(cpus, os.environ).items():
                self._set(name, value)

    def inherited_lease(self) -> str | None:
        """Return the lease that this process was started under, if any; not its own leases."""
        with self._lock:
            of_outside = self._before if self._holds else os.environ
            return of_outside.get("GRN_LEASE") or None

    def leave(self) -> None:
        """Restore the variables when the last lease of this process ends."""
        with self._lock:
            self._holds -= 1
            if self._holds:
                return
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            self._before.clear()

    def _set(self, name: str, value: str) -> None:
        before = os.environ.get(name)
        if before != value:
            self._before[name] = before
            os.environ[name] = value

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._before.clear()
        self._holds = 0


GPU_ENVIRONMENT = GpuEnvironment()
