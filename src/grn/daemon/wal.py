"""The write-ahead log of a killed daemon: find commits that SQLite no longer reads.

SQLite reads the log up to the first frame with a bad checksum and ignores the rest without a word.
That is right for a commit that a power cut tore apart, and hides damage to older ones. Only for
files with synchronous=FULL: there each commit is on disk before the next one is written, so a cut
leaves at most one that is not whole. Two or more behind the last readable one are damage. Damage to
the last commit alone looks like a torn one and is not told from it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import struct

log = logging.getLogger(__name__)
_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_MAX_TORN = 1


def set_damage_aside(path: str) -> tuple[int, str]:
    """Return how many commits of a file's log cannot be read, and where the log is kept then.

    Moves all that can be read into the file, so that the next log holds no leftovers of a torn
    commit. A file that cannot be used is left to the caller, who opens it next.
    """
    if not os.path.exists(f"{path}-wal"):
        return 0, ""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as db:
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            commits = _unread_commits(db, f"{path}-wal")
            if commits <= _MAX_TORN:
                return 0, ""
            aside = _keep(f"{path}-wal")
    except (sqlite3.Error, FileNotFoundError):
        return 0, ""
    log.error("action=set-aside path=%s-wal to=%s commits=%d", path, aside, commits)
    return commits, aside


def _keep(path: str) -> str:
    """Give the log a second name: SQLite removes the first when it closes the file."""
    number = 1
    while os.path.lexists(f"{path}.broken-{number}"):
        number += 1
    try:
        os.link(path, f"{path}.broken-{number}")
    except OSError as error:  # a file system without links: the rest is reported all the same
        return f"nothing ({error.strerror})"
    return f"{path}.broken-{number}"


def _unread_commits(db: sqlite3.Connection, path: str) -> int:
    """Count the commits of the log behind those that SQLite reads, whatever their checksums."""
    _, frames, moved = db.execute("PRAGMA wal_checkpoint").fetchone()
    if not 0 <= frames == moved:
        return 0
    frame_bytes = _FRAME_HEADER_BYTES + int(db.execute("PRAGMA page_size").fetchone()[0])
    commits = 0
    with open(path, "rb") as file:
        head = file.read(_HEADER_BYTES + _FRAME_HEADER_BYTES)
        # Each log has salts of its own. Without its header, take those of its first frame.
        salts = head[16:24] if _is_whole(head[:_HEADER_BYTES]) else head[40:48]
        size = os.fstat(file.fileno()).st_size
        for at in range(_HEADER_BYTES + frames * frame_bytes, size - frame_bytes + 1, frame_bytes):
            file.seek(at)
            frame = file.read(16)  # page, size of the database after a commit or zero, salts
            commits += any(frame[4:8]) and frame[8:] == salts
    return commits


def _is_whole(header: bytes) -> bool:
    """True when the checksum of a log's header is right."""
    if len(header) < _HEADER_BYTES:
        return False
    order = ">" if header[3] & 1 else "<"  # the magic number tells how its maker counts
    words = struct.unpack(f"{order}6I", header[:24])
    one = other = 0
    for at in range(0, 6, 2):
        one = (one + words[at] + other) & 0xFFFFFFFF
        other = (other + words[at + 1] + one) & 0xFFFFFFFF
    return header[24:] == struct.pack(">2I", one, other)
