"""Random programs of verbs, said to the engine and to the model, which must agree after every step.

``ONWARD_MODEL_EXAMPLES`` says how many programs; the default is what a commit can wait for, fewer on a server.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from onward.engine.capabilities import Feature
from onward.engine.values import Claim, ClaimRequest, Exchange, JobFilter, Rate, Settlement
from onward.job import JobRef, NewJob
from onward.lifecycle import Bury, Cancel, Complete, Fail, JobStatus, Outcome, Release, Retry, Snooze
from tests.conformance.cases import BOOM, EngineCase, needs
from tests.conformance.driver import Driver
from tests.conformance.model import Model

T = TypeVar("T")

EXAMPLES = os.environ.get("ONWARD_MODEL_EXAMPLES")
BY_DEFAULT = {"sqlite": 200}
ON_A_SERVER = 50
STEPS = 40
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
"""Not to explain: it traces every line of every thread, which makes each program several times slower."""
MOMENT = timedelta(milliseconds=1)

QUEUES = ("a", "b/x", "b/y", "c")
RATES = (Rate(1, timedelta(seconds=10)), Rate(5, timedelta(seconds=5)), Rate(6, timedelta(seconds=6), burst=3))

queues = st.sampled_from(QUEUES)
patterns = st.sampled_from([("*",), ("a",), ("b/*",), ("b/*", "c"), ("a", "b/x", "*"), ("c", "nobody")])
delays = st.sampled_from([timedelta(seconds=seconds) for seconds in (0, 0.5, 3, 20)])
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.just(Complete('"done"')),
    st.builds(Retry, delays, st.just(BOOM)),
    st.just(Fail(BOOM)),
    st.just(Bury(BOOM)),
    st.builds(Snooze, delays),
    st.just(Release()),
    st.just(Cancel("enough")),
)
new_jobs: st.SearchStrategy[NewJob] = st.builds(
    NewJob,
    type=st.sampled_from(["send", "crop"]),
    queue=queues,
    priority=st.sampled_from([0, 0, 0, 1, 9]),
    delay=st.sampled_from([None, None, timedelta(seconds=2), timedelta(seconds=20)]),
    idempotency_key=st.sampled_from([None, None, None, "k1", "k2"]),
    dedupe_key=st.sampled_from([None, None, None, "d1", "d2"]),
)
requests = st.builds(
    ClaimRequest,
    worker_id=st.sampled_from(["w1", "w2"]),
    queues=patterns,
    slots=st.integers(0, 5),
    prefetch_claimed=st.sampled_from([0, 0, 1, 3]),
    lease=st.sampled_from([timedelta(seconds=5), timedelta(seconds=30)]),
)
picks = st.lists(st.integers(0, 10_000), min_size=1, max_size=4, unique=True)
"""Positions in a list whose length is known only when the step is made."""


class Machine(RuleBasedStateMachine):
    """One program: an engine on a store of its own, and the model beside it."""

    def __init__(self, case: EngineCase) -> None:
        super().__init__()
        self.case = case

    @initialize(count=st.sampled_from([1, 2]))
    def begin(self, count: int) -> None:
        """Open a store with one handle or two."""
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.store = self.case.make(Path(self.folder.name))
        self.desks = [Driver(self.store, self.run(self.store.connect())) for _ in range(count)]
        self.model = Model(self.store.clock)
        self.claims: list[Claim] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the engine."""
        return self.runner.run(work)

    @property
    def driver(self) -> Driver:
        """Speak through the handles in turn; every step takes a moment, so that no two happen at once."""
        self.run(self.store.advance(MOMENT))
        self.desks.append(self.desks.pop(0))
        return self.desks[0]

    def some_claims(self, picked: list[int]) -> list[Claim]:
        """Pick among all claims ever had, the newest more often."""
        recent = self.claims[-12:]
        return list({claim.token: claim for claim in (recent[number % len(recent)] for number in picked)}.values())

    def some_jobs(self, picked: list[int]) -> tuple[JobRef, ...]:
        """Pick among all jobs there are."""
        refs = list(self.model.jobs)
        return tuple(dict.fromkeys(refs[number % len(refs)] for number in picked))

    # Enqueue

    @rule(jobs=st.lists(new_jobs, min_size=1, max_size=4))
    def enqueue(self, jobs: list[NewJob]) -> None:
        answers = self.run(self.driver.engine.enqueue(jobs))
        for job, answer in zip(jobs, answers, strict=True):
            standing, enqueue_status = self.model.standing_for(job)
            assert answer.enqueue_status is enqueue_status
            if standing is None:
                assert answer.ref not in self.model.jobs
                self.model.enqueue(job, answer.ref)
            else:
                assert answer.ref == standing

    @rule(queue=queues, count=st.integers(2, 6))
    def enqueue_plain(self, queue: str, count: int) -> None:
        job = NewJob(type="send", queue=queue)
        for answer in self.run(self.driver.engine.enqueue([job] * count)):
            self.model.enqueue(job, answer.ref)

    # Work

    @rule(request=requests)
    def claim(self, request: ClaimRequest) -> None:
        answer = self.run(self.driver.engine.claim(request))
        self.model.check_claim(request, answer)
        self.claims += answer.claims

    @precondition(lambda self: any(job.suspect for job in self.model.jobs.values()))
    @rule(queues=patterns)
    def claim_alone(self, queues: tuple[str, ...]) -> None:
        request = ClaimRequest(worker_id="w3", queues=queues, alone=True)
        answer = self.run(self.driver.engine.claim(request))
        self.model.check_claim(request, answer)
        self.claims += answer.claims

    @precondition(lambda self: any(claim.is_suspect for claim in self.claims))
    @rule()
    def crash(self) -> None:
        for claim in [claim for claim in self.claims if claim.is_suspect]:
            assert self.run(self.driver.engine.record_crash(claim)) is self.model.crash(claim)

    @precondition(lambda self: self.claims)
    @rule(picked=picks)
    def start(self, picked: list[int]) -> None:
        claims = self.some_claims(picked)
        lost = self.run(self.driver.engine.start(claims))
        assert lost == {claim.token for claim in claims if not self.model.start(claim)}

    @precondition(lambda self: self.claims)
    @rule(picked=picks, outcome=outcomes, other=outcomes)
    def settle(self, picked: list[int], outcome: Outcome, other: Outcome) -> None:
        settlements = self.settlements(picked, outcome, other)
        lost = self.run(self.driver.engine.settle(settlements))
        assert lost == self.lost(settlements)

    @precondition(lambda self: self.claims)
    @rule(picked=picks, outcome=outcomes, other=outcomes, request=requests)
    def exchange(self, picked: list[int], outcome: Outcome, other: Outcome, request: ClaimRequest) -> None:
        settlements = tuple(self.settlements(picked, outcome, other))
        answer = self.run(self.driver.engine.exchange(Exchange(settlements=settlements, request=request)))
        assert answer.lost == self.lost(settlements)
        self.model.check_claim(request, answer.claimed)
        self.claims += answer.claimed.claims

    def settlements(self, picked: list[int], outcome: Outcome, other: Outcome) -> list[Settlement]:
        return [
            Settlement(claim, other if index % 2 else outcome) for index, claim in enumerate(self.some_claims(picked))
        ]

    def lost(self, settlements: tuple[Settlement, ...] | list[Settlement]) -> set[object]:
        return {each.claim.token for each in settlements if not self.model.settle(each.claim, each.outcome)}

    @precondition(lambda self: self.claims)
    @rule(picked=picks)
    def heartbeat(self, picked: list[int]) -> None:
        claims = self.some_claims(picked)
        reply = self.run(self.driver.beat(*claims))
        lost = [claim for claim in claims if not self.model.beat(claim)]
        assert reply.lost == {claim.token for claim in lost}
        for claim in lost:
            job = self.model.holder(claim)
            assert (claim.token in reply.cancelled) is (job is not None and job.state is JobStatus.CANCELLED)

    # Operate

    @precondition(lambda self: self.model.jobs)
    @rule(verb=st.sampled_from(["cancel", "replay", "replay", "delete"]), picked=picks)
    def operate(self, verb: str, picked: list[int]) -> None:
        refs = self.some_jobs(picked)
        before = {ref: self.model.jobs[ref].state for ref in refs}
        changed = self.run(getattr(self.driver.engine, verb)(JobFilter(refs=refs)))
        assert {change.ref for change in changed} == getattr(self.model, verb)(refs)
        assert all(change.before is before[change.ref] for change in changed)

    @rule(
        queue=queues,
        change=st.one_of(
            st.fixed_dictionaries({"paused": st.booleans()}),
            st.fixed_dictionaries({"rate": st.sampled_from([None, *RATES])}),
            st.fixed_dictionaries({"global_concurrency": st.sampled_from([None, 1, 2, 3])}),
            st.fixed_dictionaries({"weight": st.sampled_from([1, 2, 5])}),
        ),
    )
    def configure(self, queue: str, change: dict[str, Any]) -> None:
        self.run(self.driver.set(queue, **change))
        self.model.configure(queue, **change)

    # Time and upkeep

    @rule(
        by=st.sampled_from([0.2, 1.02, 2.1, 6.0, 11.0, 31.0]), then=st.sampled_from(["", "promote", "rescue", "both"])
    )
    def pass_time(self, by: float, then: str) -> None:
        self.run(self.store.advance(by))
        if then in ("promote", "both"):
            assert self.run(self.driver.promote()).changed == self.model.promote()
        if then in ("rescue", "both"):
            batch = self.run(self.driver.rescue())
            assert (batch.changed, batch.buried) == (self.model.rescue(), 0)

    @rule()
    def restart(self) -> None:
        """Close a handle as a program that ends, and open another."""
        driver = self.desks.pop()
        self.desks.append(Driver(self.store, self.run(self.store.reconnect(driver.engine))))

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "model"):
            self.model.compare(self.run(self.desks[0].jobs()))

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.run(self.store.close())
            self.runner.close()
            self.folder.cleanup()


@pytest.mark.timeout(900)  # a failure is worth the time that it takes to make it small
@needs(Feature.CLAIMED_STATE, Feature.CANCELLED_STATE, Feature.PRIORITY, Feature.DELAY, Feature.IDEMPOTENCY)
@needs(Feature.DEDUPLICATION, Feature.PAUSE, Feature.RATE, Feature.BURST, Feature.CONCURRENCY, Feature.WEIGHT)
@needs(Feature.PATTERNS, Feature.SUSPECTS, Feature.REPLAY, Feature.LEADER, Feature.QUEUES_BY_USE)
def test_the_engine_and_the_model_agree_on_every_program(case: EngineCase):  # O1, O3, O4, O7, H5, P6, X3, Counting
    examples = int(EXAMPLES or BY_DEFAULT.get(case.name, ON_A_SERVER))
    run_state_machine_as_test(
        lambda: Machine(case),  # type: ignore[arg-type]  # it is only called
        settings=settings(max_examples=examples, stateful_step_count=STEPS, deadline=None, phases=PHASES),
    )
