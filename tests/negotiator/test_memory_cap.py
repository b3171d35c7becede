"""The part of its GPUs that a job's framework may take."""

from __future__ import annotations

from typing import Any

import pytest

from grn.model.job import Outcome
from grn.model.units import GiB, MiB
from grn.negotiator.actions import SaveRun, Settle
from grn.negotiator.schedule.memory_cap import memory_cap
from tests.builders import MODEL, Story, a_gpu, a_lease, a_profile, a_request

CONTEXT = 512 * MiB


@pytest.mark.parametrize(
    ("lease", "gpus", "cap"),
    [
        ({"reserved_bytes": 4 * GiB}, [24], 0.1875),
        ({"reserved_bytes": 7 * GiB}, [24], 0.3125),
        ({"reserved_bytes": 10 * GiB}, [24], 0.4375),
        ({"reserved_bytes": 1 * GiB}, [23], 0.0653),  # rounded up
        ({"reserved_bytes": 24 * GiB}, [24], None),
        ({"reserved_bytes": 4 * GiB, "is_probe": True}, [24], None),
        ({"reserved_bytes": 4 * GiB, "is_exclusive": True}, [24], None),
        ({"reserved_bytes": 4 * GiB, "gpus": ("GPU-0", "GPU-1")}, [24, 8], 0.5625),
        ({"reserved_bytes": 0, "gpus": ()}, [], None),
    ],
)
def test_a_job_may_take_its_reservation_and_a_context(
    lease: dict[str, Any], gpus: list[int], cap: float | None
) -> None:
    given = [a_gpu(index, total_bytes=size * GiB) for index, size in enumerate(gpus)]

    assert memory_cap(a_lease(**lease), given, CONTEXT) == cap


def hits_its_cap(story: Story, key: str, **told: Any) -> Any:
    story.ends(key, Outcome.OUT_OF_MEMORY, is_limit=True, **told)
    settled = next(one.settled for one in story.actions if isinstance(one, Settle))
    return settled, next(one.run for one in story.actions if isinstance(one, SaveRun))


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_job_that_reaches_its_cap_gets_more_and_no_other_is_blamed(is_alone: bool) -> None:
    story = Story(profiles=(a_profile(4 * GiB),))
    story.asks("a")
    had = story.reserved("a")
    if not is_alone:
        story.asks("b", job_type="b.py", label="b.py", mem_bytes=2 * GiB)
        story.memory = {"a": 3 * GiB, "b": 9 * GiB}  # above its reservation, and yet not to blame
        story.looks()
    settled, run = hits_its_cap(story, "a", asked_bytes=GiB)

    assert settled.because.startswith("reached its cap: ")
    assert (settled.is_victim, settled.was_alone) == (False, False)  # it is run again, with more
    assert (run.outcome, run.peak_bytes) == (Outcome.OUT_OF_MEMORY, had + GiB)
    assert story.engine.view.needs(a_request())[MODEL].need_bytes > had + GiB
    if not is_alone:
        story.memory.pop("a")
        story.ends("b", peak_bytes=9 * GiB)
        assert not next(one.run for one in story.actions if isinstance(one, SaveRun)).note
