"""Sweeps on negotiated GPUs: a real negotiator, virtual GPUs, real runs."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from grn.client.negotiator import ask_once
from tests.conftest import Negotiators
from tests.harness import Story, stop_queue, wait_for

pytestmark = pytest.mark.submits
SWEEP = """
import json, sys
import grn

def main():
    options = json.loads(sys.argv[1])
    table = grn.Sweep(options.pop("what"), options.pop("parameters"), **options).run()
    print(table.to_json_lines(), end="")

if __name__ == "__main__":
    main()
"""
# Ends when its memory was measured; all but the first not before they run side by side.
SHARER = """
    import os, sys, time
    from pathlib import Path
    from act import take
    from grn.client.negotiator import ask_once

    def used_bytes():
        leases = ask_once({"op": "status"})["status"]["leases"]
        own = [one for one in leases if one["id"] == os.environ["GRN_LEASE"]]
        return own[0]["used_bytes"] or 0

    here, mib = Path(os.environ["STORY"]), int(sys.argv[1])
    held = take(mib)
    (here / f"{mib}.up").touch()
    while used_bytes() < mib << 20 or (mib > 60 and len(list(here.glob("*.up"))) < 4):
        time.sleep(0.01)
    print('{"ok": 1}')
"""


def rows_of(story: Story, **options: Any) -> list[dict[str, Any]]:
    ended = story.run_script(SWEEP, json.dumps({"out": str(story.folder / "out"), **options}))
    return [json.loads(line) for line in ended.out.splitlines()]


def test_runs_are_leased_measured_and_share_gpus_once_known(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator("virtual:1x1GiB", GRN_SAMPLE_S="0.05")
    script = str(story.write("sharer.py", SHARER))
    rows = rows_of(
        story, what=[sys.executable, script, "{mib}"], parameters={"mib": [60, 61, 62, 63]},
        type="small",
    )  # fmt: skip
    assert [row["ok"] for row in rows] == [1, 1, 1, 1]
    assert {row["gpu"] for row in rows} == {"0"}
    assert all(row["peak_bytes"] > 50 << 20 for row in rows)
    runs = [_manifest(story, row["run"]) for row in rows]
    spans = sorted((run["started_at"], run["ended_at"]) for run in runs)
    assert any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))


def _manifest(story: Story, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((story.folder / "out/runs" / run / "run.json").read_text())
    return found


def test_a_need_that_fits_nowhere_fails_the_run_with_the_reason(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator("virtual:1x512MiB")
    rows = rows_of(story, what="true {x}", parameters={"x": [1, 2]}, mem="50GiB")
    assert [row["state"] for row in rows] == ["failed", "failed"]
    assert all("50.0 GiB" in row["trouble"] for row in rows)


def test_a_run_that_ran_out_of_memory_beside_others_is_run_again_with_more_room(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator("virtual:1x1GiB", GRN_SAMPLE_S="0.05")
    # The first two tell each other that they share the GPU; then one "runs out of memory", once.
    script = story.write(
        "train.py",
        """
        import os, sys, time
        from pathlib import Path
        here = Path(os.environ["STORY"])
        which = sys.argv[1]
        (here / f"{which}.up").touch()
        is_again = (here / "told").exists()
        if which == "b" and not is_again:
            while not (here / "a.up").exists():
                time.sleep(0.01)
            (here / "told").touch()
            print("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB")
            sys.exit(1)
        if which == "a":
            while not (here / "again").exists():
                time.sleep(0.01)
        (here / "again").touch()
        print('{"fine": 1}')
        """,
    )
    rows = rows_of(
        story, what=[sys.executable, str(script), "{x}"], parameters={"x": ["a", "b"]},
        mem="100MiB",
    )  # fmt: skip
    assert [row["state"] for row in rows] == ["finished", "finished"]
    assert [row["attempt"] for row in rows] == [1, 2]


def test_no_more_than_so_many_run_at_once(story: Story, negotiator: Negotiators) -> None:
    negotiator("virtual:2x512MiB")
    rows = rows_of(
        story, what=["/bin/sleep", "0.0{x}"], parameters={"x": list(range(1, 7))}, mem="10MiB",
        parallel=1,
    )  # fmt: skip
    runs = [_manifest(story, row["run"]) for row in rows]
    spans = sorted((run["started_at"], run["ended_at"]) for run in runs)
    assert all(later[0] >= earlier[1] - 0.001 for earlier, later in itertools.pairwise(spans))


def test_a_function_runs_under_a_lease(story: Story, negotiator: Negotiators) -> None:
    negotiator("virtual:2x512MiB")
    ended = story.run_script(
        """
        import os, grn

        def train(lr, bs):
            return {"loss": lr * bs, "lease": os.environ["GRN_LEASE"]}

        if __name__ == "__main__":
            table = grn.Sweep(train, {"lr": [0.1, 0.2], "bs": [2]}, out="out", mem="50MiB").run()
            print(sorted(row["loss"] for row in table), len({row["lease"] for row in table}))
            frame = table.to_pandas()
            print(frame["loss"].mean().round(2))
        """,
        name="study.py",
    )
    assert ended.out.splitlines() == ["[0.2, 0.4] 2", "0.3"]


def test_python_hears_of_progress_and_of_failures(story: Story, negotiator: Negotiators) -> None:
    negotiator("virtual:1x512MiB")
    ended = story.run_script(
        """
        import grn

        def train(x):
            if x == 2:
                raise ValueError("two is bad")
            return x

        if __name__ == "__main__":
            sweep = grn.Sweep(train, {"x": [1, 2, 3]}, out="out", mem="50MiB")
            print(len(sweep.results()), [point["x"] for point in sweep.points()])
            heard = []
            try:
                sweep.run(check=True, on_change=lambda now, run: heard.append(run.state.value))
            except grn.JobFailed as error:
                print(error)
            print(*sorted(heard))
            print(len(sweep.results()), sweep.results().best("value")[0]["x"])
        """,
        name="study.py",
    )
    first, failed, heard, last = ended.out.splitlines()
    assert (first, last) == ("0 [1, 2, 3]", "3 1")
    assert failed.startswith("1 runs failed; see ")
    assert heard == "failed finished finished running running running"


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_optuna_searches_with_trials_on_leases(
    story: Story, negotiator: Negotiators, direction: str
) -> None:
    negotiator("virtual:2x512MiB")
    code = "import json,sys; x=float(sys.argv[1]); print(json.dumps(dict(y=(x-3)**2)))"
    rows = rows_of(
        story, what=[sys.executable, "-S", "-c", code, "{x}", "{o}"], mem="50MiB", trials=12,
        parameters={"x": "uniform:-10..10", "o": ["a", "b"]}, sampler="optuna", seed=1,
        **{direction: "y"},
    )  # fmt: skip
    assert len(rows) == 12
    assert {row["state"] for row in rows} == {"finished"}
    assert len({row["x"] for row in rows}) == 12


def test_a_sweep_starts_a_negotiator_if_there_is_none(story: Story) -> None:
    story.env["GRN_GPUS"] = "virtual:1x512MiB"
    rows = rows_of(story, what="true {x}", parameters={"x": [1]})
    assert [row["state"] for row in rows] == ["finished"]
    stop_queue()
    story.start(sys.executable, "-c", "from grn.cli.main import main; main()", "stop").wait()
    wait_for(lambda: not list(story.left_behind()), "the end of the negotiator")


def test_a_negotiator_that_was_started_for_a_sweep_outlives_its_interruption(story: Story) -> None:
    story.env["GRN_GPUS"] = "virtual:1x512MiB"
    what = ["/bin/sh", "-c", 'touch "$0/up"; exec sleep 1000', str(story.folder), "{x}"]
    options = {"what": what, "parameters": {"x": "int:1..9"}, "out": str(story.folder / "out")}
    search = {"sampler": "optuna", "maximize": "y", "trials": 2}
    job = story.start_script(SWEEP, json.dumps({**options, **search}))
    wait_for(lambda: (story.folder / "up").exists(), "the first trial")
    job.signal(signal.SIGINT)
    assert "KeyboardInterrupt" in job.wait().err
    assert ask_once({"op": "ping"})["pid"]
    stop_queue()
    grn = (sys.executable, "-c", "from grn.cli.main import main; main()")
    assert story.start(*grn, "stop").wait().code == 0
    wait_for(lambda: not list(story.left_behind()), "the end of the negotiator")


def test_files_of_a_sweep_are_where_the_user_is(story: Story, negotiator: Negotiators) -> None:
    negotiator("virtual:1x512MiB")
    rows_of(story, what="true {x}", parameters={"x": [1]}, out=None, name="first")
    assert (Path(story.folder) / "sweeps" / "first" / "sweep.json").exists()
