"""Made-up pictures of a machine and a queue, with defaults for all that is not the point."""

from __future__ import annotations

from typing import Any

from grn.model.units import GiB
from grn.protocol.snapshot import NEGOTIATOR, QUEUE, Snapshot

UID, OTHER = 1000, 1001
NOW = 10_000.0
HOSTILE = "\x1b[2J\u202eevil\r\n\x07"


def a_gpu(index: int = 0, *leases: str, **changes: Any) -> dict[str, Any]:
    row = {
        "index": index, "uuid": f"GPU-{index}", "model": "NVIDIA GeForce RTX 4090", "kind": "card",
        "health": "ok", "total_bytes": 24 * GiB, "guard_bytes": 2 * GiB, "used_bytes": 6 * GiB,
        "reserved_bytes": 8 * GiB, "strangers_bytes": 0, "unexplained_bytes": 0,
        "free_bytes": 14 * GiB, "load_pct": 50.0, "leases": list(leases),
    }  # fmt: skip
    return row | changes


def a_request(id: str = "aaaa0001", **changes: Any) -> dict[str, Any]:
    row = {
        "id": id, "type": "/x/train.py", "label": "train.py::fit", "user": OTHER, "pid": 77,
        "gpus_asked": 1, "mem_bytes": None, "exclusive": False, "priority": 0, "policy": "spread",
        "attempt": 0, "state": "waiting", "since_at": NOW - 50, "turn": [1, 0, 1],
        "tag": f"tag-{id}", "reason": "no-room", "why": "needs 9.0 GiB; GPU 0 has 1.0 GiB",
    }  # fmt: skip
    return row | changes


def a_lease(id: str = "aaaa0001", *gpus: int, **changes: Any) -> dict[str, Any]:
    row = a_request(id) | {
        "state": "running", "gpus": list(gpus or (0,)), "reserved_bytes": 8 * GiB,
        "used_bytes": 6 * GiB, "peak_bytes": 6 * GiB, "first_run": False, "why": "runs on GPU 0",
        "reason": None, "since_at": NOW - 100,
    }  # fmt: skip
    del row["turn"]
    return row | changes


def an_end(id: str = "bbbb0001", **changes: Any) -> dict[str, Any]:
    row = {
        "id": id, "type": "/x/train.py", "label": "train.py::fit", "user": OTHER, "pid": 7,
        "gpus": [0], "outcome": "ok", "reserved_bytes": GiB, "peak_bytes": GiB, "tag": "t",
        "first_run": False, "since_at": NOW - 60, "ended_at": NOW - 30,
    }  # fmt: skip
    return row | changes


def a_job(id: int = 1, **changes: Any) -> dict[str, Any]:
    row = {
        "id": id, "name": "", "argv": ["python", f"train{id}.py"], "cwd": "/", "label": "train.py",
        "job_type": "/x/train.py", "gpus_asked": 1, "mem_bytes": None, "is_exclusive": False,
        "after": [], "state": "queued", "is_held": False, "priority": 0, "place": id, "attempt": 0,
        "reason": None, "text": "", "status": None, "signal": None, "submitted_at": NOW - 200,
        "started_at": None, "ended_at": None, "lease": None, "gpus": [], "reserved_bytes": None,
        "peak_bytes": None, "ran_s": None, "why": "others are before it", "folder": None,
        "tag": None,
    }  # fmt: skip
    return row | changes


def an_ended_job(id: int = 1, **changes: Any) -> dict[str, Any]:
    ended = {"state": "ended", "reason": "ok", "status": 0, "ended_at": NOW - 20, "ran_s": 90.0}
    more = {"peak_bytes": 2 * GiB, "gpus": [0], "lease": f"dddd{id:04}", "why": ""}
    return a_job(id) | ended | more | changes


def a_node(name: str = "gpu2", gpus: int = 2, *leases: str, **changes: Any) -> dict[str, Any]:
    found = [a_gpu(index, *(leases if not index else ())) for index in range(gpus)]
    row = {
        "site": "lab", "node": name, "state": "up", "gpu_bytes": [24 * GiB] * gpus, "jobs": 1,
        "waiting": 0, "heard_at": NOW, "trouble": "", "gpus": found,
        "leases": [a_lease(one, used_bytes=3 * GiB) for one in leases],
    }  # fmt: skip
    return row | changes


def away(name: str = "gpu3", **changes: Any) -> dict[str, Any]:
    said = {"state": "cut", "heard_at": NOW - 200, "trouble": "No route to host"}
    return a_node(name, 0, **said | changes)


def a_picture(**parts: list[dict[str, Any]]) -> Snapshot:
    """Return a picture as a watch has it: gpus, leases, waiting, ends, jobs, ended, nodes."""
    picture = Snapshot()
    machine = {name: parts.get(name, []) for name in ("gpus", "leases", "waiting", "ends")}
    samples = [
        {"uuid": gpu["uuid"], "step_s": 1.0, "until_at": NOW, "used_bytes": [1] * 60,
         "load_pct": [float(load) for load in range(60)]}
        for gpu in machine["gpus"]
    ]  # fmt: skip
    facts = {"version": "1.2", "pid": 1, "uid": 0, "trouble": None}
    whole = {"ev": "snapshot", "at": NOW, "samples": samples, **facts, **machine}
    picture.take(NEGOTIATOR, whole)
    jobs, ended = parts.get("jobs", []), parts.get("ended", [])
    counts = {"running": 0, "queued": len(jobs), "ended": len(ended)}
    said = {"version": "1.2", "pid": 2, "uid": UID, "trouble": "", "drained": False}
    picture.take(QUEUE, {"ev": "snapshot", "at": NOW, "jobs": jobs, "ended": ended,
                         "counts": counts, "nodes": parts.get("nodes", []), **said})  # fmt: skip
    return picture
