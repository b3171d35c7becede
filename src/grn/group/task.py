"""Values for running many commands: the task, its needs, its slot, and its end."""

from __future__ import annotations

from grn.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


class Needs(Record):
    """The needs of a task, for the queue and the negotiator; fixed slots ignore them."""

    gpus: int = 1
    mem_bytes: int | None = None
    is_exclusive: bool = False
    priority: int = 0
    job_type: str | None = None  # None: the program, as `grn exec` names it
    at: str = ""  # the site or node that it must run at, or "local"; empty: anywhere
    on: str = ""  # the GPUs it may use, as `--on` says it
    without: tuple[str, ...] = ()  # GPUs that it must not use
    is_sent: bool = False  # its folder goes to a node that does not have it
    fetch: tuple[str, ...] = ()  # patterns of the files that come back from a node
    cpus: float | None = None
    ram_bytes: int | None = None
    idle_limit_s: float | None = None  # None: as set for the machine

    @property
    def is_elsewhere(self) -> bool:
        """True when it must not run on this machine, as far as this machine's name is known."""
        return self.at not in ("", "local")


ONE_GPU = Needs()
OPTIONS = {  # of a batch, of a line in it, of a sweep; and the fields of Needs
    "gpus": "gpus", "mem": "mem_bytes", "cpus": "cpus", "ram": "ram_bytes",
    "exclusive": "is_exclusive", "priority": "priority", "type": "job_type", "at": "at", "on": "on",
    "not": "without", "idle_limit": "idle_limit_s", "send": "is_sent", "fetch": "fetch",
}  # fmt: skip


def read_needs(options: Mapping[str, Any], usual: Needs = ONE_GPU) -> Needs:
    """Return needs with the given options instead of the usual ones; other options do not count."""
    from grn.model.units import parse_cpus, parse_memory, parse_time  # slow to import

    readers = {
        "mem": parse_memory, "ram": parse_memory, "cpus": parse_cpus, "idle_limit": parse_time,
        "not": _words, "fetch": _words,
    }  # fmt: skip
    given = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    return usual.but(
        **{
            OPTIONS[name]: readers[name](value) if name in readers else value
            for name, value in given.items()
        }
    )


def _words(given: str | Iterable[object]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(map(str, given))


class Task(Record):
    """One command to run. Its environment extends this process's, the slot's extends both."""

    number: int  # from 1, in the order of the input
    argv: tuple[str, ...]
    label: str  # for people
    environment: Mapping[str, str] = {}
    folder: str | None = None  # None: the current one
    log_path: str | None = None  # of both outputs; None: those of this process
    needs: Needs = ONE_GPU
    # type, label, args and code of its job; empty: they are read from the command
    profile: Mapping[str, object] = {}


class Slot(Record):
    """A place on which one task runs at a time: fixed GPUs, or a lease."""

    name: str  # for people: "2", "0,1"
    environment: Mapping[str, str]  # CUDA_VISIBLE_DEVICES, and what a lease adds
    lease: str = ""  # its id, when it is one


class CommandEnd(Record):
    """How a task ended. A command that could not be started has the status 126 or 127."""

    task: Task
    slot: Slot
    status: int  # exit status, or minus the signal
    started_at: float  # by time.time()
    duration_s: float
    is_out_of_memory: bool = False
    peak_bytes: int | None = None
    trouble: str = ""  # why it could not be started
    is_cancelled: bool = False  # it was ended by hand, or never begun
    because: str = ""  # the cause of running out of memory
    runs_again: bool = False
    is_counted: bool = False  # if it does: as one of the requested retries
    has_more_room: bool = False  # if it does
    reason: str = ""  # the queue's reason, or the class of the error that refused it
    text: str = ""  # the queue's description of the end

    def past(self, attempt: int, before: str = "") -> str:
        """Describe why this attempt failed, after the text about the attempts before it."""
        reason = "out-of-memory" if self.is_out_of_memory else "not-started"
        if self.reason == "out-of-ram":
            reason = self.reason
        text = f"attempt {attempt}: {reason}" + (f", {self.because}" if self.because else "")
        return f"{before}; {text}" if before else text


class SlotGrant(Record):
    """A place for a task, or why there will never be one."""

    task: Task
    slot: Slot | None
    refusal: str = ""
