"""Which worker runs which call, and what the end of a worker means for its call."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from grn.group.call_table import REUSE_S, Call, CallTable, CallWorker, Ending, Kind
from grn.model.oom_retry import Had

KIND, OTHER = Kind("train", "train"), Kind("test", "test")
GOOD = SimpleNamespace(is_good=True, is_out_of_memory=False)
BAD = SimpleNamespace(is_good=False, is_out_of_memory=False)
OOM = SimpleNamespace(is_good=False, is_out_of_memory=True)
DIED = Ending(is_final=True, is_ok=False)


def calls(table: CallTable, count: int, kind: Kind = KIND) -> list[Call]:
    made = [Call(kind, b"", None) for _ in range(count)]
    for call in made:
        table.add(call)
    return made


def started(table: CallTable) -> CallWorker:
    worker = table.new_worker()
    assert worker is not None
    return worker


def test_without_reuse_each_call_has_a_worker() -> None:
    table = CallTable()
    first, second = calls(table, 2)

    assert [started(table).call, started(table).call] == [first, second]
    assert table.new_worker() is None
    assert table.take(1, 0.0) is first
    assert table.take(1, 0.0) is None
    assert table.replied(1, GOOD).over == ()
    assert table.ended(1, Ending(True)).over == (first,)


def test_no_more_workers_are_started_than_allowed() -> None:
    table = CallTable(max_workers=1)
    calls(table, 2)

    started(table)
    assert table.new_worker() is None
    table.ended(1, Ending(True))
    started(table)


def test_a_worker_takes_call_after_call_of_its_kind_for_a_while() -> None:
    table = CallTable(is_reusing=True)
    first, second, third = calls(table, 3)
    other = calls(table, 1, OTHER)[0]
    worker = started(table)

    assert table.take(worker.number, 0.0) is first
    assert table.replied(worker.number, GOOD).over == (first,)
    assert table.take(worker.number, 1.0) is second
    assert table.replied(worker.number, BAD).over == (second,)
    assert table.take(worker.number, REUSE_S + 1) is None
    assert table.open_calls == [third, other]


def test_workers_without_calls_are_dismissed() -> None:
    table = CallTable(is_reusing=True)
    (call,) = calls(table, 1)
    waits, runs = started(table), CallWorker(9, KIND, False)
    table.workers[9] = runs

    assert table.dismiss_surplus() == [9]
    assert table.take(9, 0.0) is None
    assert table.take(waits.number, 0.0) is call


def test_an_idle_worker_makes_way_for_another_kind() -> None:
    table = CallTable(is_reusing=True, max_workers=1)
    calls(table, 1)
    worker = started(table)
    table.take(worker.number, 0.0)
    table.replied(worker.number, GOOD)

    assert table.is_wanted(KIND)
    calls(table, 1, OTHER)
    assert not table.is_wanted(KIND)


@pytest.mark.parametrize("retries", [0, 1])
def test_the_call_of_a_dead_worker_fails_or_is_tried_again(retries: int) -> None:
    table = CallTable(is_reusing=True, retries=retries)
    first, second = calls(table, 2)
    worker = started(table)
    table.take(worker.number, 0.0)

    assert table.ended(worker.number, DIED).over == (() if retries else (first,))
    assert table.open_calls == ([first, second] if retries else [second])


def test_a_worker_that_cannot_start_fails_one_call() -> None:
    table = CallTable(is_reusing=True)
    first, second = calls(table, 2)

    assert table.ended(started(table).number, DIED).over == (first,)
    assert table.open_calls == [second]


def test_a_call_that_ran_out_of_memory_stays_with_its_job() -> None:
    table = CallTable(is_reusing=True, oom_retries=1)
    first, second = calls(table, 2)
    worker = started(table)
    table.take(worker.number, 0.0)
    assert table.replied(worker.number, OOM).over == ()
    more_room = Ending(False, False, is_out_of_memory=True, has_more_room=True)

    assert table.ended(worker.number, more_room).may_run_again
    assert table.take(worker.number, 1.0) is first
    table.replied(worker.number, OOM)
    verdict = table.ended(worker.number, more_room)
    assert verdict.over == (first,)
    assert verdict.may_run_again  # for the next call
    assert table.take(worker.number, 2.0) is second


def test_a_victim_is_run_again_uncounted_and_only_if_asked_for() -> None:
    as_it_was = Ending(False, False, is_out_of_memory=True)
    for most, had in ((1, Had(0, 1)), (0, None)):
        table = CallTable(oom_retries=most)
        (call,) = calls(table, 1)
        number = started(table).number
        verdict = table.ended(number, as_it_was)
        assert verdict.may_run_again is (had is not None)
        assert verdict.over == (() if had else (call,))
        if had:
            assert (call.had.more, call.had.spared) == (had.more, had.spared)


def test_a_call_that_ran_out_of_memory_alone_gets_a_new_worker_if_asked_for() -> None:
    table = CallTable(oom_retries=1)
    (call,) = calls(table, 1)
    alone = Ending(True, False, is_out_of_memory=True)

    assert table.ended(started(table).number, alone).over == ()
    assert table.ended(started(table).number, alone).over == (call,)


def test_a_cancelled_call_names_its_worker() -> None:
    table = CallTable(is_reusing=True)
    first, second = calls(table, 2)
    worker = started(table)
    table.take(worker.number, 0.0)

    assert table.cancel(second) is None
    assert table.cancel(first) == worker.number
    assert worker.is_cancelled  # it is not told to end, which would make its job `ok`
    assert table.open_calls == []
    assert table.ended(worker.number, Ending(True, False, is_cancelled=True)).over == ()
