"""Install this version of grn on the hosts of a site, into a venv of its own."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

import grn
from grn import sites
from grn.errors import MachineError, UsageError
from grn.model.text import harmless
from grn.sites import SiteConfig

INSTALL_S = 900.0
FOLDER = "~/.local/share/grn"
PYTHON = f"{FOLDER}/venv/bin/python"
_WHEEL = b"""\
Wheel-Version: 1.0
Generator: grn
Root-Is-Purelib: true
Tag: py3-none-any
"""
_PARTS = ("grn", "glb", "gpu_task_scheduler", "hydra_plugins")  # what a wheel of grn holds


def install(site: SiteConfig) -> None:
    """Install on each host; the dependencies come from the package index of that host."""
    if site.kind != "ssh":
        raise UsageError("only hosts by ssh can be installed on.", "See docs/sites.md.")
    name, data = own_wheel()
    line = (
        f"set -e; d={FOLDER}; mkdir -p $d; cat > $d/{name}; [ -x $d/venv/bin/pip ] ||"
        " python3 -m venv $d/venv; "
        f"$d/venv/bin/pip install -q --disable-pip-version-check --force-reinstall $d/{name} >&2"
    )
    for host in site.hosts:
        click.echo(f"{host}: installing grn {grn.__version__} into {FOLDER}/venv")
        status, _, err = run(sites.ssh_command(site, host, ["sh", "-c", line]), INSTALL_S, data)
        if status != 0:
            said = [harmless(text) for text in err.decode(errors="replace").splitlines() if text]
            why = said[-1] if said else f"status {status}"
            raise MachineError(f"grn could not be installed on {host}: {why}.")


def run(
    command: Sequence[str], limit_s: float, data: bytes = b""
) -> tuple[int | None, bytes, bytes]:
    """Run a command to its end and return status and output; without a status it took too long."""
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        return None, late.stdout or b"", late.stderr or b""
    except OSError as error:
        raise MachineError(f"{command[0]} cannot be run: {error.strerror}.") from error
    return done.returncode, done.stdout, done.stderr


def own_wheel() -> tuple[str, bytes]:
    """Return the name and content of a wheel of the grn that runs."""
    distribution = importlib.metadata.distribution("grn")
    version = distribution.version
    info = f"grn-{version}.dist-info"
    metadata = distribution.read_text("METADATA")
    if metadata is None:
        raise MachineError("this grn does not know its own dependencies.", "Install it with pip.")
    entries = {f"{info}/METADATA": metadata.encode()}
    entries[f"{info}/entry_points.txt"] = (
        distribution.read_text("entry_points.txt") or ""
    ).encode()
    entries[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: grn\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    entries |= dict(_files())
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in entries.items())
    entries[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in entries.items():
            wheel.writestr(name, data)
    return f"grn-{version}-py3-none-any.whl", buffer.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    top = Path(grn.__file__).resolve().parents[1]
    for part in _PARTS:
        for path in sorted((top / part).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(top)), path.read_bytes()


def _digest(data: bytes) -> str:
    raw = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={raw.decode()}"
