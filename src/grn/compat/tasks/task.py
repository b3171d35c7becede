"""`GPUTask`: what people derive their task from. Light, since every worker imports it."""

from __future__ import annotations

from grn.compat.tasks import hide_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

hide_gpus.hide()  # we may be in the middle of a task module whose imports take the GPUs


class GPUTask:
    """One instance: `_config` has its parameters, `_work_dir` is the folder for its results."""

    def __init__(self, config: dict[str, Any], work_dir: str) -> None:
        self._config = config
        self._work_dir = work_dir

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        hide_gpus.show()

    def required_env(self) -> dict[str, str]:
        """Return variables that the task's process is to have besides its GPUs."""
        return {}

    def main(self) -> None:
        """Do the work."""
        raise NotImplementedError(f"{type(self).__name__} has no main(): write one")
