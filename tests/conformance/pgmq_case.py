"""PGMQ under test: each store has a database to itself, which is emptied and used again; tests set its clock."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import psycopg

from onward.engine.checked import CheckedEngine
from onward.engine.contract import Engine
from onward.engines.pgmq.engine import CAPABILITIES, PGMQEngine
from onward.engines.pgmq.settings import PgmqSettings
from onward.job import JobRef
from onward.lifecycle import JobStatus
from tests.conformance.cases import Caller, EngineCase, Store
from tests.conformance.postgres_case import PsycopgCaller, other_database, refuse_audit
from tests.servers.pgmq import make_database

_free: list[str] = []
"""Databases that nobody uses now, with no queue in them."""

SETTINGS = PgmqSettings(max_reads=1000)
"""The suite counts crashes; what is poison here is for the tests of this engine."""

_EMPTY = """
set client_min_messages = error;
select pgmq.drop_queue(queue_name) from pgmq.meta;
drop schema if exists onward_pgmq cascade;
drop table if exists note;
update clock.hand set at = null;
"""


class PGMQStore(Store):
    """A database with a PGMQ."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.url = _free.pop() if _free else make_database(clock=True)
        self.address = self.url
        self._is_set = False

    def bare(self) -> Engine:
        """See :class:`Store`."""
        if not self._is_set:
            self._set_clock()
        return PGMQEngine(self.url, settings=SETTINGS)

    def _set_clock(self) -> None:
        self._is_set = True
        with psycopg.connect(self.url) as connection:
            connection.execute("update clock.hand set at = %s", [self.clock.now()])

    async def advance(self, by: timedelta | float) -> None:
        """See :class:`Store`."""
        await super().advance(by)
        self._set_clock()

    async def force(self, ref: JobRef, state: JobStatus) -> None:
        """See :class:`Store`."""
        assert state is JobStatus.BLOCKED
        self._by_hand(f"""update pgmq."q_{ref.queue}" set vt = 'infinity' where msg_id = %s""", ref.id)

    async def edit_by_hand(self, ref: JobRef) -> None:
        """See :class:`Store`."""
        self._by_hand(f"""update pgmq."q_{ref.queue}" set message = '{{"by": "hand"}}' where msg_id = %s""", ref.id)

    def refuse_audit(self) -> None:
        """See :class:`Store`."""
        refuse_audit(self.url, "onward_pgmq")

    def _by_hand(self, statement: str, *values: str) -> None:
        with psycopg.connect(self.url) as connection:
            assert connection.execute(statement, values).rowcount == 1

    def new_caller(self) -> Caller:
        """See :class:`Store`."""
        return PsycopgCaller(self.url, "note")

    def new_stranger(self) -> Caller:
        """See :class:`Store`."""
        return PsycopgCaller(other_database(self.url), "note")

    async def close(self) -> None:
        """See :class:`Store`."""
        await super().close()
        with psycopg.connect(self.url) as connection:
            connection.execute(_EMPTY)
        _free.append(self.url)


def attach(address: str) -> CheckedEngine:
    """Make a handle on the store at an address."""
    return CheckedEngine(PGMQEngine(address, settings=SETTINGS))


PGMQ: EngineCase = EngineCase(
    name="pgmq", make=PGMQStore, attach=attach, capable=lambda: CAPABILITIES, has_native_ids=False
)
