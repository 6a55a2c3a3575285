"""How fast one side was in one round, and what becomes of several rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """So many jobs in so many seconds, and the processor time they took."""

    jobs: int
    seconds: float
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds if self.seconds > 0 else 0.0

    @property
    def cpu_per_job(self) -> float:
        """Processor seconds per job: what is left to compare when a machine is too busy for its clock to mean much."""
        return self.cpu_seconds / self.jobs if self.jobs else 0.0


Side = Callable[[], Pace]
"""Measures one side once, on a store of its own."""
Tell = Callable[[str], None]
"""Told how it goes."""


class Paces:
    """What each side did in each round."""

    def __init__(self, by_side: Mapping[str, list[Pace]]) -> None:
        self._by_side = by_side

    def rate(self, side: str) -> float:
        """Jobs per second of a side: the median of its rounds."""
        return statistics.median(pace.rate for pace in self._by_side[side])

    def cpu_per_job(self, side: str) -> float:
        """Processor seconds per job of a side: the median of its rounds."""
        return statistics.median(pace.cpu_per_job for pace in self._by_side[side])


def take_turns(rounds: int, sides: Mapping[str, Side], tell: Tell) -> Paces:
    """Measure each side in each round, one after the other, so that whatever disturbs the machine disturbs all."""
    paces: dict[str, list[Pace]] = {name: [] for name in sides}
    for number in range(1, rounds + 1):
        for name, measure in sides.items():
            pace = measure()
            paces[name].append(pace)
            tell(f"round {number} of {rounds}: {name} {pace.rate:,.0f}/s".replace(",", " "))
    return Paces(paces)


def percentile(values: Sequence[float], percent: int) -> float:
    """Say below which value so many percent of them are: the one that is nearest; 0: there are none."""
    ordered = sorted(values)
    return ordered[min(round(percent / 100 * (len(ordered) - 1)), len(ordered) - 1)] if ordered else 0.0
