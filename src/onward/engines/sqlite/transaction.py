"""The transaction that a request runs in: a connection and the time at which the transaction began."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from onward.engines.sqlite.round_robin import RoundRobin
from onward.engines.sqlite.statements import Statement


@dataclass(slots=True)
class Transaction:
    """An open transaction, as the engine's functions use it."""

    connection: sqlite3.Connection
    now: int
    """The store's clock when the transaction began."""
    is_exclusive: bool = True
    """No other request shares it: it may undo as it likes."""
    wakes_workers: bool = False
    """Set by a request that made work ready."""
    round_robins: dict[tuple[str, ...], RoundRobin] = field(default_factory=dict)
    """The positions of claims in their queues, by patterns. The connection that writes keeps them."""

    def execute(self, statement: Statement, named: Mapping[str, Any] = MappingProxyType({})) -> sqlite3.Cursor:
        """Execute one of our statements."""
        return self.connection.execute(statement.numbered, statement.values(named))


class NeedsOwnTransaction(Exception):
    """Raised by a request that cannot go on in company."""
