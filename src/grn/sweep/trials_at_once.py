"""How many trials of a search run at once: one on each GPU of the places that they may run at."""

from __future__ import annotations

import time

from grn.client import queue
from grn.client.negotiator import ask_once
from grn.errors import DaemonError

LOCAL = "local"
LOOK_S = 10.0  # a look connects the queue to nodes that are away


class TrialsAtOnce:
    """The given number, or one on each GPU at a site, a node, at home, or anywhere.

    It is counted again from time to time: a node may be reached later.
    """

    def __init__(self, asked: int | None, at: str) -> None:
        self._asked = asked
        self._at = at
        self._known = 0
        self._look_at = 0.0

    def __call__(self) -> int:
        """Return how many trials run at once."""
        if self._asked is not None:
            return self._asked
        if not self._known or time.monotonic() >= self._look_at:
            here = _gpus_here() if self._at in ("", LOCAL) else 0
            there = _gpus_of_sites(self._at) if self._at != LOCAL else 0
            self._known = here + there
            self._look_at = time.monotonic() + LOOK_S
        return max(1, self._known)  # the first trial starts what does not answer yet


def _gpus_here() -> int:
    try:
        return len(ask_once({"op": "status"})["status"]["gpus"])
    except DaemonError:
        return 0


def _gpus_of_sites(at: str) -> int:
    """Count the GPUs of nodes that are hosts, and those that all pilots of a site can have."""
    from grn import settings, sites

    known = sites.read(settings.load().sites)
    pilots = sum(
        site.gpus * site.pilots for site in known if site.kind != "ssh" and at in ("", site.name)
    )
    hosts = {site.name for site in known if site.kind == "ssh"}
    nodes = queue.ask({"op": "sites"})["nodes"] if known else []
    return pilots + sum(
        len(node["gpu_bytes"])
        for node in nodes
        if (node["site"] in hosts and at in ("", node["site"], node["node"])) or at == node["node"]
    )
