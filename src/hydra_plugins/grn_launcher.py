"""The launcher `grn`, where Hydra looks for launchers: `hydra/launcher=grn`.

Hydra reads this file in every program that uses it; grn is loaded when the launcher is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

OPTIONS = {
    "_target_": "hydra_plugins.grn_launcher.GrnLauncher",
    "parallel": None,  # how many jobs may run or wait for a GPU at once; all of them
    # What each job asks for, as of `grn.lease`.
    "gpus": 1,
    "mem": None,
    "exclusive": False,
    "priority": 0,
    "policy": "spread",
    "at": "",  # a site or node, or local
    "retry_oom": 0,
}


class GrnLauncher(Launcher):
    """Runs the jobs of a multirun as jobs of the queue, each in a process of its own."""

    def __init__(self, parallel: int | None, **needs: Any) -> None:
        self._parallel = parallel
        self._needs = needs
        self._app: Any = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what the jobs need."""
        self._app = (hydra_context, config, task_function)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run one batch of jobs and wait for all."""
        from grn.integrations.hydra import App, launch

        app = App(*self._app)
        return launch(app, job_overrides, initial_job_idx, self._parallel, self._needs)


ConfigStore.instance().store(
    group="hydra/launcher", name="grn", node=OPTIONS, provider="grn_launcher"
)
