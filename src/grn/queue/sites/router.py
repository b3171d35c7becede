"""All places where attempts run: this machine, and the nodes of sites.

To the queue's loop the router is one site and one lease conversation. It asks a few places for the
lease of a job, keeps the first grant and withdraws the others, and passes each order to the place
that has the attempt. With no site it passes everything on to this machine. `choice.py` decides.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from grn.model.units import show_time
from grn.protocol.lease import GrantedGpus
from grn.queue.events import AskLease
from grn.queue.job import AttemptFate, Exit, Settlement
from grn.queue.journal.rows import Command
from grn.queue.leases import RETRY_S, LeaseListener, Leases
from grn.queue.site import Attempt, Found, Site, SiteListener
from grn.queue.sites import choice
from grn.queue.sites.choice import LOCAL, PilotSite, Place
from grn.queue.sites.teaching import Teacher

if TYPE_CHECKING:
    from grn.protocol.rows import LeaseRow
    from grn.queue.sites.node import Node, RemoteLease

log = logging.getLogger(__name__)
LOCAL_RETRY_S = 30.0
RUNS_S = 0.5  # between the end of an attempt and the question what was measured
MAX_TYPES_ASKED = 1000
GIVEN_UP = "{node}, whose site was removed, could not be reached"


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
        self._requests: dict[int, _Request] = {}
        self._attempts: dict[Attempt, RemoteLease | None] = {}  # None for one on this machine
        self._leaving: set[str] = set()  # nodes of removed sites: nothing new starts there
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._was_connected = False
        self._teacher = Teacher()
        self._ran: dict[str, set[str]] = {}  # types granted at a place since it was asked for runs
        self._local_leases.on_connected = functools.partial(self._ask_all_runs, LOCAL)

    # --- nodes ---------------------------------------------------------------------------

    @property
    def has_sites(self) -> bool:
        """True when a job may run elsewhere than on this machine, now or later."""
        return bool(self.nodes or self._pilot_sites)

    def set_nodes(
        self,
        nodes: Iterable[Node],
        leaving: Iterable[Node] = (),
        pilot_sites: Iterable[PilotSite] = (),
    ) -> None:
        """Replace the nodes; one that has attempts stays until they have ended."""
        self._pilot_sites = {site.name: site for site in pilot_sites}
        wanted = {node.name: node for node in nodes}
        old = {node.name: node for node in leaving if node.name not in wanted}
        self._leaving = (self.nodes.keys() | old.keys()) - wanted.keys()
        # Where jobs can run elsewhere, this machine need not have GPUs.
        self._local_leases.retry_s = LOCAL_RETRY_S if wanted or self._pilot_sites else RETRY_S
        for name, node in {**wanted, **old}.items():
            if name not in self.nodes:
                self._add_node(node)
        self._ask_all_runs(LOCAL)
        for name in sorted(self._leaving):
            self._let_go(name)
        self._places_changed()

    def _add_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        node.leases.on_connected = functools.partial(self._ask_all_runs, node.name)
        for attempt, lease in self._attempts.items():
            if lease is not None and lease.node == node.name:
                node.expect(attempt, lease)
        loop = asyncio.get_running_loop()
        self._tasks[node.name] = loop.create_task(node.keep_connected())

    def _let_go(self, name: str) -> None:
        """Withdraw all requests at a node of a removed site; drop the node once it is empty."""
        node = self.nodes.get(name)
        if node is None or name not in self._leaving:
            return
        for job, request in self._requests.items():
            if name in request.places:
                request.places.discard(name)
                node.leases.drop(job)
        if not node.attempts:
            self._drop_node(name)

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
        self._leaving.discard(name)
        for request in self._requests.values():
            request.places.discard(name)
            request.said.pop(name, None)

    def is_leaving(self, name: str) -> bool:
        """True for a node whose site was removed."""
        return name in self._leaving

    def names(self) -> set[str]:
        """Return the nodes that a job may be sent to."""
        return self.nodes.keys() - self._leaving

    def lost_nodes(self) -> set[str]:
        """Return the nodes that have attempts and that nobody has told the way to."""
        there = {lease.node for lease in self._attempts.values() if lease is not None}
        return there - self.nodes.keys()

    def node_gone(self, name: str, text: str) -> None:
        """End the attempts of a node that is gone for sure."""
        for attempt, lease in list(self._attempts.items()):
            if lease is not None and lease.node == name:
                self._listener.attempt_found(attempt, AttemptFate.INTERRUPTED, text)
        if name in self.nodes:
            self._drop_node(name)
            self._places_changed()

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
        names = {lease.node for lease in self._attempts.values() if lease is not None}
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
            for job, request in self._requests.items():
                if node.name in request.places:
                    request.places.discard(node.name)
                    node.leases.drop(job)
        self._places_changed()

    def other_node_of(self, node: Node, agent: str) -> str:
        """Return another node that an agent answered as: two names of one machine."""
        others = [one for one in self.nodes.values() if one is not node and one.agent == agent]
        return others[0].name if others else ""

    def _places_changed(self) -> None:
        self._ask_more(self._requests.values())
        self._tell_connected()
        for request in self._requests.values():
            self._say_why(request)

    def local_connected(self) -> None:
        """Ask this machine for the requests that came before its negotiator."""
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

    def retry(self) -> None:
        """Try again soon to reach the nodes that are away."""
        for node in self.nodes.values():
            node.retry()

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
            spec = request.asked.spec
            if not self.has_sites:
                if spec.at in ("", LOCAL):
                    self._ask_at(LOCAL, request)
                continue
            chosen = choice.choose(spec, places, request.places, request.refusals, request.usual_s)
            for name in chosen.withdraw:
                request.places.discard(name)
                self._leases_at(name).drop(spec.id)
            for name in chosen.ask:
                self._ask_at(name, request)

    def _ask_at(self, name: str, request: _Request) -> None:
        if name not in request.places:
            request.places.add(name)
            self._teach(name, request.asked.spec.job_type)
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
            for node in self.nodes.values() if node.name not in self._leaving
        ]  # fmt: skip
        leases = self._local_leases
        here = sum(lease is None for lease in self._attempts.values())
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
        """Ask all places why requests wait, and nodes for their GPUs, then call `then`."""
        nodes = [node.leases for node in self.nodes.values()]
        asks = [self._local_leases.refresh, *(leases.refresh for leases in nodes)]
        asks += [leases.look for leases in nodes]
        left = len(asks)

        def one_is_fresh() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                then()

        for ask in asks:
            ask(one_is_fresh)

    def watch(self, lease: str) -> None:
        """Promise to report the end of a lease that an earlier queue requested."""
        if self._remote(lease) is None:  # a node watches those of the attempts it expects
            self._local_leases.watch(lease)

    def done(self, lease: str, ending: dict[str, Any], then: Callable[[Settlement], None]) -> None:
        """Report how a lease ended; `then` gets the negotiator's view of it, if there is one."""
        found = self._remote(lease)
        if found is None:
            self._local_leases.done(lease, ending, then)
            self._ask_runs_soon(LOCAL)
        elif found.node in self.nodes:
            self.nodes[found.node].done(found.lease, ending, then)
            self._ask_runs_soon(found.node)
        else:
            then(Settlement())

    # --- what places have measured, taught to the others -----------------------------------

    def _ask_all_runs(self, name: str) -> None:
        """Ask a place that has just come up for all it has measured, if there are others."""
        self._teacher.forget(name)
        if self.nodes:
            hear = functools.partial(self._heard_runs, name)
            self._leases_at(name).tell({"op": "runs"}, hear)

    def _ask_runs_soon(self, name: str) -> None:
        """Ask a place for the runs of types that were granted there, a moment after one ended."""
        if self.nodes and name in self._ran:
            asyncio.get_running_loop().call_later(RUNS_S, self._ask_runs, name)

    def _ask_runs(self, name: str) -> None:
        types = sorted(self._ran.pop(name, ()))[:MAX_TYPES_ASKED]
        if types and (name == LOCAL or name in self.nodes):
            hear = functools.partial(self._heard_runs, name)
            self._leases_at(name).tell({"op": "runs", "types": types}, hear)

    def _heard_runs(self, name: str, reply: dict[str, Any]) -> None:
        self._teacher.heard(name, reply)
        for request in self._requests.values():
            for place in request.places:
                self._teach(place, request.asked.spec.job_type)

    def _teach(self, name: str, job_type: str) -> None:
        for lesson in self._teacher.lessons(name, job_type) if self.nodes else ():
            self._leases_at(name).tell(lesson, lambda _answer: None)

    def _remote(self, lease: str) -> RemoteLease | None:
        if "/" not in lease:
            return None
        from grn.queue.sites.node import remote  # not without a site: nothing new is imported

        return remote(lease)

    async def keep_connected(self) -> None:
        """Keep a connection to the negotiator of this machine."""
        await self._local_leases.keep_connected()

    # --- answers about leases ------------------------------------------------------------

    def granted(self, node: Node | None, job: int, grant: GrantedGpus) -> None:
        """Keep the first grant of a job, and withdraw its requests elsewhere."""
        name = LOCAL if node is None else node.name
        request = self._requests.pop(job, None)
        for other in request.places - {name} if request else ():
            self._leases_at(other).drop(job)
        self._listener.granted(job, grant if node is None else _of_node(grant, node))
        if request is not None and self.has_sites:
            self._ran.setdefault(name, set()).add(request.asked.spec.job_type)
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
        if self.has_sites:
            texts = {job: self._why(self._requests[job]) for job in texts if job in self._requests}
        self._listener.reasons(texts)

    def _say_why(self, request: _Request) -> None:
        """Say why a request waits that no place was asked for."""
        if not request.places:
            self._listener.awaited(request.asked.spec.id, self._why(request))

    def _why(self, request: _Request) -> str:
        """Return why a job waits, by place."""
        at = request.asked.spec.at
        texts = {
            **{name: f"refused: {text}" for name, text in request.refusals.items()},
            **{name: request.said.get(name, "was asked") for name in request.places},
        }
        for name in self.names():
            node = self.nodes[name]
            if name in texts or at not in ("", name, node.address.site):
                continue
            if not node.is_open:
                texts[name] = _away(node)
            elif not choice.ends_within(request.usual_s, node.left_s):
                texts[name] = _too_long(request.usual_s, "it ends", node.left_s)
        texts |= self._why_not_placed(request)
        if not request.places and at in ("", LOCAL) and LOCAL not in texts:
            texts[LOCAL] = self._local_leases.trouble or "no negotiator answers yet"
        if not texts:
            return f"no site or node is named {at}: see `grn sites`"
        return "; ".join(f"{place}: {text}" for place, text in sorted(texts.items()))

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
        self._attempts[attempt] = found
        if found is None:
            self._local.start(attempt, command, lease, visible)
        elif found.node in self.nodes:
            self.nodes[found.node].start(attempt, command, found, visible)
        else:
            text = f"{found.node} was removed before it began"
            self._listener.attempt_found(attempt, AttemptFate.NOT_BEGUN, text)

    def stop(self, attempt: Attempt, is_now: bool) -> None:
        """End an attempt; one of a removed site that is out of reach is given up if told twice."""
        lease = self._attempts.get(attempt)
        if lease is None:
            self._local.stop(attempt, is_now)
            return
        node = self.nodes.get(lease.node)
        if node is not None:
            node.stop(attempt, is_now)
        is_within_reach = node is not None and (node.is_heard or node.name not in self._leaving)
        if is_now and not is_within_reach:
            text = GIVEN_UP.format(node=lease.node)
            self._listener.attempt_found(attempt, AttemptFate.INTERRUPTED, text)

    def find(self, attempt: Attempt, is_same_boot: bool, lease: str = "") -> Found:
        """Find an attempt from before a restart; one of a node counts as alive until it is told."""
        found = self._remote(lease)
        self._attempts[attempt] = found
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
        """Return since when the node of an attempt is out of sight; empty while it is heard."""
        lease = self._attempts.get(attempt)
        if lease is None:
            return ""
        node = self.nodes.get(lease.node)
        if node is None:
            return f"{lease.node} is not known any more: `grn cancel --now` gives it up"
        if node.is_heard:
            return ""
        heard = "since the queue began"
        if node.heard_at is not None:
            heard = f"for {_roughly(time.time() - node.heard_at)}"
        end = ": `grn cancel --now` gives it up" if node.name in self._leaving else ""
        return f"{node.name} not heard of {heard}{end}"

    def lease_seen(self, lease: str | None) -> LeaseRow | None:
        """Return a lease of a node as its negotiator showed it of late."""
        found = self._remote(lease or "")
        node = self.nodes.get(found.node) if found is not None else None
        if node is None or found is None or node.epoch != found.epoch:
            return None
        return next((one for one in node.leases.leases if one.id == found.lease), None)

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
        self._router.local_connected()

    def disconnected(self) -> None:
        self._router._tell_connected()

    def granted(self, job: int, grant: GrantedGpus) -> None:
        self._router.granted(None, job, grant)

    def awaited(self, job: int, text: str) -> None:
        self._router.awaited(None, job, text)

    def reasons(self, texts: dict[int, str]) -> None:
        self._router.reasons(None, texts)

    def refused(self, job: int, text: str) -> None:
        self._router.refused(None, job, text)


def _roughly(seconds: float) -> str:
    """Spell a duration so that the text changes seldom."""
    if seconds < 60:
        return f"{int(seconds) // 10 * 10} s" if seconds >= 10 else "a moment"
    minutes = int(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"


def _of_node(grant: GrantedGpus, node: Node) -> GrantedGpus:
    """Return a grant whose lease names its node."""
    from grn.queue.sites.node import RemoteLease

    lease = str(RemoteLease(node.name, node.epoch, grant.lease))
    return GrantedGpus(
        lease, grant.visible, grant.indices, grant.gpus, grant.uuids, grant.reserved_bytes,
        grant.is_first_run, grant.is_nested,
    )  # fmt: skip


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
