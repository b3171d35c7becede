"""Keep the pilots of one Ray site: start as many as jobs need, end idle ones, relay their streams.

It keeps nothing that a new process could not find again in the cluster by the names of pilots.
`ray.py` makes the calls of Ray behind `ray_cluster.py`; `ray_rules.py` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from grn.proc.spawn import own_module
from grn.queue.sites.leases.choice import Demand
from grn.queue.sites.pilots import ray_rules
from grn.queue.sites.pilots.ray_actor import FAILED, LEFT, UP
from grn.queue.sites.pilots.ray_cluster import (
    Cluster,
    ClusterAway,
    PilotCut,
    PilotDead,
    PilotHandle,
    PilotRefused,
)
from grn.queue.sites.pilots.ray_rules import Pilots
from grn.sites import SiteConfig

LOOK_S = 1.0
RETRY_S = 1.0
CALL_S = 20.0
DEMAND_S = 1.5  # a job that this machine starts at once needs no pilot
FRESH_S = 10.0
FAILED_S = 60.0
# A node whose head is lost ends its processes after 60 s, unless a new one takes the cluster over.
REPLACED_S = 120.0
# The agent on a machine that lives ends its jobs within 10 s of Ray's daemon there.
UNSEEN_S = 15.0
CLOSE_S = 3.0
MAX_STREAMS = 256


@dataclass(slots=True)
class KeptPilot:
    """One pilot that has not ended."""

    name: str
    handle: PilotHandle
    is_ours: bool  # started by this process, not found
    kept_since: float
    node: str = ""  # of Ray; empty while it waits to be placed, or has not answered yet
    host: str = ""
    up_since: float | None = None
    idle_since: float | None = None
    is_leaving: bool = False
    socket: str = ""
    inode: int = 0  # of the socket: another adapter may have taken its place
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class PilotKeeper:
    """The pilots of one site, and the lines that report them."""

    def __init__(
        self,
        cluster: Cluster,
        site: SiteConfig,
        folder: str,
        say: Callable[[dict[str, Any]], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._site = site
        self._folder = folder
        self._say = say
        self._now = now
        self._demand = Demand()
        self._demand_since: float | None = None
        self._known: set[str] | None = None  # until the queue has said it
        self._pilots: dict[str, KeptPilot] = {}
        self._gone: dict[str, str] = {}
        self._burying: dict[str, asyncio.Task[None]] = {}
        self._trouble = ""
        self._waits = ray_rules.PLACED
        self._failure = ""  # why the last pilot was of no use
        self._failed_at = 0.0
        self._began = self._now()
        self._threads = ThreadPoolExecutor(MAX_STREAMS, "stream")

    # --- lines of the queue --------------------------------------------------------------

    def hear(self, said: dict[str, Any]) -> None:
        """Take one line of the queue: the jobs that wait, and the nodes that have attempts."""
        want = said.get("want") or {}
        self._demand = Demand(int(want.get("jobs", 0)), int(want.get("gpus", 0)))
        if not self._demand.jobs:
            self._demand_since = None
        elif self._demand_since is None:
            self._demand_since = self._now()
        own = (name for name in said.get("known", ()) if ray_rules.is_pilot(self._site.name, name))
        self._known = set(own)

    async def run(self) -> None:
        """Look at the cluster again and again."""
        while True:
            try:
                await asyncio.wait_for(self._look(), CALL_S)
                self._trouble = self._failure
            except (ClusterAway, asyncio.TimeoutError) as error:
                self._trouble = str(error) or "the head of the Ray cluster does not answer"
            self._report()
            await asyncio.sleep(LOOK_S)

    def _report(self) -> None:
        pipe = [*own_module("grn.queue.sites.agent.pipe"), "--socket"]
        nodes = {one.name: [*pipe, one.socket] for one in self._pilots.values() if one.socket}
        pending = {one.name: self._waits for one in self._pilots.values() if not one.node}
        gone = {name: self._gone[name] for name in self._gone.keys() & (self._known or set())}
        self._say({"nodes": nodes, "pending": pending, "trouble": self._trouble})
        if gone:
            self._say({"gone": gone})

    async def close(self) -> None:
        """Leave the pilots that run as they are, close their streams, withdraw those that wait.

        A pilot that Ray places when no queue is left would keep its GPUs from others for minutes.
        """
        waiting = self._sorted(self._now(), self._known or set()).waiting
        tasks = {asyncio.create_task(self._withdraw(name)) for name in waiting}
        for pilot in list(self._pilots.values()):
            tasks |= pilot.tasks
            self._drop(pilot)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)

    async def _withdraw(self, name: str) -> None:
        with contextlib.suppress(ClusterAway):
            await self._cluster.kill(name)
            await self._cluster.sweep(name, "")

    # --- how many pilots -----------------------------------------------------------------

    async def _look(self) -> None:
        names = await self._cluster.names()
        for name in names:
            is_new = name not in self._pilots and name not in self._burying
            if is_new and name not in self._gone and ray_rules.is_pilot(self._site.name, name):
                handle = await self._cluster.find(name)
                if handle is not None:
                    self._keep(name, handle, is_ours=False)
        if self._known is not None:
            self._vouch(self._known - set(names))
            await self._fit_demand(self._known)
        if any(not pilot.node for pilot in self._pilots.values()):
            self._waits = ray_rules.why_waiting(await self._cluster.nodes(), self._site.gpus)

    async def _fit_demand(self, known: set[str]) -> None:
        now, site = self._now(), self._site
        pilots = self._sorted(now, known)
        for name in ray_rules.in_excess(self._demand, pilots, site.gpus):
            await self._cluster.kill(name)
        idle = ray_rules.idle(self._demand, pilots, known)
        for pilot in self._pilots.values():
            if pilot.name not in idle:
                pilot.idle_since = None
            elif pilot.idle_since is None:
                pilot.idle_since = now
            elif now - pilot.idle_since >= site.idle_s:
                self._drain(pilot)
        has_waited = self._demand_since is not None and now - self._demand_since >= DEMAND_S
        has_failed = bool(self._failure) and now - self._failed_at < FAILED_S
        if has_waited and not has_failed:
            for _ in range(ray_rules.to_start(self._demand, pilots, site.gpus, site.pilots)):
                token = secrets.token_hex(ray_rules.TOKEN_LENGTH)
                name = ray_rules.pilot_name(site.name, self._cluster.mark, token)
                self._keep(name, await self._cluster.start(name), is_ours=True)

    def _sorted(self, now: float, known: set[str]) -> Pilots:
        """Sort the pilots by their states; one that an earlier adapter started may be slow."""
        waiting, fresh, up, leaving = [], [], [], []
        for pilot in self._pilots.values():
            if pilot.is_leaving:
                leaving.append(pilot.name)
            elif pilot.name in known:
                up.append(pilot.name)
            elif not pilot.node and (pilot.is_ours or now - pilot.kept_since >= FRESH_S):
                waiting.append(pilot.name)
            elif pilot.up_since is None or now - pilot.up_since < FRESH_S:
                fresh.append(pilot.name)
            else:
                up.append(pilot.name)
        return Pilots(waiting, fresh, up, leaving)

    # --- one pilot -----------------------------------------------------------------------

    def _keep(self, name: str, handle: PilotHandle, *, is_ours: bool) -> None:
        pilot = KeptPilot(name, handle, is_ours, self._now())
        self._pilots[name] = pilot
        self._spawn(pilot, self._watch(pilot))

    def _spawn(self, pilot: KeptPilot, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        pilot.tasks.add(task)
        task.add_done_callback(pilot.tasks.discard)

    def _drain(self, pilot: KeptPilot) -> None:
        pilot.is_leaving = True

        async def drain() -> None:
            with contextlib.suppress(PilotCut, PilotDead, PilotRefused):
                await pilot.handle.drain()

        self._spawn(pilot, drain())

    async def _watch(self, pilot: KeptPilot) -> None:
        """Follow a pilot to its end."""
        seen = ""
        while True:
            try:
                said = await pilot.handle.watch(seen)
            except (PilotCut, PilotRefused):
                await asyncio.sleep(RETRY_S)
                continue
            except PilotDead as dead:
                self._drop(pilot)
                self._bury(pilot.name, pilot.node, str(dead))
                return
            seen, pilot.node, pilot.host = said["state"], said["node"], said["host"]
            if seen == UP and not pilot.socket:
                pilot.up_since = self._now()
                self._failure = ""
                await self._offer(pilot)
            if seen in (LEFT, FAILED):
                self._drop(pilot)
                if seen == FAILED:
                    self._failure, self._failed_at = said["text"], self._now()
                self._bury(
                    pilot.name, pilot.node, f"the pilot {pilot.name} has left", is_alive=True
                )
                return

    def _drop(self, pilot: KeptPilot) -> None:
        self._pilots.pop(pilot.name, None)
        for task in pilot.tasks - {asyncio.current_task()}:
            task.cancel()
        if pilot.socket:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(pilot.socket).st_ino == pilot.inode:
                    os.unlink(pilot.socket)

    # --- ended pilots --------------------------------------------------------------------

    def _vouch(self, unlisted: set[str]) -> None:
        """Find out about nodes that have attempts and are not listed by the cluster."""
        has_waited = self._now() - self._began >= REPLACED_S
        for name in unlisted - self._pilots.keys() - self._burying.keys() - self._gone.keys():
            if ray_rules.mark_in(name) == self._cluster.mark:
                self._bury(name, "", f"the pilot {name} is not known to Ray any more")
            elif has_waited:
                self._bury(name, "", f"the Ray cluster of the pilot {name} has ended")

    def _bury(self, name: str, node: str, text: str, is_alive: bool = False) -> None:
        work = self._end_all_of(name, node, text, is_alive)
        self._burying[name] = asyncio.get_running_loop().create_task(work)

    async def _end_all_of(self, name: str, node: str, text: str, is_alive: bool) -> None:
        """Report the end of a pilot once nothing of it runs on a machine that lives.

        Where no node of Ray is left to look, what may live has some time to end by itself.
        """
        began = self._now()
        while True:
            left: str | None
            try:
                if is_alive:
                    await self._cluster.kill(name)
                left = await self._cluster.sweep(name, node)
            except ClusterAway:
                left = "the cluster does not answer"
            if left == "" or (left is None and self._now() - began >= UNSEEN_S):
                break
            await asyncio.sleep(RETRY_S)
        self._gone[name] = text
        self._burying.pop(name, None)

    # --- streams -------------------------------------------------------------------------

    async def _offer(self, pilot: KeptPilot) -> None:
        """Listen for pipes to a pilot's agent."""
        path = os.path.join(self._folder, pilot.name)  # always the same: the queue keeps it
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of an adapter that was killed
        listening = socket.socket(socket.AF_UNIX)
        listening.setblocking(False)
        listening.bind(path)
        listening.listen()
        pilot.socket = path
        pilot.inode = os.stat(path).st_ino
        self._spawn(pilot, self._accept(pilot, listening))

    async def _accept(self, pilot: KeptPilot, listening: socket.socket) -> None:
        with listening:
            while True:
                pipe, _ = await asyncio.get_running_loop().sock_accept(listening)
                self._spawn(pilot, self._relay(pilot.handle, pipe))

    async def _relay(self, handle: PilotHandle, pipe: socket.socket) -> None:
        """Join a pipe to a new stream of a pilot until either ends, or this is cancelled."""
        pipe.setblocking(True)
        loop = asyncio.get_running_loop()
        relaying = loop.run_in_executor(self._threads, handle.relay, pipe)
        try:
            await asyncio.shield(relaying)
        finally:
            with contextlib.suppress(OSError):  # it is closed already
                pipe.shutdown(socket.SHUT_RDWR)
            await relaying
