"""The log of a negotiator in the foreground reads as sentences."""

from __future__ import annotations

import logging

from grn.negotiator.__main__ import TerminalFormatter


def test_grants_and_ends_are_sentences_and_all_else_stays() -> None:
    shown = TerminalFormatter()

    def said(text: str) -> str:
        record = logging.LogRecord("grn", logging.INFO, "", 0, text, (), None)
        return shown.format(record).split(" ", 1)[1]

    grant = "action=grant lease=ab12 type='job.py::train' gpus=0 reserved=997685112 first_run=True"
    assert said(grant) == "job.py::train gets GPU 0, 951 MiB, first run"
    assert said("action=done lease=ab12 outcome=ok") == "job.py::train has ended: ok"
    assert said("gpu=0 health=lost") == "gpu=0 health=lost"
