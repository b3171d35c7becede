"""The part of its GPUs that a job's framework may take: its reservation and a CUDA context.

Pure; clients decide whether a job's framework knows such a cap (`client/leasing/torch_cap.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from grn.model.gpu import Gpu
from grn.negotiator.events import Lease

_STEPS = 10_000


def memory_cap(lease: Lease, gpus: Sequence[Gpu], context_bytes: int) -> float | None:
    """Return the largest part that a job may take of any of its GPUs, None without a cap.

    A first run is to show what it needs, and an exclusive job harms no other.
    """
    if lease.is_probe or lease.request.is_exclusive:
        return None
    parts = [
        (reserved + context_bytes) / gpu.total_bytes
        for reserved, gpu in zip(lease.reserved, gpus, strict=True)
    ]
    cap = math.ceil(max(parts, default=1.0) * _STEPS) / _STEPS
    return cap if cap < 1 else None
