"""The state that both change feeds tell of: rows, events, and what is kept of the past."""

from __future__ import annotations

from typing import Any

from grn.protocol.negotiator_rows import SamplesRow
from grn.protocol.snapshot import (
    MAX_ENDS,
    NEGOTIATOR,
    QUEUE,
    SAMPLES_KEPT,
    Samples,
    Snapshot,
)
from tests.cli.pictures import a_gpu, a_job, a_lease, a_node, a_request, an_end, an_ended_job


def test_a_lease_too_short_to_be_seen_is_told_as_granted_and_ended() -> None:
    picture = Snapshot()
    picture.take(NEGOTIATOR, _whole())
    row = an_end("ab", peak_bytes=None)

    events = picture.take(NEGOTIATOR, {"ev": "changes", "at": 2.0, "ended": [row]})

    assert [(event.name, event.data["id"]) for event in events] == [
        ("granted", "ab"),
        ("ended", "ab"),
    ]
    assert "outcome" not in events[0].data


def test_a_request_that_is_taken_back_and_memory_that_is_gone_at_last_are_told() -> None:
    picture = Snapshot()
    whole = _whole() | {"leases": [a_lease("a")], "waiting": [a_request("b")]}
    picture.take(NEGOTIATOR, whole)

    events = picture.take(NEGOTIATOR, {"ev": "changes", "at": 2.0, "gone": ["a", "b"]})

    assert [(event.name, event.data) for event in events] == [
        ("freed", {"id": "a"}),
        ("withdrawn", {"id": "b"}),
    ]


def test_the_host_is_kept_and_is_no_event_since_it_moves_with_every_sample() -> None:
    picture = Snapshot()
    picture.take(NEGOTIATOR, _whole() | {"host": {"cpus": 16.0, "ram_bytes": 64}})
    changes = {
        "ev": "changes",
        "at": 2.0,
        "host": {"cpus": 16.0, "ram_bytes": 64, "free_cpus": 2.0},
    }

    assert picture.take(NEGOTIATOR, changes) == []
    assert picture.negotiator.host is not None
    assert (picture.negotiator.host.cpus, picture.negotiator.host.free_cpus) == (16.0, 2.0)


def test_a_large_snapshot_that_comes_in_parts_is_told_once_it_is_whole() -> None:
    picture = Snapshot()
    first = {**_whole(), "waiting": [a_request("a")], "more": True}
    part = {"ev": "changes", "at": 1.1, "waiting": [a_request("b")]}

    assert picture.take(NEGOTIATOR, first) == []
    assert picture.take(NEGOTIATOR, {**part, "more": True}) == []
    (event,) = picture.take(NEGOTIATOR, {**part, "waiting": [a_request("c")]})
    assert event.name == "snapshot"
    assert event.data["waiting"] == [a_request("a"), a_request("b"), a_request("c")]
    assert [event.name for event in picture.take(NEGOTIATOR, part)] == ["waiting"]


def test_a_change_has_only_the_fields_that_changed_and_the_rest_of_the_row_stays() -> None:
    picture = Snapshot()
    whole = _whole() | {"gpus": [a_gpu(0, "a")], "leases": [a_lease("a")]}
    picture.take(NEGOTIATOR, whole)
    changes: dict[str, Any] = {"gpus": [{"uuid": "GPU-0", "load_pct": 99.0, "leases": []}]}
    changes["leases"] = [{"id": "a", "used_bytes": 5}]

    events = picture.take(NEGOTIATOR, {"ev": "changes", "at": 2.0, **changes, "trouble": "x"})

    gpu, lease = picture.gpus["GPU-0"], picture.leases["a"]
    assert (gpu.load_pct, gpu.leases, gpu.model) == (99.0, (), a_gpu()["model"])
    assert (lease.used_bytes, lease.label) == (5, a_lease()["label"])
    assert picture.negotiator.trouble == "x"
    assert [event.name for event in events] == ["lease", "gpu", "negotiator"]
    assert events[0].data == {"id": "a", "used_bytes": 5}


def test_a_job_that_ended_while_nobody_listened_is_told() -> None:
    picture = Snapshot()
    picture.take(QUEUE, {"ev": "snapshot", "at": 1.0, "jobs": [a_job(1)], "ended": []})

    whole = {"ev": "snapshot", "at": 2.0, "jobs": [], "ended": [an_ended_job(1)]}
    events = picture.take(QUEUE, whole)

    assert [(event.name, event.data.get("id")) for event in events] == [
        ("job-ended", 1),
        ("snapshot", None),
    ]
    assert (list(picture.jobs), list(picture.ended)) == ([], [1])


def test_samples_go_on_at_their_pace_and_gaps_are_unknown() -> None:
    samples = Samples(SamplesRow("GPU-0", 1.0, 100.0, (1,), (9.0,)))
    for at in (100.5, 101.0, 101.5, 102.0, 105.0):
        samples.add(at, 2, 50.0)

    assert list(samples.used_bytes) == [1, 2, 2, None, None, 2]
    assert len(samples.load_pct) == 6


def test_a_sample_that_is_late_by_one_step_leaves_no_gap() -> None:
    samples = Samples(SamplesRow("GPU-0", 1.0, 100.0, (1,), (9.0,)))
    samples.add(102.0, 2, 50.0)

    assert list(samples.used_bytes) == [1, 2, 2]
    assert list(samples.load_pct) == [9.0, 50.0, 50.0]


def test_the_past_is_bounded() -> None:
    samples = Samples(SamplesRow("GPU-0", 1.0, 0.0))
    for at in range(1, 1000):
        samples.add(float(at), 1, 1.0)
    picture = Snapshot()
    picture.take(QUEUE, {"ev": "snapshot", "at": 1.0, "jobs": [], "ended": []})
    for number in range(1000):
        changes = {"ev": "changes", "at": 1.0, "ended": [an_ended_job(number)]}
        picture.take(QUEUE, changes)

    assert len(samples.used_bytes) == SAMPLES_KEPT
    assert list(picture.ended)[-1] == 999
    assert len(picture.ended) == MAX_ENDS


def _whole() -> dict[str, Any]:
    empty: dict[str, Any] = {"gpus": [], "leases": [], "waiting": [], "ends": [], "samples": []}
    return {"ev": "snapshot", "at": 1.0, **empty}


def test_nodes_come_with_the_first_picture_and_then_when_they_change() -> None:
    picture = Snapshot()
    facts = {"jobs": [], "ended": []}
    picture.take(QUEUE, {"ev": "snapshot", "at": 1.0, "nodes": [a_node("gpu2")], **facts})
    changes = {"nodes": [a_node("gpu2", 0, state="cut"), a_node("gpu3")]}
    events = picture.take(QUEUE, {"ev": "changes", "at": 2.0, **changes})

    assert [event.name for event in events] == ["node", "node"]
    assert {key: node.state for key, node in picture.nodes.items()} == {
        "lab/gpu2": "cut",
        "lab/gpu3": "up",
    }
    (gone,) = picture.take(QUEUE, {"ev": "changes", "at": 3.0, "nodes_gone": ["lab/gpu2"]})
    assert (gone.name, gone.data) == ("node-gone", {"name": "lab/gpu2"})
    assert list(picture.nodes) == ["lab/gpu3"]
    picture.take(QUEUE, {"ev": "snapshot", "at": 4.0, **facts})
    assert picture.nodes == {}, "a queue of an older version tells of none"
