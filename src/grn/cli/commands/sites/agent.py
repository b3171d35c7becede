"""`grn agent`: what a queue on another machine calls here. Light: it runs at each connection."""

from __future__ import annotations

import json
import os
import sys
import time

from grn import __version__
from grn.proc.spawn import own_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

CHECK_IDLE_S = 60.0


def main(argv: Sequence[str]) -> int:
    """Join a stream to the agent, or tell what is on this machine."""
    if argv[:1] == ["--pipe"]:
        command = [*own_module("grn.queue.sites.agent.pipe"), *argv[1:]]
        os.execv(command[0], command)
    if argv[:1] == ["--check"]:
        print(f"\n{json.dumps(_facts())}")  # a login shell may have left an unfinished line
        return 0
    print("error: grn agent is called by a queue, with --pipe or --check.", file=sys.stderr)
    print("hint: See docs/sites.md.", file=sys.stderr)
    return 2


def _facts() -> dict[str, Any]:
    import shutil

    from grn.client import daemons
    from grn.client.negotiator import ask_once
    from grn.errors import GrnError
    from grn.paths import state_dir

    folder = state_dir()
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    facts: dict[str, Any] = {
        "version": __version__, "at": time.time(), "gpu_bytes": [],
        "free_bytes": shutil.disk_usage(folder).free,
    }  # fmt: skip
    try:
        daemons.ensure_negotiator(CHECK_IDLE_S)
        gpus = ask_once({"op": "status"})["status"]["gpus"]
        facts["gpu_bytes"] = [gpu["total_bytes"] for gpu in gpus]
    except GrnError as error:
        facts["trouble"] = f"{error.message} {error.hint}".strip()
    return facts
