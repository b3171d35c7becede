"""`grn service`: keep the queue through logout and reboot, by systemd where it is there."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess

import click

from grn import paths
from grn.cli.help import command
from grn.client import queue
from grn.errors import DaemonNotRunning, MachineError
from grn.proc.spawn import own_module

UNIT_NAME = "grn-queue.service"
UNIT = """\
[Unit]
Description=grn queue: submitted GPU jobs of this user
After=default.target

[Service]
ExecStart={command}
{environment}# Ending the queue must not end its jobs: they have shims of their own.
KillMode=process
Restart=always
RestartSec=1

[Install]
WantedBy=default.target
"""
KEPT = ("GRN_RUNTIME_DIR", "GRN_STATE_DIR", "GRN_CONFIG", "GRN_GPUS")


@command()
@click.argument("what", type=click.Choice(["install", "uninstall", "show"]))
def service(what: str) -> int:
    """Keep your queue running through logout and reboot.

    install writes and enables a systemd user unit; show prints it. Without systemd, a line for
    `crontab -e` is printed instead. Jobs that were running when the machine went down are marked
    as interrupted, and run again if they were submitted with --requeue.
    """
    if what == "show":
        click.echo(unit_text(), nl=False)
        return 0
    if what == "uninstall":
        return _uninstall()
    if not _has_systemd():
        click.echo("systemd does not answer for this user. Put this line into `crontab -e`:\n")
        click.echo(cron_line())
        return 1
    return _install()


def unit_text() -> str:
    """Return the unit file for this installation and these folders."""
    lines = [f"Environment={_unit_word(one)}\n" for one in _kept_variables()]
    command = " ".join(map(_unit_word, own_module("grn.queue")))
    return UNIT.format(command=command, environment="".join(lines))


def cron_line() -> str:
    """Return the line that starts the queue after a reboot without systemd."""
    log = os.path.join(paths.state_dir(), "queue.log")
    words = [*_kept_variables(), *own_module("grn.queue"), "--log", log, log]
    *command, log = [shlex.quote(word).replace("%", r"\%") for word in words]
    return f"@reboot env {' '.join(command)} >> {log} 2>&1"


def _kept_variables() -> list[str]:
    return [f"{name}={os.environ[name]}" for name in KEPT if os.environ.get(name)]


def _unit_word(word: str) -> str:
    """Spell a word for a unit file: in quotes if needed, and safe from what systemd replaces."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return plain if shlex.quote(plain) == plain else f'"{plain}"'


def unit_path() -> str:
    """Return where systemd looks for a user's units."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "systemd", "user", UNIT_NAME)


def _install() -> int:
    path = unit_path()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(unit_text())
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}.") from error
    _systemctl("daemon-reload")
    with contextlib.suppress(DaemonNotRunning):
        queue.ask({"op": "stop"}, may_start=False)  # makes room for the one systemd starts
    _systemctl("enable", "--now", UNIT_NAME)
    click.echo(f"installed {path}")
    click.echo(
        "To keep it running when you are logged out, and to start it at boot before you log in,\n"
        "let the machine keep your services: `loginctl enable-linger` (once)."
    )
    return 0


def _uninstall() -> int:
    path = unit_path()
    if not os.path.exists(path):
        click.echo(f"{path} is not there", err=True)
        return 1
    if _has_systemd():
        _systemctl("disable", "--now", UNIT_NAME)
    os.unlink(path)
    click.echo(f"removed {path}; running jobs go on", err=True)
    return 0


def _has_systemd() -> bool:
    if shutil.which("systemctl") is None:
        return False
    asked = subprocess.run(
        ["systemctl", "--user", "show-environment"], capture_output=True, check=False
    )
    return asked.returncode == 0


def _systemctl(*words: str) -> None:
    asked = subprocess.run(["systemctl", "--user", *words], capture_output=True, check=False)
    if asked.returncode:
        raise MachineError(f"systemctl --user {' '.join(words)}: {asked.stderr.decode().strip()}")
