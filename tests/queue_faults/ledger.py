"""What was promised to clients, what jobs wrote down themselves, and whether the two agree.

Each job adds a line to one file when it begins and one when it ends: so it can be told whether it
ran never, twice, or was killed, whatever the queue says of it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEGIN = 'echo "b $0 $GRN_JOB_ID $GRN_ATTEMPT" >> "$1";'
QUICK = f'{BEGIN} echo "e $0" >> "$1"; exit "$3"'
LASTING = f'{BEGIN} sleep "$2"; echo "e $0 $2" >> "$1"; exit "$3"'
GATED = f'{BEGIN} until test -e "$2"; do sleep 0.02; done; echo "e $0 $2" >> "$1"; exit "$3"'


@dataclass
class Ledger:
    """All jobs of one campaign, by a name of the test's own."""

    path: Path
    wanted: dict[str, int] = field(default_factory=dict)  # name -> the status it must end with
    told: dict[str, int] = field(default_factory=dict)  # name -> the id the client was told
    complaints: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def command(
        self, name: str, seconds: float = 0.0, status: int = 0, gate: Path | None = None
    ) -> list[str]:
        """Return the command of a new job; one with a gate lasts until that file is there."""
        with self._lock:
            self.wanted[name] = status
        script = GATED if gate else LASTING if seconds else QUICK
        until = str(gate) if gate else f"{seconds:.3f}"
        return ["/bin/sh", "-c", script, name, str(self.path), until, str(status)]

    def array(self, name: str, count: int, seconds: float, status: int) -> list[str]:
        """Return the command of an array, whose members are called by their numbers from 0."""
        for number in range(count):
            argv = self.command(f"{name}.{number}", seconds, status)
        script = argv[2].replace("$0", "$0.$GRN_ARRAY_INDEX")
        return [*argv[:2], script, name, *argv[4:]]

    def note(self, name: str, job_id: int) -> None:
        """Note what a client was told; the same name must always be told the same id."""
        with self._lock:
            before = self.told.setdefault(name, job_id)
            if before != job_id:
                self.complaints.append(f"{name} was told to be job {before}, then {job_id}")

    def lines(self) -> list[list[str]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split() for line in text.splitlines()]

    def begun(self) -> dict[str, list[int]]:
        """Return under which ids each job has begun."""
        begun: dict[str, list[int]] = defaultdict(list)
        for words in self.lines():
            if words[0] == "b":
                begun[words[1]].append(int(words[2]))
        return begun

    def over(self) -> int:
        """Return how many of those that last for some time have ended."""
        return sum(words[0] == "e" and len(words) > 2 for words in self.lines())

    def check(self, rows: Mapping[int, dict[str, Any]]) -> list[str]:
        """Compare with what the queue says when all have ended; return all that is wrong."""
        complaints = list(self.complaints)
        begun = self.begun()
        ended = {words[1] for words in self.lines() if words[0] == "e"}
        owner: dict[int, str] = {}
        for name, job_id in self.told.items():
            if job_id in owner:
                complaints.append(f"id {job_id} was given to {owner[job_id]} and to {name}")
            owner[job_id] = name
            complaints += self._wrong(name, rows.get(job_id), begun[name], name in ended)
        complaints += [
            f"job {job_id} is nobody's: {rows[job_id]['argv']}" for job_id in rows.keys() - owner
        ]
        return complaints

    def _wrong(
        self, name: str, row: dict[str, Any] | None, begun: list[int], has_ended: bool
    ) -> list[str]:
        job_id, status = self.told[name], self.wanted[name]
        who = f"job {job_id} ({name})"
        if row is None:
            return [f"{who} was accepted and is lost"]
        wrong = []
        if row["state"] != "ended":
            wrong.append(f"{who} is still {row['state']}: {row['why']}")
        if not begun:
            wrong.append(f"{who} never ran: {row['reason']}")
        if len(begun) > 1:
            wrong.append(f"{who} ran {len(begun)} times")
        if set(begun) - {job_id}:
            wrong.append(f"{who} ran under the ids {begun}")
        if begun and not has_ended:
            wrong.append(f"{who} was killed: {row['reason']}")
        reason = "failed" if status else "ok"
        if (row["reason"], row["status"]) != (reason, status):
            wrong.append(f"{who} ended as {row['reason']} {row['status']}, not {reason} {status}")
        return wrong
