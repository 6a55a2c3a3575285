"""What this worker holds: every claim, from the store's giving it until its outcome is stored or it is lost.

The heartbeat reads it from its own thread; everything else happens on the worker's loop.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from onward.engine.values import Claim, Token


class Stage(enum.Enum):
    """How far a held claim has come."""

    WAITING = "waiting"
    """Its handler has not begun."""
    RUNNING = "running"
    SETTLING = "settling"
    """Its outcome is on the way to the store."""
    LOST = "lost"
    """It is somebody else's, or nobody's: whatever its handler says is dropped."""


# By name: looking a member up on its class takes longer than all else that is done with it for a job.
WAITING: Final = Stage.WAITING
RUNNING: Final = Stage.RUNNING
SETTLING: Final = Stage.SETTLING
LOST: Final = Stage.LOST


class HeldClaim(msgspec.Struct, eq=False, gc=False):
    """A claim that this worker holds."""

    claim: Claim
    requested_at: float
    """When the claim was asked for, by the loop's clock: before the store could have made it."""
    stage: Stage = WAITING
    run_seconds: float = 0.0
    """Seconds that its handler has run, once it has ended."""


class Inflight:
    """The claims of one worker, and the tally of what became of those it no longer has."""

    def __init__(self) -> None:
        self._held: dict[Token, HeldClaim] = {}
        self.tally: Counter[str] = Counter()
        """Runs by what became of them: ``complete``, ``retry``, …, and ``stale_rejections``."""

    def __len__(self) -> int:
        """Count the claims held."""
        return len(self._held)

    def add(self, claim: Claim, requested_at: float) -> HeldClaim:
        """Add a claim that the store has just given."""
        held = self._held[claim.token] = HeldClaim(claim, requested_at)
        return held

    def add_all(self, claims: Iterable[Claim], requested_at: float) -> list[HeldClaim]:
        """Add many."""
        held = [HeldClaim(claim, requested_at) for claim in claims]
        self._held.update([(one.claim.token, one) for one in held])
        return held

    def get(self, token: Token) -> HeldClaim | None:
        """Find a claim that is still held."""
        return self._held.get(token)

    def remove(self, token: Token) -> None:
        """Forget a claim: its outcome is stored, or it is lost."""
        self._held.pop(token, None)

    def remove_all(self, tokens: Iterable[Token]) -> None:
        """Forget many."""
        pop = self._held.pop
        for token in tokens:
            pop(token, None)

    def claims(self) -> list[Claim]:
        """List what is held now. From any thread: the copy is made in one step of the interpreter."""
        return [held.claim for held in list(self._held.values())]

    def running(self) -> list[HeldClaim]:
        """List what has begun and not ended."""
        return [held for held in self._held.values() if held.stage is RUNNING]

    def held_before(self, moment: float) -> tuple[Claim, ...]:
        """List the claims that have been held since before a moment of the loop's clock and are not being settled."""
        return tuple(
            held.claim for held in self._held.values() if held.requested_at < moment and held.stage is not SETTLING
        )
