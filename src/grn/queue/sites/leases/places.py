"""The places that can be asked for a lease: this machine, nodes, and sites that place nodes.

Says how soon a place could start a job, and why none does; sends no request.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grn.queue.events import AskLease
from grn.queue.jobs.job_views import NO_NEGOTIATOR
from grn.queue.leases import Leases
from grn.queue.sites.leases import choice, wait_reasons
from grn.queue.sites.leases.choice import LOCAL, UNKNOWN_S, CandidateNode, CandidateNodes, PilotSite

if TYPE_CHECKING:
    from grn.queue.sites.node import Node


@dataclass(slots=True)
class OpenRequest:
    """The open request of one job, and the places that were asked."""

    asked: AskLease
    facts: dict[str, Any]
    code: str
    usual_s: float | None = None  # how long such jobs took
    places: set[str] = field(default_factory=set)
    refusals: dict[str, str] = field(default_factory=dict)
    refused_by: set[str] = field(default_factory=set)  # sites; their other nodes are alike
    said: dict[str, str] = field(default_factory=dict)  # why it waits, by place

    def may_grow(self, site: PilotSite) -> bool:
        """True when one more node of a site could run the job, and none has refused it."""
        is_refused = site.name in self.refused_by
        return not is_refused and choice.may_grow_for(self.asked.spec, site, self.usual_s)


@dataclass(frozen=True, slots=True)
class _ExpectedEnd:
    """When a job that was granted a lease will probably end, and how long such jobs took."""

    ends_at: float  # of the monotonic clock
    usual_s: float


class Places:
    """All places, the requests that wait at each, and the ends that are expected there."""

    def __init__(self, local: Leases, nodes: Mapping[str, Node]) -> None:
        self.local = local
        self.nodes = nodes
        self.pilot_sites: dict[str, PilotSite] = {}
        self.leaving: frozenset[str] = frozenset()  # nodes of removed sites: not asked any more
        self.waiting: Counter[str] = Counter()  # requests at each place
        self._expected: dict[str, dict[str, _ExpectedEnd]] = {}  # by place and lease

    @property
    def are_several(self) -> bool:
        """True when a job may run elsewhere than on this machine, now or later."""
        return bool(self.nodes or self.pilot_sites)

    def is_known(self, name: str) -> bool:
        """True while a place can be told something."""
        return name == LOCAL or name in self.nodes

    def at(self, name: str) -> Leases:
        """Return the lease conversation with a place."""
        return self.local if name == LOCAL else self.nodes[name].leases

    # --- how soon ------------------------------------------------------------------------

    def expect_end(self, name: str, lease: str, usual_s: float) -> None:
        """Note that a job was granted a lease, and how long such jobs take."""
        ends_at = time.monotonic() + usual_s
        self._expected.setdefault(name, {})[lease] = _ExpectedEnd(ends_at, usual_s)

    def ended(self, name: str, lease: str) -> None:
        """Note that a job has ended."""
        self._expected.get(name, {}).pop(lease, None)

    def forget(self, name: str) -> None:
        """Drop what was noted of a place that does not exist any more."""
        self._expected.pop(name, None)

    def candidates(self, attempts_here: int) -> CandidateNodes:
        """Return all places as they are at present."""
        local, busy = self.local, self.waiting[LOCAL] + attempts_here
        places = [CandidateNode(LOCAL, LOCAL, local.is_connected, tuple(local.gpu_bytes), busy,
                                work_s=self._work_s(LOCAL, busy))]  # fmt: skip
        for node in self.nodes.values():
            if node.name not in self.leaving:
                busy = self.waiting[node.name] + node.attempts
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

    # --- why not -------------------------------------------------------------------------

    def refusal(self, request: OpenRequest, candidates: CandidateNodes) -> str:
        """Return why no place could ever run a job; empty if one might, also one that is away."""
        spec = request.asked.spec
        sites = [site for site in self.pilot_sites.values() if spec.at in ("", site.name)]
        small = {
            site.name: wait_reasons.too_small(spec, site) for site in sites if spec.gpus > site.gpus
        }
        may_come = any(site.name not in small.keys() | request.refused_by for site in sites)
        meant = [one for one in candidates.in_order if choice.is_meant(spec.at, one)]
        is_open = any(one.name not in request.refusals and one.site not in small for one in meant)
        if may_come or is_open:
            return ""
        said = request.refusals | {
            name: text for name, text in small.items() if name not in request.refused_by
        }
        return "; ".join(f"{place}: {text}" for place, text in said.items())

    def why(self, request: OpenRequest) -> str:
        """Return why a job waits, by place."""
        spec = request.asked.spec
        texts = {
            **{name: f"refused: {text}" for name, text in request.refusals.items()},
            **{name: request.said.get(name, "was asked") for name in request.places},
        }
        for name, node in self.nodes.items():
            is_meant = spec.at in ("", name, node.address.site) and name not in self.leaving
            if is_meant and name not in texts and (text := wait_reasons.of(node, request.usual_s)):
                texts[name] = text
        used = {node.address.site for node in self.nodes.values() if node.is_open}
        for site in self.pilot_sites.values():
            if site.name not in request.refused_by and spec.at in ("", site.name):
                text = wait_reasons.of_site(spec, site, request.usual_s, site.name in used)
                texts |= {site.name: text} if text else {}
        if not request.places and spec.at in ("", LOCAL) and LOCAL not in texts:
            texts[LOCAL] = self.local.trouble or NO_NEGOTIATOR
        if not texts:
            return f"no site or node is named {spec.at}: see `grn sites`"
        return "; ".join(f"{place}: {text}" for place, text in sorted(texts.items()))
