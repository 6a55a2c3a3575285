"""What a doctor should know of the database: gathered by two statements, judged by pure functions, with a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from onward.clock import MICROSECOND
from onward.engines.postgres.statements import Schema
from onward.pg.claim_blockers import LONG_LOCK, claim_problems
from onward.pg.durability_report import Durability
from onward.pg.listener import PROBE_INTERVAL
from onward.pg.plan_runner import Plan, Row, Statement

LONG_TRANSACTION: Final = timedelta(minutes=5)
"""How long a transaction may be open before it is worth a word."""
OLD_SLOT_AGE: Final = 10_000_000
"""Transactions after which a replication slot that holds them back is worth a word."""
WRAPAROUND_AGE: Final = 1_000_000_000
"""Transactions since the last freeze from which on it is urgent: at two thousand million the database stops."""
SHORT_TIMEOUT: Final = 10.0
"""Seconds: a statement_timeout or transaction_timeout below this stops upkeep on a big store."""
SHORT_LOCK_TIMEOUT: Final = 1.0
"""Seconds: who waits for a lock waits for others' turns, all of which together take less, unless somebody is stuck."""
MANY_DEAD: Final = 100_000
BIG_TABLE: Final = 1024**3

INDEXES: Final = frozenset(
    {"archive_batch", "archive_id", "archive_progress_pkey", "archive_prune", "archive_row_id", "archive_row_seq",
     "archive_row_until", "archive_seq", "audit_actor", "audit_at", "audit_id", "audit_pkey", "audit_target",
     "batch_event_pkey", "batch_finished", "batch_pkey", "batch_seq_key", "concurrency_permit_pkey",
     "concurrency_permit_queue", "deferred_heartbeat_pkey", "dependency_batch", "dependency_pkey",
     "dependency_unresolved", "event_cursor_pkey", "event_log_pkey", "event_pkey", "history_batch", "history_id",
     "history_prune", "history_seq", "identity_pkey", "job_batch", "job_claim", "job_dedupe", "job_expire", "job_id",
     "job_later", "job_pkey", "job_promote", "job_suspect", "key_pkey", "lane_open", "leader_pkey",
     "lease_batch_until", "log_pkey", "migration_pkey", "queue_paused", "queue_pkey", "queue_rated", "schedule_due",
     "schedule_pkey", "session_expires", "session_pkey", "session_token", "throttle_pkey", "throttle_until",
     "token_pkey", "usage_grain", "worker_pkey"}
)  # fmt: skip
"""All that the migrations make. Those of a part of a table stand and fall with the whole table's."""


class ServerFacts(NamedTuple):
    """A row of ``sql/server_facts.sql``."""

    version: str
    now: int
    role: str
    """Ours, as it is written in SQL; so are the next two."""
    database: str
    schema: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    is_standby: bool
    read_only: str
    autovacuum: str
    track_counts: str
    statement_timeout: float
    transaction_timeout: float
    """Since PostgreSQL 17; 0 before, as where it is not set."""
    lock_timeout: float
    idle_session_timeout: float
    frozen_age: int
    sessions: int
    max_connections: int
    live: int
    dead: int
    size: int
    in_default_partition: int
    indexes: Sequence[str]
    without_replica_identity: Sequence[str]

    @property
    def durability(self) -> Durability:
        """What survives a crash."""
        return Durability(self.fsync, self.full_page_writes, self.synchronous_commit)

    def setting(self, name: str, value: str) -> str:
        """Write how something is set for our role here, whatever else is said of it elsewhere."""
        return f"alter role {self.role} in database {self.database} set {name} = {value}"


class VacuumBlocker(NamedTuple):
    """A row of ``sql/vacuum_blockers.sql``: somebody who keeps the database from cleaning up."""

    kind: str
    name: str
    user: str
    state: str
    seconds: float | None
    query: str


class Diagnosis(NamedTuple):
    """What there is to know, and what is wrong with it: see :class:`EngineInfo`."""

    facts: ServerFacts
    problems: list[str]
    warnings: list[str]


def diagnose(
    schema: Schema,
    *,
    long_transaction: timedelta = LONG_TRANSACTION,
    old_slot_age: int = OLD_SLOT_AGE,
    long_lock: timedelta = LONG_LOCK,
) -> Plan[Diagnosis]:
    """Gather what there is to know, and say what is wrong with it."""
    (row,) = yield Statement(schema.server_facts, [schema.name])
    facts = ServerFacts(*row)
    blockers: Sequence[Row] = yield Statement(schema.vacuum_blockers, [long_transaction // MICROSECOND, old_slot_age])
    claims = yield from claim_problems(schema.claim_blockers, long_lock)
    return Diagnosis(
        facts,
        [*_problems(facts), *claims],
        [*_warnings(facts), *(_blocker_warning(VacuumBlocker(*blocker)) for blocker in blockers)],
    )


def _problems(facts: ServerFacts) -> Iterator[str]:
    if facts.is_standby:
        yield (
            "this is a standby, where no job can be added or run. Give the address of the primary, or of all hosts "
            "with target_session_attrs=read-write"
        )
    elif facts.read_only == "on":
        yield (
            "default_transaction_read_only is on: no job can be added or run. To mend that: "
            + facts.setting("default_transaction_read_only", "off")
        )
    yield from facts.durability.problems()


def _warnings(facts: ServerFacts) -> Iterator[str]:
    yield from facts.durability.warnings()
    yield from _settings(facts)
    yield from _server(facts)
    yield from _tables(facts)


def _settings(facts: ServerFacts) -> Iterator[str]:
    """Look at what is set for our role. Not at idle_in_transaction_session_timeout: no transaction of ours idles."""
    if 0 < facts.statement_timeout < SHORT_TIMEOUT:
        yield (
            f"statement_timeout is {facts.statement_timeout:g} s: long upkeep is stopped half-way. "
            "To mend that: " + facts.setting("statement_timeout", "0")
        )
    if 0 < facts.transaction_timeout < SHORT_TIMEOUT:
        yield (
            f"transaction_timeout is {facts.transaction_timeout:g} s: long upkeep is stopped half-way, and its "
            "connection is cut. To mend that: " + facts.setting("transaction_timeout", "0")
        )
    if 0 < facts.lock_timeout < SHORT_LOCK_TIMEOUT:
        yield (
            f"lock_timeout is {facts.lock_timeout:g} s: who waits for another's turn at the same jobs, or at a limited "
            "queue, fails instead, and a worker pauses before it tries again. To mend that: "
            + facts.setting("lock_timeout", "0")
        )
    if 0 < facts.idle_session_timeout <= PROBE_INTERVAL:
        yield (
            f"idle_session_timeout is {facts.idle_session_timeout:g} s: workers are cut off while they listen for new "
            "jobs, which wait then until they are looked for. To mend that: "
            + facts.setting("idle_session_timeout", "0")
        )


def _server(facts: ServerFacts) -> Iterator[str]:
    if facts.autovacuum == "off":
        yield "autovacuum is off: claims get slower with every job that has ended. Set autovacuum = on"
    if facts.track_counts == "off":
        yield (
            "track_counts is off, so autovacuum does not know where to clean up: claims get slower with every job that "
            "has ended. Set track_counts = on"
        )
    if facts.frozen_age > WRAPAROUND_AGE:
        yield (
            f"the oldest unfrozen transaction is {facts.frozen_age:,} back, and at 2,000,000,000 the database stops: "
            "see who pins it below, then run: vacuum (freeze)"
        )
    if facts.sessions > 0.9 * facts.max_connections:
        yield (
            f"{facts.sessions} of {facts.max_connections} connections are in use: raise max_connections, or put "
            "PgBouncer in front"
        )


def _tables(facts: ServerFacts) -> Iterator[str]:
    if missing := sorted(INDEXES - set(facts.indexes)):
        yield (
            f"indexes are missing or broken: {', '.join(missing)}; claims and reads will crawl. Make them as in: "
            "onward migrate --sql"
        )
    if facts.without_replica_identity:
        yield (
            f"tables have no replica identity: {', '.join(facts.without_replica_identity)}; where all tables are "
            "published (Debezium, a logical upgrade), jobs cannot be rescued, pruned or deleted. Set it as in: "
            "onward migrate --sql"
        )
    if facts.dead > MANY_DEAD and facts.dead > 2 * facts.live:
        yield (
            f"the table of live jobs holds {facts.dead:,} dead rows for {facts.live:,} live ones: somebody pins them, "
            "or autovacuum cannot keep up. See first who is named below. If nobody is: "
            f"vacuum {facts.schema}.job; and if they come back, its workers are busy elsewhere: raise "
            "autovacuum_max_workers"
        )
    elif facts.size > BIG_TABLE and facts.live * 2000 < facts.size:
        yield (
            f"the table of live jobs takes {facts.size / BIG_TABLE:.1f} GB for {facts.live:,} jobs: a backlog has been "
            f"there. To get the space back, at a quiet time: vacuum full {facts.schema}.job"
        )
    if facts.in_default_partition > MANY_DEAD:
        yield (
            f"{facts.in_default_partition:,} ended jobs are in no day of the history: no leader has made days for a "
            "while. Is a worker running?"
        )


def _blocker_warning(blocker: VacuumBlocker) -> str:
    kind, name, user, state, seconds, query = blocker
    since = "" if seconds is None else f" for {timedelta(seconds=int(seconds))}"
    effect = "nothing that ended since can be cleaned up"
    match kind:
        case "session":
            return (
                f"session {name} (user {user}, {state}) has had a transaction open{since}: {effect}. "
                f"Its last statement: {query!r}. To end it: select pg_terminate_backend({name})"
            )
        case "prepared":
            return (
                f"the prepared transaction {name} of {user} has been open{since}: {effect}. "
                f"Commit it or: rollback prepared {name}"
            )
        case "standby":
            return (
                f"the standby {name} (user {user}, {state}) holds old transactions back for a query there: "
                f"{effect}. End that query, or set hot_standby_feedback = off there"
            )
        case "hidden":
            return (
                f"who keeps the database from cleaning up cannot be seen: our role may not look at {name} sessions "
                f"of others. To let it: grant pg_monitor to {user}"
            )
        case "decoding slot":
            effect = "the database's own tables cannot be cleaned up, and its log since then is kept"
    return (
        f"the replication slot {name} ({state}) holds old transactions back: {effect}. See what whoever reads "
        f"it is waiting for, or if nobody needs it: select pg_drop_replication_slot({name})"
    )
