"""`ConfigManager`, under its older name."""

from grn.compat.tasks.config import ConfigManager

__all__ = ["ConfigManager"]
