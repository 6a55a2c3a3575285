"""Each statement of a leader's upkeep matches the term by itself, whatever was asked before it (O6).

Those that tests/conformance/test_leader.py cannot tell apart: it sees only the jobs, and what all of them do together.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
import pytest

from onward.batches.values import BATCH_KEPT, NewBatch
from onward.clock import MICROSECOND
from onward.engine.values import Claim, Retention, Settlement, Term
from onward.engines.postgres.statements import Schema
from onward.job import JobRef
from onward.lifecycle import Complete
from onward.metering import Meter
from tests.conformance.driver import PAST_LEASE, Driver, new_job
from tests.conformance.postgres_case import PostgresStore
from tests.engines.postgres.test_lanes import by_hand

MINUTE = timedelta(minutes=1)


class Write(NamedTuple):
    """A statement that only a leader may do."""

    name: str
    values: tuple[int, ...]
    """What it is told besides the time and the term."""
    look: str
    """Reads what it changes."""


WRITES = [
    Write(
        "rotate_partitions",
        (1000,),
        "select inhparent::regclass::text, inhrelid::regclass::text from pg_inherits"
        " where inhparent in ('onward.history_done'::regclass, 'onward.archive_days'::regclass) order by 1, 2",
    ),
    Write("prune_archive", (1000,), "select seq from onward.archive_rows order by 1"),
    Write("usage_roll_up", (), "select grain, count(*) from onward.usage group by 1 order by 1"),
    Write("throttle_prune", (1000,), "select digest from onward.throttle order by 1"),
    Write(
        "batch_prune",
        (1000, BATCH_KEPT // MICROSECOND),
        "select (select array_agg(name) from onward.batch), (select array_agg(batch) from onward.dependency)",
    ),
    Write("move_watermark", (1_234_567,), "select last_value, is_called from onward.watermark"),
]


async def something_to_do(driver: Driver) -> None:
    """Leave work for all of them: a day, an archived job, usage, a hold and a batch whose time is over, each."""
    await driver.prune()  # makes days
    await driver.set("brief", retention=Retention(completed=MINUTE, archived=MINUTE))
    for queue in ("long", "brief"):
        await driver.add(queue=queue)
        assert await driver.end(await driver.take_one(queue), Complete())
    await driver.advance(MINUTE)
    await driver.prune()  # archives the job of the one queue
    await driver.enqueue(queue="held", dedupe_key="k", throttle=MINUTE)
    assert await driver.end(await driver.take_one("held"), Complete())
    await driver.engine.save_batch(
        NewBatch(name="import", sealed=True),
        [new_job(queue="batched", batch="import"), new_job(queue="batched", batch="import", after=(0,))],
    )
    for _ in range(2):
        assert await driver.end(await driver.take_one("batched"), Complete())
        await driver.promote()
    meter = Meter()
    run = Claim(
        ref=JobRef("held", "1"), token=(1, 1), type="send", payload="{}", attempts=1, started=True, wait_seconds=0.2
    )
    meter.add([Settlement(run, Complete(), 1.0)])
    await driver.engine.record_usage(meter.take())
    await driver.advance(BATCH_KEPT + MINUTE)


def do(store: PostgresStore, write: Write, term: Term) -> None:
    """Do it by itself, as somebody who believes that the term is theirs."""
    schema = Schema(store.schema, clock=store.clock)
    values: list[Any] = [schema.now, term.number, term.leader_id, *write.values]
    with psycopg.connect(store.url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        connection.execute(getattr(schema, write.name), values)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.name)
async def test_who_has_been_followed_writes_nothing_and_who_follows_does(
    driver: Driver, store: PostgresStore, write: Write
):  # O6
    await something_to_do(driver)
    old = await driver.lead("a")
    await driver.advance(PAST_LEASE)
    before = by_hand(store, write.look)
    do(store, write, old)
    assert by_hand(store, write.look) == before, "its lease is over"
    present = await driver.lead("b")
    for term in (old, Term(old.number, present.leader_id, present.until), Term(present.number, "a", present.until)):
        do(store, write, term)
        assert by_hand(store, write.look) == before, term
    do(store, write, present)
    assert by_hand(store, write.look) != before
