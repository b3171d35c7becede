"""Replays of small workloads, whose outcome can be worked out on paper."""

from __future__ import annotations

import pytest

from grn.errors import BadSetting, GrnError
from grn.model.units import GiB
from grn.negotiator.queries.forecast import inside
from grn.negotiator.schedule.room.ledger import Rules
from grn.simulate.policies import POLICIES, PolicyFigures, lower_bound_s, play
from grn.simulate.replay import World
from grn.simulate.schedulers import OfEngine
from grn.simulate.sources import generate
from grn.simulate.workload import LOADS_S, Assumptions, SimulatedJob, parse_gpus, parse_host

ASSUMED = Assumptions(beta=1.0, tick_s=5.0)


def a_job(name: str = "a", gib: float = 2, **changes: object) -> SimulatedJob:
    values: dict[str, object] = {"job_type": name, "arrival_s": 0.0, "solo_s": 1000.0}
    return SimulatedJob(name=name, peak_bytes=int(gib * GiB), **values | changes)  # type: ignore[arg-type]


def played(
    policy: str, jobs: list[SimulatedJob], gpus: str = "1x24GiB", beta: float = 1.0
) -> PolicyFigures:
    return play(policy, jobs, parse_gpus(gpus), Assumptions(beta=beta))


def test_one_job_per_gpu_takes_the_sum_of_their_times() -> None:
    figures = played("exclusive", [a_job("a"), a_job("b"), a_job("c")])

    assert figures.makespan_s == pytest.approx(3000)
    assert figures.mean_s == pytest.approx(2000)


def test_light_jobs_that_share_a_gpu_run_at_full_speed() -> None:
    jobs = [a_job(name, load=0.3) for name in "abc"]

    assert played("clairvoyant", jobs).makespan_s == pytest.approx(1000)


def test_two_heavy_jobs_slow_each_other_down() -> None:
    jobs = [a_job(name, load=0.8) for name in "ab"]

    assert ASSUMED.speed(1.6) == pytest.approx(1 / 1.6)
    assert played("clairvoyant", jobs, beta=0.0).makespan_s == pytest.approx(1000)


@pytest.mark.parametrize(("saves_work", "ends_at"), [(False, 2200), (True, 1200)])
def test_a_long_job_gives_way_to_an_urgent_one_and_runs_again(
    saves_work: bool, ends_at: float
) -> None:
    long = a_job("long", 20, yields=True, saves_work=saves_work)
    urgent = a_job("urgent", 20, arrival_s=1000.0 - 1e-3, solo_s=200.0, is_urgent=True)
    gpus = parse_gpus("1x24GiB")
    result = World([long, urgent], gpus, OfEngine(gpus, Rules()), ASSUMED).run()

    assert (result.yielded, result.deaths) == (1, 0)
    assert result.ends[1] == pytest.approx(1200, abs=1)
    assert result.ends[0] == pytest.approx(ends_at, abs=1)


def test_a_first_run_keeps_its_siblings_waiting_only_until_its_memory_is_flat() -> None:
    jobs = [a_job(f"a{n}", job_type="train", load=0.2, solo_s=36000) for n in range(3)]

    figures = played("grn", jobs)

    assert figures.probe_s is not None
    assert figures.probe_s <= 120
    assert figures.makespan_s < 36200
    assert played("first-run", jobs).makespan_s == pytest.approx(72000)


def test_a_job_that_takes_more_than_is_left_dies_and_is_tried_again() -> None:
    """Two that look small for long and then are not: only one of them finds room."""
    late = {"starts_with": 0.2, "grown_at": 0.8, "is_jump": True, "load": 0.3}
    jobs = [a_job(f"a{n}", 14, job_type="train", **late) for n in range(2)]

    figures = played("grn", jobs)

    assert figures.deaths == 1
    assert len(figures.replayed.ends) == 2
    assert sum(stay.died for stay in figures.replayed.stays) == 1


def test_who_knows_all_loses_nobody() -> None:
    late = {"starts_with": 0.2, "grown_at": 0.8, "is_jump": True, "load": 0.3}
    jobs = [a_job(f"a{n}", 14, job_type="train", **late) for n in range(2)]

    assert played("clairvoyant", jobs).deaths == 0


def test_memory_comes_in_steps_and_with_progress() -> None:
    job = a_job(gib=10, starts_with=0.5, grown_at=0.4)

    assert job.memory_bytes(0, 0) == int(1.5 * GiB)
    assert job.memory_bytes(LOADS_S, 0) == 5 * GiB
    assert job.memory_bytes(LOADS_S, 0.2) == pytest.approx(7.5 * GiB, rel=1e-6)
    assert job.memory_bytes(LOADS_S, 0.4) == 10 * GiB


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("beta", [1.0, 0.6])
def test_no_policy_beats_the_lower_bound(policy: str, beta: float) -> None:
    jobs = [a_job(f"{n}", 3 * (n % 5) + 1, load=0.2 + 0.1 * (n % 7), arrival_s=60.0 * n,
                  gpus=2 if n % 8 == 3 else 1) for n in range(16)]  # fmt: skip
    assumed, gpus = Assumptions(beta=beta), parse_gpus("2x24GiB")

    figures = play(policy, jobs, gpus, assumed)

    assert len(figures.replayed.ends) == len(jobs)
    assert figures.makespan_s >= lower_bound_s(jobs, gpus, assumed) * 0.999


def test_a_replay_gives_the_same_each_time() -> None:
    jobs = [a_job(f"{n}", 1 + n % 4, arrival_s=30.0 * n) for n in range(12)]

    first, second = (played("grn", jobs, "2x24GiB") for _ in range(2))

    assert first == second


@pytest.mark.parametrize("text", ["", "4", "x8GB", "0x8GB", "4x", "4xbig", "2x8GB+"])
def test_wrong_gpus_are_named(text: str) -> None:
    with pytest.raises(GrnError):
        parse_gpus(text)


def test_a_slow_gpu_takes_longer() -> None:
    job = SimulatedJob("a", "a", 0.0, 1000.0, 10**9)
    slow = play("exclusive", [job], parse_gpus("1x8GB@0.5"), Assumptions())

    assert slow.makespan_s == pytest.approx(2000, abs=10)
    assert lower_bound_s([job], parse_gpus("1x8GB@0.5"), Assumptions()) == pytest.approx(2000)


def test_one_who_knows_all_keeps_types_apart_that_clash() -> None:
    jobs = [SimulatedJob(f"{n}", "same", 0.0, 1000.0, 10**9, load=0.4) for n in range(2)]
    clashing = Assumptions(interfering=1.0, slowdown=2.5)
    found = play("all-knowing", jobs, parse_gpus("1x8GB"), clashing)

    assert found.makespan_s == pytest.approx(2000, abs=20)
    assert play("all-knowing", jobs, parse_gpus("1x8GB"), Assumptions()).makespan_s < 1100


def test_a_clairvoyant_knows_jobs_and_not_how_gpus_share() -> None:
    jobs = [SimulatedJob(f"{n}", f"{n}", 0.0, 1000.0, 10**9, load=0.7) for n in range(3)]
    spans = {
        policy: play(policy, jobs, parse_gpus("1x8GB"), Assumptions(beta=0.0)).makespan_s
        for policy in ("clairvoyant", "all-knowing")
    }

    assert spans["all-knowing"] == pytest.approx(1000, abs=20), "all three at once"
    assert spans["clairvoyant"] == pytest.approx(2000, abs=20), "two, up to a load of 1.8"


@pytest.mark.parametrize("text", ["2x8GB@fast", "2x8GB@0", "2x8GB@-1"])
def test_a_speed_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(BadSetting):
        parse_gpus(text)


# --- between users -------------------------------------------------------------------------


def mean_h(figures: PolicyFigures, jobs: list[SimulatedJob], user: int, arrival_s: float) -> float:
    """Return how long the jobs of a user that came then took to their ends, in hours."""
    ranked = sorted(jobs, key=lambda job: job.arrival_s)
    times = [
        end - arrival_s
        for place, end in figures.replayed.ends.items()
        if (ranked[place].user, ranked[place].arrival_s) == (user, arrival_s)
    ]
    return sum(times) / len(times) / 3600


def some_jobs(user: int, count: int, arrival_s: float) -> list[SimulatedJob]:
    facts = {"job_type": f"t{user}", "solo_s": 1800.0, "user": user, "arrival_s": arrival_s}
    return [a_job(f"{user}-{arrival_s}-{n}", 20, **facts) for n in range(count)]


def test_a_few_jobs_do_not_wait_for_the_many_that_another_submitted_before() -> None:
    jobs = some_jobs(1, 30, 0.0) + some_jobs(2, 5, 60.0)
    figures = play("grn-warm", jobs, parse_gpus("1x24GiB"), Assumptions(tick_s=60.0))

    assert figures.makespan_s == pytest.approx(35 * 1800, rel=0.02)
    assert mean_h(figures, jobs, 2, 60.0) < 4
    assert mean_h(figures, jobs, 1, 0.0) < 10.5


@pytest.mark.parametrize(("half_life_s", "most_h"), [(86400.0, 3.0), (60.0, 6.0)])
def test_who_had_all_gpus_yesterday_goes_after_who_comes_today(
    half_life_s: float, most_h: float
) -> None:
    today = 20 * 1800.0 - 60
    jobs = some_jobs(1, 20, 0.0) + some_jobs(1, 10, today) + some_jobs(2, 10, today)
    rules = Rules(share_half_life_s=half_life_s)
    figures = play("grn-warm", jobs, parse_gpus("1x24GiB"), Assumptions(tick_s=60.0), rules)

    assert figures.makespan_s == pytest.approx(40 * 1800, rel=0.02)
    taken_h = mean_h(figures, jobs, 2, today)
    assert most_h - 1.5 < taken_h < most_h


def test_most_starts_of_a_replay_fall_into_the_range_that_was_told() -> None:
    jobs = generate(120, seed=3, per_minute=0.2)

    found = play("grn-warm", jobs, parse_gpus("3x40GB"), Assumptions(), has_forecasts=True)

    assert len(found.starts) > 60
    assert inside(found.starts) >= 0.8 * len(found.starts)


# --- the host ------------------------------------------------------------------------------


def on_host(policy: str, jobs: list[SimulatedJob]) -> PolicyFigures:
    assumed = Assumptions(host=parse_host("16x64GB"))
    return play(policy, jobs, parse_gpus("4x40GB"), assumed)


def test_jobs_that_want_more_cores_than_there_are_are_all_slowed() -> None:
    jobs = [a_job(name, load=0.1, cpus=8.0) for name in "abc"]

    assert on_host("fifo-gate", jobs).makespan_s == pytest.approx(1500)


def test_when_the_host_is_full_the_job_with_the_most_is_killed_and_runs_again() -> None:
    jobs = [a_job("small", load=0.1, ram_bytes=20 * 10**9)]
    jobs += [a_job("large", load=0.1, ram_bytes=50 * 10**9)]
    figures = on_host("fifo-gate", jobs)

    assert figures.ram_deaths == figures.deaths > 0
    assert len(figures.replayed.ends) == 2
    assert {stay.job.name for stay in figures.replayed.stays if stay.died} == {"large"}


@pytest.mark.parametrize("types", [1, 8])
def test_eight_loaders_of_16_gb_and_6_cores_share_a_host_of_64_gb_and_16_cores(types: int) -> None:
    jobs = [
        a_job(f"j{n}", job_type=f"{n % types}.py", load=0.2, ram_bytes=16 * 10**9, cpus=6.0)
        for n in range(8)
    ]
    ours, best = on_host("grn", jobs), on_host("clairvoyant", jobs)

    assert (ours.ram_deaths, best.ram_deaths) == (0, 0)
    assert ours.makespan_s <= 1.1 * best.makespan_s


def test_a_host_that_cannot_be_read_is_named() -> None:
    with pytest.raises(BadSetting, match="16x64GB"):
        parse_host("64GB")
