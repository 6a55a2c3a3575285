"""One connection and a thread for it: what is asked is done there, in the order it was asked.

A :class:`Lane` takes requests from any thread or event loop and answers each in its own way (a future of the caller's
loop, or a thread that waits). Requests that have piled up while the last transaction was being written share the next
one: a hundred concurrent enqueues cost one write to the disk, and each caller is answered only when that write is
durable. If one of them fails, the transaction is undone and each is done again alone, so that nobody suffers for
another's fault.

To wake another thread and be woken by it takes almost as long as a write. So callers write with their own hands, if
nothing is in the way: a thread that would have waited in any case; an event loop, for all who come in one turn of it,
only where there is little to write and writes have been quick of late, for they hold it up. Whoever would have to wait,
for a lock or for others, leaves it to the thread. A caller who is alone needs no transaction around its one statement.

Why so few statements: each time SQLite works, Python lets go of its global lock, and a busy event loop takes up to 5
ms to give it back. So rows come as one JSON text and not one by one.

A process that was stopped in the middle of a write holds up every other one, and no lock of the kernel can be waited
for with a time limit. So a second thread, started when there is first something to wait for, answers those who have
waited too long, and their requests are not done.

While the process forks there is neither thread nor connection: see :mod:`onward.engines.sqlite.fork_safety`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, repeat
from operator import attrgetter
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from onward.clock import Clock
from onward.engines.sqlite import fork_safety
from onward.engines.sqlite.database import LOG_SIZE_LIMIT, Database, is_busy, translate
from onward.engines.sqlite.statements import Statement
from onward.engines.sqlite.write_lock import Turnstile
from onward.errors import StoreBusy, StoreUnavailable

T = TypeVar("T")

_MOST_TOGETHER: Final = 64
"""Requests in one transaction: enough to share the disk's flush, few enough to keep the lock short."""
_COMMITS_BETWEEN_LOOKS: Final = 16
_MOST_ALONE: Final = 3
"""Requests that an event loop does one after the other without having had its turn."""
_QUICK: Final = 0.002
"""Seconds that a commit may take for an event loop to be held up by the next."""
_PAUSES: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)
"""Seconds between attempts to write while a program of somebody else's does."""
_FORGIVING: Final = 0.9
"""What is left, with each commit, of the memory of a slow one: after 10 ms, fifteen quick ones are asked for."""


@dataclass(slots=True)
class Transaction:
    """What a request works on."""

    connection: sqlite3.Connection
    now: int
    """The store's clock when the transaction began."""
    alone: bool = True
    """No other request shares it: it may undo as it likes."""
    woke: bool = False
    """Set by a request that made work ready."""

    def execute(self, statement: Statement, named: Mapping[str, Any] = MappingProxyType({})) -> sqlite3.Cursor:
        """Execute one of our statements."""
        return self.connection.execute(statement.numbered, statement.values(named))


class TryAlone(Exception):
    """Raised by a request that cannot go on in company."""


@dataclass(slots=True)
class _Request(Generic[T]):
    work: Callable[[Transaction], T] | None = None
    shared: Callable[[Transaction, list[Any]], list[T]] | None = None
    item: Any = None
    at_once: Callable[[Transaction, Any], T | None] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[T] | None = None
    done: threading.Event | None = None
    result: T | None = None
    error: BaseException | None = None
    is_done: bool = False

    def answer(self) -> T:
        """Return what came of it, or raise what was wrong."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]

    def finish(self) -> None:
        """Hand the answer over, on the caller's own thread."""
        if self.future is None or self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


@dataclass(eq=False)
class Lane:
    """A connection for writing or for reading, and the thread that works on it."""

    database: Database
    clock: Clock
    writes: bool
    on_wake: Callable[[], None] = lambda: None
    _requests: deque[_Request[Any]] = field(default_factory=deque, init=False)
    _urgent: deque[_Request[Any]] = field(default_factory=deque, init=False)
    _bell: SimpleQueue[None] = field(default_factory=SimpleQueue, init=False)
    """Rung for each request, or for as many as go together; a ring that finds nothing to do is harmless."""
    _comers: dict[asyncio.AbstractEventLoop, list[_Request[Any]]] = field(default_factory=dict, init=False)
    """Requests of an event loop's present turn, which end it together."""
    _alone: int = field(default=0, init=False)
    """How many more need not wait for company, since the last who did had none."""
    _thread: threading.Thread | None = field(default=None, init=False)
    _door: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while the thread begins or ends, and while it is handed a request: none is handed to one that has ended."""
    _hands: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held by whoever works on the connection."""
    _connection: sqlite3.Connection | None = field(default=None, init=False)
    _turnstile: Turnstile = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _is_open: bool = field(default=False, init=False)
    _is_ending: bool = field(default=False, init=False)
    _is_let_go: bool = field(default=False, init=False)
    _at_gate: Sequence[_Request[Any]] | None = field(default=None, init=False)
    """Requests that wait for their turn to be written."""
    _at_gate_since: float = field(default=0.0, init=False)
    _watch: threading.Thread | None = field(default=None, init=False)
    _commits: int = field(default=0, init=False)
    _slowest: float = field(default=1.0, init=False)
    """Seconds that commits have taken at most of late; until some have been seen, too many."""

    def __post_init__(self) -> None:
        """Be told of forks."""
        self._turnstile = Turnstile(self.database.path)
        fork_safety.register(self)

    # What callers see

    def open(self) -> None:
        """Take requests from now on."""
        self._is_open = True

    async def ask(self, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Have work done on the lane's thread, from an event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._submit(_Request(work, loop=loop, future=future), urgent=urgent)
        return await future

    async def share(
        self,
        work: Callable[[Transaction, list[Any]], list[T]],
        item: Sequence[Any],
        at_once: Callable[[Transaction, Any], T | None],
    ) -> T:
        """Have an item done together with those that others share for the same work at the moment, by one call.

        ``at_once`` does an item that is alone by one statement, which is a transaction by itself; or answers None, and
        has then done nothing.
        """
        loop = asyncio.get_running_loop()
        request: _Request[T] = _Request(shared=work, item=item, at_once=at_once, loop=loop)
        if self._alone and self._slowest <= _QUICK and len(item) == 1 and loop not in self._comers:
            self._alone -= 1
            if self._serve_here([request]):
                return request.answer()
        future: asyncio.Future[T] = loop.create_future()
        request.future = future
        if self._slowest > _QUICK:
            self._submit(request)
            return await future
        comers = self._comers.setdefault(loop, [])
        comers.append(request)
        try:
            await asyncio.sleep(0)  # whoever comes in this turn of the loop comes together
        except BaseException:
            comers.remove(request)
            raise
        finally:
            if self._comers.get(loop) is comers:  # the first to go on does it for all
                del self._comers[loop]
                self._alone = _MOST_ALONE if len(comers) == 1 else 0
                if sum(len(comer.item) for comer in comers) <= _MOST_TOGETHER and self._serve_here(comers):
                    _finish_all(comers)
                else:
                    self._submit_all(comers)
        return await future

    def share_sync(
        self,
        work: Callable[[Transaction, list[Any]], list[T]],
        item: Sequence[Any],
        at_once: Callable[[Transaction, Any], T | None],
    ) -> T:
        """Do the same, and wait for it on this thread."""
        return self._wait(_Request(shared=work, item=item, at_once=at_once))

    def ask_sync(self, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Have work done on the lane's thread, and wait for it on this one."""
        return self._wait(_Request(work), urgent=urgent)

    def _wait(self, request: _Request[T], *, urgent: bool = False) -> T:
        if not self._serve_here([request]):
            request.done = threading.Event()
            self._submit(request, urgent=urgent)
            request.done.wait()
        return request.answer()

    def close(self) -> None:
        """Finish what was asked, then end the thread and close the connection."""
        for loop in list(self._comers):
            self._submit_all(self._comers.pop(loop, []))
        with self._door:
            self._is_open = False
            self._end()

    def let_go(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.Holder`."""
        self._door.acquire()
        self._is_let_go = True
        self._end()

    def go_on(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.Holder`."""
        self._is_let_go = False
        self._door.release()

    def reset_after_fork(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.Holder`."""
        self._door, self._hands, self._lock = threading.Lock(), threading.Lock(), threading.Lock()
        self._thread, self._comers = None, {}
        self._is_let_go = False

    def _submit(self, *requests: _Request[Any], urgent: bool = False) -> None:
        with self._door:
            if not self._is_open:
                message = f"{self.database} is not open: enter the app with `async with app`, or call open()"
                raise StoreUnavailable(message)
            if self._thread is None:
                self._begin()
            (self._urgent if urgent else self._requests).extend(requests)
            for _ in range(0, len(requests), _MOST_TOGETHER):
                self._bell.put(None)

    def _submit_all(self, requests: Sequence[_Request[Any]]) -> None:
        try:
            self._submit(*requests)
        except StoreUnavailable as error:
            for request in requests:
                request.error = error
                request.finish()

    def _begin(self) -> None:
        self._requests, self._urgent = deque(), deque()
        self._bell, self._watch, self._at_gate = SimpleQueue(), None, None
        self._is_ending = False
        name = f"onward-sqlite-{'writer' if self.writes else 'reader'}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _end(self) -> None:
        if self._thread is not None:
            self._is_ending = True
            self._bell.put(None)
            self._thread.join()
            self._thread = None
        with self._hands:
            if self._connection is not None:
                with self._turnstile.passed():
                    self._disconnect()  # the last one to close checkpoints
            self._turnstile.close()

    # What is done with the caller's own hands

    def _serve_here(self, requests: Sequence[_Request[Any]]) -> bool:
        """Do requests on this thread, if that can be done without waiting; False: it was not."""
        if not requests or not self.writes or not self._hands.acquire(blocking=False):
            return False
        try:
            connection = self._connection
            is_first = not self._requests and not self._urgent
            if connection is None or not is_first or not self._is_open or self._is_let_go:
                return False
            return self._turnstile.pass_at_once() and self._write_here(requests, connection)
        finally:
            self._hands.release()

    def _write_here(self, requests: Sequence[_Request[Any]], connection: sqlite3.Connection) -> bool:
        """Do requests in our turn to write, and let others have theirs."""
        try:
            if not self._write_at_once(requests, connection):
                connection.execute("begin immediate")
                if not self._write(requests, connection):
                    return False
            self._checkpoint_when_due(connection)
        except BaseException as error:  # noqa: BLE001 - as on the lane's thread
            if is_busy(error) and not requests[0].is_done:  # that thread will wait
                return False
            self._fail(requests, error)
        finally:
            self._turnstile.release()
        return True

    def _write_at_once(self, requests: Sequence[_Request[Any]], connection: sqlite3.Connection) -> bool:
        """Do a request by one statement that commits itself; False: it takes more than that, and nothing was done."""
        request = requests[0]
        if request.at_once is None or len(requests) > 1:
            return False
        transaction = Transaction(connection, self.clock.micros())
        written = time.perf_counter()
        result = request.at_once(transaction, request.item)
        if result is None:
            return False
        self._has_committed(time.perf_counter() - written)
        request.result, request.is_done = result, True
        if transaction.woke:
            self.on_wake()
        return True

    # What the thread does

    def _run(self) -> None:
        while True:
            self._bell.get()
            with self._hands:
                requests = self._take()
                if requests:
                    self._serve(requests)
            if requests:
                self._answer(requests)
            elif self._is_ending:
                return

    def _take(self) -> list[_Request[Any]]:
        """Take what has piled up, the urgent first."""
        requests: list[_Request[Any]] = []
        while len(requests) < _MOST_TOGETHER:
            try:
                requests.append(self._urgent.popleft() if self._urgent else self._requests.popleft())
            except IndexError:
                break
        return requests

    def _serve(self, requests: Sequence[_Request[Any]]) -> None:
        """Do requests when it is our turn."""
        try:
            if self.writes:
                self._turnstile.open()
            with self._lock:
                self._at_gate, self._at_gate_since = requests, time.monotonic()
            with self._turnstile.passed(must_wait=self._watch_the_wait):
                if self._leave_gate():
                    self._do_all(requests, self._connect())
        except BaseException as error:  # noqa: BLE001 - a caller that waits must be answered whatever happens
            self._fail(requests, error)

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self.database.connect(read_only=not self.writes)
            if self.writes:  # who waits, and for how long, is for us to say: see _begin_writing
                self._connection.execute("pragma busy_timeout = 0")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def _fail(self, requests: Sequence[_Request[Any]], error: BaseException) -> None:
        """Tell all who have no answer yet; the next request gets a new connection, whatever state this one is in."""
        for request in requests:
            if not request.is_done:
                request.error = self._ours(error)
        self._disconnect()

    def _do_all(self, requests: Sequence[_Request[Any]], connection: sqlite3.Connection) -> None:
        if not self.writes:
            for request in requests:
                self._do([request], connection)
            return
        if not self._do(requests, connection):
            for request in requests:
                self._do([request], connection)
        self._checkpoint_when_due(connection)

    def _do(self, requests: Sequence[_Request[Any]], connection: sqlite3.Connection) -> bool:
        """Do requests in one transaction; False: nothing was done, try them one by one."""
        if self.writes:
            self._begin_writing(connection)
        else:
            connection.execute("begin")
        return self._write(requests, connection)

    def _begin_writing(self, connection: sqlite3.Connection) -> None:
        """Wait, for as long as our patience lasts, until no program of somebody else's is writing."""
        give_up = time.monotonic() + self.database.busy_timeout
        for pause in chain(_PAUSES, repeat(_PAUSES[-1])):
            try:
                connection.execute("begin immediate")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > give_up:
                    raise
            else:
                return
            time.sleep(pause)

    def _write(self, requests: Sequence[_Request[Any]], connection: sqlite3.Connection) -> bool:
        """Do requests in the transaction that has begun, and end it."""
        try:
            transaction = Transaction(connection, self.clock.micros(), alone=len(requests) == 1)
            results = _results(transaction, requests)
            written = time.perf_counter()
            connection.execute("commit")
            self._has_committed(time.perf_counter() - written)
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the one who asked
            if connection.in_transaction:
                connection.execute("rollback")
            if len(requests) > 1:
                return False
            requests[0].error = self._ours(error)
        else:
            for request, result in zip(requests, results, strict=True):
                request.result, request.is_done = result, True
            if transaction.woke:
                self.on_wake()
        return True

    def _has_committed(self, took: float) -> None:
        self._slowest = max(took, self._slowest * _FORGIVING)

    def _leave_gate(self) -> bool:
        """Say whether those who waited still do: they may have been told that it took too long."""
        with self._lock:
            still_wait, self._at_gate = self._at_gate is not None, None
        return still_wait

    def _watch_the_wait(self) -> None:
        if self._watch is None:
            self._watch = threading.Thread(target=self._give_up_waits, name="onward-sqlite-patience", daemon=True)
            self._watch.start()

    def _give_up_waits(self) -> None:
        """Answer those who have waited too long for their turn, or behind one who has."""
        patience = self.database.busy_timeout
        while self._is_open and self._watch is threading.current_thread():
            time.sleep(patience / 4)
            with self._lock:
                if self._at_gate is None or time.monotonic() - self._at_gate_since < patience:
                    continue
                given_up, self._at_gate = list(self._at_gate), None
            while requests := self._take():
                given_up += requests
            message = (
                f"{self.database}: another process has held the turn to write for more than {patience:g} s; "
                "if it was stopped, continue or kill it"
            )
            for request in given_up:
                request.error = StoreBusy(message)
            self._answer(given_up)

    def _ours(self, error: BaseException) -> BaseException:
        if isinstance(error, (sqlite3.Error, OSError)):
            ours = translate(error, self.database)
            if ours is not None:
                ours.__cause__ = error
                return ours
        return error

    def _answer(self, requests: Sequence[_Request[Any]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Request[Any]]] = {}
        for request in requests:
            if request.loop is not None:
                by_loop.setdefault(request.loop, []).append(request)
            elif request.done is not None:
                request.done.set()
        for loop, answered in by_loop.items():
            try:
                loop.call_soon_threadsafe(_finish_all, answered)
            except RuntimeError:  # the loop has closed: nobody waits there any more
                continue

    def _checkpoint_when_due(self, connection: sqlite3.Connection) -> None:
        self._commits += 1
        if self._commits % _COMMITS_BETWEEN_LOOKS:
            return
        try:
            size = self.database.wal.stat().st_size
        except OSError:
            return
        if size > LOG_SIZE_LIMIT:
            # Readers in the way are not waited for. Once all of the log is in the database, the next write begins it
            # anew and cuts the file back to the limit: from then on it is overwritten, which is flushed twice as fast
            # as a file that grows.
            connection.execute("pragma wal_checkpoint(passive)").fetchall()


def _results(transaction: Transaction, requests: Sequence[_Request[Any]]) -> list[Any]:
    """Do requests in order; neighbours that share their work by one call."""
    if len(requests) == 1 and (only := requests[0]).shared is not None:
        return only.shared(transaction, [only.item])
    results: list[Any] = []
    for shared, neighbours in groupby(requests, key=attrgetter("shared")):
        if shared is not None:
            results += shared(transaction, [request.item for request in neighbours])
        else:
            results += [request.work(transaction) for request in neighbours if request.work is not None]
    return results


def _finish_all(requests: Sequence[_Request[Any]]) -> None:
    for request in requests:
        request.finish()
