"""Adapters for the runner: instances as its tasks, GPUs as its slots, log lines for ends."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from grn.compat.tasks.config import ConfigManager, Instance, signature
from grn.compat.tasks.done_marks import (
    Folder,
    InstanceRun,
    Mark,
    RefuseRun,
    Skip,
    decide,
    finished_of_log,
    open_in_folder,
)
from grn.compat.tasks.scheduler import Log
from grn.compat.tasks.serialize import Sender, TaskOrder
from grn.errors import GrnError
from grn.fixed_slots.slots import FixedSlots
from grn.group.roles import RunControl
from grn.group.task import CommandEnd, Slot, SlotGrant, Task

_TURN = Task(0, (), "a turn")  # a placeholder: the instance is chosen when a GPU is free


class Gpus:
    """Fixed slots that choose an instance when a GPU is free.

    The older tool's log names the GPU that receives or skips a task, so it has to be known by then.
    """

    def __init__(self, names: Sequence[str], instances: Instances, log: Log) -> None:
        # The last listed is the first to be used there, and here the first.
        self._slots = FixedSlots(names[::-1], "gpu_task_scheduler", log.info)
        self._instances = instances
        self.has_room = self._slots.has_room
        self.ask = self._slots.ask
        self.started = self._slots.started
        self.unused = self._slots.unused
        self.give = self._slots.give
        self.settled = self._slots.settled
        self.withdraw = self._slots.withdraw
        self.fileno = self._slots.fileno
        self.hear = self._slots.hear
        self.close = self._slots.close

    @property
    def wake_at(self) -> float | None:
        """When to try again without an event."""
        return self._slots.wake_at

    def grants(self) -> list[SlotGrant]:
        """Return the instances for the GPUs that are free now."""
        grants = []
        for turn in self._slots.grants():
            assert turn.slot is not None
            task = self._instances.take(turn.slot)
            if task is None:
                self._slots.unused(turn.slot)
                grants.append(SlotGrant(turn.task, None, "nothing is left"))
            else:
                grants.append(SlotGrant(task, turn.slot))
        return grants


@dataclass(frozen=True, slots=True)
class _Begun:
    """An instance under way."""

    instance: Instance
    folder: Folder
    order: TaskOrder
    log_path: str | None


class Instances:
    """The source of the runner's tasks and the listener of their ends."""

    def __init__(self, manager: ConfigManager, sender: Sender, task_name: str, log: Log) -> None:
        self._manager = manager
        self._settings = manager.get_all_scheduler_config()
        self._common = signature(manager.get_all_global_config())
        self._older = finished_of_log(self._settings["scheduler_log_file_path"])
        self._sender = sender
        self._task_name = task_name
        self._log = log
        self._idle = [str(one["name"]) for one in manager.get_gpu_envs()]
        self._turns = 0  # that the runner has taken and no GPU has used yet
        self._seen: set[str] = set()
        self._begun: dict[int, _Begun] = {}
        self._count = 0
        self.failures: list[str] = []

    # --- the source -----------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True when all instances have been considered."""
        return self._manager.get_num_left_config() == 0

    def next_task(self) -> Task | None:
        """Return a turn: it becomes an instance when a GPU is free for it."""
        if self.is_over:
            self._dismiss()
        if self._turns >= self._manager.get_num_left_config():
            return None
        self._turns += 1
        return _TURN

    def fileno(self) -> int | None:
        """Return None: all instances are known."""
        return None

    def hear(self) -> None:
        """Do nothing: there is no input to read."""

    def take(self, slot: Slot) -> Task | None:
        """Return the next instance to run; log those that are skipped."""
        self._turns -= 1
        gpu, task = f"gpu{slot.name}", None
        while (instance := self._manager.next_instance()) is not None:
            self._count += 1
            self._log.info(f"{gpu} receives task {instance.string}")
            try:
                task = self._prepare(gpu, instance, slot.lease)
            except (OSError, ValueError) as error:
                self._fail(gpu, instance, f"{instance.work_dir}: {_reason(error)}")
                continue
            if task is not None:
                self._idle.remove(gpu)
                break
        if self.is_over:
            self._dismiss()
        return task

    def _dismiss(self) -> None:
        """Log that idle GPUs will get no more instances."""
        for gpu in self._idle:
            self._log.info(f"{gpu} finished")
        self._idle.clear()

    def _prepare(self, gpu: str, instance: Instance, lease: str) -> Task | None:
        """Prepare an instance to run; None when it is skipped."""
        if instance.folder in self._seen:
            self._skip(gpu, instance, "it is the same as one before")
            return None
        self._seen.add(instance.folder)
        folder = Folder(os.path.abspath(instance.work_dir), self._task_name)
        if not folder.take():
            self._skip(gpu, instance, "another scheduler runs it now")
            return None
        task = None
        try:
            mark = Mark(False, signature(instance.test), self._common)
            if self._is_to_run(gpu, instance, folder, mark):
                folder.write(mark)
                task = self._begin(gpu, instance, folder, lease)
        finally:
            if task is None:
                folder.let_go()
        return task

    def _is_to_run(self, gpu: str, instance: Instance, folder: Folder, mark: Mark) -> bool:
        found = folder.look(instance.string in self._older, self._settings["log_file"])
        choice = decide(mark, found, bool(self._settings["force_rerun"]))
        if isinstance(choice, RefuseRun):
            self._fail(gpu, instance, f"{instance.work_dir}: {choice.reason}")
        elif isinstance(choice, Skip):
            self._skip(gpu, instance, choice.note)
        elif choice.note:
            self._log.info(f"{gpu} runs task {instance.string} again: {choice.note}")
        return isinstance(choice, InstanceRun)

    def _begin(self, gpu: str, instance: Instance, folder: Folder, lease: str) -> Task | None:
        if instance.folder != instance.name:
            where = instance.work_dir
            self._log.warning(f"results go to {where}: another instance has the same name")
        log_file = self._settings["log_file"]
        log_path = None if log_file is None else os.path.join(folder.path, log_file)
        if log_path is not None:
            new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC  # as a new run has a new log
            os.close(open_in_folder(log_path, new, os.path.dirname(log_path)))
        try:
            order = self._sender.write(str(self._count), instance.config, folder.path)
        except GrnError as error:
            if log_path is not None:
                with open(log_path, "w") as file:
                    traceback.print_exception(error, file=file)
            self._fail(gpu, instance, str(error))
            return None
        # A task that requests a GPU itself would wait for ever for the one held for it.
        under = {"GRN_LEASE": lease} if lease else {}
        self._begun[self._count] = _Begun(instance, folder, order, log_path)
        return Task(
            self._count,
            order.argv,
            instance.string,
            environment={**order.environment, **under},
            log_path=log_path or os.devnull,
        )

    # --- the listener --------------------------------------------------------------------

    def starting(self, runner: RunControl, task: Task, slot: Slot) -> None:
        """Do nothing: the start was logged when its GPU received it."""

    def ended(self, runner: RunControl, ended: CommandEnd) -> None:
        """Mark a finished instance, or log its failure."""
        begun = self._begun.pop(ended.task.number, None)
        if begun is None:
            return  # a turn for which nothing was left
        note = begun.order.take_note() if ended.status else ""
        begun.order.remove()
        gpu, string = f"gpu{ended.slot.name}", begun.instance.string
        if ended.status == 0:
            self._finish(gpu, begun)
        elif runner.is_stopping:
            self._log.warning(f"{gpu} stops task {string}: it will be run again next time")
        else:
            reason = ended.trouble or note or _how(ended.status)
            log = f"; see {os.path.relpath(begun.log_path)}" if begun.log_path else ""
            self._fail(gpu, begun.instance, f"{reason}{log}")
        begun.folder.let_go()
        self._idle.append(gpu)
        if self.is_over:
            self._dismiss()

    def close(self) -> None:
        """Release instances that were never started."""
        for begun in self._begun.values():
            begun.folder.let_go()

    def _finish(self, gpu: str, begun: _Begun) -> None:
        instance = begun.instance
        try:
            begun.folder.finish()
        except OSError as error:
            text = f"it finished, but that cannot be noted in {instance.work_dir}"
            self._fail(gpu, instance, f"{text}: {_reason(error)}")
            return
        self._log.info(f"{gpu} finishes task {instance.string}")

    def _skip(self, gpu: str, instance: Instance, note: str) -> None:
        self._log.info(f"{gpu} skips task {instance.string}")
        if note:
            self._log.warning(f"skipped {instance.work_dir}: {note}")

    def _fail(self, gpu: str, instance: Instance, reason: str) -> None:
        self._log.error(f"{gpu} fails task {instance.string}: {reason}")
        self.failures.append(f"{instance.string}: {reason}")


def _reason(error: OSError | ValueError) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if text == os.strerror(36):  # the system's message does not help
        text += "; lower config_string_value_maxlen or use ignored_keys_for_folder_name"
    return text


def _how(status: int) -> str:
    return f"exit status {status}" if status > 0 else f"killed by signal {-status}"
