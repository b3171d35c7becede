"""The numbers for Prometheus, read by its own parser and held against their document."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grn.cli.output import metrics
from grn.protocol.negotiator_rows import (
    BookingRow,
    GpuRow,
    HostRow,
    LeaseRow,
    NegotiatorFacts,
    WaitingRow,
)
from grn.protocol.queue_rows import NodeRow, QueueFacts
from grn.protocol.rows import read as read_row
from grn.protocol.snapshot import Snapshot
from tests.cli.live import Shell
from tests.conftest import Negotiators
from tests.harness import Story

parser = pytest.importorskip("prometheus_client.parser")
ROOT = Path(__file__).resolve().parents[2]
HOSTILE = 'evil" \\ \n{x="y"} 1'


def a_gpu(**changes: Any) -> GpuRow:
    names = ("total", "used", "reserved", "guard", "strangers", "unexplained", "idle")
    sizes = dict.fromkeys(names, 5)
    row: dict[str, Any] = {f"{name}_bytes": size for name, size in sizes.items()}
    row |= {"free_bytes": 5, "index": 0, "uuid": "GPU-0", "model": "M", "kind": "card"}
    row |= {"health": "ok", "load_pct": 50.0, "leases": ["a"]}
    row |= {"temperature_c": 61, "power_w": 248, "clock_mhz": 1980}
    return read_row(GpuRow, row | changes)


def a_picture() -> Snapshot:
    """Return one in which everything there can be is there."""
    picture = Snapshot()
    host = HostRow(cpus=16.0, ram_bytes=64, used_bytes=9, free_bytes=50, free_cpus=12.5)
    outcomes = {"ok": 2, "oom": 1}
    bookings = (BookingRow(1, 7, "ada", 2, (0, 1), 50.0, 500.0, "active"),
                BookingRow(2, 7, "ada", 1, (), 700.0, 900.0, "ahead"))  # fmt: skip
    picture.negotiator = NegotiatorFacts(
        "1", started_at=5.0, outcomes=outcomes, host=host, bookings=bookings
    )
    picture.gpus = {"GPU-0": a_gpu()}
    lease = LeaseRow("a", "running", "x", 7, (0, 1), reserved_bytes=4, why="", used_bytes=2,
                     reserved_ram_bytes=3)  # fmt: skip
    picture.leases = {"a": lease, "b": replace(lease, id="b", user=8, used_bytes=None)}
    picture.waiting = {"c": WaitingRow("c", "waiting", "x", 7, "", "no-room", since_at=90.0)}
    counts = {"running": 1, "queued": 1, "held": 1, "ended": 3}
    picture.queue = QueueFacts("1", counts=counts)
    node = NodeRow("lab", "gpu2", "up", jobs=3, heard_at=95.0, gpus=(a_gpu(index=1),))
    gone = NodeRow("lab", "gpu3", "cut", heard_at=10.0)
    picture.nodes = {one.key: one for one in (node, gone, NodeRow("uni", "-", "no pilot"))}
    return picture


def read(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Read the text as Prometheus would."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_prometheus_reads_the_numbers() -> None:
    found = read(metrics.text(a_picture(), now=100.0))

    assert found["grn_gpu_load_ratio"] == [({"gpu": "0", "uuid": "GPU-0"}, 0.5)]
    assert found["grn_gpu_clock_hertz"] == [({"gpu": "0", "uuid": "GPU-0"}, 1.98e9)]
    assert found["grn_bookings"] == [({"state": "ahead"}, 1), ({"state": "active"}, 1)]
    assert ({"uid": "7", "state": "active"}, 2) in found["grn_user_booked_gpus"]
    assert found["grn_booking_next_time_seconds"] == [({}, 700)]
    assert found["grn_waiting"] == [({"reason": "no-room"}, 1)]
    assert found["grn_waiting_oldest_seconds"] == [({}, 10)]
    assert ({"outcome": "oom"}, 1) in found["grn_leases_ended_total"]
    assert ({"uid": "7"}, 8) in found["grn_user_reserved_bytes"]
    assert found["grn_host_memory_free_bytes"] == [({}, 50)]
    assert found["grn_host_cpus_free"] == [({}, 12.5)]
    assert ({"uid": "7"}, 3) in found["grn_user_reserved_host_bytes"]
    assert found["grn_queue_held_jobs"] == [({}, 1)]
    places = [{"site": "lab", "node": "gpu2"}, {"site": "lab", "node": "gpu3"}]
    assert found["grn_node_up"] == list(zip(places, (1, 0), strict=True))
    assert found["grn_node_heard_time_seconds"] == list(zip(places, (95, 10), strict=True))
    where = {**places[0], "gpu": "1", "uuid": "GPU-0"}
    assert found["grn_node_gpu_memory_used_bytes"] == [(where, 5)]


def test_who_is_idle_is_counted_with_the_longest_time() -> None:
    picture = a_picture()
    assert read(metrics.text(picture, now=100.0))["grn_user_idle_leases"] == [({}, 0)]
    picture.leases["a"] = replace(picture.leases["a"], idle_since_at=90.0)
    stranger = {"pid": 9, "user": 7, "used_bytes": 5, "idle_since_at": 40.0}
    picture.gpus = {"GPU-0": a_gpu(idle_strangers=[stranger])}
    found = read(metrics.text(picture, now=100.0))

    assert found["grn_user_idle_leases"] == [({"uid": "7"}, 1)]
    assert found["grn_idle_strangers"] == [({}, 1)]
    assert found["grn_idle_longest_seconds"] == [({}, 60)]
    assert found["grn_gpu_memory_idle_bytes"] == [({"gpu": "0", "uuid": "GPU-0"}, 5)]


def test_what_is_not_known_is_left_out_and_never_zero() -> None:
    picture = a_picture()
    picture.gpus = {"GPU-0": a_gpu(used_bytes=None, load_pct=None, free_bytes=None, health="lost")}

    found = read(metrics.text(picture, now=100.0))

    missing = {"grn_gpu_memory_used_bytes", "grn_gpu_load_ratio", "grn_gpu_memory_free_bytes"}
    assert not missing & found.keys()
    assert found["grn_gpu_healthy"][0][1] == 0


def test_where_the_host_is_not_limited_nothing_is_told_of_it() -> None:
    picture = a_picture()
    picture.negotiator = replace(picture.negotiator, host=None)

    assert "grn_host" not in metrics.text(picture, now=100.0)


def test_a_hostile_name_stays_inside_its_label() -> None:
    picture = a_picture()
    picture.gpus = {"GPU-0": a_gpu(model=HOSTILE)}

    ((labels, value),) = read(metrics.text(picture, now=100.0))["grn_gpu_info"]

    assert (labels["model"], value) == (HOSTILE, 1)


def test_without_anybody_there_is_one_number_that_says_so() -> None:
    picture = Snapshot()
    picture.trouble = {"negotiator": "gone", "queue": "gone"}

    assert read(metrics.text(picture, now=0.0)) == {
        "grn_up": [({"source": "negotiator"}, 0), ({"source": "queue"}, 0)]
    }


def test_every_number_is_documented_and_no_other() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    listed = dict(re.findall(r"^\| `(grn_\w+)` \| (\w+) \|", page, re.MULTILINE))
    written = dict(
        re.findall(r"^# TYPE (\w+) (\w+)$", metrics.text(a_picture(), 100.0), re.MULTILINE)
    )

    assert listed == written


def test_the_dashboard_asks_only_for_numbers_there_are() -> None:
    dashboard = json.loads((ROOT / "examples" / "grafana" / "grn.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"grn_\w+", target["expr"])
    }

    assert len(asked) > 10
    assert asked <= read(metrics.text(a_picture(), 100.0)).keys()


def test_metrics_are_printed_of_a_live_machine(story: Story, negotiator: Negotiators) -> None:
    negotiator()
    ended = Shell(story)("metrics")

    found = read(ended.out)
    assert len(found["grn_gpu_info"]) == 2
    assert found["grn_up"] == [({"source": "negotiator"}, 1), ({"source": "queue"}, 0)]
