"""Memory that grows: how fast, robustly, and whether it will have run out before long.

Arithmetic on a few samples; whose memory is followed, and what is done about it, is decided
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

MAX_POINTS = 12
MIN_POINTS = 4
SPAN_S = 30.0  # how far back a track goes


@dataclass(slots=True)
class Track:
    """The last samples of one job on one GPU: at first all, then so far apart that few will do."""

    points: list[tuple[float, int]] = field(default_factory=list)
    step_s: float = 0.0  # no two are closer to each other

    def add(self, at: float, used_bytes: int) -> None:
        """Add a sample, unless it follows the one before too closely."""
        points = self.points
        if points and at - points[-1][0] < self.step_s:
            return
        points.append((at, used_bytes))
        if len(points) <= MAX_POINTS:
            return
        if at - points[0][0] < SPAN_S:
            self.points = points[::2]
            self.step_s = (at - points[0][0]) / (len(self.points) - 1)
        else:
            del points[0]

    def slope(self) -> float:
        """Return the growth in bytes a second: the median over all pairs of samples (Theil-Sen).

        A single jump, or a single wrong sample, moves it little. 0 while there are too few.
        """
        if len(self.points) < MIN_POINTS:
            return 0.0
        slopes = [
            (used - before) / (at - since)
            for place, (at, used) in enumerate(self.points)
            for since, before in self.points[:place]
            if at > since
        ]
        return median(slopes) if slopes else 0.0


def runs_out(used_bytes: int, slope: float, capacity_bytes: int, within_s: float) -> bool:
    """True when memory that grows like this will have reached its limit by then."""
    return slope > 0 and used_bytes + slope * within_s > capacity_bytes
