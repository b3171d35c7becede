"""`GPUTaskScheduler`, under its older name."""

from grn.compat.tasks.scheduler import GPUTaskScheduler

__all__ = ["GPUTaskScheduler"]
