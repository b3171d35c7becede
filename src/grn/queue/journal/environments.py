"""Environments of jobs: each is stored once, under the digest of its content."""

from __future__ import annotations

import hashlib
import json

from grn.queue.journal.journal_file import Disk
from grn.queue.journal.rows import DamagedRow

MAX_AT_HAND = 64


class Environments:
    """The stored environments; the last few are cached."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._recent: dict[int, dict[str, str]] = {}

    def read(self, environment_id: int) -> dict[str, str]:
        """Return an environment; raise DamagedRow when it does not match its digest."""
        if environment_id not in self._recent:
            found = self._disk.read(
                "SELECT body, digest FROM environments WHERE id = ?", (environment_id,)
            )
            body, digest = found[0] if found else (None, None)
            if not isinstance(body, bytes) or hashlib.sha256(body).digest() != digest:
                raise DamagedRow(
                    "the journal's record of its environment is damaged: it was not run"
                )
            if len(self._recent) >= MAX_AT_HAND:
                self._recent.clear()
            self._recent[environment_id] = json.loads(body)
        return self._recent[environment_id]

    def id_of(self, environment: dict[str, str]) -> int:
        """Return the id of an environment, which is stored once; within a transaction."""
        body = json.dumps(environment, sort_keys=True).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(body).digest()
        row = self._disk.db.execute(
            "SELECT id FROM environments WHERE digest = ?", (digest,)
        ).fetchone()
        if row is None:
            values = (digest, body)
            cursor = self._disk.db.execute(
                "INSERT INTO environments (digest, body) VALUES (?,?)", values
            )
            return int(cursor.lastrowid or 0)
        try:
            self.read(row[0])
        except DamagedRow:  # of all bodies only this one has that digest
            self._disk.db.execute("UPDATE environments SET body = ? WHERE id = ?", (body, row[0]))
        return int(row[0])
