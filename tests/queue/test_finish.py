"""What the end of an attempt means, and what recovery concludes: tables of plain cases."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from grn.model.oom_retry import MAX_MEMORY_ATTEMPTS, MAX_SPARED
from grn.queue.jobs.finish import (
    AttemptEnd,
    RetryBudget,
    RunAgain,
    after_exit,
    after_loss,
    describe,
    found,
    past,
    reason_of,
    told_to_negotiator,
)
from grn.queue.jobs.job import (
    AttemptFate,
    EndReason,
    Exit,
    Settlement,
)

OOM, OUT_OF_RAM = EndReason.OUT_OF_MEMORY, EndReason.OUT_OF_RAM
SHARED = Settlement("oom", was_alone=False)
ALONE = Settlement("oom", was_alone=True)
LARGER = Settlement("oom", was_alone=True, has_larger=True)
FINE = Settlement("failed")


@pytest.mark.parametrize(
    ("exit", "settled", "reason"),
    [
        (Exit(0), FINE, EndReason.OK),
        (Exit(0), ALONE, EndReason.OK),  # it said so itself, whatever the negotiator saw
        (Exit(0, because=OOM), FINE, EndReason.OK),
        (Exit(1), FINE, EndReason.FAILED),
        (Exit(1), Settlement(None), EndReason.FAILED),
        (Exit(1), ALONE, OOM),
        (Exit(1, because=OOM), FINE, OOM),
        (Exit(None, 9), FINE, EndReason.FAILED),
        (Exit(None, 9), ALONE, OOM),  # the killer of an overflowing virtual GPU
        (Exit(None, 15, EndReason.CANCELLED), FINE, EndReason.CANCELLED),
        (Exit(None, 15, EndReason.CANCELLED), ALONE, EndReason.CANCELLED),
        (Exit(None, 15, EndReason.TIMED_OUT), FINE, EndReason.TIMED_OUT),
        (Exit(127, because=EndReason.NOT_RUNNABLE), FINE, EndReason.NOT_RUNNABLE),
    ],
)
def test_an_attempt_has_one_reason_to_have_ended(
    exit: Exit, settled: Settlement, reason: EndReason
) -> None:
    assert reason_of(exit, settled) is reason


@pytest.mark.parametrize(
    ("exit", "settled", "tries_left", "memory_attempt", "is_stopping", "verdict"),
    [
        (Exit(0), FINE, 3, 0, False, AttemptEnd(EndReason.OK)),
        (Exit(0), FINE, 0, 0, True, AttemptEnd(EndReason.OK)),  # it ended well before it heard
        (Exit(1), FINE, 0, 0, False, AttemptEnd(EndReason.FAILED, "exit status 1")),
        (Exit(1), FINE, 1, 0, False, RunAgain(EndReason.FAILED, is_counted=True)),
        (Exit(1), FINE, 1, 0, True, AttemptEnd(EndReason.CANCELLED)),
        (Exit(None, 11), FINE, 0, 0, False, AttemptEnd(EndReason.FAILED, "ended by signal 11")),
        (Exit(None, 11), FINE, 2, 0, False, RunAgain(EndReason.FAILED, is_counted=True)),
        # Out of memory while sharing is our fault: again, with more room, and not counted.
        (Exit(1, because=OOM), SHARED, 0, 0, False, RunAgain(OOM, False, needs_more_memory=True)),
        (Exit(1, because=OOM), SHARED, 2, 1, False, RunAgain(OOM, False, needs_more_memory=True)),
        (Exit(None, 9), SHARED, 0, 3, False, RunAgain(OOM, False, needs_more_memory=True)),
        (Exit(1, because=OOM), SHARED, 0, 0, True, AttemptEnd(EndReason.CANCELLED)),
        (
            Exit(1, because=OOM), SHARED, 0, MAX_MEMORY_ATTEMPTS, False,
            AttemptEnd(OOM, "ran out of GPU memory although it was alone on its GPU"),
        ),
        (Exit(1, because=OOM), SHARED, 1, MAX_MEMORY_ATTEMPTS, False, RunAgain(OOM, True)),
        # Alone it is the job's own.
        (
            Exit(1, because=OOM), ALONE, 0, 0, False,
            AttemptEnd(OOM, "ran out of GPU memory although it was alone on its GPU"),
        ),
        (Exit(1, because=OOM), ALONE, 1, 0, False, RunAgain(OOM, is_counted=True)),
        # Unless a larger GPU is managed here.
        (
            Exit(1, because=OOM), LARGER, 0, MAX_MEMORY_ATTEMPTS, False,
            RunAgain(OOM, False, needs_more_memory=True),
        ),
        # What another try would not change, or what was asked for.
        (Exit(127, None, EndReason.NOT_RUNNABLE, "x: not found"), FINE, 5, 0, False,
         AttemptEnd(EndReason.NOT_RUNNABLE, "x: not found")),
        (Exit(None, 15, EndReason.TIMED_OUT), FINE, 5, 0, False,
         AttemptEnd(EndReason.TIMED_OUT, "ended by signal 15")),
        (Exit(None, 15, EndReason.CANCELLED), FINE, 5, 0, False,
         AttemptEnd(EndReason.CANCELLED, "ended by signal 15")),
    ],
)  # fmt: skip
def test_what_follows_an_exit(
    exit: Exit,
    settled: Settlement,
    tries_left: int,
    memory_attempt: int,
    is_stopping: bool,
    verdict: object,
) -> None:
    tries = RetryBudget(tries_left, memory_attempt)
    assert after_exit(exit, settled, tries, is_stopping) == verdict


@pytest.mark.parametrize(
    ("tries", "verdict"),
    [
        (RetryBudget(), RunAgain(OOM, False, is_spared=True)),
        (RetryBudget(memory=1), RunAgain(OOM, False, is_spared=True)),
        (RetryBudget(spared=MAX_SPARED), RunAgain(OOM, False, needs_more_memory=True)),
        (RetryBudget(0, MAX_MEMORY_ATTEMPTS, MAX_SPARED), AttemptEnd(OOM, "b.py took its room")),
    ],
)
def test_a_victim_of_others_is_tried_again_as_it_is_but_not_for_ever(
    tries: RetryBudget, verdict: object
) -> None:
    settled = Settlement("oom", was_alone=False, is_victim=True, because="b.py took its room")
    assert after_exit(Exit(1), settled, tries, is_stopping=False) == verdict


def test_what_could_not_be_started_yet_is_tried_again_uncounted() -> None:
    exit = Exit(None, None, EndReason.NOT_STARTED, "no room for a process")
    again = RunAgain(EndReason.NOT_STARTED, is_counted=False)
    assert after_exit(exit, FINE, RetryBudget(), is_stopping=False) == again
    assert after_exit(exit, FINE, RetryBudget(), is_stopping=True) == AttemptEnd(
        EndReason.CANCELLED
    )
    assert past(EndReason.NOT_STARTED, FINE, exit.text) == "no room for a process"


@pytest.mark.parametrize("tries", [RetryBudget(), RetryBudget(2, MAX_MEMORY_ATTEMPTS, MAX_SPARED)])
def test_an_attempt_that_an_earlier_queue_requeued_runs_again_uncounted(tries: RetryBudget) -> None:
    exit = Exit(None, 15, EndReason.REQUEUED)
    again = RunAgain(EndReason.REQUEUED, is_counted=False)
    assert after_exit(exit, FINE, tries, is_stopping=False) == again
    assert after_exit(exit, FINE, tries, is_stopping=True) == AttemptEnd(EndReason.CANCELLED)
    assert after_exit(Exit(0), FINE, tries, is_stopping=False) == AttemptEnd(EndReason.OK)


@pytest.mark.parametrize(
    ("tries_left", "is_stopping", "reason", "is_again"),
    [
        (0, False, EndReason.LOST, False),
        (1, False, EndReason.LOST, True),
        (0, True, EndReason.CANCELLED, False),
        (1, True, EndReason.CANCELLED, False),
    ],
)
def test_what_follows_the_loss_of_a_shim(
    tries_left: int, is_stopping: bool, reason: EndReason, is_again: bool
) -> None:
    verdict = after_loss(tries_left, is_stopping)
    assert verdict.reason is reason
    assert isinstance(verdict, RunAgain) == is_again
    if isinstance(verdict, RunAgain):
        assert verdict.is_counted
        assert not verdict.needs_more_memory


def test_an_end_is_told_in_a_few_words() -> None:
    assert describe(Exit(3), EndReason.FAILED) == "exit status 3"
    assert describe(Exit(None, 6), EndReason.FAILED) == "ended by signal 6"
    assert "alone" in describe(Exit(1), OOM)


# claim, lock, exit, same boot → what became of the attempt
FINDS = {
    (False, False, False, False): AttemptFate.INTERRUPTED,  # a claim may not have reached the disk
    (False, False, False, True): AttemptFate.NOT_BEGUN,
    (False, False, True, False): AttemptFate.ENDED,
    (False, False, True, True): AttemptFate.ENDED,
    (False, True, False, False): AttemptFate.INTERRUPTED,
    (False, True, False, True): AttemptFate.ALIVE,  # between its lock and its claim
    (False, True, True, False): AttemptFate.ENDED,
    (False, True, True, True): AttemptFate.ALIVE,
    (True, False, False, False): AttemptFate.INTERRUPTED,
    (True, False, False, True): AttemptFate.LOST,
    (True, False, True, False): AttemptFate.ENDED,
    (True, False, True, True): AttemptFate.ENDED,
    (True, True, False, False): AttemptFate.INTERRUPTED,
    (True, True, False, True): AttemptFate.ALIVE,
    (True, True, True, False): AttemptFate.ENDED,
    (True, True, True, True): AttemptFate.ALIVE,  # about to let go of its lock
}


@pytest.mark.parametrize("facts", list(itertools.product((False, True), repeat=4)))
def test_what_is_on_disk_tells_what_became_of_an_attempt(
    facts: tuple[bool, bool, bool, bool],
) -> None:
    has_claim, is_locked, has_exit, is_same_boot = facts
    seen = found(
        has_claim=has_claim, is_locked=is_locked, has_exit=has_exit, is_same_boot=is_same_boot
    )
    assert seen is FINDS[facts]


def test_an_attempt_that_may_have_begun_never_begins_again() -> None:
    for (has_claim, is_locked, _, is_same_boot), seen in FINDS.items():
        if has_claim or is_locked or not is_same_boot:
            assert seen is not AttemptFate.NOT_BEGUN


def test_the_negotiator_hears_that_a_job_was_cancelled() -> None:
    cancelled = Exit(None, 15, EndReason.CANCELLED, resident_bytes=9)
    assert told_to_negotiator(cancelled) == {"outcome": "cancelled", "resident": 9}
    assert told_to_negotiator(Exit(None, 15, EndReason.TIMED_OUT)) == {"outcome": "failed"}


def test_the_negotiator_gets_the_peak_that_a_command_reported() -> None:
    assert told_to_negotiator(Exit(0, gpu_peak_bytes=5)) == {"outcome": "ok", "peak": 5}
    assert told_to_negotiator(Exit(0, gpu_peak_bytes=0)) == {"outcome": "ok"}


def test_the_negotiator_hears_of_a_kill_that_none_of_ours_sent_and_of_a_limit_that_was_hit() -> (
    None
):
    killed = Exit(None, 9, is_killed=True)
    assert told_to_negotiator(killed) == {"outcome": "killed"}
    assert told_to_negotiator(replace(killed, because=OUT_OF_RAM)) == {"outcome": "out-of-ram"}
    cancelled = replace(killed, because=EndReason.CANCELLED)
    assert told_to_negotiator(cancelled) == {"outcome": "cancelled"}


def test_the_negotiator_hears_of_a_cap_that_was_reached() -> None:
    capped = Exit(1, because=OOM, asked_bytes=7, is_capped=True)
    assert told_to_negotiator(capped) == {"outcome": "capped", "asked": 7}
    assert told_to_negotiator(replace(capped, because=EndReason.TIMED_OUT))["outcome"] == "failed"


BESIDE = Settlement("out-of-ram", was_alone=False, because="ran out of host memory")


def test_a_job_that_the_kernel_killed_gets_more_room_by_what_the_negotiator_has_learned() -> None:
    killed = Exit(None, 9, is_killed=True)
    again = after_exit(killed, BESIDE, RetryBudget(), False)
    assert again == RunAgain(OUT_OF_RAM, is_counted=False, is_spared=True)
    spent = RetryBudget(spared=MAX_SPARED)
    assert after_exit(killed, BESIDE, spent, False) == AttemptEnd(
        OUT_OF_RAM, "ran out of host memory"
    )


@pytest.mark.parametrize("exit", [Exit(None, 9, OUT_OF_RAM), Exit(None, 9, is_killed=True)])
def test_alone_or_at_its_own_limit_a_job_gets_only_the_retries_it_asked_for(exit: Exit) -> None:
    alone = Settlement("out-of-ram", because="reached its own limit")
    end = AttemptEnd(OUT_OF_RAM, "reached its own limit")
    assert after_exit(exit, alone, RetryBudget(), False) == end
    assert after_exit(exit, alone, RetryBudget(left=1), False) == RunAgain(OUT_OF_RAM, True)


def test_a_kill_without_evidence_is_a_failure() -> None:
    end = after_exit(Exit(None, 9, is_killed=True), Settlement("failed"), RetryBudget(), False)
    assert end == AttemptEnd(EndReason.FAILED, "ended by signal 9")
