"""Files of options: TOML, JSON or YAML into a mapping, and suggestions for misspelt names."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from grn.errors import UsageError

MAX_BYTES = 16 << 20


def read(path: str) -> dict[str, Any]:
    """Read the file of a sweep into a mapping of options."""
    readers: dict[str, Callable[[bytes], Any]] = {
        ".toml": toml, ".json": json.loads, ".yaml": _yaml, ".yml": _yaml,
    }  # fmt: skip
    ending = os.path.splitext(path)[1].lower()
    if ending not in readers:
        raise UsageError(
            f"{path}: a sweep cannot be read from this kind of file.", "Use .toml, .json, .yaml."
        )
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


def toml(data: bytes) -> dict[str, Any]:
    """Read TOML; raise ValueError with the reason."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:  # a package, which programs that only import grn need not have
        import tomli as tomllib

    return tomllib.loads(data.decode())


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the most similar known name, empty if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), 1)), "")


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
