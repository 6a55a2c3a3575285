"""A limiter in the caller's transaction: all keys or none, by the store's clock, on both stores (P6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onward.clock import ManualClock
from onward.errors import InvalidValue, SchemaTooOld
from onward.limits import Limit, Limiter, Pace, Permits, Rate
from tests.engines.sqlite.processes import processes
from tests.limits.processes import taker
from tests.limits.stores import STORES, TEXT, Store

MINUTE = timedelta(minutes=1)
LEASE = timedelta(seconds=30)
TWENTY = Rate(20, MINUTE)
CAMPAIGN = Limit("campaign/7", rate=TWENTY)
ACCOUNT = Limit("account/3", rate=Rate(60, MINUTE))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = STORES[request.param](tmp_path)
    yield store
    store.drop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(store: Store, clock: ManualClock) -> Limiter:
    return store.limiter(clock)


@pytest.fixture
def connection(store: Store, limiter: Limiter) -> Iterator[Any]:
    with closing(store.connect()) as connection:
        limiter.sync.install(connection=connection)
        connection.commit()
        yield connection
        connection.rollback()


def test_keys_are_taken_all_or_none_and_the_slowest_says_when(limiter, connection, clock):  # P6
    first = limiter.sync.take([CAMPAIGN, ACCOUNT], connection=connection)
    assert first.granted
    assert first.start_within == timedelta(seconds=Pace.of(TWENTY).start_within)
    clock.advance(1.5)  # the account has a permit again, the campaign has none
    second = limiter.sync.take([CAMPAIGN, ACCOUNT], connection=connection)
    assert not second
    assert second.retry_after == timedelta(microseconds=Pace.of(TWENTY).spacing - 1_500_000 - Pace.of(TWENTY).credit)
    assert limiter.sync.take([ACCOUNT], connection=connection), "nothing was taken of it"
    clock.advance(second.retry_after - timedelta(microseconds=1))
    assert not limiter.sync.take([CAMPAIGN, ACCOUNT], connection=connection)
    clock.advance(timedelta(microseconds=1))
    assert limiter.sync.take([CAMPAIGN, ACCOUNT], connection=connection)


def test_a_permit_is_taken_if_and_only_if_the_transaction_commits(limiter, connection):  # P6, X4
    assert limiter.sync.take([CAMPAIGN], connection=connection)
    assert not limiter.sync.take([CAMPAIGN], connection=connection)
    connection.rollback()
    assert limiter.sync.take([CAMPAIGN], connection=connection)
    connection.commit()
    connection.rollback()
    assert not limiter.sync.take([CAMPAIGN], connection=connection)


async def test_asynchronous_transactions_take_permits_too(store, limiter, connection):  # P6, X4
    engine = store.async_engine()
    async with engine.connect() as other:
        await other.execute(TEXT("select 1"))
        assert await limiter.take([CAMPAIGN], connection=other)
        await other.rollback()
        permits = await limiter.take([CAMPAIGN], connection=other)
        assert permits
        await other.commit()
        assert not await limiter.take([CAMPAIGN], connection=other)
        assert await limiter.give_up(permits, connection=other) == 1
        assert await limiter.take([CAMPAIGN], connection=other)
        limit = [Limit("one", concurrency=1)]
        assert await limiter.take(limit, holder="a", lease=LEASE, connection=other)
        assert await limiter.renew("a", lease=LEASE, connection=other) == 1
        assert await limiter.release("a", connection=other) == 1
        assert await limiter.prune(connection=other) <= 1
        await limiter.install(connection=other)
        await other.commit()
    await engine.dispose()


def test_a_permit_that_was_given_up_can_be_taken_by_another(limiter, connection, clock):  # P6
    permits = limiter.sync.take([CAMPAIGN, ACCOUNT], connection=connection)
    assert limiter.sync.give_up(permits, connection=connection) == 2
    assert limiter.sync.take([CAMPAIGN, ACCOUNT], connection=connection)
    clock.advance(1.5)
    late = limiter.sync.take([ACCOUNT], connection=connection)
    clock.advance(1.5)
    assert limiter.sync.take([ACCOUNT], connection=connection)
    assert limiter.sync.give_up(late, connection=connection) == 0, "another was taken since"
    assert not limiter.sync.take([ACCOUNT], connection=connection)


def test_permits_that_are_given_up_leave_the_others_of_their_holder(limiter, connection):  # P6
    def take(*limits: Limit, holder: str = "a") -> Permits:
        permits: Permits = limiter.sync.take(limits, holder=holder, lease=LEASE, connection=connection)
        return permits

    one, two, both = Limit("one", concurrency=1), Limit("two", concurrency=1), Limit("both", TWENTY, 1)
    assert take(one)
    given_up = take(two, both)
    assert given_up.held == ("two", "both")
    assert limiter.sync.give_up(given_up, connection=connection) == 1
    assert take(two, both, holder="b")
    assert not take(one, holder="b"), "the holder has its first permit still"
    denied = take(one, two)
    assert not denied
    assert limiter.sync.give_up(denied, connection=connection) == 0
    assert not take(one, holder="b"), "nothing was taken, so that nothing was given up"


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_an_older_snapshot_takes_no_permit_beyond_a_concurrency(store, limiter, connection):  # P6
    one = [Limit("one", concurrency=1)]
    assert limiter.sync.take(one, holder="before", lease=LEASE, connection=connection)
    assert limiter.sync.release("before", connection=connection) == 1
    connection.commit()
    with closing(store.connect()) as older:
        older.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        older.execute("select 1")
        assert limiter.sync.take(one, holder="a", lease=LEASE, connection=connection)
        connection.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            limiter.sync.take(one, holder="b", lease=LEASE, connection=older)


def test_a_changed_rate_acts_on_the_next_permit(limiter, connection, clock):  # P6
    assert limiter.sync.take([Limit("k", rate=Rate(1, timedelta(hours=1)))], connection=connection)
    faster = Limit("k", rate=Rate(60, MINUTE))
    answer = limiter.sync.take([faster], connection=connection)
    assert not answer
    assert answer.retry_after == timedelta(microseconds=Pace.of(Rate(60, MINUTE)).spacing)
    clock.advance(answer.retry_after)
    assert limiter.sync.take([faster], connection=connection), "the permit did not move away with the look at it"
    slower = Limit("k", rate=Rate(1, timedelta(hours=1)))
    clock.advance(2)
    assert limiter.sync.take([slower], connection=connection)
    clock.advance(60)
    assert not limiter.sync.take([slower], connection=connection)


def test_a_clock_that_went_back_costs_one_permit_at_most(store, connection):  # P6
    before = store.limiter(ManualClock())
    assert before.sync.take([CAMPAIGN], connection=connection)
    assert before.sync.take([Limit("one", concurrency=1)], holder="dead", lease=LEASE, connection=connection)
    earlier = ManualClock()
    earlier._micros -= 3_600_000_000
    after = store.limiter(earlier)
    answer = after.sync.take([CAMPAIGN], connection=connection)
    assert answer.retry_after is not None
    assert answer.retry_after <= TWENTY.spacing + timedelta(microseconds=1)
    held = after.sync.take([Limit("one", concurrency=1)], holder="b", lease=LEASE, connection=connection)
    assert held.retry_after == LEASE
    earlier.advance(max(answer.retry_after, LEASE))
    assert after.sync.take([CAMPAIGN], connection=connection)
    assert after.sync.take([Limit("one", concurrency=1)], holder="b", lease=LEASE, connection=connection)


def test_a_concurrency_permit_is_held_until_released_or_its_lease_has_run_out(limiter, connection, clock):
    two = [Limit("provider", concurrency=2)]

    def take(holder: str) -> bool:
        return bool(limiter.sync.take(two, holder=holder, lease=LEASE, connection=connection))

    assert take("a")
    clock.advance(10)
    assert take("b")
    assert take("a"), "a holder takes its own permit again"
    third = limiter.sync.take(two, holder="c", lease=LEASE, connection=connection)
    assert third.retry_after == LEASE
    assert limiter.sync.release("a", connection=connection) == 1
    assert take("c")
    clock.advance(20)
    assert limiter.sync.renew("b", lease=LEASE, connection=connection) == 1
    clock.advance(10)
    assert limiter.sync.renew("c", lease=LEASE, connection=connection) == 0, "it has run out"
    assert take("d")
    assert not take("e")


def test_a_full_key_takes_no_permit_of_a_rate(limiter, connection):  # P6
    both = [CAMPAIGN, Limit("account", concurrency=1)]
    assert limiter.sync.take(both, holder="a", lease=LEASE, connection=connection)
    other = [ACCOUNT, Limit("account", concurrency=1)]
    assert not limiter.sync.take(other, holder="b", lease=LEASE, connection=connection)
    assert limiter.sync.take([ACCOUNT], connection=connection)


def test_pruning_idle_keys_changes_nothing(limiter, connection, clock):  # P6
    assert limiter.sync.take([CAMPAIGN, ACCOUNT], connection=connection)
    assert limiter.sync.take([Limit("one", concurrency=1)], holder="a", lease=LEASE, connection=connection)
    assert limiter.sync.prune(connection=connection) <= 1  # the key of a concurrency has no next permit
    assert not limiter.sync.take([CAMPAIGN], connection=connection)
    assert not limiter.sync.take([Limit("one", concurrency=1)], holder="b", lease=LEASE, connection=connection)
    clock.advance(31)
    assert limiter.sync.prune(connection=connection) >= 3
    assert limiter.sync.prune(connection=connection) == 0
    assert limiter.sync.take([CAMPAIGN], connection=connection)


def test_a_database_without_the_tables_says_what_to_do(store, connection):
    missing = Limiter(schema="onward_no_such_schema")
    if store.name == "sqlite":
        connection.execute("drop table onward_rate_permit")
    with pytest.raises(SchemaTooOld, match="install"):
        missing.sync.take([CAMPAIGN], connection=connection)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Limit(""), "limit.key"),
        (lambda: Limit("x" * 256), "limit.key"),
        (lambda: Limit("a\0b"), "limit.key"),
        (lambda: Limit("k", rate="600/min"), "limit.rate"),  # type: ignore[arg-type]
        (lambda: Limit("k", concurrency=0), "limit.concurrency"),
        (lambda: Limit("k", concurrency=True), "limit.concurrency"),
    ],
)
def test_what_is_no_limit_is_refused(make, field):
    with pytest.raises(InvalidValue, match=field):
        make()


def test_bad_calls_are_refused_before_anything_is_written(limiter, connection):
    one = Limit("one", concurrency=1)
    for bad in (
        {"limits": [CAMPAIGN, CAMPAIGN]},
        {"limits": ["campaign/7"]},
        {"limits": [one]},
        {"limits": [one], "holder": "a"},
        {"limits": [one], "holder": "", "lease": LEASE},
        {"limits": [one], "holder": "a", "lease": timedelta(0)},
    ):
        with pytest.raises(InvalidValue):
            limiter.sync.take(bad.pop("limits"), **bad, connection=connection)
    with pytest.raises(InvalidValue, match="connection"):
        limiter.sync.take([CAMPAIGN], connection="sqlite:///x")
    assert limiter.sync.take([CAMPAIGN], connection=connection)


@given(
    st.integers(1, 200),
    st.integers(10_000, 400_000_000),
    st.integers(0, 200),
    st.lists(st.floats(0, 3, allow_nan=False), min_size=1, max_size=6),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_stores_keep_the_formula(limiter, connection, clock, count, period, burst, waits):  # P6
    """The functions of PostgreSQL write it out once more: to the microsecond the same."""
    rate = Rate(count, timedelta(microseconds=period), 1 + burst % count)
    pace, key = Pace.of(rate), f"{count}/{period}/{burst}/{waits}"[:255]
    connection.rollback()
    permit_at = 0
    for wait in waits:
        clock.advance(timedelta(microseconds=int(wait * pace.spacing)))
        now = clock.micros()
        answer = limiter.sync.take([Limit(key, rate=rate)], connection=connection)
        due_in = pace.due_at(permit_at, now) - now
        if due_in > 0:
            assert answer.retry_after == timedelta(microseconds=due_in)
            permit_at = pace.clamp(permit_at, now)
        else:
            assert answer.granted
            permit_at = pace.take(permit_at, now)
            assert answer.taken[key][1] == permit_at
    connection.rollback()


async def test_processes_together_keep_a_rate_and_use_it(store, connection):  # P6
    """By the store's own clock; some permits are given up, which costs nothing."""
    rate = Rate(200, timedelta(seconds=1))
    with processes(taker, store.name, str(store.folder), store.schema, store.address(), rate.count, count=3) as takers:
        for process in takers:
            process.send("go")
        taken = sorted(moment for process in takers for moment in process.receive())
    worst = max(sum(first <= one < first + 1_000_000 for one in taken[at : at + 300]) for at, first in enumerate(taken))
    assert worst <= rate.count
    assert len(taken) == 240
