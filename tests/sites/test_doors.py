"""Every way to submit takes the place that a job must run at."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from tests.harness import GRN
from tests.queue.daemon import SMALL, being_here
from tests.sites.nodes import Home, a_home

NEEDS = ("--mem", "16MiB", "--at", "gpu2")


@pytest.fixture(scope="module")
def shared() -> Iterator[Home]:
    with a_home("gpu2") as home:
        home.fine("queue", "start")
        home.node_is("gpu2", "up")
        yield home


@pytest.fixture
def home(shared: Home) -> Iterator[Home]:
    with being_here(shared):
        yield shared
        shared.cancel_all()


def where(home: Home, group: str) -> list[str]:
    """Return where the jobs of a group ran, oldest first."""
    rows = home.json("ls", "-a", "--group", group)["jobs"]
    return [row["where"] for row in sorted(rows, key=lambda row: row["id"])]


def test_lines_of_a_batch_run_where_they_should(home: Home) -> None:
    home.story.write("doors.txt", "true\n[at=local] true\n")
    home.fine("batch", "doors.txt", *NEEDS)

    assert where(home, "doors.txt") == ["gpu2", ""]
    report = json.loads((home.story.folder / "doors.txt.grn" / "report.json").read_text())
    assert [job["gpu"].rpartition(":")[0] for job in report["jobs"]] == ["gpu2", ""]


def test_a_job_may_name_a_folder_that_only_its_machine_has(home: Home) -> None:
    away = home.submit("--at", "gpu2", "--cwd", "/only/there", "--mem", "16MiB", "--", "pwd")
    here = home("submit", "--cwd", "/only/there", "--", "true")

    assert "/only/there cannot be used on gpu2" in home.ended(away)["text"]  # nor is it there
    assert here.code == 2
    assert here.err.startswith("error: the folder /only/there does not exist.")


def test_runs_of_a_sweep_run_where_they_should(home: Home) -> None:
    home.story.write("sweep.json", json.dumps({
        "command": "echo '{{\"x\": {x}}}'", "shell": True, "at": "gpu2", "mem": "16MiB",
        "name": "filed", "parameters": {"x": [1, 2]},
    }))  # fmt: skip
    home.fine("sweep", "--file", "sweep.json")
    home.fine("sweep", "--file", "sweep.json", "--at", "local", "--name", "typed")

    assert where(home, "filed") == ["gpu2", "gpu2"]
    assert where(home, "typed") == ["", ""]


def test_a_search_uses_all_gpus_of_the_place_that_its_trials_run_at(home: Home) -> None:
    """Home has one GPU and the node two: each of two trials waits until the other has begun."""
    pytest.importorskip("optuna")
    meet = home.story.write(
        "meet.py",
        """
        import json, pathlib, sys, time
        x, folder = float(sys.argv[1]), pathlib.Path(__file__).with_name("met")
        folder.mkdir(exist_ok=True)
        (folder / sys.argv[1]).touch()
        until = time.monotonic() + 20
        while len(list(folder.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        print(json.dumps({"loss": abs(x - 3), "met": len(list(folder.iterdir()))}))
    """,
    )
    options = ["-p", "x", "uniform:0..9", "--sampler", "optuna", "--minimize", "loss", "--trials",
               "2", "--at", "gpu2", "--mem", "32MiB", "--name", "searched"]  # fmt: skip
    command = ("sweep", f"{sys.executable} {meet} {{x}}", *options, "--json")
    report = json.loads(home.fine(*command))

    assert [run["met"] for run in report["runs"]] == [2, 2]
    assert {run["gpu"].partition(":")[0] for run in report["runs"]} == {"gpu2"}
    best = min(report["runs"], key=lambda run: run["loss"])
    assert report["best"] == best["run"]
    again = json.loads(home.fine(*command))
    assert [run["attempt"] for run in again["runs"]] == [1, 1]


def test_a_sweep_of_a_function_runs_where_it_should(home: Home) -> None:
    home.story.run_script("""
        import grn
        def square(x):
            return {"y": x * x}
        table = grn.Sweep(square, {"x": [2, 3]}, at="gpu2", mem="64MiB", name="called").run()
        print(sorted(row["y"] for row in table))
    """, env=home.story.env)  # fmt: skip

    assert where(home, "called") == ["gpu2", "gpu2"]


def test_a_submitted_call_runs_where_it_should_and_its_answer_comes_home(home: Home) -> None:
    ended = home.story.run_script("""
        import os
        import grn
        @grn.job(mem="16MiB")
        def measured(size):
            return os.environ["SSH_NODE"], "y" * size
        handle = measured.options(at="gpu2").submit(1 << 20)
        node, text = handle.result()
        print(node, len(text), handle.status()["where"])
    """, env=home.story.env)  # fmt: skip

    assert ended.out.split() == ["gpu2", str(1 << 20), "gpu2"]


def test_calls_of_an_executor_run_where_they_should(home: Home) -> None:
    ended = home.story.run_script("""
        import os
        import grn
        def work(x):
            if x < 0:
                raise ValueError(f"{x} is too small")
            return os.environ["SSH_NODE"], x * x
        with grn.Executor(mem="16MiB", at="gpu2", reuse_workers=True, name="pool") as pool:
            good, bad = pool.submit(work, 3), pool.submit(work, -1)
            print(*good.result(), good.job.status()["where"])
            print(repr(bad.exception()), "work" in str(bad.exception().__cause__))
            try:
                pool.submit(len, bytes(1 << 20))
            except grn.GrnError as error:
                print(error.message)
            waits = pool.submit(print)
            print(waits.result())
    """, env=home.story.env)  # fmt: skip

    assert ended.out.splitlines() == [
        "gpu2 9 gpu2", "ValueError('-1 is too small') True",
        "this call has 1024 KiB of arguments, and at most 512 KiB can be submitted.", "None",
    ], ended.err  # fmt: skip


def test_a_call_that_fails_elsewhere_is_tried_again_or_cancelled(home: Home) -> None:
    ended = home.story.run_script("""
        import concurrent.futures, os
        import grn
        def second(path):
            with open(path, "a") as file:
                file.write("x")
            if os.path.getsize(path) < 2:
                raise RuntimeError("too soon")
            return os.path.getsize(path)
        def last():
            os.kill(os.getpid(), 9)
        with grn.Executor(mem="16MiB", at="gpu2", retry=1) as pool:
            print(pool.submit(second, os.path.abspath("tries")).result())
            print(type(pool.submit(last).exception()).__name__)
        with grn.Executor(mem="16MiB", at="gpu2") as pool:
            slow = pool.submit(__import__("time").sleep, 600)
            slow.cancel()
        print(slow.job.wait()["reason"])
    """, env=home.story.env)  # fmt: skip

    assert ended.out.splitlines() == ["2", "JobFailed", "cancelled"], ended.err


def test_calls_of_joblib_run_where_they_should(home: Home) -> None:
    pytest.importorskip("joblib")
    ended = home.story.run_script("""
        import os
        import joblib, grn.integrations.joblib
        def work(x):
            return os.environ["SSH_NODE"], x * x
        with joblib.parallel_config("grn", n_jobs=2, mem="16MiB", at="gpu2"):
            print(joblib.Parallel()(joblib.delayed(work)(x) for x in range(3)))
    """, env=home.story.env)  # fmt: skip

    assert ended.out.strip() == "[('gpu2', 0), ('gpu2', 1), ('gpu2', 4)]", ended.err


def test_jobs_of_hydra_run_where_they_should(home: Home) -> None:
    pytest.importorskip("hydra")
    app = home.story.write("app.py", """
        import os
        import hydra
        @hydra.main(version_base=None)
        def train(config):
            print("ran on", os.environ["SSH_NODE"], "with", config.x)
        train()
    """)  # fmt: skip
    words = ("--multirun", "+x=1,2", "hydra/launcher=grn", "hydra.launcher.at=gpu2",
             "hydra.launcher.mem=16MiB")  # fmt: skip
    home.story.start(sys.executable, str(app), *words, env=home.story.env).ended_well()

    assert where(home, "app") == ["gpu2", "gpu2"]


def test_calls_of_an_executor_stay_on_its_machine_unless_told_otherwise(home: Home) -> None:
    ended = home.story.run_script("""
        import os
        import grn
        with grn.Executor(mem="200MiB") as pool:  # one at a time at home, where there is one GPU
            print(set(pool.map(lambda _: os.environ.get("SSH_NODE", "home"), range(4))))
    """, env=home.story.env)  # fmt: skip

    assert ended.out.strip() == "{'home'}", ended.err


def test_several_machines_for_one_job_are_refused_in_words(home: Home) -> None:
    for words in (
        ("submit", "--", "true"),
        ("batch", "doors.txt"),
        ("sweep", "c {x}", "-p", "x", "1"),
    ):
        ended = home(words[0], "--nodes", "2", *words[1:])
        assert ended.code == 2
        assert "a job cannot have 2 nodes: not yet" in ended.err


def test_a_batch_at_a_node_can_run_inside_a_job(home: Home) -> None:
    home.story.write("inner.txt", "true\n")
    words = ("batch", "inner.txt", "--mem", "16MiB", "--at", "gpu2")
    job = home.submit(*SMALL, "--at", "local", "--", *GRN, *words)
    ended = home.ended(job)

    assert ended["reason"] == "ok", home.log(job)
    assert where(home, "inner.txt") == ["gpu2"]
