"""How fast one variant was in one round, and what becomes of several rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
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


Variant = Callable[[], Measurement]
"""Measures one variant once, on a store of its own."""
ReportProgress = Callable[[str], None]
"""Receives one line of progress."""


class Measurements:
    """What each variant did in each round."""

    def __init__(self, by_variant: Mapping[str, list[Measurement]]) -> None:
        self._by_variant = by_variant

    def rate(self, variant: str) -> float:
        """Jobs per second of a variant: the median of its rounds."""
        return statistics.median(measurement.rate for measurement in self._by_variant[variant])

    def cpu_per_job(self, variant: str) -> float:
        """Processor seconds per job of a variant: the median of its rounds."""
        return statistics.median(measurement.cpu_per_job for measurement in self._by_variant[variant])


def run_interleaved(rounds: int, variants: Mapping[str, Variant], report_progress: ReportProgress) -> Measurements:
    """Measure each variant in each round, one after the other, so that whatever disturbs the machine disturbs all."""
    measurements: dict[str, list[Measurement]] = {name: [] for name in variants}
    for number in range(1, rounds + 1):
        for name, measure in variants.items():
            measurement = measure()
            measurements[name].append(measurement)
            report_progress(f"round {number} of {rounds}: {name} {measurement.rate:,.0f}/s".replace(",", " "))
    return Measurements(measurements)


def percentile(values: Sequence[float], percent: int) -> float:
    """Say below which value so many percent of them are: the one that is nearest; 0: there are none."""
    ordered = sorted(values)
    return ordered[min(round(percent / 100 * (len(ordered) - 1)), len(ordered) - 1)] if ordered else 0.0
