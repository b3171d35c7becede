"""The log of a negotiator for the person at its terminal; files keep their key=value lines."""

from __future__ import annotations

import logging
import re

from grn.model.units import show_size

_FACT = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|\S*)")


class TerminalFormatter(logging.Formatter):
    """Writes grants and ends as sentences."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")
        self._names: dict[str, str] = {}  # of leases that run

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = self._sentence(record.message)
        return super().formatMessage(record)

    def _sentence(self, message: str) -> str:
        facts = {name: value.strip("'\"") for name, value in _FACT.findall(message)}
        lease = facts.get("lease", "")
        if facts.get("action") == "grant":
            name = self._names[lease] = facts["type"]
            first = ", first run" if facts["first_run"] == "True" else ""
            return f"{name} gets GPU {facts['gpus']}, {show_size(int(facts['reserved']))}{first}"
        if "outcome" in facts and lease in self._names:
            return f"{self._names.pop(lease)} has ended: {facts['outcome']}"
        return message
