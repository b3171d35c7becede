"""The checks can fail: each engine here has one fault, and random histories find it out."""

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from grn.model.job import Outcome, Run
from grn.negotiator.actions import DropWaiting, SaveLease
from grn.negotiator.engine import Engine
from grn.negotiator.events import (
    HolderGone,
    JobStarted,
    LeaseState,
    Released,
    Requested,
    Sampled,
    Wait,
    WaitReason,
    Withdrawn,
)
from grn.negotiator.learn.blame import Verdict
from grn.negotiator.learn.memory import profiling
from grn.negotiator.schedule import answers as answers_file
from grn.negotiator.schedule import placement as place_file
from grn.negotiator.schedule import refusals as refusals_file
from grn.negotiator.schedule.bookings import NOT_BOOKED, Bookings
from grn.negotiator.schedule.room.ledger import Book
from grn.negotiator.schedule.turns.order import Group
from tests.negotiator.machine import Negotiation

pytestmark = pytest.mark.slow  # a campaign of pure code: the same on every Python version

# The same histories each time, from a seed that shows the fault soon, and no effort to shorten the
# one that fails.
SEARCH = settings(
    max_examples=3000,
    stateful_step_count=40,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def finds_out(engine_type=Engine, start=0):
    """Return the complaint that ends a search through random histories."""
    machine = seed(start)(type("Mutant", (Negotiation,), {"engine_type": engine_type}))
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(machine, settings=SEARCH)
    return str(caught.value)


# --- faults in the sums --------------------------------------------------------------------

SUMS = {
    "strangers do not count": lambda book: book.capacity_bytes - book.booked_bytes,
    "the guard is promised": lambda book: book.gpu.total_bytes - book.booked_bytes
    - book.strangers_bytes - book.unexplained_bytes,
    "the unexplained does not count": lambda book: book.capacity_bytes - book.booked_bytes
    - book.strangers_bytes,
    "only what is measured counts": lambda book: book.capacity_bytes - book.strangers_bytes
    - book.unexplained_bytes - sum(size or 0 for size in book.measured.values()),
    "only what is reserved counts": lambda book: book.capacity_bytes - book.strangers_bytes
    - book.unexplained_bytes
    - sum(lease.reserved_on(book.gpu.uuid) for lease in book.leases.values()),
}  # fmt: skip


@pytest.mark.parametrize("free_bytes", SUMS.values(), ids=SUMS)
def test_a_ledger_that_adds_up_wrongly_is_found_out(monkeypatch, free_bytes):
    monkeypatch.setattr(Book, "free_bytes", property(free_bytes))

    assert "promised" in finds_out()


def test_a_ledger_that_trusts_a_silent_gpu_is_found_out(monkeypatch):
    monkeypatch.setattr(Book, "is_usable", property(lambda book: True))

    finds_out()


# --- faults in the events ------------------------------------------------------------------


class FreesTheDeadAtOnce(Engine):
    def handle(self, event):
        if isinstance(event, HolderGone):
            event = Released(event.at, event.lease, Outcome.KILLED)
        return super().handle(event)


class FreesTheDeadUnseen(Engine):
    """It takes every look for a sign that the dead are gone, also a blind one."""

    def handle(self, event):
        actions = super().handle(event)
        if isinstance(event, Sampled):
            for lease in list(self.view.leases.values()):
                if lease.state is LeaseState.DRAINING:
                    self._leases[lease.id] = replace(lease, state=LeaseState.HELD)
                    actions += super().handle(Released(event.at, lease.id, Outcome.KILLED))
        return actions


class ForgetsToSave(Engine):
    def handle(self, event):
        actions = super().handle(event)
        if isinstance(event, Sampled):
            actions = [action for action in actions if not isinstance(action, SaveLease)]
        return actions


class ForgetsWhoWaits(Engine):
    def handle(self, event):
        actions = super().handle(event)
        return [action for action in actions if not isinstance(action, DropWaiting)]


class LosesARequest(Engine):
    """A second waiter pushes out the first."""

    def handle(self, event):
        if isinstance(event, Requested) and len(self.view.waitlist) > 2:
            first = next(iter(self.view.waitlist)).request.key
            return super().handle(Withdrawn(event.at, first)) + super().handle(event)
        return super().handle(event)


class GrantsTwice(Engine):
    """It does not know a key again and gives a second lease."""

    def handle(self, event):
        held = {lease.request.key for lease in self.view.leases.values()}
        if isinstance(event, Requested) and event.request.key in held:
            event = Requested(event.at, replace(event.request, key="somebody new"))
        return super().handle(event)


class ForgetsItsLeases(Engine):
    def handle(self, event):
        if isinstance(event, JobStarted):
            event = JobStarted(
                event.at, event.gpus, event.readings, (), event.waiting, event.profiles
            )
        return super().handle(event)


@pytest.mark.parametrize(
    "engine_type",
    [
        FreesTheDeadAtOnce,
        FreesTheDeadUnseen,
        ForgetsToSave,
        ForgetsWhoWaits,
        LosesARequest,
        GrantsTwice,
        ForgetsItsLeases,
    ],
)
def test_an_engine_with_a_bad_memory_is_found_out(engine_type):
    finds_out(engine_type, start=2)


# --- faults with those who grow ------------------------------------------------------------


def test_blame_for_those_who_kept_their_word_is_found_out(monkeypatch):
    monkeypatch.setattr(Verdict, "is_innocent", False)
    monkeypatch.setattr(profiling, "finished_run", _blames_all)

    assert finds_out(start=11)


def _blames_all(end, watch, usual_s, flat_s):
    peak = max(watch.peak_bytes, end.peak_bytes or 0)
    return Run(end.outcome, peak, 1.0, end.at, end.reserved_bytes, end.arguments)


# --- faults in the choice ------------------------------------------------------------------


def test_starvation_is_found_out(monkeypatch):
    def never_two(request, needs, books, closed=()):
        if request.gpus == 2:
            return Wait(WaitReason.NOT_ENOUGH_GPUS, "maybe tomorrow")
        return place_file.place(request, needs, books, closed)

    monkeypatch.setattr(answers_file, "place", never_two)

    assert "wait for ever" in finds_out()


def test_a_process_that_is_moved_is_found_out(monkeypatch):
    monkeypatch.setattr(place_file, "pinned", lambda request, books: [])
    monkeypatch.setattr(answers_file, "pinned", lambda request, books: [])
    monkeypatch.setattr(refusals_file, "pinned", lambda request, books: [])

    assert "moved" in finds_out(start=2)


def test_a_no_that_is_remembered_too_long_is_found_out(monkeypatch):
    monkeypatch.setattr(place_file.FreeSpace, "has", lambda room, *asked, **how: False)

    finds_out()


def test_a_booking_that_keeps_nobody_off_is_found_out(monkeypatch):
    monkeypatch.setattr(Bookings, "of", lambda *_: NOT_BOOKED)

    assert "booked" in finds_out()


def test_an_unfair_turn_is_found_out(monkeypatch):
    newest = property(lambda group: list(group.in_line())[-1])
    monkeypatch.setattr(Group, "head", newest)

    assert finds_out()
