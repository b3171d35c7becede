"""G17: a job that prints without end fills no disk, and the queue does not even notice."""

from __future__ import annotations

import time
from pathlib import Path

from grn.client.logs import read_log
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.rig import Rig

CAP_BYTES = 2 << 20
OFFERED_BYTES = 300_000_000
FLOOD = 'echo FIRST; yes err | head -c {more} >&2; yes "$0" | head -c {size}; echo LAST'


class Flood:
    """A job that prints, the files it leaves, and the queue meanwhile."""

    def __init__(self, rig: Rig, size: int) -> None:
        rig.story.env["GRN_LOG_SIZE"] = str(CAP_BYTES)
        daemon = rig.start()
        rig.ended(rig.submit(["true"]))  # all that is needed once is there
        before = _memory_kib(daemon.pid)
        script = FLOOD.format(size=size, more=size // 10)
        self.job = rig.submit(["/bin/sh", "-c", script, "what a job prints"])
        answers = []
        while rig.row(self.job)["state"] != "ended":
            began = time.monotonic()
            rig.ask("ping")
            answers.append(time.monotonic() - began)
        self.median_s = sorted(answers)[len(answers) // 2]
        self.grown_kib = _memory_kib(daemon.pid) - before
        self.row = rig.row(self.job)
        self.folder = rig.folder(self.job)

    def size_of(self, name: str) -> int:
        return sum(path.stat().st_size for path in self.folder.glob(f"{name}*"))


def test_a_flood_of_output_is_capped_and_its_head_and_tail_are_kept(rig: Rig) -> None:
    flood = Flood(rig, OFFERED_BYTES)
    text = read_log(str(flood.folder), "log")

    print(f"queue +{flood.grown_kib} KiB, answers within {flood.median_s * 1000:.1f} ms")
    assert flood.row["reason"] == "ok"
    assert flood.size_of("log") <= CAP_BYTES
    assert flood.size_of("log") >= CAP_BYTES // 2
    assert text.startswith(b"FIRST\n")
    assert text.endswith(b"LAST\n")
    assert flood.grown_kib < 10 << 10
    assert flood.median_s < 1.0  # some milliseconds on a machine at rest


def test_the_check_finds_out_a_shim_without_a_cap(rigs: Rigs) -> None:
    assert Flood(rigs("no-cap"), 10_000_000).size_of("log") > CAP_BYTES


def _memory_kib(pid: int) -> int:
    """Return the most memory a process has ever had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("a process without memory")
