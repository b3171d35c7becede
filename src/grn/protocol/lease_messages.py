"""The values of the lease conversation: a request, and the events that the negotiator sends."""

from __future__ import annotations

from grn.errors import ProtocolError
from grn.model.record import Record, names_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from grn.errors import GrnError
    from grn.wire import Message


class LeaseRequest(Record):
    """The need of one job, in the words of the `lease` message."""

    type: str
    label: str
    gpus: int = 1
    mem: int | None = None
    exclusive: bool = False
    priority: int = 0
    policy: str = "spread"
    attempt: int = 0
    args: Mapping[str, float | str | None] = {}
    code: str | None = None
    slots: Sequence[str] = ()
    stay: Sequence[str] = ()
    on: str = ""
    without: Sequence[str] = ()
    within: str | None = None
    command: bool = False
    spared: bool = False
    yields: bool = False
    at_least: float = 0.0
    urgent: bool = False
    cpus: float | None = None
    ram: int | None = None
    idle_limit: float | None = None
    time_limit: float | None = None

    @property
    def fields(self) -> Message:
        """The fields of the message; older negotiators refuse a new one even at its default."""
        usual = self.defaults
        return {
            name: value
            for name in names_of(self)
            if (value := getattr(self, name)) is not None and value != usual.get(name)
        }


class GrantedGpus(Record):
    """The GPUs of a lease that was granted."""

    lease: str
    visible: str = ""  # for CUDA_VISIBLE_DEVICES
    indices: str | None = None  # the same GPUs by index, while CUDA counts as NVML does
    gpus: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    reserved_bytes: int = 0
    is_first_run: bool = False
    is_nested: bool = False  # the lease of an outer job serves
    cap: float | None = None  # the part of its GPUs that its framework may take
    may_end_quietly: bool = False  # nothing is measured at its end

    @classmethod
    def from_json(cls, message: Message) -> GrantedGpus:
        """Read a `granted` reply; raise ProtocolError if a field is missing or of a wrong type."""
        get = message.get
        lease, visible, indices, gpus = get("lease"), get("visible"), get("indices"), get("gpus")
        reserved_bytes, is_first_run = get("reserved", 0), get("probe", False)
        is_nested, cap = get("nested"), get("cap")
        if not (
            type(lease) is type(visible) is str
            and (indices is None or type(indices) is str)
            and type(reserved_bytes) is int
            and type(is_first_run) is type(is_nested) is bool
            and type(gpus) is list
            and (cap is None or (type(cap) is float and 0 < cap < 1))
        ):
            raise ProtocolError("the negotiator granted nothing in its reply.")
        numbers, uuids = [], []
        for gpu in gpus:
            if not (
                type(gpu) is dict and type(gpu.get("index")) is int and type(gpu.get("uuid")) is str
            ):
                raise ProtocolError("the negotiator granted nothing in its reply.")
            numbers.append(gpu["index"])
            uuids.append(gpu["uuid"])
        return cls(
            lease, visible, indices, tuple(numbers), tuple(uuids), reserved_bytes, is_first_run,
            is_nested, cap, get("quiet") is True,
        )  # fmt: skip


class Settled(Record):
    """A lease is over: how the negotiator saw it end, None when it did not know the lease."""

    lease: str
    outcome: str | None = None
    was_alone: bool = True
    peak_bytes: int | None = None
    is_victim: bool = False  # memory ran out, and other jobs had taken too much
    because: str = ""  # why memory ran out
    has_larger: bool = False  # it was alone, and a larger GPU is managed here

    @classmethod
    def from_json(cls, lease: str, message: Message) -> Settled:
        """Read the reply to `done`; raise ProtocolError if a field is of a wrong type."""
        get = message.get
        outcome, peak_bytes, because = get("ended"), get("peak"), get("because", "")
        was_alone, is_victim, has_larger = (
            get("alone", True),
            get("victim", False),
            get("larger", False),
        )
        if not (
            (outcome is None or type(outcome) is str)
            and (peak_bytes is None or type(peak_bytes) is int)
            and type(because) is str
            and type(was_alone) is type(is_victim) is type(has_larger) is bool
        ):
            raise ProtocolError("the negotiator did not say how a lease ended.")
        return cls(lease, outcome, was_alone, peak_bytes, is_victim, because, has_larger)


class Waiting(Record):
    """A request waits; `text` says for what."""

    key: str
    text: str


class Granted(Record):
    """A request has its lease."""

    key: str
    grant: GrantedGpus


class Refused(Record):
    """A request, or the binding of a lease, is refused; without a name the whole connection is."""

    name: str  # the key of a request, or a lease
    error: GrnError


class Bound(Record):
    """A lease is bound to a process."""

    lease: str


class YieldWanted(Record):
    """The negotiator asks the holder of a lease to give way."""

    lease: str
    is_idle: bool = False  # whether it was requested as yielding or not


class IdleTold(Record):
    """A lease is idle: its job holds GPUs and does not use them."""

    lease: str
    idle_s: float
    held_bytes: int
    is_to_end: bool  # the job is to be ended

    @classmethod
    def from_json(cls, message: Message) -> IdleTold:
        """Read an `idle` message; raise ProtocolError if a field is of a wrong type."""
        idle_s, held_bytes = message.get("idle_s"), message.get("held", 0)
        if not isinstance(idle_s, (int, float)) or type(held_bytes) is not int:
            raise ProtocolError("the negotiator did not say for how long a lease is idle.")
        return cls(text_in(message, "lease"), idle_s, held_bytes, message.get("end") is True)


class Reasons(Record):
    """Why open requests wait, by key; empty when the negotiator does not know the question."""

    texts: dict[str, str]
    words: dict[str, str]  # the same reasons for programs: `no-room`

    @classmethod
    def from_json(cls, message: Message) -> Reasons:
        """Read the reply to `reasons`; raise ProtocolError if a field is of a wrong type."""
        reasons = message.get("reasons", {})
        if type(reasons) is not dict or not all(type(one) is dict for one in reasons.values()):
            raise ProtocolError(
                "the reasons in a reply of the negotiator are not as they should be."
            )
        return cls(
            {key: text_in(one, "why") for key, one in reasons.items()},
            {key: one["reason"] for key, one in reasons.items() if type(one.get("reason")) is str},
        )


class Answered(Record):
    """The reply to a question that is not about leases."""

    number: int
    message: Message


class Garbled(Record):
    """The bytes are no replies of a negotiator: the connection is to be closed."""

    error: ProtocolError


if TYPE_CHECKING:
    LeaseEvent: TypeAlias = (
        Waiting
        | Granted
        | Refused
        | Settled
        | Bound
        | YieldWanted
        | IdleTold
        | Reasons
        | Answered
        | Garbled
    )


def text_in(message: Message, name: str) -> str:
    """Return one text of a reply; raise ProtocolError if it is missing or no text."""
    value = message.get(name)
    if type(value) is not str:
        raise ProtocolError(f"'{name}' in a reply of the negotiator is not a text.")
    return value
