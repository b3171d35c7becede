"""The joblib backend against joblib itself, with real processes on virtual GPUs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Negotiators
from tests.harness import Story, is_running, wait_for
from tests.integrations.pages import blocks

pytest.importorskip("joblib")
pytestmark = pytest.mark.submits
HEAD = """
    import os, sys, time
    import joblib
    from joblib import Parallel, delayed
    import grn, grn.integrations.joblib
    from act import gate, say, take

    def parallel(**options):
        joblib.parallel_config("grn", n_jobs=2, **options)
        return Parallel()
"""


@pytest.fixture
def story(story: Story, tmp_path: Path) -> Story:
    """Keep the files of calls where the test can see whether they are gone."""
    story.env["TMPDIR"] = str(tmp_path)
    return story


def test_the_example_of_the_page_runs_as_printed(story: Story, negotiator: Negotiators) -> None:
    negotiator()
    done = story.run_script(blocks("integrations/joblib.md", "python")[0], name="page.py")
    assert done.out == blocks("integrations/joblib.md", "text")[0]


def test_calls_run_at_once_in_processes_under_leases_of_their_own(
    story: Story, negotiator: Negotiators, tmp_path: Path
) -> None:
    here = negotiator("virtual:2x512MiB")
    story.gate("go")
    job = story.start_script(HEAD + """
    def train(seed, size):
        say(seed, os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"])
        gate("go")
        return seed * size

    with joblib.parallel_config("grn", n_jobs=4, mem="100MiB", reuse_workers=False):
        print(Parallel()(delayed(train)(seed, size=2) for seed in range(5)))
    """)  # fmt: skip
    wait_for(lambda: len(story.said()) == 4)
    leases = here.leases()
    said = [line.split() for line in story.said()]
    assert {int(pid) for _, pid, _ in said} == {lease["pid"] for lease in leases}
    assert {lease["label"] for lease in leases} == {"job.py::train"}
    assert {gpu for _, _, gpu in said} == {"0", "1"}
    story.gate("go").open()
    assert job.ended_well().out == "[0, 2, 4, 6, 8]\n"
    (profile,) = here.profiles()
    assert {run["outcome"] for run in profile["history"]} == {"ok"}
    assert profile["history"][0]["args"]["size"] == 2
    assert list(tmp_path.iterdir()) == []


def test_every_way_to_ask_for_the_backend_takes_leases(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    done = story.run_script(HEAD + """
    for pool in (Parallel(n_jobs=1, backend="grn"), Parallel(backend="grn")):
        print(set(pool(delayed(lambda: len(os.environ["GRN_LEASE"]))() for _ in range(3))))
    """)  # fmt: skip
    assert done.out == "{8}\n" * 2


def test_the_first_failure_comes_back_whole_and_ends_the_others(
    story: Story, negotiator: Negotiators, tmp_path: Path
) -> None:
    here = negotiator()
    story.gate("go"), story.gate("never")
    job = story.start_script(HEAD + """
    def train(seed):
        say(seed, os.getpid())
        gate("go" if seed else "never")
        raise ValueError("too large", seed)

    try:
        parallel(mem="64MiB")(delayed(train)(seed) for seed in (0, 1))
    except ValueError as error:
        print(error.args, "in train" in str(error.__cause__))
    """)  # fmt: skip
    wait_for(lambda: len(story.said()) == 2)
    story.gate("go").open()
    assert job.ended_well().out == "('too large', 1) True\n"
    pids = [int(line.split()[1]) for line in story.said()]
    assert not any(is_running(pid) for pid in pids)
    here.wait_for_leases(0)
    assert list(tmp_path.iterdir()) == []


def test_what_joblib_can_do_besides_works_too(story: Story, negotiator: Negotiators) -> None:
    """Generators, batches of several calls, a pool that is used twice, and calls within calls."""
    here = negotiator()
    done = story.run_script(HEAD + """
    def where(number):
        return os.getpid(), os.environ["GRN_LEASE"]

    def nested(number):
        inner = Parallel(n_jobs=2)(delayed(where)(n) for n in range(3))
        return set(inner) == {where(0)}

    joblib.parallel_config("grn", n_jobs=2, mem="64MiB")
    lazily = Parallel(return_as="generator")(delayed(pow)(n, 2) for n in range(4))
    print(next(lazily), list(lazily))
    print(len(set(Parallel(batch_size=3, pre_dispatch="all")(delayed(where)(n) for n in range(6)))))
    with Parallel() as pool:
        print(pool(delayed(pow)(n, 2) for n in range(2)), pool(delayed(nested)(n) for n in (1, 2)))
    """)  # fmt: skip
    assert done.out == "0 [1, 4, 9]\n2\n[0, 1] [True, True]\n"
    assert 4 <= sum(profile["runs"] for profile in here.profiles()) <= 4 + 2 + 2 + 2


def test_a_call_that_is_killed_is_a_job_that_failed(story: Story, negotiator: Negotiators) -> None:
    negotiator()
    done = story.run_script(HEAD + """
    try:
        Parallel(n_jobs=2, backend="grn")([delayed(os.kill)(0, 0), delayed(lambda: os._exit(7))()])
    except grn.JobFailed as error:
        print(error, error.exit_code)
    """)  # fmt: skip
    assert done.out.endswith("ended as failed: exit status 7. 7\n")


def test_what_ran_out_of_memory_is_made_again_if_asked_for(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    done = story.run_script(HEAD + """
    def train():
        say("try")
        if open(os.environ["STORY"] + "/said").read().count("try") < 3:
            raise RuntimeError("CUDA out of memory")
        return "trained"

    print(parallel(mem="64MiB", retry_oom=2)([delayed(train)()]))
    """)  # fmt: skip
    assert done.out == "['trained']\n"
    assert story.said() == ["try"] * 3


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_no_call_outlives_the_program(
    story: Story, negotiator: Negotiators, signum: int, tmp_path: Path
) -> None:
    here = negotiator()
    story.gate("never")
    job = story.start_script(HEAD + """
    import subprocess

    def train():
        child = subprocess.Popen(["sleep", "600"])
        say(os.getpid(), child.pid)
        gate("never")

    parallel(mem="64MiB")(delayed(train)() for _ in range(2))
    """)  # fmt: skip
    wait_for(lambda: len(story.said()) == 2)
    job.signal(signum)
    assert job.wait().code != 0
    pids = [int(pid) for line in story.said() for pid in line.split()]
    wait_for(lambda: not any(is_running(pid) for pid in pids), "all to end")
    here.wait_for_leases(0)
    wait_for(lambda: list(tmp_path.iterdir()) == [], "the files of the calls to go")


def test_a_kill_in_the_middle_leaves_a_cancelled_group(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    story.gate("never")
    job = story.start_script(HEAD + """
    def train(number):
        say(os.getpid())
        number and gate("never")

    parallel(mem="64MiB")(delayed(train)(number) for number in range(9))
    """)  # fmt: skip
    wait_for(lambda: len(story.said()) >= 3)
    job.signal(signal.SIGKILL)
    pids = {int(pid) for pid in story.said()}
    wait_for(lambda: not any(is_running(pid) for pid in pids), "all workers to end")
    script = "from grn.client import queue\nprint(queue.ask({'op': 'list', 'group': 'job.py'}))"

    def told() -> str:
        rows = story.run_script(script, name="look.py").out
        return "" if "'state': 'running'" in rows else rows

    rows = wait_for(told, "the end of what was running")
    assert "'group': 'job.py'" in rows
    assert "'cancelled'" in rows
    assert "'state': 'queued'" not in rows


def test_a_restart_of_the_queue_in_the_middle_loses_no_call(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    gate = story.gate("go")
    job = story.start_script(HEAD + """
    def train(number):
        say(number)
        number and gate("go")
        return number

    print(parallel(mem="64MiB")(delayed(train)(number) for number in range(6)))
    """)  # fmt: skip
    wait_for(lambda: len(story.said()) == 3)
    ping = "from grn.client import queue\nprint(queue.ask({'op': 'ping'})['pid'])"
    pid = int(story.run_script(ping, name="ping.py").out)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_running(pid), "the queue to be gone")
    gate.open()
    assert job.ended_well().out == "[0, 1, 2, 3, 4, 5]\n"
    assert sorted(story.said()) == list("012345")


def test_many_calls_share_few_interpreters(story: Story, negotiator: Negotiators) -> None:
    negotiator()
    done = story.run_script(HEAD + """
    pids = parallel(mem="64MiB")(delayed(lambda n: os.getpid())(n) for n in range(50))
    print(len(pids), len(set(pids)) < 25)
    fresh = parallel(mem="64MiB", reuse_workers=False)(delayed(os.getpid)() for n in range(3))
    print(len(set(fresh)))
    """)  # fmt: skip
    assert done.out == "50 True\n3\n"


def test_nonsense_is_refused_before_anything_runs(story: Story, negotiator: Negotiators) -> None:
    negotiator()
    job = story.start_script(HEAD + """
    parallel(mem="a lot")(delayed(os.getpid)() for _ in range(2))
    """)  # fmt: skip
    ended = job.wait()
    assert ended.code == 1
    assert "a lot" in ended.err
    job = story.start_script(HEAD + """
    if joblib.__version__ < "1.5":
        sys.exit("a lot: options for Parallel itself came later")
    Parallel(n_jobs=2, backend="grn", mem="a lot")(delayed(os.getpid)() for _ in range(2))
    """)  # fmt: skip
    assert "a lot" in job.wait().err
    job = story.start_script(HEAD + """
    with joblib.parallel_config("grn", n_jobs=2, memory="1GiB"):
        Parallel()(delayed(os.getpid)() for _ in range(2))
    """)  # fmt: skip
    assert "there is no option memory" in job.wait().err


def test_a_machine_without_gpus_says_so(story: Story) -> None:
    job = story.start_script(HEAD + """
    Parallel(n_jobs=2, backend="grn")(delayed(os.getpid)() for _ in range(2))
    """)  # fmt: skip
    ended = job.wait()
    assert ended.code == 1
    assert "the negotiator did not start" in ended.err


def test_nobody_pays_for_joblib_who_does_not_import_it(story: Story) -> None:
    done = story.run_script("import sys, grn\ngrn.lease\nprint('joblib' in sys.modules)")
    assert done.out == "False\n"
    assert os.environ.get("GRN_LEASE") is None
