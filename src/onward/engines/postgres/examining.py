"""What a doctor should know of the database: gathered by two statements, judged by pure functions, with a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from onward.clock import MICROSECOND
from onward.engines.postgres.schema import Schema
from onward.postgresql.plans import Plan, Row, Statement

LONG: Final = timedelta(minutes=5)
"""How long a transaction may be open before it is worth a word."""
OLD: Final = 10_000_000
"""Transactions after which a replication slot that holds them back is worth a word."""
WRAPS: Final = 1_000_000_000
"""Transactions since the last freeze from which on it is urgent: at two thousand million the database stops."""
SHORT: Final = 10.0
"""Seconds: a statement_timeout below this stops upkeep on a big store."""
MANY_DEAD: Final = 100_000
BIG: Final = 1024**3

INDEXES: Final = frozenset(
    {"job_pkey", "job_id", "job_claim", "job_suspect", "job_promote", "job_later", "job_expire", "job_dedupe",
     "key_pkey", "history_seq", "history_id", "history_prune", "log_pkey", "queue_pkey", "queue_rated", "lane_open",
     "place_pkey", "place_queue", "grip_until", "worker_pkey", "leader_pkey"}
)  # fmt: skip


class Facts(NamedTuple):
    """A row of ``sql/facts.sql``."""

    version: str
    synchronous_commit: str
    fsync: str
    now: int
    full_page_writes: str
    autovacuum: str
    isolation: str
    statement_timeout: float
    frozen_age: int
    sessions: int
    max_connections: int
    live: int
    dead: int
    size: int
    without_a_day: int
    indexes: Sequence[str]

    @property
    def durability(self) -> str:
        """What survives a crash, in plain words."""
        if self.fsync == "off" or self.full_page_writes == "off":
            return "a crash of the server's machine may lose or corrupt everything (fsync or full_page_writes is off)"
        if self.synchronous_commit == "off":
            return "a crash of the server may lose the last moments, and corrupts nothing (synchronous_commit=off)"
        return f"every acknowledged job survives a crash of the server (synchronous_commit={self.synchronous_commit})"


class Pin(NamedTuple):
    """A row of ``sql/pinned.sql``: somebody who keeps the database from cleaning up."""

    kind: str
    name: str
    user: str
    state: str
    seconds: float | None
    query: str


def examine(schema: Schema, *, long: timedelta = LONG, old: int = OLD) -> Plan[tuple[Facts, list[str]]]:
    """Gather what there is to know, and say what is wrong with it."""
    (row,) = yield Statement(schema.facts, [schema.name])
    facts = Facts(*row)
    pins: Sequence[Row] = yield Statement(schema.pinned, [long // MICROSECOND, old])
    return facts, [*_wrong(facts), *(_pinned(Pin(*pin)) for pin in pins)]


def _wrong(facts: Facts) -> Iterator[str]:
    if missing := sorted(INDEXES - set(facts.indexes)):
        yield (
            f"indexes are missing or broken: {', '.join(missing)}; claims and reads will crawl. Make them as in: "
            "onward migrate --sql"
        )
    if facts.isolation != "read committed":
        yield (
            f"default_transaction_isolation is {facts.isolation}: statements of workers will fail and be tried again. "
            "For the workers' role: alter role … set default_transaction_isolation = 'read committed'"
        )
    if facts.autovacuum == "off":
        yield "autovacuum is off: claims get slower with every job that has ended. Set autovacuum = on"
    if 0 < facts.statement_timeout < SHORT:
        yield (
            f"statement_timeout is {facts.statement_timeout:g} s: long upkeep is stopped half-way. For the workers' "
            "role: alter role … set statement_timeout = 0"
        )
    if facts.frozen_age > WRAPS:
        yield (
            f"the oldest unfrozen transaction is {facts.frozen_age:,} back, and at 2,000,000,000 the database stops: "
            "see who pins it below, then run: vacuum (freeze)"
        )
    if facts.sessions > 0.9 * facts.max_connections:
        yield (
            f"{facts.sessions} of {facts.max_connections} connections are in use: raise max_connections, or put "
            "PgBouncer in front"
        )
    if facts.dead > MANY_DEAD and facts.dead > 2 * facts.live:
        yield (
            f"the table of live jobs holds {facts.dead:,} dead rows for {facts.live:,} live ones: somebody pins them, "
            "or autovacuum cannot keep up"
        )
    elif facts.size > BIG and facts.live * 2000 < facts.size:
        yield (
            f"the table of live jobs takes {facts.size / BIG:.1f} GB for {facts.live:,} jobs: a backlog has been "
            "there. To get the space back, at a quiet time: vacuum full onward.job"
        )
    if facts.without_a_day > MANY_DEAD:
        yield (
            f"{facts.without_a_day:,} ended jobs are in no day of the history: no leader has made days for a while. "
            "Is a worker running?"
        )


def _pinned(pin: Pin) -> str:
    since = "" if pin.seconds is None else f" for {timedelta(seconds=int(pin.seconds))}"
    effect = "nothing that ended since can be cleaned up"
    match pin.kind:
        case "session":
            return (
                f"session {pin.name} (user {pin.user}, {pin.state}) has had a transaction open{since}: {effect}. "
                f"Its last statement: {pin.query!r}. To end it: select pg_terminate_backend({pin.name})"
            )
        case "prepared":
            return (
                f"the prepared transaction {pin.name!r} of {pin.user} has been open{since}: {effect}. "
                "Commit it or: rollback prepared"
            )
        case _:
            return (
                f"the replication slot {pin.name!r} ({pin.state}) holds old transactions back: {effect}. "
                "If nobody needs it: select pg_drop_replication_slot('…')"
            )
