"""Name a job and check its stated needs, so far as that is possible without the negotiator."""

from __future__ import annotations

import functools
import os

from grn.model import MAX_GPUS, MAX_PRIORITY
from grn.protocol.lease import LeaseRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLICIES = {"spread": "spread", "spreading": "spread", "pack": "pack", "packing": "pack"}


def lease_request(
    job_type: str,
    label: str,
    *,
    gpus: int = 1,
    mem: str | int | None = None,
    exclusive: bool = False,
    priority: int = 0,
    policy: str = "spread",
) -> LeaseRequest:
    """Return the request for a lease; raise ValueError for a need that makes no sense."""
    if policy not in POLICIES:
        raise ValueError(f"policy is '{policy}' and must be 'spread' or 'pack'")
    if not _is_whole(gpus) or not 1 <= gpus <= MAX_GPUS:
        raise ValueError(f"gpus is {gpus!r} and must be a whole number from 1 up")
    if not _is_whole(priority) or abs(priority) > MAX_PRIORITY:
        raise ValueError(
            f"priority is {priority!r} and must be a whole number up to {MAX_PRIORITY}"
        )
    mem_bytes = None
    if mem is not None:
        from grn.model.units import parse_size

        mem_bytes = parse_size(mem)
    return LeaseRequest(
        _text(job_type, 1024), _text(label, 256), gpus=gpus, mem=mem_bytes,
        exclusive=bool(exclusive), priority=priority, policy=POLICIES[policy],
    )  # fmt: skip


def type_and_label(file: str, name: str) -> tuple[str, str]:
    """Return the unambiguous name of a job type, and a short one to show."""
    return _type_and_label(file, name, os.getcwd())


@functools.lru_cache(maxsize=1024)  # resolving a path is slow, and the same at every call
def _type_and_label(file: str, name: str, folder: str) -> tuple[str, str]:
    if "ipykernel" in file or file.startswith("<"):  # each run of a cell has a new file name
        return f"notebook in {folder}::{name}", f"notebook::{name}"
    full = os.path.realpath(file)
    short = os.path.relpath(os.path.abspath(file))
    shown = full if short.startswith("..") else short
    return f"{full}::{name}", f"{shown}::{name}"


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _text(text: str, max_length: int) -> str:
    """Return a text that JSON can carry; of one that is too long, the end."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= max_length else "…" + clean[1 - max_length :]
