"""The metrics of the machine as Prometheus text, from a snapshot.

Every name is listed in docs/metrics.md. What is not known is left out, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from grn.protocol.negotiator_rows import GpuRow, HostRow, LeaseRow
from grn.protocol.queue_rows import NodeRow
from grn.protocol.snapshot import NEGOTIATOR, QUEUE, Snapshot

Labels = Mapping[str, object]
Sample = tuple[Labels, float | None]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text(picture: Snapshot, now: float) -> str:
    """Write all numbers; `now` is the wall clock."""
    lines: list[str] = []
    for name, kind, help_text, samples in _families(picture, now):
        known = [(labels, value) for labels, value in samples if value is not None]
        if known:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in known]
    return "\n".join(lines) + "\n"


def _families(picture: Snapshot, now: float) -> Iterable[tuple[str, str, str, list[Sample]]]:
    up = [({"source": name}, 0.0 if why else 1.0) for name, why in picture.trouble.items()]
    yield "grn_up", "gauge", "Whether negotiator and queue answer.", [*up]
    if not picture.trouble[NEGOTIATOR]:
        yield from _machine(picture, now)
    if not picture.trouble[QUEUE]:
        yield from _queue(picture)


def _machine(picture: Snapshot, now: float) -> Iterable[tuple[str, str, str, list[Sample]]]:
    facts = picture.negotiator
    yield "grn_info", "gauge", "The negotiator.", [({"version": facts.version}, 1.0)]
    yield "grn_start_time_seconds", "gauge", "When it was started.", [({}, facts.started_at)]
    trouble = float(bool(facts.trouble))
    yield "grn_trouble", "gauge", "1 while something keeps it from its work.", [({}, trouble)]
    yield from _gpus(list(picture.gpus.values()))
    if facts.host is not None:
        yield from _host(facts.host)
    yield from _leases(list(picture.leases.values()))
    yield from _idle(picture, now)
    yield from _bookings(picture)
    waiting = list(picture.waiting.values())
    reasons = Counter(row.reason or "unknown" for row in waiting)
    by_reason: list[Sample] = [({"reason": name}, count) for name, count in reasons.items()]
    yield "grn_waiting", "gauge", "Requests that wait, by reason.", by_reason or [({}, 0.0)]
    oldest = max((now - row.since_at for row in waiting), default=0.0)
    yield "grn_waiting_oldest_seconds", "gauge", "How long the oldest waits.", [({}, oldest)]
    ended: list[Sample] = [
        ({"outcome": outcome}, count) for outcome, count in facts.outcomes.items()
    ]
    yield "grn_leases_ended_total", "counter", "Leases that have ended, by outcome.", ended


def _gpus(gpus: list[GpuRow]) -> Iterable[tuple[str, str, str, list[Sample]]]:
    def each(key: str) -> list[Sample]:
        return [({"gpu": row.index, "uuid": row.uuid}, getattr(row, key)) for row in gpus]

    names: list[Sample] = [
        ({"gpu": row.index, "uuid": row.uuid, "model": row.model, "kind": row.kind}, 1.0)
        for row in gpus
    ]
    yield "grn_gpu_info", "gauge", "The GPUs that are managed.", names
    health: list[Sample] = [
        ({"gpu": row.index, "uuid": row.uuid}, float(row.health == "ok")) for row in gpus
    ]
    yield (
        "grn_gpu_healthy",
        "gauge",
        "1 while the driver answers for it and lets jobs start.",
        health,
    )
    for name, help_text in _GPU_BYTES.items():
        yield f"grn_gpu_memory_{name}_bytes", "gauge", help_text, each(f"{name}_bytes")
    loads: list[Sample] = [
        (labels, None if value is None else value / 100) for labels, value in each("load_pct")
    ]
    yield "grn_gpu_load_ratio", "gauge", "Load, 0 to 1.", loads
    yield "grn_gpu_temperature_celsius", "gauge", "Its temperature.", each("temperature_c")
    yield "grn_gpu_power_watts", "gauge", "The power it draws.", each("power_w")
    clocks: list[Sample] = [
        (labels, None if value is None else value * 1e6) for labels, value in each("clock_mhz")
    ]
    yield "grn_gpu_clock_hertz", "gauge", "The clock of its cores.", clocks
    counts: list[Sample] = [({"gpu": row.index, "uuid": row.uuid}, len(row.leases)) for row in gpus]
    yield "grn_gpu_leases", "gauge", "Leases on it.", counts


def _host(row: HostRow) -> Iterable[tuple[str, str, str, list[Sample]]]:
    for name, (value, help_text) in {
        "total": (row.ram_bytes, "Memory of the machine that jobs share."),
        "used": (row.used_bytes, "Memory of the machine in use, by whomever."),
        "reserved": (row.reserved_bytes, "Memory of the machine that leases reserve or use."),
        "guard": (row.guard_bytes, "Memory of the machine that is never promised."),
        "strangers": (row.strangers_bytes, "Memory of the machine used without a lease."),
        "free": (row.free_bytes, "Memory of the machine that may still be promised."),
    }.items():
        yield f"grn_host_memory_{name}_bytes", "gauge", help_text, [({}, value)]
    for name, (cores, help_text) in {
        "total": (row.cpus, "Cores of the machine that jobs share."),
        "reserved": (row.reserved_cpus, "Cores that leases reserve or use."),
        "strangers": (row.strangers_cpus, "Cores used without a lease, averaged."),
        "free": (row.free_cpus, "Cores that may still be promised."),
    }.items():
        yield f"grn_host_cpus_{name}", "gauge", help_text, [({}, cores)]


def _leases(leases: list[LeaseRow]) -> Iterable[tuple[str, str, str, list[Sample]]]:
    states = Counter({"running": 0, "draining": 0})
    states.update(row.state for row in leases)
    by_state: list[Sample] = [({"state": name}, count) for name, count in states.items()]
    yield "grn_leases", "gauge", "Leases, by state.", by_state
    users: dict[int, list[LeaseRow]] = {}
    for row in leases:
        users.setdefault(row.user, []).append(row)
    counts: list[Sample] = [({"uid": uid}, len(rows)) for uid, rows in users.items()]
    yield "grn_user_leases", "gauge", "Leases of a user.", counts
    for key in ("reserved", "used"):
        ram: list[Sample] = [
            ({"uid": uid}, sum(getattr(row, f"{key}_ram_bytes") or 0 for row in rows))
            for uid, rows in users.items()
        ]
        text = f"Host memory {key} by a user's leases."
        yield f"grn_user_{key}_host_bytes", "gauge", text, ram
        sums: list[Sample] = [
            ({"uid": uid}, sum((getattr(row, f"{key}_bytes") or 0) * len(row.gpus) for row in rows))
            for uid, rows in users.items()
        ]
        text = f"GPU memory {key} by a user's leases, over all their GPUs."
        yield f"grn_user_{key}_bytes", "gauge", text, sums


def _idle(picture: Snapshot, now: float) -> Iterable[tuple[str, str, str, list[Sample]]]:
    since = [row.idle_since_at for row in picture.leases.values() if row.idle_since_at is not None]
    by_user = Counter(row.user for row in picture.leases.values() if row.idle_since_at is not None)
    leases: list[Sample] = [({"uid": uid}, count) for uid, count in by_user.items()]
    text = "Leases of a user that hold GPUs and do not use them."
    yield "grn_user_idle_leases", "gauge", text, leases or [({}, 0.0)]
    strangers = [one for gpu in picture.gpus.values() for one in gpu.idle_strangers]
    text = "Processes without a lease that hold a GPU and do not use it."
    yield "grn_idle_strangers", "gauge", text, [({}, float(len(strangers)))]
    since += [one.idle_since_at for one in strangers if one.idle_since_at is not None]
    longest = max((now - at for at in since), default=0.0)
    yield "grn_idle_longest_seconds", "gauge", "How long the longest is idle.", [({}, longest)]


def _bookings(picture: Snapshot) -> Iterable[tuple[str, str, str, list[Sample]]]:
    found = picture.negotiator.bookings
    states = Counter({"ahead": 0, "active": 0})
    states.update(row.state for row in found)
    by_state: list[Sample] = [({"state": name}, count) for name, count in states.items()]
    yield "grn_bookings", "gauge", "Bookings, by state.", by_state
    gpus = Counter({(row.user, row.state): 0 for row in found})
    for row in found:
        gpus[row.user, row.state] += row.gpus_asked
    booked: list[Sample] = [({"uid": uid, "state": state}, n) for (uid, state), n in gpus.items()]
    yield "grn_user_booked_gpus", "gauge", "GPUs that a user has booked.", booked or [({}, 0.0)]
    begins = min((row.from_at for row in found if row.state == "ahead"), default=None)
    yield "grn_booking_next_time_seconds", "gauge", "When the next booking begins.", [({}, begins)]


def _queue(picture: Snapshot) -> Iterable[tuple[str, str, str, list[Sample]]]:
    facts = picture.queue
    counts: list[Sample] = [({"state": name}, count) for name, count in facts.counts.items()]
    yield "grn_queue_jobs", "gauge", "Jobs of this user's queue, by state.", counts
    held = facts.counts.get("held", 0)
    yield "grn_queue_held_jobs", "gauge", "Jobs that are held.", [({}, held)]
    drained = float(facts.drained)
    yield "grn_queue_drained", "gauge", "1 while it starts nothing more.", [({}, drained)]
    trouble = float(bool(facts.trouble))
    yield "grn_queue_trouble", "gauge", "1 while something keeps it back.", [({}, trouble)]
    yield from _nodes([node for node in picture.nodes.values() if node.node != "-"])


def _nodes(nodes: list[NodeRow]) -> Iterable[tuple[str, str, str, list[Sample]]]:
    def each(value: Callable[[NodeRow], float | None]) -> list[Sample]:
        return [({"site": node.site, "node": node.node}, value(node)) for node in nodes]

    def each_gpu(value: Callable[[GpuRow], float | None]) -> list[Sample]:
        return [
            ({"site": node.site, "node": node.node, "gpu": gpu.index, "uuid": gpu.uuid}, value(gpu))
            for node in nodes
            for gpu in node.gpus
        ]

    def load(gpu: GpuRow) -> float | None:
        return None if gpu.load_pct is None else gpu.load_pct / 100

    up = each(lambda node: float(node.state == "up"))
    yield "grn_node_up", "gauge", "1 while a node of a site can be used.", up
    heard = each(lambda node: node.heard_at)
    yield "grn_node_heard_time_seconds", "gauge", "When a node was last heard of.", heard
    jobs = each(lambda node: node.jobs)
    yield "grn_node_jobs", "gauge", "Jobs of this user's queue on a node.", jobs
    for name in ("total", "used", "reserved", "free"):
        sizes = each_gpu(partial(_bytes_of, name))
        yield f"grn_node_gpu_memory_{name}_bytes", "gauge", _GPU_BYTES[name], sizes
    yield "grn_node_gpu_load_ratio", "gauge", "Load, 0 to 1.", each_gpu(load)


def _bytes_of(name: str, gpu: GpuRow) -> float | None:
    value: float | None = getattr(gpu, f"{name}_bytes")
    return value


_GPU_BYTES = {
    "total": "All its memory.",
    "used": "In use, by whomever.",
    "reserved": "Reserved by leases.",
    "guard": "Never promised.",
    "strangers": "In use by processes without a lease.",
    "unexplained": "In use with no process shown for it.",
    "free": "May still be promised.",
    "idle": "Held by leases and processes that do not use it.",
}


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    inner = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{inner}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
