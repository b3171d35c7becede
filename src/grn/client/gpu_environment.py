"""The environment variables of a lease, set at its start and restored at its end.

The environment belongs to the whole process, so leases held at once by several threads share one
setting; they are on the same GPUs, since a process cannot leave its GPUs.
"""

from __future__ import annotations

import os
import threading

ALWAYS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
UNLESS_SET = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
_ALWAYS = tuple((name.encode(), value.encode()) for name, value in ALWAYS.items())
_UNLESS_SET = tuple((name.encode(), value.encode()) for name, value in UNLESS_SET.items())
_LEASE = b"GRN_LEASE"


def for_command(lease_id: str, visible: str, environment: dict[str, str]) -> dict[str, str]:
    """Return the environment for a command that runs under a lease."""
    chosen = {**UNLESS_SET, **environment, **ALWAYS}
    chosen["CUDA_VISIBLE_DEVICES"] = visible
    chosen["GRN_LEASE"] = lease_id
    chosen["GRN_GPU_COUNT"] = str(visible.count(",") + 1)
    return chosen


class Surroundings:
    """The variables of this process while it holds leases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[bytes, bytes | None] = {}
        self._holds = 0
        os.register_at_fork(after_in_child=self._after_fork)

    def enter(self, lease_id: str, visible: str) -> None:
        """Set the variables, unless another lease of this process has done so."""
        with self._lock:
            self._holds += 1
            if self._holds > 1:
                return
            for name, value in _UNLESS_SET:
                if _get(name) is None:
                    self._set(name, value)
            for name, value in _ALWAYS:
                self._set(name, value)
            self._set(b"CUDA_VISIBLE_DEVICES", os.fsencode(visible))
            self._set(_LEASE, os.fsencode(lease_id))
            self._set(b"GRN_GPU_COUNT", b"%d" % (visible.count(",") + 1))

    def inherited_lease(self) -> str | None:
        """Return the lease that this process was started under, if any; not its own leases."""
        with self._lock:
            inherited = self._before.get(_LEASE) if self._holds else _get(_LEASE)
        return os.fsdecode(inherited) if inherited else None

    def leave(self) -> None:
        """Restore the variables when the last lease of this process ends."""
        with self._lock:
            self._holds -= 1
            if self._holds:
                return
            for name, value in self._before.items():
                _put(name, value)
            self._before.clear()

    def _set(self, name: bytes, value: bytes) -> None:
        before = _get(name)
        if before != value:
            self._before[name] = before
            _put(name, value)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._before.clear()
        self._holds = 0


# `os.environ` encodes, decodes and raises for each variable, which takes longer than the rest of
# an acquire. The table behind it is the same for all who look; without one, that way is left.


def _get(name: bytes) -> bytes | None:
    table: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)
    if table is not None:
        return table.get(name)
    value = os.environ.get(os.fsdecode(name))
    return None if value is None else os.fsencode(value)


def _put(name: bytes, value: bytes | None) -> None:
    """Set a variable; None removes it."""
    table: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)
    if table is None:
        if value is None:
            os.environ.pop(os.fsdecode(name), None)
        else:
            os.environ[os.fsdecode(name)] = os.fsdecode(value)
    elif value is not None:
        os.putenv(name, value)
        table[name] = value
    elif table.pop(name, None) is not None:
        os.unsetenv(name)


SURROUNDINGS = Surroundings()
