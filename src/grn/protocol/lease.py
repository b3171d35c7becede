"""The lease conversation of a client with the negotiator as a state machine without I/O.

Knows what was requested, granted and acknowledged, and repeats the rest after a restart of the
negotiator. The caller carries bytes and decides when to connect.
"""

from __future__ import annotations

from grn import wire
from grn.errors import ProtocolError
from grn.protocol.lease_messages import (
    Answered,
    Bound,
    Garbled,
    Granted,
    GrantedGpus,
    IdleTold,
    Reasons,
    Refused,
    Settled,
    Waiting,
    YieldWanted,
    text_in,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from grn.protocol.lease_messages import LeaseEvent, LeaseRequest
    from grn.wire import Message

_NEW_OUTCOMES = {  # and what an older negotiator is told, which lacks the word
    "cancelled": "failed", "yielded": "failed", "killed": "failed", "out-of-ram": "failed",
    "capped": "oom",
}  # fmt: skip


class LeaseConversation:
    """Requests and leases of one client over one connection at a time."""

    def __init__(self, *, is_queue: bool = False) -> None:
        self._is_queue = is_queue  # it can end its jobs and run them again
        self._exchange = wire.Exchange()
        self._requests: dict[str, LeaseRequest] = {}  # neither granted nor refused, by key
        self._asked: dict[int, str] = {}  # id of a `lease` message of this connection -> key
        self._unacknowledged: dict[int, Message] = {}  # repeated over the next connection
        self._quiet: dict[str, int] = {}  # ended leases, acknowledged with the next grant
        self._held: set[str] = set()  # leases whose end is still to be reported
        self._questions: set[int] = set()
        self._reasons_id = 0  # of the open question, 0 when there is none

    # --- the caller's side ---------------------------------------------------------------

    @property
    def is_acknowledged(self) -> bool:
        """True when the negotiator has answered all that it must not miss."""
        return not self._unacknowledged

    def has_open(self, key: str) -> bool:
        """True while a request is neither granted, refused nor taken back."""
        return key in self._requests

    def request(self, key: str, request: LeaseRequest) -> None:
        """Request a lease; for the key of an open request, change what is repeated later."""
        is_open = key in self._requests
        self._requests[key] = request
        if not is_open:
            self._ask(key, request)

    def cancel(self, key: str) -> None:
        """Withdraw a request, granted or not; a grant that is on its way is returned."""
        if self._requests.pop(key, None) is not None:
            for number in [number for number, asked in self._asked.items() if asked == key]:
                del self._asked[number]
        self._insist({"op": "cancel", "key": key})

    def bind(self, lease: str, pid: int | None = None) -> None:
        """Bind a lease to the process of this connection, or to its relative `pid`."""
        self._insist(bind_message(lease, pid))

    def watch(self, lease: str) -> None:
        """Register to report the end of a lease that another process holds."""
        self._held.add(lease)
        self._exchange.say({"op": "watch", "lease": lease})

    def done(
        self,
        lease: str,
        outcome: str,
        *,
        peak: int | None = None,
        resident: int | None = None,
        asked: int | None = None,
        is_quiet: bool = False,
    ) -> None:
        """Report the end of a lease; sizes are in bytes.

        A quiet report has no answer: the next grant of this connection acknowledges it.
        """
        self._held.discard(lease)
        message: Message = {"op": "done", "lease": lease, "outcome": outcome}
        if peak:
            message["peak"] = peak
        if resident:
            message["resident"] = resident
        if asked:
            message["asked"] = asked
        if is_quiet:
            number = self._exchange.say({**message, "quiet": True})
            self._unacknowledged[number] = message
            self._quiet[lease] = number
        else:
            self._insist(message)

    def ask_for_answers(self) -> None:
        """Repeat quiet reports so that they are answered."""
        for number in self._quiet.values():
            if (message := self._unacknowledged.pop(number, None)) is not None:
                self._insist(message)
        self._quiet.clear()

    def ask_reasons(self) -> None:
        """Ask why the open requests wait, unless that question is open."""
        if not self._reasons_id:
            self._reasons_id = self._exchange.say({"op": "reasons", "keys": list(self._requests)})

    def ask(self, message: Message) -> int:
        """Ask a question that is not repeated, and return the number of its answer."""
        number = self._exchange.say(message)
        self._questions.add(number)
        return number

    def adopt(self, other: LeaseConversation) -> None:
        """Take over the unacknowledged messages of another conversation."""
        for message in other._unacknowledged.values():
            self._insist(message)

    # --- the connection's side -----------------------------------------------------------

    def connection_made(self) -> None:
        """Begin a new connection: repeat what was not acknowledged, and every open request."""
        self._exchange.connection_made()
        self._asked.clear()
        self._questions.clear()
        self._quiet.clear()
        self._reasons_id = 0
        if self._is_queue:
            self.ask({"op": "queue"})  # older negotiators do not know it: the answer is ignored
        unacknowledged, self._unacknowledged = self._unacknowledged, {}
        for message in unacknowledged.values():
            self._insist(message)
        for lease in self._held:
            self._exchange.say({"op": "watch", "lease": lease})
        for key, request in self._requests.items():
            self._ask(key, request)

    def data_to_send(self) -> bytes:
        """Return the bytes to send over the connection; each is returned once."""
        return self._exchange.data_to_send()

    def receive_data(self, data: bytes) -> list[LeaseEvent]:
        """Return the events in received bytes, in order; after `Garbled` there are none."""
        events: list[LeaseEvent] = []
        try:
            for message in self._exchange.receive_data(data):
                event = self._read(message)
                if event is not None:
                    events.append(event)
        except ProtocolError as error:
            events.append(Garbled(error))
        return events

    # --- messages ------------------------------------------------------------------------

    def _ask(self, key: str, request: LeaseRequest) -> None:
        message = {"op": "lease", "key": key, **request.fields}
        self._asked[self._exchange.say(message)] = key

    def _insist(self, message: Message) -> None:
        """Send a message until it is acknowledged: else its lease could outlast its job."""
        self._unacknowledged[self._exchange.say(message)] = message

    def _read(self, message: Message) -> LeaseEvent | None:
        number = message.get("id")
        if type(number) is not int:
            return self._read_unasked(message)
        key = self._asked.get(number)
        if key is not None:
            return self._read_answer(number, key, message)
        said = self._unacknowledged.pop(number, None)
        if said is not None:
            return self._read_acknowledgement(said, message)
        if number in self._questions:
            self._questions.discard(number)
            return Answered(number, message)
        if number == self._reasons_id:
            self._reasons_id = 0
            return Reasons.from_json(message)
        if message.get("ev") == "granted":
            self._return(GrantedGpus.from_json(message))
        return None

    def _read_unasked(self, message: Message) -> LeaseEvent | None:
        if message.get("ev") == "yield":
            return YieldWanted(text_in(message, "lease"), message.get("idle") is True)
        if message.get("ev") == "idle":
            return IdleTold.from_json(message)
        error = wire.error_in(message)
        return None if error is None else Refused("", error)

    def _read_answer(self, number: int, key: str, message: Message) -> LeaseEvent | None:
        kind = message.get("ev")
        if kind == "waiting":
            return Waiting(key, text_in(message, "text"))
        if kind == "granted":
            grant = GrantedGpus.from_json(message)
            if not grant.is_nested:
                self._held.add(grant.lease)
            del self._asked[number], self._requests[key]
            if self._quiet:
                self._acknowledge(message.get("heard", []))
            return Granted(key, grant)
        error = wire.error_in(message)
        if error is None:
            raise ProtocolError("the negotiator granted nothing in its reply.")
        del self._asked[number]
        request = self._requests.pop(key)
        if isinstance(error, ProtocolError) and request.time_limit is not None:
            self.request(key, request.but(time_limit=None))  # an older negotiator does not know it
            return None
        return Refused(key, error)

    def _acknowledge(self, heard: Any) -> None:
        """Drop quiet reports that the negotiator has heard."""
        if type(heard) is not list:
            raise ProtocolError("'heard' in a reply of the negotiator is not a list.")
        for lease in self._quiet.keys() & {one for one in heard if type(one) is str}:
            self._unacknowledged.pop(self._quiet.pop(lease), None)

    def _read_acknowledgement(self, said: Message, message: Message) -> LeaseEvent | None:
        error, lease = wire.error_in(message), said.get("lease", "")
        if said["op"] == "hold":
            return Bound(lease) if error is None else Refused(lease, error)
        if said["op"] != "done":
            return None
        if error is None:
            return Settled.from_json(lease, message)
        if isinstance(error, ProtocolError) and said["outcome"] in _NEW_OUTCOMES:
            self._insist({**said, "outcome": _NEW_OUTCOMES[said["outcome"]]})
            return None
        return Settled(lease)

    def _return(self, grant: GrantedGpus) -> None:
        """Return a lease that was granted while its request was being cancelled."""
        if not grant.is_nested and grant.lease not in self._held:
            self.done(grant.lease, "failed")


def bind_message(lease: str, pid: int | None = None) -> Message:
    """Return the message that binds a lease to its sender, or to a relative of it."""
    message: Message = {"op": "hold", "lease": lease}
    return message if pid is None else {**message, "pid": pid}
