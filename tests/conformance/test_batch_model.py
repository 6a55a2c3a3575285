"""Random programs over batches and flows, said to the engine and to a model of them, which must agree after every step.

The other model knows limits and claims; this one knows who waits for whom. ``ONWARD_MODEL_EXAMPLES`` says how many
programs.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from onward.batches.values import Callbacks, NewBatch
from onward.engine.capabilities import Feature
from onward.engine.values import Claim, JobFilter, Settlement
from onward.errors import InvalidValue
from onward.job import JobRef, NewJob, OnDependencyFailure
from onward.lifecycle import FINISHED, HELD, WAITING, Bury, Cancel, Complete, Fail, JobStatus, Outcome, Retry
from tests.conformance.cases import BOOM, EngineCase, needs
from tests.conformance.driver import PAST_LEASE, Driver
from tests.conformance.test_model import EXAMPLES, PHASES

T = TypeVar("T")

BY_DEFAULT = {"sqlite": 60}
ON_A_SERVER = 15
STEPS = 40
NAMES = ("red", "blue")
CALLS = ("on_success", "on_failure", "on_finished")
ENDS: dict[type[Outcome], JobStatus] = {
    Complete: JobStatus.COMPLETED,
    Fail: JobStatus.FAILED,
    Bury: JobStatus.DEAD_LETTER,
    Cancel: JobStatus.CANCELLED,
    Retry: JobStatus.SCHEDULED,
}
ILL = FINISHED - {JobStatus.COMPLETED}

outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    [Complete(), Complete(), Complete(), Fail(BOOM), Bury(BOOM), Cancel("no"), Retry(timedelta(0), BOOM)]
)
picks = st.lists(st.integers(0, 10_000), min_size=1, max_size=4)


@dataclass
class ModelJob:
    """A job of a batch, and whom it waits for."""

    state: JobStatus
    batch: str
    policy: OnDependencyFailure
    waits_for: set[JobRef] = field(default_factory=set)


@dataclass
class ModelBatch:
    """A batch, and what it has called back."""

    sealed: bool = False
    stopped: bool = False
    finished: bool = False
    ended: Counter[JobStatus] = field(default_factory=Counter)
    total: int = 0
    calls: set[str] = field(default_factory=set)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Total, completed, failed, cancelled."""
        ended = self.ended
        return (
            self.total,
            ended[JobStatus.COMPLETED],
            ended[JobStatus.FAILED] + ended[JobStatus.DEAD_LETTER],
            ended[JobStatus.CANCELLED],
        )


class Model:
    """All batches and their jobs."""

    def __init__(self) -> None:
        self.jobs: dict[JobRef, ModelJob] = {}
        self.batches: dict[str, ModelBatch] = {}

    def end(self, ref: JobRef, state: JobStatus) -> None:
        """End a job, and tell those that wait for it."""
        job = self.jobs[ref]
        job.state = state
        self.batches[job.batch].ended[state] += 1
        self.tell(ref, state)

    def tell(self, ref: JobRef, state: JobStatus) -> None:
        """Tell those that wait for a job how it ended."""
        for other_ref, other in list(self.jobs.items()):
            if ref not in other.waits_for:
                continue
            other.waits_for.discard(ref)
            if other.state is not JobStatus.BLOCKED:
                continue
            if state is JobStatus.COMPLETED or other.policy is OnDependencyFailure.RUN:
                if not other.waits_for:
                    other.state = JobStatus.PENDING
            elif other.policy is OnDependencyFailure.SKIP:
                other.waits_for.clear()
                self.end(other_ref, JobStatus.CANCELLED)
            else:
                self.stop(other.batch)

    def stop(self, name: str) -> None:
        """Cancel what has not started of a batch."""
        self.batches[name].stopped = True
        for ref, job in list(self.jobs.items()):
            if job.batch == name and job.state in WAITING:
                job.waits_for.clear()
                self.end(ref, JobStatus.CANCELLED)

    def turn(self) -> None:
        """See which batches have come so far."""
        for batch in self.batches.values():
            if batch.finished:
                continue
            total, completed, failed, cancelled = batch.counts
            if failed:
                batch.calls.add("on_failure")
            if batch.sealed and completed + failed + cancelled == total:
                batch.finished = True
                batch.calls |= {"on_finished", "on_success"} if completed == total else {"on_finished"}


class Machine(RuleBasedStateMachine):
    """One program: an engine on a store of its own, and the model beside it."""

    def __init__(self, case: EngineCase) -> None:
        super().__init__()
        self.case = case

    @initialize()
    def begin(self) -> None:
        """Open a store."""
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.store = self.case.make(Path(self.folder.name))
        self.driver = Driver(self.store, self.run(self.store.connect()))
        self.model = Model()
        self.claims: dict[JobRef, Claim] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the engine."""
        return self.runner.run(work)

    def some(self, picked: list[int], among: Iterable[JobRef]) -> tuple[JobRef, ...]:
        """Pick some of these."""
        refs = list(among)
        return tuple(dict.fromkeys(refs[number % len(refs)] for number in picked)) if refs else ()

    @rule(
        name=st.sampled_from(NAMES),
        count=st.integers(0, 4),
        picked=picks,
        fan=st.integers(0, 3),
        policy=st.sampled_from(list(OnDependencyFailure)),
        sealed=st.booleans(),
    )
    def put(
        self, name: str, count: int, picked: list[int], fan: int, policy: OnDependencyFailure, sealed: bool
    ) -> None:
        """Add jobs, some of which wait for jobs that are there, or that come with them."""
        there = self.some(picked, [ref for ref, job in self.model.jobs.items() if job.batch == name])[:fan]
        jobs = [NewJob(type="work", batch=name)] * (count > 0)
        for place in range(1, count):
            after: tuple[int | str, ...] = (*(ref.id for ref in there), place - 1) if fan else ()
            jobs.append(NewJob(type="work", batch=name, after=after, on_dependency_failure=policy))
        calls = Callbacks(**{call: NewJob(type=f"{name} {call}", queue="calls") for call in CALLS})
        known = self.model.batches.get(name)
        new = NewBatch(name=name, callbacks=calls if known is None else Callbacks(), sealed=sealed)
        if known is not None and (known.finished or (known.stopped and jobs)):
            with pytest.raises(InvalidValue):
                self.run(self.driver.engine.save_batch(new, jobs))
            return
        added = [one.ref for one in self.run(self.driver.engine.save_batch(new, jobs))]
        batch = self.model.batches.setdefault(name, ModelBatch())
        batch.total += len(added)
        for place, ref in enumerate(added):
            waits = {*there, added[place - 1]} if jobs[place].after else set()
            state = JobStatus.BLOCKED if waits else JobStatus.PENDING
            self.model.jobs[ref] = ModelJob(state, name, policy, waits)
        batch.sealed |= sealed
        for parent in there:
            if self.model.jobs[parent].state in FINISHED:
                self.model.tell(parent, self.model.jobs[parent].state)

    @rule(name=st.sampled_from(NAMES))
    def stop(self, name: str) -> None:
        """Stop a batch that can be."""
        batch = self.model.batches.get(name)
        if batch is None or batch.finished or batch.stopped:
            return
        self.run(self.driver.engine.save_batch(NewBatch(name=name, stopped=True)))
        self.model.stop(name)

    @rule(slots=st.integers(1, 6))
    def take(self, slots: int) -> None:
        """Take what is ready."""
        ready = {ref for ref, job in self.model.jobs.items() if job.state is JobStatus.PENDING}
        claims = self.run(self.driver.take("default", slots=slots))
        assert len(claims) == min(slots, len(ready))
        for claim in claims:
            assert claim.ref in ready
            self.model.jobs[claim.ref].state = JobStatus.RUNNING
            self.claims[claim.ref] = claim

    @precondition(lambda self: any(job.state in HELD for job in self.model.jobs.values()))
    @rule(picked=picks, outcome=outcomes, other=outcomes)
    def settle(self, picked: list[int], outcome: Outcome, other: Outcome) -> None:
        """End some runs, in one go."""
        refs = self.some(picked, [ref for ref, job in self.model.jobs.items() if job.state in HELD])
        ends = [(ref, outcome if place % 2 else other) for place, ref in enumerate(refs)]
        assert not self.run(self.driver.engine.settle([Settlement(self.claims[ref], end) for ref, end in ends]))
        # They end in one go: whatever the ends mean for others comes behind all of them.
        for ref, end in sorted(ends, key=lambda each: ENDS[type(each[1])] in FINISHED):
            self.move(ref, ENDS[type(end)])

    def move(self, ref: JobRef, state: JobStatus) -> None:
        if state in FINISHED:
            self.model.end(ref, state)
        else:
            self.model.jobs[ref].state = state

    @precondition(lambda self: self.model.jobs)
    @rule(verb=st.sampled_from(["cancel", "delete", "replay"]), picked=picks)
    def operate(self, verb: str, picked: list[int]) -> None:
        """Press a button."""
        refs = self.some(picked, self.model.jobs)[:1]  # one at a time: which of two is told of first is left open
        changed = [change.ref for change in self.run(getattr(self.driver.engine, verb)(JobFilter(refs=refs)))]
        for ref in changed:
            job = self.model.jobs[ref]
            if verb == "replay":
                assert job.state in ILL
                self.model.batches[job.batch].ended[job.state] -= 1
                job.state = JobStatus.PENDING
                job.waits_for.clear()
            elif verb == "cancel" or job.state in WAITING:
                self.model.end(ref, JobStatus.CANCELLED)
            if verb == "delete":
                del self.model.jobs[ref]

    @rule()
    def lose(self) -> None:
        """Let the worker die, and give back what it held."""
        self.run(self.driver.advance(PAST_LEASE))
        self.run(self.driver.rescue())
        for job in self.model.jobs.values():
            if job.state in HELD:
                job.state = JobStatus.PENDING
        # A suspect runs alone: let it show at once that it was not the cause.
        while claims := self.run(self.driver.take("default", alone=True)):
            (claim,) = claims
            self.run(self.driver.end(claim, Complete()))
            self.move(claim.ref, JobStatus.COMPLETED)

    @invariant()
    def agree(self) -> None:
        """Compare everything, when all that is left undone has been done."""
        if not hasattr(self, "model"):
            return
        self.run(self.driver.advance(0.001))
        while self.run(self.driver.promote()).more:
            pass
        for job in self.model.jobs.values():
            if job.state is JobStatus.SCHEDULED:
                job.state = JobStatus.PENDING
        self.model.turn()
        found = {job.ref: job.status for job in self.run(self.driver.jobs(JobFilter(types=("work",))))}
        assert found == {ref: job.state for ref, job in self.model.jobs.items()}
        for info in self.run(self.driver.engine.batches()).items:
            known = self.model.batches[info.name]
            assert (info.total, info.completed, info.failed, info.cancelled) == known.counts
            assert (info.is_finished, info.sealed) == (known.finished, known.sealed)
        calls = Counter(job.type for job in self.run(self.driver.jobs(JobFilter(queues=("calls",)))))
        assert calls == Counter(f"{name} {call}" for name, batch in self.model.batches.items() for call in batch.calls)

    def teardown(self) -> None:
        """Close the store."""
        if hasattr(self, "model"):
            self.run(self.store.close())
            self.runner.close()
            self.folder.cleanup()


@pytest.mark.timeout(900)
@needs(Feature.BATCHES, Feature.CANCELLED_STATE, Feature.REPLAY, Feature.LEADER, Feature.QUEUES_BY_USE)
def test_the_engine_and_the_model_agree_on_batches_and_flows(case: EngineCase):  # O1, P7, X3
    examples = int(EXAMPLES or BY_DEFAULT.get(case.name, ON_A_SERVER))
    run_state_machine_as_test(
        lambda: Machine(case),  # type: ignore[arg-type]  # it is only called
        settings=settings(max_examples=examples, stateful_step_count=STEPS, deadline=None, phases=PHASES),
    )
