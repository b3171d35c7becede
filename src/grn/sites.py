"""The sites of the settings file: other machines, reached by ssh or through a cluster's engine.

Reads and writes the tables `[sites.NAME]`; the queue connects to them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grn import paths
from grn.errors import BadSetting, MachineError, UsageError
from grn.model.units import parse_time
from grn.option_file import nearest, toml

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
KINDS = ("ssh", "slurm", "ray")
RESERVED = ("local", "all")
DEFAULT_PILOT_S = 24 * 3600.0
DEFAULT_IDLE_S = 300.0
ADD_AGAIN = "add the site again with --install, or with the --python that has grn"
NOT_FOUND = 127  # exit status of a shell that does not find a program


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """One site, as its table says."""

    name: str
    kind: str
    hosts: tuple[str, ...] = ()  # of ssh
    python: str = ""  # the interpreter that has grn there; empty: `grn` on the PATH
    gpus: int = 1  # of one pilot
    pilots: int = 4  # at the same time, at most
    time_s: float = DEFAULT_PILOT_S  # of one pilot
    partition: str = ""
    options: tuple[str, ...] = ()  # more words for ssh or sbatch
    address: str = ""  # of a Ray cluster
    env: Mapping[str, str] = field(default_factory=dict)  # variables of the agents there
    idle_s: float = DEFAULT_IDLE_S  # a pilot without work leaves after this

    def to_toml(self) -> str:
        """Return the table of this site."""
        lines = [f"[sites.{json.dumps(self.name) if '.' in self.name else self.name}]"]
        if self.kind == "ssh":
            lines.append(f"ssh = {json.dumps(list(self.hosts))}")
        elif self.kind == "ray":
            lines.append(f"ray = {json.dumps(self.address)}")
        else:
            lines.append("slurm = true")
        for name in ("python", "gpus", "pilots", "partition", "options"):
            value = getattr(self, name)
            if value != SiteConfig.__dataclass_fields__[name].default:
                shown = list(value) if isinstance(value, tuple) else value
                lines.append(f"{name} = {json.dumps(shown)}")
        if self.time_s != DEFAULT_PILOT_S:
            lines.append(f'time = "{self.time_s:.0f}s"')
        if self.idle_s != DEFAULT_IDLE_S:
            lines.append(f'idle = "{self.idle_s:.0f}s"')
        if self.env:
            pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in self.env.items())
            lines.append(f"env = {{ {pairs} }}")
        return "\n".join(lines) + "\n"

    def to_json(self) -> str:
        """Return the site as the argument of a process."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**named, "env": dict(self.env)})

    @classmethod
    def from_json(cls, text: str) -> SiteConfig:
        """Read the argument of a process."""
        named = json.loads(text)
        lists = {name: tuple(named[name]) for name in ("hosts", "options")}
        return cls(**{**named, **lists})


_KEYS = (
    "ssh", "slurm", "ray", "python", "gpus", "pilots", "time", "partition", "options", "env",
    "idle",
)  # fmt: skip


def read(tables: Mapping[str, object]) -> list[SiteConfig]:
    """Read the tables of all sites; raise BadSetting with the name of what is wrong."""
    found = [_site(name, table) for name, table in tables.items()]
    owner = {site.name: site.name for site in found}
    for site in found:
        for host in site.hosts:
            name = node_name(host)
            if owner.setdefault(name, site.name) != site.name:
                text = f"the site {site.name}: {name} is a name of the site {owner[name]} too."
                raise BadSetting(text, "Each host and each site needs a name of its own.")
    return found


def _site(name: str, table: object) -> SiteConfig:
    def wrong(text: str, hint: str = "See docs/sites.md.") -> BadSetting:
        return BadSetting(f"the site {name}: {text}.", hint)

    if not NAME.fullmatch(name) or name in RESERVED:
        raise wrong("this name cannot be used", "Use letters, digits, dots and dashes.")
    if not isinstance(table, dict):
        raise wrong("it must be a table")
    for key in table:
        if key not in _KEYS:
            near = nearest(key, _KEYS)
            raise wrong(f"'{key}' is not known", f"Did you mean {near}?" if near else "")
    kinds = [kind for kind in KINDS if kind in table]
    if len(kinds) != 1:
        raise wrong("it must have one of ssh, slurm and ray")
    hosts, address = table.get("ssh", []), table.get("ray", "")
    if kinds == ["ssh"] and not (_is_texts(hosts) and hosts):
        raise wrong('ssh must be a list of hosts, like ["gpu2", "gpu3"]')
    for host in hosts:
        if not NAME.fullmatch(node_name(host)) or node_name(host) in RESERVED or host[0] == "-":
            raise wrong(f"{host!r} is not a host")
    names = [node_name(host) for host in hosts]
    if len(names) != len(set(names)):
        raise wrong("it has a host twice")
    if kinds == ["ray"] and not isinstance(address, str):
        raise wrong('ray must be an address, or "auto"')
    options, env = table.get("options", []), table.get("env", {})
    if not _is_texts(options) or not isinstance(env, dict) or not _is_texts(list(env.values())):
        raise wrong("options must be a list of texts, and env a table of texts")
    python, partition = table.get("python", ""), table.get("partition", "")
    if not _is_texts([python, partition]):
        raise wrong("python and partition must be texts")
    gpus, pilots = table.get("gpus", 1), table.get("pilots", 4)
    if type(gpus) is not int or type(pilots) is not int or gpus < 1 or pilots < 1:
        raise wrong("gpus and pilots must be whole numbers from 1")
    times_s = {"time": DEFAULT_PILOT_S, "idle": DEFAULT_IDLE_S}
    for key in times_s.keys() & table.keys():
        try:
            times_s[key] = parse_time(str(table[key]))
        except (UsageError, ValueError) as error:
            raise wrong(f"{key} must be like 24h or 90m") from error
    return SiteConfig(
        name, kinds[0], tuple(hosts), python, gpus, pilots, times_s["time"], partition,
        tuple(options), address, dict(env), times_s["idle"],
    )  # fmt: skip


def _is_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(one, str) for one in values)


def node_name(host: str) -> str:
    """Return the name of a host's node: the host without a user."""
    return host.rpartition("@")[2]


def pipe_command(site: SiteConfig, queue_id: str) -> list[str]:
    """Return the command that joins a stream to the agent, as it is run on the node."""
    if site.python:
        command = [site.python, "-P", "-m", "grn.queue.sites.agent.pipe"]
    else:
        command = ["grn", "agent", "--pipe"]
    command += ["--queue", queue_id]
    if site.env:
        command = ["env", *(f"{name}={value}" for name, value in site.env.items()), *command]
    return command


def ssh_command(site: SiteConfig, host: str, words: list[str]) -> tuple[str, ...]:
    """Return the command that runs words on a host, without asking anything at a terminal."""
    line = " ".join(quoted(word) for word in words)
    # Of two values for one option ssh takes the first: the user's options come before ours.
    ours = ("ServerAliveInterval=10", "ServerAliveCountMax=3", "ConnectTimeout=20")
    options = [word for one in ours for word in ("-o", one)]
    return ("ssh", "-T", "-o", "BatchMode=yes", *site.options, *options, "--", host, line)


def missing_grn(status: int | None, said: Sequence[str]) -> str:
    """Say what to do where a host has no grn; empty where its words do not tell that.

    `said` are the lines of its shell: `grn: command not found`, or of an interpreter without grn.
    """
    fault = ""
    for line in said:
        if "No module named" in line and "grn" in line:
            fault = f"{line.partition(':')[0]} has no grn"
    words = said[-1].split(": ") if said else []
    if not fault and status == NOT_FOUND and len(words) > 1:
        program = words[-1] if "ommand" in words[-2] else words[-2]  # zsh and fish name it last
        fault = f"{program} is not there"
    return f"{fault}: {ADD_AGAIN}" if fault else ""


def quoted(word: str) -> str:
    """Quote a word for the shell there; a leading ~/ stays the home folder there."""
    if word.startswith("~/"):
        return "~/" + shlex.quote(word[2:])
    return shlex.quote(word)


# --- the settings file ---------------------------------------------------------------------


def add(site: SiteConfig) -> None:
    """Write the table of a site to the end of the settings file; one of that name is replaced."""
    text = _without(_text(), site.name)
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    _replace(f"{text}{gap}{site.to_toml()}")


def remove(name: str) -> None:
    """Remove the table of a site from the settings file."""
    text = _without(_text(), name)
    if name in _parsed(text).get("sites", {}):
        raise BadSetting(
            f"the site {name} is not in a table [sites.{name}] of {paths.settings_file()}.",
            "Remove it there by hand.",
        )
    _replace(text)


def _text() -> str:
    try:
        with open(paths.settings_file(), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise BadSetting(f"{paths.settings_file()} cannot be read: {error}.") from error


def _parsed(text: str) -> dict[str, Any]:
    """Read the text that is to be written; a file that cannot be read again is never written."""
    try:
        return toml(text.encode())
    except ValueError as error:
        path = paths.settings_file()
        raise BadSetting(f"{path} would not be right any more: {error}.", "Edit it.") from error


def _without(text: str, name: str) -> str:
    """Return the file without the table of one site and the tables below it.

    Comments right above the next table belong to that one, and stay.
    """
    spelled = re.escape(name)
    forms = f"\"{spelled}\"|'{spelled}'" + ("" if "." in name else f"|{spelled}")
    own = re.compile(rf"\s*\[\s*sites\s*\.\s*(?:{forms})\s*(?:\.[^\]]*)?\]")
    kept: list[str] = []
    comments: list[str] = []
    is_own = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            is_own = own.match(line) is not None
            kept += [] if is_own else comments
            comments = []
        if not is_own:
            kept.append(line)
        elif line.lstrip().startswith("#"):
            comments.append(line)
        else:
            comments = []
    return "".join(kept).rstrip("\n") + ("\n" if any(map(str.strip, kept)) else "")


def _replace(text: str) -> None:
    path = os.path.realpath(paths.settings_file())
    _parsed(text)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd, new = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".config-")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                os.chmod(new, os.stat(path).st_mode & 0o777)
            os.replace(new, path)
        except BaseException:
            os.unlink(new)
            raise
    except OSError as error:
        raise MachineError(
            f"{path} cannot be written: {error.strerror}.", "The file is as it was."
        ) from error
