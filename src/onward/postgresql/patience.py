"""Connections that do not wait for ever.

A network, or a proxy in it, may lose an answer and keep the connection: the statement was done, and nobody will ever
say so. Keep-alive does not find that out, because the other end of the connection is alive. So who waits for longer
than the connection's patience closes it, and goes on as after any other loss of a connection.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

T = TypeVar("T")


class PatientConnection(psycopg.Connection[Any]):
    """A connection for plain code."""

    patience: float | None = None
    """Seconds to wait for an answer; None: for ever."""

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Drive one step of the driver, as long as there is patience."""
        return super().wait(_patiently(self, gen, self.patience), *args, **kwargs)


class PatientAsyncConnection(psycopg.AsyncConnection[Any]):
    """A connection for an event loop."""

    patience: float | None = None
    """Seconds to wait for an answer; None: for ever."""

    async def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Drive one step of the driver, as long as there is patience."""
        return await super().wait(_patiently(self, gen, self.patience), *args, **kwargs)


def _patiently(
    connection: PatientConnection | PatientAsyncConnection, gen: PQGen[T], patience: float | None
) -> PQGen[T]:
    """Give up when nothing has come for too long. The driver resumes us now and then with nothing, too."""
    return gen if patience is None else _watched(connection, gen, patience)


def _watched(
    connection: PatientConnection | PatientAsyncConnection, gen: PQGen[T], patience: float
) -> Generator[Any, Any, T]:
    try:
        wanted = next(gen)
        until = time.monotonic() + patience
        while True:
            ready = yield wanted
            if ready:
                until = time.monotonic() + patience
            elif time.monotonic() > until:
                connection.pgconn.finish()  # its state is anybody's guess
                message = f"it has not answered for {patience:g} s, and may have done what it was asked"
                raise psycopg.OperationalError(message)
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
