"""Leadership: at most one worker of all tends the store, for a term at a time (O6).

States: *follower* (somebody else leads, or nobody does yet: tries to be elected now and then), *leader* (holds a term
and trusts it), *doubtful* (holds a term but could not renew it in time: does nothing that only a leader may, until the
store has confirmed the term or given it to another).

Trust is counted from before the question was asked, so a slow answer does not lengthen it, and ends before the lease
does. It only saves useless writes: each write of a leader matches the term in its own statement, so that one who was
stopped past its lease and goes on changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from onward.engine.contract import Maintenance
from onward.engine.values import Term

log = logging.getLogger("onward.worker")

_RENEWALS_PER_LEASE: Final = 3
_ELECTION_INTERVAL: Final = 4.0
"""Seconds between two tries to be elected: with the lease itself, a dead leader is replaced within lease + 5 s."""
_TRUSTED_LEASE_FRACTION: Final = 0.8
"""How much of a lease is trusted: the rest is for clocks that do not run alike."""


class Leader:
    """Tries to hold the term, and says whether it does."""

    def __init__(self, engine: Maintenance, worker_id: str, *, lease: timedelta) -> None:
        self.on_elected: Callable[[], None] = lambda: None
        self._engine = engine
        self._worker_id = worker_id
        self._lease = lease
        self._term: Term | None = None
        self._trusted_until = 0.0
        self._last_number = 0
        self.is_follower = False
        """Whether the last election went to another worker."""

    @property
    def term(self) -> Term | None:
        """The term, as long as it can be trusted."""
        if self._term is None or asyncio.get_running_loop().time() >= self._trusted_until:
            return None
        return self._term

    @property
    def interval(self) -> timedelta:
        """How often to take a step at least."""
        return self._lease / _RENEWALS_PER_LEASE

    async def step(self) -> float | None:
        """Renew the term, or try to get one; say in how many seconds to try again, None: at the next step."""
        requested_at = asyncio.get_running_loop().time()
        previous = self._term
        self._term = await self._engine.elect(self._worker_id, lease=self._lease, current_term=previous)
        self.is_follower = self._term is None
        if self._term is not None:
            self._trusted_until = requested_at + self._lease.total_seconds() * _TRUSTED_LEASE_FRACTION
        if previous is None and self._term is not None:
            if self._term.number <= self._last_number:  # numbers only rise
                log.warning(
                    "the store has gone back in time: recent commits are lost, and jobs that ended in them run again",
                    extra={"worker_id": self._worker_id, "term": self._term.number, "last_term": self._last_number},
                )
            self._last_number = self._term.number
            log.info("elected leader", extra={"worker_id": self._worker_id, "term": self._term.number})
            self.on_elected()
        elif previous is not None and self._term is None:
            log.warning("leadership lost", extra={"worker_id": self._worker_id, "term": previous.number})
        return _ELECTION_INTERVAL if self._term is None else None

    async def resign(self) -> None:
        """Give the term up, so that another can lead at once."""
        term, self._term = self._term, None
        if term is not None:
            await self._engine.resign(term)
