"""`grn.submit`: submit a command to the queue, and follow it by its handle."""

from __future__ import annotations

import os
import sys
from functools import partial
from itertools import islice

from grn import wire
from grn.client import queue
from grn.client.connection import drive, drive_async
from grn.client.leasing import job_request
from grn.errors import GrnError, JobFailed, UsageError
from grn.model import MAX_CHOICE, MAX_GPUS, MAX_PRIORITY, MAX_RETRIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from typing import Any

    from grn.wire import Message

JOBS_PER_MESSAGE = 1000
MAX_TAG = 64
_RANGES = {
    "gpus": (0, MAX_GPUS),
    "priority": (-MAX_PRIORITY, MAX_PRIORITY),
    "retry": (0, MAX_RETRIES),
}
_OPTIONS = (
    "gpus", "exclusive", "priority", "retry", "requeue", "hold", "notify", "policy", "at", "on",
    "without", "tags", "array_limit", "only", "yields", "urgent", "again",
)  # fmt: skip
_ABOUT_GPUS = ("gpus", "mem", "exclusive", "on", "without")
_LONGEST = {"name": 128, "type": 1024, "notify": 4096, "at": 128, "on": MAX_CHOICE}


class JobHandle:
    """One submitted job, by its id; works in any process of the same user."""

    def __init__(self, job_id: int) -> None:
        self.id = job_id

    def __repr__(self) -> str:
        try:
            job = queue.ask({"op": "show", "job": self.id}, may_start=False)["job"]
        except GrnError:
            return f"<grn job {self.id}>"  # no queue runs, or it has forgotten the job
        state = job["reason"] or job["state"]
        where = f" on GPU {','.join(map(str, job['gpus']))}" if state == "running" else ""
        return f"<grn job {self.id} {state}{where}>"

    def status(self) -> dict[str, Any]:
        """Return the job's full record."""
        job: dict[str, Any] = queue.ask({"op": "show", "job": self.id})["job"]
        return job

    def wait(self) -> dict[str, Any]:
        """Wait until the job has ended and return how."""
        return drive(queue.end_of(self.id))

    def result(self) -> int:
        """Wait, and raise JobFailed unless it succeeded."""
        return _checked(self.wait())

    def cancel(self, *, now: bool = False) -> None:
        """End the job with its whole process tree."""
        queue.ask({"op": "cancel", "jobs": [self.id], "now": now})

    def logs(self, *, stderr: bool = False) -> str:
        """Return the job's output so far."""
        from grn.client.logs import check_stderr, read_log

        job = self.status()
        if stderr:
            check_stderr(job["folder"], self.id, job["environment"])
        return read_log(job["folder"], "err" if stderr else "log").decode(errors="replace")

    def __await__(self) -> Generator[Any, None, int]:
        ended = yield from drive_async(queue.end_of(self.id)).__await__()
        return _checked(ended)


class CallHandle(JobHandle):
    """One submitted call of a decorated function, by the id of its job."""

    def result(self) -> Any:
        """Wait, and return what the call returned, or raise what it raised."""
        return self._value(self.wait())

    def __await__(self) -> Generator[Any, None, Any]:
        ended = yield from drive_async(queue.end_of(self.id)).__await__()
        return self._value(ended)

    def _value(self, ended: dict[str, Any]) -> Any:
        from grn.client.remote_call import read_reply

        reply = read_reply(self.status()["folder"])
        if reply is not None and not reply.is_good:
            raise reply.value()
        _checked(ended)
        if reply is None:
            raise JobFailed(f"the answer of job {self.id} is not there, or not whole.", 1)
        return reply.value()


def submit_call(
    call: tuple[Callable[..., Any], Any, Any], described: Message, options: dict[str, Any]
) -> CallHandle:
    """Submit a call of a function: the function, its arguments, its keyword arguments."""
    from grn.client import remote_call
    from grn.proc.spawn import own_module

    name = options.pop("name", "")
    job: Message = {
        "argv": [wire.spelled(word) for word in own_module("grn.client.remote_call")],
        "name": _text("name", name) if name else _called(described)[: _LONGEST["name"]],
        "extra": remote_call.to_variables(remote_call.pack(*call)),
        **described,
    }
    return CallHandle(send([job], request(**options))[0])


def _called(described: Message) -> str:
    """Spell a call as people would: `train(seed=0)`."""
    function = described["label"].rpartition("::")[2]
    given = described.get("args") or {}
    values = (f"{value:g}" if isinstance(value, float) else value for value in given.values())
    return f"{function}({', '.join(map('='.join, zip(given, values, strict=True)))})"


def submit(command: str | Sequence[str], **options: Any) -> JobHandle:
    """Submit one command: a list of words, or with `shell=True` a line for the shell.

    Options: name, gpus, mem, cpus, ram, exclusive, type, priority, after, retry, time_limit, cwd,
    env, shell, requeue, hold, notify, separate_stderr, at, on, without, tags, begin, only, yields,
    at_least, urgent, signal, grace, again, idle_limit, send, fetch; as of `grn submit`.
    """
    return submit_many([command], **options)[0]


def submit_many(commands: Iterable[str | Sequence[str]], **options: Any) -> list[JobHandle]:
    """Submit several commands that share their options."""
    shell = bool(options.pop("shell", False))
    job_type = options.pop("type", None)
    name = options.pop("name", "")
    jobs = [
        wanted(words(command, shell), job_type, name, options.get("cwd")) for command in commands
    ]
    return [JobHandle(job_id) for job_id in send(jobs, request(**options))]


def words(command: str | Sequence[str], shell: bool) -> list[str]:
    """Return a command as a list of words."""
    if shell:
        line = command if isinstance(command, str) else " ".join(command)
        return ["/bin/sh", "-c", line]
    if isinstance(command, str):
        raise UsageError(
            f"the command {command!r} is one text.",
            "Give a list of words, or shell=True to have a shell take it apart.",
        )
    if not command:
        raise UsageError("the command is empty.")
    return [str(word) for word in command]


def wanted(
    argv: list[str], job_type: str | None = None, name: str = "", cwd: str | None = None,
    index: str = "",
) -> Message:  # fmt: skip
    """Return one job of a submit; `index` is its number in an array."""
    found = job_request.command_profile(argv, cwd or "", index)
    message: Message = {
        "argv": [wire.spelled(word) for word in argv],
        "type": _text("type", job_type) if job_type else (_text("", found.type)[-1024:] or "?"),
        "label": _text("", job_type or found.label)[-256:] or "?",
        "args": found.args,
    }
    if found.code:
        message["code"] = found.code
    if name:
        message["name"] = _text("name", name)
    return message


def request(**options: Any) -> Message:
    """Return the fields that all jobs of a submit share."""
    env = dict(os.environ)
    env.pop("GRN_LEASE", None)  # a separate job gets its own lease
    if options.pop("separate_stderr", False):
        from grn.client.logs import SEPARATE_STDERR

        env[SEPARATE_STDERR] = "1"
    env.update(options.pop("env", None) or {})
    mask = os.umask(0)
    os.umask(mask)
    message: Message = {
        "cwd": wire.spelled(_folder(options.pop("cwd", None), options.get("at") or "")),
        "env": {wire.spelled(name): wire.spelled(value) for name, value in env.items()},
        "umask": mask,
        "after": _all_after(options.pop("after", ())),
    }
    check_nodes(options.pop("nodes", None))
    message.update(folders(options.pop("send", False), options.pop("fetch", ()), message["cwd"]))
    job_request.check_no_gpus(*(options.get(name) for name in _ABOUT_GPUS))
    for name in ("mem", "ram", "cpus"):
        stated = options.pop(name, None)
        if stated is not None:
            from grn.model.units import parse_cpus, parse_memory

            message[name] = parse_cpus(stated) if name == "cpus" else parse_memory(stated)
    message.update(_giving_way(options))
    for name in ("time_limit", "idle_limit"):
        limit = options.pop(name, None)
        if limit is not None:
            from grn.model.units import parse_time

            message[f"{name}_s"] = parse_time(limit)
    begin = options.pop("begin", None)
    if begin:
        message["begin_at"] = begin_at(begin)
    for name, value in options.items():
        if name not in _OPTIONS:
            raise TypeError(f"submit() has no option '{name}'")
        if value is not None:
            message["held" if name == "hold" else name] = _checked_option(name, value)
    for name, usual in (
        ("policy", "spread"),
        ("at", ""),
        ("on", ""),
        ("without", []),
        ("tags", []),
        ("array_limit", 0),
        ("only", ""),
        ("yields", False),
        ("urgent", False),
        ("again", False),
    ):
        if message.get(name) == usual:
            del message[name]  # older queues do not know it
    return message


def edited(options: dict[str, Any]) -> Message:
    """Return the changed fields of a job that waits; 0 takes a time limit or a need away."""
    message: Message = {}
    for name, value in options.items():
        if name in ("mem", "ram", "cpus", "time_limit"):
            from grn.model import units

            read = {"cpus": units.parse_cpus, "time_limit": units.parse_time}
            parse = read.get(name, units.parse_memory)
            field = "time_limit_s" if name == "time_limit" else name
            message[field] = None if value == "0" else parse(value)
        elif name == "begin":
            message["begin_at"] = 0.0 if value == "now" else begin_at(value)
        elif name == "cwd":
            message["cwd"] = wire.spelled(_folder(value, options.get("at") or ""))
        else:
            message[name] = _text(name, value) if name == "name" else _checked_option(name, value)
    return message


def send(jobs: Iterable[Message], shared: Message, *, is_quiet: bool = False) -> list[int]:
    """Send jobs, a thousand in a message; return their ids. Each message is accepted whole.

    The jobs of the next message are made while the queue writes the last one.
    """
    ids: list[int] = []
    left = iter(jobs)
    part = _take(left)
    while part:
        following: list[Message] = []
        answer = queue.submit(
            {"op": "submit", "jobs": part, **shared}, partial(_take_once, left, following)
        )
        if "array_limit" in shared:
            shared.setdefault("array_first", answer["first"])
        if answer["trouble"] and not ids and not is_quiet:
            print(f"grn: accepted, but: {answer['trouble']}", file=sys.stderr)
        ids += range(answer["first"], answer["first"] + answer["count"])
        part = following
    return ids


def _take(jobs: Iterator[Message]) -> list[Message]:
    return list(islice(jobs, JOBS_PER_MESSAGE))


def _take_once(jobs: Iterator[Message], taken: list[Message]) -> None:
    taken += () if taken else _take(jobs)


def _all_after(given: Any) -> list[list[Any]]:
    """Read the dependencies of a job: one job or several."""
    several = given if isinstance(given, (list, tuple, set)) else [given]
    return [_after(one) for one in several]


def _after(one: Any) -> list[Any]:
    if isinstance(one, JobHandle):
        return [one.id, True]
    text, _, condition = str(one).partition(":")
    if not is_id(text) or condition not in ("", "ok", "any"):
        raise UsageError(f"'{one}' names no job to come after.", "Write 42, 42:ok or 42:any.")
    return [int(text), condition != "any"]


def is_id(text: str) -> bool:
    """True for a possible job id."""
    return text.isascii() and text.isdigit() and len(text) <= 18 and int(text) > 0


def _folder(path: str | None, at: str) -> str:
    """Return the folder of a job; one that is named for another machine need not be here."""
    try:
        folder = os.path.abspath(path or os.getcwd())
    except OSError as error:  # the current folder was removed
        raise UsageError("this folder is gone.", "Name another with --cwd.") from error
    is_here = path is None or at in ("", "local")
    if is_here and not os.path.isdir(folder):
        raise UsageError(f"the folder {folder} does not exist.", "Name another with --cwd.")
    return folder


def _checked_option(name: str, value: Any) -> Any:
    least, most = _RANGES.get(name, (value, value))
    if not least <= value <= most:
        raise UsageError(f"{name} is {value} and must be a number from {least} to {most}.")
    if name == "policy":
        if value not in job_request.POLICIES:
            raise UsageError(f"policy is '{value}' and must be 'spread' or 'pack'.")
        return job_request.POLICIES[value]
    if name == "tags":
        return [_tag(tag) for tag in value]
    if name == "without":
        return [_text("", str(gpu)) for gpu in value]
    if name == "only" and value:
        from grn.model.windows import parse_hours

        parse_hours(value)
    return _text(name, value) if name in ("notify", "at", "on") else value


def _giving_way(options: dict[str, Any]) -> Message:
    """Return how a job is asked to end; refuse options that contradict each other."""
    message: Message = {}
    if options.get("yields") and options.get("urgent"):
        raise UsageError("a job cannot both yield and be urgent.", "Give one or the other.")
    at_least, grace, name = (options.pop(one, None) for one in ("at_least", "grace", "signal"))
    if at_least and not options.get("yields"):
        raise UsageError("--at-least is for jobs that yield.", "Give --yield too.")
    if options.get("again") and options.get("time_limit") is None:
        raise UsageError("--again needs a limit.", "Give --time-limit too.")
    if at_least:
        message["at_least_s"] = _time(at_least)
    if grace is not None:
        message["grace_s"] = _time(grace)
    if name:
        message["signal"] = _signal(str(name))
    return message


def _time(text: str | float) -> float:
    from grn.model.units import parse_time

    return parse_time(text)


def _signal(name: str) -> int:
    """Read a signal by its name, as in USR1 or SIGUSR1."""
    import signal

    word = name.upper().removeprefix("SIG")
    found = getattr(signal, f"SIG{word}", None) if word.isalnum() else None
    if not isinstance(found, signal.Signals) or word in ("KILL", "STOP", "CONT", "CHLD"):
        raise UsageError(f"'{name}' is no signal that asks a job to end.", "Use TERM, INT or USR1.")
    return int(found)


def begin_at(text: str) -> float:
    """Read when a job may begin; a time that has passed is said to mean now."""
    import time

    from grn.model.windows import parse_moment

    now = time.time()
    found = parse_moment(text, now)
    if found < now:
        print(f"grn: {text} has passed: it may start now", file=sys.stderr)
        return 0.0
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


def _tag(tag: str) -> str:
    if not tag or len(tag) > MAX_TAG or len(tag.split()) != 1 or tag != tag.strip():
        raise UsageError(
            f"invalid tag '{tag}'.", f"A tag is one word of 1 to {MAX_TAG} characters."
        )
    return _text("", tag)


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


def _text(what: str, text: str) -> str:
    """Return a text for people, with undecodable bytes escaped."""
    if len(text) > _LONGEST.get(what, len(text)):
        raise UsageError(f"the {what} is longer than {_LONGEST[what]} characters.")
    return text.encode("utf-8", "backslashreplace").decode()


def _checked(ended: dict[str, Any]) -> int:
    if ended["reason"] != "ok":
        text = f": {ended['text']}" if ended["text"] else ""
        code = exit_code_of(ended["reason"], ended["status"], ended["signal"])
        raise JobFailed(f"job {ended['id']} ended as {ended['reason']}{text}.", code)
    return 0


def exit_code_of(reason: str, status: int | None, signal: int | None) -> int:
    """Return the exit code for a job's end: its own, or one of coreutils' `timeout`."""
    if reason == "ok":
        return 0
    if reason == "timed-out":
        return 124
    if signal:
        return 128 + signal
    return status or 125
