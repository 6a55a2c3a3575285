"""Looks, and changes nothing.

A job is a row of its queue's table or of its queue's archive. So a question about several queues is put to several
tables, and the answers are merged: by when a message was sent, then by its id, then by its queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import msgspec
from psycopg import sql

from onward.clock import micros_of, moment_of
from onward.engine.values import GroupBy, JobFilter, Page, QueueInfo, QueueSettings, Retention
from onward.engines.pgmq.headers import backoff_of, header_of
from onward.engines.pgmq.settings import PgmqSettings
from onward.engines.pgmq.statements import SQL, with_schema_name
from onward.job import Job, JobRef
from onward.lifecycle import FINISHED, MAX_ATTEMPTS, JobStatus
from onward.pg.limits.queues import next_permit_of, rate_of
from onward.pg.plan_runner import Plan, Row, Statement
from onward.validation import LAST_MOMENT, LAST_NUMBER, matches, read_cursor

_ARCHIVE_SAMPLE: Final = 100_000
"""Archived messages of a queue that are looked at to say how many of it ended how. PGMQ keeps all, and counts none."""

_GROUP_COLUMNS: Final[Mapping[GroupBy, str]] = {
    GroupBy.STATUS: "status",
    GroupBy.QUEUE: "queue",
    GroupBy.TYPE: "type",
    GroupBy.ORG: "coalesce(org_id, '')",
}

_SELECT_JOBS: Final = """
select queue, msg_id, onward.to_micros(enqueued_at), onward.to_micros(coalesce(last_read_at, claimed_at)),
       case when status = 'scheduled' then onward.to_micros(vt) end, onward.to_micros(archived_at),
       coalesce(message::text, 'null'), header::text, worker_id, status, is_suspect, crashes
  from ({parts}) every
"""


class MessageQuery:
    """A filter as a condition on messages, and the tables that it is put to. Values are always parameters."""

    def __init__(self, which: JobFilter, settings: PgmqSettings, columns: str, names: Sequence[str]) -> None:
        self.values: list[Any] = []
        self._settings = settings
        self._last_read = "m.last_read_at" if "last_read_at" in columns else "null::timestamptz"
        self._parts: list[str] = []
        states = frozenset(JobStatus) if which.status is None else which.status
        if which.finished_before is not None:
            states &= FINISHED
        wanted = set(names)
        if which.refs is not None:
            by_queue: dict[str, list[int]] = {}
            for ref in which.refs:
                if is_id(ref.id):
                    by_queue.setdefault(ref.queue, []).append(int(ref.id))
            wanted &= set(by_queue)
            self._ids = by_queue
        else:
            self._ids = {}
        if which.ids is not None:  # ids are not global here: none is one
            wanted = set()
        if which.queues is not None:
            wanted = {name for name in wanted if any(matches(pattern, name) for pattern in which.queues)}
        self._wanted = [name for name in names if name in wanted]
        self._live, self._archived = bool(states - FINISHED), bool(states & FINISHED)
        if which.types is not None:
            self.add("type = any ({}::text[])", list(which.types))
        if which.status is not None:
            self.add("status = any ({}::text[])", sorted(which.status))
        if which.org_id is not None:
            self.add("org_id = {}::text", which.org_id)
        if which.orgs is not None:
            self.add("org_id = any ({}::text[])", list(which.orgs))
        if which.worker_id is not None:
            self.add("worker_id = {}::text", which.worker_id)
        if which.error_contains is not None:
            self.add("strpos(lower(error), lower({}::text)) > 0", which.error_contains)
        if which.created_after is not None:
            self.add("enqueued_at > onward.to_timestamp({}::bigint)", micros_of(which.created_after))
        if which.created_before is not None:
            self.add("enqueued_at < onward.to_timestamp({}::bigint)", micros_of(which.created_before))
        if which.finished_before is not None:
            self.add("archived_at < onward.to_timestamp({}::bigint)", micros_of(which.finished_before))

    def add(self, fragment: str, *values: Any) -> None:
        """Narrow it further; each ``{}`` in the fragment stands for the next value."""
        self._parts.append(fragment.format(*[self.value(value) for value in values]))

    def value(self, value: Any) -> str:
        """Add a value, and say by which name it is known."""
        self.values.append(value)
        return f"${len(self.values)}"

    def tables(self, order: str = "", *, shares: Mapping[str, float] = MappingProxyType({})) -> list[str]:
        """Write it for each table that it concerns; of archives that are in ``shares``, for that much of it."""
        condition = " and ".join(self._parts) or "true"
        written = []
        for name in self._wanted:
            queue = sql.Literal(name).as_string()
            type_ = self._type_of(name)
            only = "" if name not in self._ids else f" where m.msg_id = any ({self.value(self._ids[name])}::bigint[])"
            for wanted, text, prefix in ((self._live, SQL.live, "q_"), (self._archived, SQL.archived, "a_")):
                if wanted:
                    table = sql.Identifier(prefix + name.lower()).as_string()
                    sample = f"tablesample system ({100 * shares[name]:.6f}) repeatable (0)" if name in shares else ""
                    part = text.format(
                        queue=queue, table=table, type=type_, last_read_at=self._last_read, sample=sample
                    )
                    part += only
                    written.append(f"(select * from ({part}) m where {condition} {order})")  # noqa: S608 - ours only
        return written

    def _type_of(self, name: str) -> str:
        parts = ["onward.job_header(m.headers, m.msg_id, m.enqueued_at) ->> 'type'"]
        if self._settings.type_field is not None:
            parts.append(f"nullif(m.message ->> {sql.Literal(self._settings.type_field).as_string()}, '')")
        parts.append(sql.Literal(self._settings.types.get(name, name)).as_string())
        return f"coalesce({', '.join(parts)})"


def is_id(text: str) -> bool:
    """Say whether a text could be the id of a message."""
    return len(text) < 20 and text.isascii() and text.isdecimal() and int(text) <= LAST_NUMBER


def names() -> Plan[list[str]]:
    """Say which queues there are."""
    return [row[0] for row in (yield Statement(SQL.queue_names))]


def get(ref: JobRef | str, settings: PgmqSettings, columns: str) -> Plan[Job | None]:
    """Find one job. A bare id names none: each queue counts its own."""
    if isinstance(ref, str) or not is_id(ref.id):
        return None
    page = yield from find(JobFilter(refs=(ref,)), None, 1, settings, columns, newest_first=True)
    return page.items[0] if page.items else None


def find(
    which: JobFilter, cursor: str | None, limit: int, settings: PgmqSettings, columns: str, *, newest_first: bool
) -> Plan[Page[Job]]:
    """List jobs by when they were sent."""
    query = MessageQuery(which, settings, columns, (yield from names()))
    if cursor is not None:
        sent, msg_id, queue = _cursor(cursor)
        sign = "<" if newest_first else ">"
        query.add(
            f'(enqueued_at, msg_id, queue collate "C") {sign}'
            " (onward.to_timestamp({}::bigint), {}::bigint, {}::text)",
            sent,
            msg_id,
            queue,
        )
    direction = "desc" if newest_first else "asc"
    max_rows = query.value(limit + 1)
    # Within a table by the id, which its primary key has in order: those were given in the order of sending.
    tables = query.tables(f"order by m.msg_id {direction} limit {max_rows}::bigint")
    if not tables:
        return Page()
    order = (
        f'order by enqueued_at {direction}, msg_id {direction}, queue collate "C" {direction} limit {max_rows}::bigint'
    )
    text = with_schema_name(_SELECT_JOBS.format(parts=" union all ".join(tables)) + order)
    rows = yield Statement(text, query.values)
    shown = rows[:limit]
    last = shown[-1] if len(rows) > limit else None
    cursor = None if last is None else f"{last[2]}.{last[1]}.{last[0]}"
    return Page(items=tuple(job_of(row, settings) for row in shown), next_cursor=cursor)


def _cursor(cursor: str) -> tuple[int, int, str]:
    sent, _, rest = cursor.partition(".")
    msg_id, _, queue = rest.partition(".")
    return read_cursor(cursor, sent, most=LAST_MOMENT), read_cursor(cursor, msg_id), queue


def job_of(row: Row, settings: PgmqSettings) -> Job:
    """Read a job."""
    (queue, msg_id, sent, claimed, due, ended, payload, header_text, worker, status, suspect, crashes) = row
    header = header_of(header_text)
    state = JobStatus(status)
    try:
        type_, text = settings.decode_message(queue, payload, header.type)
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError):
        type_, arguments = header.type or queue, payload  # it is shown as it is
    running = state is JobStatus.RUNNING
    created, ended_at = moment_of(sent), None if ended is None else moment_of(ended)
    claimed_at = None if claimed is None else moment_of(claimed)
    return Job(
        id=str(msg_id),
        type=type_,
        queue=queue,
        status=state,
        org_id=header.org_id,
        payload=arguments,
        worker_id=worker if running or state in FINISHED else None,
        attempts=header.attempts + running,
        max_attempts=header.max_attempts or MAX_ATTEMPTS,
        crashes=header.crashes if crashes is None else crashes,
        is_suspect=suspect,
        backoff=header.backoff,
        last_error=header.error,
        errors=header.errors,
        progress=header.progress,
        progress_message=header.progress_message,
        result=header.result if state is JobStatus.COMPLETED else None,
        next_run_at=None if due is None else moment_of(due),
        created_at=created,
        claimed_at=claimed_at,
        started_at=claimed_at,
        completed_at=ended_at,
        updated_at=max(filter(None, (created, claimed_at, ended_at))),
    )


def count(which: JobFilter, by: GroupBy, settings: PgmqSettings, columns: str) -> Plan[Mapping[str, int]]:
    """Count jobs."""
    query = MessageQuery(which, settings, columns, (yield from names()))
    tables = query.tables()
    if not tables:
        return {}
    text = f"select {_GROUP_COLUMNS[by]} as of, count(*) from ({' union all '.join(tables)}) every group by 1"  # noqa: S608 - ours only
    rows = yield Statement(with_schema_name(text), query.values)
    return {row[0]: row[1] for row in rows}


def queues(pattern: str, settings: PgmqSettings, columns: str) -> Plan[list[QueueInfo]]:
    """List queues with their depth: exact but for long archives, of which a part is looked at."""
    rows = [row for row in (yield Statement(SQL.queues)) if matches(pattern, row[0])]
    query = MessageQuery(JobFilter(queues=(pattern,)), settings, columns, [row[0] for row in rows])
    shares = {row[0]: _ARCHIVE_SAMPLE / row[-1] for row in rows if (row[-1] or 0) > _ARCHIVE_SAMPLE}
    tables = query.tables(shares=shares)
    counts: dict[str, dict[JobStatus, int]] = {}
    oldest: dict[str, datetime] = {}
    if tables:
        text = (
            "select queue, status, count(*), onward.to_micros(min(vt) filter (where status = 'pending'))"  # noqa: S608
            f" from ({' union all '.join(tables)}) every group by 1, 2"
        )
        for queue, status, number, since in (yield Statement(with_schema_name(text), query.values)):
            state = JobStatus(status)
            share = shares.get(queue, 1) if state in FINISHED else 1
            counts.setdefault(queue, {})[state] = round(number / share)
            if since is not None:
                oldest[queue] = moment_of(since)
    return [_queue_of(row, counts.get(row[0], {}), oldest.get(row[0])) for row in rows]


def _queue_of(row: Row, counts: dict[JobStatus, int], oldest: datetime | None) -> QueueInfo:
    (name, paused, lease, max_attempts, backoff, completed, completed_count, failed, failed_count, cancelled,
     pause_reason, paused_by, paused_at, rate_count, rate_period, rate_burst, concurrency, permit_at, now, _
     ) = row  # fmt: skip
    rate = rate_of(rate_count, rate_period, rate_burst)
    settings = QueueSettings(
        paused=paused,
        pause_reason=pause_reason,
        paused_by=paused_by,
        paused_at=None if paused_at is None else moment_of(paused_at),
        rate=rate,
        global_concurrency=concurrency,
        lease=_duration(lease),
        max_attempts=max_attempts,
        backoff=None if backoff is None else backoff_of(backoff),
        retention=Retention(
            completed=_duration(completed),
            completed_count=completed_count,
            failed=_duration(failed),
            failed_count=failed_count,
            cancelled=_duration(cancelled),
        ),
    )
    return QueueInfo(
        name=name,
        settings=settings,
        counts=counts,
        oldest_ready_at=oldest,
        next_permit_at=next_permit_of(rate, permit_at, now),
    )


def _duration(micros: int | None) -> timedelta | None:
    return None if micros is None else timedelta(microseconds=micros)
