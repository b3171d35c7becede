"""Pilots on Ray: their names, how many are wanted, what Ray's words mean. Pure.

A pilot is a detached actor. Its name carries the cluster that it was started in, so that a cluster
that has taken the place of another one never speaks for the pilots of that one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grn.errors import UsageError
from grn.model.text import counted
from grn.queue.sites.leases.choice import Demand

MARK_LENGTH, TOKEN_LENGTH = 4, 6
PLACED = "being placed"
_NUMBERS = ("num_cpus", "memory")
_DEATHS = (  # what Ray says, and how that is told
    ("killed by `ray.kill`", "was ended by ray.kill"),
    ("preempted", "lost its node, which was preempted"),
    ("drained", "lost its node, which was drained"),
    ("node has died", "lost its node"),
    ("low on memory", "was killed by Ray's memory monitor"),
    ("memory pressure", "was killed by Ray's memory monitor"),
    ("creation task", "could not be started"),
    ("worker process has died", "was killed"),
)
_OTHER_DEATH = "has ended"


# --- names -----------------------------------------------------------------------------------


def namespace_of(queue_id: str) -> str:
    """Return the namespace of all pilots of a queue."""
    return f"grn-{queue_id[:12]}"


def mark_of(session: str) -> str:
    """Return the mark of a cluster in the names of its pilots, by the name of its session."""
    return hashlib.sha256(session.encode()).hexdigest()[:MARK_LENGTH]


def pilot_name(site: str, mark: str, token: str) -> str:
    """Return the name of a new pilot, of its node and of its allocation."""
    return f"{site}-{mark}{token[:TOKEN_LENGTH]}"


def is_pilot(site: str, name: str) -> bool:
    """True when a name is that of a pilot of this site, in any cluster."""
    return (
        re.fullmatch(rf"{re.escape(site)}-[0-9a-f]{{{MARK_LENGTH + TOKEN_LENGTH}}}", name)
        is not None
    )


def mark_in(name: str) -> str:
    """Return the mark of the cluster that a pilot was started in."""
    return name[-(MARK_LENGTH + TOKEN_LENGTH) : -TOKEN_LENGTH]


# --- how many --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pilots:
    """The pilots of a site, at one moment."""

    waiting: Collection[str] = ()  # not placed by Ray yet
    fresh: Collection[str] = ()  # up, and perhaps not asked for leases yet
    up: Collection[str] = ()
    leaving: Collection[str] = ()

    @property
    def count(self) -> int:
        return len(self.waiting) + len(self.fresh) + len(self.up) + len(self.leaving)


def to_start(demand: Demand, pilots: Pilots, gpus: int, limit: int) -> int:
    """Return how many pilots to start now."""
    coming = len(pilots.waiting) + len(pilots.fresh)
    return max(0, min(limit - pilots.count, demand.pilots(gpus) - coming))


def in_excess(demand: Demand, pilots: Pilots, gpus: int) -> list[str]:
    """Return the waiting pilots that no job needs."""
    waiting = sorted(pilots.waiting)
    return waiting[demand.pilots(gpus) :]


def idle(demand: Demand, pilots: Pilots, known: Collection[str]) -> list[str]:
    """Return the pilots that have no attempts while no job waits."""
    return [] if demand.jobs else sorted(name for name in pilots.up if name not in known)


# --- what Ray is asked for, and says ---------------------------------------------------------


def resources(gpus: int, options: Sequence[str]) -> dict[str, Any]:
    """Return the resources of one pilot; raise UsageError for an option that is not known.

    Options are like `num_cpus=4`, `memory=8e9`, `accelerator_type=A100`, `resources.NAME=1`.
    """
    asked: dict[str, Any] = {"num_gpus": gpus, "num_cpus": 0}
    own: dict[str, float] = {}
    for option in options:
        key, _, value = option.partition("=")
        try:
            if key in _NUMBERS:
                asked[key] = float(value)
            elif key.startswith("resources.") and key != "resources.":
                own[key.removeprefix("resources.")] = float(value)
            elif key == "accelerator_type" and value:
                asked[key] = value
            else:
                raise ValueError
        except ValueError:
            raise UsageError(
                f"{option!r} is not an option of a Ray pilot.",
                "Known are num_cpus=N, memory=BYTES, accelerator_type=NAME and resources.NAME=N.",
            ) from None
    return {**asked, "resources": own} if own else asked


def why_dead(name: str, said: str) -> str:
    """Return how a pilot ended, from the text of Ray's error."""
    words = next((words for mark, words in _DEATHS if mark in said), _OTHER_DEATH)
    return f"the pilot {name} {words}"


def why_unreachable(address: str, error: BaseException) -> str:
    """Return in one line why a cluster cannot be used."""
    said = str(error)
    if "Version mismatch" in said:
        versions = re.findall(r"(Ray|Python): (\S+)", said)
        if len(versions) == 4:
            there, here = _pairs(versions)
            python = there[1] != here[1]
            remedy = (
                f"run grn with Python {there[1]}" if python else f"`pip install ray=={there[0]}`"
            )
            return (
                f"the cluster at {address} runs Ray {' and Python '.join(there)}, and here is Ray"
                f" {' and Python '.join(here)}: {remedy}"
            )
    if "This node has an IP address" in said:
        return (
            f"this machine is not a node of the cluster at {address}:"
            f" `ray start --address={address} --num-gpus=0` here makes it one"
        )
    if isinstance(error, ConnectionError):
        return no_cluster(address, "")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"the cluster at {address} cannot be used: {lines[0] if lines else type(error).__name__}"


def _pairs(versions: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the versions of Ray and of Python, there and here."""
    values = [value for _, value in versions]
    return [(values[0], values[1]), (values[2], values[3])]


def no_cluster(address: str, why: str) -> str:
    """Say that nothing answers at an address."""
    if address == "auto":
        return "no Ray cluster runs on this machine: `ray start` makes it a node of one"
    return f"no Ray cluster answers at {address}{f': {why}' if why else ''}"


def why_waiting(nodes: Sequence[Mapping[str, Any]], gpus: int) -> str:
    """Return the state of a pilot that Ray has not placed yet."""
    _, _, most = gpus_of(nodes)
    return PLACED if most >= gpus else f"waiting for a node with {counted(gpus, 'GPU')}"


def gpus_of(nodes: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """Return how many nodes live, how many GPUs they have, and the most on one of them."""
    alive = [node for node in nodes if node.get("Alive")]
    counts = [int(node.get("Resources", {}).get("GPU", 0)) for node in alive]
    return len(alive), sum(counts), max(counts, default=0)


def sweepers(nodes: Sequence[Mapping[str, Any]], node: str) -> tuple[list[str], bool]:
    """Return the living nodes on the machine of a node, and whether there is one.

    Ray's daemon can die while its machine and the processes of jobs live on. For a node that is not
    known all machines count, each of them with a living node or not.
    """
    there = {_machine(one) for one in nodes if one["NodeID"] == node}
    there = there or {_machine(one) for one in nodes}
    able = [one for one in nodes if one.get("Alive") and _machine(one) in there]
    return [one["NodeID"] for one in able], there <= {_machine(one) for one in able}


def _machine(node: Mapping[str, Any]) -> tuple[Any, Any]:
    return node.get("NodeManagerHostname"), node.get("NodeManagerAddress")
