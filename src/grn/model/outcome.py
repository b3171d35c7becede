"""How a job, an attempt or a lease ended: one enum for the negotiator, the queue and all views."""

from __future__ import annotations

from enum import Enum


class OutcomeKind(Enum):
    """The class of an outcome, for counts and colours."""

    GOOD = "good"
    BAD = "bad"
    CANCELLED = "cancelled"  # its owner did not want it, or not any more
    INTERRUPTED = "interrupted"  # something else ended it; it may run again


class Outcome(Enum):
    """The outcome. Those of jobs are documented in docs/queue.md, those of leases in json.md."""

    OK = "ok"
    FAILED = "failed"
    OUT_OF_MEMORY = "out-of-memory"  # of its GPU
    OUT_OF_RAM = "out-of-ram"  # the kernel killed it since the host's memory was full
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"  # its user stopped it
    NOT_RUNNABLE = "not-runnable"
    REFUSED = "refused"  # its request can never be granted
    SKIPPED = "skipped"  # a job it comes after did not end as it must
    INTERRUPTED = "interrupted"  # the machine went down under it
    YIELDED = "yielded"  # it gave way to another job, or reached its limit; it runs again
    LOST = "lost"  # its shim was killed, or its record is damaged: how it ended is not known
    REQUEUED = "requeued"  # of attempts in records of earlier versions; no job ends so
    NOT_STARTED = "not-started"  # an attempt put off before it began, an unused lease; no job
    KILLED = "killed"  # the holder of a lease ended without a report
    PROFILED = "profiled"  # a run of the type's stand-in, to learn from

    @classmethod
    def _missing_(cls, value: object) -> Outcome | None:
        """Read the other words that are stored and sent for some outcomes."""
        words = {"oom": cls.OUT_OF_MEMORY, "capped": cls.OUT_OF_MEMORY, "finished": cls.OK}
        return words.get(str(value))

    @property
    def lease_word(self) -> str:
        """Return the word in the negotiator's messages and its store."""
        return "oom" if self is Outcome.OUT_OF_MEMORY else self.value

    @property
    def kind(self) -> OutcomeKind:
        """Return the class of this outcome."""
        return _KINDS.get(self, OutcomeKind.BAD)


_KINDS = {
    Outcome.OK: OutcomeKind.GOOD,
    Outcome.PROFILED: OutcomeKind.GOOD,
    Outcome.CANCELLED: OutcomeKind.CANCELLED,
    Outcome.SKIPPED: OutcomeKind.CANCELLED,
    Outcome.INTERRUPTED: OutcomeKind.INTERRUPTED,
    Outcome.YIELDED: OutcomeKind.INTERRUPTED,
    Outcome.REQUEUED: OutcomeKind.INTERRUPTED,
    Outcome.NOT_STARTED: OutcomeKind.INTERRUPTED,
}
LEASE_OUTCOMES = (
    Outcome.OK,
    Outcome.FAILED,
    Outcome.OUT_OF_MEMORY,
    Outcome.OUT_OF_RAM,
    Outcome.KILLED,
    Outcome.PROFILED,
    Outcome.REQUEUED,
    Outcome.CANCELLED,
    Outcome.YIELDED,
    Outcome.NOT_STARTED,
)
JOB_OUTCOMES = tuple(one for one in Outcome if one not in (Outcome.KILLED, Outcome.PROFILED))


def kind_of(word: str) -> OutcomeKind | None:
    """Return the class of an outcome word, None when the word is no outcome (yet)."""
    try:
        return Outcome(word).kind
    except ValueError:
        return None
