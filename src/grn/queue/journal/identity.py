"""The identity of a journal, which keeps the files of its jobs apart from those of another."""

from __future__ import annotations

import logging
import os
import secrets

from grn.daemon.database import checksum, is_intact
from grn.queue.journal.journal_file import Disk

log = logging.getLogger(__name__)


def identity_of(disk: Disk, folder: str) -> str:
    """Return the identity of this journal; a damaged one is restored from its jobs' folder.

    Under a wrong identity running attempts would count as never begun, and run twice.
    """
    name, stored = (*disk.read("SELECT name, checksum FROM identity"), ("", None))[0]
    if is_intact(stored, (name,)):
        return str(name)
    try:
        folders = os.listdir(folder)
    except OSError:
        folders = []
    right = [one for one in folders if one == name or is_intact(stored, (one,))]
    found = (right or [secrets.token_hex(8)])[0]  # without a folder nothing ever ran
    log.error("action=mend-identity was=%r is=%s", name, found)
    with disk.transaction():
        disk.db.execute("DELETE FROM identity")
        disk.db.execute("INSERT INTO identity VALUES (?,?)", (found, checksum(found)))
    return found


def highest_with_files(folder: str) -> int:
    """Return the highest id that has files of an attempt.

    A journal may lack its latest changes: its log was damaged, or it is a copy that was put back.
    An id that is given again would find the files of an earlier job, and take its end for its own.
    """
    newest = max((int(name) for name in _names_in(folder) if name.isdecimal()), default=0)
    ids = (name.partition(".")[0] for name in _names_in(os.path.join(folder, str(newest))))
    return max((int(one) for one in ids if one.isdecimal()), default=0)


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:  # nothing has run yet
        return []
