"""Decide what follows the end of an attempt: the end of the job, or another attempt.

Also interprets, for recovery, the files on disk. Pure functions of plain values.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from grn.model.oom_retry import Had, again, again_on_host
from grn.model.units import show_time
from grn.queue.jobs.job import AttemptFate, EndReason, Exit, Settlement

SHORT_S = 0.025  # below what a shim waits before it takes a lease over
_TOLD = {
    EndReason.OK: "ok",
    EndReason.OUT_OF_MEMORY: "oom",
    EndReason.OUT_OF_RAM: "out-of-ram",
    EndReason.CANCELLED: "cancelled",
    EndReason.YIELDED: "yielded",
}
_RAN_OUT = (EndReason.OUT_OF_MEMORY, EndReason.OUT_OF_RAM)


class RetryBudget(Struct, frozen=True):
    """Used and remaining attempts: retries, attempts with more memory, attempts as a victim."""

    left: int = 0
    memory: int = 0
    spared: int = 0


class AttemptEnd(Struct, frozen=True):
    """The job is over."""

    reason: EndReason
    text: str = ""


class RunAgain(Struct, frozen=True):
    """The job goes back into the queue."""

    reason: EndReason  # of the attempt that was not enough
    is_counted: bool  # against the requested retries
    needs_more_memory: bool = False
    is_spared: bool = False  # others took its memory: repeat it unchanged
    has_begun: bool = True
    goes_first: bool = False  # before all others of its priority


def after_exit(
    exit: Exit, settled: Settlement, tries: RetryBudget, is_stopping: bool
) -> AttemptEnd | RunAgain:
    """Decide what follows an attempt that ended."""
    reason = reason_of(exit, settled)
    if reason is EndReason.OK:
        return AttemptEnd(EndReason.OK)
    if is_stopping:
        return AttemptEnd(EndReason.CANCELLED)
    if reason is EndReason.YIELDED:
        return RunAgain(reason, is_counted=False, goes_first=True)
    if reason in (EndReason.NOT_STARTED, EndReason.REQUEUED):
        return RunAgain(reason, is_counted=False)
    room = _more_room(reason, settled, tries)
    if room is not None:
        is_spared = room.spared > tries.spared
        return RunAgain(reason, False, needs_more_memory=not is_spared, is_spared=is_spared)
    may_retry = reason in (EndReason.FAILED, EndReason.OUT_OF_MEMORY, EndReason.OUT_OF_RAM)
    if may_retry and tries.left > 0:
        return RunAgain(reason, is_counted=True)
    return AttemptEnd(reason, exit.text or settled.because or describe(exit, reason))


def _more_room(reason: EndReason, settled: Settlement, tries: RetryBudget) -> Had | None:
    """Count the attempt after one that ran out of memory; None where no more room is possible."""
    has_larger, had = settled.has_larger, Had(tries.memory, tries.spared)
    if settled.was_alone and not has_larger:
        return None
    if reason is EndReason.OUT_OF_RAM:
        return again_on_host(had, settled.is_victim)
    if reason is EndReason.OUT_OF_MEMORY:
        return again(had, settled.is_victim, has_larger=has_larger)
    return None


def as_yielded(exit: Exit) -> Exit:
    """Return the exit of an attempt that was asked to give way; one that ended first keeps its own.

    A shim from before a restart of the queue knows a cancel only.
    """
    return replace(exit, because=EndReason.YIELDED) if exit.because is EndReason.CANCELLED else exit


def as_idle(exit: Exit, text: str) -> Exit:
    """Return the exit of an attempt that was ended as idle; one that ended first keeps its own."""
    if exit.because is not EndReason.CANCELLED:
        return exit
    return replace(exit, because=EndReason.TIMED_OUT, text=text)


def idle_text(idle_s: float) -> str:
    """Explain why an idle job was ended."""
    return f"it held its GPU and used less than 5% of it for {show_time(idle_s)}"


def reason_of(exit: Exit, settled: Settlement) -> EndReason:
    """Name how an attempt ended."""
    if exit.because is not None and exit.because not in _RAN_OUT:
        return exit.because
    if exit.status == 0:
        return EndReason.OK
    if exit.because is EndReason.OUT_OF_RAM or settled.outcome == "out-of-ram":
        return EndReason.OUT_OF_RAM
    if exit.because is EndReason.OUT_OF_MEMORY or settled.outcome == "oom":
        return EndReason.OUT_OF_MEMORY
    return EndReason.FAILED


def why_again(reason: str) -> str:
    """Return the word for a job's later attempt that says how the one before ended."""
    return "yield" if reason == EndReason.YIELDED.value else reason


def past(reason: EndReason, settled: Settlement, text: str = "") -> str:
    """Explain a failed attempt where the job is not to blame; empty where it is."""
    if reason is EndReason.NOT_STARTED:
        return text
    return settled.because if reason in _RAN_OUT else ""


def describe(exit: Exit, reason: EndReason) -> str:
    """Describe in a few words how an attempt ended."""
    if reason is EndReason.OUT_OF_MEMORY:
        return "ran out of GPU memory although it was alone on its GPU"
    if reason is EndReason.OUT_OF_RAM:
        return "was killed by the kernel: host memory ran out"
    if exit.signal is not None:
        return f"ended by signal {exit.signal}"
    return f"exit status {exit.status}"


def after_loss(tries_left: int, is_stopping: bool) -> AttemptEnd | RunAgain:
    """Decide what follows when a shim was killed: how the command ended is not known."""
    if is_stopping:
        return AttemptEnd(EndReason.CANCELLED)
    if tries_left > 0:
        return RunAgain(EndReason.LOST, is_counted=True)
    text = "how it ended is not known: its shim was killed, or could not write the record"
    return AttemptEnd(EndReason.LOST, f"{text}; what was left of it has been ended")


def after_restart(
    fate: AttemptFate, may_requeue: bool, is_stopping: bool, what: str = ""
) -> tuple[str, AttemptEnd | RunAgain]:
    """Decide what follows an attempt that did not survive a restart; also describe it."""
    again = RunAgain(EndReason.INTERRUPTED, is_counted=False)
    if fate is AttemptFate.NOT_BEGUN:
        end = AttemptEnd(EndReason.CANCELLED)
        text = what or "the queue ended before it began"
        return text, end if is_stopping else replace(again, has_begun=False)
    text = what or "the machine went down"
    end = AttemptEnd(EndReason.INTERRUPTED, f"{text} while it ran")
    return text, again if may_requeue and not is_stopping else end


def may_pass_on(exit: Exit) -> bool:
    """True when the lease of an attempt may serve the next job: it is still the queue's own."""
    return exit.status == 0 and exit.ran_s < SHORT_S


def told_to_negotiator(exit: Exit | None) -> dict[str, Any]:
    """Return the report to the negotiator at the end of a lease; None: no attempt ended."""
    if exit is None:
        return {"outcome": "failed"}
    unnamed = "killed" if exit.is_killed else "failed"
    reason = reason_of(exit, Settlement())
    is_capped = reason is EndReason.OUT_OF_MEMORY and exit.is_capped
    said: dict[str, Any] = {"outcome": "capped" if is_capped else _TOLD.get(reason, unnamed)}
    if exit.resident_bytes:
        said["resident"] = exit.resident_bytes
    if exit.gpu_peak_bytes:
        said["peak"] = exit.gpu_peak_bytes
    if exit.asked_bytes:
        said["asked"] = exit.asked_bytes
    return said


def found(*, has_claim: bool, is_locked: bool, has_exit: bool, is_same_boot: bool) -> AttemptFate:
    """Conclude from the files on disk what became of an attempt.

    A held lock proves a living shim, whatever else is there; an exit record counts once the shim is
    gone. Without a claim the attempt never began, and after another boot every attempt that began
    was interrupted.
    """
    if is_locked and is_same_boot:
        return AttemptFate.ALIVE
    if has_exit:
        return AttemptFate.ENDED
    if not is_same_boot:
        return AttemptFate.INTERRUPTED
    return AttemptFate.LOST if has_claim else AttemptFate.NOT_BEGUN
