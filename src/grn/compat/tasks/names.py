"""What an instance is called: its string, its folder, and by what it is known again next time.

The strings are those of the older tool, letter by letter. Where two instances would share a folder
the second gets a number (docs/decisions/0014-folders-of-instances.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_DEEPEST = 20  # what is nested further is told by its type only

Test = Mapping[object, object]  # the parameters of one instance


@dataclass(frozen=True, slots=True)
class Naming:
    """How strings are put together; the defaults are in config.py."""

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


# --- what an instance is known by ------------------------------------------------------------


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
