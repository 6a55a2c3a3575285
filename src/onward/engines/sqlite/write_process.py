"""A process that writes to the database for a worker process.

A transaction of several statements needs Python's global lock (GIL) between them. A handler that holds the GIL in one
long call stops such a transaction half-way, and with it every other process that wants to write. The write process runs
no handlers, so that no transaction there waits for the GIL. See docs/explain/sqlite.md.

Each event loop has one channel (a socket) to the write process, with any number of requests under way. A thread takes a
free channel for each request. The write process commits what comes in together as one group, as the writer of this
process would.

The write process ends when the control socket closes, however this process ended. If it ends by itself, requests under
way fail as :class:`~onward.errors.StoreUnavailable`, this process writes by itself, and another one is started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final, TypeVar

import msgspec

from onward.engines.sqlite import fork_safety
from onward.engines.sqlite.database import Database, Synchronous
from onward.engines.sqlite.request_queue import Request
from onward.engines.sqlite.write_messages import (
    HEADER_SIZE,
    MAX_NUMBER,
    Buffer,
    Response,
    decode_response,
    encode_request,
    message,
    read_header,
)
from onward.errors import StoreUnavailable

T = TypeVar("T")

log = logging.getLogger("onward.sqlite")

RECEIVE_SIZE: Final = 1 << 18
_START_TIMEOUT: Final = 60.0
"""Seconds that an interpreter may take to start on a busy machine."""
_STOP_TIMEOUT: Final = 20.0
"""Seconds for the transaction under way, the last checkpoint and the exit."""
_STOP_CHECK_INTERVAL: Final = 0.005
"""Seconds."""
_RESPONSE_TIMEOUT: Final = 30.0
"""Seconds, beyond the busy timeout, after which a process that does not answer is killed: it may have been stopped."""
_RESTART_DELAY: Final = 5.0
"""Seconds between two failed starts."""


class Settings(msgspec.Struct, frozen=True):
    """The settings of a write process."""

    path: str
    synchronous: Synchronous
    busy_timeout: float


class WriteProcess:
    """A write process, as the process that it writes for sees it."""

    def __init__(self, database: Database, on_wake: Callable[[], None]) -> None:
        self._database = database
        self._on_wake = on_wake
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._generation = 0
        """How many processes have been started. Channels to an earlier one are of no use."""
        self._loop_channels: dict[asyncio.AbstractEventLoop, _LoopChannel] = {}
        self._free_channels: list[tuple[int, socket.socket]] = []
        self._channels_in_use = 0
        """Channels that threads wait for a response on."""
        self._closed = threading.Event()
        self.is_ready = False
        """Whether it takes requests; if not, this process writes by itself."""
        fork_safety.register(self)

    @property
    def pid(self) -> int | None:
        """The id of the process; None: it does not run."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start it, and wait until it takes requests. If it cannot be started now, go on trying on a thread."""
        if not self._try_start():
            self.start_in_background(after=_RESTART_DELAY)

    def start_in_background(self, *, after: float = 0.0) -> None:
        """Start it on a thread, which tries again until it can be started."""

        def start() -> None:
            self._reap()
            delay = after
            while not self._closed.wait(delay) and not self._try_start():
                delay = _RESTART_DELAY
            if self._closed.is_set():  # while it started
                self._reap()

        threading.Thread(target=start, name="onward-sqlite-start", daemon=True).start()

    def _try_start(self) -> bool:
        try:
            self._start()
        except OSError as error:
            log.warning("%s: no write process can be started, this process writes by itself: %s", self._database, error)
            return False
        return True

    def _start(self) -> None:
        settings = Settings(str(self._database.path), self._database.synchronous, self._database.busy_timeout)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(  # noqa: S603 - our own module
                    [
                        sys.executable,
                        "-m",
                        "onward.engines.sqlite.write_process_main",
                        str(theirs.fileno()),
                        msgspec.json.encode(settings).decode(),
                    ],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                )
            ours.settimeout(_START_TIMEOUT)
            try:
                is_started = ours.recv(1) == b"r"
            except OSError:
                process.kill()
                process.wait()
                raise
            if not is_started:
                raise OSError(f"it ended with exit code {process.wait()}")
            ours.settimeout(None)
        except BaseException:
            ours.close()
            raise
        with self._lock:
            self._process, self._control = process, ours
            self._generation += 1
            self.is_ready = not self._closed.is_set()

    def close(self) -> None:
        """Let it finish what it was asked, and wait for its end. Not on an event loop that waits for it. Idempotent."""
        self._closed.set()
        self.is_ready = False
        deadline = time.monotonic() + self._database.busy_timeout + _STOP_TIMEOUT
        while self._has_requests() and time.monotonic() < deadline:
            time.sleep(_STOP_CHECK_INTERVAL)
        self._close_channels()
        self._reap()

    def _has_requests(self) -> bool:
        """Return whether a request is under way."""
        return self._channels_in_use > 0 or any(
            channel.has_requests for loop, channel in list(self._loop_channels.items()) if not loop.is_closed()
        )

    def _reap(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            control, self._control = self._control, None
        if control is not None:
            control.close()
        if process is not None:
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # Requests

    async def run(self, request: Request[T]) -> T:
        """Have a request done, from an event loop.

        Raises:
            StoreUnavailable: the write process has ended; the request may have been done.
        """
        loop = asyncio.get_running_loop()
        channel = self._loop_channels.get(loop) or self._open_loop_channel(loop)
        result: T = self._unpack(await channel.send(encode_request(request)))
        return result

    def run_sync(self, request: Request[T]) -> T:
        """Have a request done, and wait for it on this thread. Raises as :meth:`run` does.

        A process that does not answer in time is killed, before the request is given up: it must not be done later.
        Heartbeats come this way, so that a worker notices within one of them.
        """
        encoded = message(0, encode_request(request))
        generation, channel = self._acquire_channel()
        is_reusable = False
        try:
            channel.settimeout(self._database.busy_timeout + _RESPONSE_TIMEOUT)
            channel.sendall(encoded)
            body = _receive(channel, read_header(_receive(channel, HEADER_SIZE)))
            is_reusable = True  # else the response is still to come, and must not be taken for that of another request
        except OSError as error:
            if isinstance(error, TimeoutError):
                self._kill(generation)
            self.on_lost(generation)
            raise _lost() from error
        finally:
            self._release_channel(generation, channel, is_reusable=is_reusable)
        result: T = self._unpack(decode_response(memoryview(body)))
        return result

    def _kill(self, generation: int) -> None:
        with self._lock:
            process = self._process if generation == self._generation else None
        if process is not None:
            log.error("%s: the write process does not answer, killing it", self._database)
            process.kill()

    def _unpack(self, response: Response) -> Any:
        result, error, wakes_workers = response
        if wakes_workers:
            self._on_wake()
        if error is not None:
            raise error
        return result

    def _acquire_channel(self) -> tuple[int, socket.socket]:
        with self._lock:
            self._channels_in_use += 1
            if self._free_channels:
                return self._free_channels.pop()
        try:
            return self._open_channel()
        except BaseException:
            with self._lock:
                self._channels_in_use -= 1
            raise

    def _release_channel(self, generation: int, channel: socket.socket, *, is_reusable: bool) -> None:
        with self._lock:
            self._channels_in_use -= 1
            is_kept = is_reusable and generation == self._generation and self.is_ready
            if is_kept:
                self._free_channels.append((generation, channel))
        if not is_kept:
            channel.close()

    def _open_loop_channel(self, loop: asyncio.AbstractEventLoop) -> _LoopChannel:
        for other in list(self._loop_channels):
            if other.is_closed() and (forgotten := self._loop_channels.pop(other, None)) is not None:
                forgotten.socket.close()
        generation, channel = self._open_channel()
        opened = self._loop_channels[loop] = _LoopChannel(loop, channel, lambda: self.on_lost(generation))
        return opened

    def _open_channel(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        with self._lock:
            generation, control = self._generation, self._control
            try:
                with theirs:
                    if control is None:
                        raise _lost()
                    socket.send_fds(control, [b"c"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                failure = error
            except BaseException:
                ours.close()
                raise
            else:
                return generation, ours
        self.on_lost(generation)
        raise _lost() from failure

    def on_lost(self, generation: int) -> None:
        """Take note that a process has ended by itself, and start another."""
        with self._lock:
            if not self.is_ready or generation != self._generation:
                return
            self.is_ready = False
        self._close_channels()
        log.error("%s: the write process has ended; this process writes until another has started", self._database)
        self.start_in_background()

    def _close_channels(self) -> None:
        with self._lock:
            free, self._free_channels = self._free_channels, []
        for _, channel in free:
            channel.close()
        for loop in list(self._loop_channels):
            if (loop_channel := self._loop_channels.pop(loop, None)) is not None:
                loop_channel.close_on_loop()

    # Forks

    def suspend_before_fork(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.ForkParticipant`."""
        self._lock.acquire()

    def resume_after_fork(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.ForkParticipant`."""
        self._lock.release()

    def reset_after_fork(self) -> None:
        """See :class:`~onward.engines.sqlite.fork_safety.ForkParticipant`. A forked child writes by itself.

        Its copies of the sockets are closed: they would keep the write process alive after the end of its worker.
        """
        self._lock = threading.Lock()
        self.is_ready = False
        self._closed.set()
        self._process = None
        if self._control is not None:
            self._control.close()
            self._control = None
        for _, channel in self._free_channels:
            channel.close()
        for loop_channel in self._loop_channels.values():
            loop_channel.socket.close()
        self._free_channels, self._loop_channels, self._channels_in_use = [], {}, 0


class OutgoingBuffer:
    """Messages that a non-blocking socket has not taken yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: socket.socket, on_failure: Callable[[], None]) -> None:
        self._loop = loop
        self._socket = channel
        self._on_failure = on_failure
        self._bytes = bytearray()

    def send(self, data: bytes) -> None:
        """Send now what the socket takes, and the rest when it can."""
        is_first = not self._bytes
        self._bytes += data
        if is_first:
            self._flush()
            if self._bytes:
                self._loop.add_writer(self._socket.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        self._flush()
        if not self._bytes and self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket.fileno())

    def _flush(self) -> None:
        try:
            while self._bytes:
                del self._bytes[: self._socket.send(self._bytes)]
        except BlockingIOError:
            return
        except OSError:
            self._bytes.clear()
            self._on_failure()


class _LoopChannel:
    """The channel of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: socket.socket, on_lost: Callable[[], None]) -> None:
        self.socket = channel
        self._loop = loop
        self._on_lost = on_lost
        self._numbers = count(1)
        self._futures: dict[int, asyncio.Future[Response]] = {}
        self._received = Buffer()
        self._outgoing = OutgoingBuffer(loop, channel, self._fail)
        channel.setblocking(False)  # noqa: FBT003 - positional only
        loop.add_reader(channel.fileno(), self._on_readable)

    @property
    def has_requests(self) -> bool:
        """Whether a response is still to come."""
        return bool(self._futures)

    def send(self, body: bytes) -> asyncio.Future[Response]:
        number = next(self._numbers) & MAX_NUMBER
        future = self._futures[number] = self._loop.create_future()
        self._outgoing.send(message(number, body))
        return future

    def _on_readable(self) -> None:
        try:
            data = self.socket.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._fail()
            return
        for number, body in self._received.feed(data):
            future = self._futures.pop(number)
            if not future.done():
                future.set_result(decode_response(body))

    def _fail(self) -> None:
        self._close()
        self._on_lost()

    def _close(self) -> None:
        if self.socket.fileno() >= 0:
            self._loop.remove_reader(self.socket.fileno())
            self._loop.remove_writer(self.socket.fileno())
            self.socket.close()
        for future in self._futures.values():
            if not future.done():
                future.set_exception(_lost())
        self._futures.clear()

    def close_on_loop(self) -> None:
        """Close the channel, from any thread. Requests under way fail."""
        try:
            self._loop.call_soon_threadsafe(self._close)
        except RuntimeError:  # the loop has closed
            self.socket.close()


def _receive(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = channel.recv(min(size, RECEIVE_SIZE))
        if not part:
            raise ConnectionResetError("the write process has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _lost() -> StoreUnavailable:
    return StoreUnavailable("the process that writes for this one has ended, and the last write may be lost with it")


def can_start() -> bool:
    """Return whether the system can pass sockets to another process."""
    return os.name == "posix" and hasattr(socket, "send_fds")
