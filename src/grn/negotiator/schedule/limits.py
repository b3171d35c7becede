"""The limits that an administrator may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grn.negotiator.schedule.ledger import Guard


@dataclass(frozen=True, slots=True)
class Rules:
    """The configurable limits of the engine."""

    guard: Guard = field(default_factory=Guard)
    flat_s: float = 60.0  # a first run whose memory has not risen for this long is measured
    patience_s: float = 600.0  # after this long GPUs are reserved for the oldest request
    grace_s: float = 2.0  # after a restart, how long positions are kept for earlier requests
    load_cap: float = 0.0  # jobs share a GPU until their loads add up to this; 0: as learned
    short_s: float = 900.0  # types that usually take no longer precede others
    share_half_life_s: float = 86400.0  # the half-life of a user's usage
    weights: Mapping[int, float] = field(default_factory=dict)  # by user; others have 1
