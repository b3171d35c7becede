"""All places where attempts run: this machine, and the nodes of sites.

To the queue's loop the router is one site and one lease conversation. It asks a few places for the
lease of a job, keeps the first grant and withdraws the others, and passes each order to the place
that has the attempt. With no site it passes everything on to this machine. `choice.py` decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from grn.model.units import show_time
from grn.protocol.lease import Grant
from grn.queue.events import AskLease
from grn.queue.job import AttemptFate, Exit, Settlement
from grn.queue.journal.rows import Command
from grn.queue.leases import RETRY_S, LeaseListener, Leases
from grn.queue.site import Attempt, Found, Site, SiteListener
from grn.queue.sites import choice
from grn.queue.sites.choice import LOCAL, PilotSite, Place

if TYPE_CHECKING:
    from grn.queue.sites.node import Node, RemoteLease

log = logging.getLogger(__name__)
LOCAL_RETRY_S = 30.0


class RouterListener(LeaseListener, SiteListener, Protocol):
    """The queue's loop."""

    def attempt_found(self, attempt: Attempt, fate: AttemptFate, text: str) -> None: ...


@dataclass(slots=True)
class _Request:
    """The open request of one job, and the places that were asked."""

    asked: AskLease
    facts: dict[str, Any]
    code: str
    usual_s: float | None = None  # how long such jobs took
    places: set[str] = field(default_factory=set)
    refusals: dict[str, str] = field(default_factory=dict)
    refused_by: set[str] = field(default_factory=set)  # sites; their other nodes are alike
    said: dict[str, str] = field(default_factory=dict)  # why it waits, by place


class Router:
    """This machine and the nodes."""

    def __init__(
        self, queue_id: str, listener: RouterListener, local: Callable[[SiteListener], Site]
    ) -> None:
        self.queue_id = queue_id
        self._listener = listener
        self._local_leases = Leases(queue_id, _LocalLeases(self))
        self._local = local(listener)
        self.nodes: dict[str, Node] = {}
        self.usual_s: Callable[[str], float | None] = lambda _job_type: None
        self._pilot_sites: dict[str, PilotSite] = {}
        self._unseen: dict[str, dict[Attempt, RemoteLease]] = {}  # of nodes not found yet
        self._requests: dict[int, _Request] = {}
        self._attempts: dict[Attempt, str] = {}  # where each attempt is
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._was_connected = False

    # --- nodes ---------------------------------------------------------------------------

    @property
    def has_sites(self) -> bool:
        """True when a job may run elsewhere than on this machine, now or later."""
        return bool(self.nodes or self._pilot_sites)

    def set_nodes(self, nodes: Iterable[Node], pilot_sites: Iterable[PilotSite] = ()) -> None:
        """Add nodes, and let go of those that are not among them and run nothing."""
        self._pilot_sites = {site.name: site for site in pilot_sites}
        wanted = {node.name: node for node in nodes}
        for name, node in list(self.nodes.items()):
            if name not in wanted and not node.attempts:
                self._drop_node(name)
        # Where jobs can run elsewhere, this machine need not have GPUs.
        self._local_leases.retry_s = LOCAL_RETRY_S if wanted or self._pilot_sites else RETRY_S
        for name, node in wanted.items():
            if name not in self.nodes:
                self._add_node(node)
        self._ask_more(self._requests.values())
        for request in self._requests.values():
            self._say_why(request)
        self._tell_connected()

    def _add_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        for attempt, lease in self._unseen.pop(node.name, {}).items():
            node.expect(attempt, lease.epoch)
            node.leases.watch(lease.lease)
        self._tasks[node.name] = asyncio.get_running_loop().create_task(node.keep_connected())

    def withdraw_late(self) -> None:
        """Withdraw requests from nodes that will be taken back before their jobs could end."""
        for node in self.nodes.values():
            left_s = node.left_s
            for job, request in self._requests.items():
                if node.name in request.places and not choice.ends_within(request.usual_s, left_s):
                    request.places.discard(node.name)
                    node.leases.drop(job)
        self._ask_more(self._requests.values())

    def _drop_node(self, name: str) -> None:
        node = self.nodes.pop(name)
        node.close()
        self._tasks.pop(name).cancel()
        for request in self._requests.values():
            request.places.discard(name)
            request.said.pop(name, None)

    def node_gone(self, name: str, text: str) -> None:
        """End the attempts of a node that is gone for sure."""
        gone = [attempt for attempt, where in self._attempts.items() if where == name]
        for attempt in gone:
            self._listener.attempt_found(attempt, AttemptFate.INTERRUPTED, text)
        self._unseen.pop(name, None)
        if name in self.nodes:
            self._drop_node(name)
            self._ask_more(self._requests.values())
            self._tell_connected()

    def demand(self, site: str) -> dict[str, int]:
        """Return how many open requests one more node of a site could serve, and the largest."""
        grown = self._pilot_sites[site]
        waiting = [
            request.asked.spec.gpus
            for request in self._requests.values()
            if _may_grow(request, grown)
        ]
        return {"jobs": len(waiting), "gpus": max(waiting, default=0)}

    def nodes_with_attempts(self, site: str) -> list[str]:
        """Return the nodes that have attempts, of this site or of one not seen since a restart."""
        names = set(self._attempts.values()) - {LOCAL}
        return sorted(
            name for name in names
            if name not in self.nodes or self.nodes[name].address.site == site
        )  # fmt: skip

    def asked_at(self, name: str) -> int:
        """Return how many requests wait at a place."""
        return sum(name in request.places for request in self._requests.values())

    def node_changed(self, node: Node) -> None:
        """Ask a node that has come up; without one that went away, ask others."""
        if not node.is_open:
            for job, request in list(self._requests.items()):
                if node.name in request.places:
                    request.places.discard(node.name)
                    request.said[node.name] = _away(node)
                    node.leases.drop(job)
        self._ask_more(self._requests.values())
        self._tell_connected()

    def _tell_connected(self) -> None:
        """Report whether any place can be asked."""
        is_connected = self.is_connected
        if is_connected and not self._was_connected:
            self._listener.connected()
        elif self._was_connected and not is_connected:
            self._listener.disconnected()
        elif is_connected:
            self._listener.connected()  # there may be room for more requests
        self._was_connected = is_connected

    # --- the lease conversation, as the loop sees it -------------------------------------

    @property
    def is_connected(self) -> bool:
        """True when some place can grant leases, or may soon."""
        return self._local_leases.is_connected or self.has_sites

    @property
    def trouble(self) -> str:
        """Return why no lease can be had here; with sites this machine need not have GPUs."""
        return "" if self.has_sites else self._local_leases.trouble

    @property
    def gpu_bytes(self) -> list[int]:
        """Return the memory of each GPU here, largest first; empty if not known, or with sites."""
        return [] if self.has_sites else self._local_leases.gpu_bytes

    def want(self) -> None:
        """There is work."""
        self._local_leases.want()
        for node in self.nodes.values():
            node.want()

    def ask(self, asked: AskLease, facts: dict[str, Any], code: str = "") -> None:
        """Request the lease of one attempt where it could start soonest."""
        request = _Request(asked, facts, code, self._usual_of(asked))
        self._requests[asked.spec.id] = request
        self._ask_more([request])
        self._say_why(request)

    def _usual_of(self, asked: AskLease) -> float | None:
        return self.usual_s(asked.spec.job_type) if self.has_sites else None

    def _ask_more(self, requests: Iterable[_Request]) -> None:
        places = self._places() if self.has_sites else []
        for request in list(requests):
            if not self.has_sites:
                self._ask_at(LOCAL, request)
                continue
            spec = request.asked.spec
            chosen = choice.choose(spec, places, request.places, request.refusals, request.usual_s)
            for name in chosen.withdraw:
                request.places.discard(name)
                self._leases_at(name).drop(spec.id)
            for name in chosen.ask:
                self._ask_at(name, request)

    def _ask_at(self, name: str, request: _Request) -> None:
        if name not in request.places:
            request.places.add(name)
            self._leases_at(name).ask(request.asked, request.facts, request.code)

    def _leases_at(self, name: str) -> Leases:
        return self._local_leases if name == LOCAL else self.nodes[name].leases

    def _places(self) -> list[Place]:
        open_at = [name for request in self._requests.values() for name in request.places]
        places = [
            Place(
                node.name, node.address.site, node.is_open, tuple(node.leases.gpu_bytes),
                open_at.count(node.name) + node.attempts, node.left_s,
            )
            for node in self.nodes.values()
        ]  # fmt: skip
        leases = self._local_leases
        here = sum(node == LOCAL for node in self._attempts.values())
        busy = open_at.count(LOCAL) + here
        return [Place(LOCAL, LOCAL, leases.is_connected, tuple(leases.gpu_bytes), busy), *places]

    def drop(self, job: int) -> None:
        """Withdraw the requests of a job."""
        request = self._requests.pop(job, None)
        if request is not None:
            for name in request.places:
                self._leases_at(name).drop(job)

    def pass_on(self, job: int, heir: AskLease, facts: dict[str, Any], code: str = "") -> bool:
        """Let another job have the open requests of this one; False if there are none."""
        request = self._requests.pop(job, None)
        if request is None:
            return False
        passed = {
            name for name in request.places
            if self._leases_at(name).pass_on(job, heir, facts, code)
        }  # fmt: skip
        if passed:
            self._requests[heir.spec.id] = _Request(
                heir, facts, code, self._usual_of(heir), passed, request.refusals,
                request.refused_by,
            )  # fmt: skip
        return bool(passed)

    def key_of(self, job: int) -> str | None:
        """Return the key of the open request of a job, None when it has none."""
        request = self._requests.get(job)
        places = sorted(request.places, key=lambda name: name != LOCAL) if request else []
        return self._leases_at(places[0]).key_of(job) if places else None

    def refresh(self, then: Callable[[], None]) -> None:
        """Ask all places why requests wait, then call `then`."""
        everywhere = [self._local_leases, *(node.leases for node in self.nodes.values())]
        left = len(everywhere)

        def one_is_fresh() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                then()

        for leases in everywhere:
            leases.refresh(one_is_fresh)

    def watch(self, lease: str) -> None:
        """Promise to report the end of a lease that an earlier queue requested."""
        found = self._remote(lease)
        if found is None:
            self._local_leases.watch(lease)
        elif found.node in self.nodes:
            self.nodes[found.node].leases.watch(found.lease)  # of other nodes when they are found

    def done(self, lease: str, ending: dict[str, Any], then: Callable[[Settlement], None]) -> None:
        """Report how a lease ended; `then` gets the negotiator's view of it, if there is one."""
        found = self._remote(lease)
        if found is None:
            self._local_leases.done(lease, ending, then)
        elif found.node in self.nodes:
            self.nodes[found.node].done(found.lease, ending, then)
        else:
            then(Settlement())

    def _remote(self, lease: str) -> RemoteLease | None:
        if "/" not in lease:
            return None
        from grn.queue.sites.node import remote  # not without a site: nothing new is imported

        return remote(lease)

    async def keep_connected(self) -> None:
        """Keep a connection to the negotiator of this machine."""
        await self._local_leases.keep_connected()

    # --- answers about leases ------------------------------------------------------------

    def granted(self, node: Node | None, job: int, grant: Grant) -> None:
        """Keep the first grant of a job, and withdraw its requests elsewhere."""
        name = LOCAL if node is None else node.name
        request = self._requests.pop(job, None)
        for other in request.places - {name} if request else ():
            self._leases_at(other).drop(job)
        self._listener.granted(job, grant if node is None else _of_node(grant, node))
        if request is not None and self.has_sites:
            self._ask_more(self._requests.values())  # the withdrawn requests made room

    def awaited(self, node: Node | None, job: int, text: str) -> None:
        """Note why a place does not grant a request yet."""
        self._said(node, {job: text})

    def reasons(self, node: Node | None, texts: dict[int, str]) -> None:
        """Note the present reasons of a place."""
        self._said(node, texts)

    def _said(self, node: Node | None, texts: dict[int, str]) -> None:
        name = LOCAL if node is None else node.name
        for job, text in texts.items():
            request = self._requests.get(job)
            if request is not None:
                request.said[name] = text
        if not self.has_sites:
            self._listener.reasons(texts)
        else:
            known = {job: self._requests[job] for job in texts if job in self._requests}
            self._listener.reasons({job: self._why(request) for job, request in known.items()})

    def _say_why(self, request: _Request) -> None:
        """Say why a request that no place was asked for waits."""
        if self.has_sites and not request.places:
            for node in self.nodes.values():
                if not choice.is_meant(request.asked.spec.at, _place(node)):
                    continue
                if not node.is_open:
                    request.said[node.name] = _away(node)
                elif not choice.ends_within(request.usual_s, node.left_s):
                    request.said[node.name] = _too_long(request.usual_s, "it ends", node.left_s)
            at = request.asked.spec.at
            text = self._why(request) or f"no place is named {at}: see `grn sites`"
            self._listener.awaited(request.asked.spec.id, text)

    def _why(self, request: _Request) -> str:
        """Return why a job waits, by place."""
        said = {**request.said, **self._why_not_placed(request)}
        return "; ".join(f"{place}: {text}" for place, text in sorted(said.items()))

    def _why_not_placed(self, request: _Request) -> dict[str, str]:
        """Return why sites that a job may run at have no node for it."""
        spec, texts = request.asked.spec, {}
        used = {node.address.site for node in self.nodes.values() if node.is_open}
        for site in self._pilot_sites.values():
            if site.name in request.refused_by or spec.at not in ("", site.name):
                continue
            if spec.gpus > site.gpus:
                texts[site.name] = f"its pilots have {site.gpus} of the {spec.gpus} GPUs it needs"
            elif not choice.ends_within(request.usual_s, site.time_s):
                texts[site.name] = _too_long(request.usual_s, "its pilots end", site.time_s)
            elif site.name not in used:
                texts[site.name] = site.text
        return texts

    def refused(self, node: Node | None, job: int, text: str) -> None:
        """End a job that all places refuse; one that is away may still take it."""
        request = self._requests.get(job)
        if node is None and not self.has_sites:
            self._requests.pop(job, None)
            self._listener.refused(job, text)
            return
        if request is None:
            return
        name = LOCAL if node is None else node.name
        request.places.discard(name)
        request.refusals[name] = text
        if node is not None:
            request.refused_by.add(node.address.site)
        self._ask_more([request])
        spec = request.asked.spec
        meant = {one.name for one in self._places() if choice.is_meant(spec.at, one)}
        may_grow = any(_may_grow(request, site) for site in self._pilot_sites.values())
        if not request.places and meant <= request.refusals.keys() and not may_grow:
            self._requests.pop(job)
            whole = "; ".join(f"{place}: {said}" for place, said in request.refusals.items())
            self._listener.refused(job, whole)
        else:
            self._say_why(request)

    # --- where attempts run, as the loop sees it -----------------------------------------

    def open(self) -> None:
        self._local.open()

    def close(self) -> None:
        """Stop watching attempts; they continue to run."""
        self._local_leases.close()
        for name in list(self.nodes):
            self._drop_node(name)
        self._local.close()

    def start(self, attempt: Attempt, command: Command, lease: str, visible: str) -> None:
        found = self._remote(lease)
        self._attempts[attempt] = LOCAL if found is None else found.node
        if found is None:
            self._local.start(attempt, command, lease, visible)
            return
        if found.node in self.nodes:
            self.nodes[found.node].start(attempt, command, found, visible)
            return
        fate, text = AttemptFate.NOT_BEGUN, f"{found.node} was gone before it began"
        loop = asyncio.get_running_loop()
        loop.call_soon(self._listener.attempt_found, attempt, fate, text)

    def stop(self, attempt: Attempt, is_now: bool) -> None:
        node = self._node_of(attempt)
        if node is None:
            self._local.stop(attempt, is_now)
        else:
            node.stop(attempt, is_now)

    def find(self, attempt: Attempt, is_same_boot: bool, lease: str = "") -> Found:
        """Find an attempt from before a restart; one of a node counts as alive until it is told."""
        found = self._remote(lease)
        self._attempts[attempt] = LOCAL if found is None else found.node
        if found is None:
            return self._local.find(attempt, is_same_boot)
        if found.node not in self.nodes:  # not found yet, or of a site that was removed
            self._unseen.setdefault(found.node, {})[attempt] = found
            return Found(AttemptFate.ALIVE)
        return self.nodes[found.node].expect(attempt, found.epoch)

    def report(self, attempt: Attempt) -> None:
        self._local.report(attempt)

    def tidy(self) -> None:
        self._local.tidy()

    def written(self, attempt: Attempt) -> None:
        """Note that the end of an attempt is in the journal."""
        node = self._node_of(attempt)
        self._attempts.pop(attempt, None)
        if node is None:
            self._local.written(attempt)
        else:
            node.written(attempt)

    def folder(self, attempt: Attempt) -> str:
        """Return the folder of an attempt's output; of a node's attempt it is a copy."""
        return self._local.folder(attempt)

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        self._local.remove(jobs)
        for node in self.nodes.values():
            node.remove(jobs)

    def _node_of(self, attempt: Attempt) -> Node | None:
        return self.nodes.get(self._attempts.get(attempt, LOCAL))

    # --- reports of nodes ----------------------------------------------------------------

    def has_work(self) -> bool:
        return self._listener.has_work()

    def attempt_started(self, attempt: Attempt) -> None:
        self._listener.attempt_started(attempt)

    def attempt_ended(self, attempt: Attempt, exit: Exit | None) -> None:
        self._listener.attempt_ended(attempt, exit)

    def attempt_found(self, attempt: Attempt, fate: AttemptFate, text: str) -> None:
        self._listener.attempt_found(attempt, fate, text)


class _LocalLeases:
    """Passes the events of this machine's lease conversation to the router."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def has_work(self) -> bool:
        return self._router.has_work()

    def connected(self) -> None:
        self._router._tell_connected()

    def disconnected(self) -> None:
        self._router._tell_connected()

    def granted(self, job: int, grant: Grant) -> None:
        self._router.granted(None, job, grant)

    def awaited(self, job: int, text: str) -> None:
        self._router.awaited(None, job, text)

    def reasons(self, texts: dict[int, str]) -> None:
        self._router.reasons(None, texts)

    def refused(self, job: int, text: str) -> None:
        self._router.refused(None, job, text)


def _of_node(grant: Grant, node: Node) -> Grant:
    """Return a grant whose lease names its node."""
    from grn.queue.sites.node import RemoteLease

    lease = str(RemoteLease(node.name, node.epoch, grant.lease))
    return Grant(
        lease, grant.visible, grant.indices, grant.gpus, grant.uuids, grant.reserved_bytes,
        grant.is_first_run, grant.is_nested,
    )  # fmt: skip


def _place(node: Node) -> Place:
    return Place(node.name, node.address.site, node.is_open, tuple(node.leases.gpu_bytes), 0)


def _may_grow(request: _Request, site: PilotSite) -> bool:
    """True when one more node of a site could run a job, and none has refused it."""
    is_refused = site.name in request.refused_by
    return not is_refused and choice.may_grow_for(request.asked.spec, site, request.usual_s)


def _too_long(usual_s: float | None, ends: str, left_s: float | None) -> str:
    return f"such jobs take {show_time(usual_s)}, and {ends} after {show_time(left_s)}"


def _away(node: Node) -> str:
    if node.is_draining:
        return "takes nothing new"
    return f"cannot be used: {node.trouble or node.leases.trouble or 'it is being connected'}"
