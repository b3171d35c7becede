"""The command line as people use it: in a process of its own, with pipes or a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from tests.harness import DEADLINE_S, GRN, Ended, Story

ESCAPE = re.compile(r"\x1b")


@dataclass(frozen=True)
class Shell:
    """Runs `grn` in the environment of a story."""

    story: Story

    def __call__(self, *words: str, env: Mapping[str, str | None] | None = None) -> Ended:
        """Run one command and return what came of it; a traceback is never an answer."""
        ended = self.story.start(*GRN, *words, env=env).wait()
        assert "Traceback" not in ended.err, ended.err
        return ended

    def on_terminal(
        self, *words: str, columns: int = 80, env: Mapping[str, str | None] | None = None
    ) -> tuple[int, str]:
        """Run one command with a terminal for its output; return its status and what it shows."""
        ours, theirs = pty.openpty()
        size = {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"}
        process = subprocess.Popen(
            [*GRN, *words],
            env=self.story.environment(**size, **(env or {})),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that the other side is gone
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
        os.close(ours)
        text = shown.decode().replace("\r\n", "\n")
        assert "Traceback" not in text, text
        return process.wait(DEADLINE_S), text
