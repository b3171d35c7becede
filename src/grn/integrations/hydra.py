"""Hydra's multirun as a group of jobs in the queue, one for each set of overrides.

Hydra finds the launcher through `hydra_plugins.grn_launcher`.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import (
    JobReturn,
    JobStatus,
    configure_log,
    filter_overrides,
    run_job,
    setup_globals,
)
from omegaconf import open_dict

from grn.client.leasing.job_request import command_arguments
from grn.client.remote_call import RemoteTraceback
from grn.group.call_group import CallGroup
from grn.group.executor import checked, kind_of

log = logging.getLogger(__name__)


def launch(
    app: App, overrides: Sequence[Sequence[str]], first: int, parallel: int | None, needs: Any
) -> list[JobReturn]:
    """Run all jobs of a batch, as many at once as GPUs have room for; return in their order."""
    setup_globals()
    configure_log(app.config.hydra.hydra_logging, app.config.hydra.verbose)
    Path(str(app.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
    name = str(app.config.hydra.job.name)
    group = CallGroup(name, max_workers=parallel, **checked(dict(needs)))
    log.info("Launching %d jobs on negotiated GPUs", len(overrides))
    try:
        futures = [_submit(group, app, list(one), first + at) for at, one in enumerate(overrides)]
        return [_return(one, future) for one, future in zip(overrides, futures, strict=True)]
    finally:
        group.shut(is_stopping=True)
        group.join()


class App:
    """The arguments of Hydra's launcher, as one picklable value."""

    def __init__(self, context: Any, config: Any, function: Any) -> None:
        self.context = context
        self.config = config
        self.function = function
        self.singletons = Singleton.get_state()


def _submit(group: CallGroup, app: App, overrides: list[str], number: int) -> Future[Any]:
    words = list(filter_overrides(overrides))
    log.info("\t#%d : %s", number, " ".join(words))
    facts = command_arguments(["", *(word.lstrip("+~") for word in words)])
    kind, name = kind_of(app.function), ",".join(words) or str(number)
    return group.submit(_run, (app, overrides, number), {}, kind, name, facts)


def _run(app: App, overrides: list[str], number: int) -> JobReturn:
    """In the job's process: run Hydra for this one job."""
    setup_globals()
    Singleton.set_state(app.singletons)
    config = app.context.config_loader.load_sweep_config(app.config, overrides)
    with open_dict(config):
        config.hydra.job.id = f"{config.hydra.job.name}_{number}"
        config.hydra.job.num = number
    HydraConfig.instance().set_config(config)
    ended = run_job(
        hydra_context=app.context,
        task_function=app.function,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
    if ended.status is JobStatus.FAILED:
        raise _JobRaised(ended) from ended._return_value  # asking for it would print it here
    return ended


class _JobRaised(Exception):
    """A job raised: Hydra catches that, but the lease must end as failed."""

    def __init__(self, ended: JobReturn) -> None:
        super().__init__(ended)
        self.ended = ended
        self.text = "".join(traceback.format_exception(ended._return_value))

    def __str__(self) -> str:
        return self.text


def _return(overrides: Sequence[str], future: Future[Any]) -> JobReturn:
    """Return how a job ended; one whose process was lost has failed, and the others continue."""
    try:
        return future.result()
    except _JobRaised as raised:
        raised.ended._return_value.__cause__ = RemoteTraceback(raised.text)
        return raised.ended
    except Exception as error:  # whatever it is, the other jobs have their answers
        ended = JobReturn(overrides=overrides, working_dir=os.getcwd())
        ended.status = JobStatus.FAILED
        ended.return_value = error
        return ended
