"""Holds the store against the ledger: is every job where it should be, and has it been done? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onward.cli.demo.kinds import ATTEMPTS, KINDS, POISON, Kind
from onward.cli.demo.ledger import Entry
from onward.job import Job
from onward.lifecycle import JobStatus


@dataclass(frozen=True, slots=True)
class KindResult:
    """What became of one kind."""

    kind: Kind
    jobs: int
    states: Mapping[JobStatus, int]
    runs: int
    """Runs begun, according to the ledger."""

    @property
    def as_expected(self) -> int:
        """How many have ended as they must."""
        return self.states.get(self.kind.final_status, 0)


@dataclass(frozen=True, slots=True)
class Verification:
    """Everything, accounted for or not."""

    results: tuple[KindResult, ...]
    errors: tuple[str, ...]
    """Each job that is not where it should be, in words; empty: none was lost."""
    repeated: int
    """Jobs whose work was done more than once, because a worker died between doing it and saying so."""

    @property
    def jobs(self) -> int:
        """How many there were."""
        return sum(result.jobs for result in self.results)

    @property
    def runs(self) -> int:
        """How many runs it took."""
        return sum(result.runs for result in self.results)


def verify(expected: Mapping[str, Kind], stored: Mapping[str, Job], ledger: Iterable[Entry]) -> Verification:
    """Account for every job that was enqueued: ``planned`` says by id what it was, ``stored`` what the store has."""
    entries = list(ledger)
    begun = Counter(entry.job for entry in entries if not entry.done)
    done = Counter(entry.job for entry in entries if entry.done)
    errors = [
        f"{kind.name} {id}: {error}"
        for id, kind in expected.items()
        if (error := _error_of(kind, stored.get(id), begun=begun[id], done=done[id]))
    ]
    errors += [
        f"{entry.kind} {entry.job}: was run, and never enqueued" for entry in entries if entry.job not in expected
    ]
    results = []
    for kind in KINDS:
        ids = [id for id, expected_kind in expected.items() if expected_kind is kind]
        states = Counter(stored[id].status for id in ids if id in stored)
        results.append(KindResult(kind, len(ids), states, sum(begun[id] for id in ids)))
    return Verification(tuple(results), tuple(errors), sum(1 for id in expected if done[id] > 1))


def _error_of(kind: Kind, job: Job | None, *, begun: int, done: int) -> str | None:
    if job is None:
        return "is gone from the store"
    if job.status is not kind.final_status:
        return f"is {job.status}, and should be {kind.final_status} ({job.last_error or 'no error'})"
    if kind.final_status is JobStatus.COMPLETED and not done:
        return "is completed in the store, but its work was never done"
    if kind.final_status is not JobStatus.COMPLETED and done:
        return f"is {job.status} in the store, but its work was done"
    if kind is POISON and begun < ATTEMPTS:
        return f"was given up after {begun} of {ATTEMPTS} runs"
    return None
