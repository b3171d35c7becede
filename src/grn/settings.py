"""Flags over environment over the settings file over defaults, in one frozen object.

Each is listed in docs/settings.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import msgspec.structs
from msgspec import Meta

from grn import paths
from grn.errors import BadSetting, GrnError
from grn.model.units import parse_cpus, parse_size
from grn.option_file import nearest, toml

Seconds = Annotated[float, Meta(ge=0, le=30 * 86400)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Limit = Annotated[int, Meta(ge=1, le=1_000_000)]
OfUser = Annotated[int, Meta(ge=0, le=1000)]
Weight = Annotated[float, Meta(ge=0.01, le=100)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings with their limits. A variable GRN_<NAME> sets the field of that name."""

    gpus: str = "nvml"  # or virtual:4x8GiB
    host: str = ""  # cores and memory for jobs, as 16x64GiB; empty: as measured; off: no limit
    sample_s: Annotated[float, Meta(ge=0.02, le=60)] = 0.5
    flat_s: Annotated[float, Meta(ge=0.1, le=86400)] = 60.0
    patience_s: Seconds = 600.0
    grace_s: Annotated[float, Meta(ge=0, le=600)] = 2.0
    # Jobs share a GPU until their loads add up to this; 0: as learned.
    load_cap: Annotated[float, Meta(ge=0, le=100)] = 0.0
    short_s: Seconds = 900.0  # types that usually take no longer precede others
    policy: Literal["asked", "spread", "pack"] = "asked"  # of placement: as each asks, or all alike
    # The half-life of a user's usage.
    share_half_life_s: Annotated[float, Meta(ge=60, le=365 * 86400)] = 86400.0
    yield_after_s: Seconds = 30.0  # a job without room waits so long before others give way to it
    urgent_per_user: OfUser = 1  # urgent jobs of a user that others give way to at once
    bookings_per_user: OfUser = 3
    # The part of the GPUs that one user may have booked at a time.
    booking_share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    # A booking that is not used for so long after its start ends.
    booking_lapse_s: Annotated[float, Meta(ge=1, le=30 * 86400)] = 900.0
    booking_unknown_s: Seconds = 172800.0  # jobs of unknown duration are taken to end within this
    # PyTorch of a job may take what the job has reserved, where it can.
    memory_cap: Literal["on", "off"] = "on"
    idle_limit_s: Seconds = 1800.0  # a holder that leaves its GPU unused this long is idle; 0: off
    idle_after_s: Seconds = 1200.0  # no lease is idle before it has run this long
    idle_rule: Literal["show", "tell", "yield", "end"] = "show"  # what follows
    shares: dict[str, Weight] = {}  # fair-share weights of users, or members of a @group
    # Without effect; files of earlier versions may set it.
    requeue_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    guard_fraction: Annotated[float, Meta(ge=0, le=0.9)] = 0.05
    guard_size: str = "512MiB"
    nvml_deadline_s: Annotated[float, Meta(ge=0.1, le=600)] = 5.0
    context_size: str = "512MiB"  # what a CUDA context costs beyond the framework's own figure
    connections_per_user: Limit = 4096
    waiting_per_user: Limit = 10000
    idle_exit_s: Seconds = 0.0  # exit after this long without work; 0: never
    queue_running: Count = 0  # jobs of the queue that may run at once; 0: as many as GPUs allow
    # Between asking a job to end and killing it.
    grace_to_end_s: Annotated[float, Meta(ge=0, le=86400)] = 10.0
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


_SIZES = ("guard_size", "context_size", "log_size")
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
        raise BadSetting(f"{path} is not TOML: {error}.", "Mend or remove it.") from error
    for name in values:
        if name not in Settings.__struct_fields__:
            near = nearest(name, Settings.__struct_fields__)
            hint = f"Did you mean {near}? {_HINT}" if near else _HINT
            raise BadSetting(f"{path} sets '{name}', which is not a setting.", hint)
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
        raise given.wrong(f"and must be {_spelled(kind)}") from error
    if given.name in _SIZES:
        try:
            parse_size(str(value))
        except BadSetting as error:
            raise given.wrong("and must be a size", error.hint) from error
    elif given.name == "host" and value:
        _read_host(given)
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
        raise BadSetting(f"'{text}' is not a host.", "Write it like 16x64GiB, or off.") from error
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
        return msgspec.convert(pairs, dict[str, Weight], strict=False)
    except msgspec.ValidationError as error:
        raise given.wrong(f"and must be a table of users, each with {_spelled(Weight)}") from error


def _spelled(kind: Any) -> str:
    """Describe the values of a field's type."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is not Annotated:
        return "a text"
    number, meta = get_args(kind)
    return f"a {'whole ' if number is int else ''}number from {meta.ge} to {meta.le}"


_KINDS = {field.name: field.type for field in msgspec.structs.fields(Settings)}
