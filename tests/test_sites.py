"""Sites in the settings file: read, added and removed beside whatever else is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from grn import settings, sites
from grn.errors import BadSetting
from grn.sites import SiteConfig

OTHER = """\
# My settings.
queue_running = 3   # a comment

[shares]
alice = 2.0

# About the other site.
[sites.uni]
slurm = true
gpus = 4 # each

[sites.uni.env]
A = "b"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "folder" / "config.toml"
    monkeypatch.setenv("GRN_CONFIG", str(path))
    return path


def _read() -> list[SiteConfig]:
    return sites.read(settings.load().sites)


SITES = [
    SiteConfig("lab", "ssh", ("gpu2", "me@gpu3.example.org")),
    SiteConfig("lab", "ssh", ("gpu2",), python="~/venv/bin/python", options=("-p", '2"2')),
    SiteConfig("lab", "ssh", ("gpu2",), env={"A": "b c", "D": "é\\\n"}),
    SiteConfig("u.n-i_", "slurm", gpus=4, pilots=9, time_s=5400.0, partition="gpu"),
    SiteConfig("cloud", "ray", address="auto"),
]


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.kind)
def test_a_site_is_read_as_it_was_written(file: Path, site: SiteConfig) -> None:
    sites.add(site)

    assert _read() == [site]
    assert SiteConfig.from_json(site.to_json()) == site


def test_other_content_and_comments_stay_as_they_are(file: Path) -> None:
    file.parent.mkdir()
    file.write_text(OTHER)
    sites.add(SITES[0])
    assert file.read_text().startswith(OTHER)
    assert [site.name for site in _read()] == ["uni", "lab"]
    sites.add(SITES[1])
    assert [site.python for site in _read()] == ["", "~/venv/bin/python"]
    assert file.read_text().count("[sites.lab]") == 1
    sites.remove("lab")

    assert file.read_text() == OTHER


def test_a_site_between_others_is_removed_with_the_tables_below_it(file: Path) -> None:
    file.parent.mkdir()
    own = '[sites."lab"]\nssh = [\n  "a",\n]\n[ sites . lab . env ]\nX = "y" # of it\n\n'
    file.write_text(OTHER.replace("# About", f"{own}# About"))
    sites.remove("lab")

    assert file.read_text() == OTHER


@pytest.mark.parametrize(
    "text", ['[sites]\nlab = { ssh = ["a"] }\n', 'sites.lab.ssh = ["a"]\n', "[sites.lab\n"]
)
def test_a_site_that_cannot_be_removed_is_left_and_told(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(BadSetting):
        sites.remove("lab")

    assert file.read_text() == text


def test_a_file_that_would_be_broken_is_not_written(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('sites = { uni = { ssh = ["a"] } }\n')
    with pytest.raises(BadSetting, match="would not be right"):
        sites.add(SITES[0])

    assert file.read_text() == 'sites = { uni = { ssh = ["a"] } }\n'
    assert list(file.parent.iterdir()) == [file]


def test_the_file_keeps_its_mode_and_its_link(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("")
    real.chmod(0o640)
    file.parent.mkdir()
    file.symlink_to(real)
    sites.add(SITES[0])

    assert file.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert _read() == [SITES[0]]


@pytest.mark.parametrize(
    ("name", "table", "text"),
    [
        ("lab", [], "it must be a table"),
        ("lab", {}, "one of ssh, slurm and ray"),
        ("lab", {"ssh": ["a"], "slurm": True}, "one of ssh, slurm and ray"),
        ("lab", {"ssh": []}, "list of hosts"),
        ("lab", {"ssh": "gpu2"}, "list of hosts"),
        ("lab", {"ssh": [1]}, "list of hosts"),
        ("lab", {"ssh": ["-oProxyCommand=x"]}, "is not a host"),
        ("lab", {"ssh": ["a b"]}, "is not a host"),
        ("lab", {"ssh": ["a/b"]}, "is not a host"),
        ("lab", {"ssh": [""]}, "is not a host"),
        ("lab", {"ssh": ["local"]}, "is not a host"),
        ("lab", {"ssh": ["a", "me@a"]}, "a host twice"),
        ("local", {"ssh": ["a"]}, "cannot be used"),
        ("a/b", {"ssh": ["a"]}, "cannot be used"),
        ("lab", {"ssh": ["a"], "pyhton": "x"}, "'pyhton' is not known"),
        ("lab", {"ssh": ["a"], "python": 3}, "must be texts"),
        ("lab", {"ssh": ["a"], "options": "-v"}, "list of texts"),
        ("lab", {"ssh": ["a"], "env": {"A": 1}}, "table of texts"),
        ("lab", {"slurm": True, "gpus": 0}, "whole numbers from 1"),
        ("lab", {"slurm": True, "pilots": 1.5}, "whole numbers from 1"),
        ("lab", {"slurm": True, "time": "soon"}, "time must be like"),
        ("lab", {"ray": 7}, "must be an address"),
    ],
)
def test_a_bad_table_is_named(name: str, table: object, text: str) -> None:
    with pytest.raises(BadSetting, match=text) as raised:
        sites.read({name: table})

    assert name in raised.value.message


def test_one_name_stands_for_one_place() -> None:
    for tables in (
        {"lab": {"ssh": ["a"]}, "uni": {"ssh": ["b", "a"]}},
        {"lab": {"ssh": ["uni"]}, "uni": {"ssh": ["b"]}},
    ):
        with pytest.raises(BadSetting, match="too"):
            sites.read(tables)
    assert len(sites.read({"lab": {"ssh": ["lab"]}})) == 1


def test_words_reach_the_shell_there_as_they_are() -> None:
    site = SiteConfig(
        "lab", "ssh", ("gpu2",), "~/a b/python", options=("-p", "22"), env={"A": "$x"}
    )
    command = sites.ssh_command(site, "me@gpu2", sites.pipe_command(site, "cafe"))

    assert command[-3:-1] == ("--", "me@gpu2")
    assert command[-1] == "env 'A=$x' ~/'a b/python' -P -m grn.queue.sites.agent.pipe --queue cafe"
    assert command.index("-p") < command.index("ServerAliveInterval=10")


@pytest.mark.parametrize(
    ("status", "line", "fault"),
    [
        (127, "bash: line 1: grn: command not found", "grn is not there"),
        (127, "sh: 1: /opt/grn: not found", "/opt/grn is not there"),
        (127, "zsh:1: command not found: grn", "grn is not there"),
        (127, "fish: Unknown command: grn", "grn is not there"),
        (1, "/usr/bin/python3: No module named grn", "/usr/bin/python3 has no grn"),
        (255, "ssh: connect to host gpu2 port 22: Connection refused", ""),
        (0, "ModuleNotFoundError: No module named 'numpy'", ""),
    ],
)
def test_a_host_without_grn_is_told_from_other_faults(status: int, line: str, fault: str) -> None:
    said = sites.missing_grn(status, ["a greeting", line])

    assert said.partition(":")[0] == fault
    assert ("--install" in said) == bool(fault)
