"""Which files come back from a node, and which paths are never written."""

from __future__ import annotations

import pytest

from grn.model.fetch_patterns import fault_of, is_safe, is_wanted


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("a.csv", "a.csv", True),
        ("a.csv", "b/a.csv", False),
        ("*.csv", "a.csv", True),
        ("*.csv", "b/a.csv", False),
        ("**/*.csv", "a.csv", True),
        ("**/*.csv", "b/c/a.csv", True),
        ("out", "out/deep/x", True),
        ("out/", "out/x", True),
        ("out", "outer/x", False),
        ("out/*", "out/deep/x", True),
        ("out/**/x", "out/x", True),
        ("out/**/x", "out/a/b/x", True),
        ("out/**/x", "out/a/b/y", False),
        ("./out/?.pt", "out/1.pt", True),
        ("out/[0-9].pt", "out/a.pt", False),
        ("**/**/x", "x", True),
        ("a/b", "a", False),
    ],
)
def test_a_pattern_matches_paths_and_all_below_a_folder(
    pattern: str, path: str, is_match: bool
) -> None:
    assert is_wanted(path, (pattern,)) is is_match


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../x", "a//b", "a/.", ".git/hooks/post-commit", "a/.GIT/config",
     "a\0b", "x" * 5000],
)  # fmt: skip
def test_a_path_that_leaves_the_folder_or_enters_git_is_not_safe(path: str) -> None:
    assert not is_safe(path)


def test_a_plain_path_is_safe() -> None:
    assert is_safe("out/.hidden/a..b.csv")


@pytest.mark.parametrize("pattern", ["", "/abs/*", "../*", "a/../../b", "x" * 2000, "a\0"])
def test_a_pattern_that_leaves_the_folder_is_refused(pattern: str) -> None:
    assert fault_of(pattern)


def test_a_relative_pattern_is_taken() -> None:
    assert fault_of("results/**/*.pt") == ""
