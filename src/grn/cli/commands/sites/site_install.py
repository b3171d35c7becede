"""Install this version of grn on the hosts of a site, into a venv of its own."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution
from pathlib import Path

import click

import grn
from grn import sites
from grn.errors import MachineError, UsageError
from grn.model.text import harmless
from grn.sites import SiteConfig

INSTALL_S = 900.0
DISTRIBUTION = "gpu-resource-negotiator"
FOLDER = "~/.local/share/grn"
PYTHON = f"{FOLDER}/venv/bin/python"
_WHEEL = b"Wheel-Version: 1.0\nGenerator: grn\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_PARTS = ("grn", "glb", "gpu_task_scheduler", "hydra_plugins")  # what a wheel of grn holds


def install(site: SiteConfig) -> None:
    """Install on each host; the dependencies come from the package index of that host.

    Into a venv that is made for it, or where the site's own interpreter puts packages.
    """
    if site.kind != "ssh":
        raise UsageError("only hosts by ssh can be installed on.", "See docs/sites.md.")
    name, data = own_wheel()
    is_ours = site.python in ("", PYTHON)
    python = '"$d/venv/bin/python"' if is_ours else sites.quoted(site.python)
    pip = f"{python} -m pip install -q --disable-pip-version-check"
    line = "; ".join([
        f'set -e; d={FOLDER}; mkdir -p "$d"; w="$d/{name}"; cat > "$w"',
        f'[ -x {python} ] || python3 -m venv "$d/venv"' if is_ours else ":",
        f'{pip} "$w" >&2; {pip} --force-reinstall --no-deps "$w" >&2; rm -f "$w"',
    ])  # fmt: skip
    for host in site.hosts:
        where = f"{FOLDER}/venv" if is_ours else site.python
        click.echo(f"{host}: installing grn {grn.__version__} into {where}")
        command = sites.ssh_command(site, host, ["sh", "-c", line])
        status, _, err = run(command, INSTALL_S, data)
        if status != 0:
            said = [harmless(text) for text in err.decode(errors="replace").splitlines() if text]
            late = f"no end within {INSTALL_S:.0f} s"
            why = said[-1] if said else late if status is None else f"status {status}"
            raise MachineError(f"grn could not be installed on {host}: {why}")


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
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise MachineError(
            "this grn was not installed, so it cannot be installed elsewhere.",
            "Install it with pip first.",
        ) from error
    version, stem = distribution.version, DISTRIBUTION.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    entries = {
        f"{info}/METADATA": (distribution.read_text("METADATA") or "").encode(),
        f"{info}/entry_points.txt": (distribution.read_text("entry_points.txt") or "").encode(),
        f"{info}/WHEEL": _WHEEL,
        **dict(_files(distribution)),
    }
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in entries.items())
    entries[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in entries.items():
            wheel.writestr(name, data)
    return f"{stem}-{version}-py3-none-any.whl", buffer.getvalue()


def _files(distribution: Distribution) -> Iterator[tuple[str, bytes]]:
    """Yield the files of this grn: those that were installed, or the sources it runs from."""
    installed = [path for path in distribution.files or () if path.parts[0] in _PARTS]
    if installed:
        found = [(str(path), Path(str(path.locate()))) for path in installed]
    else:
        top = Path(grn.__file__).resolve().parents[1]
        paths = [path for part in _PARTS for path in sorted((top / part).rglob("*"))]
        found = [(str(path.relative_to(top)), path) for path in paths]
    for name, path in found:
        if path.is_file() and "__pycache__" not in path.parts:
            yield name, path.read_bytes()


def _digest(data: bytes) -> str:
    raw = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={raw.decode()}"
