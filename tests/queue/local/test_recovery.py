"""Attempts that change while a restarted queue looks at them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from grn.proc import identity
from grn.queue.jobs.job import AttemptFate
from grn.queue.local import attempt_files
from grn.queue.local.recovery import Recovery
from grn.queue.local.workers import LaunchSettings
from grn.queue.site import Attempt, Found

ATTEMPT = Attempt(7, 1)


@pytest.mark.parametrize("step", ["is_locked", "read_claim"])
def test_an_attempt_that_begins_during_the_look_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    settings = LaunchSettings(str(tmp_path / "jobs"), "0" * 16, str(tmp_path / "lock"))
    holder = identity.holder_of(os.getpid())
    assert holder is not None
    claim = f"{holder.pid} {holder.started_ticks}"
    begun: list[int] = []
    look: Callable[..., object] = getattr(attempt_files, step)

    def begin_after(*args: object, **given: object) -> object:
        seen = look(*args, **given)
        if not begun:
            fd = attempt_files.begin(settings.folder(ATTEMPT), claim)
            assert fd is not None
            begun.append(fd)
        return seen

    async def find() -> Found:
        recovery = Recovery(settings, lambda _: None)
        try:
            return recovery.find(ATTEMPT, is_same_boot=True)
        finally:
            recovery.adopted.close()

    monkeypatch.setattr(attempt_files, step, begin_after)
    found = asyncio.run(find())
    os.close(begun[0])

    assert found.fate is AttemptFate.ALIVE
