"""Tracks the open claims of this process on a foreign schema: one companion row for each claim statement and queue.

The row says who holds them and until when. It can go when all of them have ended: who has taken a batch counts that,
and tells the store with its next claim. Where that is missed, a leader finds it out when the batch's time has run out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from onward.engine.values import Claim

_MAX_OPEN: Final = 10_000
"""Batches to be kept in mind: of a claim that was lost on the way nobody ever says what became of it."""

_BATCH_FIELD: Final = 4
"""Where a token has its batch."""


def _count_by_batch(claims: Iterable[Claim]) -> Iterable[tuple[int, int]]:
    return Counter([int(claim.token[_BATCH_FIELD]) for claim in claims]).items()


@dataclass(slots=True)
class OpenClaims:
    """The batches that this process has taken, by how much of each is still to be settled."""

    open: dict[int, int] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)

    def add_claimed(self, claims: Iterable[Claim]) -> None:
        """Note what was taken."""
        for batch, count in _count_by_batch(claims):
            self.open[batch] = self.open.get(batch, 0) + count
        while len(self.open) > _MAX_OPEN:
            del self.open[next(iter(self.open))]

    def mark_settled(self, claims: Iterable[Claim]) -> None:
        """Note what has ended, or was lost."""
        for batch, count in _count_by_batch(claims):
            left = self.open.get(batch)
            if left is None:
                continue
            if left > count:
                self.open[batch] = left - count
            else:
                del self.open[batch]
                self.finished.append(batch)

    def take_finished(self) -> list[int]:
        """Give what may be told to the store."""
        finished, self.finished = self.finished, []
        return finished
