"""Why earlier tries of a task were not enough, in words."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.sweep.task import CommandEnd


def past(ended: CommandEnd, attempt: int, before: str = "") -> str:
    """Say why a try was not enough, after what was said of those before it."""
    reason = "out-of-memory" if ended.is_out_of_memory else "requeued"
    said = f"attempt {attempt}: {reason}" + (f", {ended.because}" if ended.because else "")
    return f"{before}; {said}" if before else said
