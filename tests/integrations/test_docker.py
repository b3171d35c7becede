"""What examples/docker says, in namespaces of its own: leased, measured, gone when it is gone."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Negotiators, Scripts
from tests.harness import Job, Negotiator, Story, wait_for
from tests.integrations.boxes import contain
from tests.integrations.pages import ROOT

yaml = pytest.importorskip("yaml")
EXAMPLE = ROOT / "examples" / "docker"
MiB = 1 << 20


@pytest.fixture
def here(story: Story, negotiator: Negotiators) -> Negotiator:
    return negotiator("virtual:2x512MiB")


def service() -> dict[str, Any]:
    text = (EXAMPLE / "compose.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)["services"]["train"]
    return found


def up(story: Story, *more: str) -> Job:
    """Do what compose.yaml says, with the folder of this story's negotiator for /tmp/grn."""
    train = service()
    (mount,) = train["volumes"]
    assert mount["source"] == "/tmp/grn"
    volumes = {str(story.folder / "run"): mount["target"], str(EXAMPLE): "/tmp/app"}
    program, *words = train["command"]
    assert program == "python"
    return contain(story, [sys.executable, *words, *more], volumes, "/tmp/app")


def box(story: Story, text: str, **env: str) -> Job:
    """Run a line of shell in a box that also sees the gates of the story."""
    stage = Path(__file__).resolve().parents[1] / "stories" / "stage"
    volumes = {str(story.folder / "run"): "/tmp/grn", str(story.folder): "/tmp/story"}
    volumes[str(stage)] = "/tmp/stage"
    return contain(story, ["/bin/sh", "-c", text], volumes, env={"STORY": "/tmp/story", **env})


def test_the_compose_file_shares_nothing_but_the_folder() -> None:
    train = service()
    assert not {"pid", "ipc", "network_mode", "privileged", "cap_add", "ports"} & set(train)
    assert [(one["source"], one["target"]) for one in train["volumes"]] == [("/tmp/grn",) * 2]
    overlay = (EXAMPLE / "compose.virtual.yaml").read_text()
    assert re.search(r"^services:\n  train:\n    deploy: !reset null$", overlay, re.MULTILINE)


def test_the_dockerfile_copies_what_is_there() -> None:
    text = (EXAMPLE / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    assert json.loads(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[0]) == service()["command"]


def test_what_the_compose_file_says_runs_leased_and_measured(
    story: Story, here: Negotiator
) -> None:
    boxes = [up(story, "1") for _ in range(3)]
    outs = [job.ended_well().out for job in boxes]
    assert {re.sub(r"\d\n$", "", out) for out in outs} == {"trained with 150 MiB on GPU VIRTUAL-"}
    (profile,) = here.profiles()
    assert profile["label"] == "docker-train"
    assert [run["outcome"] for run in profile["history"]] == ["ok"] * 3
    assert all(run["peak_bytes"] > 150 * MiB for run in profile["history"])
    assert here.leases() == []


HOLD = """
import sys; sys.path.insert(0, sys.argv[1])
import grn, os
from act import gate, say, take
with grn.lease(mem="300MiB"):
    kept = take(150)
    say(os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], os.path.exists("/tmp/grn"))
    alone = [name for name in os.listdir("/proc") if name.isdigit()] == ["1"]
    say("alone", alone, os.path.exists(sys.argv[2]))
    say("net", open("/proc/net/dev").read().count(":"))
    gate("go")
"""


def hold(story: Story) -> Job:
    story.gate("go")
    story.write("hold.py", HOLD)
    return box(story, f"exec {sys.executable} /tmp/story/hold.py /tmp/stage {story.folder}")


def test_a_job_inside_is_known_by_its_pid_outside(story: Story, here: Negotiator) -> None:
    job = hold(story)
    wait_for(lambda: len(story.said()) == 3)
    (lease,) = here.leases()
    inner_pid, visible, _ = story.said()[0].split()
    assert visible == f"VIRTUAL-{lease['gpus'][0]}"
    status = Path(f"/proc/{lease['pid']}/status").read_text()
    assert re.search(rf"^NSpid:\s+{lease['pid']}\s+{inner_pid}$", status, re.MULTILINE)
    assert story.said()[1] == "alone True False"
    assert story.said()[2] == "net 1"  # the loopback of a network of its own
    wait_for(lambda: (here.leases()[0]["used_bytes"] or 0) > 150 * MiB, "it to be measured")
    assert here.status()["gpus"][lease["gpus"][0]]["strangers_bytes"] == 0
    story.gate("go").open()
    job.ended_well()
    assert here.leases() == []


def test_a_box_that_is_killed_gives_its_gpu_back(story: Story, here: Negotiator) -> None:
    job = hold(story)
    wait_for(story.said)
    here.wait_for_leases(1)
    job.kill()
    here.wait_for_leases(0)


def test_a_box_outlives_a_restart_of_the_negotiator(story: Story, here: Negotiator) -> None:
    job = hold(story)
    wait_for(story.said)
    (before,) = here.leases()
    here.kill()
    here.start()
    assert [lease["id"] for lease in here.leases()] == [before["id"]]
    story.gate("go").open()
    job.ended_well()
    assert here.leases() == []
    assert up(story, "0").ended_well().out.startswith("trained")  # the mount is of the folder


def test_commands_of_grn_work_inside(story: Story, here: Negotiator, script: Scripts) -> None:
    text = (
        f"PATH={script('grn').parent}:$PATH; grn ps; "
        "grn exec --mem 64MiB -- sh -c 'echo exec $CUDA_VISIBLE_DEVICES'; "
        "gpu=$(grn select --mem 64MiB) || exit; echo select $gpu $$; grn ps --json"
    )
    out = box(story, text).ended_well().out
    found = re.match(
        r"nothing runs and nothing waits\nexec VIRTUAL-\d\nselect VIRTUAL-(\d) (\d+)\n", out
    )
    assert found, out
    (lease,) = json.loads(out[found.end() :])["leases"]
    assert lease["gpus"] == [int(found[1])]
    assert found[2] == "1"  # the shell is the first process in there, and another one outside
    assert lease["pid"] != 1
    here.wait_for_leases(0)


def test_without_a_negotiator_it_says_what_to_do(story: Story) -> None:
    (story.folder / "run").mkdir()
    ended = up(story).wait()
    assert ended.code == 1
    assert "Start one with `grn start`" in ended.err
