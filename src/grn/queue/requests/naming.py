"""Resolve what people call jobs: an id, a range of ids, a name, `name[3]`, a lease.

Reads the journal and the engine; changes neither.
"""

from __future__ import annotations

import re
from typing import Any

from grn.errors import UnknownJob
from grn.protocol.queue_requests import NamesRequest
from grn.queue.journal.rows import ARRAY_INDEX
from grn.queue.server import QueuePeer
from grn.queue.waiting_jobs import Selection, folded_ids

MAX_RANGE = 1_000_000
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_ELEMENT = re.compile(r"(.+)\[([0-9]{1,18})\]")
_LEASE = re.compile(r"[0-9a-f]{4,32}")
_OF_RANGE = "jobs.id BETWEEN ? AND ?"
_OF_ELEMENT = f"(name = ? OR label = ?) AND {ARRAY_INDEX} = ?"
_WHICH = {
    "all": "1", "alive": "state <> 'ended'", "ended": "state = 'ended'",
    "queued": "state = 'queued'",
}  # fmt: skip


def resolve(peer: QueuePeer, name: str, asked: NamesRequest) -> list[int]:
    """Return the jobs that a word names; raise UnknownJob when there are none."""
    if name.isascii() and name.isdigit() and len(name) <= 18:
        found = _by_id(peer, name, asked)
    elif match := _RANGE.fullmatch(name):
        found = _selected(peer, _OF_RANGE, [int(match[1]), int(match[2])], asked.which)
    else:
        found = _by_name(peer, name, asked)
    found = found or _by_lease(peer, name, is_whole=asked.whole)
    if not found:
        is_one = name.isdigit() or asked.which in ("all", "alive")
        kind = "" if is_one else f"{asked.which} "
        text = f"there is no {kind}job {name}."
        raise UnknownJob(text, "See `grn ls -a` for ids and names.")
    return found


def _by_id(peer: QueuePeer, name: str, asked: NamesRequest) -> list[int]:
    jobs = peer.loop.engine.jobs
    number = int(name)
    if number in jobs or peer.loop.journal.state_of(number) is not None:
        return [number]
    found = [] if asked.whole else [job for job in jobs if str(job).startswith(name)]
    if len(found) > 1:
        text = f"{len(found)} jobs begin with {name}."
        raise UnknownJob(text, "Write the whole id; see `grn ls`.")
    return found


def _by_name(peer: QueuePeer, name: str, asked: NamesRequest) -> list[int]:
    """Return the unended jobs of a name, else the last that has ended."""
    where, values = "name = ?", [name]
    if not _selected(peer, where, values, "all", 1) and (match := _ELEMENT.fullmatch(name)):
        where, values = _OF_ELEMENT, [match[1], match[1], match[2]]
    if asked.which != "all":
        return _selected(peer, where, values, asked.which)
    return _selected(peer, where, values, "alive") or _selected(peer, where, values, "ended", 1)


def _by_lease(peer: QueuePeer, name: str, *, is_whole: bool) -> list[int]:
    """Return the unended job whose lease is so called, or begins so."""
    if not _LEASE.fullmatch(name):
        return []
    length = 8 if is_whole else 4  # as `grn ps` shows it
    if len(name) < length:
        return []
    sql = "state <> 'ended' AND substr(attempts.lease, 1, ?) = ?"
    found = peer.loop.journal.rows(sql, [len(name), name], "jobs.id", 2)
    return [row["id"] for row in found] if len(found) == 1 else []


def _selected(
    peer: QueuePeer, where: str, values: list[Any], which: str, most: int = MAX_RANGE
) -> list[int]:
    order = "id" if most > 1 else "id DESC"
    found = peer.loop.journal.ids(f"({where}) AND {_WHICH[which]}", values, order, most)
    if which != "ended" and len(found) < most:
        if where == _OF_RANGE:
            found += peer.loop.engine.jobs.folded_between(*values)
        else:
            wanted = Selection(where, values, is_of_members=where == _OF_ELEMENT)
            found += folded_ids(peer.loop, wanted, most - len(found))
    return sorted(found)
