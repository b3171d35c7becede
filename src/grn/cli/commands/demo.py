"""`grn demo`: real jobs of different sizes on virtual GPUs, shown live; ends by itself.

Uses its own negotiator and folders, so it disturbs nothing and can run twice at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from grn.cli.commands.daemon import STOP_S
from grn.cli.help import command
from grn.cli.output import ps_text, render
from grn.cli.output.style import paint
from grn.cli.output.table import table
from grn.client import negotiator
from grn.client.daemons import negotiator_argv, start_aside
from grn.errors import GrnError, MachineError
from grn.paths import user_name
from grn.proc import spawn
from grn.protocol.negotiator_rows import ProfileRow, Status
from grn.protocol.rows import read, read_all

if TYPE_CHECKING:
    import subprocess

VIRTUAL = "2x512MiB"
PACE_S = 0.2
LIMIT_S = 90.0
BATCH = [
    ("pretrain", 2.0), ("tokenize", 1.0), ("finetune", 1.5), ("tokenize", 1.0), ("finetune", 1.5),
    ("pretrain", 2.0), ("tokenize", 1.0), ("finetune", 1.5), ("tokenize", 1.0), ("finetune", 1.5),
    ("tokenize", 1.0), ("finetune", 1.5), ("tokenize", 1.0), ("finetune", 1.5),
]  # fmt: skip
_STYLES = {"pretrain": "others", "tokenize": "waiting", "finetune": "running"}
_NEXT = """\
  grn start --background           share the GPUs of this machine
  grn submit -- python train.py    give it a job and walk away
  grn top                          watch it; `grn web` is a page"""


@dataclass(frozen=True, slots=True)
class Result:
    """Where and when a job of the demo ran."""

    name: str
    gpu: str
    began_at: float
    ended_at: float


@dataclass(slots=True)
class Demo:
    """The jobs of the demo and their results."""

    started: list[tuple[str, subprocess.Popen[str]]] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def collect(self) -> bool:
        """Collect ended jobs; True while some still run."""
        for name, process in list(self.started):
            if process.poll() is not None:
                out, err = process.communicate()
                self.started.remove((name, process))
                if process.returncode:
                    self.failed.append(f"{name}: exit status {process.returncode}\n{err}")
                else:
                    self.results.append(Result(name, **json.loads(out)))
        return bool(self.started)


@command()
def demo() -> int:
    """Watch 14 real jobs of three sizes share two virtual GPUs.

    Nobody says how much memory the jobs need: the first of each kind is measured, then the
    others run side by side where they fit. Takes under half a minute and needs no GPU.
    """
    console = Console(highlight=False)
    console.print(
        f"[bold]grn demo[/]: {len(BATCH)} jobs of 3 kinds on virtual GPUs ({VIRTUAL}).\n"
        "The first of each kind is measured, the rest is packed.\n"
    )
    demo = Demo()
    with _own_negotiator():
        began = time.monotonic()
        try:
            _start_jobs(demo)
            _watch(demo, console, began + LIMIT_S)
        finally:
            for _, process in demo.started:
                process.kill()
                process.wait()
        took_s = time.monotonic() - began
        learned = read_all(ProfileRow, negotiator.ask_all({"op": "profiles"})["profiles"])
    _tell(demo, console, learned, took_s)
    return 1 if demo.failed else 0


@contextlib.contextmanager
def _own_negotiator() -> Iterator[None]:
    """Run a negotiator in temporary folders; child processes find it by environment."""
    with tempfile.TemporaryDirectory(prefix="grn-demo-") as folder:
        for name in ("GRN_SOCKET", "CUDA_VISIBLE_DEVICES", "GRN_LEASE"):
            os.environ.pop(name, None)
        os.environ["GRN_RUNTIME_DIR"] = os.environ["GRN_STATE_DIR"] = folder
        os.environ["GRN_SAMPLE_S"] = "0.1"
        started = start_aside(
            "negotiator",
            negotiator_argv(f"virtual:{VIRTUAL}", debug=False, idle_exit_s=None),
            is_detached=True,
        )
        try:
            yield
        finally:
            started.end(STOP_S)


def _start_jobs(demo: Demo) -> None:
    for name, seconds in BATCH:
        argv = [sys.executable, "-m", "grn.cli.commands.demo_jobs", name, str(seconds)]
        process = spawn.child(
            argv, stdin=spawn.NO_INPUT, stdout=spawn.PIPE, stderr=spawn.PIPE, text=True
        )
        demo.started.append((name, process))


def _watch(demo: Demo, console: Console, deadline: float) -> None:
    with Live(console=console, refresh_per_second=10, transient=True) as live:
        while demo.collect():
            if time.monotonic() > deadline:
                raise MachineError("the demo took too long; is this machine very busy?")
            with contextlib.suppress(GrnError):
                status = read(Status, negotiator.status())
                if console.is_terminal:
                    live.update(_picture(demo, status, console.width))
            time.sleep(PACE_S)


def _picture(demo: Demo, status: Status, width: int) -> Group:
    counts = f"{len(demo.results)} done, {len(status.leases)} running, "
    counts += f"{len(status.waiting)} waiting"
    jobs = ps_text.ps(
        [ps_text.MachineRows("local", [*status.leases, *status.waiting])], user_name, width
    )
    return Group(
        Text.from_ansi(render.gpus(status.gpus, width)),
        Text(""),
        Text.from_ansi(jobs),
        Text(""),
        Text(counts, "bold"),
    )


def _tell(demo: Demo, console: Console, learned: list[ProfileRow], took_s: float) -> None:
    """Print where jobs ran, what was learned, and what sharing saved."""
    first = min((result.began_at for result in demo.results), default=0.0)
    rows = [
        (
            result.name,
            f"GPU {result.gpu}",
            f"{result.began_at - first:5.1f}s",
            f"{result.ended_at - first:5.1f}s",
            _span(result.began_at - first, result.ended_at - first, took_s),
        )
        for result in sorted(demo.results, key=lambda result: (result.gpu, result.began_at))
    ]
    head, *lines = table(("JOB", "WHERE", "FROM", "TO", "TIMELINE"), rows).splitlines() or [""]
    console.print("[bold]where each ran[/]")
    console.print(Text.from_ansi("\n".join([head, *map(_painted, lines)])))
    console.print("\n[bold]what was learned[/]")
    console.print(Text.from_ansi(render.profiles(learned)))
    spent = sum(result.ended_at - result.began_at for result in demo.results)
    console.print(
        f"\n[bold green]{len(demo.results)} of {len(BATCH)} jobs done in {took_s:.1f} s[/];\n"
        f"one at a time on each GPU they would take at least {spent / 2:.1f} s."
    )
    if not demo.failed:
        console.print(f"\n[bold]next[/]\n{_NEXT}")
    for failure in demo.failed:
        console.print(Text(f"failed: {failure}", "red"))


def _painted(line: str) -> str:
    """Paint the bar of a row in the style of its job."""
    text, bar, _ = line.partition("━")
    return text + paint(bar + line[len(text) + len(bar) :], _STYLES[line.split()[0]])


def _span(began_s: float, ended_s: float, whole_s: float, size: int = 32) -> str:
    start = round(size * began_s / whole_s)
    return " " * start + "━" * max(1, round(size * (ended_s - began_s) / whole_s))
