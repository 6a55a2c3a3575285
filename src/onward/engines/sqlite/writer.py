"""The connections that one process writes and reads with, and how requests are committed.

A :class:`SharedConnection` takes requests from any thread or event loop; its thread serves them in order, see
:mod:`onward.engines.sqlite.request_queue`. Requests that have piled up while the last transaction was being written
share the next one: a hundred concurrent enqueues cost one write to the disk, and each caller is answered only when that
write is durable. If one of them fails, the transaction is undone and each is done again alone, so that nobody suffers
for another's fault.

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
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from itertools import chain, groupby, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from onward.clock import Clock
from onward.engines.sqlite import fork_safety
from onward.engines.sqlite.database import COMMITS_PER_SIZE_CHECK, Database, FileId, is_busy, translate
from onward.engines.sqlite.request_queue import MAX_GROUP_SIZE, Request, RequestQueue, deliver, resolve_futures
from onward.engines.sqlite.round_robin import RoundRobin
from onward.engines.sqlite.transaction import Transaction
from onward.engines.sqlite.write_lock import WriteLock
from onward.errors import StoreBusy, StoreUnavailable

if TYPE_CHECKING:
    from onward.engines.sqlite.write_process import WriteProcess

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_LONG_HOLD_SECONDS: Final = 1.0
"""Seconds after which a transaction of ours has kept other processes from writing for too long."""
_MAX_INLINE_IN_A_ROW: Final = 3
"""Requests that an event loop does one after the other without having had its turn."""
_MAX_INLINE_COMMIT_SECONDS: Final = 0.002
"""Seconds that a commit may take for an event loop to be held up by the next."""
_BUSY_RETRY_DELAYS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)
"""Seconds between attempts to write while a program of somebody else's does."""
_COMMIT_SECONDS_DECAY: Final = 0.9
"""What is left, with each commit, of the memory of a slow one: after 10 ms, fifteen quick ones are asked for."""


@dataclass(eq=False)
class SharedConnection:
    """A connection for writing or for reading, and the thread that works on it."""

    database: Database
    clock: Clock
    writes: bool
    on_wake: Callable[[], None] = lambda: None
    on_long_hold: Callable[[float], None] = lambda _: None
    """Called with the seconds for which a transaction kept other processes from writing, if that was too long."""
    write_process: WriteProcess | None = None
    """Does what is asked, while it is ready, instead of this process."""
    _queue: RequestQueue = field(init=False)
    _requests_by_loop: dict[asyncio.AbstractEventLoop, list[Request[Any]]] = field(default_factory=dict, init=False)
    """Requests of an event loop's present turn, which end it together."""
    _inline_left: int = field(default=0, init=False)
    """How many more need not wait for company, since the last who did had none."""
    _lifecycle_lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while the thread begins or ends, and while it is handed a request: none is handed to one that has ended."""
    _connection_lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held by whoever works on the connection."""
    _connection: sqlite3.Connection | None = field(default=None, init=False)
    _file_id: FileId | None = field(default=None, init=False)
    """Which file the connection has open: the path may come to name another, or none."""
    _write_lock: WriteLock = field(init=False)
    _waiting_guard: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while ``_waiting`` is read or set."""
    _is_open: bool = field(default=False, init=False)
    _is_suspended: bool = field(default=False, init=False)
    _is_stuck: bool = field(default=False, init=False)
    """The thread waits for another process, and the requests that it did so for have been answered."""
    _closes_late: bool = field(default=False, init=False)
    """The thread closes the connection: it was waiting for another process when it was told to stop."""
    _waiting: Sequence[Request[Any]] | None = field(default=None, init=False)
    """Requests that wait for their turn to be written."""
    _waiting_since: float = field(default=0.0, init=False)
    _watchdog: threading.Thread | None = field(default=None, init=False)
    _commits: int = field(default=0, init=False)
    _recent_lookup_seconds: float = field(default=0.0, init=False)
    """Seconds that lookups on an event loop have taken at most of late."""
    _round_robins: dict[tuple[str, ...], RoundRobin] = field(default_factory=dict, init=False)
    _recent_commit_seconds: float = field(default=1.0, init=False)
    """Seconds that commits have taken at most of late; until some have been seen, too many."""

    def __post_init__(self) -> None:
        """Be told of forks."""
        self._queue = RequestQueue(f"onward-sqlite-{'writer' if self.writes else 'reader'}")
        self._write_lock = WriteLock(self.database.path)
        fork_safety.register(self)

    # For callers

    def open(self) -> None:
        """Take requests from now on."""
        self._is_open = True

    async def run(self, work: Callable[[Transaction, *Ts], T], *args: *Ts, urgent: bool = False) -> T:
        """Run work in a transaction on the connection's thread, from an event loop."""
        request: Request[T] = Request(work, args, is_urgent=urgent)
        if self.write_process is not None and self.write_process.is_ready:
            return await self.write_process.run(request)
        request.loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = request.loop.create_future()
        request.future = future
        self._submit(request, urgent=urgent)
        return await future

    async def run_lookup(self, work: Callable[[Transaction], T]) -> T:
        """Read a few rows by their key: on the caller's thread where that is free and quick, else as :meth:`run`.

        To hand a lookup to another thread and back takes longer than the lookup, the more so while the loop is busy.
        """
        if self._recent_lookup_seconds > _MAX_INLINE_COMMIT_SECONDS:
            self._recent_lookup_seconds *= _COMMIT_SECONDS_DECAY
            return await self.run(work)
        began = time.perf_counter()
        request: Request[T] = Request(work)
        if not self._read_inline(request):
            return await self.run(work)
        self._recent_lookup_seconds = max(
            time.perf_counter() - began, self._recent_lookup_seconds * _COMMIT_SECONDS_DECAY
        )
        return request.get_result()

    async def run_coalesced(
        self,
        work: Callable[[Transaction, list[Any]], list[T]],
        item: Sized,
        single_statement: Callable[[Transaction, Any], T | None] | None,
    ) -> T:
        """Have an item done together with those that others share for the same work at the moment, by one call.

        ``single_statement`` does an item that is alone by one statement, which is a transaction by itself; or answers
        None, and has then done nothing.
        """
        loop = asyncio.get_running_loop()
        request: Request[T] = Request(coalesced_work=work, item=item, single_statement=single_statement, loop=loop)
        if self.write_process is not None and self.write_process.is_ready:
            return await self.write_process.run(request)
        if (
            self._inline_left
            and self._recent_commit_seconds <= _MAX_INLINE_COMMIT_SECONDS
            and len(item) == 1
            and loop not in self._requests_by_loop
        ):
            self._inline_left -= 1
            if self._serve_inline([request]):
                return request.get_result()
        future: asyncio.Future[T] = loop.create_future()
        request.future = future
        turn_requests = self._requests_by_loop.setdefault(loop, [])
        turn_requests.append(request)
        try:
            await asyncio.sleep(0)  # whoever comes in this turn of the loop comes together
        except BaseException:
            turn_requests.remove(request)
            raise
        finally:
            if self._requests_by_loop.get(loop) is turn_requests:  # the first to go on does it for all
                del self._requests_by_loop[loop]
                self._inline_left = _MAX_INLINE_IN_A_ROW if len(turn_requests) == 1 else 0
                if (
                    self._recent_commit_seconds <= _MAX_INLINE_COMMIT_SECONDS
                    and sum(len(other.item) for other in turn_requests) <= MAX_GROUP_SIZE
                    and self._serve_inline(turn_requests)
                ):
                    resolve_futures(turn_requests)
                else:
                    self._submit_all(turn_requests)
        return await future

    def run_coalesced_sync(
        self,
        work: Callable[[Transaction, list[Any]], list[T]],
        item: Sized,
        single_statement: Callable[[Transaction, Any], T | None],
    ) -> T:
        """Do the same, and wait for it on this thread."""
        return self._run_blocking(Request(coalesced_work=work, item=item, single_statement=single_statement))

    def run_sync(self, work: Callable[[Transaction, *Ts], T], *args: *Ts, urgent: bool = False) -> T:
        """Run work in a transaction, and wait for it on this thread."""
        return self._run_blocking(Request(work, args, is_urgent=urgent))

    def _run_blocking(self, request: Request[T]) -> T:
        if self.write_process is not None and self.write_process.is_ready:
            return self.write_process.run_sync(request)
        if not self._serve_inline([request]):
            request.done = threading.Event()
            self._submit(request, urgent=request.is_urgent)
            request.done.wait()
        return request.get_result()

    def serve(self, requests: Sequence[Request[Any]]) -> None:
        """Do requests on this thread, or on the connection's where they would have to wait. Each has ``on_done``."""
        requests = sorted(requests, key=attrgetter("is_urgent"), reverse=True)
        for begin in range(0, len(requests), MAX_GROUP_SIZE):
            group = requests[begin : begin + MAX_GROUP_SIZE]
            if self._serve_inline(group):
                resolve_futures(group)
            else:
                self._submit_all(group)

    def close(self) -> None:
        """Finish what was asked, then end the thread and close the connection.

        While another process holds the write lock, requests fail after ``busy_timeout``; this takes little longer.
        """
        for loop in list(self._requests_by_loop):
            self._submit_all(self._requests_by_loop.pop(loop, []))
        with self._lifecycle_lock:
            self._stop()
            self._is_open = False

    def suspend_before_fork(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.ForkParticipant`."""
        self._lifecycle_lock.acquire()
        self._is_suspended = True
        self._stop()

    def resume_after_fork(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.ForkParticipant`."""
        self._is_suspended = False
        self._lifecycle_lock.release()

    def reset_after_fork(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.ForkParticipant`."""
        self._lifecycle_lock, self._connection_lock, self._waiting_guard = (
            threading.Lock(),
            threading.Lock(),
            threading.Lock(),
        )
        self._queue.reset_after_fork()
        self._requests_by_loop = {}
        self._is_suspended = self._is_stuck = self._closes_late = False

    def _submit(self, *requests: Request[Any], urgent: bool = False) -> None:
        with self._lifecycle_lock:
            if not self._is_open:
                message = f"{self.database} is not open: enter the app with `async with app`, or call open()"
                raise StoreUnavailable(message)
            if not self._queue.is_running:
                self._watchdog, self._waiting = None, None
                self._queue.start(self._serve_next)
            self._queue.put(requests, urgent=urgent)

    def _submit_all(self, requests: Sequence[Request[Any]]) -> None:
        try:
            self._submit(*requests)
        except StoreUnavailable as error:
            for request in requests:
                request.error = error
                request.resolve_future()

    def _stop(self) -> None:
        self._queue.stop(lambda: self._is_stuck)
        if self._is_stuck:  # the thread keeps the connection, and closes it when it is let through
            self._closes_late = True
            return
        self._connection_lock.acquire()
        try:
            self._disconnect_in_turn(self.database.busy_timeout)
        finally:
            self._connection_lock.release()

    def _disconnect_in_turn(self, timeout: float) -> None:
        """Close the connection while no other process writes: the last one to close checkpoints."""
        deadline = time.monotonic() + timeout
        has_turn = False
        while self._connection is not None and not has_turn and time.monotonic() < deadline:
            has_turn = self._write_lock.try_acquire()
            if not has_turn and not self._write_lock.is_open:
                break
            if not has_turn:
                time.sleep(_BUSY_RETRY_DELAYS[-1])
        # Without its turn too: a process that holds the lock has a connection, so that this one is not the last.
        try:
            self._disconnect()
        finally:
            if has_turn:
                self._write_lock.release()
            self._write_lock.close()

    # On the caller's own thread

    def _serve_inline(self, requests: Sequence[Request[Any]]) -> bool:
        """Do requests on this thread, if that can be done without waiting; False: it was not."""
        if not requests or not self.writes or not self._connection_lock.acquire(blocking=False):
            return False
        try:
            connection = self._connection
            is_first = self._queue.is_empty
            if connection is None or not is_first or not self._is_open or self._is_suspended:
                return False
            try:
                has_turn = self._write_lock.try_acquire()
            except OSError:  # the thread will run into it too, and answers everyone
                return False
            return has_turn and self._write_inline(requests, connection)
        finally:
            self._connection_lock.release()

    def _read_inline(self, request: Request[Any]) -> bool:
        """Read on this thread, if the connection is free; False: nothing was done."""
        if not self._connection_lock.acquire(blocking=False):
            return False
        try:
            if self._connection is None or not self._queue.is_empty or not self._is_open or self._is_suspended:
                return False
            try:
                self._execute([request], self._connect())
            except BaseException as error:  # noqa: BLE001 - as on the connection's thread
                self._fail([request], error)
        finally:
            self._connection_lock.release()
        return True

    def _write_inline(self, requests: Sequence[Request[Any]], connection: sqlite3.Connection) -> bool:
        """Do requests in our turn to write, and let others have theirs."""
        try:
            if not self._write_single_statement(requests, connection):
                connection.execute("begin immediate")
                if not self._execute_and_commit(requests, connection):
                    return False
            if self._connection is not None:
                self._checkpoint_when_due(connection)
        except BaseException as error:  # noqa: BLE001 - as on the connection's thread
            if is_busy(error) and not requests[0].is_done:  # that thread will wait
                return False
            self._fail(requests, error)
        finally:
            self._write_lock.release()
            self._check_hold()
        return True

    def _check_hold(self) -> None:
        """Report that other processes could not write for too long. Nothing of ours takes that long."""
        held = self._write_lock.held_seconds()
        if held > _LONG_HOLD_SECONDS:
            self.on_long_hold(held)

    def _write_single_statement(self, requests: Sequence[Request[Any]], connection: sqlite3.Connection) -> bool:
        """Do a request by one statement that commits itself; False: it takes more than that, and nothing was done."""
        request = requests[0]
        if request.single_statement is None or len(requests) > 1:
            return False
        transaction = Transaction(connection, self.clock.micros(), round_robins=self._round_robins)
        began = time.perf_counter()
        result = request.single_statement(transaction, request.item)
        if result is None:
            return False
        self._acknowledge(requests, [result], transaction)
        self._record_commit(time.perf_counter() - began)
        return True

    # On the connection's thread

    def _serve_next(self) -> Sequence[Request[Any]]:
        with self._connection_lock:
            requests = self._queue.take()
            if requests:
                self._serve(requests)
            if self._closes_late and self._queue.is_empty:
                self._closes_late = False
                self._disconnect_in_turn(0)
        return requests

    def _serve(self, requests: Sequence[Request[Any]]) -> None:
        """Do requests when it is our turn."""
        try:
            if self.writes:
                self._write_lock.open()
            with self._waiting_guard:
                self._waiting, self._waiting_since = requests, time.monotonic()
            with self._write_lock.held(before_wait=self._start_watchdog):
                if self._stop_waiting():
                    self._execute_all(requests, self._connect())
            self._check_hold()
        except BaseException as error:  # noqa: BLE001 - a caller that waits must be answered whatever happens
            self._fail(requests, error)

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and self.database.file_id() != self._file_id:
            raise self._file_changed()
        if self._connection is None:
            self._connection = self.database.connect(read_only=not self.writes)
            self._file_id = self.database.file_id()
            if self.writes:  # who waits, and for how long, is for us to say: see _begin_writing
                self._connection.execute("pragma busy_timeout = 0")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def _fail(self, requests: Sequence[Request[Any]], error: BaseException) -> None:
        """Tell all who have no answer yet; the next request gets a new connection, whatever state this one is in."""
        for request in requests:
            if not request.is_done:
                request.error = self._translated(error)
        self._disconnect()

    def _execute_all(self, requests: Sequence[Request[Any]], connection: sqlite3.Connection) -> None:
        if not self._execute(requests, connection):
            for request in requests:
                self._execute([request], self._connect())
        if self.writes and self._connection is not None:
            self._checkpoint_when_due(connection)

    def _execute(self, requests: Sequence[Request[Any]], connection: sqlite3.Connection) -> bool:
        """Do requests in one transaction; False: nothing was done, try them one by one."""
        if self.writes:
            self._begin_immediate(connection)
        else:
            connection.execute("begin")
        return self._execute_and_commit(requests, connection)

    def _begin_immediate(self, connection: sqlite3.Connection) -> None:
        """Wait, for as long as our patience lasts, until no program of somebody else's is writing."""
        deadline = time.monotonic() + self.database.busy_timeout
        for pause in chain(_BUSY_RETRY_DELAYS, repeat(_BUSY_RETRY_DELAYS[-1])):
            try:
                connection.execute("begin immediate")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
            else:
                return
            time.sleep(pause)
            self._write_lock.restart_hold()

    def _execute_and_commit(self, requests: Sequence[Request[Any]], connection: sqlite3.Connection) -> bool:
        """Do requests in the transaction that has begun, and end it."""
        try:
            transaction = Transaction(
                connection,
                self.clock.micros(),
                is_exclusive=len(requests) == 1,
                round_robins=self._round_robins,
            )
            results = _results(transaction, requests)
            began = time.perf_counter()
            connection.execute("commit")
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the one who asked
            if connection.in_transaction:
                connection.execute("rollback")
            if len(requests) > 1:
                return False
            requests[0].error = self._translated(error)
            return True
        # Nothing from here on may undo or repeat what is written: first the answers, then the rest.
        self._acknowledge(requests, results, transaction)
        self._record_commit(time.perf_counter() - began)
        return True

    def _acknowledge(self, requests: Sequence[Request[Any]], results: Sequence[Any], transaction: Transaction) -> None:
        """Set the results of requests that are committed, if what they are committed to can still be found."""
        error = None if self.database.file_id() == self._file_id else self._file_changed()
        for request, result in zip(requests, results, strict=True):
            request.result, request.error, request.is_done = result, error, True
        if transaction.wakes_workers:
            self.on_wake()

    def _file_changed(self) -> StoreUnavailable:
        self._disconnect()
        return self.database.file_changed()

    def _record_commit(self, seconds: float) -> None:
        self._recent_commit_seconds = max(seconds, self._recent_commit_seconds * _COMMIT_SECONDS_DECAY)

    def _stop_waiting(self) -> bool:
        """Say whether those who waited still do: they may have been told that it took too long."""
        with self._waiting_guard:
            still_wait, self._waiting = self._waiting is not None, None
            self._is_stuck = False
        return still_wait

    def _start_watchdog(self) -> None:
        if self._watchdog is None:
            self._watchdog = threading.Thread(
                target=self._fail_expired_waits, name="onward-sqlite-watchdog", daemon=True
            )
            self._watchdog.start()

    def _fail_expired_waits(self) -> None:
        """Answer those who have waited too long for their turn, or behind one who has."""
        timeout = self.database.busy_timeout
        while self._is_open and self._watchdog is threading.current_thread():
            time.sleep(timeout / 4)
            with self._waiting_guard:
                if self._waiting is None or time.monotonic() - self._waiting_since < timeout:
                    continue
                expired, self._waiting = list(self._waiting), None
                self._is_stuck = True
            while requests := self._queue.take():
                expired += requests
            holder = self._write_lock.holder()
            message = (
                f"{self.database}: another process{f' ({holder})' if holder else ''} has held the turn to write for "
                f"more than {timeout:g} s; if it was stopped, continue or kill it; if a handler there holds Python's "
                'global lock in a long call, give its task executor="process", or start that worker with '
                "--write-process always"
            )
            for request in expired:
                request.error = StoreBusy(message)
            deliver(expired)

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, (sqlite3.Error, OSError)):
            translated_error = translate(error, self.database)
            if translated_error is not None:
                translated_error.__cause__ = error
                return translated_error
        return error

    def _checkpoint_when_due(self, connection: sqlite3.Connection) -> None:
        self._commits += 1
        if self._commits % COMMITS_PER_SIZE_CHECK == 0:
            self.database.checkpoint_when_large(connection)


def _results(transaction: Transaction, requests: Sequence[Request[Any]]) -> list[Any]:
    """Do requests in order; neighbours that share their work by one call."""
    if len(requests) == 1 and (only := requests[0]).coalesced_work is not None:
        return only.coalesced_work(transaction, [only.item])
    results: list[Any] = []
    for coalesced_work, neighbours in groupby(requests, key=attrgetter("coalesced_work")):
        if coalesced_work is not None:
            results += coalesced_work(transaction, [request.item for request in neighbours])
        else:
            results += [request.work(transaction, *request.args) for request in neighbours if request.work is not None]
    return results
