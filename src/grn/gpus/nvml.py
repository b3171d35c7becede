"""NVIDIA GPUs through NVML, which is used only in a helper process.

Turns the driver's answers and failures into readings; places nothing and logs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from grn.errors import MachineError
from grn.gpus.attribution import Attribution
from grn.gpus.nvml_calls import GPU_IS_LOST, UNKNOWN_ERROR
from grn.gpus.nvml_facts import CannotOpen, Figures, FoundGpu, Joined, LeftOut
from grn.gpus.nvml_pipe import HelperLost, HelperSilent, Launched, Patience
from grn.gpus.nvml_watch import NvmlWatch
from grn.gpus.probe import Inventory, Placement
from grn.model.gpu import (
    ComputeMode,
    Gpu,
    GpuHealth,
    GpuKind,
    Link,
    LinkKind,
    ProcessUse,
    Reading,
    no_process_list,
)
from grn.proc import processes
from grn.proc.identity import tag_of

_NO_GPU_HINT = "Without a GPU, start with virtual ones: `grn start --virtual 2x2GiB`."
_WHY: dict[str | int, str] = {
    "no-module": "the Python package nvidia-ml-py is missing.",
    "wrong-module": "an old fork of pynvml hides the package nvidia-ml-py.",
    4: "the NVIDIA driver refuses access (are /dev/nvidia* readable for this user?).",
    9: "the NVIDIA driver is not loaded.",
    12: "no NVIDIA driver here (libnvidia-ml.so.1 was not found).",
    18: "the NVIDIA driver and its library have different versions.",
}
_REMEDY: dict[str | int, str] = {
    "no-module": "Install it: `pip install nvidia-ml-py`.",
    "wrong-module": "`pip uninstall pynvml`, then `pip install --force-reinstall nvidia-ml-py`.",
    9: "See what `nvidia-smi` says.",
    18: "The driver was updated: reload its kernel module or reboot.",
}

_EXPLAINED = 0.5  # of the load of a GPU, by its processes together


@dataclass(slots=True)
class _Reads:
    """The processes of one lease, and the processes that were on a GPU before it began."""

    pids: set[int]
    earlier: frozenset[int]
    shared: set[int] = field(default_factory=set)  # work for another lease as well


class NvmlProbe:
    """All NVIDIA GPUs of the machine. The set is fixed at the start, by UUID.

    A GPU whose call hangs is UNKNOWN and skipped for growing times; the others are still read.
    """

    def __init__(
        self,
        *,
        deadline_s: float = 5.0,
        open_s: float = 15.0,
        restart_s: float = 1.0,
        longest_restart_s: float = 300.0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        patience = Patience(open_s=open_s, read_s=deadline_s)
        self._open_s = open_s
        self._watch = NvmlWatch(patience, (restart_s, longest_restart_s), dict(env or {}))
        self._lock = asyncio.Lock()
        self._gpus: tuple[Gpu, ...] = ()
        self._left_out = 0  # GPUs that did not answer at the start
        self._all_answer = False
        self._attribution = Attribution(tag_of)
        self._on_gpus: frozenset[int] = frozenset()
        self._runs: dict[str, _Reads] = {}
        self._past_peaks: dict[int, dict[str, int]] = {}  # pid -> uuid -> bytes

    @property
    def helper_pid(self) -> int | None:
        """Return the pid of the helper process in use."""
        return self._watch.helper_pid

    @property
    def indices_hold(self) -> bool:
        """True while every GPU of the machine answers at the index it had at the start.

        CUDA leaves out a GPU that NVML still counts but that does not answer; both renumber the
        others when a GPU is not enumerated any more.
        """
        now = self._watch.index_of
        is_shifted = any(now.get(gpu.uuid) != gpu.index for gpu in self._gpus)
        return self._all_answer and not self._left_out and not is_shifted

    async def start(self) -> Inventory:
        """Open the driver and list all its GPUs; raise MachineError where there are none."""
        try:
            first, pairs = await self._watch.joined(await self._watch.open())
        except (CannotOpen, HelperLost, OSError) as error:
            await self._watch.close()
            raise _cannot_start(error, self._open_s) from error
        notes = _notes(first, self._watch.hung)
        links = _links(pairs)
        self._gpus = tuple(
            _gpu(found, links.get(found.uuid, ()))
            for found in first.found
            if _mode(found.mode) is not ComputeMode.PROHIBITED
        )
        self._watch.use(first, [gpu.uuid for gpu in self._gpus])
        if not self._gpus:
            await self._watch.close()
            raise MachineError(" ".join(("there is no usable NVIDIA GPU.", *notes)), _NO_GPU_HINT)
        figures = {said.uuid: said for said in first.figures}
        self._left_out = len(first.left_out) + len(self._watch.hung)
        self._note_answers(figures)
        enumerated = frozenset(found.uuid for found in first.found)
        return Inventory(self._gpus, self._readings(figures, {}), notes, enumerated)

    async def sample(self, placements: Sequence[Placement]) -> tuple[Reading, ...]:
        """Read every GPU once, within twice the deadline. Never raises."""
        ended = self._runs.keys() - {placement.lease for placement in placements}
        async with self._lock:
            figures = await self._watch.read()
        self._note_answers(figures)
        for lease in ended:
            self._runs.pop(lease, None)
        pids = {pid for said in figures.values() for pid, _ in said.uses} if placements else set()
        leases = self._attribution.members(processes.with_ancestors(pids), placements)
        self._note_processes(figures, leases)
        return self._readings(figures, leases)

    def begin(self, placement: Placement) -> None:
        """Note the processes on a GPU before a lease began: only a later peak is its own."""
        pids = {placement.holder.pid} if placement.holder else set()
        self._runs[placement.lease] = _Reads(pids, self._on_gpus)

    @property
    def has_strangers(self) -> bool:
        """True: any process of the machine may use a GPU."""
        return True

    @property
    def keeps_peaks(self) -> bool:
        """Return whether the driver's accounting is on."""
        return self._watch.has_accounting

    def peak_at_once(self, placement: Placement) -> int | None:
        """Return None: asking the driver takes time."""
        self._runs.pop(placement.lease, None)
        return None

    async def peak_in_time(self, placement: Placement) -> int | None:
        """Return the highest memory of one process of a lease, if the driver's accounting is on.

        Exact for a job of one process. Peaks of several are not summed: a job that runs its
        steps one after the other never had that much.
        """
        run = self._runs.pop(placement.lease, None)
        if run is None or not run.pids - run.shared:
            return None
        async with self._lock:
            found = await self._watch.peaks(sorted(run.pids - run.shared))
        own: list[int] = []
        for peak in found:
            past = self._past_peaks.setdefault(peak.pid, {})
            before = past.get(peak.uuid, None if peak.pid in run.earlier else 0)
            if before is not None and peak.peak_bytes > before and peak.uuid in placement.gpus:
                own.append(peak.peak_bytes)
            past[peak.uuid] = peak.peak_bytes
        self._forget_the_dead()
        return max(own, default=None)

    async def close(self) -> None:
        """End the helper; one that is stuck in the driver is abandoned."""
        await self._watch.close()

    def _note_answers(self, figures: Mapping[str, Figures]) -> None:
        said = [figures.get(gpu.uuid) for gpu in self._gpus]
        self._all_answer = all(one is not None and one.code == 0 for one in said)

    def _note_processes(
        self, figures: Mapping[str, Figures], leases: Mapping[int, tuple[str, ...]]
    ) -> None:
        """Remember which processes were seen on GPUs, and for which lease."""
        if figures:
            self._on_gpus = frozenset(pid for said in figures.values() for pid, _ in said.uses)
        for pid, owners in leases.items():
            for lease in owners:
                run = self._runs.get(lease)
                if run is None:
                    continue
                if pid in self._on_gpus:
                    run.pids.add(pid)
                if len(owners) > 1:
                    run.shared.add(pid)

    def _forget_the_dead(self) -> None:
        dead = [pid for pid in self._past_peaks if processes.living(pid) is None]
        for pid in dead:
            del self._past_peaks[pid]

    def _readings(
        self, figures: Mapping[str, Figures], leases: Mapping[int, tuple[str, ...]]
    ) -> tuple[Reading, ...]:
        some_answer = any(said.code == 0 for said in figures.values())
        readings = []
        for gpu in self._gpus:
            said = figures.get(gpu.uuid)
            if said is None:
                is_gone = self._watch.is_missing(gpu.uuid)
                readings.append(Reading(gpu.uuid, _health(is_gone=is_gone)))
            else:
                readings.append(_reading(gpu, said, leases, some_answer=some_answer))
        return tuple(readings)


def _reading(
    gpu: Gpu, said: Figures, leases: Mapping[int, tuple[str, ...]], *, some_answer: bool
) -> Reading:
    if said.free_bytes is None:
        # An unknown error of all GPUs at once is the driver's, not theirs.
        is_gone = said.code == GPU_IS_LOST or (said.code == UNKNOWN_ERROR and some_answer)
        return Reading(gpu.uuid, _health(is_gone=is_gone))
    return Reading(
        uuid=gpu.uuid,
        # From free, which all drivers count alike: the reserve may be in `used`, or apart.
        used_bytes=max(0, gpu.total_bytes - said.free_bytes),
        load_pct=said.load_pct,
        uses=tuple(ProcessUse(pid, used, leases.get(pid, ())) for pid, used in said.uses),
        mode=_mode(said.mode),
        lists_processes=said.lists_processes,
        temperature_c=said.temperature_c,
        power_w=said.power_w,
        clock_mhz=said.clock_mhz,
        process_loads=_process_loads(said),
    )


def _process_loads(said: Figures) -> tuple[tuple[int, float], ...]:
    """Return the loads of all processes on a GPU, none unless they explain most of its load.

    The driver lists only those that have worked: the others have used nothing, if the list is not
    one that lacks whoever works.
    """
    listed = {pid: load for pid, load in said.loads if pid in dict(said.uses)}
    if not listed or sum(listed.values()) < (said.load_pct or 0.0) * _EXPLAINED:
        return ()
    return tuple((pid, float(listed.get(pid, 0))) for pid, _ in said.uses)


def _mode(number: int | None) -> ComputeMode | None:
    if number is None:
        return None
    return {0: ComputeMode.SHARED, 2: ComputeMode.PROHIBITED}.get(number, ComputeMode.EXCLUSIVE)


def _health(*, is_gone: bool) -> GpuHealth:
    return GpuHealth.LOST if is_gone else GpuHealth.UNKNOWN


def _links(pairs: Sequence[Joined]) -> dict[str, tuple[Link, ...]]:
    """Return the links of each GPU, seen from both sides."""
    links: dict[str, tuple[Link, ...]] = {}
    for pair in pairs:
        for one, other in ((pair.one, pair.other), (pair.other, pair.one)):
            link = Link(other, LinkKind(pair.by), pair.lanes)
            links[one] = (*links.get(one, ()), link)
    return links


def _gpu(found: FoundGpu, links: tuple[Link, ...]) -> Gpu:
    return Gpu(
        uuid=found.uuid,
        index=found.index,
        model=found.model,
        total_bytes=found.total_bytes,
        kind=GpuKind.MIG if found.is_slice else GpuKind.CARD,
        is_exclusive=_mode(found.mode) is ComputeMode.EXCLUSIVE,
        links=links,
    )


def _notes(first: Launched, hung: Collection[int]) -> tuple[str, ...]:
    return (
        *(f"GPU {index} did not answer in time and is left out." for index in sorted(hung)),
        *(_left_out_note(left) for left in first.left_out),
        *_blind_note(first),
        *(
            f"GPU {found.index} is in compute mode PROHIBITED and is left out."
            for found in first.found
            if _mode(found.mode) is ComputeMode.PROHIBITED
        ),
    )


def _blind_note(first: Launched) -> tuple[str, ...]:
    blind = {said.uuid for said in first.figures if not said.lists_processes}
    gpus = [_gpu(found, ()) for found in first.found if found.uuid in blind]
    return (f"{no_process_list(gpus)}.",) if gpus else ()


def _left_out_note(left: LeftOut) -> str:
    code = f", NVML code {left.code}" if left.code > 0 else ""
    return f"GPU {left.index} is left out ({left.text.rstrip('.')}{code})."


def _cannot_start(error: CannotOpen | HelperLost | OSError, open_s: float) -> MachineError:
    if isinstance(error, HelperSilent):
        message = f"the NVIDIA driver did not answer within {open_s:g} s."
        return MachineError(message, f"See what `nvidia-smi` says. {_NO_GPU_HINT}")
    if not isinstance(error, CannotOpen):
        return MachineError(f"the NVML helper process gave no answer: {error}.", _NO_GPU_HINT)
    key = error.code if error.why == "nvml" else error.why
    message = _WHY.get(key, f"NVML cannot be used: {error.text.rstrip('.')} (code {error.code}).")
    if error.why == "wrong-module":
        message = f"{message[:-1]} ({error.text})."
    return MachineError(message, f"{_REMEDY.get(key, '')} {_NO_GPU_HINT}".strip())
