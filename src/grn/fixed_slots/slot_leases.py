"""Leases on the GPUs of fixed slots, where a negotiator manages these GPUs.

One exclusive lease for slots that share GPUs, requested when one of them is first used and held to
the end. Without a negotiator, or when it does not know a GPU, the slot is used without a lease.
"""

from __future__ import annotations

import os
import time
from enum import Enum

from grn.client.connection import PolledConnection, drive
from grn.client.negotiator import ask_once, call, connect
from grn.errors import GrnError
from grn.protocol.lease import LeaseConversation
from grn.protocol.lease_messages import Garbled, Granted, LeaseRequest, Refused, Waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grn.protocol.lease_messages import LeaseEvent
    from grn.wire import Message

ANSWER_S = 2.0
CALL_AGAIN_S = 0.2
GIVE_UP_S = 5.0  # after so long without a negotiator there is none


class SlotState(Enum):
    """State of the GPUs of a slot."""

    UNUSED = "not requested yet"
    ASKED = "requested, no answer yet"
    WAITING = "in use by another job"
    READY = "may be used"


class SlotShare:
    """GPUs that belong together, since slots share them."""

    def __init__(self, gpus: frozenset[str]) -> None:
        self.gpus = gpus
        self.state = SlotState.UNUSED
        self.key = os.urandom(12).hex()
        self.lease = ""


def shares(slots: Sequence[str], known: Sequence[Message]) -> dict[str, SlotShare]:
    """Return the GPUs to lease for each slot whose GPUs are all known."""
    found: dict[str, frozenset[str]] = {}
    for slot in slots:
        gpus = [_resolve(name.strip(), known) for name in slot.split(",")]
        if all(gpus):
            found[slot] = frozenset(gpu for gpu in gpus if gpu)
    joined: list[frozenset[str]] = []
    for gpus_of_slot in found.values():
        touching = [other for other in joined if other & gpus_of_slot]
        joined = [other for other in joined if other not in touching]
        joined.append(gpus_of_slot.union(*touching))
    made = {gpus: SlotShare(gpus) for gpus in joined}
    return {
        slot: next(share for gpus, share in made.items() if gpus & mine)
        for slot, mine in found.items()
    }


def _resolve(name: str, known: Sequence[Message]) -> str | None:
    """Return the UUID that an index, a UUID or the beginning of one stands for."""
    if name.isdecimal():
        named = [gpu["uuid"] for gpu in known if gpu["index"] == int(name)]
    else:
        named = [gpu["uuid"] for gpu in known if name and gpu["uuid"].startswith(name)]
    return named[0] if len(named) == 1 else None


def _uuids(slot: str, known: Sequence[Message]) -> str | None:
    """Return the UUIDs that a slot stands for, None when one of them is not known."""
    names = [_resolve(name.strip(), known) for name in slot.split(",")]
    return ",".join(name for name in names if name) if all(names) else None


class Hold:
    """The leases on the GPUs of fixed slots."""

    def __init__(self, slots: Sequence[str], owner: str, say: Callable[[str], None]) -> None:
        self._owner = owner  # the job type that others see
        self._say = say
        self._conversation = LeaseConversation()
        self._connection = PolledConnection(call, self._conversation)
        self._told: set[str] = set()
        self._lost_at: float | None = None
        self.wake_at: float | None = None
        known = self._known_gpus()
        self._shares = shares(slots, known)
        for slot in slots if known else ():
            if slot not in self._shares:
                there = ", ".join(str(gpu["index"]) for gpu in known)
                say(f"GPU {slot} is not managed here: there are GPUs {there}")
        self._by_key = {share.key: share for share in self._shares.values()}
        physical = [gpu for gpu in known if gpu["kind"] != "virtual"]
        self._uuids = {slot: _uuids(slot, physical) for slot in self._shares}

    def state(self, slot: str) -> SlotState:
        """Return whether a slot may be used; request its lease at the first call."""
        share = self._shares.get(slot)
        if share is None:
            return SlotState.READY
        if share.state is SlotState.UNUSED:
            share.state = SlotState.ASKED
            self._conversation.request(share.key, self._request(share))
            self._carry_on()
        return share.state

    def lease_of(self, slot: str) -> str:
        """Return the lease under which a slot is held; empty if there is none."""
        share = self._shares.get(slot)
        return share.lease if share is not None else ""

    def visible(self, slot: str) -> str:
        """Return the value of CUDA_VISIBLE_DEVICES for a slot now.

        The slot as it was written while the negotiator says that indices can be trusted, otherwise
        its UUIDs: a GPU may have been lost since the last command began.
        """
        uuids = self._uuids.get(slot)
        if uuids is None or not any(name.strip().isdecimal() for name in slot.split(",")):
            return slot
        try:
            are_sure = bool(ask_once({"op": "ping"}).get("indices"))
        except GrnError:
            are_sure = False
        return slot if are_sure else uuids

    def fileno(self) -> int | None:
        """Return the file to poll, None without a connection."""
        return self._connection.fileno()

    def hear(self) -> None:
        """Handle what the negotiator has sent; connect again while a request is open."""
        for event in self._conversation.receive_data(self._connection.receive()):
            self._handle(event)
        self._carry_on()

    def close(self) -> None:
        """End all leases, also one that is being granted."""
        held = [share for share in self._by_key.values() if share.lease]
        requested = self._open_requests()
        if (held or requested) and (self._connection.is_open or self._connection.open()):
            for share in held:
                self._conversation.done(share.lease, "ok")
            for share in requested:
                self._conversation.cancel(share.key)
            self._connection.flush()
            until = time.monotonic() + ANSWER_S
            # To close before all is acknowledged would drop what the negotiator has not read.
            while not self._conversation.is_acknowledged and self._connection.is_open:
                if time.monotonic() >= until:
                    break
                data = self._connection.wait(until - time.monotonic())
                self._conversation.receive_data(data)
                self._connection.flush()
        self._connection.close()

    # --- the conversation ----------------------------------------------------------------

    def _known_gpus(self) -> Sequence[Message]:
        """Ask which GPUs there are; none when the negotiator does not answer in time."""
        try:
            connection = connect()
        except GrnError:
            return ()
        try:
            answer = drive(connection.ask({"op": "status"}, ANSWER_S))
            gpus: Sequence[Message] = answer["status"]["gpus"]
        except (OSError, GrnError):
            self._say("the negotiator does not answer: the GPUs are used without asking it")
            return ()
        finally:
            connection.close()
        return gpus

    def _request(self, share: SlotShare) -> LeaseRequest:
        return LeaseRequest(
            self._owner, self._owner, gpus=len(share.gpus), slots=sorted(share.gpus),
            exclusive=True, command=True, within=os.environ.get("GRN_LEASE") or None,
        )  # fmt: skip

    def _open_requests(self) -> list[SlotShare]:
        return [share for share in self._by_key.values() if self._conversation.has_open(share.key)]

    def _handle(self, event: LeaseEvent) -> None:
        if isinstance(event, Garbled):
            self._connection.close()
        elif isinstance(event, Waiting):
            share = self._by_key[event.key]
            share.state = SlotState.WAITING
            self._tell_once(f"waiting for {_names(self._shares, share)}: {event.text}")
        elif isinstance(event, Granted):
            share = self._by_key[event.key]
            share.state = SlotState.READY
            if not event.grant.is_nested:
                share.lease = event.grant.lease
                self._conversation.bind(share.lease)  # to this process, which outlives the commands
        elif isinstance(event, Refused) and event.name in self._by_key:
            share = self._by_key[event.name]
            share.state = SlotState.READY
            message = event.error.message
            self._tell_once(f"{_names(self._shares, share)} used without a lease: {message}")

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)

    def _carry_on(self) -> None:
        """Send what is to be said; connect if need be, and give up after a while."""
        self._connection.flush()
        self.wake_at = None
        requested = self._open_requests()
        if self._connection.is_open or not requested:
            return
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        if self._connection.open():
            self._lost_at = None
        elif now < self._lost_at + GIVE_UP_S:
            self.wake_at = now + CALL_AGAIN_S
        else:
            for share in requested:
                share.state = SlotState.READY
                self._conversation.cancel(share.key)


def _names(all_shares: dict[str, SlotShare], share: SlotShare) -> str:
    slots = [slot for slot, other in all_shares.items() if other is share]
    return f"GPU {' and '.join(slots)}"
