"""Statements on a queue's tables are prepared once a session, and what is planned for them holds whatever comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onward.engine.checked import CheckedEngine
from onward.engine.values import QueueChange
from onward.engines.pgmq import queries
from onward.engines.pgmq.claims import MAX_CLAIM_BYTES
from onward.engines.pgmq.statements import SQL
from onward.lifecycle import JobStatus

Sql = Callable[..., list[Any]]

COLUMNS = "msg_id, read_ct, enqueued_at, last_read_at, vt, message"
MANY = 20_000


def claim_jobs(connection: psycopg.Connection[Any], *queues: str, slots: int = 10) -> list[tuple[int, int]]:
    """Take messages as a worker does, but in a session that the test can look into; answers their ids and stamps."""
    values = [
        COLUMNS,
        "w",
        False,
        f"{{{','.join(queues)}}}",
        "{}",
        "",
        slots,
        30_000_000,
        False,
        3,
        None,
        "{}",
        MAX_CLAIM_BYTES,
    ]
    answer = psycopg.RawCursor(connection).execute(SQL.claim, values).fetchall()
    return [(row[1], row[7]) for row in answer if row[0] == "m"]


def complete(connection: psycopg.Connection[Any], queue: str, claimed: list[tuple[int, int]]) -> list[Any]:
    """Record that messages are done; answers those that were lost."""
    ids, stamps = zip(*claimed, strict=True)
    assert len(set(stamps)) == 1  # of one claim
    done = [f"{{{queue}}}", "{1}", f"{{{stamps[0]}}}", '{"{}"}', '{"{' + ",".join(map(str, ids)) + '}"}']
    return psycopg.RawCursor(connection).execute(SQL.settle, [*done, *["{}"] * 8, COLUMNS, False]).fetchall()


def rows_read(connection: psycopg.Connection[Any], queue: str) -> tuple[int, int]:
    """Say how many rows this transaction has walked through, and how many it has found by an index."""
    ((walked, found),) = connection.execute(
        "select seq_tup_read, idx_tup_fetch from pg_stat_xact_user_tables where relname = %s", [f"q_{queue}"]
    ).fetchall()
    return walked, found


@pytest.mark.usefixtures("engine")
async def test_what_was_planned_for_an_empty_queue_reads_no_more_of_a_full_one_than_it_needs(url: str, queue: str):
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(3):
            assert claim_jobs(connection, queue) == []
            assert complete(connection, queue, [(1, 5)]) == [(queue, 1, 1, 5)]
        connection.execute(
            "select pgmq.send_batch(%s, array(select '1'::jsonb from generate_series(1, %s)))", [queue, MANY]
        )
        with connection.transaction():
            ids = claim_jobs(connection, queue)
            assert len(ids) == 10
            walked, found = rows_read(connection, queue)
            assert walked == 0
            assert found <= 40
        with connection.transaction():
            assert complete(connection, queue, ids) == []
            walked, found = rows_read(connection, queue)
            assert walked == 0
            assert found <= 40


async def test_a_queue_that_is_dropped_and_made_again_is_served_by_the_same_session(url: str, queue: str, sql: Sql):
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(2):
            sql("select pgmq.send(%s, '1'::jsonb)", queue)
            ids = claim_jobs(connection, queue)
            assert len(ids) == 1
            assert complete(connection, queue, ids) == []
            sql("select pgmq.drop_queue(%s)", queue)
            sql("select pgmq.create(%s)", queue)
        connection.execute("deallocate all")  # as poolers do, and psycopg
        sql("select pgmq.send(%s, '1'::jsonb)", queue)
        assert len(claim_jobs(connection, queue)) == 1


async def test_many_queues_do_not_fill_the_memory_of_a_session(url: str, engine: CheckedEngine, sql: Sql):
    names = [f"many{number}" for number in range(70)]
    for name in names:
        await engine.configure(name, QueueChange())
        sql("select pgmq.send(%s, '1'::jsonb)", name)
    with psycopg.connect(url, autocommit=True) as connection:
        assert len(claim_jobs(connection, *names, slots=100)) == 70
        kept = connection.execute("select name from pg_prepared_statements where from_sql").fetchall()
        assert 0 < len(kept) <= 64


async def test_of_a_long_archive_a_part_is_looked_at(
    engine: CheckedEngine, queue: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
):
    headers = '{"onward": {"status": "completed"}}'
    sql(
        f"insert into pgmq.a_{queue} (msg_id, read_ct, enqueued_at, vt, message, headers)"
        " select n, 1, now(), now(), '1', %s::jsonb from generate_series(1, %s) n",
        headers,
        MANY,
    )
    sql("select pgmq.send(%s, '1'::jsonb)", queue)
    (exact,) = await engine.queues(queue)
    assert exact.counts == {JobStatus.COMPLETED: MANY, JobStatus.PENDING: 1}
    sql(f"analyze pgmq.a_{queue}")
    monkeypatch.setattr(queries, "_ARCHIVE_SAMPLE", MANY // 10)
    (about,) = await engine.queues(queue)
    assert about.counts[JobStatus.PENDING] == 1
    assert about.counts[JobStatus.COMPLETED] != MANY
    assert MANY / 3 < about.counts[JobStatus.COMPLETED] < MANY * 3
