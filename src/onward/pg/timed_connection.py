"""Connections that do not wait for ever.

A network, or a proxy in it, may lose an answer and keep the connection: the statement was done, and nobody will ever
say so. Keep-alive does not find that out, because the other end of the connection is alive. So who waits for longer
than the connection's query timeout closes it, and goes on as after any other loss of a connection.

A verb asks one thing and reads one answer, so it goes to libpq directly (``query``): what a cursor keeps for its users
costs a lone enqueue as much as sending it.

On an event loop, to go to sleep and be woken costs several times as much as asking does. Who is alone on its loop may
wait for an answer on the spot (``try_execute``), for a moment, as long as answers come so soon.
"""

from __future__ import annotations

import asyncio
import math
import re
import select
import time
from collections.abc import Coroutine, Generator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors, generators
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, Escaping, ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready

from onward.pg.plan_runner import Row, Rows, Statement

T = TypeVar("T")

_AUTO_FORMATS: Final = [PyFormat.AUTO] * 64
"""How values are written: for as many as any statement has."""
_MAX_PREPARED: Final = 500
"""Statements that a session keeps: those that name a queue's table are as many as there are queues."""

_MAX_CHUNK_BYTES: Final = 2**20
"""Bytes that libpq is given at a time to send."""
_PLACEHOLDER: Final = re.compile(rb"\$(\d+)")

_BUSY_WAIT_SECONDS: Final = 0.01
"""Seconds for which the loop may be held up for an answer: a commit takes a fraction of it, unless the disk is slow."""
_POLL_SECONDS: Final = 0.1
"""Seconds for which plain code looks for an answer before it settles down to wait."""


class TimedConnection(psycopg.Connection[Any]):
    """A connection for plain code."""

    query_timeout: float | None = None
    """Seconds to wait for an answer; None: for ever."""

    @cached_property
    def executor(self) -> QueryExecutor:
        """How it is asked."""
        return QueryExecutor(self)

    def query(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement, and give its rows."""
        return self.executor.rows(self._results(text, values))

    def execute_rowcount(self, text: str, values: Sequence[Any] = ()) -> int:
        """Execute one statement, and say how many rows it has changed."""
        return self.executor.rowcount(self._results(text, values))

    def execute_statement(self, statement: Statement) -> list[Row]:
        """Execute a statement of a plan, and give its rows."""
        if statement.rows is None:
            return self.query(statement.text, statement.values)
        return self.wait(self.executor.copy(statement.text, statement.values, statement.rows))

    def _results(self, text: str, values: Sequence[Any]) -> list[PGresult]:
        executor = self.executor
        if not executor.send(text, values):
            return self.wait(executor.execute(text, values))
        results: list[PGresult] = []
        return (
            results if executor.poll_results(results, _POLL_SECONDS) else self.wait(executor.fetch_remaining(results))
        )

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Drive one step of the driver, until the query timeout."""
        return super().wait(_with_timeout(self, gen), *args, **kwargs)


class TimedAsyncConnection(psycopg.AsyncConnection[Any]):
    """A connection for an event loop."""

    query_timeout: float | None = None
    """Seconds to wait for an answer; None: for ever."""
    _is_fast: bool = True
    """Whether its last answer came so soon that the next is worth waiting for on the spot."""
    _pending_results: list[PGresult] | None = None
    """What has come of an answer that is on its way; None: none is."""

    @cached_property
    def executor(self) -> QueryExecutor:
        """How it is asked."""
        return QueryExecutor(self)

    async def query(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement, and give its rows."""
        return self.executor.rows(await self.wait(self.executor.execute(text, values)))

    def try_execute(self, text: str, values: Sequence[Any] = ()) -> int | None:
        """Execute one statement while the loop is held up, and say how many rows it has changed.

        None: it takes longer than a moment; :meth:`execute_rowcount` goes on with it, and has to.
        """
        executor = self.executor
        if not (self._is_fast and executor.send(text, values)):
            return None
        results: list[PGresult] = []
        if executor.poll_results(results, _BUSY_WAIT_SECONDS):
            return executor.rowcount(results)
        self._pending_results = results
        return None

    async def execute_rowcount(self, text: str, values: Sequence[Any] = ()) -> int:
        """Execute one statement, or go on with it if it is on its way, and say how many rows it has changed."""
        executor, began = self.executor, time.monotonic()
        pending, self._pending_results = self._pending_results, None
        try:
            return executor.rowcount(
                await self.wait(
                    executor.execute(text, values) if pending is None else executor.fetch_remaining(pending)
                )
            )
        finally:
            self._is_fast = pending is None and time.monotonic() - began < _BUSY_WAIT_SECONDS

    def execute_statement(self, statement: Statement) -> Coroutine[Any, Any, list[Row]]:
        """Execute a statement of a plan, and give its rows."""
        if statement.rows is None:
            return self.query(statement.text, statement.values)
        return self.wait(self.executor.copy(statement.text, statement.values, statement.rows))

    async def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Drive one step of the driver, until the query timeout.

        Who is cancelled meanwhile hears of that. The driver would have the server stop first, and raise in place of
        the cancellation whatever comes of that: who takes it for a fault of the store goes on for ever.
        """
        task = asyncio.current_task()
        cancelled = 0 if task is None else task.cancelling()
        try:
            return await super().wait(_with_timeout(self, gen), *args, **kwargs)
        except Exception as error:
            if task is not None and task.cancelling() > cancelled:
                raise asyncio.CancelledError from error
            raise


class QueryExecutor:
    """How a connection is asked: what it was asked before, how values are written for it, and how answers are read."""

    def __init__(self, connection: TimedConnection | TimedAsyncConnection) -> None:
        self._pgconn = connection.pgconn
        self._transformer = Transformer(connection)
        self._prepare_threshold = connection.prepare_threshold
        """How often the server is asked before it is told to keep a statement; None: never."""
        self._use_counts: dict[tuple[str, tuple[int, ...]], int] = {}
        self._prepared: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)

    def is_healthy(self) -> bool:
        """Say whether a connection that has been idle is still one, without asking the server.

        A server that has gone has said so, or has closed its end at least, and that can be read. So a restart is found
        out before a statement is sent, and nobody has to wonder whether it was done.
        """
        try:
            return self._pgconn.status == ConnStatus.OK and not self._poll.poll(0)
        except (ValueError, OSError):
            return False

    def send(self, text: str, values: Sequence[Any]) -> bool:
        """Send a statement, unless the server may have to be told first to keep it; say whether it was sent."""
        dumped, types, formats = self._dump(values)
        name = self._prepared.get((text, types))
        if name is not None:
            self._pgconn.send_query_prepared(name, dumped, formats)
        elif self._prepare_threshold is None:
            self._pgconn.send_query_params(text.encode(), dumped, types, formats)
        else:
            return False
        self._pgconn.flush()
        return True

    def poll_results(self, results: list[PGresult], seconds: float) -> bool:
        """Look for the answer, and take in what has come; say whether that is all."""
        pgconn, poll, milliseconds = self._pgconn, self._poll.poll, seconds * 1000
        while True:
            while pgconn.is_busy():
                if not poll(milliseconds):
                    return False
                pgconn.consume_input()
            if (result := pgconn.get_result()) is None:
                return True
            results.append(result)

    def fetch_remaining(self, results: list[PGresult]) -> PQGen[list[PGresult]]:
        """Wait for what has not come yet."""
        results += yield from generators.execute(self._pgconn)
        return results

    def execute(self, text: str, values: Sequence[Any]) -> PQGen[list[PGresult]]:
        """Send a statement, and wait for the answer; one that is asked often is kept by the server."""
        dumped, types, formats = self._dump(values)
        key = (text, types)
        if key not in self._prepared and self._should_prepare(key):
            name = b"onward_%d" % len(self._prepared)
            self._pgconn.send_prepare(name, text.encode(), types)
            _raise_errors((yield from generators.execute(self._pgconn)))
            self._prepared[key] = name
        if (prepared := self._prepared.get(key)) is None:
            self._pgconn.send_query_params(text.encode(), dumped, types, formats)
        else:
            self._pgconn.send_query_prepared(prepared, dumped, formats)
        return (yield from self.fetch_remaining([]))

    def copy(self, text: str, values: Sequence[Any], rows: Rows) -> PQGen[list[Row]]:
        """Send a statement and the COPY behind it, and what that reads, part by part: the server need not wait for all.

        Both are one query, so one transaction and one round trip; such a query has its values written into it.
        """
        pgconn = self._pgconn
        pgconn.send_query(_inline_values(pgconn, text, values))
        pgconn.flush()
        next(rows)
        _raise_errors(results := (yield from generators.execute(pgconn)))
        rows_before_copy = self.rows(results[:-1])
        for part in chain((rows.send(rows_before_copy),), rows):
            for at in range(0, len(part), _MAX_CHUNK_BYTES):
                yield from generators.copy_to(pgconn, part[at : at + _MAX_CHUNK_BYTES], flush=False)
                yield from generators.send(pgconn)
        yield from generators.copy_end(pgconn, None)
        return rows_before_copy

    def rowcount(self, results: Sequence[PGresult]) -> int:
        """Read how many rows were changed."""
        result = results[-1]
        if result.status != ExecStatus.COMMAND_OK:
            _raise_errors(results)
        return result.command_tuples or 0

    def rows(self, results: Sequence[PGresult]) -> list[Row]:
        """Read the rows of an answer."""
        _raise_errors(results)
        self._transformer.set_pgresult(results[-1])
        return self._transformer.load_rows(0, results[-1].ntuples, tuple)

    def _dump(self, values: Sequence[Any]) -> tuple[Any, tuple[int, ...], Any]:
        transformer = self._transformer
        dumped = transformer.dump_sequence(values, _AUTO_FORMATS[: len(values)])
        return dumped, transformer.types or (), transformer.formats

    def _should_prepare(self, key: tuple[str, tuple[int, ...]]) -> bool:
        if self._prepare_threshold is None or len(self._prepared) >= _MAX_PREPARED:
            return False
        if len(self._use_counts) >= 10 * _MAX_PREPARED:
            self._use_counts.clear()
        uses = self._use_counts[key] = self._use_counts.get(key, 0) + 1
        return uses > self._prepare_threshold


def _inline_values(pgconn: PGconn, text: str, values: Sequence[Any]) -> bytes:
    """Put values into a statement, each as a literal that cannot be anything else."""
    escape = Escaping(pgconn).escape_literal
    literals = [b"null" if each is None else bytes(escape(str(each).encode())) for each in values]
    return _PLACEHOLDER.sub(lambda placeholder: literals[int(placeholder[1]) - 1], text.encode())


def _raise_errors(results: Sequence[PGresult]) -> None:
    """Raise what the server has answered with an error."""
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)


def _with_timeout(connection: TimedConnection | TimedAsyncConnection, gen: PQGen[T]) -> Generator[Any, Any, T]:
    """Give up when nothing has come for too long. The driver resumes us now and then with nothing, too.

    Where it was interrupted it resumes us with None, which those of its own steps that send would not take.
    """
    query_timeout = math.inf if connection.query_timeout is None else connection.query_timeout
    try:
        wanted = next(gen)
        deadline = time.monotonic() + query_timeout
        while True:
            ready = (yield wanted) or Ready.NONE
            if ready:
                deadline = time.monotonic() + query_timeout
            elif time.monotonic() > deadline:
                connection.pgconn.finish()  # its state is anybody's guess
                message = f"it has not answered for {query_timeout:g} s, and may have done what it was asked"
                raise psycopg.OperationalError(message)
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
