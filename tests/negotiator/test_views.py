"""What the engine's state looks like from outside: complete, in turn, and harmless."""

from __future__ import annotations

import json

import msgspec
import pytest

from grn.model.gpu import GpuHealth, Reading
from grn.model.host import HostSize
from grn.model.job import Outcome
from grn.model.text import harmless
from grn.model.units import GiB
from grn.negotiator.engine_view import EngineView
from grn.negotiator.events import LeaseState
from grn.negotiator.queries import views
from grn.negotiator.queries.pages import Pages
from tests.builders import (
    Story,
    a_gpu,
    a_profile,
    a_run,
    a_use,
    an_engine,
    result_of,
    some_gpus,
)


def test_status_is_json_and_names_what_is_free_and_who_has_the_rest() -> None:
    story = Story([a_gpu(total_bytes=24 * GiB)])
    story.asks("a", pid=100, mem_bytes=6 * GiB)
    story.memory["a"] = 2 * GiB
    story.strangers[0] = [a_use(999, 3 * GiB)]
    story.unexplained[0] = 1 * GiB
    story.looks()

    status = views.status(story.engine.view, story.at)

    msgspec.json.encode(status)
    (gpu,), (lease,) = status["gpus"], status["leases"]
    assert gpu["used_bytes"] == 6 * GiB
    assert gpu["reserved_bytes"] == 6 * GiB
    assert gpu["strangers_bytes"] == 3 * GiB
    assert gpu["unexplained_bytes"] == 1 * GiB
    assert gpu["free_bytes"] == (24 - 6 - 3 - 1) * GiB
    assert gpu["leases"] == [lease["id"]]
    assert (lease["used_bytes"], lease["peak_bytes"]) == (2 * GiB, 2 * GiB)
    assert (lease["pid"], lease["gpus"], lease["state"]) == (100, [0], "running")


def test_no_more_cores_are_free_than_there_are() -> None:
    story = Story(host=HostSize(16, 64 * GiB))

    host = views.host(story.engine.view)
    assert host is not None
    assert host["free_cpus"] == 16.0


def test_what_the_driver_does_not_say_is_null_and_never_zero() -> None:
    engine = an_engine(readings=(Reading("GPU-0", GpuHealth.UNKNOWN),))

    (gpu,) = views.status(engine.view, 0.0)["gpus"]

    assert gpu["health"] == "unknown"
    assert gpu["used_bytes"] is gpu["free_bytes"] is gpu["load_pct"] is None


def test_a_lease_nobody_has_measured_yet_shows_null() -> None:
    story = Story()
    story.asks("a")

    (lease,) = views.status(story.engine.view, story.at)["leases"]

    assert lease["used_bytes"] is lease["peak_bytes"] is lease["pid"] is None
    assert lease["first_run"]
    assert "first run" in lease["why"]


def test_a_lease_whose_process_is_gone_says_so() -> None:
    story = Story()
    story.asks("a", mem_bytes=GiB)
    story.memory["a"] = GiB
    story.dies("a")

    (lease,) = views.status(story.engine.view, story.at)["leases"]

    assert story.engine.view.leases[lease["id"]].state is LeaseState.DRAINING
    assert (lease["state"], lease["reason"]) == ("draining", "memory-not-gone")
    assert "its process is gone" in lease["why"]


def test_those_who_wait_are_listed_in_turn_with_place_and_reason() -> None:
    story = Story()
    story.asks("first", is_exclusive=True)
    story.asks("late", priority=0)
    story.asks("urgent", priority=5)

    waiting = views.status(story.engine.view, story.at + 3)["waiting"]

    assert [(row["id"], row["place"]) for row in waiting] == [
        ("lease-urgent", 1),
        ("lease-late", 2),
    ]
    assert all(row["reason"] and row["why"] and row["for_s"] == 3 for row in waiting)


def explain(view: EngineView, name: str, at: float) -> list[views.Row]:
    """Return the rows of the jobs that a name matches."""
    rows, _ = result_of(Pages(view).why(name, at, None))
    return rows


def test_the_place_in_an_explanation_is_the_place_among_all() -> None:
    story = Story()
    story.asks("first", is_exclusive=True)
    for key in ("b", "c", "d"):
        story.asks(key)

    (row,) = explain(story.engine.view, "lease-d", story.at)

    assert row["place"] == 3


def test_reasons_of_ones_own_requests_are_those_of_this_moment() -> None:
    story = Story(some_gpus(2, 24 * GiB))
    story.asks("a", mem_bytes=20 * GiB)
    story.asks("b", mem_bytes=20 * GiB)
    for key in ("both", "both-too"):
        story.asks(key, gpus=2, mem_bytes=10 * GiB, job_type="two.py")
    story.asks("other", user=7, mem_bytes=10 * GiB)

    def reasons() -> dict[str, dict[str, str]]:
        keys = ["both", "both-too", "other", "a", "nobody"]
        return views.reasons(story.engine.view, 1000, keys, story.at)

    before = reasons()
    assert before.keys() == {"both", "both-too"}, "not those of others, nor what runs"
    assert before["both"]["reason"] == "no-room"
    story.ends("a")
    after = reasons()
    assert (after["both"]["reason"], after["both"]) == ("not-enough-gpus", after["both-too"])
    rows = views.status(story.engine.view, story.at)["waiting"]
    assert {row["why"] for row in rows if row["type"] == "two.py"} == {after["both"]["why"]}


@pytest.mark.parametrize("name", ["lease-a", "lease-", "77", "short", "/full/path.py::f"])
def test_a_job_is_found_by_id_pid_label_and_type(name: str) -> None:
    story = Story()
    story.asks("a", pid=77, label="short", job_type="/full/path.py::f")

    (row,) = explain(story.engine.view, name, story.at)

    assert row["id"] == "lease-a"


@pytest.mark.parametrize("name", ["ease-a", "7", "777", "shor", "path.py", ""])
def test_a_job_is_not_found_by_parts_of_names(name: str) -> None:
    story = Story()
    story.asks("a", pid=77, label="short", job_type="/full/path.py::f")

    assert explain(story.engine.view, name or "x", story.at) == []


def test_a_profile_shows_what_is_believed_and_its_last_runs() -> None:
    runs = [a_run(n * GiB, arguments=(("bs", 8.0), ("net", "res"))) for n in range(1, 31)]
    failed = a_run(40 * GiB, Outcome.OUT_OF_MEMORY)
    engine = an_engine(profiles=(a_profile(*runs, failed),))

    (row,) = views.profiles(engine.view, None)

    json.dumps(row)
    assert (row["runs"], row["known"], row["largest_bytes"]) == (31, True, 30 * GiB)
    assert row["estimate_bytes"]
    assert row["because"]
    assert len(row["history"]) == 20
    assert row["history"][0]["args"] == {"bs": 8.0, "net": "res"}
    assert [run["counts"] for run in row["history"]] == [True] * 19 + [False]


def test_a_profile_of_a_gpu_that_is_not_here_has_no_estimate() -> None:
    engine = an_engine(profiles=(a_profile(GiB, model="Card 80"),))

    (row,) = views.profiles(engine.view, None)

    assert row["estimate_bytes"] is None
    assert row["largest_bytes"] == GiB


def test_profiles_are_found_by_type_or_label() -> None:
    engine = an_engine(profiles=(a_profile(GiB, job_type="a"), a_profile(GiB, job_type="b")))

    assert [row["type"] for row in views.profiles(engine.view, "b")] == ["b"]
    assert views.profiles(engine.view, "c") == []
    assert len(views.profiles(engine.view, None)) == 2


def test_scripts_of_one_name_are_found_by_their_folders() -> None:
    types = ("/w/one/train.py", "/w/two/train.py")
    engine = an_engine(profiles=tuple(a_profile(GiB, job_type=name) for name in types))

    assert [row["type"] for row in views.profiles(engine.view, "two/train.py")] == [types[1]]
    assert views.profiles(engine.view, "wo/train.py") == []
    assert views.profiles(engine.view, "train.py") == []  # it is not the label of one


def test_hostile_texts_of_a_profile_are_harmless() -> None:
    text = "\x1b]0;owned\x07\u202e"
    run = a_run(GiB, arguments=((text, text), ("n", 1.0)))
    engine = an_engine(some_gpus(1), profiles=(a_profile(run, job_type=text),))

    (row,) = views.profiles(engine.view, None)

    shown = [row["type"], row["label"], row["because"], *row["history"][0]["args"]]
    assert all(value.isprintable() for value in shown)
    assert row["history"][0]["args"] == {harmless(text): harmless(text), "n": 1.0}
