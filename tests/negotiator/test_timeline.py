"""The play of the schedule on plain values."""

from __future__ import annotations

from dataclasses import replace

from grn.negotiator.schedule.timeline import (
    GpuNeed,
    GpuState,
    PlannedRequest,
    PlannedRun,
    Timeline,
)

GPU = GpuState(free_bytes=0, empty_bytes=10, load_cap=2.0, power=1.0)


def a_run(name: str, gpu: int, left_s: float, size: int = 10) -> PlannedRun:
    return PlannedRun(name, (gpu,), (size,), 0.1, left_s)


def a_request(name: str, group: int, need: int = 10, gpus: int = 2) -> PlannedRequest:
    demands = {gpu: GpuNeed(need, 0.1, 100.0) for gpu in range(gpus)}
    return PlannedRequest(name, group, name, 1, demands, 1e9, 1e9)


def starts(
    gpus: list[GpuState], runs: list[PlannedRun], *waiting: PlannedRequest
) -> dict[str, float]:
    play = Timeline(gpus, 10_000)
    for _ in play.play(runs, waiting):
        pass
    return play.starts


def test_a_request_that_was_refused_just_now_starts_when_something_has_changed() -> None:
    free = replace(GPU, free_bytes=10)

    found = starts([GPU, free], [a_run("a", 0, 50.0)], a_request("b", 1), a_request("c", 0))

    assert found == {"c": 0.0, "b": 50.0}


def test_gpus_stay_reserved_for_the_same_request() -> None:
    gpus = [GPU, replace(GPU, free_bytes=1)]
    runs = [a_run("a", 0, 50.0, 4), a_run("b", 0, 900.0, 6), a_run("c", 1, 60.0, 9)]
    starving = replace(a_request("large", 1), starves_in_s=-1e6, patience_s=1.0)

    found = starts(gpus, runs, starving, replace(a_request("small", 2, 2), starves_in_s=1e9))

    assert found["large"] == 60.0
    assert found["small"] == 50.0


def test_a_reservation_that_is_taken_leaves_other_gpus_free_at_once() -> None:
    starving = replace(a_request("large", 1), starves_in_s=-1e6, patience_s=1.0)
    small = a_request("small", 2, 2)

    found = starts([GPU], [a_run("a", 0, 50.0)], replace(starving, demands={0: small.demands[0]}),
                   replace(small, demands={0: small.demands[0]}))  # fmt: skip

    assert found == {"large": 50.0, "small": 50.0}
