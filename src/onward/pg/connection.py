"""Connections that do not wait for ever.

A network, or a proxy in it, may lose an answer and keep the connection: the statement was done, and nobody will ever
say so. Keep-alive does not find that out, because the other end of the connection is alive. So who waits for longer
than the connection's patience closes it, and goes on as after any other loss of a connection.

A verb asks one thing and reads one answer, so it goes to libpq directly (``ask``): what a cursor keeps for its users
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

from onward.pg.plans import Row, Rows, Statement

T = TypeVar("T")

_AS_IT_COMES: Final = [PyFormat.AUTO] * 64
"""How values are written: for as many as any statement has."""
_MOST_KEPT: Final = 500
"""Statements that a session keeps: those that name a queue's table are as many as there are queues."""

_MOST_SENT: Final = 2**20
"""Bytes that libpq is given at a time to send."""
_PLACE: Final = re.compile(rb"\$(\d+)")

_GLANCE: Final = 0.01
"""Seconds for which the loop may be held up for an answer: a commit takes a fraction of it, unless the disk is slow."""
_LOOK: Final = 0.1
"""Seconds for which plain code looks for an answer before it settles down to wait."""


class TimedConnection(psycopg.Connection[Any]):
    """A connection for plain code."""

    query_timeout: float | None = None
    """Seconds to wait for an answer; None: for ever."""

    @cached_property
    def asks(self) -> Asks:
        """How it is asked."""
        return Asks(self)

    def ask(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement, and give its rows."""
        return self.asks.rows(self._results(text, values))

    def do(self, text: str, values: Sequence[Any] = ()) -> int:
        """Execute one statement, and say how many rows it has changed."""
        return self.asks.count(self._results(text, values))

    def answer(self, statement: Statement) -> list[Row]:
        """Execute a statement of a plan, and give its rows."""
        if statement.rows is None:
            return self.ask(statement.text, statement.values)
        return self.wait(self.asks.copying(statement.text, statement.values, statement.rows))

    def _results(self, text: str, values: Sequence[Any]) -> list[PGresult]:
        asks = self.asks
        if not asks.begin(text, values):
            return self.wait(asks.asking(text, values))
        results: list[PGresult] = []
        return results if asks.look(results, _LOOK) else self.wait(asks.rest(results))

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Drive one step of the driver, as long as there is patience."""
        return super().wait(_watched(self, gen), *args, **kwargs)


class TimedAsyncConnection(psycopg.AsyncConnection[Any]):
    """A connection for an event loop."""

    query_timeout: float | None = None
    """Seconds to wait for an answer; None: for ever."""
    _is_quick: bool = True
    """Whether its last answer came so soon that the next is worth waiting for on the spot."""
    _begun: list[PGresult] | None = None
    """What has come of an answer that is on its way; None: none is."""

    @cached_property
    def asks(self) -> Asks:
        """How it is asked."""
        return Asks(self)

    async def ask(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement, and give its rows."""
        return self.asks.rows(await self.wait(self.asks.asking(text, values)))

    def try_execute(self, text: str, values: Sequence[Any] = ()) -> int | None:
        """Execute one statement while the loop is held up, and say how many rows it has changed.

        None: it takes longer than a moment; :meth:`do` goes on with it, and has to.
        """
        asks = self.asks
        if not (self._is_quick and asks.begin(text, values)):
            return None
        results: list[PGresult] = []
        if asks.look(results, _GLANCE):
            return asks.count(results)
        self._begun = results
        return None

    async def do(self, text: str, values: Sequence[Any] = ()) -> int:
        """Execute one statement, or go on with it if it is on its way, and say how many rows it has changed."""
        asks, began = self.asks, time.monotonic()
        begun, self._begun = self._begun, None
        try:
            return asks.count(await self.wait(asks.asking(text, values) if begun is None else asks.rest(begun)))
        finally:
            self._is_quick = begun is None and time.monotonic() - began < _GLANCE

    def answer(self, statement: Statement) -> Coroutine[Any, Any, list[Row]]:
        """Execute a statement of a plan, and give its rows."""
        if statement.rows is None:
            return self.ask(statement.text, statement.values)
        return self.wait(self.asks.copying(statement.text, statement.values, statement.rows))

    async def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Drive one step of the driver, as long as there is patience.

        Who is cancelled meanwhile hears of that. The driver would have the server stop first, and raise in place of
        the cancellation whatever comes of that: who takes it for a fault of the store goes on for ever.
        """
        task = asyncio.current_task()
        cancelled = 0 if task is None else task.cancelling()
        try:
            return await super().wait(_watched(self, gen), *args, **kwargs)
        except Exception as error:
            if task is not None and task.cancelling() > cancelled:
                raise asyncio.CancelledError from error
            raise


class Asks:
    """How a connection is asked: what it was asked before, how values are written for it, and how answers are read."""

    def __init__(self, connection: TimedConnection | TimedAsyncConnection) -> None:
        self._pgconn = connection.pgconn
        self._transformer = Transformer(connection)
        self._known_after = connection.prepare_threshold
        """How often the server is asked before it is told to keep a statement; None: never."""
        self._times: dict[tuple[str, tuple[int, ...]], int] = {}
        self._names: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)

    def is_sound(self) -> bool:
        """Say whether a connection that has been idle is still one, without asking the server.

        A server that has gone has said so, or has closed its end at least, and that can be read. So a restart is found
        out before a statement is sent, and nobody has to wonder whether it was done.
        """
        try:
            return self._pgconn.status == ConnStatus.OK and not self._poll.poll(0)
        except (ValueError, OSError):
            return False

    def begin(self, text: str, values: Sequence[Any]) -> bool:
        """Send a statement, unless the server may have to be told first to keep it; say whether it was sent."""
        written, types, formats = self._written(values)
        name = self._names.get((text, types))
        if name is not None:
            self._pgconn.send_query_prepared(name, written, formats)
        elif self._known_after is None:
            self._pgconn.send_query_params(text.encode(), written, types, formats)
        else:
            return False
        self._pgconn.flush()
        return True

    def look(self, results: list[PGresult], seconds: float) -> bool:
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

    def rest(self, results: list[PGresult]) -> PQGen[list[PGresult]]:
        """Wait for what has not come yet."""
        results += yield from generators.execute(self._pgconn)
        return results

    def asking(self, text: str, values: Sequence[Any]) -> PQGen[list[PGresult]]:
        """Send a statement, and wait for the answer; one that is asked often is kept by the server."""
        written, types, formats = self._written(values)
        key = (text, types)
        if key not in self._names and self._is_to_be_kept(key):
            name = b"onward_%d" % len(self._names)
            self._pgconn.send_prepare(name, text.encode(), types)
            _refused((yield from generators.execute(self._pgconn)))
            self._names[key] = name
        if (known := self._names.get(key)) is None:
            self._pgconn.send_query_params(text.encode(), written, types, formats)
        else:
            self._pgconn.send_query_prepared(known, written, formats)
        return (yield from self.rest([]))

    def copying(self, text: str, values: Sequence[Any], rows: Rows) -> PQGen[list[Row]]:
        """Send a statement and the COPY behind it, and what that reads, part by part: the server need not wait for all.

        Both are one query, so one transaction and one round trip; such a query has its values written into it.
        """
        pgconn = self._pgconn
        pgconn.send_query(_written_out(pgconn, text, values))
        pgconn.flush()
        next(rows)
        _refused(results := (yield from generators.execute(pgconn)))
        answered = self.rows(results[:-1])
        for part in chain((rows.send(answered),), rows):
            for at in range(0, len(part), _MOST_SENT):
                yield from generators.copy_to(pgconn, part[at : at + _MOST_SENT], flush=False)
                yield from generators.send(pgconn)
        yield from generators.copy_end(pgconn, None)
        return answered

    def count(self, results: Sequence[PGresult]) -> int:
        """Read how many rows were changed."""
        result = results[-1]
        if result.status != ExecStatus.COMMAND_OK:
            _refused(results)
        return result.command_tuples or 0

    def rows(self, results: Sequence[PGresult]) -> list[Row]:
        """Read the rows of an answer."""
        _refused(results)
        self._transformer.set_pgresult(results[-1])
        return self._transformer.load_rows(0, results[-1].ntuples, tuple)

    def _written(self, values: Sequence[Any]) -> tuple[Any, tuple[int, ...], Any]:
        transformer = self._transformer
        written = transformer.dump_sequence(values, _AS_IT_COMES[: len(values)])
        return written, transformer.types or (), transformer.formats

    def _is_to_be_kept(self, key: tuple[str, tuple[int, ...]]) -> bool:
        if self._known_after is None or len(self._names) >= _MOST_KEPT:
            return False
        if len(self._times) >= 10 * _MOST_KEPT:
            self._times.clear()
        times = self._times[key] = self._times.get(key, 0) + 1
        return times > self._known_after


def _written_out(pgconn: PGconn, text: str, values: Sequence[Any]) -> bytes:
    """Put values into a statement, each as a literal that cannot be anything else."""
    escape = Escaping(pgconn).escape_literal
    literals = [b"null" if each is None else bytes(escape(str(each).encode())) for each in values]
    return _PLACE.sub(lambda place: literals[int(place[1]) - 1], text.encode())


def _refused(results: Sequence[PGresult]) -> None:
    """Raise what the server has answered with an error."""
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)


def _watched(connection: TimedConnection | TimedAsyncConnection, gen: PQGen[T]) -> Generator[Any, Any, T]:
    """Give up when nothing has come for too long. The driver resumes us now and then with nothing, too.

    Where it was interrupted it resumes us with None, which those of its own steps that send would not take.
    """
    query_timeout = math.inf if connection.query_timeout is None else connection.query_timeout
    try:
        wanted = next(gen)
        until = time.monotonic() + query_timeout
        while True:
            ready = (yield wanted) or Ready.NONE
            if ready:
                until = time.monotonic() + query_timeout
            elif time.monotonic() > until:
                connection.pgconn.finish()  # its state is anybody's guess
                message = f"it has not answered for {query_timeout:g} s, and may have done what it was asked"
                raise psycopg.OperationalError(message)
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
