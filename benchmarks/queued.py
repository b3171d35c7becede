"""The durable queue against a shell: many short commands, the gap between two, long queues.

The peer is `xargs -P4`, which keeps nothing. Rounds of both are interleaved; the queue's state is
on the disk of the temporary folder, synced as in use.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import rig

from grn.client import queue
from grn.client.submit import submit_many
from grn.errors import GrnError

SLOTS = 4
COMMANDS = 1000
ROUNDS = 3
GAPS = 60
PAUSE_S = 0.025
SHELL_SUBMITS = 15
CALLS = 100
SHORT, LONG = 100, 100_000


def measure() -> list[rig.Figure]:
    """Measure throughput, the gap between two jobs, submits, and the same with many queued."""
    with rig.negotiator(f"virtual:{SLOTS}x512MiB"), _queue():
        figures = [_throughput(), _gap(), _shell_submit(), _many_at_once(), _calls()]
        figures += _long_queue()
    return figures


@contextlib.contextmanager
def _queue() -> Iterator[None]:
    """Start the queue on first use; end it with all it has."""
    try:
        yield
    finally:
        with contextlib.suppress(GrnError):
            queue.ask({"op": "stop"}, may_start=False)
        _until(lambda: not _answers())


def _throughput() -> rig.Figure:
    """1,000 x `true` on 4 slots; each job has a GPU to itself, so there are 4 slots."""
    _run_all(8)  # the type is known after this
    ours, theirs = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        lines = "x\n" * COMMANDS
        subprocess.run(["xargs", f"-P{SLOTS}", "-n1", "true"], input=lines, text=True, check=True)
        theirs.append(time.perf_counter() - began)
        began = time.perf_counter()
        _run_all(COMMANDS)
        ours.append(time.perf_counter() - began)
    what = f"{COMMANDS} x true on {SLOTS} slots, against xargs -P{SLOTS}"
    return rig.Figure(what, statistics.median(ours), statistics.median(theirs), "s", 2.0)


def _calls() -> rig.Figure:
    """Trivial calls through joblib: workers that take call after call, or a job for each call."""
    took = {is_reusing: _took_calls(is_reusing) for is_reusing in (True, False)}
    what = f"{CALLS} joblib calls in workers, against an interpreter for each"
    return rig.Figure(what, took[True], took[False], "s", 0.5)


def _took_calls(is_reusing: bool) -> float:
    import joblib

    import grn.integrations.joblib  # noqa: F401  (registers the backend)

    options = {"n_jobs": SLOTS, "mem": "64MiB", "reuse_workers": is_reusing}
    with joblib.parallel_config("grn", **options):
        joblib.Parallel()(joblib.delayed(abs)(number) for number in range(SLOTS))
        began = time.perf_counter()
        joblib.Parallel()(joblib.delayed(abs)(number) for number in range(CALLS))
        return time.perf_counter() - began


def _gap() -> rig.Figure:
    bare_ms = _bare_start_s() * 1000
    ours_ms = _gap_ms() - bare_ms
    return rig.Figure("end of a job to start of the next, median", ours_ms, 5.0, "ms")


def _gap_ms() -> float:
    """From the end of one command to the start of the next, both told by the commands.

    The start of their interpreter is in it. They take unequal times: four interpreters that start
    at once on two cores would be measured instead of us.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "times")
        code = (
            "import os, sys, time; began = time.monotonic(); "
            "time.sleep(float(sys.argv[2])); "
            "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT); "
            "os.write(fd, f'{began} {time.monotonic()}\\n'.encode()); os._exit(0)"
        )
        draw = random.Random("gaps")
        argv = [sys.executable, "-S", "-E", "-c", code, log]
        all_argv = [[*argv, f"{draw.uniform(0.05, 0.15):.3f}"] for _ in range(GAPS)]
        handles = submit_many(all_argv, exclusive=True, type="gap", priority=10)
        queue.ask({"op": "drain", "drained": False})
        for _ in queue.ends([handle.id for handle in handles]):
            pass
        with open(log) as file:
            spans = sorted(tuple(map(float, line.split())) for line in file)
    free_at: list[float] = []
    gaps = []
    for began, ended in spans:
        before = [at for at in free_at if at <= began]
        if before:
            last = max(before)
            free_at.remove(last)
            gaps.append(began - last)
        free_at.append(ended)
    return statistics.median(gaps[SLOTS:]) * 1000


def _shell_submit() -> rig.Figure:
    """`grn submit` from a shell against the start of bare Python."""
    grn = [sys.executable, "-c", "from grn.cli.main import main; main()"]
    ours, theirs = [], []
    for _ in range(SHELL_SUBMITS):
        theirs.append(_took(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)))
        command = [*grn, "submit", "--hold", "--", "true"]
        ours.append(_took(lambda: subprocess.check_output(command)))  # noqa: B023 - called at once
    _cancel_all()
    what = "grn submit from a shell, against bare Python"
    return rig.Figure(
        what, statistics.median(ours) * 1000, statistics.median(theirs) * 1000, "ms", 4.0
    )


def _many_at_once() -> rig.Figure:
    took = _took(lambda: submit_many([["true"]] * 10_000, hold=True))
    _cancel_all()
    return rig.Figure("submit of 10,000 in one call", took, 3.0, "s")


def _long_queue() -> list[rig.Figure]:
    """The same questions with 100 and with 100,000 queued."""
    few, many = _with_queued(SHORT), _with_queued(LONG)
    pid = queue.ask({"op": "ping"})["pid"]
    resident = _resident_mb(pid)
    queue.ask({"op": "stop"})
    _until(lambda: not _answers())
    restart = _took(lambda: queue.ask({"op": "ping"}))
    return [
        # Twice: the difference of two small medians on a noisy machine.
        rig.Figure(
            "submit with 100,000 queued, against 100", many["submit"], few["submit"], "ms", 2.0
        ),
        rig.Figure("ls -n 20 with 100,000 queued, against 100", many["ls"], few["ls"], "ms", 2.0),
        rig.Figure(
            "end to next start, 100,000 queued, against 100", many["gap"], few["gap"], "ms", 2.0
        ),
        rig.Figure("queue process with 100,000 queued", resident, 250.0, "MB"),
        rig.Figure("restart with 100,000 queued", restart, 3.0, "s"),
    ]


def _with_queued(count: int) -> dict[str, float]:
    """Ask with so many queued behind, all ready to run; those that do run are made up for."""
    for _ in range(2):
        queue.ask({"op": "drain", "drained": True})
        here = queue.ask({"op": "count"})["counts"]["queued"]
        submit_many([["true"]] * (count - here), exclusive=True, priority=-10)
        gap = _gap_ms()
    queue.ask({"op": "drain", "drained": True})
    return {"gap": gap, "submit": _median_ms(_submit_one), "ls": _median_ms(_list)}


# --- small tools ---------------------------------------------------------------------------


def _run_all(count: int) -> None:
    handles = submit_many([["true"]] * count, exclusive=True)
    for _ in queue.ends([handle.id for handle in handles]):
        pass


def _bare_start_s() -> float:
    """Return what the interpreter of a measured command takes until it looks at a clock.

    With pauses, as the commands start: one after the other without them it is a tenth faster.
    """
    code = "import os, sys, time; print(time.monotonic())"
    took = []
    for _ in range(15):
        time.sleep(PAUSE_S)
        began = time.monotonic()
        said = subprocess.check_output([sys.executable, "-S", "-E", "-c", code])
        took.append(float(said) - began)
    return statistics.median(took)


def _submit_one() -> None:
    submit_many([["true"]], hold=True)


def _list() -> None:
    queue.ask({"op": "list", "most": 20, "which": "alive"})


def _cancel_all() -> None:
    rows = queue.ask({"op": "list", "which": "alive", "most": 1_000_000})["jobs"]
    queue.ask({"op": "cancel", "jobs": [row["id"] for row in rows]})


def _took(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _median_ms(act: Callable[[], object]) -> float:
    return statistics.median(_took(act) for _ in range(15)) * 1000


def _resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1000


def _answers() -> bool:
    try:
        queue.ask({"op": "ping"}, may_start=False)
    except GrnError:
        return False
    return True


def _until(condition: Callable[[], bool], patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the queue does not do as it should")
        time.sleep(0.01)


if __name__ == "__main__":
    rig.main("queue", measure)
