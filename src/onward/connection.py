"""The types of connection that ``connection=`` takes: a database connection with the caller's own open transaction.

Protocols, so that no driver is imported: a type checker accepts connections of sqlite3, psycopg, asyncpg, SQLAlchemy
(and its sessions) and Django, and rejects what cannot have a transaction open, such as an engine, a pool or a
sessionmaker.
"""

from __future__ import annotations

from typing import Any, Protocol


class TransactionalConnection(Protocol):
    """A connection of sqlite3, psycopg or SQLAlchemy, or a session of SQLAlchemy; sync or async."""

    def execute(self, *args: Any, **kwargs: Any) -> Any: ...  # noqa: D102
    def commit(self, *args: Any, **kwargs: Any) -> Any: ...  # noqa: D102
    def rollback(self, *args: Any, **kwargs: Any) -> Any: ...  # noqa: D102


class AsyncpgConnection(Protocol):
    """A connection of asyncpg."""

    def execute(self, *args: Any, **kwargs: Any) -> Any: ...  # noqa: D102
    def is_in_transaction(self) -> bool: ...  # noqa: D102


class DjangoConnection(Protocol):
    """A connection of Django's: ``django.db.connection``."""

    in_atomic_block: Any

    def cursor(self, *args: Any, **kwargs: Any) -> Any: ...  # noqa: D102


Connection = TransactionalConnection | AsyncpgConnection | DjangoConnection
"""A connection with the caller's own transaction open."""
