"""A connection that listens and is lost: that is noticed at once, by all who depend on it, and by nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from urllib.parse import unquote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from onward.engine.values import SignalKind
from onward.engines.postgres.engine import PostgresEngine
from onward.pg.database import Database
from onward.pg.listener import Listener
from onward.pg.plan_runner import Row, Statement
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore
from tests.conformance.processes import eventually
from tests.servers.postgres import postgres_url
from tests.servers.proxy import Proxy

LONG = 3600.0
CHANNEL = "test_listening"
WAITS = Statement("select pg_sleep(3600)")


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    known = conninfo_to_dict(postgres_url())
    async with Proxy.before(Path(unquote(str(known["host"]))) / f".s.PGSQL.{known.get('port', 5432)}") as proxy:
        yield proxy


@pytest.fixture
async def listener(proxy: Proxy) -> AsyncIterator[Listener]:
    """One that neither asks whether the server is there nor gives up on an answer, and hears only what it is told."""
    database = Database(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", query_timeout=LONG)
    database.is_pooled = False
    listener = Listener(database, CHANNEL, probe_interval=LONG)

    async def listen() -> None:
        async for _ in listener.signals(("*",)):
            pass

    listening = asyncio.create_task(listen())
    await listens(listener)
    yield listener
    listening.cancel()
    await listener.close()
    with psycopg.connect(postgres_url(), autocommit=True) as connection:  # the server does not see that nobody waits
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where query = %s", [WAITS.text])


async def listens(listener: Listener) -> None:
    async def ask() -> bool | None:
        return (listener.is_listening and listener._loop_listeners.current()._listening is not None) or None

    await eventually(ask)


def descriptor(listener: Listener) -> int:
    line = listener._loop_listeners.current()._listening
    assert line is not None
    return line._connection.fileno()


def read_when_lost(listener: Listener) -> list[bool]:
    """Note whether the loop still reads a connection when others can know that it is lost, and have its number."""
    line, loop, noted = listener._loop_listeners.current()._listening, asyncio.get_running_loop(), []
    assert line is not None
    number = descriptor(listener)
    line.broken.add_done_callback(lambda _: noted.append(loop.remove_reader(number)))
    return noted


def cut(proxy: Proxy, how: str) -> None:
    """Cut the connection that listens: without a word, or by a server that says so first."""
    if how == "reset":
        assert proxy.reset()
        return
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        ours = "from pg_stat_activity where application_name = 'onward' and (query like $1 or query = $2)"
        end = f"select pg_terminate_backend(pid, 5000) {ours}"
        assert psycopg.RawCursor(connection).execute(end, ["select", WAITS.text]).fetchall()


@pytest.mark.parametrize("how", ["reset", "terminated"])
async def test_a_listener_that_is_cut_off_listens_again_at_once(
    listener: Listener, proxy: Proxy, how: str, caplog: pytest.LogCaptureFixture
):
    is_read, lost = read_when_lost(listener), asyncio.Event()
    listener.on_notification = lambda _: lost.set()
    cut(proxy, how)
    async with asyncio.timeout(30):
        await lost.wait()
    assert is_read == [False]
    await listens(listener)
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.parametrize("how", ["reset", "terminated"])
async def test_who_has_asked_on_a_connection_that_is_cut_hears_at_once_that_no_answer_comes(
    listener: Listener, proxy: Proxy, how: str
):
    answered: asyncio.Future[list[Row] | None] = asyncio.get_running_loop().create_future()
    assert listener.query(WAITS, answered.set_result)
    with psycopg.connect(postgres_url(), autocommit=True) as connection:

        async def is_asked() -> bool | None:
            asked = "select from pg_stat_activity where query = %s and state = 'active'"
            return bool(connection.execute(asked, [WAITS.text]).fetchall()) or None

        await eventually(is_asked)
    is_read = read_when_lost(listener)
    cut(proxy, how)
    async with asyncio.timeout(30):
        assert await answered is None
    assert is_read == [False]
    await listens(listener)


async def test_the_number_of_a_connection_that_was_cut_can_be_anothers(listener: Listener, proxy: Proxy):
    """The system gives it to whoever connects next, who must not be cut off from the loop for that."""
    was_on, lost, others = descriptor(listener), asyncio.Event(), []
    listener.on_notification = lambda _: lost.set()
    cut(proxy, "terminated")
    async with asyncio.timeout(30):
        await lost.wait()
        for _ in range(5):
            others.append(await Database(postgres_url()).aconnect())
            assert await others[-1].query("select 1 from pg_sleep(0.01)") == [(1,)]
        assert was_on in [other.fileno() for other in others] or descriptor(listener) == was_on
    for other in others:
        await other.close()


async def test_a_presence_that_has_run_out_is_renewed_and_all_look_for_what_they_were_not_told(
    driver: Driver, store: PostgresStore
):  # G8
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    engine._listener.probe_interval = 0.02
    with psycopg.connect(store.url, autocommit=True) as connection:

        async def is_shown() -> bool | None:
            return connection.execute(f"select {store.schema}.has_listener()").fetchone() == (True,) or None

        async with aclosing(engine.signals(["q"])) as signals, asyncio.timeout(30):  # type: ignore[type-var]
            await anext(signals)
            await eventually(is_shown)
            connection.execute(f"select setval('{store.schema}.listener_until', 1)")
            assert (await anext(signals)).kind is SignalKind.CHANGED
            await eventually(is_shown)
