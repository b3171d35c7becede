"""Which records may be used again, and orders that do not fit into a line at once."""

from __future__ import annotations

import socket
import threading

from grn import wire
from grn.queue.journal.rows import Command
from grn.queue.local.channel import StopOrder
from grn.queue.local.workers import MAX_SPARES, SPARE_S, LaunchTask, Postponed, Spares, Worker
from grn.queue.site import Attempt

FIRST, SECOND = Attempt(1, 1), Attempt(2, 1)
SHORT = {"ran_s": 0.1}


def test_a_record_is_spare_once_its_end_is_in_the_journal() -> None:
    spares = Spares()
    spares.ended(FIRST, SHORT)
    assert spares.take() == "", "a queue that is killed now must find it"
    spares.settled(FIRST, "one")
    assert spares.take() == "one"
    assert spares.take() == ""


def test_a_record_that_nobody_saw_end_is_never_spare() -> None:
    """It may forbid an attempt to begin, or a shim of an earlier queue may still hold it."""
    spares = Spares()
    spares.settled(FIRST, "one")
    spares.ended(SECOND, SHORT)
    spares.settled(FIRST, "one")
    assert spares.take() == ""


def test_the_record_of_a_long_attempt_is_kept() -> None:
    spares = Spares()
    spares.ended(FIRST, {"ran_s": SPARE_S})
    spares.settled(FIRST, "one")
    assert spares.take() == ""


def test_only_some_records_are_kept_spare() -> None:
    spares = Spares()
    for number in range(2 * MAX_SPARES):
        spares.ended(Attempt(number, 1), SHORT)
        spares.settled(Attempt(number, 1), str(number))
    taken = [spares.take() for _ in range(2 * MAX_SPARES)]
    assert len({one for one in taken if one}) == MAX_SPARES


def test_an_order_larger_than_the_line_arrives_whole() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    order = StopOrder("x" * 5_000_000, False)
    size = len(wire.encode(order.to_json()))
    got = bytearray()

    def read() -> None:
        while len(got) < size:
            got.extend(theirs.recv(1 << 20))

    reader = threading.Thread(target=read)
    reader.start()
    assert Worker(ours).order(order)
    assert not ours.getblocking()
    reader.join()
    assert wire.decode(bytes(got)[wire.HEADER.size :]) == order.to_json()
    ours.close()
    theirs.close()


def test_a_line_that_is_full_is_not_gone() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    while True:
        try:
            ours.send(b"x" * 65536)
        except BlockingIOError:
            break
    reader = threading.Timer(0.05, theirs.recv, [1 << 24])
    reader.start()
    assert Worker(ours).order(StopOrder("x", False))
    reader.join()
    ours.close()
    theirs.close()


def test_a_worker_that_is_gone_takes_no_order() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    assert not Worker(ours).order(StopOrder("x", False))
    ours.close()


def test_attempts_that_could_not_start_are_tried_one_first_then_twice_as_many() -> None:
    postponed = Postponed()
    tasks = [_task(number) for number in range(8)]
    for task in tasks:
        postponed.add(task)
    assert postponed.take() == tasks[:1]
    assert postponed.take() == tasks[1:3], "the first did not fail again"
    postponed.add(tasks[2])
    assert postponed.take() == tasks[3:4], "a failure: one at a time again"
    assert postponed.take() == tasks[4:6]
    assert postponed.take() == [tasks[6], tasks[7], tasks[2]]
    assert postponed.take() == []


def _task(number: int) -> LaunchTask:
    return LaunchTask(Attempt(number, 1), Command(("true",), "/", {}, 0), "lease", "0")
