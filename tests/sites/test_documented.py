"""docs/sites.md: what is typed on the page runs as it stands, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grn import sites
from grn.cli.commands.sites.site import add
from grn.option_file import toml
from tests.harness import ROOT
from tests.sites.machines import LoopbackMachine
from tests.sites.site_under_test import Home, SshSite

PAGE = (ROOT / "docs" / "sites.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FIRST, INSTALL = (text for kind, text in BLOCKS if kind == "console")
(TOML,) = (text for kind, text in BLOCKS if kind == "toml")
NUMBER = re.compile(r"[0-9.]+( GiB free|s ago)|GPU [0-9]")


@pytest.fixture
def place(home: Home) -> Iterator[Home]:
    """Make the two hosts of the page, which `ssh gpu2` reaches without more words."""
    site = SshSite(home.story, hosts=0)
    for name, gpus in (("gpu2", "virtual:2x512MiB"), ("gpu3", "virtual:4x1GiB")):
        machine = LoopbackMachine(home.story, site.keys, name, {"GRN_GPUS": gpus})
        machine.start()
        site.machines.append(machine)
    ssh = home.story.write(
        "bin/ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {site.keys.config} "$@"\n'
    )
    ssh.chmod(0o755)
    grn = home.story.write(
        "bin/grn", f"#!{sys.executable}\nfrom grn.cli.main import main\nmain()\n"
    )
    grn.chmod(0o755)
    home.story.env["PATH"] = f"{ssh.parent}{os.pathsep}{os.environ['PATH']}"
    home.rig.start()
    yield home
    site.close()


def _typed(block: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each line that is typed, with the lines that answer it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, shown


def test_what_is_typed_first_prints_what_the_page_shows(place: Home) -> None:
    for command, shown in _typed(FIRST):
        ended = place.story.start("/bin/sh", "-c", command).ended_well()
        told = [NUMBER.sub("", line).split() for line in ended.out.splitlines()]
        assert told == [NUMBER.sub("", line).split() for line in shown], ended


def test_the_installation_on_the_page_can_be_typed() -> None:
    ((command, _),) = _typed(INSTALL)
    words = command.split()
    assert words[:3] == ["grn", "site", "add"]
    made = add.make_context("add", words[3:])
    assert made.params["install"]
    assert made.params["hosts"] == ("gpu2", "gpu3")


def test_the_table_on_the_page_is_a_site() -> None:
    (site,) = sites.read(toml(TOML.encode())["sites"])

    assert [sites.node_name(host) for host in site.hosts] == ["gpu2", "gpu3.example.org"]
    assert site.env == {"GRN_STATE_DIR": "/scratch/me/grn"}


def test_the_states_on_the_page_are_those_of_nodes() -> None:
    source = Path(sites.__file__).parent / "queue" / "sites" / "node.py"
    table = PAGE.partition("| state | meaning |")[2].partition("\n\n")[0]
    shown = set(re.findall(r"`([a-z ]+)`", table))

    assert shown == set(
        re.findall(r'"(up|no negotiator|unusable|cut|connecting|away)"', source.read_text())
    )
