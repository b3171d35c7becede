"""GPU memory as the frameworks in this process report it, without importing any of them.

Reads only frameworks that are loaded and initialised; errors of a framework are ignored.
"""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PEAK_FILE = "GRN_PEAK_FILE"  # names the file in which a job of the queue reports its peak
_MODULES = ("torch", "jax", "tensorflow.python.eager.context")  # loaded when one is in use
_OOM_NAMES = {"OutOfMemoryError", "ResourceExhaustedError"}
_OOM_TEXT = (
    r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
    r"|OOM when allocating tensor|RESOURCE_EXHAUSTED: Out of memory"
    r"|INTERNAL: Failed to allocate \d+ bytes|[Oo]ut of memory allocating"
    r"|Cuda failure '?(?:2 )?'?out of memory"
)
_ASKED = (
    r"(?:[Tt]ried to allocate|trying to allocate|[Ff]ailed to allocate|allocating)"
    r" ([\d.,]+)\s?(bytes|[KMGT]i?B)"
)
_ALLOWED = re.compile(r"[\d.]+ (?:bytes|[KMG]iB) allowed;")
_KILLED, _KILLED_IN_SHELL = -9, 137
_KILLED_TEXT = re.compile(
    r"killed by signal: Killed|^Killed$|: line \d+: +\d+ Killed ", re.MULTILINE
)
_UNITS = {"bytes": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def is_out_of_memory(error: BaseException) -> bool:
    """True when an exception says that a GPU had no more memory."""
    for cause in _causes(error):
        if isinstance(cause, MemoryError):
            continue  # the host's memory, not a GPU's
        names = {kind.__name__ for kind in type(cause).__mro__}
        if names & _OOM_NAMES or is_out_of_memory_text(str(cause)):
            return True
    return False


def is_out_of_memory_text(text: str) -> bool:
    """True when a program's output says that a GPU had no more memory."""
    return re.search(_OOM_TEXT, text) is not None


def has_reached_cap(text: str) -> bool:
    """True when the output names what PyTorch was allowed: it does so only under a cap."""
    return _ALLOWED.search(text) is not None


def is_killed(status: int, text: str) -> bool:
    """True when a command that failed, or a process that it waited for, was ended by SIGKILL.

    A shell reports it by its status, PyTorch's data loader and a shell's script in words.
    """
    if status in (0, _KILLED, _KILLED_IN_SHELL):
        return status != 0
    return _KILLED_TEXT.search(text) is not None


def asked_bytes(text: str) -> int | None:
    """Return the size of the allocation that failed, where a message names it."""
    found = re.search(_ASKED, text)
    if not found:
        return None
    unit = _UNITS[found[2] if found[2] == "bytes" else found[2][0]]
    try:
        return int(float(found[1].replace(",", "")) * unit) or None
    except ValueError:
        return None


def asked_bytes_of(error: BaseException) -> int | None:
    """Return the size of the allocation that failed, of an exception or its causes."""
    sizes = [size for cause in _causes(error) if (size := asked_bytes(str(cause)))]
    return max(sizes, default=None)


def peak_bytes() -> int | None:
    """Return the peak GPU memory on one GPU that a framework of this process reports."""
    if not _is_any_loaded():
        return None
    peaks = [peak for ask in (_torch_peak, _jax_peak, _tensorflow_peak) if (peak := _safely(ask))]
    return max(peaks, default=None)


def report_peak(reported: int) -> int:
    """Report the peak of this process to the queue if it exceeds what was reported; return it.

    Each process of a job adds lines; the queue takes the largest.
    """
    path = os.environ.get(PEAK_FILE)
    peak = peak_bytes() if path else None
    if path is None or peak is None or peak <= reported:
        return reported
    try:
        with open(path, "ab", buffering=0) as file:
            file.write(b"%d\n" % peak)
    except OSError:  # the negotiator's samples remain
        return reported
    return peak


def has_touched_gpu() -> bool:
    """True when CUDA runs in this process already, so that it cannot move to other GPUs."""
    if not _is_any_loaded():
        return False
    torch = sys.modules.get("torch")
    if torch is not None and _safely(lambda: torch.cuda.is_initialized()):
        return True
    return bool(_safely(_jax_gpus)) or bool(_safely(_tensorflow_is_up))


def free_caches() -> None:
    """Free the caches of frameworks, before a job is repeated."""
    import gc

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None:
        _safely(lambda: torch.cuda.is_initialized() and torch.cuda.empty_cache())


def _is_any_loaded() -> bool:
    return not sys.modules.keys().isdisjoint(_MODULES)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = 0
    cause: BaseException | None = error
    while cause is not None and seen < 8:
        yield cause
        cause = cause.__cause__ or cause.__context__
        seen += 1


def _safely(ask: Any) -> Any:
    try:
        return ask()
    except Exception:  # an error of a framework here must not fail the job
        return None


def _torch_peak() -> int | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    count = torch.cuda.device_count()
    return max((torch.cuda.max_memory_reserved(index) for index in range(count)), default=None)


def _jax_gpus() -> list[Any]:
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    jax: Any = sys.modules.get("jax")
    if jax is None or not getattr(bridge, "_backends", None):
        return []  # listing devices now would initialise them
    return [device for device in jax.local_devices() if device.platform in ("gpu", "cuda", "rocm")]


def _jax_peak() -> int | None:
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in _jax_gpus()]
    return max(peaks, default=None)


def _tensorflow_is_up() -> bool:
    eager: Any = sys.modules.get("tensorflow.python.eager.context")
    context = eager.context() if eager is not None else None
    return bool(context is not None and context._initialized and context.num_gpus())


def _tensorflow_peak() -> int | None:
    if not _tensorflow_is_up():
        return None
    tensorflow: Any = sys.modules["tensorflow"]
    peaks = [
        tensorflow.config.experimental.get_memory_info(device.name)["peak"]
        for device in tensorflow.config.list_logical_devices("GPU")
    ]
    return max(peaks, default=None)
