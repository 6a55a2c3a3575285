"""What a write process runs: takes requests of its worker, and commits those that come in together as one group."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from functools import partial
from typing import Any, Final

import msgspec

from onward.clock import SystemClock
from onward.engines.sqlite.database import Database
from onward.engines.sqlite.request_queue import Request
from onward.engines.sqlite.write_messages import Buffer, decode_request, encode_response, message
from onward.engines.sqlite.write_process import RECEIVE_SIZE, OutgoingBuffer, Settings
from onward.engines.sqlite.writer import SharedConnection

_MAX_CHANNELS_PER_RECEIVE: Final = 16


class _Server:
    """Serves the channels of one worker process."""

    def __init__(self, control: socket.socket, settings: Settings) -> None:
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._pending: list[Request[Any]] = []
        self._wakes_workers = False
        self._ended = asyncio.Event()
        database = Database(settings.path, synchronous=settings.synchronous, busy_timeout=settings.busy_timeout)
        database.must_exist = True
        self._connection = SharedConnection(database, SystemClock(), writes=True, on_wake=self._on_wake)

    async def run(self) -> None:
        """Serve until the worker closes the control socket, or has ended."""
        self._connection.open()
        self._control.setblocking(False)  # noqa: FBT003 - positional only
        self._loop.add_reader(self._control.fileno(), self._on_control)
        self._control.send(b"r")
        await self._ended.wait()
        self._connection.close()

    def _on_control(self) -> None:
        """Take a channel."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1, _MAX_CHANNELS_PER_RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            _Channel(self._loop, socket.socket(fileno=descriptor), self)
        if not data:
            self._loop.remove_reader(self._control.fileno())
            self._ended.set()

    def add(self, request: Request[Any]) -> None:
        """Take a request. Those of one turn of the loop are served together."""
        if not self._pending:
            self._loop.call_soon(self._serve_pending)
        self._pending.append(request)

    def _serve_pending(self) -> None:
        requests, self._pending = self._pending, []
        self._connection.serve(requests)

    def _on_wake(self) -> None:
        self._wakes_workers = True

    def take_wake(self) -> bool:
        """Return whether work has become ready since this was last asked."""
        wakes, self._wakes_workers = self._wakes_workers, False
        return wakes


class _Channel:
    """A channel of the worker process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: socket.socket, server: _Server) -> None:
        self._loop = loop
        self._socket = channel
        self._server = server
        self._received = Buffer()
        self._outgoing = OutgoingBuffer(loop, channel, self._close)
        channel.setblocking(False)  # noqa: FBT003 - positional only
        loop.add_reader(channel.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
            return
        for number, body in self._received.feed(data):
            try:
                request = decode_request(body)
            except Exception as error:  # noqa: BLE001 - the caller waits for an answer, whatever it has sent
                self._respond(number, Request(error=error))
                continue
            request.loop, request.on_done = self._loop, partial(self._respond, number)
            self._server.add(request)

    def _respond(self, number: int, request: Request[Any]) -> None:
        if self._socket.fileno() >= 0:
            self._outgoing.send(message(number, encode_response(request, wakes_workers=self._server.take_wake())))

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()


async def _serve(control: socket.socket, settings: Settings) -> None:
    await _Server(control, settings).run()


def main() -> None:
    """Serve the worker process that started this one."""
    # The end of the control socket ends this process. A stop signal for the whole group must not: the worker has
    # outcomes to store then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)  # noqa: FBT003 - positional only
    asyncio.run(_serve(control, msgspec.json.decode(sys.argv[2], type=Settings)))
    os._exit(0)  # nothing is left to do, and the interpreter would take its time


if __name__ == "__main__":
    main()
