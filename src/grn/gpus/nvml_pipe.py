"""The parent's end of the NVML helper: its process, its lines, and its deadlines.

Returns the helper's answers, or reports it as silent or gone; does not judge the GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from grn.gpus.nvml_facts import (
    AnswerEnd,
    CannotOpen,
    Entered,
    Fact,
    Failed,
    Figures,
    FoundGpu,
    LeftOut,
    Line,
    decode,
)
from grn.proc.spawn import own_module

_COMMAND = own_module("grn.gpus.nvml_helper")
_GOODBYE_S = 3.0
_LONGEST_LINE_BYTES = 1 << 22  # 4000 processes on one GPU are about 100 kB
_CHUNK_BYTES = 1 << 16


class HelperLate(Exception):
    """The caller's deadline passed while the helper still works."""


class HelperLost(Exception):
    """The helper is unusable; `helper.inside` is the GPU it was at."""

    def __init__(self, helper: Helper, text: str) -> None:
        super().__init__(text)
        self.helper = helper


class HelperSilent(HelperLost):
    """The helper wrote nothing for too long."""


class HelperGone(HelperLost):
    """The helper ended, or its output is invalid."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A helper with its GPUs open and read once."""

    helper: Helper
    found: tuple[FoundGpu, ...]
    left_out: tuple[LeftOut, ...]
    skipped: frozenset[int]  # indices that were not touched
    figures: tuple[Figures, ...]


class Helper:
    """One helper process; it serves one request at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._last_request = 0
        self._is_killed = False
        self._lines: deque[bytes] = deque()  # received and not read yet
        self._half_line = b""
        self.inside: int | None = None  # index of the GPU it is at

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Return whether the process has ended; one stuck in the driver has not, even killed."""
        return self._process.returncode is not None

    async def ask(
        self, request: Mapping[str, object], silence_s: float, until: float | None = None
    ) -> AsyncIterator[Fact]:
        """Yield the helper's answers; `until` is a time of the event loop's clock."""
        self._last_request += 1
        stdin = cast(asyncio.StreamWriter, self._process.stdin)
        stdin.write(json.dumps({"id": self._last_request, **request}).encode() + b"\n")
        while True:
            line = await self._next_line(silence_s, until)
            said = line.said
            self.inside = said.index if isinstance(said, Entered) else self.inside
            if isinstance(said, (AnswerEnd, Failed)):
                self.inside = None
            if line.id != self._last_request:
                continue  # the rest of an abandoned answer
            if isinstance(said, Failed):
                raise CannotOpen(said.why, said.text, said.code)
            if isinstance(said, AnswerEnd):
                return
            if not isinstance(said, Entered):
                yield said

    async def _next_line(self, silence_s: float, until: float | None) -> Line:
        while not self._lines:
            await self._receive(silence_s, until)
        try:
            return decode(self._lines.popleft())
        except msgspec.DecodeError as error:
            raise HelperGone(self, f"it talks nonsense: {error}") from error

    async def _receive(self, silence_s: float, until: float | None) -> None:
        """Wait for the next bytes: a deadline for each line would cost more than the lines."""
        left_s = silence_s if until is None else until - asyncio.get_running_loop().time()
        stdout = cast(asyncio.StreamReader, self._process.stdout)
        try:
            data = await asyncio.wait_for(
                stdout.read(_CHUNK_BYTES), max(0.0, min(silence_s, left_s))
            )
        except asyncio.TimeoutError:
            late = HelperLate() if left_s < silence_s else HelperSilent(self, "no answer in time")
            raise late from None
        except OSError as error:
            raise HelperGone(self, str(error)) from error
        if not data:
            raise HelperGone(self, "it ended")
        *lines, self._half_line = (self._half_line + data).split(b"\n")
        self._lines.extend(lines)
        if len(self._half_line) > _LONGEST_LINE_BYTES:
            raise HelperGone(self, "it says a line without end")

    def retire(self) -> None:
        """Close the input of a healthy helper, which ends it."""
        cast(asyncio.StreamWriter, self._process.stdin).close()

    def kill(self) -> None:
        """Kill the helper without waiting: inside a hung driver it does not end."""
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self.retire()

    async def see_off(self) -> None:
        """Wait a little for the process to end, killing it if it does not by itself."""
        if not self._is_killed and not await self._ended_in_time():
            self.kill()
        await self._ended_in_time()

    async def _ended_in_time(self) -> bool:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), _GOODBYE_S)
        return self.is_gone


async def spawn(env: Mapping[str, str]) -> Helper:
    """Start a helper process with these additional variables."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,  # a stuck helper must not hold the terminal or log of its parent
        cwd="/",
        env={**os.environ, **_import_path(), **env},
    )
    return Helper(process)


def _import_path() -> dict[str, str]:
    """Let the helper import grn from the same place, and nothing from the user's folder."""
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    root = Path(__file__).resolve().parents[2]
    if root.name not in ("site-packages", "dist-packages"):
        paths.append(str(root))
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": ":".join(paths)}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a helper may be silent while it opens GPUs, and while it reads them."""

    open_s: float
    read_s: float


async def launch(
    env: Mapping[str, str],
    skip: frozenset[int],
    wanted: Collection[str] | None,
    patience: Patience,
) -> Launched:
    """Start a helper, open all GPUs but those to skip, and read the wanted ones once."""
    helper = await spawn(env)
    try:
        facts = [f async for f in helper.ask({"do": "open", "skip": [*skip]}, patience.open_s)]
        found = tuple(fact for fact in facts if isinstance(fact, FoundGpu))
        uuids = [gpu.uuid for gpu in found if wanted is None or gpu.uuid in wanted]
        figures = await read(helper, uuids, patience.read_s)
    except HelperLost:
        helper.kill()  # it may hang in the driver: do not wait
        raise
    except BaseException:  # also when cancelled: leave no process behind
        helper.kill()
        await helper.see_off()
        raise
    left_out = tuple(fact for fact in facts if isinstance(fact, LeftOut))
    return Launched(helper, found, left_out, skip, tuple(figures))


async def read(helper: Helper, uuids: Sequence[str], silence_s: float) -> list[Figures]:
    """Read these GPUs once."""
    answer = helper.ask({"do": "sample", "uuids": [*uuids]}, silence_s)
    return [fact async for fact in answer if isinstance(fact, Figures)]
