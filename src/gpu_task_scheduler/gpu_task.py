"""`GPUTask`, under its older name."""

from grn.compat.tasks.task import GPUTask

__all__ = ["GPUTask"]
