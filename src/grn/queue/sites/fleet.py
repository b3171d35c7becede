"""The nodes of all sites: fixed hosts by ssh, and pilots that an engine's adapter places.

An adapter is a child process that speaks lines of JSON. The fleet tells it the demand and the nodes
that have attempts; it reports which nodes exist, how each is reached, and which are gone for sure.
It keeps no state, so it may be killed at any time. Decides nothing about jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from grn import settings, sites
from grn.model.text import harmless
from grn.model.units import show_time
from grn.proc import spawn, terminate
from grn.proc.spawn import own_module, service_environment
from grn.protocol.negotiator_rows import BookingRow
from grn.protocol.rows import as_json
from grn.queue.site import Attempt
from grn.queue.sites.leases.choice import PilotSite
from grn.queue.sites.leases.remote_lease import NodeAddress
from grn.queue.sites.node import Node
from grn.queue.sites.node_attempts import MAX_SKEW_S
from grn.queue.sites.router import Router
from grn.sites import SiteConfig

log = logging.getLogger(__name__)
TELL_S = 2.0
RESTART_S = 5.0
END_S = 4.0  # the adapter of Ray withdraws pilots meanwhile
MAX_LINE = 1 << 20
MAX_SHOWN_SKEW_S = 60.0
MEMORY_VERSION = 1
_SEEN = ("gpus", "leases", "requests", "bookings")  # by the negotiator of a node
USUAL_FRESH_S, UNKNOWN_FRESH_S, MAX_TYPES = 60.0, 1.0, 10_000


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What every node of a queue shares."""

    queue_id: str
    folder_of: Callable[[Attempt], str]
    log_bytes: int
    memory: str  # the file with the ways to nodes that have attempts
    usual_s: Callable[[str], float | None] = lambda _job_type: None  # time of a type's last runs


class UsualTimes:
    """How long jobs of a type took, read again after a while; one that is not known, soon."""

    def __init__(self, read: Callable[[str], float | None]) -> None:
        self._read = read
        self._known: dict[str, tuple[float, float | None]] = {}

    def __call__(self, job_type: str) -> float | None:
        now = time.monotonic()
        read_at, usual_s = self._known.get(job_type, (-USUAL_FRESH_S, None))
        if now - read_at >= (UNKNOWN_FRESH_S if usual_s is None else USUAL_FRESH_S):
            if len(self._known) >= MAX_TYPES:
                self._known.clear()
            usual_s = self._read(job_type)
            self._known[job_type] = (now, usual_s)
        return usual_s


class Fleet:
    """The sites of the settings file."""

    def __init__(self, chosen: FleetSettings, router: Router) -> None:
        self._chosen = chosen
        self._router = router
        router.leases.usual_s = UsualTimes(chosen.usual_s)
        self.sites: list[SiteConfig] = []
        self._adapters: dict[str, Adapter] = {}
        self._leaving: dict[str, Adapter] = {}  # of removed sites, while attempts are there
        self._memory = _remembered(chosen.memory)

    def load(self, *, is_recovered: bool = True) -> None:
        """Read the settings file again; raise BadSetting where it is wrong.

        Before the attempts of the queue before are found, no way to a node is forgotten.
        """
        self.sites = sites.read(settings.load().sites)
        for name, adapter in list(self._adapters.items()):
            if adapter.site not in self.sites:
                self._leaving[name] = self._adapters.pop(name)
        for site in self.sites:
            if site.kind != "ssh" and site.name not in self._adapters:
                if site.name in self._leaving:
                    self._leaving.pop(site.name).close()
                self._adapters[site.name] = Adapter(site, self._chosen.queue_id, self)
        self.update(is_recovered=is_recovered)
        self.end_left()

    def end_left(self) -> None:
        """End the adapters of removed sites once no attempt is there."""
        for name in [name for name in self._leaving if not self.unseen(name)]:
            self._leaving.pop(name).close()

    def update(self, *, is_recovered: bool = True) -> None:
        """Give the router the nodes that exist now, and those of removed sites with attempts."""
        now = {
            sites.node_name(host): NodeAddress(
                sites.node_name(host), site.name,
                sites.ssh_command(site, host, sites.pipe_command(site, self._chosen.queue_id)),
            )
            for site in self.sites if site.kind == "ssh" for host in site.hosts
        }  # fmt: skip
        for adapter in self._adapters.values():
            now |= adapter.nodes
        lost = self._router.lost_nodes() - now.keys()
        old = {name: self._memory[name] for name in lost if name in self._memory}
        kept = {name: node.address for name, node in self._router.nodes.items() if node.attempts}
        if is_recovered:
            self._remember({**old, **kept, **now})
        pilot_sites = [
            PilotSite(name, adapter.site.gpus, adapter.site.time_s, adapter.why_none)
            for name, adapter in self._adapters.items()
        ]
        nodes, leaving = map(self._node, now.values()), map(self._node, old.values())
        self._router.set_nodes(nodes, leaving, pilot_sites)
        for adapter in self._leaving.values():
            for name in adapter.nodes.keys() & self._router.nodes.keys():
                self._router.nodes[name].move(adapter.nodes[name])

    def _node(self, address: NodeAddress) -> Node:
        """Return the node of this name, with this address."""
        chosen, known = self._chosen, self._router.nodes.get(address.name)
        if known is None:
            return Node(address, chosen.queue_id, chosen.folder_of, chosen.log_bytes, self._router)
        known.move(address)
        return known

    def _remember(self, addresses: dict[str, NodeAddress]) -> None:
        """Write the ways to all nodes: a later queue may find attempts of a removed site."""
        if addresses == self._memory:
            return
        self._memory = addresses
        nodes = {name: {"site": one.site, "pipe": one.pipe} for name, one in addresses.items()}
        path = self._chosen.memory
        try:
            with open(f"{path}.new", "w", encoding="utf-8", opener=_private) as file:
                json.dump({"version": MEMORY_VERSION, "nodes": nodes}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.new", path)
        except OSError as error:  # it is needed only after a restart without these sites
            log.error("action=remember-nodes result=failed reason=%r", str(error))

    def note_time_left(self, left_s: dict[str, float]) -> None:
        """Note when engines take nodes back."""
        for name, seconds in left_s.items():
            if name in self._router.nodes:
                self._router.nodes[name].ends_at = time.monotonic() + seconds
        self._router.leases.withdraw_late()

    def cut(self, site: str) -> list[str]:
        """Return the nodes of a site that are not heard of now."""
        nodes = self._router.nodes.values()
        return [node.name for node in nodes if node.address.site == site and not node.is_heard]

    def gone(self, node: str, text: str) -> None:
        """End the attempts of a node that an engine vouches is gone."""
        self._router.node_gone(node, text)

    def demand(self, site: str) -> dict[str, int]:
        """Return how many jobs could use one more node of a site; none of a removed one."""
        if site in self._leaving:
            return {"jobs": 0, "gpus": 0}
        return self._router.leases.demand(site)

    def unseen(self, site: str) -> list[str]:
        """Return the nodes of a site that have attempts."""
        return self._router.nodes_with_attempts(site)

    def rows(self) -> list[dict[str, Any]]:
        """Return the nodes for people, and the trouble of sites without any."""
        rows = [
            {
                "site": node.address.site, "node": node.name, "state": node.state,
                "gpu_bytes": node.leases.gpu_bytes, "jobs": node.attempts,
                "waiting": self._router.leases.asked_at(node.name), "heard_at": node.heard_at,
                "trouble": self._trouble(node),
                "gpus": [as_json(gpu) for gpu in node.leases.gpus],
                "leases": [as_json(lease) for lease in node.leases.leases],
                "requests": [as_json(request) for request in node.leases.waiting],
                "bookings": [as_json(_by_our_clock(one, node)) for one in node.leases.bookings],
            }
            for node in self._router.nodes.values()
        ]  # fmt: skip
        for name, adapter in self._adapters.items():
            rows += [_row(name, pilot, state) for pilot, state in adapter.pending.items()]
            if adapter.trouble or not (adapter.nodes or adapter.pending):
                rows.append(_row(name, "-", "no pilot", adapter.trouble))
        return rows

    def _trouble(self, node: Node) -> str:
        texts = [node.trouble or node.leases.trouble]
        if self._router.is_removed(node.name):
            texts.append("its site was removed: nothing new starts there")
        if abs(node.clock_skew_s) > MAX_SHOWN_SKEW_S:
            texts.append(f"its clock is off by {show_time(abs(node.clock_skew_s))}")
        return "; ".join(filter(None, texts))

    def close(self) -> None:
        """End the adapters; pilots and attempts continue."""
        for adapter in (*self._adapters.values(), *self._leaving.values()):
            adapter.close()


def _by_our_clock(booking: BookingRow, node: Node) -> BookingRow:
    """Return a booking of a node in the time of this machine."""
    skew_s = node.clock_skew_s if abs(node.clock_skew_s) > MAX_SKEW_S else 0.0
    begins, ends = booking.from_at - skew_s, booking.until_at - skew_s
    return replace(booking, from_at=begins, until_at=ends)


def _row(site: str, node: str, state: str, trouble: str = "") -> dict[str, Any]:
    """Return the row of a pilot that does not run, or of a site without any."""
    nothing: dict[str, Any] = {name: [] for name in ("gpu_bytes", *_SEEN)}
    return {
        "site": site, "node": node, "state": state, "jobs": 0, "waiting": 0, "heard_at": None,
        "trouble": trouble, **nothing,
    }  # fmt: skip


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remembered(path: str) -> dict[str, NodeAddress]:
    """Return the nodes that an earlier queue knew; none where the file cannot be used."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found["version"] != MEMORY_VERSION:
            return {}
        return {
            name: NodeAddress(name, str(one["site"]), tuple(map(str, one["pipe"])))
            for name, one in found["nodes"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        log.error("action=recall-nodes result=failed reason=%r", str(error))
        return {}


class Adapter(asyncio.Protocol):
    """The child process that speaks for one engine."""

    def __init__(self, site: SiteConfig, queue_id: str, fleet: Fleet) -> None:
        self.site = site
        self.nodes: dict[str, NodeAddress] = {}  # pilots that run
        self.pending: dict[str, str] = {}  # pilots that the engine has not started, and their state
        self.trouble = ""
        self._queue_id = queue_id
        self._fleet = fleet
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._gone = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    @property
    def why_none(self) -> str:
        """Return why none of its nodes is up, for the jobs that wait."""
        if self.trouble or not self.pending:
            return self.trouble or "its first pilot is being placed"
        return ", ".join(f"{name} is {state}" for name, state in self.pending.items())

    def close(self) -> None:
        """End the process."""
        self._task.cancel()

    async def _keep_running(self) -> None:
        while True:
            await self._run_once()
            await asyncio.sleep(RESTART_S)

    async def _run_once(self) -> None:
        loop = asyncio.get_running_loop()
        self._gone.clear()
        ours, theirs = socket.socketpair()
        argv = [*own_module(f"grn.queue.sites.pilots.{self.site.kind}"), "--queue", self._queue_id]
        argv += ["--site", self.site.to_json()]
        with theirs:
            process = spawn.child(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(),
                env=service_environment("adapter"),
            )  # fmt: skip
        ours.setblocking(False)
        transport, _ = await loop.create_connection(lambda: self, sock=ours)
        try:
            while not self._gone.is_set():
                self._fleet.end_left()
                site = self.site.name
                line = {
                    "want": self._fleet.demand(site), "known": self._fleet.unseen(site),
                    "cut": self._fleet.cut(site),
                }  # fmt: skip
                transport.write(json.dumps(line).encode() + b"\n")
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._gone.wait(), TELL_S)
        finally:
            transport.abort()  # closes the socket too, once the loop does not watch it any more
            await asyncio.shield(loop.run_in_executor(None, terminate.end_child, process, END_S))
        log.warning("action=adapter-ended site=%s status=%s", self.site.name, process.returncode)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._buffer = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE:
            self._buffer = b""
        for line in lines:
            try:
                self._hear(json.loads(line))
            except (ValueError, TypeError, AttributeError, LookupError) as error:
                log.error("action=hear site=%s result=failed reason=%r", self.site.name, str(error))

    def _hear(self, said: dict[str, Any]) -> None:
        if "nodes" in said:
            self.nodes = {
                name: NodeAddress(name, self.site.name, tuple(pipe))
                for name, pipe in said["nodes"].items()
            }
            pending = dict(said.get("pending", {}))
            self.pending = {name: harmless(str(state)) for name, state in pending.items()}
            self._fleet.update()
            left_s = dict(said.get("left_s", {}))
            self._fleet.note_time_left({name: float(left) for name, left in left_s.items()})
        for name, text in said.get("gone", {}).items():
            log.info("action=node-gone node=%s reason=%r", name, text)
            self._fleet.gone(name, harmless(str(text)))
        if "trouble" in said:
            self.trouble = harmless(str(said["trouble"]))
            self._fleet.update()
