"""Flags over environment over the settings file over defaults, in one frozen object.

Each is listed in docs/settings.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import msgspec.structs

from grn import paths
from grn.errors import BadSetting, GrnError
from grn.model.units import parse_cpus, parse_size
from grn.option_file import nearest, toml


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings. A variable GRN_<NAME> sets the field of that name."""

    gpus: str = "nvml"  # or virtual:4x8GiB
    host: str = ""  # cores and memory for jobs, as 16x64GiB; empty: as measured; off: no limit
    sample_s: float = 0.5
    flat_s: float = 60.0
    patience_s: float = 600.0
    grace_s: float = 2.0
    load_cap: float = 0.0  # jobs share a GPU until their loads add up to this; 0: as learned
    short_s: float = 900.0  # types that usually take no longer precede others
    policy: str = "asked"  # how jobs are placed: as each asks, or all alike
    share_half_life_s: float = 86400.0  # the half-life of a user's usage
    yield_after_s: float = 30.0  # a job without room waits so long before others give way to it
    urgent_per_user: int = 1  # urgent jobs of a user that others give way to at once
    bookings_per_user: int = 3
    booking_share: float = 1.0  # the part of the GPUs that one user may have booked at a time
    booking_lapse_s: float = 900.0  # a booking that is not used for so long after its start ends
    booking_unknown_s: float = 172800.0  # jobs of unknown duration are taken to end within this
    memory_cap: str = "on"  # PyTorch of a job may take what the job has reserved, where it can
    idle_limit_s: float = 1800.0  # a holder that leaves its GPU unused this long is idle; 0: off
    idle_after_s: float = 1200.0  # no lease is idle before it has run this long
    idle_rule: str = "show"  # what follows: show, tell, yield or end
    shares: dict[str, float] = {}  # fair-share weights of users, or members of a @group
    requeue_s: float = 30.0  # without effect; files of earlier versions may set it
    guard_fraction: float = 0.05
    guard_size: str = "512MiB"
    nvml_deadline_s: float = 5.0
    context_size: str = "512MiB"  # what a CUDA context costs beyond the framework's own figure
    connections_per_user: int = 4096
    waiting_per_user: int = 10000
    idle_exit_s: float = 0.0  # exit after this long without work; 0: never
    queue_running: int = 0  # jobs of the queue that may run at once; 0: as many as GPUs allow
    grace_to_end_s: float = 10.0  # between asking a job to end and killing it
    log_size: str = "64MiB"  # how much of a job's output is kept
    sites: dict[str, dict[str, object]] = {}  # other machines: docs/sites.md
    on_end: str = ""  # commands for the shell: when a job has ended,
    on_failure: str = ""  # has failed,
    on_empty: str = ""  # when no job is left,
    on_idle: str = ""  # and when a job is idle

    @property
    def guard_bytes(self) -> int:
        return parse_size(self.guard_size)

    @property
    def log_bytes(self) -> int:
        return parse_size(self.log_size)

    @property
    def context_bytes(self) -> int:
        return parse_size(self.context_size)


_RANGES: Mapping[str, tuple[float, float]] = {
    "sample_s": (0.02, 60),
    "flat_s": (0.1, 86400),
    "patience_s": (0, 30 * 86400),
    "grace_s": (0, 600),
    "load_cap": (0, 100),
    "short_s": (0, 30 * 86400),
    "share_half_life_s": (60, 365 * 86400),
    "yield_after_s": (0, 30 * 86400),
    "urgent_per_user": (0, 1000),
    "bookings_per_user": (0, 1000),
    "booking_share": (0, 1),
    "booking_lapse_s": (1, 30 * 86400),
    "booking_unknown_s": (0, 30 * 86400),
    "idle_limit_s": (0, 30 * 86400),
    "idle_after_s": (0, 30 * 86400),
    "shares": (0.01, 100),
    "requeue_s": (0, 3600),
    "guard_fraction": (0, 0.9),
    "nvml_deadline_s": (0.1, 600),
    "connections_per_user": (1, 1_000_000),
    "waiting_per_user": (1, 1_000_000),
    "idle_exit_s": (0, 30 * 86400),
    "queue_running": (0, 1_000_000),
    "grace_to_end_s": (0, 86400),
}
_SIZES = ("guard_size", "context_size", "log_size")
_WORDS = {
    "policy": ("asked", "spread", "pack"),
    "idle_rule": ("show", "tell", "yield", "end"),
    "memory_cap": ("on", "off"),
}
_HINT = "See docs/settings.md."


@dataclass(frozen=True, slots=True)
class _Given:
    """One value and where it comes from."""

    name: str
    value: object
    source: str

    def wrong(self, text: str, hint: str = _HINT) -> BadSetting:
        return BadSetting(f"{self.name} is {self.value!r} ({self.source}) {text}.", hint)


def load(flags: Mapping[str, object] | None = None) -> Settings:
    """Read all sources; a bad value is one line that names it and its source."""
    given: dict[str, _Given] = {}
    path = paths.settings_file()
    for name, value in _from_file(path).items():
        given[name] = _Given(name, value, f"in {path}")
    for name in Settings.__struct_fields__:
        variable = f"GRN_{name.upper()}"
        if text := os.environ.get(variable):
            given[name] = _Given(name, text, f"from {variable}")
    for name, value in (flags or {}).items():
        if value is not None:
            given[name] = _Given(name, value, "from the command line")
    return msgspec.convert({name: _read(one) for name, one in given.items()}, Settings)


def _from_file(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            values: dict[str, object] = toml(file.read())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # not TOML, or not even UTF-8
        raise BadSetting(f"{path} is not TOML: {error}.") from error
    for name in values:
        if name not in Settings.__struct_fields__:
            near = nearest(name, Settings.__struct_fields__)
            hint = f"Did you mean {near}? {_HINT}" if near else _HINT
            raise BadSetting(f"{path} sets '{name}', which is no setting.", hint)
    return values


def _read(given: _Given) -> object:
    """Check one value and return it as the type of its field."""
    kind = _KINDS[given.name]
    if given.name == "shares":
        return _read_shares(given)
    if given.name == "sites":
        if not isinstance(given.value, dict):
            raise given.wrong("and must be tables like [sites.lab]")
        return given.value
    try:
        value: object = msgspec.convert(given.value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise given.wrong(f"and must be {_spelled(given.name)}") from error
    if isinstance(value, (int, float)):
        least, most = _RANGES[given.name]
        if not least <= value <= most:
            raise given.wrong(f"and must be {_spelled(given.name)}")
    elif given.name in _SIZES:
        try:
            parse_size(str(value))
        except BadSetting as error:
            raise given.wrong("and must be a size", error.hint) from error
    elif given.name == "host" and value:
        _read_host(given)
    elif value not in _WORDS.get(given.name, (value,)):
        raise given.wrong(f"and must be one of {', '.join(_WORDS[given.name])}")
    elif given.name == "gpus" and value != "nvml" and not str(value).startswith("virtual:"):
        raise given.wrong("and must name GPUs", "Use nvml or virtual:4x8GiB.")
    return value


def _read_host(given: _Given) -> None:
    try:
        host_size(str(given.value))
    except BadSetting as error:
        raise given.wrong("and must be cores and memory", error.hint) from error


def host_size(text: str) -> tuple[float, int] | None:
    """Read the setting `host`: cores and bytes, None for `off`."""
    if text == "off":
        return None
    cpus, _, size = text.partition("x")
    try:
        found = parse_cpus(cpus), parse_size(size)
    except GrnError as error:
        raise BadSetting(f"'{text}' is no host.", "Write it like 16x64GiB, or off.") from error
    return found


def _read_shares(given: _Given) -> dict[str, float]:
    """Read weights: a table of the file, or `ada=2,@lab=0.5`."""
    pairs = given.value
    if isinstance(pairs, str):
        parts = [part.split("=", 1) for part in pairs.split(",") if "=" in part]
        pairs = {name.strip(): weight.strip() for name, weight in parts}
        if len(pairs) != len(str(given.value).split(",")):
            raise given.wrong("and must be like ada=2,@lab=0.5")
    try:
        weights = msgspec.convert(pairs, dict[str, float], strict=False)
    except msgspec.ValidationError as error:
        raise given.wrong("and must be a table of users and numbers") from error
    least, most = _RANGES["shares"]
    if not all(least <= weight <= most for weight in weights.values()):
        raise given.wrong(f"and all in it must be numbers from {least} to {most}")
    return weights


def _spelled(name: str) -> str:
    if name not in _RANGES:
        return "a text"
    least, most = _RANGES[name]
    return f"a {'whole ' if _KINDS[name] is int else ''}number from {least} to {most}"


_KINDS = {field.name: field.type for field in msgspec.structs.fields(Settings)}
