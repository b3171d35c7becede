"""Sweeps that are written down: TOML, JSON or YAML read into options, each with its right type."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from grn.errors import UsageError

MAX_BYTES = 16 << 20


def read(path: str) -> dict[str, Any]:
    """Read a file into a mapping of options."""
    readers: dict[str, Callable[[bytes], Any]] = {
        ".toml": _toml, ".json": json.loads, ".yaml": _yaml, ".yml": _yaml,
    }  # fmt: skip
    ending = os.path.splitext(path)[1].lower()
    if ending not in readers:
        raise UsageError(f"{path} is no kind of file known for sweeps.", "Use .toml, .json, .yaml.")
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} is too large for the description of a sweep.")
    try:
        found = readers[ending](data)
    except (ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise UsageError(f"{path} cannot be read as {ending[1:]}: {said}.") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} does not hold a table of options.")
    return found


def check_keys(options: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]) -> None:
    """Refuse options that do not exist, and values of the wrong kind."""
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(known)}."
            raise UsageError(f"a sweep has no option '{name}'.", hint)
        kinds = known[name]
        is_wrong_bool = isinstance(value, bool) and bool not in kinds
        if is_wrong_bool or not isinstance(value, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(f"the option '{name}' of a sweep must be {names}, not {value!r}.")


def _toml(data: bytes) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(data.decode())


def _yaml(data: bytes) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise UsageError(
            "PyYAML is not installed.",
            "Install it (pip install pyyaml), or use TOML or JSON.",
        ) from error
    try:
        return yaml.safe_load(data)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
