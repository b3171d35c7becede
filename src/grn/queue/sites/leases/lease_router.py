"""Lease requests of jobs at several places: this machine, and the nodes of sites.

A few places are asked for the lease of a job; the first grant is kept, and the other requests are
withdrawn. To the queue's loop this is one lease conversation. `choice.py` decides whom to ask.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grn.model.gpu import Gpu
from grn.protocol.lease_messages import GrantedGpus, IdleTold
from grn.protocol.negotiator_rows import HostRow
from grn.queue.events import AskLease
from grn.queue.jobs.job import Settlement
from grn.queue.leases import RETRY_S, LeaseListener, Leases
from grn.queue.sites.leases import choice, wait_reasons
from grn.queue.sites.leases.choice import LOCAL, UNKNOWN_S, CandidateNode, CandidateNodes, PilotSite
from grn.queue.sites.leases.remote_lease import RemoteLease, remote
from grn.queue.sites.teaching import Teacher

if TYPE_CHECKING:
    from grn.queue.sites.node import Node

log = logging.getLogger(__name__)
LOCAL_RETRY_S = 30.0
RUNS_S = 0.5  # between the end of an attempt and the question what was measured
MAX_TYPES_ASKED = 1000


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


@dataclass(frozen=True, slots=True)
class _ExpectedEnd:
    """When a job that was granted a lease will probably end, and how long such jobs took."""

    ends_at: float  # of the monotonic clock
    usual_s: float


class LeaseRouter:
    """The open requests, and the places that can be asked. With no site all go to this machine."""

    def __init__(self, queue_id: str, listener: LeaseListener, nodes: Mapping[str, Node]) -> None:
        self.queue_id = queue_id
        self._listener = listener
        self._local = Leases(queue_id, _LocalLeases(self))
        self._nodes = nodes
        self.usual_s: Callable[[str], float | None] = lambda _job_type: None
        self.attempts_here: Callable[[], int] = lambda: 0
        self._leaving: frozenset[str] = frozenset()  # nodes of removed sites: not asked any more
        self._pilot_sites: dict[str, PilotSite] = {}
        self._requests: dict[int, _Request] = {}
        self._open: Counter[str] = Counter()  # requests that wait at each place
        self._expected: dict[str, dict[str, _ExpectedEnd]] = {}  # by place and lease
        self._was_connected = False
        self._teacher = Teacher()
        self._ran: dict[str, set[str]] = {}  # types granted at a place since it was asked for runs
        self._local.on_connected = functools.partial(self.ask_all_runs, LOCAL)

    # --- the places ----------------------------------------------------------------------

    @property
    def has_sites(self) -> bool:
        """True when a job may run elsewhere than on this machine, now or later."""
        return bool(self._nodes or self._pilot_sites)

    def set_sites(self, pilot_sites: Iterable[PilotSite], leaving: Iterable[str]) -> None:
        """Note what may be asked from now on; `places_changed` follows."""
        self._pilot_sites = {site.name: site for site in pilot_sites}
        self._leaving = frozenset(leaving)
        # Where jobs can run elsewhere, this machine need not have GPUs.
        has_others = bool(self._nodes.keys() - self._leaving or self._pilot_sites)
        self._local.retry_s = LOCAL_RETRY_S if has_others else RETRY_S

    def leave(self, name: str) -> None:
        """Withdraw all requests at a place."""
        for request in self._requests.values():
            self._withdraw(request, name)

    def forget(self, name: str) -> None:
        """Drop what was said about a place that does not exist any more."""
        self._expected.pop(name, None)
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
        return self._open[name]

    def demand(self, site: str) -> dict[str, int]:
        """Return how many open requests one more node of a site could serve, and the largest."""
        grown = self._pilot_sites[site]
        waiting = [
            request.asked.spec.gpus
            for request in self._requests.values()
            if _may_grow(request, grown)
        ]
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

    def ask(
        self,
        asked: AskLease,
        facts: dict[str, Any],
        code: str = "",
    ) -> None:
        """Request the lease of one attempt where it could start soonest."""
        request = _Request(asked, facts, code, self._usual_of(asked))
        self._requests[asked.spec.id] = request
        self._ask_more([request])
        self._say_why(request)

    def _usual_of(self, asked: AskLease) -> float | None:
        return self.usual_s(asked.spec.job_type) if self.has_sites else None

    def _ask_more(self, requests: Iterable[_Request]) -> None:
        if not self.has_sites:
            for request in list(requests):
                if request.asked.spec.at in ("", LOCAL):
                    self._ask_at(LOCAL, request)
            return
        places = self._places()
        for request in list(requests):
            spec = request.asked.spec
            chosen = choice.choose(spec, places, request.places, request.refusals, request.usual_s)
            for name in chosen.withdraw:
                self._withdraw(request, name)
            for name in chosen.ask:
                self._ask_at(name, request)

    def _ask_at(self, name: str, request: _Request) -> None:
        if name not in request.places:
            request.places.add(name)
            self._open[name] += 1
            self._teach(name, request.asked.spec.job_type)
            self._at(name).ask(request.asked, request.facts, request.code)

    def _withdraw(self, request: _Request, name: str) -> None:
        if self._left(request, name):
            self._at(name).drop(request.asked.spec.id)

    def _left(self, request: _Request, name: str) -> bool:
        """Note that a request does not wait at a place any more; False if it did not."""
        if name not in request.places:
            return False
        request.places.discard(name)
        self._open[name] -= 1
        return True

    def _close(self, job: int) -> _Request | None:
        """Take a request off the books; its places have yet to be told."""
        request = self._requests.pop(job, None)
        if request is not None:
            self._open.subtract(request.places)
        return request

    def _at(self, name: str) -> Leases:
        return self._local if name == LOCAL else self._nodes[name].leases

    def _places(self) -> CandidateNodes:
        opened, leases = self._open, self._local
        busy = opened[LOCAL] + self.attempts_here()
        places = [CandidateNode(LOCAL, LOCAL, leases.is_connected, tuple(leases.gpu_bytes), busy,
                                work_s=self._work_s(LOCAL, busy))]  # fmt: skip
        for node in self._nodes.values():
            if node.name not in self._leaving:
                busy = opened[node.name] + node.attempts
                places.append(CandidateNode(
                    node.name, node.address.site, node.is_open, tuple(node.leases.gpu_bytes), busy,
                    node.left_s, self._work_s(node.name, busy),
                ))  # fmt: skip
        return CandidateNodes.of(places)

    def _work_s(self, name: str, busy: int) -> float:
        """Return how long one GPU would take for the jobs at a place; those that wait count as the
        ones that run."""
        known = self._expected.get(name)
        if not known:
            return busy * UNKNOWN_S
        now = time.monotonic()
        left_s = sum(max(0.0, one.ends_at - now) for one in known.values())
        usual_s = sum(one.usual_s for one in known.values()) / len(known)
        return left_s + (busy - len(known)) * usual_s

    def drop(self, job: int) -> None:
        """Withdraw the requests of a job."""
        request = self._close(job)
        for name in request.places if request else ():
            self._at(name).drop(job)

    def pass_on(self, job: int, heir: AskLease, facts: dict[str, Any], code: str = "") -> bool:
        """Let another job have the open requests of this one; False if there are none."""
        request = self._close(job)
        if request is None:
            return False
        passed = {name for name in request.places if self._at(name).pass_on(job, heir, facts, code)}
        if passed:
            self._open.update(passed)
            self._requests[heir.spec.id] = _Request(
                heir, facts, code, self._usual_of(heir), passed, request.refusals,
                request.refused_by,
            )  # fmt: skip
        return bool(passed)

    def key_of(self, job: int) -> str | None:
        """Return the key of the open request of a job, None when it has none."""
        request = self._requests.get(job)
        places = sorted(request.places, key=lambda name: name != LOCAL) if request else []
        return self._at(places[0]).key_of(job) if places else None

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
        self._expected.get(LOCAL if found is None else found.node, {}).pop(lease, None)
        if found is None:
            self._local.done(lease, ending, then)
            self._ask_runs_soon(LOCAL)
        elif found.node in self._nodes:
            self._nodes[found.node].done(found.lease, ending, then)
            self._ask_runs_soon(found.node)
        else:
            then(Settlement())

    # --- what places have measured, taught to the others -----------------------------------

    def ask_all_runs(self, name: str) -> None:
        """Ask a place that has just come up for all it has measured, if there are others."""
        self._teacher.forget(name)
        if self._nodes:
            hear = functools.partial(self._heard_runs, name)
            self._at(name).tell({"op": "runs"}, hear)

    def _ask_runs_soon(self, name: str) -> None:
        """Ask a place for the runs of types that were granted there, a moment after one ended."""
        if self._nodes and name in self._ran:
            asyncio.get_running_loop().call_later(RUNS_S, self._ask_runs, name)

    def _ask_runs(self, name: str) -> None:
        types = sorted(self._ran.pop(name, ()))[:MAX_TYPES_ASKED]
        if types and (name == LOCAL or name in self._nodes):
            hear = functools.partial(self._heard_runs, name)
            self._at(name).tell({"op": "runs", "types": types}, hear)

    def _heard_runs(self, name: str, reply: dict[str, Any]) -> None:
        types = self._teacher.heard(name, reply)
        if types:
            log.info("action=heard-runs place=%s types=%s", name, ",".join(map(repr, types)))
        for request in self._requests.values():
            for place in request.places:
                self._teach(place, request.asked.spec.job_type)

    def _teach(self, name: str, job_type: str) -> None:
        for lesson in self._teacher.lessons(name, job_type) if self._nodes else ():
            self._at(name).tell(lesson, lambda _answer: None)

    # --- answers about leases ------------------------------------------------------------

    def granted(self, node: Node | None, job: int, grant: GrantedGpus) -> None:
        """Keep the first grant of a job, and withdraw its requests elsewhere."""
        name = LOCAL if node is None else node.name
        request = self._close(job)
        for other in request.places - {name} if request else ():
            self._at(other).drop(job)
        of_node = grant if node is None else _of_node(grant, node)
        if request is not None and request.usual_s is not None:
            ends_at = time.monotonic() + request.usual_s
            kept = self._expected.setdefault(name, {})
            kept[of_node.lease] = _ExpectedEnd(ends_at, request.usual_s)
        self._listener.granted(job, of_node)
        if request is not None and self.has_sites:
            self._ran.setdefault(name, set()).add(request.asked.spec.job_type)
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
            texts = {job: self._why(self._requests[job]) for job in texts if job in self._requests}
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

    def _say_why(self, request: _Request) -> None:
        """Say why a request waits that no place was asked for, or end it if none ever could."""
        if request.places:
            return
        job = request.asked.spec.id
        if refusal := self._refusal(request) if self.has_sites else "":
            self._close(job)
            self._listener.refused(job, refusal)
        else:
            self._listener.awaited(job, self._why(request))

    def _refusal(self, request: _Request) -> str:
        """Return why no place could ever run a job; empty if one might, also one that is away."""
        spec = request.asked.spec
        sites = [site for site in self._pilot_sites.values() if spec.at in ("", site.name)]
        small = {
            site.name: wait_reasons.too_small(spec, site) for site in sites if spec.gpus > site.gpus
        }
        may_come = any(site.name not in small.keys() | request.refused_by for site in sites)
        meant = [one for one in self._places().in_order if choice.is_meant(spec.at, one)]
        is_open = any(one.name not in request.refusals and one.site not in small for one in meant)
        if may_come or is_open:
            return ""
        said = request.refusals | {
            name: text for name, text in small.items() if name not in request.refused_by
        }
        return "; ".join(f"{place}: {text}" for place, text in said.items())

    def _why(self, request: _Request) -> str:
        """Return why a job waits, by place."""
        spec = request.asked.spec
        texts = {
            **{name: f"refused: {text}" for name, text in request.refusals.items()},
            **{name: request.said.get(name, "was asked") for name in request.places},
        }
        for name, node in self._nodes.items():
            is_meant = spec.at in ("", name, node.address.site) and name not in self._leaving
            if is_meant and name not in texts and (text := wait_reasons.of(node, request.usual_s)):
                texts[name] = text
        used = {node.address.site for node in self._nodes.values() if node.is_open}
        for site in self._pilot_sites.values():
            if site.name not in request.refused_by and spec.at in ("", site.name):
                text = wait_reasons.of_site(spec, site, request.usual_s, site.name in used)
                texts |= {site.name: text} if text else {}
        if not request.places and spec.at in ("", LOCAL) and LOCAL not in texts:
            texts[LOCAL] = self._local.trouble or "no negotiator answers yet"
        if not texts:
            return f"no site or node is named {spec.at}: see `grn sites`"
        return "; ".join(f"{place}: {text}" for place, text in sorted(texts.items()))


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


def _may_grow(request: _Request, site: PilotSite) -> bool:
    """True when one more node of a site could run a job, and none has refused it."""
    is_refused = site.name in request.refused_by
    return not is_refused and choice.may_grow_for(request.asked.spec, site, request.usual_s)
