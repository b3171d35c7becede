"""One attempt at a run: its folder before, and what came of it after."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from grn.client import remote_call
from grn.errors import MachineError
from grn.group.task import CommandEnd
from grn.sweep import results
from grn.sweep.manifest import LOG_FILE, RunManifest, RunState
from grn.sweep.plan import Plan


def set_aside(plan: Plan, folder: str, attempt: int) -> None:
    """Move what an attempt left out of the way, so that it is not taken for the next one's."""
    log = os.path.join(folder, LOG_FILE)
    try:
        if os.path.exists(log):
            os.replace(log, os.path.join(folder, f"log.{attempt}.txt"))
        for name in filter(None, (remote_call.REPLY_FILE, plan.result_file)):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                os.unlink(path)
    except OSError as error:
        raise MachineError(f"{folder} cannot be used: {error.strerror}.") from error


def prepare(plan: Plan, folder: str, run: RunManifest) -> None:
    """Make the folder of a run, with all that the run needs to find there."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise MachineError(f"{folder} cannot be made: {error.strerror}.") from error
    if plan.function is not None:
        remote_call.leave_call(folder, plan.function, (), dict(run.params))


def judged(plan: Plan, folder: str, run: RunManifest, ended: CommandEnd) -> RunManifest:
    """Say how a run ended, with its result if it left one."""
    run = replace(
        run,
        state=RunState.FAILED,
        status=ended.status,
        started_at=ended.started_at,
        ended_at=ended.started_at + ended.duration_s,
        duration_s=round(ended.duration_s, 6),
        gpu=ended.slot.name,
        peak_bytes=ended.peak_bytes,
    )
    if ended.status != 0:
        return replace(run, trouble=_trouble(folder, ended))
    try:
        result = _result(plan, folder)
    except results.NoResult as error:
        return replace(run, trouble=str(error))
    return replace(run, state=RunState.FINISHED, result=result, trouble="")


def _trouble(folder: str, ended: CommandEnd) -> str:
    if ended.trouble:
        return ended.trouble
    if ended.is_out_of_memory:
        return f"it {ended.because}" if ended.because else "it ran out of GPU memory"
    if ended.status < 0:
        return f"it was ended by signal {-ended.status}"
    said = results.last_line(os.path.join(folder, LOG_FILE))
    return said or f"it ended with status {ended.status}"


def _result(plan: Plan, folder: str) -> dict[str, Any]:
    if plan.function is not None:
        return _answer(folder)
    if plan.result_file is not None:
        return results.from_file(os.path.join(folder, plan.result_file))
    return results.from_output(os.path.join(folder, LOG_FILE))


def _answer(folder: str) -> dict[str, Any]:
    """Return the row of what a function has returned, and clear its files away."""
    try:
        value = remote_call.take_reply(folder)
    except Exception as error:  # unpickling may fail in any way
        raise results.NoResult(f"its answer cannot be read: {error!r}") from None
    return results.from_value(value)
