"""The values of the lease conversation: a request, and the events that the negotiator sends.

Classes are written out by hand: `dataclasses` takes longer to import than the rest of a client.
"""

from __future__ import annotations

from grn.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Final, TypeAlias

    from grn.errors import GrnError
    from grn.wire import Message


class LeaseRequest:
    """The need of one job, in the words of the `lease` message."""

    __slots__ = ("fields",)

    def __init__(
        self,
        type: str,
        label: str,
        *,
        gpus: int = 1,
        mem: int | None = None,
        exclusive: bool = False,
        priority: int = 0,
        policy: str = "spread",
        attempt: int = 0,
        args: Mapping[str, float | str | None] | None = None,
        code: str | None = None,
        slots: Sequence[str] = (),
        stay: Sequence[str] = (),
        on: str = "",
        without: Sequence[str] = (),
        within: str | None = None,
        command: bool = False,
        spared: bool = False,
        yields: bool = False,
        at_least: float = 0.0,
        urgent: bool = False,
        cpus: float | None = None,
        ram: int | None = None,
        idle_limit: float | None = None,
    ) -> None:
        given: Message = {
            "gpus": gpus, "mem": mem, "exclusive": exclusive, "priority": priority,
            "policy": policy, "attempt": attempt, "args": args, "code": code, "slots": slots,
            "stay": stay, "on": on, "without": without, "within": within, "command": command,
            "spared": spared, "yields": yields, "at_least": at_least, "urgent": urgent,
            "cpus": cpus, "ram": ram, "idle_limit": idle_limit,
        }  # fmt: skip
        self.fields: Final[Message] = {"type": type, "label": label}
        for name, value in given.items():
            # Fields at their defaults are left out: older negotiators refuse unknown fields.
            if value is not None and value != _DEFAULTS[name]:
                self.fields[name] = value

    def but(self, **fields: Any) -> LeaseRequest:
        """Return the request with other values in some fields."""
        changed = LeaseRequest.__new__(LeaseRequest)
        changed.fields = {**self.fields, **fields}  # type: ignore[misc]
        for name, value in fields.items():
            if value is None or value == _DEFAULTS.get(name):
                del changed.fields[name]
        return changed


_DEFAULTS: Message = {
    "gpus": 1, "mem": None, "exclusive": False, "priority": 0, "policy": "spread", "attempt": 0,
    "args": {}, "code": None, "slots": (), "stay": (), "on": "", "without": (),
    "within": None, "command": False, "spared": False, "yields": False, "at_least": 0.0,
    "urgent": False, "cpus": None, "ram": None, "idle_limit": None,
}  # fmt: skip


class GrantedGpus:
    """The GPUs of a lease that was granted."""

    __slots__ = (
        "cap", "gpus", "indices", "is_first_run", "is_nested", "lease", "reserved_bytes", "uuids",
        "visible",
    )  # fmt: skip

    def __init__(
        self,
        lease: str,
        visible: str = "",
        indices: str | None = None,
        gpus: tuple[int, ...] = (),
        uuids: tuple[str, ...] = (),
        reserved_bytes: int = 0,
        is_first_run: bool = False,
        is_nested: bool = False,
        cap: float | None = None,
    ) -> None:
        self.lease: Final = lease
        self.visible: Final = visible  # for CUDA_VISIBLE_DEVICES
        self.indices: Final = indices  # the same GPUs by index, while CUDA counts as NVML does
        self.gpus: Final = gpus
        self.uuids: Final = uuids
        self.reserved_bytes: Final = reserved_bytes
        self.is_first_run: Final = is_first_run
        self.is_nested: Final = is_nested  # the lease of an outer job serves
        self.cap: Final = cap  # the part of its GPUs that its framework may take

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
            is_nested, cap,
        )  # fmt: skip


class Settled:
    """A lease is over: how the negotiator saw it end, None when it did not know the lease."""

    __slots__ = (
        "because", "has_larger", "is_victim", "lease", "outcome", "peak_bytes", "was_alone",
    )  # fmt: skip

    def __init__(
        self,
        lease: str,
        outcome: str | None = None,
        was_alone: bool = True,
        peak_bytes: int | None = None,
        is_victim: bool = False,
        because: str = "",
        has_larger: bool = False,
    ) -> None:
        self.lease: Final = lease
        self.outcome: Final = outcome
        self.was_alone: Final = was_alone
        self.peak_bytes: Final = peak_bytes
        self.is_victim: Final = is_victim  # memory ran out, and other jobs had taken too much
        self.because: Final = because  # why memory ran out
        self.has_larger: Final = has_larger  # it was alone, and a larger GPU is managed here

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


class Waiting:
    """A request waits; `text` says for what."""

    __slots__ = ("key", "text")

    def __init__(self, key: str, text: str) -> None:
        self.key: Final = key
        self.text: Final = text


class Granted:
    """A request has its lease."""

    __slots__ = ("grant", "key")

    def __init__(self, key: str, grant: GrantedGpus) -> None:
        self.key: Final = key
        self.grant: Final = grant


class Refused:
    """A request, or the binding of a lease, is refused; without a name the whole connection is."""

    __slots__ = ("error", "name")

    def __init__(self, name: str, error: GrnError) -> None:
        self.name: Final = name  # the key of a request, or a lease
        self.error: Final = error


class Bound:
    """A lease is bound to a process."""

    __slots__ = ("lease",)

    def __init__(self, lease: str) -> None:
        self.lease: Final = lease


class YieldWanted:
    """The negotiator asks the holder of a lease to give way."""

    __slots__ = ("is_idle", "lease")

    def __init__(self, lease: str, is_idle: bool = False) -> None:
        self.lease: Final = lease
        self.is_idle: Final = is_idle  # whether it was requested as yielding or not


class IdleTold:
    """A lease is idle: its job holds GPUs and does not use them."""

    __slots__ = ("held_bytes", "idle_s", "is_to_end", "lease")

    def __init__(self, lease: str, idle_s: float, held_bytes: int, is_to_end: bool) -> None:
        self.lease: Final = lease
        self.idle_s: Final = idle_s
        self.held_bytes: Final = held_bytes
        self.is_to_end: Final = is_to_end  # the job is to be ended

    @classmethod
    def from_json(cls, message: Message) -> IdleTold:
        """Read an `idle` message; raise ProtocolError if a field is of a wrong type."""
        idle_s, held_bytes = message.get("idle_s"), message.get("held", 0)
        if not isinstance(idle_s, (int, float)) or type(held_bytes) is not int:
            raise ProtocolError("the negotiator did not say for how long a lease is idle.")
        return cls(text_in(message, "lease"), idle_s, held_bytes, message.get("end") is True)


class Reasons:
    """Why open requests wait, by key; empty when the negotiator does not know the question."""

    __slots__ = ("texts", "words")

    def __init__(self, texts: dict[str, str], words: dict[str, str]) -> None:
        self.texts: Final = texts
        self.words: Final = words  # the same reasons for programs: `no-room`

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


class Answered:
    """The reply to a question that is not about leases."""

    __slots__ = ("message", "number")

    def __init__(self, number: int, message: Message) -> None:
        self.number: Final = number
        self.message: Final = message


class Garbled:
    """The bytes are no replies of a negotiator: the connection is to be closed."""

    __slots__ = ("error",)

    def __init__(self, error: ProtocolError) -> None:
        self.error: Final = error


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
