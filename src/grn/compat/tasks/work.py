"""The roles around the crew: instances as its tasks, GPUs as its slots, log lines as they end."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grn.compat.tasks.config import ConfigManager, Instance
from grn.compat.tasks.ledger import Folder, Mark, Refuse, Skip, decide, finished_of_log
from grn.compat.tasks.names import signature
from grn.compat.tasks.sending import Order, Sender
from grn.errors import GrnError
from grn.sweep.crew import Crew
from grn.sweep.task import Ended, Grant, Slot, Task


class Gpus:
    """The slots, in the order in which they are listed; each knows its next task beforehand.

    A slot is given as it is asked for, not later: the older tool's log names the GPU that receives
    or skips a task. It is free again when its end has been told, so that the log has both in order.
    """

    def __init__(self, environments: Sequence[dict[str, Any]]) -> None:
        self.wake_at: float | None = None
        self._free = [Slot(one["name"], one["env"]) for one in reversed(environments)]
        self._grants: list[Grant] = []
        self._ends: list[Ended] = []

    @property
    def free_names(self) -> list[str]:
        """Who has nothing to do; the last is the next to get something."""
        return [slot.name for slot in self._free]

    def has_room(self) -> bool:
        """Nothing is asked for ahead of time: it is looked at when its turn has come."""
        return bool(self._free)

    def ask(self, task: Task) -> None:
        """Give the next GPU."""
        self._grants.append(Grant(task, self._free.pop()))

    def grants(self) -> list[Grant]:
        """Return what was given."""
        grants, self._grants = self._grants, []
        return grants

    def started(self, slot: Slot, pid: int) -> None:
        """Nobody else needs to know."""

    def give(self, ended: Ended, resident_bytes: int | None) -> None:
        """Remember an end."""
        self._ends.append(ended)

    def settled(self) -> list[Ended]:
        """Return what has ended; the GPUs are free from now on."""
        ends, self._ends = self._ends, []
        self._free += [ended.slot for ended in reversed(ends)]
        self.wake_at = 0.0 if ends else self.wake_at  # at once: there may be more to run
        return ends

    def unused(self, slot: Slot) -> None:
        """Take a GPU back."""
        self._free.append(slot)

    def withdraw(self) -> None:
        """Nothing is ever asked for and not granted."""

    def spared(self) -> tuple[int, ...]:
        """We have no children of our own."""
        return ()

    def fileno(self) -> int | None:
        """There is nobody to listen to."""
        return None

    def hear(self) -> None:
        """It was time."""
        self.wake_at = None

    def close(self) -> None:
        """There is nothing to let go."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """An instance under way."""

    instance: Instance
    folder: Folder
    order: Order
    log_path: str | None


class Instances:
    """Where the crew's tasks come from, and who hears how they ended."""

    is_over = False

    def __init__(
        self,
        manager: ConfigManager,
        sender: Sender,
        gpus: Gpus,
        task_name: str,
        log: logging.Logger,
    ) -> None:
        self._manager = manager
        self._settings = manager.get_all_scheduler_config()
        self._common = signature(manager.get_all_global_config())
        self._older = finished_of_log(self._settings["scheduler_log_file_path"])
        self._sender = sender
        self._gpus = gpus
        self._task_name = task_name
        self._log = log
        self._seen: set[str] = set()
        self._begun: dict[int, _Begun] = {}
        self._count = 0
        self.failures: list[str] = []
        self.interrupted = 0

    # --- where tasks come from -----------------------------------------------------------

    def next_task(self) -> Task | None:
        """Return the next instance that has to be run; say which need not be."""
        while (instance := self._manager.next_instance()) is not None:
            gpu = self._gpus.free_names[-1]
            self._count += 1
            self._log.info("%s receives task %s", gpu, instance.string)
            try:
                task = self._prepare(gpu, instance)
            except (OSError, ValueError) as error:
                self._fail(gpu, instance, f"{instance.work_dir}: {_reason(error)}")
                continue
            if task is not None:
                return task
        if not self.is_over:
            self.is_over = True
            for gpu in reversed(self._gpus.free_names):
                self._log.info("%s finished", gpu)
        return None

    def fileno(self) -> int | None:
        """All that is to run is known."""
        return None

    def hear(self) -> None:
        """Nobody speaks."""

    def _prepare(self, gpu: str, instance: Instance) -> Task | None:
        """Make an instance ready to run; None when it is not to be run."""
        if instance.folder in self._seen:
            self._skip(gpu, instance, "it is the same as one before")
            return None
        self._seen.add(instance.folder)
        folder = Folder(os.path.abspath(instance.work_dir), self._task_name)
        wanted = Mark(False, signature(instance.test), self._common)
        found = folder.look(instance.string in self._older, self._settings["log_file"])
        choice = decide(wanted, found, bool(self._settings["force_rerun"]))
        if isinstance(choice, Refuse):
            self._fail(gpu, instance, f"{instance.work_dir}: {choice.reason}")
            return None
        if isinstance(choice, Skip):
            self._skip(gpu, instance, choice.note)
            return None
        if not folder.take():
            self._skip(gpu, instance, "another scheduler runs it now")
            return None
        if choice.note:
            self._log.info("%s runs task %s again: %s", gpu, instance.string, choice.note)
        task = self._begin(gpu, instance, folder, wanted)
        if task is None:
            folder.let_go()
        return task

    def _begin(self, gpu: str, instance: Instance, folder: Folder, mark: Mark) -> Task | None:
        folder.write(mark)
        log_file = self._settings["log_file"]
        log_path = None if log_file is None else os.path.join(folder.path, log_file)
        if log_path is not None:
            os.makedirs(os.path.dirname(log_path), exist_ok=True)
            with open(log_path, "wb"):
                pass  # a new run has a new log
        try:
            order = self._sender.write(str(self._count), instance.config, folder.path)
        except GrnError as error:
            self._fail(gpu, instance, str(error))
            return None
        except Exception as error:  # code of the task's: it may fail in any way, and fails alone
            self._log.debug("required_env() of %s", instance.string, exc_info=True)
            self._fail(gpu, instance, f"required_env() raised {type(error).__name__}: {error}")
            return None
        self._begun[self._count] = _Begun(instance, folder, order, log_path)
        return Task(
            self._count,
            order.argv,
            instance.string,
            environment=order.environment,
            log_path=log_path or os.devnull,
        )

    # --- who hears of ends ---------------------------------------------------------------

    def starting(self, crew: Crew, task: Task, slot: Slot) -> None:
        """It was announced when its GPU received it."""

    def ended(self, crew: Crew, ended: Ended) -> None:
        """Note that an instance finished, or say that it did not."""
        begun = self._begun.pop(ended.task.number)
        note = begun.order.take_note()
        gpu, string = ended.slot.name, begun.instance.string
        if ended.status == 0:
            self._finish(gpu, begun)
        elif crew.is_stopping:
            self.interrupted += 1
            self._log.warning("%s stops task %s: it will be run again next time", gpu, string)
        else:
            reason = ended.trouble or note or _how(ended.status)
            log = f"; see {os.path.relpath(begun.log_path)}" if begun.log_path else ""
            self._fail(gpu, begun.instance, f"{reason}{log}")
        begun.folder.let_go()
        if self.is_over:
            self._log.info("%s finished", gpu)

    def close(self) -> None:
        """Let go of what was never started."""
        for begun in self._begun.values():
            begun.folder.let_go()

    def _finish(self, gpu: str, begun: _Begun) -> None:
        instance = begun.instance
        try:
            begun.folder.write(Mark(True, signature(instance.test), self._common))
        except OSError as error:
            text = f"it finished, but that cannot be noted in {instance.work_dir}"
            self._fail(gpu, instance, f"{text}: {_reason(error)}")
            return
        self._log.info("%s finishes task %s", gpu, instance.string)

    def _skip(self, gpu: str, instance: Instance, note: str) -> None:
        self._log.info("%s skips task %s", gpu, instance.string)
        if note:
            self._log.warning("skipped %s: %s", instance.work_dir, note)

    def _fail(self, gpu: str, instance: Instance, reason: str) -> None:
        self._log.error("%s fails task %s: %s", gpu, instance.string, reason)
        self.failures.append(f"{instance.string}: {reason}")


def _reason(error: OSError | ValueError) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if text == os.strerror(36):  # the system's word for it does not help
        text += "; lower config_string_value_maxlen or use ignored_keys_for_folder_name"
    return text


def _how(status: int) -> str:
    return f"exit status {status}" if status > 0 else f"killed by signal {-status}"
