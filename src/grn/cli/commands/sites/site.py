"""`grn site` and `grn sites`: other machines for the jobs of your queue, and their state."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

import click

from grn import __version__, settings, sites
from grn.cli.commands.sites import site_install
from grn.cli.help import command, flag, group
from grn.cli.options import json_flag
from grn.cli.output.table import table
from grn.cli.output.terminal import echo, print_json, width
from grn.client import queue
from grn.errors import DaemonNotRunning, MachineError, UsageError
from grn.model.text import counted, harmless
from grn.model.units import parse_time, show_size, show_time
from grn.proc.spawn import own_module
from grn.sites import SiteConfig

CHECK_S = 60.0


@group(no_args_is_help=False)  # else click raises its help as an error
def site() -> None:
    """Add other machines to your queue: hosts by ssh, a Slurm or a Ray cluster.

    Jobs then run wherever they can start first, or where `--at` says. Nothing is installed as
    root, and no port is opened.
    """


@site.command()
@click.argument("name")
@click.argument("hosts", nargs=-1)
@flag("--ssh", "kind", flag_value="ssh", help="Reach HOSTS by ssh.")
@flag(
    "--slurm",
    "kind",
    flag_value="slurm",
    help="Use the Slurm cluster whose sbatch is on this machine.",
)
@flag(
    "--ray",
    "address",
    metavar="ADDRESS",
    help="Use the Ray cluster at ADDRESS: auto, or host:port.",
)
@flag(
    "--python", default="", metavar="PATH", help="Python interpreter there that has grn installed."
)
@flag("--install", is_flag=True, help="Install grn there, in its own venv.")
@flag("--gpus", type=click.IntRange(1), default=1, metavar="N", help="GPUs of each pilot.")
@flag("--pilots", type=click.IntRange(1), default=4, metavar="N",
              help="At most N pilots at a time.")  # fmt: skip
@flag("--time", "time_text", default="24h", metavar="TIME", help="Time limit of each pilot.")
@flag("--idle", "idle_text", default="5m", metavar="TIME",
              help="End a pilot after this time without work.")  # fmt: skip
@flag("--partition", default="", help="Slurm partition.")
@flag("--option", "options", multiple=True, metavar="WORD",
              help="Option for ssh or sbatch, or a Ray resource (repeatable).")  # fmt: skip
@flag("--env", "env", multiple=True, metavar="K=V",
              help="Environment variable for the agents there (repeatable).")  # fmt: skip
@flag("--no-check", is_flag=True, help="Add the site without checking that it answers.")
def add(
    name: str,
    hosts: tuple[str, ...],
    kind: str | None,
    address: str | None,
    install: bool,
    time_text: str,
    idle_text: str,
    env: tuple[str, ...],
    no_check: bool,
    **chosen: Any,
) -> int:
    """Add a site to your settings, after a check of each of its hosts."""
    if (kind is None) == (address is None):
        raise UsageError("say what kind of site it is.", "One of --ssh, --slurm and --ray.")
    pairs = dict(pair.split("=", 1) for pair in env if "=" in pair)
    if len(pairs) != len(env):
        raise UsageError("--env does not set a variable.", "Write --env NAME=VALUE.")
    table_of = {
        **{key: list(value) if isinstance(value, tuple) else value
           for key, value in chosen.items() if value},
        (kind or "ray"): {"ssh": list(hosts), "slurm": True}.get(kind or "", address),
        "time": f"{parse_time(time_text):.0f}s", "idle": f"{parse_time(idle_text):.0f}s",
        "env": pairs,
    }  # fmt: skip
    if kind != "ssh" and hosts:
        raise UsageError(f"{' '.join(hosts)}: only --ssh takes hosts.")
    (made,) = sites.read({name: table_of})
    others = {node for one in configured() if one.name != name for node in _names(one)}
    if taken := (_names(made) | {name}) & others:
        raise UsageError(f"{min(taken)} is a name of another site.", "See `grn sites`.")
    if install:
        made = dataclasses.replace(made, python=site_install.PYTHON)
        site_install.install(made)
    if not no_check and not _check(made, is_new=True):
        raise MachineError(f"the site {name} was not added.", "Mend this, or use --no-check.")
    sites.add(made)
    _reload()
    click.echo(f"{name} added: {counted(len(made.hosts), 'host') if hosts else made.kind}.")
    return 0


@site.command()
@click.argument("name")
def rm(name: str) -> int:
    """Remove a site from your settings; jobs that run there continue and still report."""
    _named(name)
    sites.remove(name)
    jobs = sum(row["jobs"] for row in _reload() if row["site"] == name)
    left = f" {counted(jobs, 'job')} of yours may still run there: see `grn ls`." if jobs else ""
    click.echo(f"{name} removed.{left}")
    return 0


@site.command()
@click.argument("name")
def check(name: str) -> int:
    """Check each host of a site: grn and its version, GPUs, free disk."""
    return 0 if _check(_named(name)) else 1


@site.command()
@click.argument("name")
def update(name: str) -> int:
    """Install this version of grn on the hosts of a site; running jobs continue."""
    made = _named(name)
    site_install.install(made)
    if not made.python:
        sites.add(dataclasses.replace(made, python=site_install.PYTHON))
    _reload()
    return 0 if _check(_named(name)) else 1


@site.command("ls")
@json_flag
def list_sites(as_json: bool) -> int:
    """Show sites and their nodes."""
    return show_sites(as_json)


@command("sites")
@json_flag
def all_sites(as_json: bool) -> int:
    """Show sites and their nodes: GPUs, jobs, and when each was last heard of."""
    return show_sites(as_json)


def show_sites(as_json: bool) -> int:
    """Print the nodes as the queue sees them."""
    known = configured()
    rows: list[dict[str, Any]] = queue.ask({"op": "sites"})["nodes"] if known else []
    if as_json:
        return print_json({"schema": 1, "nodes": rows})
    if not known:
        click.echo("no sites: jobs run on this machine. `grn site add` adds others.", err=True)
        return 0
    now = time.time()
    cells = [
        [
            row["site"], row["node"], row["state"], _gpus(row["gpu_bytes"]), str(row["jobs"]),
            str(row["waiting"]), _ago(row["heard_at"], now), row["trouble"],
        ]
        for row in rows
    ]  # fmt: skip
    heads = ("SITE", "NODE", "STATE", "GPUS", "JOBS", "ASKED", "HEARD", "TROUBLE")
    echo(table(heads, cells, width(), elastic=("TROUBLE",), spare=("ASKED", "HEARD")))
    return 0


def configured() -> list[SiteConfig]:
    """Return the sites of the settings file."""
    return sites.read(settings.load().sites)


def _named(name: str) -> SiteConfig:
    for one in configured():
        if one.name == name:
            return one
    raise UsageError(f"there is no site {name}.", "See `grn sites`.")


def _names(one: SiteConfig) -> set[str]:
    return {one.name, *map(sites.node_name, one.hosts)}


def _reload() -> list[dict[str, Any]]:
    """Tell a running queue that the settings have changed; return its nodes."""
    try:
        return list(queue.ask({"op": "sites", "reload": True}, may_start=False)["nodes"])
    except DaemonNotRunning:
        return []  # the next queue reads them


def _gpus(sizes: Sequence[int]) -> str:
    return f"{len(sizes)} x {show_size(max(sizes))}" if sizes else "?"


def _ago(at: float | None, now: float) -> str:
    return "never" if at is None else f"{show_time(max(0.0, now - at))} ago"


# --- a look at hosts, and grn on them --------------------------------------------------------


def _check(one: SiteConfig, *, is_new: bool = False) -> bool:
    """Print what is found at a site; True when all of it can be used."""
    if one.kind != "ssh":
        return _check_engine(one)
    update = f"`grn site update {one.name}` installs this one"
    remedy = sites.ADD_AGAIN if is_new else update
    found = [_check_host(one, host, remedy) for host in one.hosts]  # look at all of them
    return all(found)


def _check_engine(one: SiteConfig) -> bool:
    """Let the adapter of a cluster's engine tell what it finds, in words."""
    argv = [*own_module(f"grn.queue.sites.pilots.{one.kind}"), "--check", "--site", one.to_json()]
    status, out, err = site_install.run(argv, CHECK_S)
    said = harmless((out if status == 0 else err).decode(errors="replace").strip())
    click.echo(f"{one.name}: {said.splitlines()[-1] if said else f'status {status}'}",
               err=status != 0)  # fmt: skip
    return status == 0


def _check_host(one: SiteConfig, host: str, remedy: str) -> bool:
    words = [one.python, "-P", "-m", "grn.cli.main"] if one.python else ["grn"]
    command = [*words, "agent", "--check"]
    if one.env:
        command = ["env", *(f"{key}={value}" for key, value in one.env.items()), *command]
    status, out, err = site_install.run(sites.ssh_command(one, host, command), CHECK_S)
    found = _found(out)
    if found is None:
        return _complain(host, _why_not(status, err))
    version = str(found.get("version"))
    if version != __version__:
        return _complain(
            host, f"grn {harmless(version)} is there and {__version__} here", remedy
        )  # fmt: skip
    sizes = [size for size in found.get("gpu_bytes", []) if isinstance(size, int)]
    trouble = harmless(str(found.get("trouble", "")))
    if not sizes:
        return _complain(host, trouble or "there is no GPU")
    free = found.get("free_bytes")
    skew = float(found.get("at", 0)) - time.time()
    notes = [f"{show_size(free)} free on disk" if isinstance(free, int) else ""]
    notes.append(f"its clock is off by {show_time(abs(skew))}" if abs(skew) > 60 else "")
    click.echo(f"{host}: {_gpus(sizes)}, {', '.join(filter(None, notes))}")
    return True


def _found(out: bytes) -> dict[str, Any] | None:
    """Read the last line of a check; what a login shell prints comes before it."""
    for line in reversed(out.decode(errors="replace").splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None


def _why_not(status: int | None, err: bytes) -> str:
    said = [harmless(line) for line in err.decode(errors="replace").splitlines() if line.strip()]
    if status is None:
        return f"no answer within {CHECK_S:.0f} s"
    if fault := sites.missing_grn(status, said):
        return fault
    return said[-1] if said else f"ssh ended with status {status}"


def _complain(host: str, text: str, hint: str = "") -> bool:
    click.echo(f"{host}: {text}{f' ({hint})' if hint else ''}", err=True)
    return False
