"""One leader by a lease with an exact term: what it writes counts only while the term is its own (O6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import MaintenanceResult, Term
from onward.lifecycle import Complete, Retry
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import LEASE, PAST_LEASE, Driver

pytestmark = needs(Feature.LEADER)

Upkeep = Callable[[Driver, Term], Awaitable[MaintenanceResult]]


async def promote(driver: Driver, term: Term) -> MaintenanceResult:
    return await driver.engine.promote(term)


async def rescue(driver: Driver, term: Term) -> MaintenanceResult:
    return await driver.rescue_as(term)


async def prune(driver: Driver, term: Term) -> MaintenanceResult:
    return await driver.engine.prune(term)


UPKEEP: list[Upkeep] = [promote, rescue, prune]
FINDING = [pytest.param(promote, marks=needs(Feature.PROMOTION)), rescue, prune]
"""Of these, what finds something to do."""


async def something_to_do(driver: Driver) -> None:
    """Leave work for every kind of upkeep: due, expired, lost, and too old to keep; and a worker gone silent."""
    await driver.add(queue="old")
    await driver.end(await driver.take_one("old"), Complete())
    await driver.advance(timedelta(days=8))
    await driver.add(queue="due")
    await driver.end(await driver.take_one("due"), Retry(timedelta(seconds=1), BOOM))
    await driver.add(queue="lost")
    await driver.take_one("lost", worker="silent")
    await driver.beat(worker="silent")
    await driver.advance(PAST_LEASE)


async def test_there_is_one_leader_at_a_time(driver: Driver):  # O6
    term = await driver.lead("a")
    assert (term.leader_id, term.until) == ("a", driver.now + LEASE)
    assert await driver.engine.elect("b", lease=LEASE) is None
    await driver.advance(LEASE - timedelta(milliseconds=1))
    assert await driver.engine.elect("b", lease=LEASE) is None


async def test_renewing_keeps_the_term_and_moves_its_end(driver: Driver):  # O6
    term = await driver.lead("a")
    await driver.advance(20)
    renewed = await driver.engine.elect("a", lease=LEASE, current_term=term)
    assert renewed is not None
    assert (renewed.number, renewed.leader_id, renewed.until) == (term.number, "a", driver.now + LEASE)
    await driver.advance(20)
    assert await driver.engine.elect("b", lease=LEASE) is None


async def test_a_silent_leader_is_followed_by_another_with_a_higher_term(driver: Driver):  # O6
    old = await driver.lead("a")
    await driver.advance(LEASE + timedelta(milliseconds=1))
    new = await driver.lead("b")
    assert new.number > old.number
    assert await driver.engine.elect("a", lease=LEASE, current_term=old) is None
    assert await driver.engine.elect("a", lease=LEASE) is None


async def test_a_term_cannot_be_renewed_by_anyone_else(driver: Driver):  # O6
    term = await driver.lead("a")
    assert await driver.engine.elect("b", lease=LEASE, current_term=term) is None
    forged = Term(term.number + 1, "a", term.until)
    assert await driver.engine.elect("a", lease=LEASE, current_term=forged) is None


async def test_resigning_lets_another_in_at_once(driver: Driver):  # O6
    term = await driver.lead("a")
    await driver.engine.resign(term)
    following = await driver.lead("b")
    assert following.number > term.number
    assert await driver.engine.elect("a", lease=LEASE, current_term=term) is None


async def test_resigning_from_an_old_term_does_nothing(driver: Driver):  # O6
    old = await driver.lead("a")
    await driver.advance(PAST_LEASE)
    new = await driver.lead("b")
    await driver.engine.resign(old)
    await driver.engine.resign(Term(new.number, "a", new.until))
    assert await driver.engine.elect("c", lease=LEASE) is None
    assert await driver.engine.elect("b", lease=LEASE, current_term=new) is not None


async def test_resigning_from_an_earlier_term_of_ones_own_does_nothing(driver: Driver):  # O6
    first = await driver.lead("a")
    await driver.engine.resign(first)
    second = await driver.lead("a")
    await driver.engine.resign(first)
    assert await driver.engine.elect("b", lease=LEASE) is None
    assert await driver.engine.elect("a", lease=LEASE, current_term=first) is None
    assert await driver.engine.elect("a", lease=LEASE, current_term=second) is not None


async def test_a_leader_who_comes_back_starts_another_term(driver: Driver):  # O6
    first = await driver.lead("a")
    await driver.engine.resign(first)
    second = await driver.lead("a")
    assert second.number > first.number
    await something_to_do(driver)
    before = await driver.snapshot()
    for work in UPKEEP:
        assert (await work(driver, first)).changed == 0
    assert await driver.snapshot() == before


@pytest.mark.parametrize("work", UPKEEP, ids=lambda work: work.__name__)
async def test_a_leader_stopped_past_its_lease_writes_nothing_though_nobody_has_followed(
    driver: Driver, work: Upkeep
):  # O6
    await something_to_do(driver)
    term = await driver.lead("a")
    await driver.advance(PAST_LEASE)
    before = await driver.snapshot()
    assert (await work(driver, term)).changed == 0
    assert await driver.snapshot() == before


@pytest.mark.parametrize("work", UPKEEP, ids=lambda work: work.__name__)
async def test_a_leader_stopped_past_its_lease_writes_nothing_once_another_leads(driver: Driver, work: Upkeep):  # O6
    await something_to_do(driver)
    old = await driver.lead("a")
    await driver.advance(PAST_LEASE)
    new = await driver.lead("b")
    before = await driver.snapshot()
    for term in (old, Term(new.number, "a", new.until), Term(new.number - 1, "b", new.until)):
        assert (await work(driver, term)).changed == 0
    assert await driver.snapshot() == before


@pytest.mark.parametrize("work", FINDING, ids=lambda work: work.__name__)
async def test_the_leader_itself_finds_all_there_is_to_do(driver: Driver, work: Upkeep):  # O6
    await something_to_do(driver)
    assert (await work(driver, await driver.lead("a"))).changed >= 1


@pytest.mark.parametrize("work", FINDING, ids=lambda work: work.__name__)
async def test_a_renewed_term_goes_on_past_its_first_end(driver: Driver, work: Upkeep):  # O6
    await something_to_do(driver)
    term = await driver.lead("a")
    await driver.advance(20)
    renewed = await driver.engine.elect("a", lease=LEASE, current_term=term)
    assert renewed is not None
    await driver.advance(20)
    assert (await work(driver, renewed)).changed >= 1


async def test_the_list_of_workers_mirrors_the_term(driver: Driver):  # O5, O6
    await driver.beat(worker="a")
    await driver.beat(worker="b")
    term = await driver.lead("b")
    workers = {worker.id: worker for worker in await driver.engine.workers()}
    assert (workers["a"].is_leader, workers["a"].leader_until) == (False, None)
    assert (workers["b"].is_leader, workers["b"].leader_until) == (True, term.until)
    await driver.advance(PAST_LEASE)
    assert not any(worker.is_leader for worker in await driver.engine.workers())
    await driver.engine.resign(await driver.lead("a"))
    assert not any(worker.is_leader for worker in await driver.engine.workers())


async def test_terms_hold_across_handles(driver: Driver):  # O6
    term = await driver.lead("a")
    other = Driver(driver.store, await driver.store.connect())
    assert await other.engine.elect("b", lease=LEASE) is None
    await other.engine.resign(term)
    assert (await driver.lead("b")).number > term.number
