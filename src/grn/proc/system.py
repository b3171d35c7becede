"""Facts about the whole machine from /proc."""

from __future__ import annotations


def boot_id() -> str:
    """Return the id of this boot: leases of another boot are over."""
    return _text("/proc/sys/kernel/random/boot_id").strip() or "unknown"


def mounts() -> str:
    """Return the mount table, a line per mount."""
    return _text("/proc/self/mounts")


def max_pids() -> int:
    """Return how many pids the kernel gives at most."""
    text = _text("/proc/sys/kernel/pid_max").strip()
    return int(text) if text.isdigit() else 1 << 22


def _text(path: str) -> str:
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
