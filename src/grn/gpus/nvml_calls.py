"""Ask NVML one thing at a time; the quirks of drivers and of pynvml end here.

Runs only inside the helper process, and knows nothing of pipes, deadlines or grn's own types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from types import ModuleType
from typing import Any

from grn.gpus.nvml_facts import Joined
from grn.proc.processes import max_pids

INSUFFICIENT_SIZE = 7
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
UNKNOWN_ERROR = 999
GARBAGE = -1  # ours: the driver's answer is impossible

_LOST = (GPU_IS_LOST, UNKNOWN_ERROR)
_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
_LIST_TRIES = 4  # a burst of starts between sizing and reading makes the list too long again
_MAX_BYTES = 1 << 50
_ALL_ONES = (1 << 64) - 1
_LONGEST_NAME = 80
_MAX_CARDS = 64  # beyond, there are too many pairs to ask for links
_MAX_LANES = 36
_LOAD_US = 3_000_000  # the load of a process is asked for over this time
_GPU_SENSOR = 0  # the argument of nvmlDeviceGetTemperature
_SM_CLOCK = 1  # the argument of nvmlDeviceGetClockInfo
_NVLINK = 2  # the argument of nvmlDeviceGetP2PStatus
_ONE_SIDE = 20  # up to here two GPUs meet in PCIe switches,
_ONE_NODE = 40  # up to here at one processor

Bus = tuple[int, int, int]


class DriverError(Exception):
    """A call failed with this NVML code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML code {code}")
        self.code = code


class Nvml:
    """The pynvml module, with every failure turned into a DriverError."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._error: type[Exception] = module.NVMLError
        # Not an NVMLError: what the unversioned wrappers raise for a missing symbol.
        self._mismatch = getattr(module, "NVMLLibraryMismatchError", module.NVMLError)
        self.list_versions: tuple[str, ...] = ()
        self.has_memory_v2 = False
        self.pid_limit = 1 << 22

    def open(self) -> None:
        """Load the library, start a session, and find out which calls this driver has."""
        self.call("nvmlInit")
        self.list_versions = self._trusted_list_versions()
        has_version = hasattr(self._module, "nvmlMemory_v2")
        self.has_memory_v2 = has_version and self._has("nvmlDeviceGetMemoryInfo_v2")
        self.pid_limit = max_pids()

    def call(self, name: str, *args: object) -> Any:  # what pynvml gives back has no types
        """Call one function of pynvml."""
        try:
            return getattr(self._module, name)(*args)
        except self._error as error:
            raise DriverError(int(getattr(error, "value", UNKNOWN_ERROR))) from None
        except (self._mismatch, AttributeError):
            raise DriverError(FUNCTION_NOT_FOUND) from None
        except UnicodeDecodeError:
            raise DriverError(GARBAGE) from None

    def handle(self, name: str, *args: object) -> object:
        """Call a function that returns a handle; refuse a null handle."""
        handle: object = self.call(name, *args)
        if not handle:
            raise DriverError(GPU_IS_LOST)
        return handle

    def memory_v2(self, handle: object) -> Any:
        """Return the memory figures that show the driver's reserve apart."""
        return self.call("nvmlDeviceGetMemoryInfo", handle, self._module.nvmlMemory_v2)

    def error_text(self, code: int) -> str:
        """Return the driver's text for an error code."""
        try:
            return printable(str(self._module.NVMLError(code)))
        except (self._error, self._mismatch, UnicodeDecodeError):
            return f"error {code}"

    def _trusted_list_versions(self) -> tuple[str, ...]:
        """Return the process list versions to try, best first."""
        # Early R535 drivers gave `_v3` a longer element under the same name; `_v2` stayed right.
        if self._has("nvmlDeviceGetConfComputeMemSizeInfo") and not self._has(
            "nvmlDeviceGetRunningProcessDetailList"
        ):
            return ("_v2",)
        return tuple(version for version in ("_v3", "_v2") if self._has(_LISTS[0] + version))

    def _has(self, symbol: str) -> bool:
        library = getattr(self._module, "nvmlLib", None)
        return library is None or hasattr(library, symbol)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one GPU. `total_bytes` leaves out the driver's reserve where it is known."""

    total_bytes: int
    free_bytes: int


def memory(nvml: Nvml, handle: object) -> DeviceMemory:
    """Read the memory of a GPU, by the newer call where its answer is possible."""
    if nvml.has_memory_v2:
        try:
            raw = nvml.memory_v2(handle)
            return _checked(int(raw.total) - int(raw.reserved), int(raw.free))
        except DriverError as error:
            if error.code in _LOST:
                raise
    raw = nvml.call("nvmlDeviceGetMemoryInfo", handle)
    return _checked(int(raw.total), int(raw.free))


def _checked(total_bytes: int, free_bytes: int) -> DeviceMemory:
    if not 0 < total_bytes <= _MAX_BYTES or not 0 <= free_bytes <= total_bytes:
        raise DriverError(GARBAGE)
    return DeviceMemory(total_bytes, free_bytes)


def load_pct(nvml: Nvml, handle: object) -> int | None:
    """Read the load of a GPU, None when the driver does not report it."""
    try:
        load = int(nvml.call("nvmlDeviceGetUtilizationRates", handle).gpu)
    except DriverError as error:
        if error.code == GPU_IS_LOST:
            raise
        return None
    return load if load <= 100 else None  # values of billions occur


def process_loads(nvml: Nvml, handle: object, since: int) -> tuple[dict[int, int], int]:
    """Read the load of the processes that have used a GPU lately, and the time of that answer.

    `since` is the time of the answer before. The driver averages over what it has kept from then
    on; asking from a little earlier gets an answer whatever the pace of its samples.
    """
    try:
        listed = nvml.call("nvmlDeviceGetProcessUtilization", handle, max(0, since - _LOAD_US))
    except DriverError as error:
        if error.code == GPU_IS_LOST:
            raise
        return {}, since
    newest = max((int(one.timeStamp) for one in listed), default=since)
    found: dict[int, int] = {}
    for one in sorted(listed, key=lambda one: int(one.timeStamp)):
        is_sane = 0 < int(one.pid) < nvml.pid_limit and int(one.smUtil) <= 100
        if is_sane and newest - int(one.timeStamp) <= _LOAD_US:
            found[int(one.pid)] = int(one.smUtil)
    return found, newest


def temperature_c(nvml: Nvml, handle: object) -> int | None:
    """Read the temperature of a GPU, None when the driver does not report it."""
    return _plausible(nvml, "nvmlDeviceGetTemperature", handle, _GPU_SENSOR, most=200)


def power_w(nvml: Nvml, handle: object) -> int | None:
    """Read the power a GPU draws, in whole watts, None when the driver does not report it."""
    milliwatts = _plausible(nvml, "nvmlDeviceGetPowerUsage", handle, most=10_000_000)
    return None if milliwatts is None else round(milliwatts / 1000)


def clock_mhz(nvml: Nvml, handle: object) -> int | None:
    """Read the present clock of a GPU's cores, None when the driver does not report it."""
    return _plausible(nvml, "nvmlDeviceGetClockInfo", handle, _SM_CLOCK, most=100_000)


def _plausible(nvml: Nvml, name: str, *args: object, most: int) -> int | None:
    try:
        value = int(nvml.call(name, *args))
    except DriverError as error:
        if error.code == GPU_IS_LOST:
            raise
        return None
    return value if 0 <= value <= most else None


def processes(nvml: Nvml, handle: object, total_bytes: int) -> dict[int, int | None] | None:
    """Return the memory of each process on a GPU; None where the driver has no list.

    Drivers before R450 have no list that pynvml can read, and some refuse to give one. The lists
    beside that of compute processes are missing on many drivers that work.
    """
    found: dict[int, int | None] = {}
    for name in _LISTS:
        listed = _one_list(nvml, handle, name, total_bytes)
        if listed is None and name == _LISTS[0]:
            return None
        for pid, used_bytes in listed or ():
            found[pid] = _larger(found.get(pid), used_bytes)
    return found


def _larger(one: int | None, other: int | None) -> int | None:
    """Return the larger figure: a process in several lists has the same memory in each."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _one_list(
    nvml: Nvml, handle: object, name: str, total_bytes: int
) -> list[tuple[int, int | None]] | None:
    """Read one process list by the first version with possible answers, None without one."""
    plausible: list[tuple[int, int | None]] | None = None
    for version in nvml.list_versions:
        try:
            entries = _entries(nvml, handle, name + version)
        except DriverError as error:
            if error.code in _LOST:
                raise
            continue
        if all(_is_sane(nvml, pid, used, total_bytes) for pid, used in entries):
            return entries
        # One wrong entry means shifted elements: drop all sizes, keep possible pids.
        plausible = [(pid, None) for pid, _ in entries if 0 < pid < nvml.pid_limit]
    return plausible


def _is_sane(nvml: Nvml, pid: int, used_bytes: int | None, total_bytes: int) -> bool:
    return 0 < pid < nvml.pid_limit and (used_bytes is None or used_bytes <= total_bytes)


def _entries(nvml: Nvml, handle: object, name: str) -> list[tuple[int, int | None]]:
    for _ in range(_LIST_TRIES):
        try:
            listed = nvml.call(name, handle)
        except DriverError as error:
            if error.code != INSUFFICIENT_SIZE:
                raise
        else:
            return [(int(entry.pid), _known(entry.usedGpuMemory)) for entry in listed]
    raise DriverError(INSUFFICIENT_SIZE)


def _known(value: int | None) -> int | None:
    return None if value is None or int(value) == _ALL_ONES else int(value)


def peaks(nvml: Nvml, handle: object, pids: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the exact peaks of these processes, where the GPU's accounting has them."""
    for pid in pids:
        try:
            value = _known(nvml.call("nvmlDeviceGetAccountingStats", handle, pid).maxMemoryUsage)
        except DriverError:
            continue
        if value is not None and 0 < value <= _MAX_BYTES:
            yield pid, value


def switch_accounting_on(nvml: Nvml, handle: object) -> bool:
    """Try to switch the driver's accounting on; return whether it is on."""
    try:
        if nvml.call("nvmlDeviceGetAccountingMode", handle) == 1:
            return True
        nvml.call("nvmlDeviceSetAccountingMode", handle, 1)  # needs root
        return bool(nvml.call("nvmlDeviceGetAccountingMode", handle) == 1)
    except DriverError:
        return False


def compute_mode(nvml: Nvml, handle: object) -> int | None:
    """Return the compute mode: 0 shared, 2 prohibited, 1 or 3 for one context only."""
    try:
        return int(nvml.call("nvmlDeviceGetComputeMode", handle))
    except DriverError:
        return None


def slices(nvml: Nvml, handle: object) -> list[object] | None:
    """Return the handles of the MIG slices of a GPU, or None when MIG is off."""
    try:
        if nvml.call("nvmlDeviceGetMigMode", handle)[0] != 1:
            return None
        count = int(nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle))
    except DriverError as error:
        if error.code in _LOST:
            raise
        return None
    found = []
    for place in range(count):
        try:
            found.append(nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, place))
        except DriverError:
            continue  # places without a slice are normal
    return found


# --- links between GPUs, pair by pair -------------------------------------------------------


def joined(nvml: Nvml, cards: Mapping[str, object]) -> Iterator[Joined]:
    """Yield all pairs of GPUs that are near each other, by uuid -> handle.

    Links that the driver does not report are left out.
    """
    if len(cards) > _MAX_CARDS:
        return
    places = {name: _bus(nvml, card) for name, card in cards.items()}
    lanes = {name: _lanes(nvml, card) for name, card in cards.items()}
    for one, other in combinations(cards, 2):
        place = places[other]
        direct = lanes[one][place] if place is not None else 0
        if direct or _is_nvlink(nvml, cards[one], cards[other]):
            # By way of a switch all lanes of a GPU lead to each of the others.
            most = min(lanes[one].total(), lanes[other].total())
            yield Joined(one, other, "nvlink", direct or most)
        elif (level := _common_ancestor(nvml, cards[one], cards[other])) is not None:
            by = "switch" if level <= _ONE_SIDE else "socket"
            if level <= _ONE_NODE:
                yield Joined(one, other, by)


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


# --- names ------------------------------------------------------------------------------------


def uuid(nvml: Nvml, handle: object) -> str:
    """Return the name of a GPU that stays when indices shift."""
    name = str(nvml.call("nvmlDeviceGetUUID", handle))
    if not 4 < len(name) <= 96 or not all(c.isascii() and (c.isalnum() or c in "-/") for c in name):
        raise DriverError(GARBAGE)
    return name


def model(nvml: Nvml, handle: object) -> str:
    """Return the product name of a GPU as harmless text."""
    try:
        return printable(str(nvml.call("nvmlDeviceGetName", handle))) or "NVIDIA GPU"
    except DriverError as error:
        if error.code in _LOST:
            raise
        return "NVIDIA GPU"


def printable(text: str) -> str:
    """Drop characters that cannot be printed on one line."""
    kept = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(kept.split())[:_LONGEST_NAME]
