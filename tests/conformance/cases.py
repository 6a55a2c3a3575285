"""The engines under test, and the back doors that a test needs into each one's store.

An :class:`EngineCase` names an engine and makes empty stores for it. A :class:`Store` is one of them, made for one
test: it hands out any number of handles, moves the store's clock, and does what no verb of the contract does: put a job
where only later features could, change a row by hand, open a connection as a user's program would.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from onward.clock import ManualClock
from onward.engine.capabilities import Capabilities, Feature, absent
from onward.engine.checked import CheckedEngine
from onward.engine.contract import Engine
from onward.engine.values import Claim, ClaimRequest, JobFilter, QueueChange, Settlement
from onward.engines.sqlite import migrations
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.request_queue import Request
from onward.engines.sqlite.write_messages import decode_request, decode_response, encode_request, encode_response
from onward.engines.sqlite.writer import SharedConnection
from onward.job import JobRef, NewJob
from onward.lifecycle import Bury, Complete, Fail, Failure, JobStatus, Outcome, Release, Retry

BOOM = Failure("ValueError", "boom", "Traceback: boom")


def needs(*features: Feature) -> pytest.MarkDecorator:
    """Say which features a test is about; engines without them are proven to refuse instead."""
    return pytest.mark.needs(*features)


class Planted(NamedTuple):
    """A job that was put in a state, with the claim that led there and an older one."""

    ref: JobRef
    claim: Claim
    stale: Claim


class Caller(ABC):
    """A user's own connection to the store's database: what ``within=`` is given."""

    handle: Any

    @abstractmethod
    def begin(self) -> None:
        """Open a transaction."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Write a row of the user's own."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Read the user's own rows."""

    @abstractmethod
    def commit(self) -> None:
        """Keep what was written."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo what was written."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""


class Store(ABC):
    """One real store, empty at first, for one test."""

    address: str
    """By which another process finds it: see :attr:`EngineCase.attach`."""
    needed: frozenset[Feature] = frozenset()
    """What the test is about: an engine that has a feature only when it is asked for is opened with it."""
    events: Any = None
    max_events: int | None = None
    """What handles opened from now on tell the store of its record of events."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._handles: list[CheckedEngine] = []
        self._callers: list[Caller] = []

    # What each engine's case says

    @abstractmethod
    def bare(self) -> Engine:
        """Make a further handle on this store, not yet open, on the store's clock."""

    @abstractmethod
    async def force(self, ref: JobRef, state: JobStatus) -> None:
        """Put a waiting job in a state that no verb leads to yet."""

    @abstractmethod
    async def edit_by_hand(self, ref: JobRef) -> None:
        """Change a job's payload as a person with a console would."""

    def refuse_audit(self) -> None:
        """Have the store refuse new audit records from now on."""
        raise NotImplementedError

    @abstractmethod
    def new_caller(self) -> Caller:
        """Open a connection as a user's program would."""

    @abstractmethod
    def new_stranger(self) -> Caller:
        """Open a connection of the right kind to another database."""

    # What holds for all

    @property
    def recorded(self) -> Any:
        """When events are to be recorded: always, where the test is about them."""
        return "all" if Feature.EVENTS in self.needed else self.events

    async def connect(self) -> CheckedEngine:
        """Open a further handle, closed with the store."""
        handle = CheckedEngine(self.bare())
        self._handles.append(handle)
        await handle.open()
        return handle

    async def reconnect(self, handle: CheckedEngine) -> CheckedEngine:
        """Close a handle as a program that ends would, and open another as the next one would."""
        await handle.close()
        return await self.connect()

    def caller(self) -> Caller:
        """Open a user's connection, closed with the store."""
        self._callers.append(self.new_caller())
        return self._callers[-1]

    def stranger(self) -> Caller:
        """Open a user's connection to another database, closed with the store."""
        self._callers.append(self.new_stranger())
        return self._callers[-1]

    async def advance(self, by: timedelta | float) -> None:
        """Move the store's clock."""
        self.clock.advance(by)

    async def close(self) -> None:
        """Close everything that was opened through it."""
        for caller in self._callers:
            caller.close()
        for handle in self._handles:
            await handle.close()

    async def plant(self, engine: CheckedEngine, state: JobStatus, *, queue: str = "planted") -> Planted:
        """Put a new job in a state, by the engine's own verbs wherever they lead there.

        Every planted job has been held twice, so that a token which once was good, and for illegal moves even the
        newest one, can be tried on it.
        """
        await engine.configure(queue, QueueChange())
        (added,) = await engine.enqueue([NewJob(type="planted", queue=queue, payload='{"n": 1}')])
        stale = await _take(engine, added.ref)
        await _end(engine, stale, Release())
        claim = await _take(engine, added.ref, started=state is not JobStatus.CLAIMED)
        match state:
            case JobStatus.CLAIMED | JobStatus.RUNNING:
                pass
            case JobStatus.SCHEDULED:
                await _end(engine, claim, Retry(timedelta(minutes=1), BOOM))
            case JobStatus.PENDING:
                await _end(engine, claim, Release())
            case JobStatus.BLOCKED:
                await _end(engine, claim, Release())
                await self.force(added.ref, JobStatus.BLOCKED)
            case JobStatus.COMPLETED:
                await _end(engine, claim, Complete())
            case JobStatus.FAILED:
                await _end(engine, claim, Fail(BOOM))
            case JobStatus.DEAD_LETTER:
                await _end(engine, claim, Bury(BOOM))
            case JobStatus.CANCELLED:
                await engine.cancel(JobFilter(refs=(added.ref,)))
        return Planted(added.ref, claim, stale)


async def _take(engine: CheckedEngine, ref: JobRef, *, started: bool = True) -> Claim:
    request = ClaimRequest(
        worker_id="planter", queues=(ref.queue,), slots=int(started), prefetch_claimed=int(not started)
    )
    (claim,) = (await engine.claim(request)).claims
    assert claim.ref == ref
    return claim


async def _end(engine: CheckedEngine, claim: Claim, outcome: Outcome) -> None:
    assert not await engine.settle([Settlement(claim, outcome)])


@dataclass(frozen=True)
class EngineCase:
    """An engine under test."""

    name: str
    make: Callable[[Path], Store]
    """Makes an empty store; the folder is the test's own."""
    attach: Callable[[str], CheckedEngine]
    """Makes a handle on the store at an address, not yet open, on the store's real clock: for other processes."""
    capable: Callable[[], Capabilities]
    has_native_ids: bool
    """Ids are ours: UUIDv7, and global (O2)."""

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the engine says of itself, known before any store is made."""
        return self.capable()

    @property
    def states(self) -> list[JobStatus]:
        """The states that the engine can tell apart."""
        missing = set() if self.capabilities.has(Feature.CANCELLED_STATE) else {JobStatus.CANCELLED}
        return [state for state in JobStatus if state not in self.capabilities.status_aliases and state not in missing]

    def shown_as(self, state: JobStatus) -> set[JobStatus]:
        """The states that the engine shows as this one."""
        return {state} | {hidden for hidden, shown in self.capabilities.status_aliases.items() if shown is state}


class Lacking:
    """An engine that says a feature is absent, and is otherwise the one it stands in front of.

    With it an engine that has everything can show how it would refuse.
    """

    def __init__(self, engine: Engine, feature: Feature) -> None:
        self._engine = engine
        features = {**engine.capabilities.features, feature: absent(f"no {feature} in this test; do without")}
        self.capabilities = replace(engine.capabilities, features=features)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


# SQLite ---------------------------------------------------------------------------------------------------------------


class SQLiteStore(Store):
    """A database file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.path = folder / "jobs.db"
        self.address = str(self.path)

    def bare(self) -> Engine:
        """See :class:`Store`."""
        engine = SQLiteEngine(self.path, clock=self.clock, events=self.recorded, max_events=self.max_events)
        send_as_messages(engine._writer)
        return engine

    async def force(self, ref: JobRef, state: JobStatus) -> None:
        """See :class:`Store`."""
        self._by_hand("update onward_job set status = ? where id = ?", state, ref.id)

    async def edit_by_hand(self, ref: JobRef) -> None:
        """See :class:`Store`."""
        self._by_hand("update onward_job set payload = ? where id = ?", '{"by": "hand"}', ref.id)

    def refuse_audit(self) -> None:
        """See :class:`Store`."""
        connection = sqlite3.connect(self.path)
        try:
            connection.execute(
                "create trigger refuse before insert on onward_audit begin select raise(abort, 'refused'); end"
            )
        finally:
            connection.close()

    def _by_hand(self, statement: str, *values: str) -> None:
        connection = sqlite3.connect(self.path)
        try:
            with connection:
                assert connection.execute(statement, values).rowcount == 1
        finally:
            connection.close()

    def new_caller(self) -> Caller:
        """See :class:`Store`."""
        return SQLiteCaller(self.path)

    def new_stranger(self) -> Caller:
        """See :class:`Store`."""
        return SQLiteCaller(self._folder / "elsewhere.db")


def send_as_messages(writer: SharedConnection) -> None:
    """Encode and decode every request and its result, as on the way to a write process and back."""
    run = writer.run

    async def run_as_message(work: Callable[..., Any], *args: Any, urgent: bool = False) -> Any:
        if work is migrations.migrate:  # which comes before there is a write process
            return await run(work, *args, urgent=urgent)
        request = decode_request(memoryview(encode_request(Request(work, args, is_urgent=urgent))))
        request.result = await run(request.work or work, *request.args, urgent=request.is_urgent)
        return decode_response(memoryview(encode_response(request, wakes_workers=False)))[0]

    writer.run = run_as_message  # type: ignore[method-assign,assignment]


class SQLiteCaller(Caller):
    """A plain ``sqlite3`` connection, as ``sqlite3.connect`` gives it."""

    handle: sqlite3.Connection

    def __init__(self, path: Path) -> None:
        self.handle = sqlite3.connect(path)
        with self.handle:
            self.handle.execute("create table if not exists note (text text)")

    def begin(self) -> None:
        """See :class:`Caller`."""
        self.handle.execute("begin immediate")

    def note(self, text: str) -> None:
        """See :class:`Caller`."""
        self.handle.execute("insert into note values (?)", (text,))

    def notes(self) -> list[str]:
        """See :class:`Caller`."""
        return [text for (text,) in self.handle.execute("select text from note order by rowid")]

    def commit(self) -> None:
        """See :class:`Caller`."""
        self.handle.commit()

    def rollback(self) -> None:
        """See :class:`Caller`."""
        self.handle.rollback()

    def close(self) -> None:
        """See :class:`Caller`."""
        self.handle.close()


SQLITE = EngineCase(
    name="sqlite",
    make=SQLiteStore,
    attach=lambda address: CheckedEngine(SQLiteEngine(address)),
    capable=lambda: SQLiteEngine("never-opened.db").capabilities,
    has_native_ids=True,
)

# Last, because a case of another module is made of what stands above.
from tests.conformance.bullmq_case import BULLMQ  # noqa: E402
from tests.conformance.pgboss_case import PGBOSS  # noqa: E402
from tests.conformance.pgmq_case import PGMQ  # noqa: E402
from tests.conformance.postgres_case import POSTGRES  # noqa: E402

CASES: tuple[EngineCase, ...] = (SQLITE, POSTGRES, PGBOSS, BULLMQ, PGMQ)
CASE_OF = {case.name: case for case in CASES}


def each_state(states: Iterable[JobStatus] = JobStatus) -> pytest.MarkDecorator:
    """Run a test once for every case and each of these states that it can tell apart."""
    wanted = frozenset(states)
    cells = [(case, state) for case in CASES for state in case.states if state in wanted]
    ids = [f"{case.name}-{state}" for case, state in cells]
    return pytest.mark.parametrize(("case", "state"), cells, ids=ids, indirect=["case"])
