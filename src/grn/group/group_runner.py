"""Runs tasks as jobs of this user's queue: one group, tied to this process.

The queue starts, ends and repeats the jobs. After a restart of the queue, submits without an answer
are sent again under the same keys, and the runner watches its jobs again.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Collection
from itertools import groupby
from typing import Any

from grn import wire
from grn.client import daemons, queue
from grn.client.connection import PolledConnection
from grn.client.job_options import folders
from grn.client.submit import request, wanted
from grn.errors import GrnError, ProtocolError
from grn.group.roles import RunListener, Source
from grn.group.task import CommandEnd, Needs, Slot, Task
from grn.proc.terminate import StopSignals
from grn.protocol.queue_rows import JobRow, ProgressRow
from grn.protocol.rows import read, read_all

Message = dict[str, Any]
AHEAD = 1000  # jobs that wait in the queue
FIRST = 50  # of these, submitted first: they run while the others are made
MESSAGE_BYTES = 4 << 20
NOT_RUNNABLE = 126
TERMINATED = -15
NOWHERE = Slot("", {})
REASON_S, REASON_AGAIN_S = 0.2, 1.0
DIAL_AGAIN_S = 1.0
ABANDON_S = 10.0
_NOT_BEGUN = ("not-started", "interrupted")


class SentTask:
    """A task that has become a job of the queue."""

    __slots__ = ("attempt", "is_running", "memory_attempt", "slot", "task", "tries_left")

    def __init__(self, task: Task, tries_left: int) -> None:
        self.task = task
        self.tries_left = tries_left
        self.memory_attempt = 0
        self.attempt = 0
        self.is_running = False
        self.slot = NOWHERE


class GroupRunner:
    """Runs all tasks of a source as one group; `run` returns when the last has ended."""

    def __init__(
        self,
        source: Source,
        listener: RunListener,
        group: str,
        *,
        retries: int = 0,
        is_fail_fast: bool = False,
        on_wait: Callable[[Task, str], None] | None = None,
        on_submit: Callable[[Task, int], None] | None = None,
        shared: Message | None = None,
        ahead: int = AHEAD,
    ) -> None:
        self._source = source
        self._listener = listener
        self._group = group.encode("utf-8", "backslashreplace").decode()[:128]
        self._retries = retries
        self._is_fail_fast = is_fail_fast
        self._on_wait = on_wait or (lambda task, reason: None)
        self._on_submit = on_submit or (lambda task, job: None)
        self._ahead = ahead
        self._exchange = wire.Exchange(wire.decode)
        self._line = PolledConnection(lambda: queue.connect().sock, self._exchange)
        self._jobs: dict[int, SentTask] = {}  # that have not ended
        self._unanswered: dict[int, tuple[Message, list[Task]]] = {}  # by number of the message
        self._refused: list[tuple[Message, list[Task]]] = []  # to be sent again
        self._again: list[Task] = []
        self._failures: dict[int, int] = {}  # by number of the task
        self._cancelled: set[int] = set()  # numbers of tasks
        self._shared = shared or request()
        self._sent: Message = {}  # the folder of all tasks, once it is packed
        self._watch = self._reason_asked = 0  # numbers of messages
        self._reason_at = self._dial_at = self._submit_at = 0.0
        self._running = 0
        self.is_draining = False
        self.is_stopping = False
        self.stopped_by = 0

    # --- control by listeners -----------------------------------------------------

    def again(self, task: Task) -> bool:
        """Run a task again that failed with exit status 0; False if no retry is left."""
        if self.is_draining or self._tries_left(task) <= 0:
            return False
        self._count_failure(task)
        self._again.append(task)
        return True

    def cancel(self, numbers: Collection[int], *, is_queued_only: bool = False) -> None:
        """End some tasks, or only those of them that have not begun."""
        if not numbers:
            return
        jobs = [job for job, sent in self._jobs.items() if sent.task.number in numbers]
        if not is_queued_only:
            self._cancelled.update(numbers)  # sent again to the next queue if this one ends
        if jobs:
            self._tell({"op": "cancel", "jobs": jobs, "queued": is_queued_only})

    def drain(self) -> None:
        """Start no more tasks and let running ones finish."""
        self.is_draining = True
        self._tell({"op": "cancel", "jobs": list(self._jobs), "queued": True})

    def stop(self) -> None:
        """End all running tasks, with SIGTERM first; kill them at the second call."""
        is_second = self.is_stopping
        self.is_draining = self.is_stopping = True
        self._tell({"op": "cancel", "jobs": list(self._jobs), "now": is_second})
        if is_second and not self._line.is_open:
            for open_tasks in (self._jobs, self._unanswered, self._refused):
                open_tasks.clear()  # the next queue cancels them

    # --- the loop ------------------------------------------------------------------------

    def run(self) -> None:
        """Run all tasks; return when the last has ended or all were stopped."""
        signals = StopSignals()
        self._poll = select.poll()
        self._poll.register(signals.fd, select.POLLIN)
        try:
            self._loop(signals)
        except BaseException:
            self._abandon()  # the listener or the source raised: leave nothing running
            raise
        finally:
            self._line.close()
            signals.close()

    def _loop(self, signals: StopSignals, until: float | None = None) -> None:
        while until is None or time.monotonic() < until:
            self._submit()
            if self._is_finished():
                return
            if self._keep_line():
                self._submit()
            self._listen(signals)
            self._hear()
            self._ask_for_reason()

    def _is_idle(self) -> bool:
        return not (self._jobs or self._unanswered or self._refused)

    def _is_finished(self) -> bool:
        is_last = self.is_draining or (self._source.is_over and not self._again)
        return is_last and self._is_idle()

    def _listen(self, signals: StopSignals) -> None:
        """Wait for a signal, a message, more tasks, or the next time something is due."""
        fds = {self._line.fileno()}
        if not self.is_draining and not self._source.is_over and self._room() > 0:
            fds.add(self._source.fileno())
        fds.discard(None)
        for fd in fds:
            self._poll.register(fd or 0, select.POLLIN)
        events = {fd for fd, _ in self._poll.poll(self._patience_ms())}
        for fd in fds:
            self._poll.unregister(fd or 0)
        if signals.fd in events:
            for signum in signals.read():
                self.stopped_by = self.stopped_by or signum
                self.stop()
        if self._source.fileno() in events:
            self._source.hear()

    def _patience_ms(self) -> float | None:
        times = [] if self._line.is_open or self._is_idle() else [self._dial_at]
        times += [self._submit_at] if self._refused else []
        if self._jobs and not self._running and not self._reason_asked:
            times.append(self._reason_at)
        return max(0.0, (min(times) - time.monotonic()) * 1000 + 1) if times else None

    def _abandon(self) -> None:
        self._listener, self._again = _Deaf(), []
        deaf = StopSignals()
        try:
            self.stop()
            self._loop(deaf, time.monotonic() + ABANDON_S)
        finally:
            deaf.close()

    # --- the connection ------------------------------------------------------------------

    def _tell(self, message: Message) -> int:
        """Send a message and return its number; one that cannot be sent loses the connection."""
        number = self._exchange.say(message)
        self._line.flush()
        return number

    def _hear(self) -> None:
        """Handle what the queue has sent; bytes that are no messages lose the connection."""
        try:
            messages = self._exchange.receive_data(self._line.receive())
        except ProtocolError:
            self._line.close()
            return
        for message in messages:
            self._understand(message)

    def _keep_line(self) -> bool:
        """Connect while there are open tasks, starting the queue if none answers; True if new."""
        if self._line.is_open or self._is_idle() or time.monotonic() < self._dial_at:
            return False
        self._dial_at = time.monotonic() + DIAL_AGAIN_S
        try:
            if not self._watch:  # without GPUs nothing is submitted
                _ensure_gpus()
            if not self._line.open():
                return False
        except GrnError as error:
            if not self._watch:
                raise
            self._tell_trouble(str(error))
            return False
        self._reason_asked = 0
        self._watch = self._tell({"op": "watch", "jobs": list(self._jobs)})
        unanswered, self._unanswered = self._unanswered, {}
        for message, tasks in unanswered.values():
            self._say(message, tasks)
        self.cancel(self._cancelled)
        if self.is_stopping:
            self._tell({"op": "cancel", "jobs": list(self._jobs)})
        return True

    def _tell_trouble(self, trouble: str) -> None:
        waiting = [sent.task for sent in self._jobs.values() if not sent.is_running]
        waiting += [task for _, tasks in self._refused for task in tasks]
        if waiting:
            self._on_wait(waiting[0], trouble)

    # --- submitting ----------------------------------------------------------------------

    def _room(self) -> int:
        sent = sum(len(tasks) for _, tasks in self._unanswered.values())
        waiting = len(self._jobs) - self._running + sent
        ahead = self._ahead if self._line.is_open else min(self._ahead, FIRST)
        return ahead - waiting if waiting <= ahead // 2 else 0

    def _submit(self) -> None:
        """Submit as many tasks as there is room for, and those refused for a passing reason."""
        if self._refused and (self.is_draining or time.monotonic() >= self._submit_at):
            refused, self._refused = self._refused, []
            for message, same_tasks in refused if not self.is_draining else ():
                self._say(message, same_tasks)
        if self.is_draining or self._refused:
            return
        tasks: list[Task] = []
        for _ in range(self._room()):
            task = self._again.pop(0) if self._again else self._source.next_task()
            if task is None:
                break
            tasks.append(task)
        for (needs, retry), same in groupby(tasks, lambda one: (one.needs, self._tries_left(one))):
            shared = {
                **self._shared, "op": "submit", "group": self._group, "tied": True,
                "fail_fast": self._is_fail_fast, "retry": min(retry, 1000), "gpus": needs.gpus,
                "exclusive": needs.is_exclusive, "priority": needs.priority,
            }  # fmt: skip
            stated = {
                "mem": needs.mem_bytes, "cpus": needs.cpus, "ram": needs.ram_bytes,
                "idle_limit_s": needs.idle_limit_s, "at": needs.at, "on": needs.on,
                "without": needs.without,
            }  # fmt: skip
            shared |= {name: value for name, value in stated.items() if value}
            if needs.is_sent or needs.fetch:
                shared.update(self._folders(needs))
            self._submit_some(list(same), shared)

    def _folders(self, needs: Needs) -> Message:
        """Say which folder is sent; all tasks get the one that the first of them got."""
        if needs.is_sent and not self._sent:
            self._sent = folders(True, (), self._shared["cwd"])
        sent = self._sent if needs.is_sent else {}
        return {**sent, **folders(False, needs.fetch, self._shared["cwd"])}

    def _submit_some(self, tasks: list[Task], shared: Message) -> None:
        """Submit tasks with the same needs, in messages that are not too long."""
        jobs: list[Message] = []
        some: list[Task] = []
        size = 0
        for task in tasks:
            length = sum(map(len, task.argv))
            try:
                job = _job_of(task, self._group) if length <= MESSAGE_BYTES else None
            except (GrnError, ValueError) as error:
                self._refuse(task, str(error))
                continue
            if job is None:
                self._refuse(task, f"{task.argv[0]}: Argument list too long")
                continue
            if size + length > MESSAGE_BYTES:
                self._say({**shared, "jobs": jobs}, some)
                jobs, some, size = [], [], 0
            jobs.append(job)
            some.append(task)
            size += length
        if jobs:
            self._say({**shared, "jobs": jobs}, some)

    def _say(self, message: Message, tasks: list[Task]) -> None:
        message.setdefault("key", os.urandom(12).hex())
        self._unanswered[self._tell(message)] = (message, tasks)

    def _tries_left(self, task: Task) -> int:
        return self._retries - self._failures.get(task.number, 0)

    def _count_failure(self, task: Task) -> None:
        self._failures[task.number] = self._failures.get(task.number, 0) + 1

    def _refuse(self, task: Task, trouble: str, reason: str = "UsageError") -> None:
        ended = CommandEnd(
            task, NOWHERE, NOT_RUNNABLE, time.time(), 0.0, trouble=trouble, reason=reason
        )
        self._listener.ended(self, ended)

    # --- messages of the queue -----------------------------------------------------------

    def _understand(self, message: Message) -> None:
        number, error = message.get("id", 0), message.get("error")
        if number == self._watch and "progress" in message:
            self._progressed(read(ProgressRow, message["progress"]))
        elif number in self._unanswered:
            submitted, tasks = self._unanswered.pop(number)
            if error is None:
                self._accepted(message["first"], submitted, tasks)
            else:
                self._not_accepted(error, submitted, tasks)
        elif number == self._reason_asked:
            self._reason_asked = 0
            for row in read_all(JobRow, message.get("jobs", ())):
                if row.id in self._jobs and not self._running:
                    self._on_wait(self._jobs[row.id].task, row.why)
                    break

    def _accepted(self, first: int, submitted: Message, tasks: list[Task]) -> None:
        for job, task in enumerate(tasks, first):
            self._jobs[job] = SentTask(task, submitted["retry"])
            self._on_submit(task, job)
        self.cancel(self._cancelled.intersection(task.number for task in tasks))
        self._reason_at = time.monotonic() + REASON_S
        if self.is_draining:
            jobs = list(range(first, first + len(tasks)))
            self._tell({"op": "cancel", "jobs": jobs, "queued": not self.is_stopping})

    def _not_accepted(self, error: Message, submitted: Message, tasks: list[Task]) -> None:
        """Retry a submit that may be accepted later; else find the task that is refused."""
        text = f"{error['message']} {error['hint']}".strip()
        if error["code"] == "MachineError":
            self._refused.append((submitted, tasks))
            self._submit_at = time.monotonic() + REASON_AGAIN_S
            self._tell_trouble(text)
        elif len(tasks) == 1:
            self._refuse(tasks[0], text, error["code"])
        else:
            for job, task in zip(submitted.pop("jobs"), tasks, strict=True):
                self._say({**submitted, "jobs": [job], "key": os.urandom(12).hex()}, [task])

    def _progressed(self, row: ProgressRow) -> None:
        """Handle a change of one job: it has begun, will run again, or has ended."""
        sent = self._jobs.get(row.id)
        if sent is None:
            return
        if row.attempt > sent.attempt:
            self._begun(sent, row)
        if row.state in ("ended", "unknown"):
            del self._jobs[row.id]
            self._cancelled.discard(sent.task.number)
            self._ended(sent, row)
        elif row.state == "queued" and row.is_held and sent.is_running:
            self._runs_again(sent, row)

    def _begun(self, sent: SentTask, row: ProgressRow) -> None:
        sent.attempt = row.attempt
        sent.slot = Slot(f"{row.where}:{row.gpus or ''}" if row.where else row.gpus or "", {})
        if not sent.is_running:
            sent.is_running = True
            self._running += 1
            self._listener.starting(self, sent.task, sent.slot)

    def _runs_again(self, sent: SentTask, row: ProgressRow) -> None:
        """Report an attempt that is not the last; the job is held until it is released here."""
        if row.attempt_reason not in _NOT_BEGUN:
            ended = _attempt_end(sent, row).but(
                runs_again=not self.is_draining,
                is_counted=row.tries_left < sent.tries_left,
                has_more_room=row.memory_attempt > sent.memory_attempt,
            )
            if ended.is_counted:
                self._count_failure(sent.task)
            sent.tries_left, sent.memory_attempt = row.tries_left, row.memory_attempt
            self._stopped_running(sent)
            if self.is_draining:
                del self._jobs[row.id]
            self._listener.ended(self, ended)
        if self.is_draining:
            self._tell({"op": "cancel", "jobs": [row.id]})
        elif sent.task.number not in self._cancelled:
            self._tell({"op": "hold", "jobs": [row.id], "held": False})

    def _ended(self, sent: SentTask, row: ProgressRow) -> None:
        was_running = sent.is_running
        self._stopped_running(sent)
        if was_running and row.state == "ended":
            self._listener.ended(self, _attempt_end(sent, row))
        elif row.reason == "cancelled":
            if not self.is_draining:  # cancelled by hand
                at, why = time.time(), "cancelled"
                self._listener.ended(self, CommandEnd(
                    sent.task, NOWHERE, TERMINATED, at, 0.0, trouble=why, is_cancelled=True,
                ))  # fmt: skip
        else:
            self._refuse(sent.task, row.text or "the queue does not know it any more")

    def _stopped_running(self, sent: SentTask) -> None:
        self._running -= sent.is_running
        sent.is_running = False
        self._reason_at = time.monotonic() + REASON_S

    def _ask_for_reason(self) -> None:
        """Ask why nothing runs, once in a while."""
        now = time.monotonic()
        is_idle = bool(self._jobs) and not self._running and not self._reason_asked
        if is_idle and self._line.is_open and now >= self._reason_at:
            self._reason_at = now + REASON_AGAIN_S
            asked = {"which": "alive", "states": ["queued"], "group": self._group, "most": 100}
            self._reason_asked = self._tell({"op": "list", **asked})


def _job_of(task: Task, group: str) -> Message:
    """Return the part of a submit message that describes one task."""
    is_named = task.label and task.label not in task.argv
    name = f"{group}/{task.label}"[:128] if is_named else group
    if task.profile:
        job = {"argv": [wire.spelled(word) for word in task.argv], "name": name, **task.profile}
    else:
        job = wanted(list(task.argv), task.needs.job_type, name, task.folder)
    environment = task.environment.items()
    job["extra"] = {wire.spelled(name): wire.spelled(value) for name, value in environment}
    if task.log_path is not None:
        job["log"] = wire.spelled(os.path.abspath(task.log_path))
    return job


def _attempt_end(sent: SentTask, row: ProgressRow) -> CommandEnd:
    """Return how the latest attempt of a job ended."""
    reason, text = row.attempt_reason, row.attempt_text or ""
    status, signum = row.attempt_status, row.attempt_signal
    is_cancelled = reason == "cancelled"
    trouble = ""
    if status is None:
        status = -signum if signum else TERMINATED
        trouble = "" if signum or is_cancelled else row.text or text
    elif reason == "not-runnable":
        trouble = row.text or text
    is_oom = reason == "out-of-memory"
    return CommandEnd(
        sent.task, sent.slot, status, row.began_at or time.time(), row.ran_s or 0.0,
        is_out_of_memory=is_oom, peak_bytes=row.peak_bytes, trouble=trouble,
        is_cancelled=is_cancelled, because=text if is_oom or reason == "out-of-ram" else "",
        reason=row.reason or reason or "", text=row.text or text,
    )  # fmt: skip


def _ensure_gpus() -> None:
    """Start a negotiator; raise if there can be none and the queue has no other machines."""
    try:
        daemons.ensure_negotiator()
    except GrnError:
        if not queue.ask({"op": "sites"})["nodes"]:
            raise


class _Deaf:
    """A listener that ignores everything."""

    def starting(self, runner: object, task: Task, slot: Slot) -> None:
        """Nothing."""

    def ended(self, runner: object, ended: CommandEnd) -> None:
        """Nothing."""
