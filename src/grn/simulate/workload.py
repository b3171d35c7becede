"""Simulated jobs: arrival, needs, and duration alone.

Also the assumptions a replay makes about real GPUs; they are printed with every result.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from grn.model.gpu import Gpu
from grn.model.host import HostSize
from grn.model.job import Argument
from grn.model.units import parse_memory, show_size

LOADS_S = 20.0  # a job has a third of its memory at once and what it starts with after this
_AT_ONCE = 0.3
_AT = " at "  # precedes the speed in the name of a simulated model


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One job of a workload."""

    name: str
    job_type: str
    arrival_s: float
    solo_s: float  # its time when it has its GPUs to itself
    peak_bytes: int  # on each of its GPUs
    gpus: int = 1
    load: float = 0.9  # the share of a GPU's time it uses when alone
    user: int = 0
    arguments: tuple[Argument, ...] = ()
    starts_with: float = 1.0  # the share of its peak it has once it has loaded
    grown_at: float = 0.0  # the share of its run after which it has all
    is_jump: bool = False  # all at that moment, not little by little
    yields: bool = False  # it gives way and runs again
    is_urgent: bool = False
    saves_work: bool = False  # what it has done before it gave way is not lost
    ram_bytes: int = 0  # of the host's memory, which it has once it has loaded
    cpus: float = 0.0  # cores that it keeps busy
    kind: str = ""  # decides which types it interferes with: its original type

    def memory_bytes(self, age_s: float, done: float) -> int:
        """Return its memory on each GPU, by its age and the share of work done."""
        start = self.peak_bytes * self.starts_with
        if age_s < LOADS_S:
            return int(start * _AT_ONCE)
        if done >= self.grown_at:
            return self.peak_bytes
        if self.is_jump:
            return int(start)
        return int(start + (self.peak_bytes - start) * done / self.grown_at)

    def resident_bytes(self, age_s: float) -> int:
        """Return its memory on the host, by its age."""
        return int(self.ram_bytes * _AT_ONCE) if age_s < LOADS_S else self.ram_bytes


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumptions of a replay about shared GPUs."""

    beta: float = 1.0  # speed = min(1, U ** -beta), U being the summed loads on a GPU
    tick_s: float = 5.0  # how often the negotiator reads the GPUs while a job is new
    new_s: float = 120.0  # a job is new for this long
    calm_s: float = 30.0  # how often it reads them otherwise
    cap: float = 1.4  # up to this summed load the simple policies share a GPU
    interfering: float = 0.0  # the share of pairs of types that slow each other beyond that
    slowdown: float = 1.6  # and how many times as long they then take
    host: HostSize | None = None  # None: host memory and cores are not limited

    def speed(self, load: float) -> float:
        """Return the speed of each job on a GPU, relative to its speed alone."""
        return 1.0 if load <= 1.0 else float(load**-self.beta)

    def host_speed(self, cpus: float) -> float:
        """Return the speed of all jobs when together they want this many cores."""
        return 1.0 if self.host is None or cpus <= self.host.cpus else self.host.cpus / cpus

    def slower_beside(self, one: SimulatedJob, other: SimulatedJob) -> float:
        """Return how many times as long a job takes beside another, whatever their loads."""
        if not self.interfering:
            return 1.0
        names = sorted((one.kind or one.job_type, other.kind or other.job_type))
        drawn = int.from_bytes(sha256("\n".join(names).encode()).digest()[:4], "big") / 2**32
        return self.slowdown if drawn < self.interfering else 1.0

    def sentences(self) -> list[str]:
        """Spell the assumptions for people."""
        return [
            f"speed of a shared GPU = min(1, U^-{self.beta:g}), U = sum of the jobs' own loads; "
            "loads are taken from the file, 0.9 where it says nothing",
            f"a job has 30 % of its memory at once, the rest after {LOADS_S:.0f} s or as it grows; "
            "an allocation that does not fit kills the job that asks, which starts over",
            f"the negotiator reads the GPUs every {self.tick_s:g} s while a job is younger than "
            f"{self.new_s:g} s, else every {self.calm_s:g} s; it sees the load of a whole GPU, "
            "up to 100 %",
            *self._interferences(),
            *self._of_host(),
        ]

    def _interferences(self) -> list[str]:
        if not self.interfering:
            return []
        text = (
            f"{self.interfering:.0%} of the pairs of types, drawn by their names, slow each other"
        )
        return [f"{text} {self.slowdown:g} times beyond that"]

    def _of_host(self) -> list[str]:
        if self.host is None:
            return []
        size = f"{self.host.cpus:g} cores and {show_size(self.host.ram_bytes)} of memory"
        return [
            f"the host has {size}: jobs that want more cores are all slowed alike; when its "
            "memory is full the job with the most of it is killed, and starts over"
        ]


def parse_host(text: str) -> HostSize:
    """Read `16x64GB`: the cores and the memory of a host."""
    from grn.errors import BadSetting

    cores, _, size = text.strip().partition("x")
    if not cores.isdigit() or not 1 <= int(cores) <= 4096 or not size:
        raise BadSetting(f"'{text}' does not describe a host.", "Write it like 16x64GB.")
    return HostSize(float(cores), parse_memory(size))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Read `4x40GB`, or `2x40GB+1x24GB@0.5` for GPUs of different sizes and speeds."""
    from grn.errors import BadSetting

    gpus: list[Gpu] = []
    for part in text.split("+"):
        count, _, size = part.strip().partition("x")
        if not count.isdigit() or not 1 <= int(count) <= 4096 or not size:
            raise BadSetting(f"'{text}' does not describe GPUs.", "Write it like 4x40GB.")
        size, _, speed = size.partition("@")
        _check_speed(speed, text)
        total = parse_memory(size)
        model = f"simulated {size.strip()}" + (f"{_AT}{speed}" if speed else "")
        for _ in range(int(count)):
            index = len(gpus)
            gpus.append(Gpu(f"GPU-{index}", index, model, total))
    return tuple(gpus)


def speed_of(gpu: Gpu) -> float:
    """Return the speed of a simulated GPU, 1 by default."""
    return speed_of_model(gpu.model)


def speed_of_model(model: str) -> float:
    """Return how fast GPUs of a simulated model are."""
    return float(model.partition(_AT)[2] or 1.0)


def _check_speed(speed: str, text: str) -> None:
    from grn.errors import BadSetting

    try:
        is_good = not speed or 0.01 <= float(speed) <= 100
    except ValueError:
        is_good = False
    if not is_good:
        raise BadSetting(
            f"'{text}' names a speed that makes no sense.", "Write it like 2x24GB@0.5."
        )
