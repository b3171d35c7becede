"""The part of torch.cuda that tests need: one allocator with a cache per GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torch._standin import Machine, OutOfMemoryError, read_machine

__all__ = ["OutOfMemoryError"]
_MiB = 1 << 20


@dataclass
class _Pool:
    """The memory of this process on one GPU, next to its context."""

    uuid: str
    context_bytes: int
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    peak_allocated_bytes: int = 0


_visible: tuple[str, ...] | None = None  # fixed once the driver is asked, as in CUDA
_pools: dict[int, _Pool] = {}
_owner_pid = 0


def is_available() -> bool:
    """Ask the driver, which fixes the visible GPUs from then on, unless told to ask NVML."""
    if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1":
        return device_count() > 0
    return len(_see()) > 0


def device_count() -> int:
    """Count the GPUs without touching the driver, as torch does by way of NVML."""
    return len(_visible if _visible is not None else read_machine().visible())


def is_initialized() -> bool:
    """Return whether this process has a context."""
    return bool(_pools) and _owner_pid == os.getpid()


def init() -> None:
    _pool(0)


def current_device() -> int:
    _pool(0)
    return 0


def synchronize(device: object = None) -> None:
    """Nothing runs, so there is nothing to wait for."""


def memory_allocated(device: object = None) -> int:
    return _known(device).allocated_bytes


def max_memory_allocated(device: object = None) -> int:
    return _known(device).peak_allocated_bytes


def memory_reserved(device: object = None) -> int:
    return _known(device).reserved_bytes


def max_memory_reserved(device: object = None) -> int:
    return _known(device).peak_reserved_bytes


def reset_peak_memory_stats(device: object = None) -> None:
    pool = _known(device)
    pool.peak_reserved_bytes = pool.reserved_bytes
    pool.peak_allocated_bytes = pool.allocated_bytes


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Return free and total memory of a GPU."""
    pool = _pool(_index(device))
    machine = read_machine()
    return machine.free_bytes(pool.uuid), machine.totals[pool.uuid]


def empty_cache() -> None:
    """Give back to the GPU what no tensor uses."""
    for pool in _pools.values():
        _set_reserved(read_machine(), pool, pool.allocated_bytes)


def take(index: int, size_bytes: int) -> None:
    """Allocate for a tensor: from the cache, else from the GPU."""
    pool = _pool(index)
    with read_machine().locked() as machine:
        more = max(0, pool.allocated_bytes + size_bytes - pool.reserved_bytes)
        if more > machine.free_bytes(pool.uuid):
            raise OutOfMemoryError(_complaint(machine, index, pool, size_bytes))
        _set_reserved(machine, pool, pool.reserved_bytes + more)
    pool.allocated_bytes += size_bytes
    pool.peak_allocated_bytes = max(pool.peak_allocated_bytes, pool.allocated_bytes)


def give_back(index: int, size_bytes: int) -> None:
    """Put the memory of a tensor into the cache."""
    if _owner_pid == os.getpid():
        _pools[index].allocated_bytes -= size_bytes


def _pool(index: int) -> _Pool:
    """Return the memory of this process on a GPU; the first use makes a context."""
    global _owner_pid
    if _pools and _owner_pid != os.getpid():
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
    if index in _pools:
        return _pools[index]
    if not _see():
        raise RuntimeError("No CUDA GPUs are available")
    if index >= len(_see()):
        raise RuntimeError("CUDA error: invalid device ordinal")
    _owner_pid = os.getpid()
    pool = _Pool(_see()[index], int(os.environ.get("GRN_FAKE_TORCH_CONTEXT", 300 * _MiB)))
    with read_machine().locked() as machine:
        if pool.context_bytes > machine.free_bytes(pool.uuid):
            raise RuntimeError("CUDA error: out of memory")
        _set_reserved(machine, pool, 0)
    _pools[index] = pool
    return pool


def _see() -> tuple[str, ...]:
    global _visible
    if _visible is None:
        _visible = read_machine().visible()
    return _visible


def _known(device: object) -> _Pool:
    """Return what this process has on a GPU, without making a context for the question."""
    return _pools.get(_index(device), _Pool("", 0))


def _index(device: object) -> int:
    return int(str(device).rpartition(":")[2]) if str(device)[-1:].isdecimal() else 0


def _set_reserved(machine: Machine, pool: _Pool, reserved_bytes: int) -> None:
    pool.reserved_bytes = reserved_bytes
    pool.peak_reserved_bytes = max(pool.peak_reserved_bytes, reserved_bytes)
    machine.hold(pool.uuid, pool.context_bytes + reserved_bytes)


def _complaint(machine: Machine, index: int, pool: _Pool, size_bytes: int) -> str:
    idle = pool.reserved_bytes - pool.allocated_bytes
    return (
        f"CUDA out of memory. Tried to allocate {_size(size_bytes)}. GPU {index} has a total "
        f"capacity of {_size(machine.totals[pool.uuid])} of which "
        f"{_size(machine.free_bytes(pool.uuid))} is free. Including non-PyTorch memory, this "
        f"process has {_size(pool.context_bytes + pool.reserved_bytes)} memory in use. Of the "
        f"allocated memory {_size(pool.allocated_bytes)} is allocated by PyTorch, and "
        f"{_size(idle)} is reserved by PyTorch but unallocated."
    )


def _size(size_bytes: int) -> str:
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.2f} GiB"
    return f"{size_bytes / _MiB:.2f} MiB"
