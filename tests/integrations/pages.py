"""The examples of the documentation, to be run against the real libraries."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str) -> list[str]:
    """Return all code blocks of a language, of a page in docs/ or one of examples/."""
    path = ROOT / page if page.startswith("examples") else ROOT / "docs" / page
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """Return what is typed in the consoles of a page, without what is answered."""
    lines = "\n".join(blocks(page, "console")).splitlines()
    return [line[2:] for line in lines if line.startswith("$ ")]
