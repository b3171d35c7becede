"""Which files of a job's folder come back: patterns, and paths that may be written at home.

A pattern is a path relative to the folder. `*`, `?` and `[...]` match within one part of a path,
`**` matches any number of parts, and a pattern that matches a folder matches all files below it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

MAX_PATTERNS = 100
MAX_PATTERN = 1024
MAX_PATH = 4096


def fault_of(pattern: str) -> str:
    """Return why a pattern cannot be used; empty if it can."""
    if not pattern or len(pattern) > MAX_PATTERN or "\0" in pattern:
        return "is not a path pattern"
    if pattern.startswith("/"):
        return "is absolute: files come from the job's folder"
    if ".." in pattern.split("/"):
        return "leaves the job's folder"
    return ""


def is_safe(path: str) -> bool:
    """True for a path that stays below the folder it is written to, and out of `.git`."""
    parts = path.split("/")
    bad = {"", ".", "..", ".git"}
    return len(path) <= MAX_PATH and "\0" not in path and bad.isdisjoint(map(str.lower, parts))


def is_wanted(path: str, patterns: tuple[str, ...]) -> bool:
    """True when a path, or a folder that it is in, matches one of the patterns."""
    parts = path.split("/")
    return any(_begins(parts, _parts(pattern)) for pattern in patterns)


def _parts(pattern: str) -> list[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    return [part for at, part in enumerate(parts) if part != "**" or parts[at - 1 : at] != ["**"]]


def _begins(parts: list[str], pattern: list[str]) -> bool:
    """True when the pattern matches the whole path or its first parts."""
    positions = {0}  # in the pattern, after the parts of the path seen so far
    for part in parts:
        positions = _behind_stars(positions, pattern)
        if len(pattern) in positions:
            return True
        positions = {
            at if pattern[at] == "**" else at + 1
            for at in positions if pattern[at] == "**" or fnmatchcase(part, pattern[at])
        }  # fmt: skip
    return len(pattern) in _behind_stars(positions, pattern)


def _behind_stars(positions: set[int], pattern: list[str]) -> set[int]:
    return positions | {at + 1 for at in positions if pattern[at : at + 1] == ["**"]}
