"""What jobs on several machines wrote down themselves, and whether the queue tells the same.

Each attempt adds a line when it begins, with its machine and the boot of it, and one when it ends.
So the ledger knows which attempts a loss of power has killed: only those may be told interrupted,
and only those may be followed by another attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Arguments: name, ledger, seconds, status, lines. The uptime is the same on all machines.
SCRIPT = """
read up rest < /proc/uptime; read boot < /proc/sys/kernel/random/boot_id
echo "b $0 $GRN_ATTEMPT ${XDG_TEST_MACHINE-home} $boot $up" >> "$1"
i=0; while [ $i -lt $4 ]; do i=$((i+1)); echo "$0 $GRN_ATTEMPT $i"; done
[ $2 = 0 ] || sleep $2
echo "$0 $GRN_ATTEMPT over"
read up rest < /proc/uptime
echo "e $0 $GRN_ATTEMPT $up" >> "$1"
exit $3
"""
JUST_BEFORE_S = 3.0  # an end so soon before a loss of power may not have been recorded


@dataclass(frozen=True)
class Wanted:
    """A job as it was submitted."""

    status: int
    lines: int
    may_requeue: bool


@dataclass(frozen=True)
class Began:
    machine: str
    boot: str
    at: float  # uptime


@dataclass
class SiteLedger:
    """All jobs of one campaign, by a name of the test's own."""

    path: Path
    wanted: dict[str, Wanted] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)  # the id that the client was told
    cancelled: set[str] = field(default_factory=set)
    # When each boot of each machine lost its power; home has one boot only.
    lost_power: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def command(self, name: str, wanted: Wanted, seconds: float) -> list[str]:
        """Return the command of a new job."""
        self.wanted[name] = wanted
        spelled = f"{seconds:.2f}" if seconds else "0"
        words = (name, str(self.path), spelled, str(wanted.status), str(wanted.lines))
        return ["/bin/sh", "-c", SCRIPT, *words]

    def note_power_loss(self, machine: str, boot: str) -> None:
        """Note that a machine has lost its power; nothing of this boot runs any more."""
        self.lost_power.setdefault((machine, boot), []).append(uptime())

    def _read(self) -> tuple[dict[str, dict[int, list[Began]]], dict[str, dict[int, float]]]:
        begun: dict[str, dict[int, list[Began]]] = {}
        ended: dict[str, dict[int, float]] = {}
        text = self.path.read_text() if self.path.exists() else ""
        for line in text.splitlines():
            kind, name, attempt, *rest = line.split()
            if kind == "b":
                began = Began(rest[0], rest[1], float(rest[2]))
                begun.setdefault(name, {}).setdefault(int(attempt), []).append(began)
            else:
                ended.setdefault(name, {})[int(attempt)] = float(rest[0])
        return begun, ended

    def check(self, rows: Mapping[int, dict[str, Any]]) -> list[str]:
        """Compare with what the queue tells when all have ended; return all that is wrong."""
        begun, ended = self._read()
        wrong: list[str] = []
        for name, wanted in self.wanted.items():
            row = rows.get(self.told.get(name, -1))
            who = f"{name} (job {self.told.get(name)})"
            if row is None:
                wrong.append(f"{who} was accepted and is lost")
                continue
            one = _One(name, wanted, row, begun.get(name, {}), ended.get(name, {}))
            wrong += [f"{who}: {text}" for text in self._wrong(one)]
        return wrong

    def _wrong(self, one: _One) -> list[str]:
        if one.row["state"] != "ended":
            return [f"is still {one.row['state']}: {one.row['why']}"]
        wrong = []
        for attempt, begins in one.begun.items():
            if len(begins) > 1:
                wrong.append(f"attempt {attempt} ran {len(begins)} times")
        runs = sorted(one.begun)
        for earlier in runs[:-1]:
            if not one.wanted.may_requeue:
                wrong.append(f"ran again unasked after attempt {earlier}")
            if not self._was_struck(one, earlier):
                wrong.append(f"ran again although attempt {earlier} was not interrupted")
        return [*wrong, *self._wrong_end(one), *_wrong_log(one)]

    def _was_struck(self, one: _One, attempt: int) -> bool:
        """True when a loss of power can have killed an attempt, or have hidden its end."""
        began = one.begun[attempt][0]
        ended_at = one.ended.get(attempt)
        return any(
            began.at <= lost_at and (ended_at is None or lost_at - ended_at < JUST_BEFORE_S)
            for lost_at in self.lost_power.get((began.machine, began.boot), [])
        )

    def _wrong_end(self, one: _One) -> list[str]:
        row, attempt = one.row, one.row["attempt"]
        reason, status = row["reason"], row["status"]
        right = "failed" if one.wanted.status else "ok"
        if reason == "cancelled":
            return [] if one.name in self.cancelled else ["was cancelled by nobody"]
        if reason == "interrupted":
            if one.wanted.may_requeue and one.name not in self.cancelled:
                return ["was not run again although it may be"]
            if attempt in one.begun:
                is_struck = self._was_struck(one, attempt)
                return [] if is_struck else [f"FALSELY INTERRUPTED: {row['text']}"]
            return self._wrong_unbegun(one)
        if (reason, status) != (right, one.wanted.status):
            return [f"ended as {reason} {status} ({row['text']}), not {right} {one.wanted.status}"]
        if attempt not in one.ended:
            return [f"is told to have ended as {reason} and has not"]
        return []

    def _wrong_unbegun(self, one: _One) -> list[str]:
        """Look at an interrupted attempt that was struck before it could write its line."""
        node, _, rest = str(one.row["lease"]).partition("/")
        boots = [boot for machine, boot in self.lost_power if machine == node or not rest]
        if not rest or any(boot.startswith(rest.partition("/")[0]) for boot in boots):
            return []
        return [f"FALSELY INTERRUPTED before it began: {one.row['text']}"]


@dataclass(frozen=True)
class _One:
    name: str
    wanted: Wanted
    row: dict[str, Any]
    begun: dict[int, list[Began]]
    ended: dict[int, float]


def _wrong_log(one: _One) -> list[str]:
    """Compare the log at home with what the last attempt has printed."""
    if one.row["folder"] is None:
        return []
    attempt = one.row["attempt"]
    log = Path(one.row["folder"], "log")
    text = log.read_text() if log.exists() else ""
    numbers = [f"{one.name} {attempt} {number}\n" for number in range(1, one.wanted.lines + 1)]
    whole = "".join([*numbers, f"{one.name} {attempt} over\n"])
    if one.row["reason"] in ("ok", "failed"):
        return [] if text == whole else [f"its log is wrong: {len(text)} of {len(whole)} bytes"]
    return [] if whole.startswith(text) else ["its log has what it never printed"]


def uptime() -> float:
    """Return the clock that all machines share."""
    return float(Path("/proc/uptime").read_text().split()[0])
