"""Negotiated slots: a lease for each task, several asked for at once, kept through restarts.

Translates between tasks and messages; where a task runs and when is the negotiator's choice. While
the negotiator is away what runs goes on; what waits is asked for again under the same keys.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from grn.client import daemons, frameworks
from grn.client.gpu_environment import UNLESS_SET, for_command
from grn.errors import GrnError
from grn.sweep.lease_connection import Conversation
from grn.sweep.nested import Nested
from grn.sweep.request import request
from grn.sweep.task import CommandEnd, EvictionAsk, Slot, SlotGrant, Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.wire import Message

IDLE_EXIT_S = 300.0
MIN_ASKED = 8
HOLD_AFTER_S = 0.03  # a command that is over by then never needs to be known
SETTLE_S, LOST_SETTLE_S = 5.0, 1.0  # an end is told after so long, whatever is not known of it
GOODBYE_S = 2.0
CALL_AGAIN_S = 0.1
START_AFTER_S = 2.0  # somebody may be about to start the negotiator again
TROUBLE_S = 5.0
TAIL_BYTES = 64 << 10


@dataclass(slots=True)
class _Asked:
    """A task that waits for its lease."""

    task: Task
    message: Message


@dataclass(slots=True)
class _Held:
    """A lease, and what runs under it."""

    task: Task
    log_start: int  # so long was its log before
    is_nested: bool = False
    pid: int = 0
    hold_at: float | None = None


@dataclass(slots=True)
class _Settling:
    """An end that the negotiator has been told of."""

    ended: CommandEnd
    message: Message
    until: float


class LeasedSlots:
    """GPUs of the negotiator, one lease for each task."""

    def __init__(
        self,
        on_wait: Callable[[Task, str], None] | None = None,
        most_asked: int | None = None,
    ) -> None:
        self._on_wait = on_wait or (lambda task, reason: None)
        self._most_asked = most_asked
        self._gpus = 0  # how many there are, once we know
        self._line = Conversation()
        self._asked: dict[str, _Asked] = {}  # by key
        self._questions: dict[int, str] = {}  # message id -> key
        self._granted: deque[SlotGrant] = deque()
        self._nested = Nested()  # where we run under a lease ourselves
        self._held: dict[str, _Held] = {}  # by lease
        self._settling: dict[int, _Settling] = {}
        self._ends: list[CommandEnd] = []
        self._wanted: list[EvictionAsk] = []
        self._unheard: list[Message] = []  # ends that nobody has heard of yet
        self._has_called = False
        self._call_at: float | None = None
        self._lost_at: float | None = None
        self._gpus_asked = self._who_asked = 0
        self._negotiator = 0  # its pid
        self.trouble = ""  # why there is no negotiator

    # --- what the runner asks for ----------------------------------------------------------

    def has_room(self) -> bool:
        """Some requests wait side by side, so that the negotiator can choose."""
        return len(self._asked) < (self._most_asked or max(MIN_ASKED, 2 * self._gpus))

    def ask(self, task: Task) -> None:
        """Ask for the lease of a task."""
        if not self._has_called:
            self._call_first()
        try:
            message = request(task)
        except (GrnError, ValueError) as error:
            self._granted.append(SlotGrant(task, None, str(error)))
            return
        self._asked[message["key"]] = _Asked(task, message)
        self._question(message)

    def grants(self) -> list[SlotGrant]:
        """Return what can start now, or never; nothing while a failure is still to be told of.

        Whoever hears of it may want nothing more to start, and a grant can be faster.
        """
        if any(one.ended.status for one in self._settling.values()):
            return []
        grants = list(self._granted)
        self._granted.clear()
        return grants

    def started(self, slot: Slot, pid: int) -> None:
        """Bind the lease to the command, if it lasts."""
        held = self._held.get(slot.lease)
        if held is not None and not held.is_nested:
            held.pid = pid
            held.hold_at = time.monotonic() + HOLD_AFTER_S

    def give(self, ended: CommandEnd, resident_bytes: int | None) -> None:
        """Say how it went."""
        held = self._held.pop(ended.slot.lease)
        text = _tail(held) if ended.status else ""
        is_oom = bool(ended.status) and frameworks.is_out_of_memory_text(text)
        outcome = "ok" if ended.status == 0 else "oom" if is_oom else "failed"
        message: Message = {"lease": ended.slot.lease, "outcome": outcome}
        if resident_bytes is not None:
            message["resident"] = resident_bytes
        if is_oom and (asked := frameworks.asked_bytes(text)):
            message["asked"] = asked
        ended = ended.but(is_out_of_memory=is_oom)
        if held.is_nested:  # the lease goes on with whoever holds it
            self._ends.append(ended)
            self._nested.give(ended.slot)
            self._begin_nested()
            return
        self._tell(ended, message)

    def settled(self) -> list[CommandEnd]:
        """Return the ends of which all is known that we will know."""
        ends, self._ends = self._ends, []
        return ends

    def wanted(self) -> list[EvictionAsk]:
        """Return what is to make room for others."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def withdraw(self) -> None:
        """Take all requests back."""
        for key in self._asked:
            self._line.say("cancel", key=key)
        self._asked.clear()
        self._questions.clear()
        self._nested.withdraw()
        for grant in self._granted:
            if grant.slot is not None:
                self.unused(grant.slot)
        self._granted.clear()

    def unused(self, slot: Slot) -> None:
        """Let a lease go under which nothing has run."""
        held = self._held.pop(slot.lease, None)
        if held is not None and held.is_nested:
            self._nested.give(slot)
        elif held is not None:
            ending: Message = {"lease": slot.lease, "outcome": "failed"}
            self._line.say("done", **ending)
            if not self._line.is_open:
                self._unheard.append(ending)

    def spared(self) -> Collection[int]:
        """Return our children that are no commands: a negotiator that we have started."""
        return (self._negotiator,) if self._negotiator else ()

    def fileno(self) -> int | None:
        """Return the line."""
        return self._line.fileno()

    def close(self) -> None:
        """Take back what still waits, and hang up."""
        self.withdraw()
        for lease in list(self._held):
            self.unused(Slot("", {}, lease))
        if self._line.is_open:  # all that was said before is heard before this
            self._line.wait_for(self._line.say("ping"), GOODBYE_S)
        self._line.close()

    # --- time ----------------------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        """When something is to be done even if nobody speaks."""
        times = [one.until for one in self._settling.values()]
        times += [held.hold_at for held in self._held.values() if held.hold_at is not None]
        if self._call_at is not None:
            times.append(self._call_at)
        if self._is_newly_lost:
            times.append(0.0)
        return min(times, default=None)

    def hear(self) -> None:
        """Hear what was said, and do what is due."""
        for message in self._line.hear():
            self._understand(message)
        now = time.monotonic()
        if self._is_newly_lost:
            self._lost(now)
        if self._call_at is not None and now >= self._call_at:
            self._call_again(now)
        for lease, held in self._held.items():
            if held.hold_at is not None and now >= held.hold_at:
                held.hold_at = None
                self._line.say("hold", lease=lease, pid=held.pid)
        for number, one in list(self._settling.items()):
            if now >= one.until:
                del self._settling[number]
                self._ends.append(one.ended)
                if not self._line.is_open:
                    self._unheard.append(one.message)

    # --- the line ------------------------------------------------------------------------

    @property
    def _is_newly_lost(self) -> bool:
        return self._has_called and not self._line.is_open and self._lost_at is None

    def _call_first(self) -> None:
        """Call; start a negotiator if none answers. Trouble is raised: nothing runs yet."""
        if not self._line.open():
            self._start_negotiator()
            self._line.open()  # if it is gone already, it is called again like any that is lost
        self._greet()

    def _start_negotiator(self) -> None:
        argv = daemons.negotiator_argv(None, debug=False, idle_exit_s=IDLE_EXIT_S)
        started = daemons.start_or_find_negotiator(argv)
        if started is not None:
            self._negotiator = started.process.pid

    def _greet(self) -> None:
        self._has_called = True
        self._lost_at = self._call_at = None
        self._gpus_asked = self._line.say("status")

    def _lost(self, now: float) -> None:
        self._lost_at = now
        self._call_at = now + CALL_AGAIN_S
        self._questions.clear()
        for one in self._settling.values():
            one.until = min(one.until, now + LOST_SETTLE_S)

    def _call_again(self, now: float) -> None:
        """Call again; say again what may not have been heard."""
        assert self._lost_at is not None
        if not self._line.open() and not self._restarted(now):
            return
        self.trouble = ""
        self._greet()
        for lease, held in self._held.items():
            if held.pid:
                self._line.say("watch", lease=lease)
                self._line.say("hold", lease=lease, pid=held.pid)
        settling, self._settling = self._settling, {}
        for one in settling.values():
            self._tell(one.ended, one.message)
        unheard, self._unheard = self._unheard, []
        for message in unheard:
            self._line.say("done", **message)
        for asked in self._asked.values():
            self._question(asked.message)

    def _restarted(self, now: float) -> bool:
        """Start a negotiator if something waits for one and nobody else has done so."""
        assert self._lost_at is not None
        self._call_at = now + CALL_AGAIN_S
        if not self._asked or now < self._lost_at + START_AFTER_S:
            return False
        try:
            self._start_negotiator()
        except GrnError as error:
            self._call_at = now + TROUBLE_S
            if str(error) != self.trouble:
                self.trouble = str(error)
                for asked in self._asked.values():
                    self._on_wait(asked.task, self.trouble)
            return False
        return self._line.open()

    def _question(self, message: Message) -> None:
        if self._line.is_open:
            self._questions[self._line.say("lease", **message)] = message["key"]

    def _tell(self, ended: CommandEnd, message: Message) -> None:
        number = self._line.say("done", **message)
        patience_s = SETTLE_S if self._line.is_open else LOST_SETTLE_S
        self._settling[number] = _Settling(ended, message, time.monotonic() + patience_s)

    # --- what is said to us --------------------------------------------------------------

    def _understand(self, message: Message) -> None:
        number, error = message.get("id", 0), message.get("error")
        if number in self._settling:
            self._settle(self._settling.pop(number).ended, {} if error else message)
        elif number in self._questions:
            self._answered(number, message)
        elif message.get("ev") == "wanted":
            self._wanted.append(EvictionAsk(message["lease"], message["text"]))
        elif number == self._gpus_asked and not error:
            self._gpus = len(message["status"]["gpus"])
        elif message.get("ev") == "granted" and not message["nested"]:
            # Taken back while the grant was on its way: give it back.
            self._line.say("done", lease=message["lease"], outcome="failed")

    def _answered(self, number: int, message: Message) -> None:
        key = self._questions[number]
        asked = self._asked[key]
        if message.get("ev") == "waiting":
            self._on_wait(asked.task, message["text"])
            return
        del self._questions[number], self._asked[key]
        error = message.get("error")
        if error is not None:
            refusal = f"{error['message']} {error['hint']}".strip()
            self._granted.append(SlotGrant(asked.task, None, refusal))
        elif message["nested"]:
            # Whoever has started us may have left us only some of its GPUs.
            visible = os.environ.get("CUDA_VISIBLE_DEVICES") or message["visible"]
            self._nested.ask(asked.task, message["lease"], visible)
            self._begin_nested()
        else:
            self._begin(asked.task, message)

    def _begin(self, task: Task, message: Message) -> None:
        lease, visible = message["lease"], message["visible"]
        both = {**os.environ, **task.environment}
        own = {name: both[name] for name in UNLESS_SET if name in both}
        # People know a GPU by its index; the command gets the name that cannot shift.
        name = message.get("indices") or visible
        slot = Slot(name, for_command(lease, visible, own), lease)
        self._held[lease] = _Held(task, _size(task.log_path))
        self._granted.append(SlotGrant(task, slot))

    def _begin_nested(self) -> None:
        for grant in self._nested.grants():
            assert grant.slot is not None
            log_start = _size(grant.task.log_path)
            self._held[grant.slot.lease] = _Held(grant.task, log_start, is_nested=True)
            self._granted.append(grant)

    def _settle(self, ended: CommandEnd, answer: Message) -> None:
        is_oom = ended.is_out_of_memory or (bool(ended.status) and answer.get("ended") == "oom")
        seen = {
            "is_out_of_memory": is_oom,
            "peak_bytes": answer.get("peak"),
            "was_alone": bool(answer.get("alone", True)),
            "is_victim": bool(answer.get("victim")),
            "has_larger": bool(answer.get("larger")),
            "because": answer.get("because") or ended.because,
        }
        self._ends.append(ended.but(**seen))


def _size(path: str | None) -> int:
    try:
        return 0 if path is None else os.stat(path).st_size
    except OSError:
        return 0


def _tail(held: _Held) -> str:
    """Return the last that a command has written to its log."""
    if held.task.log_path is None:
        return ""
    try:
        with open(held.task.log_path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(held.log_start, size - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
