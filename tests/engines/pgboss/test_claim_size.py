"""Long payloads and unreadable rows: a claim takes what it can, and neither stops the queue nor its neighbours."""

from __future__ import annotations

import pytest

from onward.engine.checked import CheckedEngine
from onward.engine.values import ClaimRequest, JobFilter
from onward.engines.pgboss import claims
from onward.job import JobRef
from onward.lifecycle import JobStatus
from onward.pgboss import PgBoss
from tests.conformance.driver import Driver
from tests.conformance.pgboss_case import PgBossStore
from tests.engines.pgboss.conftest import run_sql


def payload(length: int) -> str:
    return '"' + "x" * (length - 2) + '"'


@pytest.fixture
def small_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that a test can reach."""
    monkeypatch.setattr(claims, "MAX_CLAIM_BYTES", 1000)


async def test_a_claim_is_bounded_by_the_size_of_its_payloads(driver: Driver, small_claims: None):  # O3
    refs = await driver.add_many(10, queue="q", payload=payload(300))
    request = ClaimRequest(worker_id="w", queues=("q",), slots=20)
    taken: list[JobRef] = []
    while len(taken) < 10:
        claimed = await driver.engine.claim(request)
        assert 1 <= len(claimed.claims) <= 3
        taken += [claim.ref for claim in claimed.claims]
        assert len(taken) == 10 or claimed.retry_after == 0  # more waits: the worker asks again at once
    assert taken == list(refs)


async def test_a_payload_longer_than_a_claim_comes_alone_and_compressed_ones_are_counted_too(
    driver: Driver, small_claims: None
):  # O3
    for length in (50, 20_000, 50, 100_000):
        await driver.add(queue="q", payload=payload(length))
    request = ClaimRequest(worker_id="w", queues=("q",), slots=9)
    taken = [[len(claim.payload) for claim in (await driver.engine.claim(request)).claims] for _ in range(5)]
    assert taken == [[50], [20_000], [50], [100_000], []]


@pytest.mark.parametrize("policy", ["standard", "stately", "key_strict_fifo"])
async def test_long_payloads_of_one_queue_do_not_starve_another(
    driver: Driver, boss: PgBoss, engine: CheckedEngine, small_claims: None, policy: str
):  # H9
    for name in ("long", "short"):
        await boss.create_queue(name, policy=policy)
        for number in range(1 if name == "short" else 5):
            await boss.send(name, "x" * (900 if name == "long" else 5), singleton_key=str(number))
    request = ClaimRequest(worker_id="w", queues=("long", "short"), slots=4)
    taken = [claim.ref.queue for _ in range(3) for claim in (await engine.claim(request)).claims]
    assert "short" in taken
    assert "long" in taken


UNREADABLE = {
    "a number beyond all floats": "data = '{\"n\": 1e400}'",
    "nested too deep": "data = ('{\"$onward\": ' || repeat('[', 3000) || repeat(']', 3000) || '}')::jsonb",
}


@pytest.mark.parametrize("change", UNREADABLE.values(), ids=list(UNREADABLE))
async def test_a_row_that_cannot_be_read_is_failed_and_the_rest_goes_on(
    driver: Driver, store: PgBossStore, engine: CheckedEngine, change: str
):  # X3
    bad, good = await driver.add_many(2, queue="q")
    other = await driver.add(queue="other")
    run_sql(store, f"update boss.job set {change} where id = %s", bad.id)
    claimed = await engine.claim(ClaimRequest(worker_id="w", queues=("q", "other"), slots=9))
    assert {claim.ref for claim in claimed.claims} == {good, other}
    assert claimed.retry_after == 0
    job = await driver.job(bad)
    assert job.status in {JobStatus.FAILED, JobStatus.DEAD_LETTER}
    assert "UnreadableJob: its row cannot be read" in (job.last_error or "")
    assert len((await engine.find(JobFilter(queues=("q",)))).items) == 2


@pytest.mark.parametrize(
    "change",
    ["start_after = '-infinity'", "retry_delay = -5, retry_backoff = false", "retry_delay = -5, retry_delay_max = -1"],
)
async def test_a_column_that_makes_no_sense_holds_nobody_up(driver: Driver, store: PgBossStore, change: str):  # X3
    ref = await driver.add(queue="q")
    run_sql(store, f"update boss.job set {change}")
    assert (await driver.take_one("q")).ref == ref
    assert (await driver.job(ref)).status is JobStatus.RUNNING
