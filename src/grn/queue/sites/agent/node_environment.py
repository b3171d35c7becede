"""This node as its jobs and its queue see it: its present life, and its own variables."""

from __future__ import annotations

import os
import re
from typing import Any

from grn import wire
from grn.proc.processes import boot_id

ALLOCATION = "GRN_ALLOCATION"  # the engine's name of the allocation that this node belongs to
# Variables that name things of one machine: a job gets those of the node that it runs on.
_OF_MACHINE = re.compile(
    r"(GRN_(?!SEPARATE_STDERR$)|SLURM_|RAY_|XDG_|SSH_|DBUS_|CUDA_VISIBLE_DEVICES$|CUDA_DEVICE_ORDER$|TMPDIR$|TMP$|TEMP$"
    r"|HOSTNAME$|DISPLAY$|WAYLAND_DISPLAY$|XAUTHORITY$|PWD$|OLDPWD$|SHLVL$|TERM"
    r"|HOME$|USER$|LOGNAME$|SHELL$|MAIL$)"
)


def epoch() -> str:
    """Return the life of this node: its boot, and the allocation that it belongs to."""
    allocation = os.environ.get(ALLOCATION, "")
    return f"{boot_id()[:13]}{'+' if allocation else ''}{allocation}"


def is_allocated() -> bool:
    """True on a node that an engine gave for a time, and takes back."""
    return ALLOCATION in os.environ


def environment_here(variables: Any) -> dict[str, str]:
    """Return the submitter's variables, with those of a machine taken from this node."""
    sent = {str(name): str(value) for name, value in dict(variables).items()}
    kept = {name: value for name, value in sent.items() if not is_of_machine(name)}
    here = {
        wire.spelled(name): wire.spelled(value)
        for name, value in os.environ.items() if is_of_machine(name)
    }  # fmt: skip
    return {**here, **kept, "PATH": _path(kept.get("PATH", ""))}


def _path(sent: str) -> str:
    """Return the submitter's PATH, and behind it what only this node has."""
    folders = [*wire.meant(sent).split(os.pathsep), *os.get_exec_path()]
    return wire.spelled(os.pathsep.join(filter(None, dict.fromkeys(folders))))


def is_of_machine(name: str) -> bool:
    """True for a variable that names something of one machine."""
    return _OF_MACHINE.match(name) is not None
