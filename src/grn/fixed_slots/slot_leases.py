"""Keeps others off the GPUs of fixed slots, where a negotiator knows these GPUs.

One exclusive lease for slots that share GPUs, taken when one of them is first used and held to the
end. Without a negotiator, or when it does not know a GPU, the slot is simply used.
"""

from __future__ import annotations

import os
import time
from enum import Enum

from grn.client.connection import ask_once
from grn.client.conversation import Conversation
from grn.errors import GrnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grn.wire import Message

ANSWER_S = 2.0
CALL_AGAIN_S = 0.2
GIVE_UP_S = 5.0  # after so long without a negotiator there is none


class SlotState(Enum):
    """How far we are with the GPUs of a slot."""

    UNUSED = "nobody has asked for them yet"
    ASKED = "there is no answer yet"
    WAITING = "somebody else uses them"
    READY = "they may be used"


class SlotShare:
    """GPUs that belong together, since slots share them."""

    def __init__(self, gpus: frozenset[str]) -> None:
        self.gpus = gpus
        self.state = SlotState.UNUSED
        self.key = os.urandom(12).hex()
        self.lease = ""


def shares(slots: Sequence[str], known: Sequence[Message]) -> dict[str, SlotShare]:
    """Return for each slot whose GPUs are known what is to be leased for it."""
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
        self._owner = owner  # what others see of us
        self._say = say
        self._line = Conversation()
        self._questions: dict[int, SlotShare] = {}
        self._told: set[str] = set()
        self._lost_at: float | None = None
        self.wake_at: float | None = None
        known = self._known_gpus()
        self._shares = shares(slots, known)
        physical = [gpu for gpu in known if gpu["kind"] != "virtual"]
        self._uuids = {slot: _uuids(slot, physical) for slot in self._shares}

    def state(self, slot: str) -> SlotState:
        """Tell whether a slot may be used; ask for it if nobody has."""
        share = self._shares.get(slot)
        if share is None:
            return SlotState.READY
        if share.state is SlotState.UNUSED:
            self._ask(share)
        return share.state

    def lease_of(self, slot: str) -> str:
        """Return the lease under which a slot is held; empty if there is none."""
        share = self._shares.get(slot)
        return share.lease if share is not None else ""

    def visible(self, slot: str) -> str:
        """Return what CUDA_VISIBLE_DEVICES takes for a slot now.

        That is the slot as it was written while the negotiator says that indices hold, and else
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
        """Return the line."""
        return self._line.fileno()

    def hear(self) -> None:
        """Hear what was said; call again when the line is lost while something waits."""
        for message in self._line.hear():
            share = self._questions.get(message.get("id", 0))
            if share is not None:
                self._understand(share, message)
        self.wake_at = None
        if not self._line.is_open and self._open_questions():
            self._call_again(time.monotonic())

    def close(self) -> None:
        """Let all go, also what is being granted to us right now."""
        mine = set(self._shares.values())
        held = [share for share in mine if share.lease]
        asked = [share for share in mine if share.state in (SlotState.ASKED, SlotState.WAITING)]
        if (held or asked) and (self._line.is_open or self._line.open()):
            said = [self._line.say("done", lease=share.lease, outcome="ok") for share in held]
            said += [self._line.say("cancel", key=share.key) for share in asked]
            self._line.wait_for(said[-1], ANSWER_S)
        self._line.close()

    # --- the line ------------------------------------------------------------------------

    def _known_gpus(self) -> Sequence[Message]:
        """Ask which GPUs there are; none when nobody answers in time."""
        if not self._line.open():
            return ()
        answer = self._line.wait_for(self._line.say("status"), ANSWER_S)
        if answer is not None and "status" in answer:
            gpus: Sequence[Message] = answer["status"]["gpus"]
            return gpus
        self._say("the negotiator does not answer: the GPUs are used without asking it")
        self._line.close()
        return ()

    def _ask(self, share: SlotShare) -> None:
        share.state = SlotState.ASKED
        message: Message = {
            "key": share.key,
            "type": self._owner,
            "label": self._owner,
            "gpus": len(share.gpus),
            "slots": sorted(share.gpus),
            "exclusive": True,
            "command": True,
        }
        outer = os.environ.get("GRN_LEASE")
        if outer:
            message["within"] = outer
        self._questions[self._line.say("lease", **message)] = share

    def _open_questions(self) -> list[SlotShare]:
        return [
            share
            for share in set(self._shares.values())
            if share.state in (SlotState.ASKED, SlotState.WAITING)
        ]

    def _understand(self, share: SlotShare, message: Message) -> None:
        error = message.get("error")
        if message.get("ev") == "waiting":
            share.state = SlotState.WAITING
            self._tell_once(f"waiting for {_names(self._shares, share)}: {message['text']}")
            return
        if error is not None:
            self._tell_once(
                f"{_names(self._shares, share)} used without a lease: {error['message']}"
            )
        elif message.get("ev") == "granted" and not message["nested"]:
            share.lease = message["lease"]
            self._line.say("hold", lease=share.lease)  # by us, who live as long as the commands
        elif message.get("ev") != "granted":
            return
        share.state = SlotState.READY

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)

    def _call_again(self, now: float) -> None:
        self._questions.clear()
        if self._lost_at is None:
            self._lost_at = now
        if self._line.open():
            self._lost_at = None
            for share in self._open_questions():
                self._ask(share)
        elif now < self._lost_at + GIVE_UP_S:
            self.wake_at = now + CALL_AGAIN_S
        else:
            for share in self._open_questions():
                share.state = SlotState.READY


def _names(all_shares: dict[str, SlotShare], share: SlotShare) -> str:
    slots = [slot for slot, other in all_shares.items() if other is share]
    return f"GPU {' and '.join(slots)}"
