"""The interface of a GPU backend, and the choice of GPUs by CUDA_VISIBLE_DEVICES.

Takes indices in PCI bus order, as nvidia-smi shows them; does not read the environment itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from grn.errors import BadSetting
from grn.model.gpu import Gpu, GpuKind, Reading
from grn.model.job import Holder

_NUMBER = re.compile(r"-?[0-9]{1,9}")
_LONGEST_SHOWN = 200


class Placement(Struct, frozen=True):
    """A lease as the backends know it: its process and its GPUs."""

    lease: str
    holder: Holder | None
    gpus: tuple[str, ...]
    user: int | None = None  # only this user's processes count for it; None: any user's


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs, their readings, and notes for people."""

    gpus: tuple[Gpu, ...]
    readings: tuple[Reading, ...]
    notes: tuple[str, ...] = ()
    enumerated: frozenset[str] = frozenset()  # UUIDs of all the driver lists, usable or not


class GpuProbe(Protocol):
    """A source of GPUs. All methods keep a deadline; unknown is None, never 0."""

    async def start(self) -> Inventory:
        """Open the source and list all its GPUs; raise MachineError where there are none."""

    async def sample(self, placements: Sequence[Placement]) -> tuple[Reading, ...]:
        """Read every GPU once and attribute its processes to leases."""

    def begin(self, placement: Placement) -> None:
        """Note that a lease begins."""

    def peak_at_once(self, placement: Placement) -> int | None:
        """Return the peak of a lease that ends, where that needs no waiting."""

    @property
    def indices_hold(self) -> bool:
        """True while every GPU of the machine answers at the index it had at the start."""

    @property
    def has_strangers(self) -> bool:
        """True where processes without a lease use memory, so that readings change at any time."""

    @property
    def keeps_peaks(self) -> bool:
        """True where `peak_in_time` is more exact than samples."""

    async def peak_in_time(self, placement: Placement) -> int | None:
        """Return the exact peak of a lease that ends, on its fullest GPU."""

    async def close(self) -> None:
        """Close the source."""


def restrict(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, in its order; None names all."""
    if visible is None:
        return tuple(gpus)
    names = [name.strip() for name in visible.split(",")]
    if not any(names):
        raise _refused(gpus, visible, "an empty list hides all GPUs")
    if len({_NUMBER.fullmatch(name) is None for name in names}) > 1 and all(names):
        raise _refused(gpus, visible, "numbers and UUIDs must not be mixed")
    chosen: list[Gpu] = []
    for name in names:
        gpu, trouble = _find(gpus, name)
        if gpu is None:
            raise _refused(gpus, visible, trouble)
        if gpu in chosen:
            raise _refused(gpus, visible, f"{name} names a GPU that is already in the list")
        chosen.append(gpu)
    return tuple(chosen)


def _find(gpus: Sequence[Gpu], name: str) -> tuple[Gpu | None, str]:
    """Return the GPU of that name, or else what is wrong with the name."""
    if not name:
        return None, "there is an empty entry between commas"
    if _NUMBER.fullmatch(name):
        return _by_index(gpus, int(name))
    if not name.upper().startswith(("GPU-", "MIG-")):
        return None, f"{_shown(name)} is neither a number nor a UUID (GPU-… or MIG-…)"
    return _by_uuid(gpus, name)


def _by_index(gpus: Sequence[Gpu], index: int) -> tuple[Gpu | None, str]:
    at_index = [gpu for gpu in gpus if gpu.index == index]
    slices = [gpu.uuid for gpu in at_index if gpu.kind is GpuKind.MIG]
    if slices:
        return None, f"GPU {index} is split into MIG slices, name those: {', '.join(slices)}"
    if not at_index:
        return None, f"there is no GPU {index}"
    return at_index[0], ""


def _by_uuid(gpus: Sequence[Gpu], name: str) -> tuple[Gpu | None, str]:
    wanted = name.lower()
    exact = [gpu for gpu in gpus if gpu.uuid.lower() == wanted]
    found = exact or [gpu for gpu in gpus if gpu.uuid.lower().startswith(wanted)]
    if not found:
        return None, f"there is no GPU {_shown(name)}"
    if len(found) > 1:
        return None, f"{_shown(name)} is the beginning of {len(found)} UUIDs"
    return found[0], ""


def _refused(gpus: Sequence[Gpu], visible: str, trouble: str) -> BadSetting:
    here = ", ".join(_described(gpu) for gpu in gpus) or "none"
    return BadSetting(f"CUDA_VISIBLE_DEVICES={_shown(visible)}: {trouble}.", f"GPUs here: {here}.")


def _described(gpu: Gpu) -> str:
    return gpu.uuid if gpu.kind is GpuKind.MIG else f"{gpu.index} ({gpu.uuid})"


def _shown(text: str) -> str:
    kept = "".join(c if c.isprintable() else "?" for c in text)
    return kept if len(kept) <= _LONGEST_SHOWN else f"{kept[:_LONGEST_SHOWN]}…"
