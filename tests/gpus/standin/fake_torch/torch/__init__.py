"""A tiny torch for tests: tensors without contents that take memory on the stand-in GPUs.

Acts as torch does towards the outside: a context per process and GPU, a cache that grows and stays,
CUDA_VISIBLE_DEVICES read once, and out-of-memory errors. It computes nothing.

GRN_FAKE_TORCH_SCALE multiplies the size of tensors, GRN_FAKE_TORCH_CONTEXT is that of a context.
"""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass

from torch import cuda
from torch._standin import OutOfMemoryError

__version__ = "0.0.standin"
__all__ = [
    "OutOfMemoryError",
    "Tensor",
    "cuda",
    "device",
    "empty",
    "float16",
    "float32",
    "float64",
    "int64",
    "ones",
    "rand",
    "randn",
    "uint8",
    "zeros",
]


@dataclass(frozen=True)
class dtype:
    """A kind of number, of which only the size matters."""

    name: str
    itemsize: int


uint8 = dtype("uint8", 1)
float16 = dtype("float16", 2)
float32 = dtype("float32", 4)
float64 = dtype("float64", 8)
int64 = dtype("int64", 8)


class device:
    """Where a tensor lives: `cpu`, `cuda` or `cuda:1`."""

    def __init__(self, name: str | int | device) -> None:
        text = f"cuda:{name}" if isinstance(name, int) else str(name)
        self.type, _, number = text.partition(":")
        if self.type not in ("cpu", "cuda"):
            raise RuntimeError(f"Expected one of cpu, cuda device type: {text}")
        self.index = int(number) if number else (0 if self.type == "cuda" else None)

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class Tensor:
    """So many numbers on a device; the memory goes back to the cache with the tensor."""

    def __init__(self, shape: tuple[int, ...], kind: dtype, where: device) -> None:
        self.shape = shape
        self.dtype = kind
        self.device = where
        if where.index is not None:
            scale = float(os.environ.get("GRN_FAKE_TORCH_SCALE", "1"))
            size_bytes = int(self.nbytes * scale)
            cuda.take(where.index, size_bytes)
            weakref.finalize(self, cuda.give_back, where.index, size_bytes).atexit = False

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def to(self, where: str | int | device) -> Tensor:
        where = device(where)
        return self if where == self.device else Tensor(self.shape, self.dtype, where)

    def cuda(self) -> Tensor:
        return self.to("cuda")

    def cpu(self) -> Tensor:
        return self.to("cpu")


def empty(*size: int, dtype: dtype = float32, device: str | int | device = "cpu") -> Tensor:
    """Make a tensor; all other makers do the same, as nothing is in it."""
    shape = size[0] if len(size) == 1 and isinstance(size[0], tuple | list) else size
    return Tensor(tuple(shape), dtype, globals()["device"](device))


zeros = ones = rand = randn = empty
