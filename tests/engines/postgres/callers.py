"""The connections that users have: each kind opened as its documentation says, with a row of the user's own written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import django  # type: ignore[import-untyped]
import psycopg
import psycopg2  # type: ignore[import-untyped]
import sqlalchemy
from django.conf import settings  # type: ignore[import-untyped]
from django.db import connection as django_connection  # type: ignore[import-untyped]
from django.db import transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

INSERT = "insert into {table} (text) values ('effect')"


class Caller(ABC):
    """A user's connection with a transaction open on it."""

    handle: Any
    is_plain = False
    """Can be used from code without an event loop."""

    def __init__(self, url: str, table: str) -> None:
        self.url = url
        self.insert = INSERT.format(table=table)

    @abstractmethod
    async def open(self) -> None:
        """Connect, and begin a transaction by writing a row."""

    @abstractmethod
    async def end(self, *, commits: bool) -> None:
        """Commit or roll back, and let go."""


class Psycopg(Caller):
    is_plain = True

    async def open(self) -> None:
        self.handle = psycopg.connect(self.url)
        self.handle.execute(self.insert)

    async def end(self, *, commits: bool) -> None:
        self.handle.commit() if commits else self.handle.rollback()
        self.handle.close()


class PsycopgWithDictRows(Psycopg):
    async def open(self) -> None:
        self.handle = psycopg.connect(self.url, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.ClientCursor)
        self.handle.execute(self.insert)


class PsycopgInABlock(Caller):
    is_plain = True

    async def open(self) -> None:
        self.handle = psycopg.connect(self.url, autocommit=True)
        self._block = self.handle.transaction()
        self._block.__enter__()
        self.handle.execute(self.insert)

    async def end(self, *, commits: bool) -> None:
        rollback = psycopg.Rollback(self._block)
        self._block.__exit__(*(None, None, None) if commits else (type(rollback), rollback, None))
        self.handle.close()


class PsycopgAsync(Caller):
    async def open(self) -> None:
        self.handle = await psycopg.AsyncConnection.connect(self.url)
        await self.handle.execute(self.insert)

    async def end(self, *, commits: bool) -> None:
        await (self.handle.commit() if commits else self.handle.rollback())
        await self.handle.close()


async def connect_asyncpg(url: str) -> Any:
    known = conninfo_to_dict(url)
    return await asyncpg.connect(host=known["host"], user=known["user"], database=known["dbname"])


class Asyncpg(Caller):
    async def open(self) -> None:
        self.handle = await connect_asyncpg(self.url)
        self._transaction = self.handle.transaction()
        await self._transaction.start()
        await self.handle.execute(self.insert)

    async def end(self, *, commits: bool) -> None:
        await (self._transaction.commit() if commits else self._transaction.rollback())
        await self.handle.close()


class AsyncpgOfAPool(Caller):
    async def open(self) -> None:
        known = conninfo_to_dict(self.url)
        self._pool = await asyncpg.create_pool(
            host=known["host"], user=known["user"], database=known["dbname"], min_size=1
        )
        self.handle = await self._pool.acquire()
        self._transaction = self.handle.transaction()
        await self._transaction.start()
        await self.handle.execute(self.insert)

    async def end(self, *, commits: bool) -> None:
        await (self._transaction.commit() if commits else self._transaction.rollback())
        await self._pool.release(self.handle)
        await self._pool.close()


class SQLAlchemyConnection(Caller):
    is_plain = True

    async def open(self) -> None:
        url = self.url
        self._engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
        self.handle = self._engine.connect()
        self.handle.execute(sqlalchemy.text(self.insert))

    async def end(self, *, commits: bool) -> None:
        self.handle.commit() if commits else self.handle.rollback()
        self.handle.close()
        self._engine.dispose()


class SQLAlchemySession(SQLAlchemyConnection):
    async def open(self) -> None:
        url = self.url
        self._engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
        self.handle = Session(self._engine)
        self.handle.execute(sqlalchemy.text(self.insert))


class SQLAlchemyOnPsycopg2(SQLAlchemyConnection):
    async def open(self) -> None:
        url = self.url
        self._engine = sqlalchemy.create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(url))
        self.handle = self._engine.connect()
        self.handle.execute(sqlalchemy.text(self.insert))


class SQLAlchemyAsyncConnection(Caller):
    driver = "psycopg_async"

    async def open(self) -> None:
        url = self.url
        if self.driver == "asyncpg":
            self._engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: connect_asyncpg(url))
        else:
            self._engine = create_async_engine(
                "postgresql+psycopg_async://", async_creator=lambda: psycopg.AsyncConnection.connect(url)
            )
        self.handle = await self._begin()
        await self.handle.execute(sqlalchemy.text(self.insert))

    async def _begin(self) -> Any:
        return await AsyncConnection(self._engine).start()

    async def end(self, *, commits: bool) -> None:
        await (self.handle.commit() if commits else self.handle.rollback())
        await self.handle.close()
        await self._engine.dispose()


class SQLAlchemyAsyncSession(SQLAlchemyAsyncConnection):
    async def _begin(self) -> Any:
        return AsyncSession(self._engine)


class SQLAlchemyAsyncpgConnection(SQLAlchemyAsyncConnection):
    driver = "asyncpg"


class SQLAlchemyAsyncpgSession(SQLAlchemyAsyncSession):
    driver = "asyncpg"


class _Undo(Exception):
    """Makes a block of Django's roll back."""


class Django(Caller):
    is_plain = True

    async def open(self) -> None:
        known = conninfo_to_dict(self.url)
        if not settings.configured:
            settings.configure(
                DATABASES={
                    "default": {
                        "ENGINE": "django.db.backends.postgresql",
                        "NAME": known["dbname"],
                        "USER": known["user"],
                        "HOST": known["host"],
                    }
                }
            )
            django.setup()
        self.handle = django_connection

    @contextmanager
    def block(self, *, commits: bool) -> Iterator[None]:
        """Write a row in ``transaction.atomic``; Django keeps event loops away from it, so it is for plain code."""
        try:
            with transaction.atomic():
                with self.handle.cursor() as cursor:
                    cursor.execute(self.insert)
                yield
                if not commits:
                    raise _Undo
        except _Undo:
            pass
        finally:
            self.handle.close()

    async def end(self, *, commits: bool) -> None:
        """Nothing is open outside of a block."""


KINDS: list[type[Caller]] = [
    Psycopg,
    PsycopgWithDictRows,
    PsycopgInABlock,
    PsycopgAsync,
    Asyncpg,
    AsyncpgOfAPool,
    SQLAlchemyConnection,
    SQLAlchemySession,
    SQLAlchemyOnPsycopg2,
    SQLAlchemyAsyncConnection,
    SQLAlchemyAsyncSession,
    SQLAlchemyAsyncpgConnection,
    SQLAlchemyAsyncpgSession,
]
