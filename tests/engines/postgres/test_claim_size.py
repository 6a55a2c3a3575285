"""Claims are bounded by the size of payloads, and a row that cannot be read fails alone (issue 31, 7 and 8)."""

from __future__ import annotations

import random

import psycopg
import pytest

from onward.engine.values import Claim, ClaimRequest, Exchange, Settlement
from onward.engines.postgres import claims
from onward.engines.postgres.claims import MAX_CLAIM_SIZE
from onward.engines.postgres.engine import PostgresEngine
from onward.lifecycle import Complete, JobStatus
from tests.conformance.driver import LEASE, Driver
from tests.conformance.postgres_case import PostgresStore
from tests.engines.postgres.test_lanes import by_hand

SIZE = 300_000
PER_CLAIM = MAX_CLAIM_SIZE // SIZE + 1
DEEP = "[" * 5000 + "]" * 5000
"""Valid JSON, deeper than it can be read here."""


def large(number: int) -> str:
    """Write a payload that hardly compresses."""
    return f'"{random.Random(number).randbytes(SIZE // 2).hex()}"'


def request(slots: int = 100, *queues: str) -> ClaimRequest:
    return ClaimRequest(worker_id="worker-1", queues=queues or ("*",), slots=slots, lease=LEASE)


async def claimed_in_steps(driver: Driver, slots: int = 100) -> list[tuple[Claim, ...]]:
    """Claim for as long as the store says that there is more."""
    steps = []
    while (taken := await driver.engine.claim(request(slots))).claims:
        steps.append(taken.claims)
        if taken.retry_after is None:
            break
    return steps


@pytest.mark.parametrize("queues", [1, 4])
async def test_a_claim_returns_no_more_payload_than_its_bound_and_says_that_there_is_more(
    driver: Driver, queues: int
):  # O3
    refs = [await driver.add(queue=f"q{number % queues}", payload=large(number)) for number in range(20)]
    steps = await claimed_in_steps(driver)
    assert max(len(step) for step in steps) <= PER_CLAIM
    assert sum(len(step) for step in steps[:2]) > 2, "more than one at a time"
    assert {claim.ref for step in steps for claim in step} == set(refs)
    if queues == 1:
        assert [claim.ref for step in steps for claim in step] == refs


async def test_what_is_more_urgent_is_not_passed_over_for_its_size(driver: Driver):  # O3
    for number in range(10):
        await driver.add(payload=large(number), priority=1)
    await driver.add()
    steps = await claimed_in_steps(driver)
    priorities = [claim.priority for step in steps for claim in step]
    assert priorities == [1] * 10 + [0]


async def test_both_sides_have_the_same_bound(store: PostgresStore, driver: Driver):
    assert by_hand(store, "select onward.max_claim_size()") == [(MAX_CLAIM_SIZE,)]


@pytest.mark.parametrize("column", ["ready_at", "created_at"])
async def test_a_time_that_cannot_be_reckoned_with_is_refused(store: PostgresStore, driver: Driver, column: str):  # O2
    with pytest.raises(psycopg.errors.CheckViolation, match=column):
        by_hand(store, f"insert into onward.job (type, {column}) values ('t', 'infinity')")


async def test_one_job_is_never_too_large(driver: Driver):  # O3
    for number in range(2):
        await driver.add(payload=f'"{random.Random(number).randbytes(MAX_CLAIM_SIZE).hex()}"')
    steps = await claimed_in_steps(driver)
    assert [len(step) for step in steps] == [1, 1]


async def test_an_exchange_is_bounded_too(driver: Driver):  # O3
    await driver.add()
    held = await driver.take_one()
    for number in range(20):
        await driver.add(payload=large(number))
    exchange = Exchange(settlements=(Settlement(held, Complete()),), request=request())
    claimed = (await driver.engine.exchange(exchange)).claimed
    assert 1 < len(claimed.claims) <= PER_CLAIM
    assert claimed.retry_after == 0.0


async def test_a_claim_of_one_queue_is_bounded_too(driver: Driver, store: PostgresStore):  # O3
    for number in range(20):
        await driver.add(payload=large(number))
    ((count,),) = by_hand(store, "select count(*) from onward.claim_queue(null, 'w', 'default', 100, 30000000)")
    assert 1 < count <= PER_CLAIM


async def claim_of_one_queue(driver: Driver) -> list[Claim]:
    """Claim as an idle worker does that was notified of one queue."""
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    plan = claims._claim_queue(engine.schema, request(), claims.RoundRobin(), "default")
    taken = await engine._run(lambda: plan)
    assert taken is not None
    return list(taken.claims)


SPOILED = {
    "payload": (f"update onward.job set payload = '{DEEP}', updated_at = clock_timestamp() where id = %s", "recursion"),
    "backoff": (
        """update onward.job set backoff = '{"kind": 5}', updated_at = clock_timestamp() where id = %s""",
        "kind",
    ),
}


@pytest.mark.parametrize("what", sorted(SPOILED))
@pytest.mark.parametrize("way", ["claim", "exchange", "one queue", "suspect"])
async def test_a_row_that_cannot_be_read_fails_with_its_reason_and_the_rest_goes_on(
    driver: Driver, store: PostgresStore, what: str, way: str
):  # O8
    statement, reason = SPOILED[what]
    refs = [await driver.add() for _ in range(3)]
    by_hand(store, statement, refs[1].id)
    if way == "suspect":
        by_hand(store, "update onward.job set suspect = true, updated_at = clock_timestamp() where id = %s", refs[1].id)
        taken = list((await driver.engine.claim(request(1))).claims)
        alone = ClaimRequest(worker_id="worker-1", queues=("*",), slots=1, lease=LEASE, alone=True)
        taken += (await driver.engine.claim(alone)).claims
        taken += (await driver.engine.claim(request())).claims
    elif way == "one queue":
        taken = await claim_of_one_queue(driver)
    elif way == "exchange":
        other = await driver.add(priority=9)
        held = await driver.take_one()
        assert held.ref == other
        exchange = Exchange(settlements=(Settlement(held, Complete()),), request=request())
        taken = list((await driver.engine.exchange(exchange)).claimed.claims)
    else:
        taken = list((await driver.engine.claim(request())).claims)
    assert [claim.ref for claim in taken if claim.ref != refs[1]] == [refs[0], refs[2]]
    for claim in taken:
        if claim.ref != refs[1]:
            assert await driver.end(claim, Complete())
    with psycopg.connect(store.url) as connection:
        found = connection.execute(
            f"select status, last_error from {store.schema}.history where id = %s", [refs[1].id]
        ).fetchall()
    if what == "payload" and way in {"one queue", "suspect"} and not found:
        return  # read as text there: the handler's arguments cannot be decoded, which is the runner's to say
    ((status, last_error),) = found
    assert status == JobStatus.FAILED
    assert "UnreadableJob" in last_error
    assert reason in last_error
