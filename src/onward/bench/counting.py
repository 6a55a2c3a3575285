"""Counts the statements that this process asks a store for, by the way that its driver executes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def count_statements(url: str) -> list[int]:
    """Have every statement counted from now on, whoever in this process runs it on whatever connection."""
    statements = [0]

    def count(*_: object) -> None:
        statements[0] += 1

    if url.startswith("sqlite:"):
        _count_sqlite(count)
    else:
        _count_psycopg(count)
    return statements


def _count_sqlite(count: Callable[[str], None]) -> None:
    import sqlite3  # noqa: PLC0415 - only the driver that is counted

    connect = sqlite3.connect

    def connect_counted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(count)
        return connection

    sqlite3.connect = connect_counted  # type: ignore[assignment]


def _count_psycopg(count: Callable[[], None]) -> None:
    import psycopg  # noqa: PLC0415 - as above
    from psycopg import generators  # noqa: PLC0415

    # By a cursor, or past it. A lone enqueue, whose answer is looked for on the spot, is not counted.
    for owner, way in (
        (psycopg.RawCursor, "execute"),
        (psycopg.AsyncRawCursor, "execute"),
        (generators, "execute"),
    ):
        plain: Callable[..., Any] = getattr(owner, way)

        def counted(*args: Any, plain: Callable[..., Any] = plain, **kwargs: Any) -> Any:
            count()
            return plain(*args, **kwargs)

        setattr(owner, way, counted)
