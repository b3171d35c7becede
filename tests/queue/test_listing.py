"""Lists of ids: as those of rows, in the same order, whatever they are sorted by."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.queue.daemon import Queue, a_queue, being_here


@pytest.mark.parametrize("selection", [
    {"which": "all", "sort": "ran"}, {"which": "ended", "sort": "gpu", "ascending": True},
    {"which": "all", "match": "some"}, {"which": "alive", "states": ["held"]},
    {"which": "all", "name": "some"}, {"which": "all", "most": 3},
])  # fmt: skip
def test_ids_are_those_of_the_rows(shared: Queue, selection: dict[str, object]) -> None:
    with being_here(shared):
        rows = shared.ask("list", **selection)["jobs"]
        ids = shared.ask("list", **selection, ids_only=True)["ids"]
    assert ids == [row["id"] for row in rows]
    assert ids


@pytest.fixture(scope="module")
def shared() -> Iterator[Queue]:
    with a_queue() as queue:
        queue.wake()
        for line in ("sleep 0.02", "true", "exit 3"):
            queue.ended(queue.sh(line, "--name", "some"))
        queue.fine("submit", "--hold", "--name", "some", "--array", "0-2", "--", "true")
        queue.fine("submit", "--hold", "--", "true")
        yield queue
