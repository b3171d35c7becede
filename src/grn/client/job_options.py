"""The options of a job, each declared once: how it is read, and what the queue calls it.

`grn.submit`, `grn submit` and `grn edit` read options by this table; the queue checks the fields
again. `cli/quick.py` has their flags and help texts.
"""

from __future__ import annotations

import os
import sys

from grn import wire
from grn.client.leasing import job_request
from grn.errors import UsageError
from grn.model import MAX_CHOICE, MAX_GPUS, MAX_PRIORITY, MAX_RETRIES
from grn.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from grn.wire import Message

MAX_NAME = 128
MAX_TAG = 64
_ABOUT_GPUS = ("gpus", "mem", "exclusive", "on", "without")


class JobOption(Record):
    """One option: `read` makes of a value what is sent."""

    read: Callable[[Any], Any] = lambda given: given
    field: str = ""  # of the message, where that has another name
    usual: object = None  # is not sent: older queues do not know the field
    limits: tuple[int, int] | None = None  # of a number
    longest: int = 0  # the most characters of a text
    clearing: Mapping[str, Any] = {}  # words of `grn edit` that take the value away


def fields(options: Mapping[str, Any], cwd: str) -> Message:
    """Return the fields of a submit for the options of a job; one that is None is not given."""
    job_request.check_no_gpus(*(options.get(name) for name in _ABOUT_GPUS))
    _check_together(options)
    check_nodes(options.get("nodes"))
    message = folders(options.get("send", False), options.get("fetch", ()), cwd)
    for name, given in options.items():
        if name in ("send", "fetch", "nodes"):
            continue
        if name not in OPTIONS:
            raise TypeError(f"submit() has no option '{name}'")
        usual = OPTIONS[name].usual
        if given is not None and (usual is None or (given and given != usual)):
            message[OPTIONS[name].field or name] = _read(name, given)
    return message


def edited(options: Mapping[str, Any]) -> Message:
    """Return the changed fields of a job that waits."""
    message: Message = {}
    for name, given in options.items():
        if name == "cwd":
            message[name] = wire.spelled(folder(given, options.get("at") or ""))
        elif name == "name":
            message[name] = text(given, name, MAX_NAME)
        else:
            option = OPTIONS[name]
            is_cleared = isinstance(given, str) and given in option.clearing
            value = option.clearing[given] if is_cleared else _read(name, given)
            message[option.field or name] = value
    return message


def _read(name: str, given: Any) -> Any:
    option = OPTIONS[name]
    if option.limits is not None and not option.limits[0] <= given <= option.limits[1]:
        least, most = option.limits
        raise UsageError(f"{name} is {given} and must be a number from {least} to {most}.")
    return text(given, name, option.longest) if option.longest else option.read(given)


def _check_together(options: Mapping[str, Any]) -> None:
    """Refuse options that contradict each other."""
    if options.get("yields") and options.get("urgent"):
        raise UsageError("a job cannot both yield and be urgent.", "Give one or the other.")
    if options.get("at_least") and not options.get("yields"):
        raise UsageError("--at-least is for jobs that yield.", "Give --yield too.")
    if options.get("again") and options.get("time_limit") is None:
        raise UsageError("--again needs a limit.", "Give --time-limit too.")


def check_nodes(nodes: int | None) -> None:
    """Refuse a job over several machines."""
    if nodes is not None and nodes < 1:
        raise UsageError(f"nodes is {nodes} and must be 1.")
    if nodes is not None and nodes > 1:
        raise UsageError(
            f"a job cannot have {nodes} nodes: not yet. Its processes would have to start together"
            " on machines that grant their GPUs one by one.",
            "Ask for more GPUs of one machine (--gpus), or submit one job for each machine (--at).",
        )


# --- reading values ------------------------------------------------------------------------


def text(given: str, what: str = "", longest: int | None = None) -> str:
    """Return a text for people, with undecodable bytes escaped."""
    if longest is not None and len(given) > longest:
        raise UsageError(f"the {what} is longer than {longest} characters.")
    return given.encode("utf-8", "backslashreplace").decode()


def folder(path: str | None, at: str) -> str:
    """Return the folder of a job; one that is named for another machine need not be here."""
    try:
        found = os.path.abspath(path or os.getcwd())
    except OSError as error:  # the current folder was removed
        raise UsageError("this folder is gone.", "Name another with --cwd.") from error
    is_here = path is None or at in ("", "local")
    if is_here and not os.path.isdir(found):
        raise UsageError(f"the folder {found} does not exist.", "Name another with --cwd.")
    return found


def folders(send: bool, fetch: str | Iterable[str] | None, cwd: str) -> Message:
    """Return what a submit says of its folder; empty unless it is sent or files are fetched."""
    message: Message = {}
    patterns = [fetch] if isinstance(fetch, str) else list(fetch or ())
    if patterns:
        from grn.model.fetch_patterns import fault_of

        for pattern in patterns:
            if fault := fault_of(pattern):
                raise UsageError(f"--fetch {pattern} {fault}.", "Name files as results/*.csv.")
        message["fetch"] = patterns
    if send:
        from grn.client.folder_pack import pack

        message["send"] = pack(wire.meant(cwd))
    return message


def _texts(given: Iterable[object]) -> list[str]:
    return [text(str(one)) for one in given]


def _by_units(parse: str) -> Callable[[Any], Any]:
    """Read a size, a time or a number of cores; `units` is slow to import."""

    def read(given: Any) -> Any:
        from grn.model import units

        return getattr(units, parse)(given)

    return read


def _policy(given: str) -> str:
    if given not in job_request.POLICIES:
        raise UsageError(f"policy is '{given}' and must be 'spread' or 'pack'.")
    return job_request.POLICIES[given]


def _hours(given: str) -> str:
    if given:
        from grn.model.windows import parse_hours

        parse_hours(given)
    return given


def _tags(given: Iterable[str]) -> list[str]:
    tags = list(given)
    for tag in tags:
        if not tag or len(tag) > MAX_TAG or len(tag.split()) != 1 or tag != tag.strip():
            hint = f"A tag is one word of 1 to {MAX_TAG} characters."
            raise UsageError(f"invalid tag '{tag}'.", hint)
    return _texts(tags)


def _signal(given: str | int) -> int:
    """Read a signal by its name, as in USR1 or SIGUSR1."""
    import signal

    word = str(given).upper().removeprefix("SIG")
    found = getattr(signal, f"SIG{word}", None) if word.isalnum() else None
    if not isinstance(found, signal.Signals) or word in ("KILL", "STOP", "CONT", "CHLD"):
        text = f"'{given}' is not a signal that can ask a job to end."
        raise UsageError(text, "Use TERM, INT or USR1.")
    return int(found)


def begin_at(given: str) -> float:
    """Read when a job may begin; a time that has passed is said to mean now."""
    import time

    from grn.model.windows import parse_moment

    now = time.time()
    found = parse_moment(given, now)
    if found < now:
        print(f"grn: {given} has passed: it may start now", file=sys.stderr)
        return 0.0
    return found


_NONE: Mapping[str, Any] = {"0": None}
_memory, _cpus, _time = map(_by_units, ("parse_memory", "parse_cpus", "parse_time"))
OPTIONS: Mapping[str, JobOption] = {
    "gpus": JobOption(limits=(0, MAX_GPUS)),
    "mem": JobOption(_memory, clearing=_NONE),
    "cpus": JobOption(_cpus, clearing=_NONE),
    "ram": JobOption(_memory, clearing=_NONE),
    "exclusive": JobOption(),
    "priority": JobOption(limits=(-MAX_PRIORITY, MAX_PRIORITY)),
    "policy": JobOption(_policy, usual="spread"),
    "on": JobOption(usual="", longest=MAX_CHOICE),
    "without": JobOption(_texts, usual=()),
    "at": JobOption(usual="", longest=128),
    "tags": JobOption(_tags, usual=()),
    "array": JobOption(usual=""),
    "array_limit": JobOption(usual=0),
    "hold": JobOption(field="held"),
    "begin": JobOption(begin_at, "begin_at", usual="", clearing={"now": 0.0}),
    "only": JobOption(_hours, usual=""),
    "retry": JobOption(limits=(0, MAX_RETRIES)),
    "requeue": JobOption(),
    "time_limit": JobOption(_time, "time_limit_s", clearing=_NONE),
    "again": JobOption(usual=False),
    "yields": JobOption(usual=False),
    "at_least": JobOption(_time, "at_least_s", usual=""),
    "urgent": JobOption(usual=False),
    "signal": JobOption(_signal, usual=""),
    "grace": JobOption(_time, "grace_s"),
    "idle_limit": JobOption(_time, "idle_limit_s", clearing=_NONE),
    "notify": JobOption(longest=4096),
}
