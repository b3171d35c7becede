"""The links between the GPUs of a machine, read from NVML pair by pair.

Runs only inside the helper process. Links that the driver does not report are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from grn.gpus.nvml_calls import DriverError, Nvml

MAX_CARDS = 64  # beyond, there are too many pairs
_MAX_LANES = 36
_NVLINK = 2  # the argument of nvmlDeviceGetP2PStatus
_ONE_SIDE = 20  # up to here two GPUs meet in PCIe switches,
_ONE_NODE = 40  # up to here at one processor

Bus = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Card:
    """One open GPU."""

    uuid: str
    handle: object


@dataclass(frozen=True, slots=True)
class Joined:
    """Two GPUs and their link: `nvlink`, `switch` or `socket`."""

    one: str
    other: str
    by: str
    lanes: int = 0


def joined(nvml: Nvml, cards: Sequence[Card]) -> Iterator[Joined]:
    """Yield all pairs of GPUs that are near each other."""
    if len(cards) > MAX_CARDS:
        return
    places = {card.uuid: _bus(nvml, card.handle) for card in cards}
    lanes = {card.uuid: _lanes(nvml, card.handle) for card in cards}
    for one, other in combinations(cards, 2):
        place = places[other.uuid]
        direct = lanes[one.uuid][place] if place is not None else 0
        if direct or _is_nvlink(nvml, one.handle, other.handle):
            # By way of a switch all lanes of a GPU lead to each of the others.
            most = min(lanes[one.uuid].total(), lanes[other.uuid].total())
            yield Joined(one.uuid, other.uuid, "nvlink", direct or most)
        elif (level := _common_ancestor(nvml, one.handle, other.handle)) is not None:
            by = "switch" if level <= _ONE_SIDE else "socket"
            if level <= _ONE_NODE:
                yield Joined(one.uuid, other.uuid, by)


def _bus(nvml: Nvml, handle: object) -> Bus | None:
    try:
        info = nvml.call("nvmlDeviceGetPciInfo", handle)
    except DriverError:
        return None
    return (int(info.domain), int(info.bus), int(info.device))


def _lanes(nvml: Nvml, handle: object) -> Counter[Bus]:
    """Count the active NVLinks of a GPU by their target."""
    found: Counter[Bus] = Counter()
    for lane in range(_MAX_LANES):
        try:
            if nvml.call("nvmlDeviceGetNvLinkState", handle, lane) == 1:
                far = nvml.call("nvmlDeviceGetNvLinkRemotePciInfo", handle, lane)
                found[(int(far.domain), int(far.bus), int(far.device))] += 1
        except DriverError:
            continue
    return found


def _is_nvlink(nvml: Nvml, one: object, other: object) -> bool:
    try:
        return bool(nvml.call("nvmlDeviceGetP2PStatus", one, other, _NVLINK) == 0)
    except DriverError:
        return False


def _common_ancestor(nvml: Nvml, one: object, other: object) -> int | None:
    try:
        level = int(nvml.call("nvmlDeviceGetTopologyCommonAncestor", one, other))
    except DriverError:
        return None
    return level if level >= 0 else None
