"""Hide the GPUs from a scheduler's process while it imports the module of the task.

That module is imported twice: by the script that starts the scheduler, to name the class, and by
each worker. Frameworks that take GPU memory as they are imported or first used should do so in the
worker only (docs/decisions/0015-gpus-are-hidden-while-a-task-is-imported.md).
"""

from __future__ import annotations

import os
import sys

from grn.proc import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType, TracebackType

# The second lets torch count GPUs without remembering the answer for the rest of the process.
_HIDING = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_OPENED_BY_CUDA = "/dev/nvidia-uvm"
_NOTE = (
    "note: the GPUs are hidden from the scheduler's process while it imports the task's module. "
    "Use them in main(), or set GRN_TASKS_HIDE_GPUS=0."
)
# The hidden variables' values; empty while nothing is hidden. Global, as the environment is.
_before: dict[str, str | None] = {}
_hook_before = sys.__excepthook__


def hide() -> None:
    """Hide the GPUs if a module with a task is being imported for a scheduler."""
    global _hook_before
    if _before or os.environ.get("GRN_TASKS_HIDE_GPUS") == "0":
        return
    if not is_in_a_module(sys._getframe(1)) or not _is_a_scheduler():
        return
    for name, value in _HIDING.items():
        _before[name] = os.environ.get(name)
        os.environ[name] = value
    _hook_before, sys.excepthook = sys.excepthook, _explain


def show() -> None:
    """Show the GPUs again: the class is defined, so its module's imports are done."""
    for name, value in _before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _before.clear()
    if sys.excepthook is _explain:
        sys.excepthook = _hook_before


def has_opened_gpus(open_files: Iterable[str] | None = None) -> bool:
    """True when CUDA has been started in this process, which costs memory on every GPU it uses."""
    if open_files is None:
        open_files = (name for _, name in processes.open_files("self"))
    return _OPENED_BY_CUDA in open_files


def is_in_a_module(frame: FrameType | None) -> bool:
    """True when the current import is in a module, not in the main script itself."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        is_ours = name.startswith(("grn.", "gpu_task_scheduler", "importlib"))
        if not is_ours and frame.f_code.co_name == "<module>":
            return name != "__main__"
        frame = frame.f_back
    return False


def _is_a_scheduler() -> bool:
    """True when the main script names the scheduler: other scripts may need the GPUs."""
    main = sys.modules.get("__main__")
    if getattr(main, "is_loading_a_task", False):
        return False  # a worker
    try:
        with open(getattr(main, "__file__", None) or "", "rb") as file:
            return b"GPUTaskScheduler" in file.read()
    except (OSError, ValueError):
        return False  # no script: a notebook or a terminal


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Explain that GPUs are hidden, in case the import failed without them."""
    _hook_before(kind, error, trace)
    print(_NOTE, file=sys.stderr)
