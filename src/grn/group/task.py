"""Values for running many commands: the task, its needs, its slot, and its end.

Immutable. Written out by hand since `dataclasses` would double the start-up time of the light entry
points.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final, TypeVar

    Same = TypeVar("Same", bound="_Value")


class _Value:
    """Equal when all its fields are."""

    __slots__: tuple[str, ...] = ()

    def but(self: Same, **changes: object) -> Same:
        """Return a copy with some fields changed."""
        return type(self)(**(self._fields() | changes))

    def _fields(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(tuple(str(value) for value in self._fields().values()))

    def __repr__(self) -> str:
        # The environment may hold secrets.
        said = (f"{name}={value!r}" for name, value in self._fields().items() if "env" not in name)
        return f"{type(self).__name__}({', '.join(said)})"


class Needs(_Value):
    """The needs of a task, for the queue and the negotiator; fixed slots ignore them."""

    __slots__ = (
        "at", "cpus", "fetch", "gpus", "is_exclusive", "is_sent", "job_type", "mem_bytes", "on",
        "priority", "ram_bytes", "without",
    )  # fmt: skip

    def __init__(
        self,
        gpus: int = 1,
        mem_bytes: int | None = None,
        is_exclusive: bool = False,
        priority: int = 0,
        job_type: str | None = None,
        at: str = "",
        on: str = "",
        without: tuple[str, ...] = (),
        is_sent: bool = False,
        fetch: tuple[str, ...] = (),
        cpus: float | None = None,
        ram_bytes: int | None = None,
    ) -> None:
        self.gpus: Final = gpus
        self.mem_bytes: Final = mem_bytes
        self.is_exclusive: Final = is_exclusive
        self.priority: Final = priority
        self.job_type: Final = job_type  # None: the program, as `grn exec` names it
        self.at: Final = at  # the site or node that it must run at, or "local"; empty: anywhere
        self.on: Final = on  # the GPUs it may use, as `--on` says it
        self.without: Final = without  # GPUs that it must not use
        self.is_sent: Final = is_sent  # its folder goes to a node that does not have it
        self.fetch: Final = fetch  # patterns of the files that come back from a node
        self.cpus: Final = cpus
        self.ram_bytes: Final = ram_bytes

    @property
    def is_elsewhere(self) -> bool:
        """True when it must not run on this machine, as far as this machine's name is known."""
        return self.at not in ("", "local")


ONE_GPU = Needs()
NO_CHANGES: Mapping[str, str] = {}
NOTHING: Mapping[str, object] = {}


class Task(_Value):
    """One command to run. Its environment extends this process's, the slot's extends both."""

    __slots__ = (
        *("argv", "environment", "folder", "label", "log_path", "needs", "number", "profile"),
    )

    def __init__(
        self,
        number: int,
        argv: tuple[str, ...],
        label: str,
        environment: Mapping[str, str] = NO_CHANGES,
        folder: str | None = None,
        log_path: str | None = None,
        needs: Needs = ONE_GPU,
        profile: Mapping[str, object] = NOTHING,
    ) -> None:
        self.number: Final = number  # from 1, in the order of the input
        self.argv: Final = argv
        self.label: Final = label  # for people
        self.environment: Final = environment
        self.folder: Final = folder  # None: the current one
        self.log_path: Final = log_path  # of both outputs; None: those of this process
        self.needs: Final = needs
        # type, label, args and code of its job; empty: they are read from the command
        self.profile: Final = profile


class Slot(_Value):
    """A place on which one task runs at a time: fixed GPUs, or a lease."""

    __slots__ = ("environment", "lease", "name")

    def __init__(self, name: str, environment: Mapping[str, str], lease: str = "") -> None:
        self.name: Final = name  # for people: "2", "0,1"
        self.environment: Final = environment  # CUDA_VISIBLE_DEVICES, and what a lease adds
        self.lease: Final = lease  # its id, when it is one


class CommandEnd(_Value):
    """How a task ended. A command that could not be started has the status 126 or 127."""

    __slots__ = (
        *("because", "duration_s", "has_more_room", "is_cancelled", "is_counted"),
        *("is_out_of_memory", "peak_bytes", "runs_again"),
        *("reason", "slot", "started_at", "status", "task", "text", "trouble"),
    )

    def __init__(
        self,
        task: Task,
        slot: Slot,
        status: int,
        started_at: float,
        duration_s: float,
        is_out_of_memory: bool = False,
        peak_bytes: int | None = None,
        trouble: str = "",
        is_cancelled: bool = False,
        because: str = "",
        runs_again: bool = False,
        is_counted: bool = False,
        has_more_room: bool = False,
        reason: str = "",
        text: str = "",
    ) -> None:
        self.task: Final = task
        self.slot: Final = slot
        self.status: Final = status  # exit status, or minus the signal
        self.started_at: Final = started_at  # by time.time()
        self.duration_s: Final = duration_s
        self.is_out_of_memory: Final = is_out_of_memory
        self.peak_bytes: Final = peak_bytes
        self.trouble: Final = trouble  # why it could not be started
        self.is_cancelled: Final = is_cancelled  # it was ended by hand, or never begun
        self.because: Final = because  # the cause of running out of memory
        self.runs_again: Final = runs_again
        self.is_counted: Final = is_counted  # if it does: as one of the requested retries
        self.has_more_room: Final = has_more_room  # if it does
        self.reason: Final = reason  # the queue's reason, or the class of the error that refused it
        self.text: Final = text  # the queue's description of the end

    def past(self, attempt: int, before: str = "") -> str:
        """Describe why this attempt failed, after the text about the attempts before it."""
        reason = "out-of-memory" if self.is_out_of_memory else "not-started"
        if self.reason == "out-of-ram":
            reason = self.reason
        text = f"attempt {attempt}: {reason}" + (f", {self.because}" if self.because else "")
        return f"{before}; {text}" if before else text


class SlotGrant(_Value):
    """A place for a task, or why there will never be one."""

    __slots__ = ("refusal", "slot", "task")

    def __init__(self, task: Task, slot: Slot | None, refusal: str = "") -> None:
        self.task: Final = task
        self.slot: Final = slot
        self.refusal: Final = refusal
