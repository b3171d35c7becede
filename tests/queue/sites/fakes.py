"""Stand-ins for what a router talks to: the queue's loop, nodes, and their lease conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from grn.protocol.lease_messages import GrantedGpus
from grn.queue.events import AskLease
from grn.queue.jobs.job import AttemptFate, Exit, Settlement
from grn.queue.journal.rows import Command
from grn.queue.site import Attempt, Found
from grn.queue.sites.leases.remote_lease import NodeAddress, RemoteLease


class FakeLoop:
    """The queue's loop: keeps what it is told."""

    def __init__(self) -> None:
        self.granted_to: dict[int, str] = {}
        self.refusals: dict[int, str] = {}
        self.why: dict[int, str] = {}
        self.found: list[tuple[Attempt, AttemptFate, str]] = []
        self.ended: list[tuple[Attempt, Exit | None]] = []
        self.started: list[Attempt] = []
        self.is_connected = False

    def has_work(self) -> bool:
        return True

    def connected(self) -> None:
        self.is_connected = True

    def disconnected(self) -> None:
        self.is_connected = False

    def granted(self, job: int, grant: GrantedGpus) -> None:
        self.granted_to[job] = grant.lease

    def awaited(self, job: int, text: str) -> None:
        self.why[job] = text

    def reasons(self, texts: dict[int, str]) -> None:
        self.why.update(texts)

    def refused(self, job: int, text: str) -> None:
        self.refusals[job] = text

    def attempt_started(self, attempt: Attempt) -> None:
        self.started.append(attempt)

    def attempt_ended(self, attempt: Attempt, exit: Exit | None) -> None:
        self.ended.append((attempt, exit))

    def attempt_found(self, attempt: Attempt, fate: AttemptFate, text: str) -> None:
        self.found.append((attempt, fate, text))


class FakeSite:
    """This machine: keeps the orders it gets."""

    def __init__(self) -> None:
        self.orders: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def note(*given: Any, **_how: Any) -> Any:
            self.orders.append((name, *given))
            return Found(AttemptFate.LOST) if name == "find" else f"/attempts/{given}"

        return note


class FakeLeases:
    """One node's lease conversation: who has asked, and what was returned."""

    def __init__(self) -> None:
        self.asked: dict[int, AskLease] = {}
        self.is_connected = True
        self.gpu_bytes = [1 << 30]
        self.trouble = ""
        self.returned: list[str] = []

    def ask(self, asked: AskLease, _facts: Any, _code: str = "") -> None:
        assert asked.spec.id not in self.asked, "asked twice"
        self.asked[asked.spec.id] = asked

    def drop(self, job: int) -> None:
        self.asked.pop(job, None)

    def pass_on(self, job: int, heir: AskLease, _facts: Any, _code: str = "") -> bool:
        if self.asked.pop(job, None) is None:
            return False
        self.asked[heir.spec.id] = heir
        return True

    def key_of(self, job: int) -> str | None:
        return f"key-{job}" if job in self.asked else None

    def refresh(self, then: Callable[[], None]) -> None:
        then()


class FakeNode:
    """A node as the router sees it."""

    def __init__(self, name: str, site: str = "lab", is_up: bool = True) -> None:
        self.name = name
        self.address = NodeAddress(name, site, ("true",))
        self.leases = FakeLeases()
        self.epoch = f"epoch-{name}"
        self.agent = f"agent-{name}"
        self.is_up = is_up
        self.is_heard = is_up
        self.trouble = "" if is_up else "no route to it"
        self.is_unusable = False
        self.heard_at: float | None = None
        self.orders: list[tuple[Any, ...]] = []
        self.expected: dict[Attempt, RemoteLease] = {}
        self.is_closed = False
        self.is_draining = False
        self.left_s: float | None = None

    @property
    def is_open(self) -> bool:
        return self.is_up and not self.is_draining

    @property
    def attempts(self) -> int:
        return len(self.expected)

    async def keep_connected(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        self.is_closed = True

    def want(self) -> None:
        pass

    retry = want

    def expect(self, attempt: Attempt, lease: RemoteLease) -> None:
        self.expected[attempt] = lease

    def start(self, attempt: Attempt, command: Command, lease: RemoteLease, visible: str) -> None:
        self.expected[attempt] = lease

    def stop(self, attempt: Attempt, is_now: bool, *, is_yield: bool = False) -> None:
        self.orders.append(("stop", attempt, is_now))

    def written(self, attempt: Attempt) -> None:
        del self.expected[attempt]
        self.orders.append(("written", attempt))

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        self.orders.append(("remove", jobs))

    def done(self, lease: str, _ending: Any, then: Callable[[Settlement], None]) -> None:
        self.leases.returned.append(lease)
        then(Settlement())
