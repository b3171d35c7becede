"""Flags over environment over the settings file over defaults, in one frozen object.

Reads them once; what they mean is known where they are used. Each is listed in docs/settings.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from grn import places
from grn.errors import BadSetting
from grn.model.sizes import parse_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that can be set. A variable GRN_<NAME> sets the field of that name."""

    gpus: str = "nvml"  # or virtual:4x8GiB
    sample_s: float = 0.5
    flat_s: float = 60.0
    patience_s: float = 600.0
    grace_s: float = 2.0
    guard_fraction: float = 0.05
    guard_size: str = "512MiB"
    nvml_deadline_s: float = 5.0
    context_size: str = "512MiB"  # what a CUDA context costs beyond the framework's own figure
    connections_per_user: int = 4096
    waiting_per_user: int = 10000
    idle_exit_s: float = 0.0  # leave after so long without work; 0 stays

    @property
    def guard_bytes(self) -> int:
        return parse_size(self.guard_size)

    @property
    def context_bytes(self) -> int:
        return parse_size(self.context_size)


_RANGES: Mapping[str, tuple[float, float]] = {
    "sample_s": (0.02, 60),
    "flat_s": (0.1, 86400),
    "patience_s": (0, 30 * 86400),
    "grace_s": (0, 600),
    "guard_fraction": (0, 0.9),
    "nvml_deadline_s": (0.1, 600),
    "connections_per_user": (1, 1_000_000),
    "waiting_per_user": (1, 1_000_000),
    "idle_exit_s": (0, 30 * 86400),
}


def load(flags: Mapping[str, object] | None = None) -> Settings:
    """Read all sources; a bad value is one line that names it and its source."""
    values: dict[str, object] = {}
    names = Settings.__struct_fields__
    values.update(_from_file(places.settings_file()))
    for name in names:
        text = os.environ.get(f"GRN_{name.upper()}")
        if text:
            values[name] = text
    for name, value in (flags or {}).items():
        if value is not None:
            values[name] = value
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise BadSetting(f"a setting is wrong: {error}.", "See docs/settings.md.") from error
    return _checked(settings)


def _from_file(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            values: dict[str, object] = tomllib.load(file)
            return values
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}.") from error
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"{path} is not TOML: {error}.") from error


def _checked(settings: Settings) -> Settings:
    for name, (least, most) in _RANGES.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            raise BadSetting(f"{name} is {value} and must be from {least:g} to {most:g}.")
    if settings.gpus != "nvml" and not settings.gpus.startswith("virtual:"):
        raise BadSetting(f"gpus is '{settings.gpus}'.", "Use nvml or virtual:4x8GiB.")
    parse_size(settings.guard_size)
    parse_size(settings.context_size)
    return settings
