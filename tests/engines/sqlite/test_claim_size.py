"""Long payloads and unreadable rows: a claim takes what it can, and neither stops the queue nor its neighbours."""

from __future__ import annotations

import sqlite3

import pytest

from onward.engine.values import ClaimRequest, JobFilter
from onward.engines.sqlite import claims
from tests.engines.sqlite.plain import add, complete, states, take


def payload(length: int) -> str:
    return '"' + "x" * (length - 2) + '"'


@pytest.fixture
def small_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can reach."""
    monkeypatch.setattr(claims, "_MAX_CLAIM_SIZE", 1000)
    monkeypatch.setattr(claims, "_MAX_INLINE_PAYLOAD", 100)


async def test_a_claim_is_bounded_by_the_size_of_its_payloads(engine, small_claims):  # O3
    refs = await add(engine, 10, payload=payload(300))
    request = ClaimRequest(worker_id="worker-1", slots=20)
    taken = []
    for _ in range(10):
        claimed = await engine.claim(request)
        assert len(claimed.claims) <= 3
        taken += claimed.claims
        if len(taken) == 10:
            break
        assert claimed.claims
        assert claimed.retry_after == 0  # more waits: the worker asks again at once
    assert [claim.ref for claim in taken] == refs
    assert {claim.payload for claim in taken} == {payload(300)}


async def test_a_payload_longer_than_a_claim_comes_alone(engine, small_claims):  # O3
    for length in (50, 5000, 50, 5000):
        await add(engine, payload=payload(length))
    sizes = [[len(claim.payload) for claim in await take(engine, slots=9)] for _ in range(4)]
    assert sizes == [[50], [5000], [50], [5000]]
    assert await take(engine, slots=9) == ()


async def test_long_payloads_of_one_queue_do_not_starve_another(engine, small_claims):  # H9
    await add(engine, 20, queue="long", payload=payload(900))
    await add(engine, queue="short")
    queues = [claim.ref.queue for _ in range(4) for claim in await take(engine, slots=4)]
    assert "short" in queues


async def test_a_queue_whose_payloads_become_short_is_claimed_in_full_again(engine, small_claims):
    await add(engine, 4, payload=payload(900))
    await add(engine, 100, payload="1")
    counts = [len(await take(engine, slots=200)) for _ in range(30)]
    assert sum(counts) == 104
    await add(engine, 100, payload="1")
    for _ in range(8):
        await take(engine, slots=200)
    await add(engine, 100, payload="1")
    await add(engine, 100, payload="1")
    while await take(engine, slots=200):
        pass
    assert await states(engine) == {"running": 404}


@pytest.mark.parametrize("status", ["a suspect"])
async def test_a_suspect_with_a_long_payload_comes_with_it(engine, bare, small_claims, status):  # Counting
    await add(engine, payload=payload(300))
    bare.execute("update onward_job set suspect = 1")
    (claim,) = await take(engine, alone=True)
    assert claim.payload == payload(300)


@pytest.mark.parametrize(
    "change",
    ["priority = 'high'", "type = x'00ff'", "payload = '{broken'", "payload = 7.5", "backoff = '{'", "errors = '{}'"],
)
async def test_what_could_not_be_read_is_refused_at_the_write(engine, bare, change):  # O2
    await add(engine)
    if change == "payload = 7.5":  # a number is turned into its text, which is JSON
        bare.execute(f"update onward_job set {change}")
        assert [claim.payload for claim in await take(engine)] == ["7.5"]
        return
    with pytest.raises(sqlite3.IntegrityError):
        bare.execute(f"update onward_job set {change}")


@pytest.mark.parametrize(
    "change",
    [
        "payload = cast(x'22ff22' as text)",
        "payload = cast(replace(hex(zeroblob(200)), '00', '22') || x'ff' as text)",
        "trace = cast(x'ff' as text)",
        "backoff = '[]'",
    ],
)
async def test_a_row_that_cannot_be_read_is_failed_and_the_rest_goes_on(engine, bare, small_claims, change):  # X3
    bad, *good = await add(engine, 4)
    await add(engine, queue="other")
    bare.execute("pragma ignore_check_constraints = 1")
    bare.execute(f"update onward_job set {change} where id = ?", (bad.id,))
    claimed = [claim for _ in range(3) for claim in await take(engine, slots=9)]
    assert {claim.ref.queue for claim in claimed} == {"default", "other"}
    assert [claim.ref for claim in claimed if claim.ref.queue == "default"] == good
    await complete(engine, *claimed)
    assert await states(engine) == {"failed": 1, "completed": 4}
    if not change.startswith("trace"):
        (job,) = (await engine.find(JobFilter(ids=(bad.id,)))).items
        assert "UnreadableJob: its row cannot be read" in (job.last_error or "")
        assert "unreadable" in job.payload


async def test_unreadable_rows_beyond_the_slots_do_not_close_the_queue(engine, bare):  # X3
    refs = await add(engine, 30)
    bare.execute("pragma ignore_check_constraints = 1")
    bare.execute("update onward_job set backoff = '[]' where seq <= 20")
    assert [claim.ref for _ in range(10) for claim in await take(engine)] == refs[20:]
    assert (await states(engine))["failed"] == 20
