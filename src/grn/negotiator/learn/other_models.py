"""Needs on one GPU model, inferred from runs on other models.

Where a model has its own runs, those decide; this module adds the evidence of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from grn.model.job import Profile, Request
from grn.model.units import show_size
from grn.negotiator.learn.arguments import mattering
from grn.negotiator.learn.profiling import counts_in_full
from grn.negotiator.schedule.placement import Need, Size

TAKES_ALL = 0.9  # of a GPU: a job that used this much uses whatever there is


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A lower bound of a need, by a run that ran out of memory alone on a GPU of a model."""

    need_bytes: int
    model: str


def takes_all(largest_bytes: int, size: Size | None) -> bool:
    """True when a job used nearly all of a GPU: that shows nothing of its need on another."""
    return size is not None and largest_bytes >= TAKES_ALL * size.capacity_bytes


def ran_out_alone(
    request: Request, profiles: Collection[Profile], sizes: Mapping[str, Size]
) -> LowerBound | None:
    """Return the highest bound by runs with the same arguments and code, None when there is none.

    A later run that succeeded on the same model removes a bound, except for a job that is run again
    because it ran out of memory.
    """
    alike, found = mattering(request.arguments), None
    for profile in profiles:
        size = sizes.get(profile.model)
        if size is None:
            continue
        for run in reversed(profile.runs):
            is_other_code = bool(request.code and run.code and run.code != request.code)
            if is_other_code or mattering(run.arguments) != alike:
                continue
            if run.ran_out_alone:
                bound = LowerBound(max(run.peak_bytes, size.capacity_bytes + 1), profile.model)
                if found is None or bound.need_bytes > found.need_bytes:
                    found = bound
                break
            if counts_in_full(run) and not request.attempt:
                break
    return found


def fitted(
    needs: Mapping[str, Need],
    bound: LowerBound | None,
    sizes: Mapping[str, Size],
    reach: Collection[str],
) -> dict[str, Need]:
    """Return the needs without the models that are too small for a request.

    `reach` are the models that the request may use. If all of them are too small by the evidence of
    other models, the largest may try as a first run: needs differ between models.
    """
    fitted = dict(needs)
    small = {
        model
        for model in needs
        if bound is not None and sizes[model].capacity_bytes < bound.need_bytes
    }
    if bound is not None and not small.issuperset(reach):
        text = f"ran out of memory with all of a {bound.model}"
        for model in small:
            most = max(bound.need_bytes, needs[model].need_bytes)
            fitted[model] = Need(most, False, text)
    unfit = [
        model for model, need in fitted.items() if need.need_bytes > sizes[model].capacity_bytes
    ]
    guessed = [model for model in unfit if fitted[model].is_probe]
    for model in guessed:
        fitted[model] = replace(fitted[model], is_probe=False)
    reached = [model for model in guessed if model in reach]
    if reached and set(unfit).issuperset(reach):
        largest = max(reached, key=lambda model: sizes[model].capacity_bytes)
        text = f"{show_size(needs[largest].need_bytes)} {needs[largest].because}"
        fitted[largest] = Need(
            sizes[largest].capacity_bytes, True, f"{text}, and no GPU here has that much"
        )
    return fitted
