"""`grn site` with hosts by ssh: what it finds and installs, and one clear line for each fault."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import grn
from tests.harness import PYTHON_PATH, SOURCES, Ended, faketime, wait_for
from tests.queue_faults.disks import small_disk
from tests.sites.machines import LoopbackMachine, Machine
from tests.sites.site_under_test import SITE, Home, SshSite

OTHER = "# other settings\nqueue_running = 3 # a comment\n\n[shares]\nroot = 2.0\n"
UNTIL = 'until test -e "$0"; do sleep 0.02; done'

Nodes = Callable[..., Machine]


@pytest.fixture
def site(home: Home) -> Iterator[SshSite]:
    """Make a site that home does not know yet."""
    made = SshSite(home.story, hosts=0)
    yield made
    made.close()


@pytest.fixture
def node(home: Home, site: SshSite) -> Nodes:
    """Start a machine with variables of its own; None takes one away."""

    def make(name: str = "node1", **env: str | None) -> Machine:
        machine = LoopbackMachine(home.story, site.keys, name)
        for key, value in env.items():
            machine.env.pop(key, None)
            if value is not None:
                machine.env[key] = value
        machine.start()
        site.machines.append(machine)
        return machine

    return make


def _add(home: Home, site: SshSite, *words: str, hosts: tuple[str, ...] = ("node1",)) -> Ended:
    options = [f"--option={word}" for word in site.options]
    return home.grn("site", "add", SITE, "--ssh", *hosts, *options, *words)


# --- as it should be -------------------------------------------------------------------------


def test_a_site_is_added_used_listed_and_removed(home: Home, site: SshSite, node: Nodes) -> None:
    home.settings.write_text(OTHER)
    home.rig.start()
    node()
    node("node2", GRN_GPUS="virtual:4x1GiB")
    done = _add(home, site, hosts=("node1", "node2"))
    assert done.code == 0, done.err
    first, second, last = done.out.splitlines()
    assert first.startswith("node1: 2 x 512 MiB, ")
    assert second.startswith("node2: 4 x 1.0 GiB, ")
    assert first.endswith(" free on disk")
    assert last == "lab added: 2 hosts."
    assert home.settings.read_text().startswith(OTHER)

    assert home.ran("true", at="node2")["where"] == "node2"  # without a restart of the queue
    listed = home.grn_well("sites")
    assert [line.split()[:3] for line in listed.splitlines()] == [
        ["SITE", "NODE", "STATE"], ["lab", "node1", "up"], ["lab", "node2", "up"],
    ]  # fmt: skip
    assert home.grn_well("site", "ls").split()[:8] == listed.split()[:8]
    checked = home.grn_well("site", "check", SITE).splitlines()
    assert [line.partition(",")[0] for line in checked] == [
        "node1: 2 x 512 MiB", "node2: 4 x 1.0 GiB",
    ]  # fmt: skip
    assert home.grn_well("site", "rm", SITE) == "lab removed.\n"
    assert home.settings.read_text() == OTHER
    assert home.grn("sites").err.startswith("no sites: ")
    assert home.grn("site", "rm", SITE).err.splitlines()[0] == "error: there is no site lab."


def test_a_site_that_is_changed_is_reached_the_new_way(
    home: Home, site: SshSite, node: Nodes
) -> None:
    node()
    home.rig.start()
    assert _add(home, site, "--env", "XDG_COLOUR=red").code == 0
    assert home.log(home.ran("echo $XDG_COLOUR")["id"]) == "red\n"
    (agent,) = site.machines[0].agents()
    assert _add(home, site, "--env", "XDG_COLOUR=blue").code == 0
    site.machines[0].kill([agent])  # a running agent keeps its variables
    assert home.log(home.ran("echo $XDG_COLOUR")["id"]) == "blue\n"


def test_what_a_login_shell_prints_does_no_harm(home: Home, site: SshSite, node: Nodes) -> None:
    folder = home.story.folder / "noisy home"
    folder.mkdir()
    (folder / ".bashrc").write_text("echo Welcome; printf 'no newline'; echo oops >&2\n")
    machine = node(HOME=str(folder))
    home.rig.start()
    assert _add(home, site).code == 0
    assert home.ran("exit 9")["status"] == 9
    assert machine.agents()


def test_a_home_without_gpus_uses_those_of_a_site(home: Home, site: SshSite, node: Nodes) -> None:
    del home.story.env["GRN_GPUS"]
    node()
    home.rig.start()
    assert _add(home, site).code == 0
    assert home.ran("true", at="")["where"] == "node1"
    lines = home.story.write("lines", "echo one\necho two\n")
    done = home.grn("batch", str(lines), "--mem", "8MiB", "-q")
    assert done.code == 0, done.err


def test_the_agent_of_an_older_version_leaves_and_its_jobs_go_on(
    home: Home, site: SshSite, node: Nodes
) -> None:
    machine = node()
    home.rig.start()
    assert _add(home, site).code == 0
    gate = home.story.folder / "go"
    job = home.sh(f"{UNTIL}; exit 5", str(gate))
    home.rig.running(job)
    (agent,) = machine.agents()
    (version,) = machine.runtime.parent.rglob("*-agent-*/version")
    assert version.read_text() == grn.__version__
    version.write_text("0.0.1")
    machine.kill(machine.pipes())
    wait_for(lambda: machine.agents() not in ([], [agent]), "another agent")
    gate.touch()

    assert home.rig.ended(job)["status"] == 5
    assert version.read_text() == grn.__version__


def test_a_type_learned_on_one_node_needs_no_first_run_on_the_next(
    home: Home, site: SshSite, node: Nodes
) -> None:
    node()
    node("node2")
    home.rig.start()
    assert _add(home, site, hosts=("node1", "node2")).code == 0
    text = "import time; kept = b'x' * (90 << 20); time.sleep(0.5)"
    first = home.python(text, mem=None, type="learner", at="node1")
    told = "action=heard-runs place=node1 types='learner'"
    wait_for(lambda: told in home.rig.log.read_text(), told)
    second = home.python(text, mem=None, type="learner", at="node2")

    assert (first["where"], second["where"]) == ("node1", "node2")
    assert first["reserved_bytes"] > 400 << 20  # all that was free
    assert first["peak_bytes"] > 90 << 20
    assert 90 << 20 < second["reserved_bytes"] < 250 << 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_grn_is_installed_and_updated_in_a_venv_of_its_own(
    home: Home, site: SshSite, node: Nodes
) -> None:
    folder = home.story.folder / "a home"
    folder.mkdir()
    trust = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    node(HOME=str(folder), PYTHONPATH=None, PATH="/usr/local/bin:/usr/bin:/bin", **trust)
    site.machines[0].env["PATH"] = f"{Path(sys.base_prefix, 'bin')}:/usr/bin:/bin"
    site.machines[0].cut()
    site.machines[0].start()
    missing = _add(home, site)
    assert missing.code != 0
    assert missing.err.splitlines()[0].startswith("node1: grn is not there: ")
    assert "--install" in missing.err.splitlines()[0]
    done = _add(home, site, "--install")
    if "could not be installed" in done.err and "No matching distribution" in done.err:
        pytest.skip(f"NO PACKAGE INDEX: nothing was installed on a node: {done.err}")
    assert done.code == 0, done.err
    python = folder / ".local/share/grn/venv/bin/python"
    assert python.exists()
    home.rig.start()
    row = home.ran("exit 3")
    assert (row["where"], row["status"]) == ("node1", 3)

    version = next(python.parent.parent.glob("lib/python*/site-packages/grn/__init__.py"))
    version.write_text(version.read_text().replace(grn.__version__, "0.0.1"))
    checked = home.grn("site", "check", SITE)
    assert checked.code == 1
    assert f"grn 0.0.1 is there and {grn.__version__} here (`grn site update" in checked.err
    refused = _add(home, site, "--python", str(python))
    assert "grn 0.0.1 is there" in refused.err
    assert "add the site again with --install" in refused.err
    assert home.grn("site", "update", SITE).code == 0
    assert grn.__version__ in version.read_text()
    assert home.ran("exit 4")["status"] == 4


# --- faults: one clear line each, and the job stays queued -----------------------------------


def _is_said(home: Home, site: SshSite, text: str, *words: str) -> None:
    """A fault is told by `add`, which adds nothing, by `check`, and as the reason of a job."""
    done = _add(home, site, *words)
    assert done.code != 0
    lines = done.err.splitlines()
    assert re.search(text, lines[0]), done.err
    assert lines[0].startswith("node1: ")
    assert lines[1] == "error: the site lab was not added."
    assert len(lines) == 3
    assert not home.settings.exists() or "sites" not in home.settings.read_text()

    added = _add(home, site, "--no-check", *words)
    assert added.code == 0, added.err
    checked = home.grn("site", "check", SITE)
    (line,) = checked.err.splitlines()  # with the way out of a site that is in the settings
    assert (checked.code, line.partition(" (")[0]) == (1, lines[0].partition(" (")[0])
    home.rig.start()
    job = home.sh("true")
    wait_for(lambda: re.search(text, home.why(job)), lambda: f"{text!r} in {home.why(job)!r}")
    assert home.rig.row(job)["state"] == "queued"
    assert re.search(text, home.grn_well("sites"))


def test_one_machine_under_two_names(home: Home, site: SshSite, node: Nodes) -> None:
    machine = node()
    assert isinstance(machine, LoopbackMachine)
    site.keys.note("alias", "127.0.0.1", machine.port)
    home.rig.start()
    assert _add(home, site, hosts=("node1", "alias")).code == 0
    assert home.ran("true")["reason"] == "ok"
    said = "it is the same machine as"
    wait_for(lambda: said in home.grn_well("sites"), lambda: home.grn_well("sites"))
    assert home.node_is("unusable")["node"] in {"node1", "alias"}
    assert len(machine.agents()) == 1


def test_a_host_that_does_not_listen(home: Home, site: SshSite, node: Nodes) -> None:
    node().cut()
    _is_said(home, site, "Connection refused")


def test_a_host_that_nobody_knows(home: Home, site: SshSite) -> None:
    site.keys.config.write_text("Host node1\n  HostName nowhere.invalid\n")
    _is_said(home, site, "Could not resolve hostname nowhere.invalid")


def test_a_host_with_another_key(home: Home, site: SshSite, node: Nodes) -> None:
    node()
    known = site.keys.folder / "known_hosts"
    user = (site.keys.folder / "user.pub").read_text().split()[1]
    host = (site.keys.folder / "host.pub").read_text().split()[1]
    known.write_text(known.read_text().replace(host, user))
    _is_said(home, site, "Host key verification failed")


def test_a_host_that_does_not_let_us_in(home: Home, site: SshSite, node: Nodes) -> None:
    node()
    (site.keys.folder / "authorized").write_text("")
    _is_said(home, site, "Permission denied")


def test_an_interpreter_that_is_not_there(home: Home, site: SshSite, node: Nodes) -> None:
    node()
    text = "/no/such/python is not there: add the site again with --install, or with"
    _is_said(home, site, text, "--python", "/no/such/python")


def test_an_interpreter_without_grn(home: Home, site: SshSite, node: Nodes) -> None:
    node(PYTHONPATH=None)
    python = sys.base_prefix + "/bin/python3"
    _is_said(home, site, f"{python} has no grn: add the site again with", "--python", python)


def test_another_version_there(home: Home, site: SshSite, node: Nodes) -> None:
    other = home.story.folder / "other"
    shutil.copytree(SOURCES / "grn", other / "grn", ignore=shutil.ignore_patterns("__pycache__"))
    init = other / "grn" / "__init__.py"
    init.write_text(init.read_text().replace(grn.__version__, "0.0.1"))
    node(PYTHONPATH=f"{other}:{PYTHON_PATH}")
    text = f"grn 0.0.1 is there and {grn.__version__} here"
    _is_said(home, site, text, "--python", sys.executable)
    assert home.node_is("unusable")["trouble"].startswith(text)


def test_a_host_without_a_gpu(home: Home, site: SshSite, node: Nodes) -> None:
    node(GRN_GPUS=None)
    _is_said(home, site, "NVIDIA")


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def test_a_host_with_a_full_disk(home: Home, site: SshSite, node: Nodes) -> None:
    with small_disk(home.story.folder, 1 << 20) as disk:
        machine = node(GRN_STATE_DIR=str(disk / "state"))
        filler = _fill(disk)
        _is_said(home, site, "No space left on device|disk is full")
        filler.unlink()
        home.rig.ask("sites")
        wait_for(lambda: not home.rig.ask("list", which="alive")["jobs"], "the job to run")
        assert home.rig.row(1)["reason"] == "ok"
        home.rig.close()
        machine.lose_power()


def test_a_disk_that_fills_up_while_the_host_is_used(
    home: Home, site: SshSite, node: Nodes
) -> None:
    """What runs there ends as it would; a new job waits in words until there is room again."""
    with small_disk(home.story.folder, 4 << 20) as disk:
        machine = node(GRN_STATE_DIR=str(disk / "state"))
        home.rig.start()
        assert _add(home, site).code == 0
        gate = home.story.folder / "go"
        first = home.sh(f"echo begun; {UNTIL}; exit 5", str(gate))
        home.rig.running(first)
        filler = _fill(disk)
        second = home.sh("exit 6")
        home.why_says(second, "node1 could not begin a job: No space left on device")
        assert home.rig.row(second)["state"] == "queued"
        assert "could not begin a job" in home.grn_well("sites")
        gate.touch()
        filler.unlink()
        rows = [home.rig.ended(job) for job in (first, second)]
        assert [row["status"] for row in rows] == [5, 6]
        assert rows[0]["attempt"] == 1
        home.rig.close()
        machine.lose_power()


def test_a_host_with_a_wrong_clock(home: Home, site: SshSite, node: Nodes) -> None:
    node(LD_PRELOAD=faketime(), FAKETIME="+72.5h", DONT_FAKE_MONOTONIC="1")
    done = _add(home, site)
    assert done.code == 0
    assert "its clock is off by 3d00h" in done.out
    home.rig.start()
    row = home.ran("exit 2", env={**home.story.environment(), "LD_PRELOAD": ""})
    assert row["status"] == 2
    assert abs(row["ended_at"] - row["submitted_at"]) < 100
    assert "its clock is off by 3d00h" in home.grn_well("sites")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lab",), "say what kind of site it is."),
        (("lab", "--ssh"), "ssh must be a list of hosts"),
        (("lab", "--ssh", "-x"), "no such option"),
        (("lab", "--ssh", "a b"), "'a b' is not a host"),
        (("lab", "--ssh", "gpu2", "me@gpu2"), "it has a host twice"),
        (("local", "--ssh", "gpu2"), "this name cannot be used"),
        (("lab", "--ssh", "local"), "'local' is not a host"),
        (("l/b", "--ssh", "gpu2"), "this name cannot be used"),
        (("lab", "--ssh", "gpu2", "--env", "X"), "--env does not set a variable."),
        (("lab", "--slurm", "gpu2"), "only --ssh takes hosts."),
        (("lab", "--ssh", "gpu2", "--time", "soon"), "time"),
    ],
)
def test_what_is_typed_wrong_is_told_in_a_line(
    home: Home, words: tuple[str, ...], said: str
) -> None:
    done = home.grn("site", "add", *words)

    assert done.code == 2, done
    assert said in done.err
    assert "Traceback" not in done.err
    assert not home.settings.exists()


def test_a_name_of_another_site_is_refused(home: Home) -> None:
    home.settings.write_text('[sites.uni]\nssh = ["gpu2"]\n')
    for words in (("lab", "--ssh", "gpu2"), ("gpu2", "--ssh", "gpu3"), ("lab", "--ssh", "uni")):
        done = home.grn("site", "add", *words, "--no-check")
        assert done.code == 2
        assert "is a name of another site" in done.err


def test_a_broken_settings_file_is_left_as_it_is(home: Home, site: SshSite, node: Nodes) -> None:
    for text in ("[sites.lab\n", '[sites]\nlab = { ssh = ["gpu2"] }\n'):
        home.settings.write_text(text)
        done = home.grn("site", "rm", SITE)
        assert done.code == 2
        assert done.err.startswith("error: ")
        assert "Traceback" not in done.err
        assert home.settings.read_text() == text
