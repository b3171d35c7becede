"""What a user's stopwatch shows: installed commands from the prompt, jobs that stamp themselves.

The peers are `xargs` and a spawn loop in C, which keep nothing. Each job writes when its first and
its last instruction ran. All rounds are interleaved; the queue's state is on the disk of the
temporary folder, synced as in use.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import rig

SLOTS, COMMANDS, ROUNDS = 4, 1000, 3
GAPS = 150
STARTS = 15
MANY = 100_000
IDLE_S = 10.0
REST_S = 6.0  # shims without work leave after 2 s, the negotiator samples for 5 s after a job
SLOWER = 1.25  # medians of two runs of the same thing differ by so much on a noisy machine
BIN = Path(sys.executable).parent
GRN, SCHEDULER = str(BIN / "grn"), str(BIN / "simple_gpu_scheduler")

STAMP_C = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
int main(int argc, char **argv) {  /* stamp FILE [MICROSECONDS]: sleep, append "start end" */
  long long began = now();
  char line[64];
  int fd = open(argv[1], O_WRONLY | O_APPEND | O_CREAT, 0600);
  if (argc > 2) usleep(atoi(argv[2]));
  int length = snprintf(line, sizeof line, "%lld %lld\n", began, now());
  return write(fd, line, length) != length;
}
"""

SPAWN_C = r"""
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
extern char **environ;
int main(int argc, char **argv) {  /* spawn SLOTS COUNT CMD...: so many at once, so many in all */
  int slots = atoi(argv[1]), left = atoi(argv[2]), busy = 0;
  pid_t pid;
  while (left || busy) {
    for (; left && busy < slots; left--, busy++)
      if (posix_spawn(&pid, argv[3], 0, 0, argv + 3, environ)) return 1;
    if (wait(0) > 0) busy--;
  }
  return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Tools:
    """The compiled peers, and the file that jobs stamp."""

    folder: Path

    @property
    def stamp(self) -> str:
        return str(self.folder / "stamp")

    @property
    def spawn(self) -> str:
        return str(self.folder / "spawn")

    @property
    def stamps(self) -> Path:
        return self.folder / "stamps"

    def spans(self) -> list[tuple[int, int]]:
        """Return when each job began and ended, in ns, and forget them."""
        text = self.stamps.read_text()
        self.stamps.unlink()
        return sorted(
            (int(began), int(ended)) for began, ended in map(str.split, text.splitlines())
        )


def measure() -> list[rig.Figure]:
    """Measure throughput and commands on four slots, then gaps, long queues and rest on one."""
    with _tools() as tools:
        with rig.negotiator(f"virtual:{SLOTS}x512MiB"), _queue():
            figures = _throughput(tools) + _commands(tools)
        with rig.negotiator("virtual:1x512MiB") as process, _queue():
            figures += _idle(process.pid)
            gap_ms, found = _gaps(tools)
            figures += found + _long_queue(tools, gap_ms)
    return figures


# --- many jobs -------------------------------------------------------------------------------


def _throughput(tools: Tools) -> list[rig.Figure]:
    """Run no-op jobs on four slots, from the prompt to the end of the last command."""
    line = f"{tools.stamp} {tools.stamps}"
    lines = f"{line}\n" * COMMANDS
    batch = tools.folder / "lines.txt"
    batch.write_text(lines)
    slots = [str(slot) for slot in range(SLOTS)]

    def by_queue() -> None:
        _run([GRN, "submit", "--exclusive", "-q", "--lines", "-"], lines)
        _run([GRN, "wait", "--all", "-q"])

    cases: dict[str, Callable[[], None]] = {
        "spawn": lambda: _run([tools.spawn, str(SLOTS), str(COMMANDS), "/bin/sh", "-c", line]),
        "xargs": lambda: _run(["xargs", f"-P{SLOTS}", "-I{}", "sh", "-c", "{}"], lines),
        "grn submit --lines and wait": by_queue,
        "grn batch": lambda: _run([GRN, "batch", "--exclusive", "-q", str(batch)]),
        "simple_gpu_scheduler": lambda: _run([SCHEDULER, "--gpus", *slots], lines),
    }
    by_queue()  # the type is known after this
    tools.spans()
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            found[name].append(time.perf_counter() - began)
            if len(tools.spans()) != COMMANDS:
                raise SystemExit(f"{name} did not run each job once")
    medians = {name: statistics.median(times) for name, times in found.items()}
    spawn, xargs = medians.pop("spawn"), medians.pop("xargs")
    what = f"{COMMANDS} jobs on {SLOTS} slots"
    most = {"simple_gpu_scheduler": 1.2}
    return [
        rig.Figure(f"{what}: xargs, against a C spawn loop", xargs, spawn, "s", None),
        *(
            rig.Figure(f"{what}: {name}, against xargs", took, xargs, "s", most.get(name, 2.0))
            for name, took in medians.items()
        ),
    ]


def _gaps(tools: Tools) -> tuple[float, list[rig.Figure]]:
    """From the last instruction of a job to the first of the next, on one slot."""
    found: dict[str, list[float]] = {"spawn": [], "xargs": [], "grn": [], "grn, 40 ms": []}
    words = [tools.stamp, str(tools.stamps)]
    lines = f"{' '.join(words)}\n" * GAPS
    for _ in range(ROUNDS):
        _run([tools.spawn, "1", str(GAPS), *words])
        found["spawn"].append(_gap_ms(tools))
        _run(["xargs", "-P1", "-n1", *words[:1]], f"{tools.stamps}\n" * GAPS)
        found["xargs"].append(_gap_ms(tools))
        _run([GRN, "submit", "-q", "--exclusive", "--lines", "-"], lines)
        _run([GRN, "wait", "--all", "-q"])
        found["grn"].append(_gap_ms(tools))
        _run([GRN, "wait", "-q", *_submitted(GAPS // 3, *words, "40000")])
        found["grn, 40 ms"].append(_gap_ms(tools))
    medians = {name: statistics.median(times) for name, times in found.items()}
    floor = medians["spawn"]
    figures = [rig.Figure("end to next start: xargs, over a C spawn loop", medians["xargs"], floor,
                          "ms", None)]  # fmt: skip
    for name, what in (("grn", "no-op jobs"), ("grn, 40 ms", "jobs of 40 ms")):
        text = f"end to next start: {what}, over the spawn loop's {floor:.2f} ms"
        figures.append(rig.Figure(text, medians[name] - floor, 2.5, "ms"))
    return medians["grn, 40 ms"], figures


def _gap_ms(tools: Tools) -> float:
    spans = tools.spans()
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
    return statistics.median(gaps) / 1e6


# --- single commands -------------------------------------------------------------------------


def _commands(tools: Tools) -> list[rig.Figure]:
    """Time whole commands against bare Python, and the way of a job to its first instruction."""
    _run([GRN, "submit", "-q", "--", "true"])
    _run([GRN, "wait", "--all", "-q"])
    job = _said([GRN, "ls", "-a", "-n", "1", "-q"]).split()[0]
    complete = {"_GRN_COMPLETE": "bash_complete", "COMP_WORDS": "grn sub", "COMP_CWORD": "1"}
    cases: dict[str, tuple[list[str], Mapping[str, str], float]] = {
        "submit": ([GRN, "submit", "--", tools.stamp, str(tools.stamps)], {}, 2.5),
        "ls": ([GRN, "ls"], {}, 4.0),
        "ps": ([GRN, "ps"], {}, 4.0),
        "gpus": ([GRN, "gpus"], {}, 4.0),
        "why": ([GRN, "why", job], {}, 4.0),
        "logs": ([GRN, "logs", job], {}, 4.0),
        "exec -- true": ([GRN, "exec", "--", "true"], {}, 4.0),
        "Tab completion": ([GRN], complete, 4.0),
    }
    took: dict[str, list[float]] = {name: [] for name in ("bare", "first", *cases)}
    for _ in range(STARTS):
        took["bare"].append(_took_ms([sys.executable, "-c", "pass"]))
        for name, (command, variables, _) in cases.items():
            began = time.monotonic_ns()
            took[name].append(_took_ms(command, variables))
            if name == "submit":
                _run([GRN, "wait", "--all", "-q"])
                took["first"].append((tools.spans()[0][0] - began) / 1e6)
    medians = {name: statistics.median(times) for name, times in took.items()}
    bare = medians["bare"]
    figures = [
        rig.Figure(f"grn {name}, against bare Python", medians[name], bare, "ms", most)
        for name, (_, _, most) in cases.items()
    ]
    text = "grn submit to the job's first instruction"
    return [*figures, rig.Figure(text, medians["first"], bare, "ms", 2.5)]


# --- very many jobs --------------------------------------------------------------------------


def _long_queue(tools: Tools, gap_ms: float) -> list[rig.Figure]:
    """Submit very many jobs by lines and as an array; restart with them; run others before them."""
    _run([GRN, "drain"])
    submit = [GRN, "submit", "-q", "--exclusive"]
    lines_s = _timed(lambda: _run([*submit, "--lines", "-"], "true\n" * MANY))
    resident_mb = _resident_mb(_queue_pid())
    _run([GRN, "queue", "stop"])
    restart_s = _timed(lambda: _said([GRN, "ls", "-n", "1"]))
    restarted_mb = _resident_mb(_queue_pid())
    array_s = _timed(lambda: _run([*submit, "--array", f"1-{MANY}", "--", "true"]))
    ids = _submitted(GAPS // 3, tools.stamp, str(tools.stamps), "40000")
    _run([GRN, "drain", "--off"])
    _run([GRN, "wait", "-q", *ids])
    _run([GRN, "drain"])
    return [
        rig.Figure(f"{MANY} lines accepted", lines_s, 2.5, "s"),
        rig.Figure(f"queue process with {MANY} lines", resident_mb, 150.0, "MB"),
        rig.Figure("the same after a restart", restarted_mb, 150.0, "MB"),
        rig.Figure(f"restart with {MANY} lines, to the first answer", restart_s, 1.5, "s"),
        rig.Figure(f"array of {MANY} accepted", array_s, 0.1, "s"),
        rig.Figure(f"end to next start with {2 * MANY} queued, against none", _gap_ms(tools),
                   gap_ms, "ms", SLOWER),
    ]  # fmt: skip


def _submitted(count: int, *command: str) -> list[str]:
    """Submit a command several times, before all others; return the ids."""
    options = ["--exclusive", "--priority", "10", "--array", f"1-{count}"]
    return _said([GRN, "submit", "-q", *options, "--", *command]).split()


# --- at rest ---------------------------------------------------------------------------------


def _idle(negotiator: int) -> list[rig.Figure]:
    """Count processor time and wake-ups of both daemons and their helpers while nothing runs."""
    _run([GRN, "submit", "-q", "--", "true"])
    _run([GRN, "wait", "--all", "-q"])
    pids = _tree(negotiator) + _tree(_queue_pid())
    time.sleep(REST_S)
    pids = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    resting_s, woken = _spent(pids, IDLE_S)
    _run([GRN, "submit", "-q", "--", "sleep", str(IDLE_S + 5)])
    time.sleep(2.0)
    running_s, _ = _spent(pids, IDLE_S)
    _run([GRN, "wait", "--all", "-q"])
    return [
        rig.Figure("negotiator and queue, nothing runs", 100 * resting_s / IDLE_S, 0.3, "%"),
        rig.Figure(f"wake-ups in {IDLE_S:.0f} s, nothing runs", woken, 1.0, "", 0.0),
        rig.Figure("negotiator and queue, one job runs", 100 * running_s / IDLE_S, 0.3, "%", None),
    ]


def _tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in _tree(int(child)))]


def _spent(pids: Sequence[int], for_s: float) -> tuple[float, int]:
    """Return the processor time in s and the wake-ups of processes during some seconds."""
    before = [_counters(pid) for pid in pids]
    time.sleep(for_s)
    after = [_counters(pid) for pid in pids]
    spent = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]
    return sum(one for one, _ in spent) / 1e9, sum(one for _, one in spent)


def _counters(pid: int) -> tuple[int, int]:
    """Return the processor time in ns and the number of times the threads of a process slept."""
    spent = switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        spent += int((task / "schedstat").read_text().split()[0])
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                switches += int(line.split()[1])
    return spent, switches


# --- small tools -----------------------------------------------------------------------------


@contextlib.contextmanager
def _tools() -> Iterator[Tools]:
    with tempfile.TemporaryDirectory(prefix="grn-bench-") as folder:
        tools = Tools(Path(folder))
        for path, code in ((tools.stamp, STAMP_C), (tools.spawn, SPAWN_C)):
            compile_it = ["gcc", "-O2", "-x", "c", "-o", path, "-"]
            subprocess.run(compile_it, input=code, text=True, check=True)
        yield tools


@contextlib.contextmanager
def _queue() -> Iterator[None]:
    """End the queue that the first command starts."""
    try:
        yield
    finally:
        subprocess.run([GRN, "queue", "stop"], capture_output=True)


def _queue_pid() -> int:
    return int(json.loads(_said([GRN, "queue", "--json"]))["pid"])


def _resident_mb(pid: int) -> float:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1000


def _run(command: Sequence[str], given: str = "") -> None:
    """Run a command to its end, however it reports its success."""
    ended = subprocess.run(command, input=given, text=True, capture_output=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed: {ended.stderr}")


def _said(command: Sequence[str]) -> str:
    return subprocess.run(command, text=True, check=True, capture_output=True).stdout


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _took_ms(command: Sequence[str], variables: Mapping[str, str] | None = None) -> float:
    environment = {**os.environ, **(variables or {})}
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    rig.main("stopwatch", measure)
