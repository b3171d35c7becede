"""Sends a task to a fresh process: classes, lambdas and all that a configuration may hold.

A class travels by name where a fresh process can import it, and whole where it cannot: from the
main script, from a notebook, from a module that is still being imported.
"""

from __future__ import annotations

import importlib.machinery
import marshal
import os
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from grn.client import remote_call
from grn.compat.tasks import worker
from grn.compat.tasks.done_marks import put
from grn.compat.tasks.task import GPUTask
from grn.errors import UsageError

_MARK = "GRN_TASKS_FOLDER"
_ADVICE = "Put into the configuration what it is made from, and make it in main()."


class CannotBeSent(UsageError):
    """Something does not fit through to another process."""


class Sender:
    """Writes orders for workers."""

    def __init__(self, task_class: type[Any], folder: str) -> None:
        self._task_class = task_class
        self._folder = folder
        self._worker = _worker()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self._argv = (sys.executable, *flags, "-c", worker.START)
        self.mark = f"{_MARK}={folder}"  # all workers of one scheduler have it, and their children
        self._is_known_by_name = is_known_by_name(task_class)
        self._whole = None if self._is_known_by_name else _module_to_send(task_class)
        try:
            self._class = self._dumps(task_class)
        except Exception as error:  # what a class refers to may refuse in any way
            text = f"the class {task_class.__qualname__} cannot be sent to another process: {error}"
            advice = "Move what it uses into main(), or the class into a module of its own."
            raise CannotBeSent(f"{text}.", advice) from error

    def check(self, config: Mapping[Any, Any], what: str) -> None:
        """Refuse a configuration that cannot be sent, and name the part."""
        for key, value in config.items():
            try:
                self._dumps(value)
            except Exception as error:  # objects may refuse in any way: say which one did
                text = f"{what}[{key!r}] cannot be sent to another process: {error}"
                raise CannotBeSent(f"{text}.", _ADVICE) from error

    def write(self, name: str, config: dict[Any, Any], work_dir: str) -> TaskOrder:
        """Write the order for one instance; ask the task for its variables on the way."""
        environment, task = self._ask(config, work_dir)
        about: dict[str, Any] = {
            "worker": self._worker,
            "environment": environment,
            "path": remote_call.import_path(),
            "argv": [str(word) for word in getattr(sys, "argv", [""])],
        }
        order = None if task is not None else self._plain(about, config, work_dir)
        if order is None:
            parts = (self._class, self._arguments(config, work_dir)) if task is None else (task,)
            order = marshal.dumps({**about, "pickles": parts})
        path = os.path.join(self._folder, name)
        put(path, order, self._folder)
        return TaskOrder(path, (*self._argv, path), {**environment, _MARK: self._folder})

    def _plain(self, about: dict[str, Any], config: dict[Any, Any], work_dir: str) -> bytes | None:
        """Write numbers, strings and lists without pickle, which takes a worker time to import."""
        if not self._is_known_by_name:
            return None
        name = (self._task_class.__module__, self._task_class.__qualname__)
        try:
            return marshal.dumps({**about, "name": name, "config": config, "work_dir": work_dir})
        except ValueError:
            return None  # there is something else in it

    def _arguments(self, config: dict[Any, Any], work_dir: str) -> bytes:
        try:
            return self._dumps((config, work_dir))
        except Exception:  # objects may refuse in any way: find out which
            self.check(config, "config")
            raise

    def _ask(self, config: dict[Any, Any], work_dir: str) -> tuple[dict[str, str], bytes | None]:
        """Ask a task for its variables. It travels as it is then: it may have noted something.

        Most tasks have nothing to say and are made in the worker only.
        """
        ask = getattr(self._task_class, "required_env", None)
        if ask is None or ask is GPUTask.required_env:
            return {}, None
        try:
            task = self._task_class(config, work_dir)
            environment = _variables(task.required_env())
        except Exception as error:  # code of the task's: it may fail in any way, and fails alone
            raise CannotBeSent(f"required_env() raised {type(error).__name__}: {error}") from error
        try:
            return environment, self._dumps(task)
        except Exception:  # then it is made again in the worker
            return environment, None

    def _dumps(self, value: object) -> bytes:
        return remote_call.dumps(value, by_value=self._whole)


class TaskOrder:
    """An order that has been written: what to start, and what came of it."""

    def __init__(self, path: str, argv: tuple[str, ...], environment: dict[str, str]) -> None:
        self._path = path
        self.argv = argv
        # Figures are drawn into files: a worker has no screen for a window.
        self.environment = {"MPLBACKEND": "Agg", **environment}

    def take_note(self) -> str:
        """Return why it failed, as the worker noted, and remove that."""
        path = f"{self._path}.note"
        try:
            with open(path, errors="replace") as file:
                note = file.read()
            os.unlink(path)
        except OSError:
            return ""  # it was killed
        return note

    def remove(self) -> None:
        """Remove what was written for it."""
        try:
            os.unlink(self._path)
        except OSError:
            pass  # the folder goes at the end


def _worker() -> bytes:
    """Return the code of the worker: compiling it would take each of them a millisecond."""
    loader: Any = worker.__loader__
    return marshal.dumps(loader.get_code(worker.__name__))


def _variables(given: object) -> dict[str, str]:
    """Take what `required_env()` returned: a dictionary of names and values, or nothing."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"it must return a dictionary of strings, not {given!r}")
    for name, value in given.items():
        if value is None or "=" in name or not name or "\0" in f"{name}{value}":
            raise ValueError(f"there is no such variable: {name}={value!r}")
    return {name: str(value) for name, value in given.items()}


def is_known_by_name(task_class: type[Any]) -> bool:
    """True when a fresh process finds the class by its name, without running half a script."""
    module = sys.modules.get(task_class.__module__)
    if module is None or module.__name__ == "__main__":
        return False
    if getattr(module.__spec__, "_initializing", False):
        return False  # it starts the scheduler as it is imported; the worker's import would too
    found: Any = module
    for part in task_class.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is task_class and _is_found(module)


def _module_to_send(task_class: type[Any]) -> ModuleType | None:
    """Return the module of which all must be sent, since a fresh process cannot import it.

    None where cloudpickle knows that by itself: the main script.
    """
    module = sys.modules.get(task_class.__module__)
    if module is None or module.__name__ == "__main__":
        return None
    is_ready = not getattr(module.__spec__, "_initializing", False)
    return None if is_ready and _is_found(module) else module


def _is_found(module: ModuleType) -> bool:
    parent, _, _ = module.__name__.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    for finder in sys.meta_path:
        spec = finder.find_spec(module.__name__, path)
        if spec is not None:
            return _is_same_file(spec, module)
    return False


def _is_same_file(spec: importlib.machinery.ModuleSpec, module: ModuleType) -> bool:
    theirs = getattr(module, "__file__", None)
    if not spec.has_location or spec.origin is None or theirs is None:
        return True
    return bool(os.path.abspath(spec.origin) == os.path.abspath(theirs))
