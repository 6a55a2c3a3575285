"""Sessions that keep workers from claiming, as ``onward doctor`` names them: found by a statement of each engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from onward.clock import MICROSECOND
from onward.pg.plan_runner import Plan, Row, Statement

LONG_LOCK: Final = timedelta(seconds=2)
"""How long a session may hold a lock that claims need before it is a problem: to change settings takes ms."""


class ClaimBlocker(NamedTuple):
    """A row of an engine's ``sql/claim_blockers.sql``: a session that lets nobody claim."""

    session: str
    user: str
    state: str
    seconds: float | None
    table: str
    query: str

    def __str__(self) -> str:
        """Say who blocks claims, since when, and how to end it."""
        since = "" if self.seconds is None else f" for {timedelta(seconds=int(self.seconds))}"
        return (
            f"session {self.session} (user {self.user}, {self.state}) holds a lock on {self.table}{since}: "
            f"no worker can claim a job. Its last statement: {self.query!r}. "
            f"To end it: select pg_terminate_backend({self.session})"
        )


def claim_problems(text: str, long_lock: timedelta = LONG_LOCK) -> Plan[list[str]]:
    """Find the sessions that have blocked claims for longer than ``long_lock``."""
    rows: Sequence[Row] = yield Statement(text, [long_lock // MICROSECOND])
    return [str(ClaimBlocker(*row)) for row in rows]
