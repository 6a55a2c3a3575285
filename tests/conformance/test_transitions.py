"""Every state times every move, generated from the table that specifies them (O1).

A legal move leads to the table's target; an illegal one is refused and changes nothing. Moves of a worker are tried
with the newest token, which shows that the state is guarded, and with an older one, which shows that the claim is.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.contract import Engine
from onward.engine.values import Claim
from onward.lifecycle import (
    FENCED,
    HELD,
    MOVE_OF,
    MOVES,
    Bury,
    Cancel,
    Complete,
    Fail,
    JobStatus,
    Move,
    Outcome,
    Release,
    Retry,
    Snooze,
)
from tests.conformance.cases import BOOM, CASES, EngineCase, Planted
from tests.conformance.driver import Driver

OUTCOMES: dict[Move, Outcome] = {
    Move.COMPLETE: Complete(),
    Move.RETRY: Retry(timedelta(seconds=5), BOOM),
    Move.FAIL: Fail(BOOM),
    Move.BURY: Bury(BOOM),
    Move.SNOOZE: Snooze(timedelta(seconds=5)),
    Move.RELEASE: Release(),
    Move.CANCEL: Cancel("the handler said so"),
}
WITHOUT_A_VERB = frozenset({Move.UNBLOCK})
"""Moves that no verb of the contract makes yet."""


def cells(moves: frozenset[Move]) -> list[object]:
    """Every case × state × move; not those where the states that an engine folds into one would differ."""
    found: list[object] = []
    for case in CASES:
        for state in case.states:
            for move in sorted(moves):
                sources = MOVES[move][0]
                hidden = case.shown_as(state)
                if hidden <= sources or not hidden & sources:
                    found.append(pytest.param(case, state, move, id=f"{case.name}-{state}-{move}"))
    return found


async def ask(driver: Driver, move: Move, planted: Planted, claim: Claim) -> bool:
    """Try a move by its verb, and say whether the engine says that it was made."""
    match move:
        case Move.START:
            return claim.token not in await driver.engine.start([claim])
        case Move.CLAIM:
            return planted.ref in [taken.ref for taken in await driver.take(planted.ref.queue)]
        case Move.PROMOTE:
            before = await driver.state(planted.ref)
            batch = await driver.wait(timedelta(hours=2))
            if not driver.engine.capabilities.has(Feature.PROMOTION):
                return before is not await driver.state(planted.ref)
            return batch.changed == 1
        case Move.CANCEL:
            return [changed.ref for changed in await driver.cancel(planted.ref)] == [planted.ref]
        case Move.REPLAY:
            return [changed.ref for changed in await driver.replay(planted.ref)] == [planted.ref]
        case _:
            return await driver.end(claim, OUTCOMES[move])


@pytest.mark.parametrize(("case", "state", "move"), cells(frozenset(Move) - WITHOUT_A_VERB), indirect=["case"])
async def test_a_move_is_made_from_its_source_states_and_refused_from_all_others(
    driver: Driver, case: EngineCase, state: JobStatus, move: Move
):  # O1
    planted = await driver.store.plant(driver.engine, state)
    before = await driver.job(planted.ref)
    assert before.status is state

    sources, target = MOVES[move]
    if move is Move.CLAIM and case.capabilities.has(Feature.CLAIMED_STATE):
        target = JobStatus.RUNNING  # a claim with a free slot claims and starts in one statement (O11)
    moved = await ask(driver, move, planted, planted.claim)

    assert moved is bool(case.shown_as(state) & sources)
    after = await driver.engine.get(planted.ref)
    if not moved:
        assert after == before
    elif target is JobStatus.CANCELLED and not case.capabilities.has(Feature.CANCELLED_STATE):
        assert after is None
    else:
        assert after is not None
        assert after.status is case.capabilities.shown(target)


@pytest.mark.parametrize(("case", "state", "move"), cells(FENCED), indirect=["case"])
async def test_a_move_with_an_older_claim_of_the_same_job_is_always_refused(
    driver: Driver, case: EngineCase, state: JobStatus, move: Move
):  # X3
    planted = await driver.store.plant(driver.engine, state)
    before = await driver.job(planted.ref)

    assert not await ask(driver, move, planted, planted.stale)

    assert await driver.job(planted.ref) == before


@pytest.mark.parametrize("stale", [False, True], ids=["newest", "older"])
@pytest.mark.parametrize(("case", "state", "move"), cells(frozenset({Move.CANCEL})), indirect=["case"])
async def test_a_handler_can_take_back_only_the_job_it_holds(
    driver: Driver, case: EngineCase, state: JobStatus, move: Move, stale: bool
):  # O1, X3
    planted = await driver.store.plant(driver.engine, state)
    before = await driver.job(planted.ref)

    recorded = await driver.end(planted.stale if stale else planted.claim, OUTCOMES[move])

    assert recorded is (state in HELD and not stale)
    after = await driver.engine.get(planted.ref)
    if not recorded:
        assert after == before
    elif case.capabilities.has(Feature.CANCELLED_STATE):
        assert after is not None
        assert after.status is JobStatus.CANCELLED
    else:
        assert after is None


async def test_claiming_ahead_leads_to_claimed_and_no_further(driver: Driver, case: EngineCase):  # O1
    ref = await driver.add()
    if case.capabilities.has(Feature.CLAIMED_STATE):
        (claim,) = await driver.take_ahead()
        assert (claim.started, await driver.state(ref)) == (False, JobStatus.CLAIMED)
    else:
        assert (await driver.take_one()).started
        assert await driver.state(ref) is case.capabilities.shown(JobStatus.CLAIMED)


def test_every_outcome_and_every_fenced_move_is_in_the_grid():  # O1
    assert {MOVE_OF[type(outcome)] for outcome in OUTCOMES.values()} == set(OUTCOMES) == set(MOVE_OF.values())
    assert set(OUTCOMES) | {Move.START} == FENCED | {Move.CANCEL}


def test_a_move_without_a_verb_gets_its_cells_as_soon_as_it_has_one():  # O1
    assert not [move for move in WITHOUT_A_VERB if hasattr(Engine, move)]


def test_a_state_is_folded_only_into_one_that_is_shown():  # O1
    for case in CASES:
        status_aliases = case.capabilities.status_aliases
        assert not set(status_aliases.values()) & set(status_aliases), case.name
