"""Damage of a journal: single values of its tables, and single bits of its file."""

from __future__ import annotations

import random
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

KINDS = ("null", "truncated", "wrong type", "flipped bit", "huge")


class Harm(NamedTuple):
    """One value of one row, and what is to become of it."""

    table: str
    column: str
    where: str
    kind: str


def columns_of(path: Path, table: str) -> list[str]:
    """Return the names of all columns of a table."""
    with closing(sqlite3.connect(path)) as db:
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def spoil(path: Path, harms: Sequence[Harm], chance: random.Random) -> int:
    """Damage values of a journal that nobody has open; return how many it was possible for."""
    with closing(sqlite3.connect(path)) as db:
        kept = _allow_null(db)
    done = 0
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.text_factory = bytes
        for harm in harms:
            target = f"FROM {harm.table} WHERE {harm.where}"
            found = db.execute(f"SELECT {harm.column}, typeof({harm.column}) {target}").fetchone()
            if found is None:
                continue
            value, kind = found[0], found[1].decode()
            marks, new = _spoilt(value, kind, harm.kind, chance)
            try:
                db.execute(
                    f"UPDATE {harm.table} SET {harm.column} = {marks} WHERE {harm.where}", (new,)
                )
                done += 1
            except sqlite3.Error:  # the number of a row is always a number
                continue
    with closing(sqlite3.connect(path)) as db:
        _restore(db, kept)
    return done


def flip_bits(path: Path, count: int, chance: random.Random, within: int | None = None) -> None:
    """Flip some bits of a file, or of its first bytes only."""
    data = bytearray(path.read_bytes())
    for _ in range(count):
        data[chance.randrange(within or len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _spoilt(value: Any, kind: str, harm: str, chance: random.Random) -> tuple[str, Any]:
    """Return a value after damage, and how it is to be written."""
    if harm == "null" or value is None:
        return "?", None if value is not None else chance.choice((7, "x", b"\xff"))
    if harm == "wrong type":
        return "?", b"\xff\x00wrong" if kind in ("text", "real") else "wrong"
    if harm == "huge":
        return ("CAST(? AS TEXT)", b"x" * 100_000) if kind == "text" else ("?", 1 << 62)
    if kind == "integer":
        return "?", value ^ (1 << chance.randrange(62)) if harm == "flipped bit" else value // 2 - 1
    if kind == "real":
        bits = struct.unpack("<q", struct.pack("<d", value))[0] ^ (1 << chance.randrange(62))
        return "?", struct.unpack("<d", struct.pack("<q", bits))[0]
    mark = "CAST(? AS TEXT)" if kind == "text" else "?"
    if harm == "truncated" or not value:
        return mark, value[: len(value) // 2] or b"x"
    data = bytearray(value)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return mark, bytes(data)


def _allow_null(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """Let every column be empty, as a damaged one may be; return the schema as it was."""
    kept = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    db.execute("PRAGMA writable_schema=ON")
    db.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'")
    db.commit()
    return kept


def _restore(db: sqlite3.Connection, kept: list[tuple[str, str]]) -> None:
    db.execute("PRAGMA writable_schema=ON")
    db.executemany("UPDATE sqlite_master SET sql = ?2 WHERE name = ?1", kept)
    db.commit()
