"""`simple_hypersearch`: print a command for each combination of parameters, for a scheduler.

Translates flags to a grid and prints; nothing is run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys

from grn.errors import GrnError, MachineError, UsageError
from grn.sweep import grid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAME = "simple_hypersearch"
BLOCK_LINES = 1000
_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the commands."""
    options = _parse(argv)
    try:
        names, axes = _parameters(options.p)
        _check(options.pattern, names, axes)
        combinations = _combinations(axes, options)
        _print(options.pattern, names, combinations)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has left
    except OSError as error:
        return _fail(MachineError(f"the commands cannot be written: {error.strerror}."))
    except MemoryError:
        return _fail(MachineError("too many combinations to shuffle.", "Use --sampling-mode grid."))
    except GrnError as error:
        return _fail(error)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="Print a command for each combination of parameters.",
        epilog='Example: simple_hypersearch "python train.py --lr {lr}" -p lr 0.1 0.01',
    )
    parser._negative_number_matcher = _NEGATIVE  # -1e-3 is a value, not a flag
    parser.add_argument(
        "--sampling-mode",
        choices=("shuffled_grid", "grid"),
        default="shuffled_grid",
        help="in which order (default: shuffled_grid)",
    )
    parser.add_argument("--n-samples", type=int, metavar="N", help="print only the first N")
    parser.add_argument("--seed", type=int, metavar="S", help="shuffle the same way each time")
    parser.add_argument(
        "-p", nargs="+", action="append", default=[], metavar=("NAME", "VALUES"),
        help="a parameter and its values; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "pattern", nargs="?", metavar="PATTERN", help="the command, with {NAME} for values"
    )
    options = parser.parse_args(argv)
    if options.pattern is None:
        options.pattern = _pattern_at_the_end(options.p)
    if options.pattern is None:
        parser.error("the following arguments are required: PATTERN")
    if options.n_samples is not None and options.n_samples < 0:
        parser.error("--n-samples must not be negative")
    return options


def _pattern_at_the_end(given: list[list[str]]) -> str | None:
    """Find the pattern after the last -p, where argparse takes it for one of its values."""
    if given and len(given[-1]) > 2 and "{" in given[-1][-1]:
        return given[-1].pop()
    return None


def _parameters(given: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the names and, in the same order, the values of each."""
    if not given:
        raise UsageError("there are no parameters.", "Give one with -p NAME VALUE [VALUE ...].")
    names = [words[0] for words in given]
    for words in given:
        if names.count(words[0]) > 1:
            raise UsageError(
                f"parameter '{words[0]}' is given twice.", "Put all its values behind one -p."
            )
        if len(words) == 1:
            raise UsageError(f"parameter '{words[0]}' has no values.", "Write -p NAME VALUE ...")
    return names, [words[1:] for words in given]


def _check(pattern: str, names: list[str], axes: list[list[str]]) -> None:
    """Refuse a pattern that cannot be filled."""
    try:
        pattern.format(**{name: axis[0] for name, axis in zip(names, axes, strict=True)})
    except KeyError as error:
        name = error.args[0]
        raise UsageError(
            f"the pattern has {{{name}}} and there is no parameter '{name}'.",
            f"Give its values with -p {name} VALUE [VALUE ...].",
        ) from error
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise UsageError(
            f"the pattern cannot be filled: {error}.",
            "Write {NAME} for a value, {{ and }} for braces.",
        ) from error


def _combinations(axes: list[list[str]], options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Yield the combinations in the requested order."""
    if options.sampling_mode == "grid":
        return itertools.islice(grid.product(axes), options.n_samples)
    order = _shuffled(grid.size(axes), options.seed)
    return (grid.nth(axes, index) for index in itertools.islice(order, options.n_samples))


def _shuffled(size: int, seed: int | None) -> Sequence[int]:
    """Shuffle indices: the order is the same as that of shuffled combinations."""
    import random
    from array import array

    order = array("Q", range(size))
    random.seed(seed)
    random.shuffle(order)
    return order


def _print(pattern: str, names: list[str], combinations: Iterator[tuple[str, ...]]) -> None:
    """Print the first command at once and the others in blocks."""
    wanted = 1
    lines = (pattern.format(**dict(zip(names, one, strict=True))) for one in combinations)
    while block := list(itertools.islice(lines, wanted)):
        data = os.fsencode("\n".join(block) + "\n")
        while data:
            data = data[os.write(1, data) :]
        wanted = BLOCK_LINES


def _fail(error: GrnError) -> int:
    os.write(2, os.fsencode(f"{NAME}: {error}\n"))
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
