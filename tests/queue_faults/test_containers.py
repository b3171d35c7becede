"""R1: what is confined stays so. A lease crosses the wall of a container, a command never does.

With a real engine where there is one; the proof itself also with namespaces alone.
"""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from grn import paths
from tests.harness import Ended, Story, wait_for
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.engines import GRN, Box, needed
from tests.queue_faults.rig import PATIENCE_S, Rig

Boxes = Callable[..., Box]
SOME = ("--mem", "8MiB")

# Says nothing until it has heard for what the queue takes it, then asks as any client would.
RAW = """
import json, os, socket, struct, sys
def said(line):
    head = line.recv(4, socket.MSG_WAITALL)
    return line.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL).decode() if head else ""
path, mark = sys.argv[1:]
job = {"argv": ["touch", mark], "type": "raw", "label": "raw"}
ask = {"op": "submit", "id": 1, "v": 1, "key": os.urandom(12).hex(), "jobs": [job],
       "cwd": "/", "env": {"PATH": "/usr/bin:/bin"}, "mem": 8 << 20}
body = json.dumps(ask).encode()
line = socket.socket(socket.AF_UNIX)
line.settimeout(60)
line.connect(path)
try:
    line.sendall(struct.pack(">I", len(body)) + body)
except OSError:
    pass
try:
    print(said(line))
    print(repr(said(line)))
except OSError:
    print(repr(""))
"""


@pytest.fixture
def host(rig: Rig) -> Rig:
    """Start a negotiator and a queue on the host."""
    rig.start_negotiator()
    rig.start()
    return rig


@pytest.fixture
def box(rig: Rig) -> Iterator[Boxes]:
    """Make containers; by default they mount what docs/containers.md says, and nothing else."""
    needed()
    made: list[Box] = []

    def make(
        *command: str,
        volumes: Mapping[Path, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Box:
        mounted = {rig.story.folder / "run": "/tmp/grn"} if volumes is None else volumes
        made.append(Box(rig.story, *command, volumes=mounted, env=env))
        return made[-1]

    yield make
    for one in made:
        one.remove()


def all_of(story: Story) -> dict[Path, str]:
    """Mount the folder above the runtime folder, as one who mounts /tmp does: all sockets."""
    return {story.folder: str(story.folder)}


def there(story: Story) -> dict[str, str]:
    """Return where the sockets of a box are that mounts all."""
    return {"GRN_RUNTIME_DIR": story.env["GRN_RUNTIME_DIR"]}


def marked(story: Story) -> Path:
    """Return a file that only a command outside of all boxes makes."""
    return story.folder / "escaped"


def is_refused(ended: Ended) -> bool:
    """True when grn has refused in one line and a hint."""
    lines = ended.err.splitlines()
    words = "different containers"
    return (ended.code, len(lines)) == (2, 2) and words in lines[0] and "GRN_RUNTIME" in lines[1]


def raw_is_refused(out: str) -> bool:
    """True when the queue has sent one error and hung up."""
    first, rest = out.splitlines()
    return json.loads(first)["error"]["code"] == "NotAllowed" and rest == "''"


# --- a real engine ---------------------------------------------------------------------------


def test_what_is_submitted_in_a_box_runs_in_the_box(host: Rig, box: Boxes) -> None:
    line = f"mkdir -p {host.story.folder}; touch {marked(host.story)}"
    submit = (
        f'"$@" submit --mem 8MiB --cwd / --shell -- "{line}"; "$@" wait 1; ls {host.story.folder}'
    )
    inside = box("sh", "-c", submit, "sh", *GRN)
    assert inside.ended_well().split() == ["1", "escaped"]
    assert not marked(host.story).exists()
    assert host.rows() == {}
    assert host.no_lease_left()  # it ran under a lease of the host's negotiator


def test_a_box_finds_no_socket_but_the_negotiators(host: Rig, box: Boxes) -> None:
    out = box("find", "/tmp/grn", "-type", "s").ended_well()
    assert out.split() == [f"/tmp/grn/{os.getuid()}.sock"]


def test_a_box_that_mounts_all_of_tmp_cannot_submit_outside(host: Rig, box: Boxes) -> None:
    volumes, env = all_of(host.story), there(host.story)
    words = ("submit", *SOME, "--", "touch", str(marked(host.story)))
    assert is_refused(box(*GRN, *words, volumes=volumes, env=env).wait())
    raw = (sys.executable, "-c", RAW, paths.queue_socket(), str(marked(host.story)))
    assert raw_is_refused(box(*raw, volumes=volumes, env=env).ended_well())
    assert host.rows() == {}
    assert not marked(host.story).exists()


def test_a_queue_in_a_box_gets_no_submit_of_the_hosts(host: Rig, box: Boxes) -> None:
    assert host.queue is not None
    host.queue.stop()
    env = {**there(host.story), "GRN_STATE_DIR": "/tmp/state"}
    command = ("sh", "-c", '"$@" queue start && exec sleep 600', "sh", *GRN)
    inside = box(*command, volumes=all_of(host.story), env=env)
    inside.says("answers (pid")
    refused = host.story.start(*GRN, "submit", *SOME, "--", "true", env={"SECRET": "x"}).wait()
    assert is_refused(refused)
    assert '"jobs": []' in inside.run(*GRN, "ls", "--json").out


def test_leases_work_in_a_box(host: Rig, box: Boxes) -> None:
    out = box(*GRN, "exec", *SOME, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").ended_well()
    assert out.startswith("VIRTUAL-")
    assert host.no_lease_left()


# --- namespaces alone ------------------------------------------------------------------------

MOUNT = ("unshare", "--mount")
WALLS = (
    MOUNT,
    ("unshare", "--user", "--map-root-user"),
    ("unshare", "--user", "--map-root-user", "--mount"),
    ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
)


@functools.cache
def may(*wall: str) -> bool:
    return subprocess.run([*wall, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def walls() -> list[tuple[str, ...]]:
    """Return the words that put a command behind a wall, for each kind that can be made here."""
    found = [words for words in WALLS if may(*words)]
    if not found:
        pytest.skip("NAMESPACES ARE NOT PERMITTED: no wall was tried")
    return found


def test_behind_a_wall_a_client_says_nothing_and_is_not_heard(
    host: Rig, walls: list[tuple[str, ...]]
) -> None:
    words = ("submit", *SOME, "--", "touch", marked(host.story))
    raw = (sys.executable, "-c", RAW, paths.queue_socket(), marked(host.story))
    for wall in walls:
        tries = [host.story.start(*wall, *argv) for argv in ((*GRN, *words), raw)]
        assert is_refused(tries[0].wait()), wall
        assert raw_is_refused(tries[1].ended_well().out), wall
    assert host.rows() == {}
    assert not marked(host.story).exists()


def test_a_queue_behind_a_wall_gets_nothing(rig: Rig, walls: list[tuple[str, ...]]) -> None:
    for wall in walls:
        behind = rig.start(*wall)
        assert is_refused(rig.story.start(*GRN, "submit", *SOME, "--", "true").wait()), wall
        assert behind.is_running
        behind.kill()


def test_the_check_finds_out_a_queue_that_believes_a_user_number(rigs: Rigs) -> None:
    rig = rigs("believe-number")
    if not may(*MOUNT):
        pytest.skip("NAMESPACES ARE NOT PERMITTED")
    rig.start_negotiator()
    rig.start()
    raw = (sys.executable, "-c", RAW, paths.queue_socket(), marked(rig.story))
    rig.story.start(*MOUNT, *raw)
    wait_for(marked(rig.story).exists, "an escape", PATIENCE_S)


# --- an older queue --------------------------------------------------------------------------


def test_the_queue_of_an_older_grn_is_replaced(rigs: Rigs) -> None:
    """It listens in the runtime folder, where containers reach it: it must not live on."""
    rig = rigs("listen-below")
    older = rig.start()
    assert Path(paths.former_queue_socket()).exists()
    assert not Path(paths.queue_socket()).exists()
    assert rig.ask("ping")["pid"] == older.pid  # `grn ls` still finds it
    rig.mutant = ""
    rig.start()
    assert older.process.wait(PATIENCE_S) == 0
    assert rig.ask("ping")["pid"] != older.pid


def test_whoever_else_listens_where_older_queues_did_is_left_alone(rig: Rig) -> None:
    if not may(*MOUNT):
        pytest.skip("NAMESPACES ARE NOT PERMITTED")
    path = Path(paths.former_queue_socket())
    path.parent.mkdir(parents=True)
    code = (
        "import socket, sys; line = socket.socket(socket.AF_UNIX); line.bind(sys.argv[1]);"
        " line.listen(); print('up', flush=True);"
        " print(line.accept()[0].recv(9), flush=True); print(line.accept()[0].recv(9), flush=True)"
    )
    other = rig.story.start(*MOUNT, sys.executable, "-c", code, path)
    wait_for(lambda: "up" in other.out, "a listener")
    rig.start()
    wait_for(lambda: "b''" in other.out, "a client that says nothing")


# --- many of them ----------------------------------------------------------------------------


def _round(host: Rig, box: Boxes, chance: random.Random, done: Counter[str]) -> None:
    """Hold leases in boxes, end them in one way or another, and try to get out meanwhile."""
    hold = (*GRN, "exec", *SOME, "--", "sh", "-c", "echo up; exec sleep 600")
    boxes = [box(*hold) for _ in range(2)]
    for one in boxes:
        one.says("up")
    escape = chance.choice(("grn", "raw"))
    done[f"escape by {escape}"] += 1
    command: tuple[str, ...] = (*GRN, "submit", *SOME, "--", "touch", str(marked(host.story)))
    if escape == "raw":
        command = (sys.executable, "-c", RAW, paths.queue_socket(), str(marked(host.story)))
    outside = box(*command, volumes=all_of(host.story), env=there(host.story))
    for one in boxes:
        verb = chance.choice(("kill", "pause", "stop"))
        done[verb] += 1
        if verb == "pause":
            one.order("pause")
            assert len(host.leases() or []) >= 1  # it lives, and keeps what it has
            one.order("unpause")
        one.order("kill" if verb == "pause" else verb)
    ended = outside.wait()
    assert is_refused(ended) if escape == "grn" else raw_is_refused(ended.out)
    assert host.no_lease_left()


def _campaign(host: Rig, box: Boxes, seed: int, rounds: int) -> None:
    chance, done = random.Random(seed), Counter[str]()
    for _ in range(rounds):
        _round(host, box, chance, done)
    assert host.rows() == {}
    assert not marked(host.story).exists()
    figures = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
    print(f"containers: seed {seed}, {rounds} rounds, {figures}: 0 escapes, 0 leases left")


def test_boxes_that_are_killed_and_paused_leave_nothing(host: Rig, box: Boxes, seed: int) -> None:
    _campaign(host, box, seed, 1)


@pytest.mark.soak
def test_many_boxes_that_are_killed_and_paused_leave_nothing(
    host: Rig, box: Boxes, seed: int
) -> None:
    _campaign(host, box, seed, 20)
