"""`grn doctor`: look at this machine and say in plain lines what is fine and what to do."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import click
from click.shell_completion import get_completion_class

from grn import __version__, paths
from grn.cli.app import grn as grn_group
from grn.cli.help import command
from grn.cli.options import json_flag
from grn.cli.output.style import paint
from grn.cli.output.terminal import echo, print_json
from grn.client import negotiator, queue
from grn.errors import BadSetting, DaemonNotRunning, GrnError
from grn.model.text import counted
from grn.model.units import show_size
from grn.proc import pidfd
from grn.protocol.negotiator_rows import Status
from grn.protocol.queue_rows import QueueFacts
from grn.protocol.rows import read

SHELLS = ["bash", "zsh", "fish"]
FINE, NOTE, BAD = "ok", "note", "BAD"
_STYLES = {FINE: "good", NOTE: "waiting", BAD: "error"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    verdict: str
    text: str


@command()
@json_flag
def doctor(as_json: bool) -> int:
    """Check Python, driver, settings, folders and the negotiator; exit 1 if something is bad."""
    findings = list(_examine())
    if as_json:
        rows = [{"verdict": one.verdict, "text": one.text} for one in findings]
        print_json({"schema": 1, "findings": rows})
    else:
        for one in findings:
            echo(f"{paint(f'{one.verdict:4}', _STYLES[one.verdict])}  {one.text}")
        echo(_summary(findings))
    return 1 if any(one.verdict == BAD for one in findings) else 0


def _summary(findings: list[Finding]) -> str:
    """Count the findings in one line."""
    verdicts = [one.verdict for one in findings]
    bad, notes = verdicts.count(BAD), verdicts.count(NOTE)
    rest = f"{counted(verdicts.count(FINE), 'check')} passed"
    rest += f", {counted(notes, 'note')}" if notes else ""
    if bad:
        return f"\n{paint(counted(bad, 'problem'), 'error')} to solve; {rest}"
    return f"\n{paint('no problems', 'good')}; {rest}"


@command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def completion(shell: str | None) -> int:
    """Print the completion script for SHELL.

    The examples show where each shell reads it.
    """
    kind = get_completion_class(shell) if shell else None
    if kind is None:
        raise BadSetting("say which shell you use.", "Run `grn completion bash`, `zsh` or `fish`.")
    click.echo(kind(grn_group, {}, "grn", "_GRN_COMPLETE").source())
    return 0


def _examine() -> Iterator[Finding]:
    yield Finding(FINE, f"grn {__version__} on Python {platform.python_version()}")
    yield _kernel()
    yield _driver()
    yield from _settings()
    yield _folder("runtime folder", paths.runtime_dir())
    yield from _whose(paths.runtime_dir())
    yield _folder("state folder", paths.state_dir())
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        text = f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} restricts `grn start`"
        yield Finding(NOTE, text)
    yield from _negotiator()
    yield from _queue()
    yield _memory_limit()


def _memory_limit() -> Finding:
    from grn.proc import memory_limit

    way = memory_limit.here()
    if way.why_not:
        text = f"`--ram` is reserved but does not limit a job: {way.why_not}"
        return Finding(NOTE, text)
    return Finding(FINE, f"`--ram` limits a job, {way.describe()}")


def _kernel() -> Finding:
    trouble = pidfd.why_unusable()
    if trouble:
        return Finding(BAD, f"{trouble}: grn needs Linux 5.3 or later")
    return Finding(FINE, f"Linux {platform.release()}")


def _driver() -> Finding:
    if importlib.util.find_spec("pynvml") is None:
        return Finding(BAD, "nvidia-ml-py is missing: pip install nvidia-ml-py")
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        if _has_virtual_gpus():
            return Finding(FINE, "no NVIDIA driver here; the negotiator has virtual GPUs")
        text = "no NVIDIA driver here; `grn start --virtual 2x2GiB` makes virtual GPUs"
        return Finding(NOTE, text)
    return Finding(FINE, "the NVIDIA driver library is there")


def _has_virtual_gpus() -> bool:
    try:
        gpus = negotiator.ask_once({"op": "status"})["status"]["gpus"]
    except GrnError:
        return False
    return any(gpu.get("kind") == "virtual" for gpu in gpus)


def _settings() -> Iterator[Finding]:
    from grn import settings

    path = paths.settings_file()
    try:
        settings.load()
    except GrnError as error:
        yield Finding(BAD, f"{error.message} {error.hint}".strip())
        return
    yield Finding(FINE, f"settings are good ({path if os.path.exists(path) else 'all defaults'})")


def _folder(what: str, path: str) -> Finding:
    probe = path
    while not os.path.exists(probe) and probe != "/":
        probe = os.path.dirname(probe)
    if not os.access(probe, os.W_OK | os.X_OK):
        return Finding(BAD, f"{what} {path} cannot be written; set GRN_RUNTIME_DIR/GRN_STATE_DIR")
    free_bytes = shutil.disk_usage(probe).free
    if free_bytes < 16 << 20:
        return Finding(BAD, f"{what} {path}: only {show_size(free_bytes)} left on its disk")
    return Finding(FINE, f"{what} {path}")


def _whose(folder: str) -> Iterator[Finding]:
    trouble, other = paths.distrust(folder), paths.owner_apart(folder)
    if trouble:
        yield Finding(BAD, f"no negotiator of yours can start here: {trouble} Set GRN_RUNTIME_DIR")
    elif other:
        text = f"{folder} belongs to user {other}, who can remove the negotiator's lock and socket"
        yield Finding(NOTE, f"{text}: let root own it")


def _queue() -> Iterator[Finding]:
    try:
        said = read(QueueFacts, queue.ask({"op": "ping"}, may_start=False))
    except DaemonNotRunning:
        yield Finding(NOTE, "no queue of yours runs; `grn submit` starts one")
        return
    except GrnError as error:
        yield Finding(BAD, f"{error.message} {error.hint}".strip())
        return
    yield Finding(FINE, f"queue {said.version} answers (pid {said.pid})")
    if said.trouble:
        yield Finding(BAD, said.trouble)


def _negotiator() -> Iterator[Finding]:
    try:
        status = read(Status, negotiator.status())
    except GrnError as error:
        yield Finding(NOTE, f"{error.message} {error.hint}".strip())
        return
    text = f"negotiator {status.version} answers (pid {status.pid})"
    jobs = f"{len(status.leases)} running, {len(status.waiting)} waiting"
    yield Finding(FINE, f"{text}: {counted(len(status.gpus), 'GPU')}, {jobs}")
    if status.version != __version__:
        yield Finding(NOTE, f"this client is {__version__}: restart the negotiator when convenient")
    if status.trouble:
        yield Finding(BAD, status.trouble)
    if told := status.starts_told:
        text = f"{status.starts_inside} of the last {counted(told, 'forecast start')}"
        yield Finding(FINE, f"{text} fell into the range that was told")
    if dropped := status.types_dropped:
        text = f"{dropped} job types were forgotten: there were too many of a user"
        yield Finding(NOTE, f"{text}; use fewer names for --type, or they are measured again")
    for gpu in status.gpus:
        if gpu.health != "ok":
            yield Finding(BAD, f"GPU {gpu.index} is {gpu.health}: it gets no new job")
