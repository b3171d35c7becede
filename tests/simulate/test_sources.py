"""Workloads as files: what is written can be read, and what is wrong is named."""

from __future__ import annotations

import pytest

from grn.errors import UsageError
from grn.model.units import GiB
from grn.simulate.sources import arriving, generate, read_arrivals, read_jobs, write_jobs


def test_what_is_written_can_be_read_again() -> None:
    jobs = generate(30, seed=4)

    again = read_jobs(write_jobs(jobs), "jobs.csv")

    assert [(job.name, job.peak_bytes, job.arguments, job.user) for job in again] == [
        (job.name, job.peak_bytes, job.arguments, job.user) for job in jobs
    ]
    assert all(abs(a.solo_s - b.solo_s) < 0.1 for a, b in zip(again, jobs, strict=True))


def test_three_columns_are_enough() -> None:
    (job,) = read_jobs("type,duration_s,memory\ntrain.py,60,6GiB\n", "jobs.csv")

    assert (job.job_type, job.solo_s, job.peak_bytes) == ("train.py", 60.0, 6 * GiB)
    assert (job.arrival_s, job.gpus, job.load) == (0.0, 1, 0.9)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "type"),
        ("type,duration_s\na,1\n", "memory"),
        ("type,duration_s,memory\n", "no job"),
        ("type,duration_s,memory,colour\na,1,1GiB,red\n", "colour"),
        ("type,duration_s,memory\na,soon,1GiB\n", "line 2"),
        ("type,duration_s,memory\na,1,much\n", "line 2"),
        ("type,duration_s,memory\na,-1,1GiB\n", "line 2"),
        ("type,duration_s,memory\n,1,1GiB\n", "line 2"),
        ("type,duration_s,memory\na,1,1GiB,9\n", "too many"),
        ("type,duration_s,memory,args\na,1,1GiB,fast\n", "fast"),
        ("type,duration_s,memory,load\na,1,1GiB,7\n", "line 2"),
    ],
)
def test_what_is_wrong_is_named(text: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_jobs(text, "jobs.csv")

    assert word in caught.value.message


def test_arrivals_name_jobs_of_the_list_as_often_as_they_come() -> None:
    jobs = read_jobs("job,type,duration_s,memory\na,x,1,1GiB\nb,y,1,1GiB\n", "jobs.csv")

    coming = read_arrivals("arrival_s,job\n0,b\n5,a\n9,b\n", "times.csv", jobs)

    assert [(job.name, job.arrival_s) for job in coming] == [("b", 0), ("a", 5), ("b", 9)]
    with pytest.raises(UsageError, match="called 'c'"):
        read_arrivals("arrival_s,job\n0,c\n", "times.csv", jobs)


def test_the_same_seed_makes_the_same_jobs() -> None:
    assert generate(50, seed=1) == generate(50, seed=1)
    assert generate(50, seed=1) != generate(50, seed=2)
    coming = arriving(generate(50), 2.0)
    assert coming == sorted(coming, key=lambda job: job.arrival_s)
