"""A proxy before a server, which can lose what it carries: for what happens when a network does.

A wire is one client's connection. *Reset*, it is gone for both ends at once, whatever is under way. *Deaf*, it still
carries what the client says, and the server does it, but no answer comes back: the wire is reset with the first answer
that is lost, or stays as it is, silent for ever.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Proxy:
    """Carries connections on a port of its own to a server's socket."""

    def __init__(self, target: Path, dice: random.Random | None = None) -> None:
        self._target = target
        self._dice = dice or random.Random(0)
        self._wires: list[_Wire] = []
        self.port = 0
        self.lost_answers = 0
        """How many messages of the server were not passed on."""

    @classmethod
    @asynccontextmanager
    async def before(cls, target: Path, dice: random.Random | None = None) -> AsyncIterator[Proxy]:
        """Have a proxy for a while."""
        proxy = cls(target, dice)
        server = await asyncio.start_server(proxy._carry, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            server.close()
            for wire in list(proxy._wires):
                wire.reset()
            await server.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            writer.close()
            return
        wire = _Wire(self, writer, theirs[1])
        self._wires.append(wire)
        try:
            await asyncio.gather(wire.ask(reader), wire.answer(theirs[0]))
        finally:
            self._wires.remove(wire)
            wire.reset()

    def reset(self) -> bool:
        """Reset a wire, whichever; False: there is none."""
        wire = self._any()
        if wire is not None:
            wire.reset()
        return wire is not None

    def deafen(self, *, hang_up: bool) -> bool:
        """Pass on no answer any more on a wire, whichever; False: there is none."""
        wire = self._any()
        if wire is not None:
            wire.deafen(hang_up=hang_up)
        return wire is not None

    def deafen_all(self, *, hang_up: bool) -> None:
        """Pass on no answer any more on any wire that there is now."""
        for wire in self._wires:
            wire.deafen(hang_up=hang_up)

    def _any(self) -> _Wire | None:
        hearing = [wire for wire in self._wires if not wire.is_deaf]
        return self._dice.choice(hearing) if hearing else None


class _Wire:
    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._hangs_up = False
        self.is_deaf = False

    async def ask(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while said := await reader.read(65536):
                self._server.write(said)
                await self._server.drain()
        self._server.close()

    async def answer(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while said := await reader.read(65536):
                if not self.is_deaf:
                    self._client.write(said)
                    await self._client.drain()
                    continue
                self._proxy.lost_answers += 1
                if self._hangs_up:
                    self.reset()
        self._client.close()

    def deafen(self, *, hang_up: bool) -> None:
        self.is_deaf, self._hangs_up = True, hang_up

    def reset(self) -> None:
        """Let both ends know at once, and nothing of what is still on its way arrive."""
        client = self._client.get_extra_info("socket")
        with suppress(OSError):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.transport.abort()
        self._server.transport.abort()
