"""`grn.submit`: submit a command to the queue, and follow it by its handle."""

from __future__ import annotations

import os
import sys
from functools import partial
from itertools import islice

from grn import wire
from grn.client import job_options, queue
from grn.client.connection import drive, drive_async
from grn.client.job_options import MAX_NAME, folder, text
from grn.client.leasing import job_request
from grn.errors import GrnError, JobFailed, ProtocolError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from typing import Any

    from grn.wire import Message

JOBS_PER_MESSAGE = 1000
MAX_TYPE = 1024


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
        "name": text(name, "name", MAX_NAME) if name else _called(described)[:MAX_NAME],
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
        "type": text(job_type, "type", MAX_TYPE)
        if job_type
        else (text(found.type)[-MAX_TYPE:] or "?"),
        "label": text(job_type or found.label)[-256:] or "?",
        "args": found.args,
    }
    if found.code:
        message["code"] = found.code
    if name:
        message["name"] = text(name, "name", MAX_NAME)
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
    cwd = wire.spelled(folder(options.pop("cwd", None), options.get("at") or ""))
    return {
        "cwd": cwd,
        "env": {wire.spelled(name): wire.spelled(value) for name, value in env.items()},
        "umask": mask,
        "after": _all_after(options.pop("after", ())),
        **job_options.fields(options, cwd),
    }


def send(jobs: Iterable[Message], shared: Message, *, is_quiet: bool = False) -> list[int]:
    """Send jobs, a thousand in a message; return their ids. Each message is accepted whole.

    The jobs of the next message are made while the queue writes the last one.
    """
    if not shared.get("array"):
        return _send(jobs, shared, is_quiet)
    (job,) = jobs
    try:
        return _send([job], shared, is_quiet)
    except ProtocolError:  # a queue of a version in which the members were sent one by one
        numbers = shared.pop("array")
        return _send(_members(job, numbers), shared, is_quiet)


def _members(job: Message, numbers: str) -> Iterator[Message]:
    from grn.model.ranges import parse_ranges

    argv = [wire.meant(word) for word in job["argv"]]
    for index in map(str, parse_ranges(numbers)):
        args = job_request.member_arguments(argv, index, job["args"])
        yield {**job, "args": args, "extra": {"GRN_ARRAY_INDEX": index}}


def _send(jobs: Iterable[Message], shared: Message, is_quiet: bool) -> list[int]:
    ids: list[int] = []
    left = iter(jobs)
    part = _take(left)
    while part:
        following: list[Message] = []
        answer = queue.submit(
            {"op": "submit", "jobs": part, **shared}, partial(_take_once, left, following)
        )
        if shared.get("array_limit"):
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
        raise UsageError(f"'{one}' is not the id of a job.", "Write 42, 42:ok or 42:any.")
    return [int(text), condition != "any"]


def is_id(text: str) -> bool:
    """True for a possible job id."""
    return text.isascii() and text.isdigit() and len(text) <= 18 and int(text) > 0


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
