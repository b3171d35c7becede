"""One enum for how things end, complete on every side."""

from __future__ import annotations

import re
from importlib import resources
from typing import get_args, get_type_hints

import pytest

from grn.cli.report.usage import UNFINISHED
from grn.model import job
from grn.model.outcome import JOB_OUTCOMES, LEASE_OUTCOMES, Outcome, OutcomeKind, kind_of
from grn.protocol.negotiator_requests import DoneRequest
from grn.queue.jobs.job import EndReason
from grn.sweep.manifest import RunState

STYLE = (resources.files("grn.cli.web") / "static" / "style.css").read_text()
COLOURS = {
    OutcomeKind.GOOD: "--good",
    OutcomeKind.BAD: "--bad",
    OutcomeKind.CANCELLED: "--stranger",
    OutcomeKind.INTERRUPTED: "--stranger",
}
BAD = {
    "failed",
    "out-of-memory",
    "out-of-ram",
    "timed-out",
    "not-runnable",
    "refused",
    "lost",
    "killed",
}


def test_queue_and_negotiator_have_the_same_enum() -> None:
    assert EndReason is Outcome
    assert job.Outcome is Outcome
    assert {*JOB_OUTCOMES, *LEASE_OUTCOMES} == set(Outcome)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_a_kind_and_is_read_from_every_word_for_it(outcome: Outcome) -> None:
    assert (outcome.kind is OutcomeKind.BAD) == (outcome.value in BAD)
    assert outcome.kind in (OutcomeKind.GOOD, OutcomeKind.BAD, *UNFINISHED)
    assert Outcome(outcome.value) is Outcome(outcome.lease_word) is outcome


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_a_colour_on_the_page(outcome: Outcome) -> None:
    for word in {outcome.value, outcome.lease_word}:
        rules = re.findall(rf"\.pill\.{word}[, ][^{{]*{{([^}}]*)}}", STYLE)
        assert [rule for rule in rules if COLOURS[outcome.kind] in rule], word
        assert len(rules) == 1, word


def test_words_of_sweeps_and_of_clients_are_outcomes() -> None:
    ends = {state.value for state in RunState} - {RunState.RUNNING.value}
    ends |= {"ok", "failed", "oom", "interrupted", "requeued"}  # those of the diary of a batch
    ends |= set(get_args(get_type_hints(DoneRequest)["outcome"])) - {
        "capped"
    }  # an `oom` of its own

    assert {word for word in ends if kind_of(word) is None} == set()
    assert kind_of("running") is kind_of("") is None
