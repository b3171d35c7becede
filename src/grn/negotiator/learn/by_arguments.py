"""What the arguments of a type's runs tell of its next run, as a need and in words."""

from __future__ import annotations

from dataclasses import dataclass

from grn.model.job import Argument
from grn.model.profile import Profile, Run
from grn.model.units import show_size
from grn.negotiator.learn import arguments
from grn.negotiator.learn.margin import FIRST_MARGIN, MIN_SPREAD, Margin
from grn.negotiator.learn.profiling import Peaks, counts_in_full, pad_bytes, show_runs


@dataclass(frozen=True, slots=True)
class ByArguments:
    """What the arguments of a type's runs tell of its next run."""

    line: arguments.FittedLine | None
    groups: arguments.Groups | None
    seen: tuple[dict[str, float | str], ...]
    has_failed: bool
    same: dict[tuple[Argument, ...], Peaks]  # runs by all arguments that may matter

    @staticmethod
    def of(profile: Profile) -> ByArguments:
        """Work it out for a whole profile."""
        full = [run for run in profile.runs if counts_in_full(run) and run.peak_bytes]
        seen = tuple(map(dict, dict.fromkeys(run.arguments for run in full)))
        has_failed = len(full) < len(profile.runs)
        line, groups = arguments.line(full), arguments.groups(full)
        same: dict[tuple[Argument, ...], Peaks] = {}
        if groups is not None or arguments.is_open(full):
            for run in full:
                same.setdefault(arguments.mattering(run.arguments), Peaks()).add(run)
        return ByArguments(line, groups, seen, has_failed, same)

    def stays(self, run: Run, dropped: Run | None, peaks: Peaks) -> bool:
        """True when one more run, and one less, change nothing of all this.

        As long as peaks are alike, arguments tell nothing, and there is nothing to work out.
        """
        if self.line is not None or self.groups is not None or self.same:
            return False
        if not (counts_in_full(run) and run.peak_bytes and dict(run.arguments) in self.seen):
            return False
        if dropped is not None and not (
            counts_in_full(dropped) and dropped.arguments == run.arguments
        ):
            return False
        return not arguments.are_spread(peaks.sizes)

    def covers(self, run: Run) -> bool:
        """True when a run is as these arguments let expect: it changes little of all this."""
        if not counts_in_full(run) or self.beyond(run.arguments) is not None:
            return False
        said = self.bound(run.arguments, 0, FIRST_MARGIN)
        return said is not None and 0.8 * said[0] <= run.peak_bytes <= said[0]

    def bound(
        self, given: tuple[Argument, ...], capacity_bytes: int, margin: Margin
    ) -> tuple[int, str] | None:
        """Return a need and why, None when the arguments tell nothing."""
        values = dict(given)
        found = [self._on_line(values), self._in_group(values, margin), self._alike(given, margin)]
        least = min((one for one in found if one is not None), default=None)
        return None if least is None else (least[0] + pad_bytes(capacity_bytes), least[1])

    def beyond(self, given: tuple[Argument, ...]) -> arguments.Beyond | None:
        """Return what of these arguments goes beyond all runs, None when nothing does."""
        found = arguments.exceeds(given, self.seen)
        if found is None and self.line is not None and len(self.line.names) > 1:
            values = self.line.values(dict(given))  # each was seen, but not together
            found = None if values is None else self.line.beyond(values)
        return found

    def _on_line(self, given: dict[str, float | str]) -> tuple[int, str] | None:
        values = None if self.line is None else self.line.values(given)
        if self.line is None or values is None:
            return None
        at = ", ".join(f"{name}={_spelled(given[name])}" for name in self.line.names)
        text = f"{at} on a line through {show_runs(self.line.runs)}"
        return self.line.bound_bytes(values), text

    def _in_group(self, given: dict[str, float | str], margin: Margin) -> tuple[int, str] | None:
        groups, line = self.groups, self.line
        if groups is None or given.get(groups.name) not in groups.largest_bytes:
            return None
        if line is not None and len(line.names) > 1:
            return None  # one number does not tell when there is a line over two
        value = given[groups.name]
        largest, count = groups.largest_bytes[value], groups.counts[value]
        headroom = margin.for_spread(max(groups.spread, MIN_SPREAD), count)
        text = f"{show_size(largest)} at most in {show_runs(count)} with {groups.name}="
        text += f"{_spelled(value)}, {headroom:.0%} headroom"
        return int(largest * (1 + headroom)), text

    def _alike(self, given: tuple[Argument, ...], margin: Margin) -> tuple[int, str] | None:
        same = self.same.get(arguments.mattering(given))
        if same is None:
            return None
        largest, headroom = max(same.sizes), margin.headroom(same.logs)
        text = f"{show_size(largest)} at most in {show_runs(len(same.sizes))} like it"
        return int(largest * (1 + headroom)), f"{text}, {headroom:.0%} headroom"

    def sentences(self) -> list[str]:
        """Say what arguments tell, for people."""
        found = []
        if self.line is not None:
            found.append(_spelled_line(self.line))
        if self.groups is not None:
            largest = self.groups.largest_bytes.items()
            sizes = ", ".join(f"{_spelled(v)}: {show_size(size)}" for v, size in list(largest)[:8])
            found.append(f"memory depends on {self.groups.name} ({sizes})")
        if not found and self.same:
            found.append("runs differ, too few to tell why: those with the same arguments count")
        return found


def _spelled_line(line: arguments.FittedLine) -> str:
    parts = [
        f"{show_size(int(slope))} for each {' × '.join(term)} (seen from {least:g} to {most:g})"
        for term, slope, least, most in zip(
            line.terms, line.slopes_bytes, line.least, line.most, strict=True
        )
    ]
    fixed = show_size(max(0, int(line.base_bytes)))
    return f"memory lies on a line over {line.text}: {fixed} and {', '.join(parts)}"


def _spelled(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
