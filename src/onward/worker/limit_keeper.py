"""Applies the limits that tasks declare to their queues.

At its start a worker sets them on the queues that exist, so that a change in the code takes effect. Later it looks for
queues of a template that other programs have created; there, limits that an operator has set stay. A tick replaces no
limits: it is a start each time, and an operator's change would hold for seconds.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from onward.engine.checked import CheckedEngine
from onward.engine.declared_limits import DeclaredLimits

CHECK_INTERVAL: Final = timedelta(seconds=5)
"""How long a new queue of a template may be without its limits, if no App has enqueued there."""


class LimitKeeper:
    """Sets declared limits on queues."""

    def __init__(self, engine: CheckedEngine, limits: DeclaredLimits, *, replaces: bool) -> None:
        """``replaces``: whether the first step replaces limits that queues have already."""
        self._engine = engine
        self._replaces = replaces
        self._limits = limits
        self._is_started = False

    @property
    def has_limits(self) -> bool:
        """Whether any are declared."""
        return bool(self._limits)

    async def step(self) -> None:
        """Set the limits of all queues that have not been seen yet."""
        if not self._limits or (self._is_started and not self._limits.has_templates):
            return
        await self._engine.set_limits(replaces=self._replaces and not self._is_started)
        self._is_started = True
