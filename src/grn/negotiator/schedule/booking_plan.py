"""Admit bookings: their limits, and GPUs for each that no other booking has at the same time.

Which of the GPUs a booking is given in the end is decided in `bookings.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from grn.errors import NeverFits, UsageError
from grn.model.text import counted
from grn.model.units import show_time
from grn.model.windows import show_moment, show_span
from grn.negotiator.events import Booking
from grn.negotiator.schedule.room.ledger import Rules

MAX_AHEAD_S = 14 * 86400.0
MAX_LENGTH_S = 7 * 86400.0
MIN_LENGTH_S = 1.0
_JUST_NOW_S = 60.0  # a start that is no longer ago is meant as now
_HINT = "Write it like `grn book -g 2 --from 'tomorrow 9:00' --for 4h`."


def admitted(
    wish: Booking, bookings: Collection[Booking], gpus: Sequence[str], now: float, rules: Rules
) -> tuple[Booking, ...]:
    """Return the new booking with its GPUs, then the others that move to make room for it.

    Raises a UsageError when it is beyond the limits, or when too few GPUs are free then.
    """
    if now - _JUST_NOW_S <= wish.start_at < now:
        wish = replace(wish, start_at=now)
    _check_time(wish, now)
    able = [uuid for uuid in gpus if not wish.able or uuid in wish.able]
    if wish.count > len(able):
        text = f"you asked for {counted(wish.count, 'GPU')}; this machine has {len(able)}."
        raise NeverFits(text, "Book fewer.")
    _check_user(wish, bookings, len(gpus), rules)
    found = planned([*bookings, wish], gpus, now)
    if found is None:
        raise _booked(wish, bookings, able, gpus, now)
    changed = [one for one in found if one not in bookings]
    return tuple(sorted(changed, key=lambda one: one.id != wish.id))


def planned(bookings: Iterable[Booking], gpus: Sequence[str], now: float) -> list[Booking] | None:
    """Give each booking GPUs, those it has where possible; None when some booking gets too few.

    In the order of their starts this finds GPUs for all if no moment has more booked than there
    are. Where bookings may not have all GPUs, those with the smallest choice first may succeed.
    """
    found = list(bookings)
    by_start = sorted(found, key=lambda one: (one.start_at > now, one.start_at, one.id))
    by_choice = sorted(by_start, key=lambda one: (one.start_at > now, len(one.able) or math.inf))
    given = _given(by_start, gpus)
    return given if given is not None else _given(by_choice, gpus)


def _given(bookings: Sequence[Booking], gpus: Sequence[str]) -> list[Booking] | None:
    """Give GPUs to one booking after the other: its own first, those of later ones last."""
    given: list[Booking] = []
    for position, one in enumerate(bookings):
        taken = _gpus_of(given, one)
        wanted = _gpus_of(bookings[position + 1 :], one)
        able = [uuid for uuid in gpus if not one.able or uuid in one.able]
        free = [uuid for uuid in able if uuid not in taken]
        count = min(one.count, len(able))  # the machine may have lost GPUs since
        if len(free) < count:
            return None
        own = [uuid for uuid in free if uuid in one.gpus]
        unwanted = [uuid for uuid in free if uuid not in wanted]
        chosen = set(list(dict.fromkeys([*own, *unwanted, *free]))[:count])
        given.append(replace(one, gpus=tuple(uuid for uuid in gpus if uuid in chosen)))
    return given


def _gpus_of(bookings: Iterable[Booking], beside: Booking) -> set[str]:
    """Return the GPUs of bookings that overlap one in time."""
    overlapping = (one for one in bookings if one.overlaps(beside.start_at, beside.end_at))
    return {uuid for one in overlapping for uuid in one.gpus}


def _check_time(wish: Booking, now: float) -> None:
    length_s = wish.end_at - wish.start_at
    if wish.start_at < now:
        text = f"the booking would begin at {show_moment(wish.start_at, now)}, which is past."
        raise UsageError(text, _HINT)
    if not length_s >= MIN_LENGTH_S:
        raise UsageError("the booking has no length.", _HINT)
    if length_s > MAX_LENGTH_S:
        text = f"a booking is at most {MAX_LENGTH_S / 86400:.0f} days long;"
        raise UsageError(f"{text} you asked for {length_s / 86400:.3g}.", "Book a shorter time.")
    if wish.start_at - now > MAX_AHEAD_S:
        text = f"GPUs are booked at most {MAX_AHEAD_S / 86400:.0f} days ahead;"
        raise UsageError(
            f"{text} you asked for {show_moment(wish.start_at, now)}.", "Ask nearer to that day."
        )


def _check_user(wish: Booking, bookings: Collection[Booking], gpus: int, rules: Rules) -> None:
    own = [one for one in bookings if one.user == wish.user]
    if len(own) >= rules.bookings_per_user:
        text = f"a user has at most {counted(rules.bookings_per_user, 'booking')} at a time;"
        ids = ", ".join(str(one.id) for one in own) or "none"
        raise UsageError(f"{text} yours: {ids}.", "Remove one: `grn book rm ID`.")
    most = max(1, math.floor(rules.booking_share * gpus + 1e-9))
    beside = [one for one in own if one.overlaps(wish.start_at, wish.end_at)]
    moments = [max(wish.start_at, one.start_at) for one in (*beside, wish)]
    counts = [sum(one.count for one in beside if one.start_at <= at < one.end_at) for at in moments]
    if most < gpus and wish.count + max(counts) > most:
        text = f"a user may book at most {counted(most, 'GPU')} of this machine at a time"
        raise UsageError(f"{text} (setting booking_share).", "Book fewer.")


def _booked(
    wish: Booking,
    bookings: Collection[Booking],
    able: Sequence[str],
    gpus: Sequence[str],
    now: float,
) -> UsageError:
    """Return the refusal of a booking that has too few GPUs: who has them, and what is free."""
    beside = [one for one in bookings if one.overlaps(wish.start_at, wish.end_at)]
    moments = [wish.start_at, *(max(wish.start_at, one.start_at) for one in beside)]
    free = min(
        len(set(able) - _gpus_of(beside, replace(wish, start_at=at, end_at=at + MIN_LENGTH_S)))
        for at in moments
    )
    who = "; ".join(
        f"{one.user_name} has {one.count} {show_span(one.start_at, one.end_at, now)}"
        for one in sorted(beside, key=lambda one: one.start_at)
    )
    span = show_span(wish.start_at, wish.end_at, now)
    text = f"of {counted(len(able), 'GPU')}, {free} {'is' if free == 1 else 'are'} free {span}"
    if free >= wish.count:  # others cannot be moved, as they may not have all GPUs
        text, free = f"no {counted(wish.count, 'GPU')} are free {span}", 0
    hints = [f"Book {free}"] if free else []
    later = _first_free(wish, bookings, gpus, now)
    if later is not None:
        length = show_time(wish.end_at - wish.start_at)
        some = counted(wish.count, "GPU")
        hints.append(f"{some} can be booked for {length} from {show_moment(later, now)} on")
    return UsageError(f"{text}: {who}.", ("; ".join(hints) or "See `grn book ls`") + ".")


def _first_free(
    wish: Booking, bookings: Collection[Booking], gpus: Sequence[str], now: float
) -> float | None:
    """Return the first start after the wished one at which as many GPUs are free for as long."""
    length_s = wish.end_at - wish.start_at
    for start_at in sorted({one.end_at for one in bookings if one.end_at > wish.start_at}):
        moved = replace(wish, start_at=start_at, end_at=start_at + length_s)
        is_allowed = start_at - now <= MAX_AHEAD_S
        if is_allowed and planned([*bookings, moved], gpus, now) is not None:
            return start_at
    return None
