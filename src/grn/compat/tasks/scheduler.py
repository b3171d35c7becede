"""`GPUTaskScheduler`: run all instances of a configuration on its GPUs.

Translates to the runner that runs many commands; checks what can be checked before anything runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any, TextIO

from grn.compat.tasks import hide_gpus
from grn.compat.tasks.config import ConfigManager
from grn.errors import MachineError, UsageError

DATES = "%a, %d %b %Y %H:%M:%S"


class GPUTaskScheduler:
    """`GPUTaskScheduler(config=config, gpu_task_class=MyGPUTask).start()`."""

    def __init__(self, config: Mapping[str, Any], gpu_task_class: type[Any]) -> None:
        hide_gpus.show()
        self._manager = ConfigManager(config)
        self._task_class = _checked(gpu_task_class)

    def start(self) -> None:
        """Run all instances that have not finished yet; return when the last has ended.

        Failures are logged to file and console, and run again next time. Ctrl-C and SIGTERM end
        running instances with all their children.
        """
        if getattr(sys.modules.get("__main__"), "is_loading_a_task", False):
            raise UsageError(
                "start() was called by a module that a worker imports to find its task.",
                'Put the call under `if __name__ == "__main__":`.',
            )
        self._manager.rewind()
        settings = self._manager.get_all_scheduler_config()
        with contextlib.ExitStack() as undo:
            if not os.path.isdir(settings["temp_folder"]):
                undo.callback(_remove_if_empty, settings["temp_folder"])
            folder = _made(settings)
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            log = Log(settings["scheduler_log_file_path"])
            undo.callback(log.close)
            stopped_by = self._run(folder, log)
        _pass_on(stopped_by)

    def _run(self, folder: str, log: Log) -> int:
        """Run all; return the signal that stopped the scheduler, or 0."""
        # Only now: a worker that imports this module has no use for them.
        from grn.compat.tasks.adapters import Gpus, Instances
        from grn.compat.tasks.serialize import Sender
        from grn.fixed_slots.runner import Runner

        sender = Sender(self._task_class, folder)
        sender.check(self._manager.get_all_global_config(), "global_config")
        for remark in self._manager.remarks():
            log.warning(remark)
        if hide_gpus.has_opened_gpus():
            log.warning(
                "this process uses GPUs itself and keeps some of their memory: what the task's "
                "module or this script does with them as it is imported belongs into main()"
            )
        total = self._manager.get_num_left_config()
        instances = Instances(self._manager, sender, self._task_class.__qualname__, log)
        gpus = Gpus(self._manager.get_all_scheduler_config()["gpu"], instances, log)
        runner = Runner(gpus, instances, instances, mark=sender.mark)
        try:
            runner.run()
        finally:
            instances.close()
        _summarise(instances.failures, total, log)
        return runner.stopped_by


def _summarise(failures: list[str], total: int, log: Log) -> None:
    if failures:
        log.error(f"{len(failures)} of {total} tasks failed and will be run again next time:")
    for failure in failures:
        log.error(f"  {failure}")


def _checked(task_class: object) -> type[Any]:
    """Refuse anything but a class with a `main`."""
    if not isinstance(task_class, type) or not callable(getattr(task_class, "main", None)):
        raise UsageError(
            f"gpu_task_class must be a class with a method main(self), not {task_class!r}.",
            "Derive it from gpu_task_scheduler.gpu_task.GPUTask.",
        )
    return task_class


def _made(settings: Mapping[str, Any]) -> str:
    """Make the folders; return a private one for the workers' orders."""
    for name in ("result_root_folder", "temp_folder"):
        try:
            os.makedirs(settings[name] or ".", exist_ok=True)
            if not os.access(settings[name] or ".", os.W_OK | os.X_OK):
                raise PermissionError(13, os.strerror(13))
        except OSError as error:
            raise MachineError(
                f"the folder {settings[name]} cannot be written: {error.strerror}.",
                f"Name another in {name}.",
            ) from error
    return tempfile.mkdtemp(prefix="grn-", dir=os.path.abspath(settings["temp_folder"] or "."))


def _remove_if_empty(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        pass  # another scheduler uses it


def _pass_on(signum: int) -> None:
    """Raise the stopping signal again with its usual effect, now that no instance runs."""
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    if signum:
        signal.raise_signal(signum)


class Log:
    """Writes lines to the file, if there is one, and to the console, at once.

    `logging` writes the same lines and takes a fifth of the time that an instance costs here.
    """

    def __init__(self, path: str | None) -> None:
        self._file = None if path is None else _opened(path)
        self._streams = [one for one in (sys.stderr, self._file) if one is not None]

    def info(self, text: str) -> None:
        """Log progress."""
        self._write("INFO", text)

    def warning(self, text: str) -> None:
        """Log a warning."""
        self._write("WARNING", text)

    def error(self, text: str) -> None:
        """Log a failure."""
        self._write("ERROR", text)

    def _write(self, level: str, text: str) -> None:
        line = f"{time.strftime(DATES)} {level} {text}\n"
        for stream in self._streams:
            try:
                stream.write(line)
                stream.flush()
            except (OSError, ValueError):
                pass  # the console is gone or the disk is full: continue to run

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                pass  # the disk is still full


def _opened(path: str) -> TextIO:
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        return open(path, "a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise MachineError(
            f"the log {path} cannot be written: {error.strerror}.",
            "Name another file in scheduler_log_file_path, or None.",
        ) from error
