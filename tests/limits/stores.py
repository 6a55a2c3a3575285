"""Databases for a limiter: a file of SQLite and a schema of PostgreSQL, without any job of Onward's in them."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import onward.sqlite
from onward.clock import Clock
from onward.limits import Limiter
from tests.servers.postgres import postgres_url


class Store(ABC):
    """A database with a limiter's tables."""

    name: str

    def __init__(self, folder: Path, schema: str | None = None) -> None:
        self.folder = folder
        self.schema = schema or f"limits_{uuid4().hex[:12]}"

    def limiter(self, clock: Clock | None = None) -> Limiter:
        return Limiter(schema=self.schema, clock=clock)

    @abstractmethod
    def connect(self) -> Any:
        """Open a plain connection."""

    @abstractmethod
    def async_engine(self) -> AsyncEngine:
        """Make an engine for asynchronous connections."""

    def address(self) -> str:
        """Return what another process needs to connect to the same database."""
        return ""

    @abstractmethod
    def drop(self) -> None:
        """Remove what was made."""


class SqliteStore(Store):
    name = "sqlite"

    def connect(self) -> sqlite3.Connection:
        return onward.sqlite.connect(self.folder / "limits.db")

    def async_engine(self) -> AsyncEngine:
        return onward.sqlite.prepare(create_async_engine(f"sqlite+aiosqlite:///{self.folder / 'limits.db'}"))

    def drop(self) -> None:
        """The folder goes with the test."""


class PostgresStore(Store):
    name = "postgres"

    def address(self) -> str:
        return postgres_url()

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(postgres_url())

    def async_engine(self) -> AsyncEngine:
        url = postgres_url()
        return create_async_engine(
            "postgresql+psycopg_async://", async_creator=lambda: psycopg.AsyncConnection.connect(url)
        )

    def drop(self) -> None:
        with psycopg.connect(postgres_url()) as connection:
            connection.execute(f'drop schema if exists "{self.schema}" cascade'.encode())


STORES: dict[str, type[Store]] = {"sqlite": SqliteStore, "postgres": PostgresStore}

TEXT = sqlalchemy.text
