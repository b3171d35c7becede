"""How a service of ours is started: whatever lies in the current folder is none of its code.

`python -m` looks there first, and a stray `random.py`, or a planted one, would be run instead.
"""

from __future__ import annotations

import sys

_OLD = (
    "import sys; del sys.path[0]; import runpy; "
    "runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
)


def own_module(name: str) -> list[str]:
    """Return the command that runs a module of ours with this interpreter."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", name]
    return [sys.executable, "-c", _OLD.format(name=name)]
