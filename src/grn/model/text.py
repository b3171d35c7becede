"""Make text of users safe to print on a terminal."""

from __future__ import annotations

import functools
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_JOINER = "\u200d"
_EMOJI_STYLE = "\ufe0f"  # the character before it is drawn as an emoji, in two columns
_SKIN_TONES = frozenset(map(chr, range(0x1F3FB, 0x1F400)))
# Latin letters, punctuation, arrows, boxes and blocks: one column each, so they need no table.
_ONE_COLUMN = "[ -~\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027\u2190-\u2319\u2500-\u25fc]*"
# A joiner between two emoji: it makes one picture of them. Anywhere else it is only invisible.
_JOINS_EMOJI = (
    "(?<=[\u2600-\u27bf\ufe0f\U0001f000-\U0001faff])\u200d(?=[\u2190-\u2bff\U0001f000-\U0001faff])"
)
_pattern = functools.cache(re.compile)  # when it is used: most commands print plain text


def harmless(text: str) -> str:
    """Escape characters that control a terminal or change the direction of text."""
    if text.isprintable():
        return text
    return _JOINER.join(map(_escaped, _pattern(_JOINS_EMOJI).split(text)))


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii() or _pattern(_ONE_COLUMN).fullmatch(text):
        return len(text)
    return sum(columns for _, columns in _clusters(text))


def cut(text: str, size: int, mark: str = "…") -> str:
    """Cut a text to a number of columns, with a mark where it was cut."""
    if size <= 0:
        return ""
    if columns_of(text) <= size:
        return text
    kept, used = "", 0
    for cluster, columns in _clusters(text):
        used += columns
        if used > size - 1:
            break
        kept += cluster
    return kept + mark


def counted(number: int, noun: str) -> str:
    """Spell a count: `1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _escaped(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )


def _clusters(text: str) -> Iterator[tuple[str, int]]:
    """Cut a text into what a terminal draws as one character, each with its columns."""
    cluster, columns = "", 0
    for char in text:
        own = _columns_of_char(char)
        if char == _EMOJI_STYLE and columns == 1:
            columns = 2
        elif own and not _is_joined(cluster, columns, char):
            if cluster:
                yield cluster, columns
            cluster, columns = "", own
        cluster += char
    if cluster:
        yield cluster, columns


def _is_joined(cluster: str, columns: int, char: str) -> bool:
    """True for a character that is drawn as a part of the emoji before it."""
    if columns < 2:
        return False
    return char in _SKIN_TONES or bool(_pattern(_JOINS_EMOJI).match(cluster[-2:] + char, 1))


@functools.lru_cache(maxsize=4096)
def _columns_of_char(char: str) -> int:
    import unicodedata

    if unicodedata.category(char) in ("Mn", "Me", "Cf") or "\u1160" <= char <= "\u11ff":
        return 0  # accents, invisible characters, and the later parts of a Korean syllable
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def with_job_ids(reason: str, job_of: Callable[[str], int | None]) -> str:
    """Name leases in a reason by their jobs: `(lease 1f2e3d4c)` becomes `(job 41)`."""
    if "(lease " not in reason:
        return reason

    def named(found: re.Match[str]) -> str:
        job = job_of(found[1])
        return found[0] if job is None else f"(job {job}"

    return _pattern(r"\(lease (\w+)").sub(named, reason)
