"""Lease requests of jobs at several places: this machine, and the nodes of sites.

A few places are asked for the lease of a job; the first grant is kept, and the other requests are
withdrawn. To the queue's loop this is one lease conversation. `choice.py` decides whom to ask,
`places.py` says why a request waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from grn.model.gpu import Gpu
from grn.protocol.lease_messages import GrantedGpus, IdleTold
from grn.protocol.negotiator_rows import HostRow
from grn.queue.events import AskLease
from grn.queue.jobs.job import Settlement
from grn.queue.leases import RETRY_S, LeaseListener, Leases
from grn.queue.sites.leases import choice
from grn.queue.sites.leases.choice import LOCAL, CandidateNodes, PilotSite
from grn.queue.sites.leases.places import OpenRequest, Places
from grn.queue.sites.leases.remote_lease import RemoteLease, remote
from grn.queue.sites.leases.run_sharing import RunSharing

if TYPE_CHECKING:
    from grn.queue.sites.node import Node

LOCAL_RETRY_S = 30.0


class LeaseRouter:
    """The open requests, and the places that can be asked. With no site all go to this machine."""

    def __init__(self, queue_id: str, listener: LeaseListener, nodes: Mapping[str, Node]) -> None:
        self.queue_id = queue_id
        self._listener = listener
        self._local = Leases(queue_id, _LocalLeases(self))
        self._nodes = nodes
        self._places = Places(self._local, nodes)
        self.sharing = RunSharing(self._places, self._teach_all)
        self.usual_s: Callable[[str], float | None] = lambda _job_type: None
        self.attempts_here: Callable[[], int] = lambda: 0
        self._requests: dict[int, OpenRequest] = {}
        self._was_connected = False
        self._local.on_connected = functools.partial(self.sharing.ask_all, LOCAL)

    # --- the places ----------------------------------------------------------------------

    @property
    def has_sites(self) -> bool:
        """True when a job may run elsewhere than on this machine, now or later."""
        return self._places.are_several

    def set_sites(self, pilot_sites: Iterable[PilotSite], leaving: Iterable[str]) -> None:
        """Note what may be asked from now on; `places_changed` follows."""
        places = self._places
        places.pilot_sites = {site.name: site for site in pilot_sites}
        places.leaving = frozenset(leaving)
        # Where jobs can run elsewhere, this machine need not have GPUs.
        has_others = bool(self._nodes.keys() - places.leaving or places.pilot_sites)
        self._local.retry_s = LOCAL_RETRY_S if has_others else RETRY_S

    def leave(self, name: str) -> None:
        """Withdraw all requests at a place."""
        for request in self._requests.values():
            self._withdraw(request, name)

    def forget(self, name: str) -> None:
        """Drop what was said about a place that does not exist any more."""
        self._places.forget(name)
        for request in self._requests.values():
            self._left(request, name)
            request.said.pop(name, None)

    def withdraw_late(self) -> None:
        """Withdraw requests from nodes that will be taken back before their jobs could end."""
        for node in self._nodes.values():
            left_s = node.left_s
            for request in self._requests.values():
                if not choice.ends_within(request.usual_s, left_s):
                    self._withdraw(request, node.name)
        self._ask_more(self._requests.values())

    def places_changed(self) -> None:
        """Ask places that have come up, and say why requests wait."""
        self._ask_more(self._requests.values())
        self.tell_connected()
        for request in list(self._requests.values()):
            self._say_why(request)

    def local_connected(self) -> None:
        """Ask this machine for the requests that came before its negotiator."""
        self._ask_more(self._requests.values())
        self.tell_connected()

    def tell_connected(self) -> None:
        """Report whether any place can be asked."""
        is_connected = self.is_connected
        if is_connected:
            self._listener.connected()  # perhaps again: there may be room for more requests
        elif self._was_connected:
            self._listener.disconnected()
        self._was_connected = is_connected

    def asked_at(self, name: str) -> int:
        """Return how many requests wait at a place."""
        return self._places.waiting[name]

    def demand(self, site: str) -> dict[str, int]:
        """Return how many open requests one more node of a site could serve, and the largest."""
        grown = self._places.pilot_sites[site]
        waiting = [one.asked.spec.gpus for one in self._requests.values() if one.may_grow(grown)]
        return {"jobs": len(waiting), "gpus": max(waiting, default=0)}

    # --- the lease conversation, as the loop sees it -------------------------------------

    @property
    def is_connected(self) -> bool:
        """True when some place can grant leases, or may soon."""
        return self._local.is_connected or self.has_sites

    @property
    def trouble(self) -> str:
        """Return why no lease can be had here; with sites this machine need not have GPUs."""
        return "" if self.has_sites else self._local.trouble

    @property
    def gpu_bytes(self) -> list[int]:
        """Return the memory of each GPU here, largest first; empty if not known, or with sites."""
        return [] if self.has_sites else self._local.gpu_bytes

    @property
    def gpu_facts(self) -> list[Gpu]:
        """Return what GPUs there are here; empty if not known, or with sites."""
        return [] if self.has_sites else self._local.gpu_facts

    @property
    def host(self) -> HostRow | None:
        """Return this machine beside its GPUs, None where jobs may run on others."""
        return None if self.has_sites else self._local.host

    async def keep_connected(self) -> None:
        """Keep a connection to the negotiator of this machine."""
        await self._local.keep_connected()

    def close(self) -> None:
        """Close the connection to the negotiator of this machine."""
        self._local.close()

    def want(self) -> None:
        """There is work."""
        self._local.want()
        for node in self._nodes.values():
            node.want()

    def retry(self) -> None:
        """Try again soon to reach the nodes that are away."""
        for node in self._nodes.values():
            node.retry()

    def ask(self, asked: AskLease, facts: dict[str, Any], code: str = "") -> None:
        """Request the lease of one attempt where it could start soonest."""
        request = OpenRequest(asked, facts, code, self._usual_of(asked))
        self._requests[asked.spec.id] = request
        self._ask_more([request])
        self._say_why(request)

    def _usual_of(self, asked: AskLease) -> float | None:
        return self.usual_s(asked.spec.job_type) if self.has_sites else None

    def _ask_more(self, requests: Iterable[OpenRequest]) -> None:
        if not self.has_sites:
            for request in list(requests):
                if request.asked.spec.at in ("", LOCAL):
                    self._ask_at(LOCAL, request)
            return
        places = self._candidates()
        for request in list(requests):
            spec = request.asked.spec
            chosen = choice.choose(spec, places, request.places, request.refusals, request.usual_s)
            for name in chosen.withdraw:
                self._withdraw(request, name)
            for name in chosen.ask:
                self._ask_at(name, request)

    def _ask_at(self, name: str, request: OpenRequest) -> None:
        if name not in request.places:
            request.places.add(name)
            self._places.waiting[name] += 1
            self.sharing.teach(name, request.asked.spec.job_type)
            self._places.at(name).ask(request.asked, request.facts, request.code)

    def _withdraw(self, request: OpenRequest, name: str) -> None:
        if self._left(request, name):
            self._places.at(name).drop(request.asked.spec.id)

    def _left(self, request: OpenRequest, name: str) -> bool:
        """Note that a request does not wait at a place any more; False if it did not."""
        if name not in request.places:
            return False
        request.places.discard(name)
        self._places.waiting[name] -= 1
        return True

    def _close(self, job: int) -> OpenRequest | None:
        """Take a request off the books; its places have yet to be told."""
        request = self._requests.pop(job, None)
        if request is not None:
            self._places.waiting.subtract(request.places)
        return request

    def _candidates(self) -> CandidateNodes:
        return self._places.candidates(self.attempts_here())

    def drop(self, job: int) -> None:
        """Withdraw the requests of a job."""
        request = self._close(job)
        for name in request.places if request else ():
            self._places.at(name).drop(job)

    def pass_on(self, job: int, heir: AskLease, facts: dict[str, Any], code: str = "") -> bool:
        """Let another job have the open requests of this one; False if there are none."""
        request = self._close(job)
        if request is None:
            return False
        at = self._places.at
        passed = {name for name in request.places if at(name).pass_on(job, heir, facts, code)}
        if passed:
            self._places.waiting.update(passed)
            self._requests[heir.spec.id] = OpenRequest(
                heir, facts, code, self._usual_of(heir), passed, request.refusals,
                request.refused_by,
            )  # fmt: skip
        return bool(passed)

    def key_of(self, job: int) -> str | None:
        """Return the key of the open request of a job, None when it has none."""
        request = self._requests.get(job)
        places = sorted(request.places, key=lambda name: name != LOCAL) if request else []
        return self._places.at(places[0]).key_of(job) if places else None

    def refresh(self, then: Callable[[], None]) -> None:
        """Ask all places why requests wait, and nodes for their GPUs, then call `then`."""
        nodes = [node.leases for node in self._nodes.values()]
        asks = [self._local.refresh, *(leases.refresh for leases in nodes)]
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
        if remote(lease) is None:  # a node watches those of the attempts it expects
            self._local.watch(lease)

    def done(self, lease: str, ending: dict[str, Any], then: Callable[[Settlement], None]) -> None:
        """Report how a lease ended; `then` gets the negotiator's view of it, if there is one."""
        found = remote(lease)
        self._places.ended(LOCAL if found is None else found.node, lease)
        if found is None:
            self._local.done(lease, ending, then)
            self.sharing.ended(LOCAL)
        elif found.node in self._nodes:
            self._nodes[found.node].done(found.lease, ending, then)
            self.sharing.ended(found.node)
        else:
            then(Settlement())

    def _teach_all(self) -> None:
        """Teach each place the types that it was asked for."""
        for request in self._requests.values():
            for place in request.places:
                self.sharing.teach(place, request.asked.spec.job_type)

    # --- answers about leases ------------------------------------------------------------

    def granted(self, node: Node | None, job: int, grant: GrantedGpus) -> None:
        """Keep the first grant of a job, and withdraw its requests elsewhere."""
        name = LOCAL if node is None else node.name
        request = self._close(job)
        for other in request.places - {name} if request else ():
            self._places.at(other).drop(job)
        of_node = grant if node is None else _of_node(grant, node)
        if request is not None and request.usual_s is not None:
            self._places.expect_end(name, of_node.lease, request.usual_s)
        self._listener.granted(job, of_node)
        if request is not None and self.has_sites:
            self.sharing.granted(name, request.asked.spec.job_type)
            self._ask_more(self._requests.values())  # the withdrawn requests made room

    def awaited(self, node: Node | None, job: int, text: str) -> None:
        """Note why a place does not grant a request yet."""
        self.reasons(node, {job: text})

    def reasons(self, node: Node | None, texts: dict[int, str]) -> None:
        """Note the present reasons of a place."""
        name = LOCAL if node is None else node.name
        for job, text in texts.items():
            request = self._requests.get(job)
            if request is not None:
                request.said[name] = text
        if self.has_sites:
            texts = {
                job: self._places.why(self._requests[job]) for job in texts if job in self._requests
            }
        self._listener.reasons(texts)

    def refused(self, node: Node | None, job: int, text: str) -> None:
        """End a job that all places refuse; one that is away may still take it."""
        if node is None and not self.has_sites:
            self._close(job)
            self._listener.refused(job, text)
            return
        request = self._requests.get(job)
        if request is None:
            return
        name = LOCAL if node is None else node.name
        self._left(request, name)
        request.refusals[name] = text
        if node is not None:
            request.refused_by.add(node.address.site)
        self._ask_more([request])
        self._say_why(request)

    def yield_asked(self, node: Node | None, lease: str, is_idle: bool) -> None:
        """Pass on that a lease is asked to give way."""
        name = lease if node is None else str(RemoteLease(node.name, node.epoch, lease))
        self._listener.yield_asked(name, is_idle)

    def idle_told(self, node: Node | None, told: IdleTold) -> None:
        """Pass on that a lease is idle."""
        if node is not None:
            name = str(RemoteLease(node.name, node.epoch, told.lease))
            told = IdleTold(name, told.idle_s, told.held_bytes, told.is_to_end)
        self._listener.idle_told(told)

    def _say_why(self, request: OpenRequest) -> None:
        """Say why a request waits that no place was asked for, or end it if none ever could."""
        if request.places:
            return
        job = request.asked.spec.id
        refusal = self._places.refusal(request, self._candidates()) if self.has_sites else ""
        if refusal:
            self._close(job)
            self._listener.refused(job, refusal)
        else:
            self._listener.awaited(job, self._places.why(request))


class _LocalLeases:
    """Passes the events of this machine's lease conversation to the router."""

    def __init__(self, router: LeaseRouter) -> None:
        self._router = router

    def has_work(self) -> bool:
        return self._router._listener.has_work()

    def connected(self) -> None:
        self._router.local_connected()

    def disconnected(self) -> None:
        self._router.tell_connected()

    def granted(self, job: int, grant: GrantedGpus) -> None:
        self._router.granted(None, job, grant)

    def awaited(self, job: int, text: str) -> None:
        self._router.awaited(None, job, text)

    def reasons(self, texts: dict[int, str]) -> None:
        self._router.reasons(None, texts)

    def refused(self, job: int, text: str) -> None:
        self._router.refused(None, job, text)

    def yield_asked(self, lease: str, is_idle: bool) -> None:
        self._router.yield_asked(None, lease, is_idle)

    def idle_told(self, told: IdleTold) -> None:
        self._router.idle_told(None, told)


def _of_node(grant: GrantedGpus, node: Node) -> GrantedGpus:
    """Return a grant whose lease names its node."""
    lease = str(RemoteLease(node.name, node.epoch, grant.lease))
    return GrantedGpus(
        lease, grant.visible, grant.indices, grant.gpus, grant.uuids, grant.reserved_bytes,
        grant.is_first_run, grant.is_nested, grant.cap,
    )  # fmt: skip
