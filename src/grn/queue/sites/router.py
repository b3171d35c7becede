"""All places where attempts run: this machine, and the nodes of sites.

To the queue's loop the router is one site. It passes each order to the place that has the attempt;
`lease_router.py` asks places for leases. With no site it passes everything on to this machine.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from grn.protocol.lease_messages import GrantedGpus, IdleTold
from grn.queue.jobs.job import AttemptFate, Exit
from grn.queue.journal.rows import Command
from grn.queue.leases import LeaseListener
from grn.queue.site import Attempt, Found, Site, SiteListener
from grn.queue.sites.leases import wait_reasons
from grn.queue.sites.leases.choice import LOCAL, PilotSite
from grn.queue.sites.leases.lease_router import LeaseRouter
from grn.queue.sites.leases.remote_lease import RemoteLease, remote

if TYPE_CHECKING:
    from grn.protocol.negotiator_rows import LeaseRow
    from grn.queue.sites.node import Node

GIVEN_UP = "{node}, whose site was removed, could not be reached"


class RouterListener(LeaseListener, SiteListener, Protocol):
    """The queue's loop."""

    def attempt_found(self, attempt: Attempt, fate: AttemptFate, text: str) -> None: ...

    def command_of(self, attempt: Attempt) -> Command | None: ...


class Router:
    """This machine and the nodes."""

    def __init__(
        self, queue_id: str, listener: RouterListener, local: Callable[[SiteListener], Site]
    ) -> None:
        self._listener = listener
        self._local = local(listener)
        self.nodes: dict[str, Node] = {}
        self.leases = LeaseRouter(queue_id, listener, self.nodes)
        self.leases.attempts_here = lambda: self._here
        self._here = 0  # attempts on this machine
        self._attempts: dict[Attempt, RemoteLease | None] = {}  # None for one on this machine
        self._leaving: set[str] = set()  # nodes that are not named now: nothing new starts there
        self._engine_sites: frozenset[str] = frozenset()  # whose engines tell what became of nodes
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # --- nodes ---------------------------------------------------------------------------

    def set_nodes(
        self,
        nodes: Iterable[Node],
        leaving: Iterable[Node] = (),
        pilot_sites: Iterable[PilotSite] = (),
    ) -> None:
        """Replace the nodes; one that has attempts stays until they have ended."""
        wanted = {node.name: node for node in nodes}
        old = {node.name: node for node in leaving if node.name not in wanted}
        self._leaving = (self.nodes.keys() | old.keys()) - wanted.keys()
        for name, node in {**wanted, **old}.items():
            if name not in self.nodes:
                self._add_node(node)
        pilot_sites = tuple(pilot_sites)
        self._engine_sites = frozenset(site.name for site in pilot_sites)
        self.leases.set_sites(pilot_sites, self._leaving)
        self.leases.sharing.ask_all(LOCAL)
        for name in sorted(self._leaving):
            self._let_go(name)
        self.leases.places_changed()

    def _add_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        node.leases.on_connected = functools.partial(self.leases.sharing.ask_all, node.name)
        for attempt, lease in self._attempts.items():
            if lease is not None and lease.node == node.name:
                node.expect(attempt, lease)
        loop = asyncio.get_running_loop()
        self._tasks[node.name] = loop.create_task(node.keep_connected())

    def _let_go(self, name: str) -> None:
        """Withdraw all requests at a node of a removed site; drop the node once it is empty.

        A pilot that answers stays, as its engine may list it only later: leases that the queue
        before was granted and did not use are returned over its stream.
        """
        node = self.nodes.get(name)
        if node is None or name not in self._leaving:
            return
        self.leases.leave(name)
        if not node.attempts and (self.is_removed(name) or not node.is_heard):
            self._drop_node(name)

    def _drop_node(self, name: str) -> None:
        node = self.nodes.pop(name)
        node.close()
        self._tasks.pop(name).cancel()
        self._leaving.discard(name)
        self.leases.forget(name)

    def is_removed(self, name: str) -> bool:
        """True for a node whose site was removed; of an ended pilot its engine will tell."""
        node = self.nodes.get(name)
        return name in self._leaving and (
            node is None or node.address.site not in self._engine_sites
        )

    def names(self) -> set[str]:
        """Return the nodes that a job may be sent to."""
        return self.nodes.keys() - self._leaving

    def lost_nodes(self) -> set[str]:
        """Return the nodes that have attempts and whose addresses are not known."""
        there = {lease.node for lease in self._attempts.values() if lease is not None}
        return there - self.nodes.keys()

    def node_gone(self, name: str, text: str) -> None:
        """End the attempts of a node that is gone for sure."""
        for attempt, lease in list(self._attempts.items()):
            if lease is not None and lease.node == name:
                self._listener.attempt_found(attempt, AttemptFate.INTERRUPTED, text)
        if name in self.nodes:
            self._drop_node(name)
            self.leases.places_changed()

    def nodes_with_attempts(self, site: str) -> list[str]:
        """Return the nodes that have attempts, of this site or of one not seen since a restart."""
        names = {lease.node for lease in self._attempts.values() if lease is not None}
        return sorted(
            name for name in names
            if name not in self.nodes or self.nodes[name].address.site == site
        )  # fmt: skip

    # --- where attempts run, as the loop sees it -----------------------------------------

    def open(self) -> None:
        self._local.open()

    def close(self) -> None:
        """Stop watching attempts; they continue to run."""
        self.leases.close()
        for name in list(self.nodes):
            self._drop_node(name)
        self._local.close()

    def _note(self, attempt: Attempt, lease: str) -> RemoteLease | None:
        """Note where an attempt is; None for this machine."""
        found = remote(lease)
        self._attempts[attempt] = found
        self._here += found is None
        return found

    def prepare(self, attempt: Attempt, command: Command) -> None:
        """Get ready for an attempt that may start on this machine."""
        self._local.prepare(attempt, command)

    def start(self, attempt: Attempt, command: Command, lease: str, visible: str) -> None:
        found = self._note(attempt, lease)
        if found is None:
            self._local.start(attempt, command, lease, visible)
        elif found.node in self.nodes:
            self.nodes[found.node].start(attempt, command, found, visible)
        else:
            text = f"{found.node} was removed before it began"
            self._listener.attempt_found(attempt, AttemptFate.NOT_BEGUN, text)

    def stop(self, attempt: Attempt, is_now: bool, *, is_yield: bool = False) -> None:
        """End an attempt; one of a removed site that is out of reach is given up if told twice."""
        lease = self._attempts.get(attempt)
        if lease is None:
            self._local.stop(attempt, is_now, is_yield=is_yield)
            return
        node = self.nodes.get(lease.node)
        if node is not None:
            node.stop(attempt, is_now, is_yield=is_yield)
        is_within_reach = node is not None and (node.is_heard or not self.is_removed(node.name))
        if is_now and not is_within_reach:
            text = GIVEN_UP.format(node=lease.node)
            self._listener.attempt_found(attempt, AttemptFate.INTERRUPTED, text)

    def find(self, attempt: Attempt, is_same_boot: bool, lease: str = "") -> Found:
        """Find an attempt from before a restart; one of a node counts as alive until it is told."""
        found = self._note(attempt, lease)
        if found is None:
            return self._local.find(attempt, is_same_boot)
        if found.node in self.nodes:
            self.nodes[found.node].expect(attempt, found)
        return Found(AttemptFate.ALIVE)

    def report(self, attempt: Attempt) -> None:
        self._local.report(attempt)

    def tidy(self) -> None:
        self._local.tidy()

    def written(self, attempt: Attempt) -> None:
        """Note that the end of an attempt is in the journal."""
        self._here -= attempt in self._attempts and self._attempts[attempt] is None
        lease = self._attempts.pop(attempt, None)
        if lease is None:
            self._local.written(attempt)
        elif lease.node in self.nodes:
            self.nodes[lease.node].written(attempt)
            if lease.node in self._leaving:
                asyncio.get_running_loop().call_soon(self._let_go, lease.node)

    def folder(self, attempt: Attempt) -> str:
        """Return the folder of an attempt's output; of a node's attempt it is a copy."""
        return self._local.folder(attempt)

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        """Delete the files of jobs on this machine; from a thread, as that takes time."""
        self._local.remove(jobs)

    def remove_elsewhere(self, jobs: list[tuple[int, int]]) -> None:
        """Delete the files of jobs on the nodes."""
        for node in self.nodes.values():
            node.remove(jobs)

    def doubt(self, attempt: Attempt) -> str:
        """Return why nothing is known of an attempt on a node; empty while its agent answers."""
        lease = self._attempts.get(attempt)
        if lease is None:
            return ""
        node = self.nodes.get(lease.node)
        if node is None:
            return f"{lease.node} is not known any more{wait_reasons.GIVES_UP}"
        if node.is_heard:
            return ""
        if node.is_unusable:
            return wait_reasons.not_used(node.name, node.trouble, self.is_removed(node.name))
        silent_s = None if node.heard_at is None else time.time() - node.heard_at
        return wait_reasons.not_heard(node.name, silent_s, self.is_removed(node.name))

    def lease_seen(self, lease: str | None) -> LeaseRow | None:
        """Return a lease of a node as its negotiator last showed it."""
        found = remote(lease or "")
        node = self.nodes.get(found.node) if found is not None else None
        if node is None or found is None or node.epoch != found.epoch:
            return None
        return next((one for one in node.leases.leases if one.id == found.lease), None)

    # --- reports of nodes ----------------------------------------------------------------

    def has_work(self) -> bool:
        return self._listener.has_work()

    def node_changed(self, node: Node) -> None:
        """Ask a node that has come up; without one that went away, ask others."""
        if not node.is_open:
            self.leases.leave(node.name)
        if not node.is_heard:
            self._let_go(node.name)
        self.leases.places_changed()

    def other_node_of(self, node: Node, agent: str) -> str:
        """Return another node that an agent answered as: two names of one machine."""
        others = [one for one in self.nodes.values() if one is not node and one.agent == agent]
        return others[0].name if others else ""

    def granted(self, node: Node, job: int, grant: GrantedGpus) -> None:
        self.leases.granted(node, job, grant)

    def yield_asked(self, node: Node, lease: str, is_idle: bool) -> None:
        self.leases.yield_asked(node, lease, is_idle)

    def idle_told(self, node: Node, told: IdleTold) -> None:
        self.leases.idle_told(node, told)

    def awaited(self, node: Node, job: int, text: str) -> None:
        self.leases.awaited(node, job, text)

    def reasons(self, node: Node, texts: dict[int, str]) -> None:
        self.leases.reasons(node, texts)

    def refused(self, node: Node, job: int, text: str) -> None:
        self.leases.refused(node, job, text)

    def attempt_started(self, attempt: Attempt) -> None:
        self._listener.attempt_started(attempt)

    def attempt_ended(self, attempt: Attempt, exit: Exit | None) -> None:
        self._listener.attempt_ended(attempt, exit)

    def attempt_found(self, attempt: Attempt, fate: AttemptFate, text: str) -> None:
        self._listener.attempt_found(attempt, fate, text)

    def command_of(self, attempt: Attempt) -> Command | None:
        return self._listener.command_of(attempt)
