"""Roles for other processes: an application with tables of its own in Onward's file, and a worker on that file."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from pathlib import Path

import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

import onward.sqlite
from onward import App
from tests.engines.sqlite.processes import ready

BALLAST = "x" * 20_000
"""A row of about five pages, so that the log would grow past its limit."""


def sync_writer(pipe: Connection, path: Path, count: int) -> None:
    """Write rows by a plain connection, each with a job; every third is rolled back."""
    app = App(f"sqlite:///{path}")
    note = app.task(name="note")(noted)
    connection = onward.sqlite.connect(path)
    ready(pipe)
    for number in range(count):
        connection.execute("insert into orders (writer, number, text) values ('sync', ?, ?)", (number, BALLAST))
        note.using(connection=connection).sync.enqueue(f"sync-{number}")
        if number % 3 == 2:
            connection.rollback()
        else:
            connection.commit()
    connection.close()
    pipe.send("done")


def async_writer(pipe: Connection, path: Path, count: int) -> None:
    """Do the same by SQLAlchemy and aiosqlite."""

    async def write() -> None:
        app = App(f"sqlite:///{path}")
        note = app.task(name="note")(noted)
        engine = onward.sqlite.prepare(create_async_engine(f"sqlite+aiosqlite:///{path}"))
        insert = sqlalchemy.text("insert into orders (writer, number, text) values ('async', :number, :text)")
        for number in range(count):
            async with engine.connect() as connection:
                await connection.execute(insert, {"number": number, "text": BALLAST})
                await note.using(connection=connection).enqueue(f"async-{number}")
                await (connection.rollback() if number % 3 == 2 else connection.commit())
        await engine.dispose()

    ready(pipe)
    asyncio.run(write())
    pipe.send("done")


def worker(pipe: Connection, path: Path) -> None:
    """Run jobs until told to stop."""
    app = App(f"sqlite:///{path}")
    app.task(name="note")(noted)
    ready(pipe)

    async def work() -> None:
        async with app:
            while not pipe.poll():
                await app.tick(limit=50)

    asyncio.run(work())
    pipe.send("done")


def holder(pipe: Connection, path: Path) -> None:
    """Begin a transaction, and be killed in it."""
    connection = onward.sqlite.connect(path)
    ready(pipe)
    connection.execute("insert into orders (writer, number, text) values ('lost', 1, '')")
    pipe.send("holds")
    pipe.recv()


async def noted(order: str) -> None:
    """Do nothing: what counts is that it is run."""
