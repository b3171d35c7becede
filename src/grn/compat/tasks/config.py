"""`ConfigManager`: the nested dictionary of the older tool, checked and taken apart into instances.

Folders are named here and made elsewhere; the names are those of the older tool. Where two
instances would share a folder, the second gets a number
(docs/decisions/0014-folders-of-instances.md).
"""

from __future__ import annotations

import copy
import itertools
import math
import operator
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grn.errors import UsageError

DEFAULTS: Mapping[str, Any] = {
    "result_root_folder": "results/",
    "force_rerun": False,
    "test_config_string_indicator": "-",
    "test_config_string_separator": ",",
    "test_config_string_inst_separator": "+",
    "temp_folder": "temp/",
    "log_file": "worker.log",
    "scheduler_log_file_path": "scheduler.log",
    "config_string_value_maxlen": 30,
    "ignored_keys_for_folder_name": [],
    "ignored_characters_for_folder_name": [" ", "[", "]"],
}
_FOLDERS = ("result_root_folder", "temp_folder")
_FILES = ("log_file", "scheduler_log_file_path")  # None: no such file
_WORDS = tuple(name for name in DEFAULTS if name.startswith("test_config_string_"))
_LISTS = tuple(name for name in DEFAULTS if name.startswith("ignored_"))
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_DEEPEST = 20  # what is nested further is told by its type only

Test = Mapping[object, object]  # the parameters of one instance


class BadConfig(UsageError, ValueError):
    """The configuration has the wrong shape."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One combination of parameters."""

    config: dict[Any, Any]  # what the task gets
    test: dict[Any, Any]  # what tells it from the others
    string: str  # what people see of it
    name: str  # the same without what is to be left out of names
    folder: str  # the name, or one like it if another instance has the same
    work_dir: str


class ConfigManager:
    """Hands out the instances of a configuration, one after the other."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._scheduler_config = _scheduler_config(config)
        self._global_config = _dictionary(config.get("global_config", {}), "global_config")
        written = _list(config.get("test_config", [{}]), "test_config", "dictionaries")
        self._written = [
            _dictionary(one, f"test_config[{place}]") for place, one in enumerate(written)
        ]
        self._spaces = [
            {key: _values(value, place, key) for key, value in one.items()}
            for place, one in enumerate(self._written)
        ]
        self._naming = _naming(self._scheduler_config)
        self.rewind()

    def rewind(self) -> None:
        """Begin again with the first instance."""
        self._folders = Folders()
        self._ahead = self._expanded()
        self._left = sum(
            math.prod(len(values) for values in space.values()) for space in self._spaces
        )

    def get_all_scheduler_config(self) -> dict[str, Any]:
        """Return the scheduler's settings, with the defaults of those that are not given."""
        return dict(self._scheduler_config)

    def get_all_global_config(self) -> dict[Any, Any]:
        """Return what all instances have in common."""
        return self._global_config

    def get_all_test_config(self) -> list[dict[Any, Any]]:
        """Return the parameters of all instances, in order."""
        return list(self._expanded())

    def get_all_test_config_in_string(self) -> str:
        """Return all parameters in one string, the lists as they were written."""
        indicator, separator, end = (self._scheduler_config[name] for name in _WORDS)
        return "".join(
            "".join(
                f"{key}{indicator}{_shown(written[key], space[key])}{separator}"
                for key in sorted_keys(written)
            )
            + end
            for written, space in zip(self._written, self._spaces, strict=True)
        )

    def get_next_config(self, create_dir: bool = False) -> dict[str, Any]:
        """Return the next instance; at the end `{"config": None}`. `create_dir` was never used."""
        instance = self.next_instance()
        if instance is None:
            return {"config": None}
        return {
            "config": instance.config,
            "test_config_string": instance.string,
            "test_config_string_filtered": instance.folder,
            "work_dir": instance.work_dir,
        }

    def next_instance(self) -> Instance | None:
        """Return the next instance; None at the end."""
        test = next(self._ahead, None)
        if test is None:
            return None
        self._left -= 1
        string = name = string_of(test, self._naming)
        if self._naming.ignored_keys:
            name = string_of(test, self._naming, self._naming.ignored_keys)
        folder = self._folders.folder_of(name, test)
        return Instance(
            config={**_copied(self._global_config), **test},
            test=test,
            string=string,
            name=name,
            folder=folder,
            work_dir=posixpath.join(self._scheduler_config["result_root_folder"], folder),
        )

    def get_num_left_config(self) -> int:
        """Return how many instances have not been handed out."""
        return self._left

    def get_gpu_envs(self) -> list[dict[str, Any]]:
        """Return the slots: each with its name and its environment."""
        return [
            {"name": f"gpu{gpu}", "env": {"CUDA_VISIBLE_DEVICES": gpu}}
            for gpu in self._scheduler_config["gpu"]
        ]

    def get_num_gpu(self) -> int:
        """Return how many slots there are."""
        return len(self._scheduler_config["gpu"])

    def remarks(self) -> list[str]:
        """Say what is allowed and was probably not meant."""
        found = [
            f"scheduler_config has no setting {name!r}: it is ignored"
            for name in self._scheduler_config
            if name not in DEFAULTS and name != "gpu"
        ]
        for place, (written, space) in enumerate(zip(self._written, self._spaces, strict=True)):
            for key, values in space.items():
                where = f"test_config[{place}][{key!r}]"
                if isinstance(written[key], str):
                    found.append(f"{where} is a string, so each of its letters is one value")
                if not values:
                    found.append(f"{where} is empty, so nothing of test_config[{place}] is run")
        return found

    def _expanded(self) -> Iterator[dict[Any, Any]]:
        for space in self._spaces:
            for values in itertools.product(*space.values()):
                yield dict(zip(space, values, strict=True))


# --- reading the dictionary ------------------------------------------------------------------


def _scheduler_config(config: Mapping[str, Any]) -> dict[str, Any]:
    _dictionary(config, "config")
    if "scheduler_config" not in config:
        raise BadConfig("could not find scheduler_config in config")
    given = _dictionary(config["scheduler_config"], "scheduler_config")
    if "gpu" not in given:
        raise BadConfig("could not find gpu in scheduler_config")
    found = {**DEFAULTS, **given, "gpu": _gpus(given["gpu"])}
    for names, kinds in ((_FOLDERS, (str,)), (_FILES, (str, type(None))), (_WORDS, (str,))):
        for name in names:
            if hasattr(found[name], "__fspath__"):
                found[name] = found[name].__fspath__()
            if not isinstance(found[name], kinds):
                raise BadConfig(f"{name} must be a string, not {found[name]!r}")
    most = found["config_string_value_maxlen"]
    if most is not None and (not isinstance(most, int) or most < 0):
        raise BadConfig(f"config_string_value_maxlen must be a whole number, not {most!r}")
    for name in _LISTS:
        found[name] = _list(found[name], name, "strings")
    if not all(isinstance(one, str) for one in found["ignored_characters_for_folder_name"]):
        raise BadConfig("ignored_characters_for_folder_name must be a list of strings")
    return found


def _gpus(given: object) -> list[str]:
    if not isinstance(given, (list, tuple)):
        raise BadConfig("gpu can only be a string or a list of strings")
    if not given:
        raise BadConfig("please specify at least one gpu in scheduler_config")
    return [_gpu(one) for one in given]


def _gpu(given: object) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
        return ",".join(given)
    raise BadConfig("gpu can only be a string or a list of strings")


def _naming(found: Mapping[str, Any]) -> Naming:
    return Naming(
        indicator=found["test_config_string_indicator"],
        separator=found["test_config_string_separator"],
        most_characters=found["config_string_value_maxlen"],
        ignored_keys=tuple(found["ignored_keys_for_folder_name"]),
        ignored_characters=tuple(c for c in found["ignored_characters_for_folder_name"] if c),
    )


def _dictionary(given: object, what: str) -> dict[Any, Any]:
    if not isinstance(given, Mapping):
        raise BadConfig(f"{what} must be a dictionary, not {_short(given)}")
    return dict(given)


def _list(given: object, what: str, of: str) -> list[Any]:
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise BadConfig(f"{what} must be a list of {of}, not {_short(given)}")
    return list(given)


def _values(given: object, place: int, key: object) -> list[Any]:
    """Take the values of one parameter: any iterable that has an end."""
    where = f"test_config[{place}][{key!r}]"
    try:
        ahead = iter(given)  # type: ignore[call-overload]
    except TypeError:
        short = _short(given)
        raise BadConfig(f"{where} must be a list of values: write [{short}]") from None
    is_endless = isinstance(ahead, (itertools.count, itertools.cycle))
    if isinstance(ahead, itertools.repeat):
        is_endless = operator.length_hint(ahead, -1) < 0
    if is_endless:
        raise BadConfig(f"{where} never ends: give it a list of values")
    return list(ahead)


def _shown(written: Any, values: list[Any]) -> Any:
    """Return values as they were written; what could be read only once is shown as a list."""
    return values if isinstance(written, Iterator) else written


def _copied(config: dict[Any, Any]) -> dict[Any, Any]:
    """Copy deeply, so that instances do not share lists; what cannot be copied is shared."""
    try:
        return copy.deepcopy(config)
    except Exception:  # an object of the user's may refuse in any way; sharing does no harm
        return dict(config)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- names of instances ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Naming:
    """How the strings of instances are put together."""

    indicator: str
    separator: str
    most_characters: int | None
    ignored_keys: tuple[object, ...]
    ignored_characters: tuple[str, ...]


def sorted_keys(config: Mapping[object, object]) -> list[object]:
    """Sort keys, also those that cannot be compared."""
    try:
        return sorted(config)  # type: ignore[type-var]
    except TypeError:
        return sorted(config, key=str)


def text_of(value: object) -> str:
    """Return `str(value)`; a memory address is left out, since it is another one next time."""
    return value if isinstance(value, str) else _ADDRESS.sub("", str(value))


def string_of(test: Test, naming: Naming, without: Iterable[object] = ()) -> str:
    """Return the string of an instance: `method-GAN,num_packing-1,`."""
    left_out = tuple(without)
    string = "".join(
        f"{key}{naming.indicator}{text_of(test[key])[0 : naming.most_characters]}{naming.separator}"
        for key in sorted_keys(test)
        if key not in left_out
    )
    for character in naming.ignored_characters:
        string = string.replace(character, "")
    return string


class Folders:
    """Gives each instance a folder of its own; the same instance gets the same one again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}
        self._kept: list[Test] = []  # an id is only good while its object lives

    def folder_of(self, name: str, test: Test) -> str:
        """Return the folder of an instance: its name, with `~2` if another one has that."""
        key = (name, description(test, lambda value: f"{type(value)} {id(value)}"))
        if key not in self._known:
            self._kept.append(test)
            folder = name
            while folder in self._taken:
                count = self._counts[name] = self._counts.get(name, 1) + 1
                folder = f"{name}~{count}"
            self._taken.add(folder)
            self._known[key] = folder
        return self._known[key]


def signature(config: Mapping[object, object]) -> dict[str, str]:
    """Describe a configuration so that it can be compared with one of another process."""
    return {str(key): description(config[key], _name_of) for key in sorted_keys(config)}


def description(value: object, name: Callable[[object], str], depth: int = 0) -> str:
    """Write down plain values and what is made of them; all others by the name they are given."""
    if type(value) in _PLAIN:
        return repr(value)
    if depth > _DEEPEST:
        return name(value)

    def inner(part: object) -> str:
        return description(part, name, depth + 1)

    if type(value) in (list, tuple):
        parts: Iterable[object] = value  # type: ignore[assignment]
        return f"{type(value).__name__}({', '.join(map(inner, parts))})"
    if isinstance(value, Mapping):
        pairs = sorted(f"{inner(key)}: {inner(part)}" for key, part in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(inner, value))) + "}"
    return name(value)


def _name_of(value: object) -> str:
    """Name an object by where it or its class was defined."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"<{getattr(named, '__module__', '?')}.{getattr(named, '__qualname__', '?')}>"
