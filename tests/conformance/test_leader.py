"""One leader by a lease with an exact term: what it writes counts only while the term is its own (O6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import MaintenanceResult, Term
from onward.lifecycle import Complete, Retry
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import LEASE, PAST_LEASE, Desk

pytestmark = needs(Feature.LEADER)

Upkeep = Callable[[Desk, Term], Awaitable[MaintenanceResult]]


async def promote(desk: Desk, term: Term) -> MaintenanceResult:
    return await desk.engine.promote(term)


async def rescue(desk: Desk, term: Term) -> MaintenanceResult:
    return await desk.rescue_as(term)


async def prune(desk: Desk, term: Term) -> MaintenanceResult:
    return await desk.engine.prune(term)


UPKEEP: list[Upkeep] = [promote, rescue, prune]
FINDING = [pytest.param(promote, marks=needs(Feature.PROMOTION)), rescue, prune]
"""Of these, what finds something to do."""


async def something_to_do(desk: Desk) -> None:
    """Leave work for every kind of upkeep: due, expired, lost, and too old to keep; and a worker gone silent."""
    await desk.add(queue="old")
    await desk.end(await desk.take_one("old"), Complete())
    await desk.advance(timedelta(days=8))
    await desk.add(queue="due")
    await desk.end(await desk.take_one("due"), Retry(timedelta(seconds=1), BOOM))
    await desk.add(queue="lost")
    await desk.take_one("lost", worker="silent")
    await desk.beat(worker="silent")
    await desk.advance(PAST_LEASE)


async def test_there_is_one_leader_at_a_time(desk: Desk):  # O6
    term = await desk.lead("a")
    assert (term.leader_id, term.until) == ("a", desk.now + LEASE)
    assert await desk.engine.elect("b", lease=LEASE) is None
    await desk.advance(LEASE - timedelta(milliseconds=1))
    assert await desk.engine.elect("b", lease=LEASE) is None


async def test_renewing_keeps_the_term_and_moves_its_end(desk: Desk):  # O6
    term = await desk.lead("a")
    await desk.advance(20)
    renewed = await desk.engine.elect("a", lease=LEASE, holding=term)
    assert renewed is not None
    assert (renewed.number, renewed.leader_id, renewed.until) == (term.number, "a", desk.now + LEASE)
    await desk.advance(20)
    assert await desk.engine.elect("b", lease=LEASE) is None


async def test_a_silent_leader_is_followed_by_another_with_a_higher_term(desk: Desk):  # O6
    old = await desk.lead("a")
    await desk.advance(LEASE + timedelta(milliseconds=1))
    new = await desk.lead("b")
    assert new.number > old.number
    assert await desk.engine.elect("a", lease=LEASE, holding=old) is None
    assert await desk.engine.elect("a", lease=LEASE) is None


async def test_a_term_cannot_be_renewed_by_anyone_else(desk: Desk):  # O6
    term = await desk.lead("a")
    assert await desk.engine.elect("b", lease=LEASE, holding=term) is None
    forged = Term(term.number + 1, "a", term.until)
    assert await desk.engine.elect("a", lease=LEASE, holding=forged) is None


async def test_resigning_lets_another_in_at_once(desk: Desk):  # O6
    term = await desk.lead("a")
    await desk.engine.resign(term)
    following = await desk.lead("b")
    assert following.number > term.number
    assert await desk.engine.elect("a", lease=LEASE, holding=term) is None


async def test_resigning_from_an_old_term_does_nothing(desk: Desk):  # O6
    old = await desk.lead("a")
    await desk.advance(PAST_LEASE)
    new = await desk.lead("b")
    await desk.engine.resign(old)
    await desk.engine.resign(Term(new.number, "a", new.until))
    assert await desk.engine.elect("c", lease=LEASE) is None
    assert await desk.engine.elect("b", lease=LEASE, holding=new) is not None


async def test_resigning_from_an_earlier_term_of_ones_own_does_nothing(desk: Desk):  # O6
    first = await desk.lead("a")
    await desk.engine.resign(first)
    second = await desk.lead("a")
    await desk.engine.resign(first)
    assert await desk.engine.elect("b", lease=LEASE) is None
    assert await desk.engine.elect("a", lease=LEASE, holding=first) is None
    assert await desk.engine.elect("a", lease=LEASE, holding=second) is not None


async def test_a_leader_who_comes_back_starts_another_term(desk: Desk):  # O6
    first = await desk.lead("a")
    await desk.engine.resign(first)
    second = await desk.lead("a")
    assert second.number > first.number
    await something_to_do(desk)
    before = await desk.snapshot()
    for work in UPKEEP:
        assert (await work(desk, first)).changed == 0
    assert await desk.snapshot() == before


@pytest.mark.parametrize("work", UPKEEP, ids=lambda work: work.__name__)
async def test_a_leader_stopped_past_its_lease_writes_nothing_though_nobody_has_followed(
    desk: Desk, work: Upkeep
):  # O6
    await something_to_do(desk)
    term = await desk.lead("a")
    await desk.advance(PAST_LEASE)
    before = await desk.snapshot()
    assert (await work(desk, term)).changed == 0
    assert await desk.snapshot() == before


@pytest.mark.parametrize("work", UPKEEP, ids=lambda work: work.__name__)
async def test_a_leader_stopped_past_its_lease_writes_nothing_once_another_leads(desk: Desk, work: Upkeep):  # O6
    await something_to_do(desk)
    old = await desk.lead("a")
    await desk.advance(PAST_LEASE)
    new = await desk.lead("b")
    before = await desk.snapshot()
    for term in (old, Term(new.number, "a", new.until), Term(new.number - 1, "b", new.until)):
        assert (await work(desk, term)).changed == 0
    assert await desk.snapshot() == before


@pytest.mark.parametrize("work", FINDING, ids=lambda work: work.__name__)
async def test_the_leader_itself_finds_all_there_is_to_do(desk: Desk, work: Upkeep):  # O6
    await something_to_do(desk)
    assert (await work(desk, await desk.lead("a"))).changed >= 1


@pytest.mark.parametrize("work", FINDING, ids=lambda work: work.__name__)
async def test_a_renewed_term_goes_on_past_its_first_end(desk: Desk, work: Upkeep):  # O6
    await something_to_do(desk)
    term = await desk.lead("a")
    await desk.advance(20)
    renewed = await desk.engine.elect("a", lease=LEASE, holding=term)
    assert renewed is not None
    await desk.advance(20)
    assert (await work(desk, renewed)).changed >= 1


async def test_the_list_of_workers_mirrors_the_term(desk: Desk):  # O5, O6
    await desk.beat(worker="a")
    await desk.beat(worker="b")
    term = await desk.lead("b")
    workers = {worker.id: worker for worker in await desk.engine.workers()}
    assert (workers["a"].is_leader, workers["a"].leader_until) == (False, None)
    assert (workers["b"].is_leader, workers["b"].leader_until) == (True, term.until)
    await desk.advance(PAST_LEASE)
    assert not any(worker.is_leader for worker in await desk.engine.workers())
    await desk.engine.resign(await desk.lead("a"))
    assert not any(worker.is_leader for worker in await desk.engine.workers())


async def test_terms_hold_across_handles(desk: Desk):  # O6
    term = await desk.lead("a")
    other = Desk(desk.store, await desk.store.connect())
    assert await other.engine.elect("b", lease=LEASE) is None
    await other.engine.resign(term)
    assert (await desk.lead("b")).number > term.number
