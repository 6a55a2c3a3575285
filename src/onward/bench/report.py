"""What a scenario has found: one flat object, the same first keys for all of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One scenario's answer."""

    engine: str
    scenario: str
    jobs: int
    onward: float
    """The figure of Onward: the median of the rounds."""
    raw: float | None = None
    """The figure that it stands beside."""
    unit: str
    verified: bool
    """Whether store and ledger agree that every job has been completed, once, with its result."""
    against: str
    """What ``raw`` is, in words."""
    rounds: int
    more: dict[str, Any] = field(default_factory=dict)
    """What only this scenario has."""

    @property
    def ratio(self) -> float | None:
        """Onward's figure in terms of the other."""
        return None if not self.raw else self.onward / self.raw

    def flat(self) -> dict[str, Any]:
        """Lay it out as it is printed, with what the machine was like meanwhile."""
        return {
            "engine": self.engine,
            "scenario": self.scenario,
            "jobs": self.jobs,
            "onward": _short(self.onward),
            "raw": _short(self.raw),
            "ratio": _short(self.ratio),
            "unit": self.unit,
            "verified": self.verified,
            "against": self.against,
            "rounds": self.rounds,
            **{name: _short(value) for name, value in self.more.items()},
            "load": _short(os.getloadavg()[0]),
        }


def _short(value: Any) -> Any:
    """Leave out digits that mean nothing."""
    if not isinstance(value, float):
        return value
    return round(value, 1) if abs(value) >= 100 else float(f"{value:.4g}")
