"""The queue's socket: its own user's clients only, closed schemas, replies.

Bad input ends here, as an error for that client alone; only facts go on to the loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec

from grn import schemas, wire
from grn.errors import (
    GrnError,
    MachineError,
    NeverFits,
    NotAllowed,
    ProtocolError,
    UnknownJob,
    UsageError,
)
from grn.model.sizes import show_size
from grn.queue import messages
from grn.queue.events import (
    After,
    CancelAsked,
    DrainAsked,
    EndReason,
    HoldAsked,
    JobSpec,
    MoveAsked,
    Submitted,
)
from grn.queue.followers import Followers
from grn.queue.journal import Command, NewJob
from grn.queue.launch import Attempt
from grn.queue.line import Job
from grn.queue.loop import Loop

log = logging.getLogger(__name__)
FRAME_DEADLINE_S = 30.0
MOST_REQUEST_BYTES = 32 << 20
MOST_QUEUED = 1_000_000

_encode_json = msgspec.json.Encoder().encode
_CREDENTIALS = struct.Struct("3i")


class Server:
    """What all connections share."""

    def __init__(self, loop: Loop, version: str, stop: Callable[[], None]) -> None:
        self.loop = loop
        self.version = version
        self.stop = stop
        self.followers = Followers(loop, self)
        self.connections = 0

    @property
    def is_idle(self) -> bool:
        """True when no job is left and nobody is connected but to look on."""
        return self.connections == len(self.followers) and not self.loop.engine.jobs

    def connection(self) -> Connection:
        """Make the protocol of one new connection."""
        return Connection(self)

    def rows(self, where: str, values: list[Any], order: str, most: int) -> list[dict[str, Any]]:
        """Return jobs of the journal as they are shown to people."""
        return [self.shown(row) for row in self.loop.journal.rows(where, values, order, most)]

    def shown(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row of the journal as it is shown to people."""
        job = self.loop.engine.jobs.get(row["id"])
        row["argv"] = json.loads(row["argv"])
        row["after"] = json.loads(row["after"]) if row["after"] else []
        row["gpus"] = _numbers(row["gpus"])
        for name in ("is_exclusive", "may_requeue", "is_held"):
            row[name] = bool(row[name])
        row["why"] = self.why(job) if job is not None else row["text"]
        if job is not None:
            row["state"] = "held" if job.is_held else job.state.value
        folder = self.loop.launcher.folder(Attempt(row["id"], row["attempt"]))
        row["folder"] = folder if row["attempt"] else None
        return row

    def why(self, job: Job) -> str:
        """Say why a job does not run yet, or what it does."""
        trouble = self.loop.leases.trouble
        text = self.loop.engine.why(job)
        return f"{text}: {trouble}" if trouble and text == "no negotiator answers" else text

    def counts(self) -> dict[str, int]:
        """Return how many jobs there are in all."""
        return {**self.loop.engine.counts(), "ended": self.loop.journal.ended}

    @property
    def trouble(self) -> str:
        """Return what keeps the queue from its work, or nothing."""
        return self.loop.trouble or self.loop.leases.trouble or self.loop.journal.trouble

    def facts(self) -> dict[str, Any]:
        """Return who we are, what troubles us, and how many jobs there are."""
        return {
            "version": self.version,
            "pid": os.getpid(),
            "uid": os.getuid(),
            "trouble": self.trouble,
            "drained": self.loop.engine.is_drained,
            "counts": self.counts(),
        }


class Connection(asyncio.Protocol):
    """One client of this user's."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = server.loop
        self._frames = wire.Frames(MOST_REQUEST_BYTES)
        self._transport: asyncio.Transport | None = None
        self._waits: list[tuple[int, Callable[[int], None]]] = []
        self._deadline: asyncio.TimerHandle | None = None
        self.is_stuffed = False  # it has more answers than it reads
        self._follows = False

    # --- the life of a connection --------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections += 1
        peer: socket.socket = transport.get_extra_info("socket")
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[1] not in (os.getuid(), 0):
            self._refuse(None, NotAllowed("this queue belongs to another user."))
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections -= 1
        self._transport = None
        if self._follows:
            self._server.followers.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()
        for job, waiter in self._waits:
            self._loop.stop_waiting(job, waiter)

    def pause_writing(self) -> None:
        self.is_stuffed = True

    def resume_writing(self) -> None:
        self.is_stuffed = False

    def data_received(self, data: bytes) -> None:
        try:
            bodies = self._frames.feed(data)
        except ProtocolError as error:
            self._refuse(None, error)
            if self._transport is not None:
                self._transport.close()
            return
        for body in bodies:
            self._read(body)
        self._watch_frame()

    def _watch_frame(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._frames.is_mid_frame and self._transport is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(FRAME_DEADLINE_S, self._transport.abort)

    def _read(self, body: bytes) -> None:
        message_id: int | None = None
        try:
            message = messages.read(body)
            message_id = message.id
            _TABLE[type(message)](self, message)
        except schemas.Rejected as rejected:
            self._refuse(rejected.message_id, rejected.error)
        except GrnError as error:
            self._refuse(message_id, error)
        except Exception:
            # A request that breaks something must not end the queue; the client is told and the
            # traceback is kept.
            log.exception("action=answer result=failed")
            self._refuse(message_id, GrnError("the queue failed on this request; see its log."))

    def _send(self, message_id: int | None, message: dict[str, Any]) -> None:
        if self._transport is not None:
            body = _encode_json({"id": message_id, **message})
            self._transport.write(wire.HEADER.pack(len(body)) + body)

    def push(self, body: bytes) -> None:
        """Send what is a message already."""
        if self._transport is not None:
            self._transport.write(wire.HEADER.pack(len(body)) + body)

    def _refuse(self, message_id: int | None, error: GrnError) -> None:
        code = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ != "NotWritten")
        text = {"code": code, "message": error.message, "hint": error.hint}
        self._send(message_id, {"error": text})

    # --- submitting ----------------------------------------------------------------------

    def submit(self, message: messages.SubmitAsked) -> None:
        if self._is_known(message.id, message.key, len(message.jobs)):
            return
        messages.check_words(message)
        self._loop.catch_up()  # one it comes after may have ended just now
        self._check_disk()
        after = tuple(After(job, must_be_ok) for job, must_be_ok in message.after)
        ends = self._ends_of(after)
        jobs = [_new_job(message, wanted, after) for wanted in message.jobs]
        self._accept(message.id, message.key, jobs, ends, message.held)

    def _accept(
        self,
        message_id: int,
        key: str,
        jobs: list[NewJob],
        ends: dict[int, bool],
        is_held: bool = False,
    ) -> None:
        """Write jobs down, tell the engine, and only then tell the client."""
        self._check_disk()
        if len(self._loop.engine.jobs) + len(jobs) > MOST_QUEUED:
            raise UsageError(f"not accepted: {MOST_QUEUED} jobs are queued at the most.")
        for job in jobs:
            _check_fits(job.spec, self._loop.leases.gpu_bytes)
        first, is_new = self._loop.journal.submit(key, jobs, is_held)
        if is_new:
            specs = tuple(replace(job.spec, id=first + place) for place, job in enumerate(jobs))
            now = self._loop.now()
            self._loop.tell_now(Submitted(now, specs, tuple(ends.items()), is_held))
        self._send(
            message_id, {"first": first, "count": len(jobs), "trouble": self._server.trouble}
        )

    def _is_known(self, message_id: int, key: str, count: int) -> bool:
        """Answer a submit that was sent again, whatever has changed since it was accepted."""
        first = self._loop.journal.first_of(key)
        if first is not None:
            self._send(
                message_id, {"first": first, "count": count, "trouble": self._server.trouble}
            )
        return first is not None

    def _check_disk(self) -> None:
        if self._loop.trouble:
            raise MachineError(f"not accepted: {self._loop.trouble}")

    def _ends_of(self, after: tuple[After, ...]) -> dict[int, bool]:
        asked = {one.job for one in after}
        alive = asked & self._loop.engine.jobs.keys()
        ends = self._loop.journal.ended_well(asked - alive)
        unknown = asked - alive - ends.keys()
        if unknown:
            raise UnknownJob(f"there is no job {min(unknown)} to come after.", "See `grn ls`.")
        return ends

    def retry(self, message: messages.RetryAsked) -> None:
        if self._is_known(message.id, message.key, len(message.jobs)):
            return
        jobs: list[NewJob] = []
        for job_id in message.jobs:
            row = self._row(job_id)
            if row["state"] != "ended":
                raise UsageError(f"job {job_id} has not ended: it is {row['state']}.")
            jobs.append(self._again(job_id, row))
        self._accept(message.id, message.key, jobs, {})

    def _again(self, job_id: int, row: dict[str, Any]) -> NewJob:
        spec = JobSpec(
            0, row["job_type"], row["label"], row["gpus_asked"], row["mem_bytes"],
            bool(row["is_exclusive"]), row["priority"], (), row["retries"],
            bool(row["may_requeue"]),
        )  # fmt: skip
        command = self._loop.journal.command(job_id)
        return NewJob(command, spec, command.extra, self._loop.journal.arguments(job_id))

    # --- looking -------------------------------------------------------------------------

    def listing(self, message: messages.ListAsked) -> None:
        rows: list[dict[str, Any]] = []
        where, values = _where(message)
        journal = self._loop.journal
        if message.which in ("alive", "all"):
            order = "priority DESC, place"
            for state in ("state IN ('starting','running','stopping')", "state = 'queued'"):
                left = message.most - len(rows)
                rows += journal.rows(f"{state}{where}", values, order, left) if left else []
        if message.which in ("ended", "all") and len(rows) < message.most:
            sql = f"state = 'ended' AND jobs.ended_at >= ?{where}"
            left = message.most - len(rows)
            rows += journal.rows(sql, [message.since, *values], "jobs.ended_at DESC", left)
        shown = [self._server.shown(row) for row in rows]
        if message.states:
            shown = [row for row in shown if _matches(row, message.states)]
        self._send(message.id, {"jobs": shown, "counts": self._server.counts()})

    def show(self, message: messages.ShowAsked) -> None:
        row = self._server.shown(self._row(message.job))
        row["attempts"] = self._loop.journal.attempts(message.job)
        for one in row["attempts"]:
            one["gpus"] = _numbers(one["gpus"])
        command = self._loop.journal.command(message.job)
        row["environment"] = sorted({*command.environment, *command.extra})
        self._send(message.id, {"job": row})

    def follow(self, message: messages.FollowAsked) -> None:
        if self._follows:
            raise UsageError("this connection follows already.")
        self._server.followers.add(self, message.id)
        self._follows = True

    def names(self, message: messages.NamesAsked) -> None:
        self._send(message.id, {"jobs": [self._meant(name) for name in message.names]})

    def _meant(self, name: str) -> int:
        """Return the job of that id, else the only one not ended whose id begins so."""
        if int(name) in self._loop.engine.jobs or self._loop.journal.end_of(int(name)):
            return int(name)
        found = [job for job in self._loop.engine.jobs if str(job).startswith(name)]
        if len(found) == 1:
            return found[0]
        if found:
            text = f"{len(found)} jobs begin with {name}."
            raise UnknownJob(text, "Write the whole id; see `grn ls`.")
        raise UnknownJob(f"there is no job {name}.", "See `grn ls`.")

    def count(self, message: messages.CountAsked) -> None:
        self._send(message.id, {"counts": self._server.counts()})

    def _row(self, job_id: int) -> dict[str, Any]:
        rows = self._loop.journal.rows("jobs.id = ?", [job_id], "jobs.id", 1)
        if not rows:
            raise UnknownJob(f"there is no job {job_id}.", "See `grn ls`.")
        return rows[0]

    # --- waiting and steering ------------------------------------------------------------

    def wait(self, message: messages.WaitAsked) -> None:
        """Answer once for each job, as it ends; the client counts."""
        for job_id in message.jobs:
            if job_id in self._loop.engine.jobs or not self._end_of(job_id)["reason"]:
                waiter = self._waiter(message.id)  # the disk may not have taken its end yet
                self._waits.append((job_id, waiter))
                self._loop.when_ended(job_id, waiter)
            else:
                self._tell_end(message.id, job_id)

    def _waiter(self, message_id: int) -> Callable[[int], None]:
        return lambda job_id: self._tell_end(message_id, job_id)

    def _tell_end(self, message_id: int, job_id: int) -> None:
        self._send(message_id, {"ended": self._end_of(job_id)})

    def _end_of(self, job_id: int) -> dict[str, Any]:
        ended = self._loop.journal.end_of(job_id)
        if ended is None:
            raise UnknownJob(f"there is no job {job_id}.", "See `grn ls`.")
        return ended

    def cancel(self, message: messages.CancelAsked) -> None:
        self._check(message.jobs)
        alive = [job for job in message.jobs if job in self._loop.engine.jobs]
        self._loop.tell_now(CancelAsked(self._loop.now(), tuple(alive), message.now))
        self._send(message.id, {"cancelled": alive})

    def hold(self, message: messages.HoldAsked) -> None:
        self._check_queued(message.jobs)
        self._loop.tell_now(HoldAsked(self._loop.now(), tuple(message.jobs), message.held))
        self._send(message.id, {"ok": True})

    def move(self, message: messages.MoveAsked) -> None:
        self._check_queued(message.jobs)
        now, jobs = self._loop.now(), tuple(message.jobs)
        self._loop.tell_now(MoveAsked(now, jobs, message.priority, message.front))
        self._send(message.id, {"ok": True})

    def drain(self, message: messages.DrainAsked) -> None:
        self._loop.tell_now(DrainAsked(self._loop.now(), message.drained))
        busy = [job for job in self._loop.engine.jobs.values() if job.state.value != "queued"]
        self._send(message.id, {"running": len(busy)})

    def clean(self, message: messages.CleanAsked) -> None:
        if self._loop.trouble:  # the end of what comes after them may not be written yet
            raise UsageError(f"not now: {self._loop.trouble}")
        gone = self._loop.journal.clean(time.time() - message.older_than_s)
        # Many folders take their time: the queue goes on meanwhile.
        asyncio.get_running_loop().run_in_executor(None, self._loop.launcher.remove, gone)
        self._send(message.id, {"cleaned": len(gone)})

    def ping(self, message: messages.PingSaid) -> None:
        said = {"version": self._server.version, "pid": os.getpid(), "uid": os.getuid()}
        self._send(message.id, {**said, "trouble": self._server.trouble})

    def stop(self, message: messages.StopAsked) -> None:
        self._send(message.id, self._loop.engine.counts())
        self._server.stop()

    def _check_queued(self, jobs: list[int]) -> None:
        for job_id in jobs:
            job = self._loop.engine.jobs.get(job_id)
            state = job.state.value if job is not None else self._row(job_id)["state"]
            if state != "queued":
                raise UsageError(f"job {job_id} is not queued any more: it is {state}.")

    def _check(self, jobs: list[int]) -> None:
        for job_id in jobs:
            if job_id not in self._loop.engine.jobs:
                self._row(job_id)


def _numbers(text: str | None) -> list[int]:
    return [int(word) for word in text.split(",")] if text else []


def _new_job(
    message: messages.SubmitAsked, wanted: messages.Wanted, after: tuple[After, ...]
) -> NewJob:
    spec = JobSpec(
        0, wanted.type, wanted.label, message.gpus, message.mem, message.exclusive,
        message.priority, after, message.retry, message.requeue,
    )  # fmt: skip
    command = Command(
        tuple(wanted.argv), message.cwd, message.env, message.umask, wanted.name, message.notify,
        message.time_limit_s,
    )  # fmt: skip
    return NewJob(command, spec, wanted.extra, wanted.args)


def _where(message: messages.ListAsked) -> tuple[str, list[Any]]:
    where, values = "", []
    if message.states:
        unknown = set(message.states) - _STATES.keys() - _REASONS
        if unknown:
            raise UsageError(f"there is no state '{min(unknown)}'.", f"There are {_ALL_STATES}.")
        states = [_STATES[state] for state in message.states if state in _STATES]
        reasons = [state for state in message.states if state in _REASONS]
        marks = ",".join("?" * len(reasons))
        where += f" AND ({' OR '.join([*states, f'jobs.reason IN ({marks})'])})"
        values += reasons
    if message.name is not None:
        where += " AND name = ?"
        values.append(message.name)
    if message.type is not None:
        where += " AND (label = ? OR job_type = ?)"
        values += [message.type, message.type]
    return where, values


_STATES = {
    "queued": "(state = 'queued' AND NOT is_held)",
    "held": "(state = 'queued' AND is_held)",
    # The journal does not tell these apart: a start is not worth a write.
    "starting": "state IN ('starting','running')",
    "running": "state IN ('starting','running')",
    "stopping": "state = 'stopping'",
    "ended": "state = 'ended'",
}
_REASONS = {reason.value for reason in EndReason}
_ALL_STATES = ", ".join([*_STATES, *(reason.value for reason in EndReason)])


def _check_fits(spec: JobSpec, gpu_bytes: list[int]) -> None:
    """Refuse what this machine can never give; the negotiator would, when its turn has come."""
    if not gpu_bytes:
        return
    if spec.gpus > len(gpu_bytes):
        text = f"{spec.gpus} GPUs are asked for and {len(gpu_bytes)} are managed."
        raise NeverFits(text, "Ask for fewer.")
    largest = gpu_bytes[spec.gpus - 1]
    if spec.mem_bytes is not None and spec.mem_bytes > largest:
        where = "the largest GPU has" if spec.gpus == 1 else f"{spec.gpus} GPUs have at most"
        text = f"{show_size(spec.mem_bytes)} of memory are asked for and {where}"
        raise NeverFits(f"{text} {show_size(largest)}.", "Ask for less memory per GPU.")


def _matches(row: dict[str, Any], states: list[str]) -> bool:
    return row["state"] in states or row["reason"] in states


_TABLE: dict[type, Callable[[Connection, Any], None]] = {
    messages.SubmitAsked: Connection.submit,
    messages.ListAsked: Connection.listing,
    messages.ShowAsked: Connection.show,
    messages.NamesAsked: Connection.names,
    messages.WaitAsked: Connection.wait,
    messages.CancelAsked: Connection.cancel,
    messages.HoldAsked: Connection.hold,
    messages.MoveAsked: Connection.move,
    messages.RetryAsked: Connection.retry,
    messages.DrainAsked: Connection.drain,
    messages.CleanAsked: Connection.clean,
    messages.CountAsked: Connection.count,
    messages.FollowAsked: Connection.follow,
    messages.PingSaid: Connection.ping,
    messages.StopAsked: Connection.stop,
}
