"""The numbers an administrator may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grn.negotiator.schedule.ledger import Guard


@dataclass(frozen=True, slots=True)
class Rules:
    """What the engine goes by where a lab may want something else."""

    guard: Guard = field(default_factory=Guard)
    flat_s: float = 60.0  # a first run this long without a rise is believed
    patience_s: float = 600.0  # after this long the oldest request is kept GPUs free
    grace_s: float = 2.0  # after a restart, how long places are kept for those who waited
    load_cap: float = 0.0  # jobs share a GPU until their loads add up to this; 0: as learned
    short_s: float = 900.0  # types that usually take no longer go before others
    share_half_life_s: float = 86400.0  # after this long, half of what a user has had is forgotten
    weights: Mapping[int, float] = field(default_factory=dict)  # by user; others have 1
