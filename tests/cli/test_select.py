"""`grn select` in scripts of real shells: who holds what is selected, and until when."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import Negotiators, Scripts
from tests.harness import Job, Negotiator, Story, wait_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "select.md"
SAY = 'echo "$*" >> $STORY/said'


@pytest.fixture(params=["bash", "dash"])
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def here(story: Story, negotiator: Negotiators, script: Scripts) -> Negotiator:
    story.env["PATH"] = f"{script('grn').parent}:/usr/bin:/bin"
    story.write("say", f"#!/bin/sh\n{SAY}\n").chmod(0o755)
    # Waits until the test opens the gate of its name.
    story.write("pause", '#!/bin/sh\nexec flock -s "$STORY/gates/$1" true\n').chmod(0o755)
    return negotiator("virtual:2x512MiB")


def start(story: Story, text: str, shell: str = "bash") -> Job:
    path = story.write("run.sh", f'PATH="$STORY:$PATH"\n{text}\n')
    return story.start(shell, path)


def done(story: Story, text: str, shell: str = "bash") -> str:
    return start(story, text, shell).ended_well().out


def test_the_caller_holds_it_until_it_ends(story: Story, here: Negotiator, shell: str) -> None:
    story.gate("go")
    job = start(story, "gpu=$(grn select --mem 64MiB) || exit\nsay $gpu\npause go", shell)
    wait_for(story.said)
    (lease,) = here.leases()
    assert lease["pid"] == job.pid
    assert story.said() == [str(lease["gpus"][0])]
    assert lease["label"] == str(story.folder / "run.sh")
    job.signal(signal.SIGKILL)
    story.gate("go").open()  # what the shell has left behind still counts
    here.wait_for_leases(0)


def test_what_the_caller_runs_is_measured_as_its_own(
    story: Story, here: Negotiator, shell: str
) -> None:
    story.gate("go")
    story.write("train.py", "from act import *\nx = take(120)\nsay('taken')\ngate('go')")
    train = f"{sys.executable} $STORY/train.py"
    text = f"CUDA_VISIBLE_DEVICES=$(grn select --mem 300MiB) {train}\nsay end"
    job = start(story, text, shell)
    story.hear("taken")
    wait_for(lambda: (here.leases()[0]["used_bytes"] or 0) > 120 << 20, "it to be measured")
    gpu = here.status()["gpus"][here.leases()[0]["gpus"][0]]
    assert gpu["strangers_bytes"] == 0
    story.gate("go").open()
    job.ended_well()
    here.wait_for_leases(0)


def test_a_loop_has_one_at_a_time(story: Story, here: Negotiator, shell: str) -> None:
    text = """
    for round in 1 2 3; do
        gpu=$(grn select --timeout 20) || exit
        say $(grn ps --json | grep -c '"label"')
    done
    """
    done(story, text, shell)
    assert story.said() == ["1"] * 3


def test_each_command_in_the_background_has_its_own(
    story: Story, here: Negotiator, shell: str
) -> None:
    story.gate("go")
    text = """
    for seed in 1 2 3; do
        CUDA_VISIBLE_DEVICES=$(grn select --mem 64MiB) pause go &
    done
    wait
    """
    job = start(story, text, shell)
    leases = here.wait_for_leases(3)
    assert job.pid not in {lease["pid"] for lease in leases}
    assert len({lease["pid"] for lease in leases}) == 3
    story.gate("go").open()
    job.ended_well()
    here.wait_for_leases(0)


def test_a_copy_of_the_shell_in_between_is_not_taken_for_the_caller(
    story: Story, here: Negotiator, shell: str
) -> None:
    text = """
    gpu=$(true; grn select --mem 64MiB; true)
    say $(grn ps --json | grep -c '"label"')
    gpu=$(grn select --mem 64MiB --for $$ | cat)
    say $(grn ps --json | grep '"pid"' | tr -dc 0-9) $$
    """
    done(story, text, shell)
    assert story.said()[0] == "1"
    held_by, caller = story.said()[1].split()
    assert held_by == caller


def test_it_is_given_back_when_asked_for(story: Story, here: Negotiator) -> None:
    text = """
    grn select --gpus 2 > /dev/null
    grn select --release; say $?
    say $(grn ps --json | grep -c '"label"')
    grn select --release; say $?
    """
    done(story, text)
    assert story.said() == ["0", "0", "1"]


def test_it_is_kept_through_a_restart_of_the_negotiator(story: Story, here: Negotiator) -> None:
    story.gate("go")
    job = start(story, "grn select --mem 64MiB; say held; pause go; grn select --release")
    story.hear("held")
    (before,) = here.leases()
    here.kill()
    here.start()
    (after,) = here.leases()
    assert (after["id"], after["pid"]) == (before["id"], job.pid)
    story.gate("go").open()
    job.ended_well()  # with the status of --release
    assert here.leases() == []


def test_without_a_size_it_has_the_gpu_to_itself_and_waits_so_long(
    story: Story, here: Negotiator
) -> None:
    story.gate("go")
    held = start(story, "grn select --gpus 2; say held; pause go")
    story.hear("held")
    for limit in ("0", "0.2"):
        ended = story.start("bash", story.write("b.sh", f"grn select --timeout {limit}")).wait()
        assert (ended.code, ended.out) == (1, "")
        assert "waiting: needs a GPU to itself" in ended.err
    assert here.waiting() == []
    story.gate("go").open()
    held.ended_well()


def test_it_prints_what_it_is_asked_for(story: Story, here: Negotiator) -> None:
    assert done(story, "grn select --mem 64MiB").strip() in ("0", "1")
    assert done(story, "grn select --mem 64MiB --uuid").startswith("VIRTUAL-")
    row = json.loads(done(story, "grn select --mem 64MiB --gpus 2 --json"))
    assert set(row) == set(re.findall(r"^\| `(\w+)` \|", _section("json.md"), re.MULTILINE))
    assert sorted(row["gpus"]) == [0, 1]
    assert set(row["uuids"]) == {"VIRTUAL-0", "VIRTUAL-1"}
    text = 'eval "$(grn select --mem 64MiB --export)"; env | grep -c "CUDA_\\|GRN_LEASE\\|XLA_"'
    assert done(story, text) == "4\n"


def test_jobs_of_the_script_run_under_an_exported_lease(story: Story, here: Negotiator) -> None:
    job = 'import grn, os; l = grn.lease().acquire(); print(l.is_nested, l.id == os.environ["L"])'
    text = f"eval \"$(grn select --export)\"; L=$GRN_LEASE {sys.executable} -c '{job}'"
    assert done(story, text) == "True True\n"


def test_an_exported_lease_is_given_back_too(story: Story, here: Negotiator) -> None:
    text = """
    eval "$(grn select --export)"
    grn select; say $?
    grn select --release; say $?
    say $(grn ps --json | grep -c '"label"')
    """
    assert done(story, text) in ("0\n", "1\n")
    assert story.said() == ["0", "0", "0"]


def test_inside_a_job_it_prints_the_gpus_of_that_job(story: Story, here: Negotiator) -> None:
    text = "grn exec --exclusive -- sh -c 'echo $CUDA_VISIBLE_DEVICES $(grn select)'"
    first, second = done(story, text).split()
    assert first == second
    assert here.leases() == []


def test_trouble_is_told_and_leaves_nothing_on_the_output(story: Story, here: Negotiator) -> None:
    for flags, code, said in (
        ("--mem much", 2, "much"),
        ("--mem 64GiB", 4, "the largest GPU has 512 MiB"),
        ("--gpus 9", 4, "9 GPUs"),
        (f"--for {here.pid}", 2, "is not an ancestor"),
        ("--for 999999999", 2, "is not an ancestor"),
    ):
        ended = start(story, f"grn select {flags}").wait()
        assert (ended.code, ended.out) == (code, ""), flags
        assert said in ended.err
        assert here.leases() == here.waiting() == []


def test_a_process_of_somebody_else_cannot_be_made_a_holder(story: Story, here: Negotiator) -> None:
    """The negotiator itself refuses who is neither above nor below the speaker."""
    lease = here.ask("lease", key="ab" * 8, type="t", label="t", mem=1 << 20, command=True)["lease"]
    with pytest.raises(Exception, match="cannot hold a lease"):
        here.ask("hold", lease=lease, pid=here.pid + 100_000)
    here.ask("done", lease=lease, outcome="failed")


def test_the_scripts_of_the_page_run(story: Story, here: Negotiator) -> None:
    story.write("train.py", "import os\nprint('on', os.environ['CUDA_VISIBLE_DEVICES'])")
    scripts = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    outs = [done(story, text).splitlines() for text in scripts]
    assert [len(lines) for lines in outs] == [1, 3]
    assert {line[:-1] for lines in outs for line in lines} == {"on "}


def _section(page: str) -> str:
    text = (PAGE.parent / page).read_text()
    return text.partition("## grn select --json")[2].partition("\n## ")[0]
