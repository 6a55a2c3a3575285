"""Multiplexer: whoever asks is answered, in the order of the questions, and told when no answer will come."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import hiredis
import pytest
import trustme
from redis import exceptions

from onward.engines.bullmq.client_factory import MAX_CONNECTIONS, Server
from onward.engines.bullmq.multiplexer import Multiplexer
from onward.engines.bullmq.plan_runner import Atomic
from onward.errors import StoreReadOnly, StoreUnavailable
from tests.servers.redis import redis_url

Answer = Callable[[list[bytes]], bytes | None]


class FakeServer:
    """Speaks as a Redis would, as far as it is told to."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connections: list[asyncio.StreamWriter] = []
        self.accepted = asyncio.Semaphore(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        self.accepted.release()
        requests = hiredis.Reader()
        while data := await reader.read(65536):
            requests.feed(data)
            while (command := requests.gets()) is not False:
                reply = b"+OK\r\n" if command[0] in {b"CLIENT", b"HELLO"} else self.answer(command)
                if reply is None:
                    continue
                writer.write(reply)
        writer.close()


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[FakeServer, str]]:
    fake = FakeServer(answer)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield fake, f"redis{'s' if tls else ''}://127.0.0.1:{port}"
    finally:
        server.close()
        for writer in fake.connections:
            writer.close()


@asynccontextmanager
async def multiplexed(url: str, **options: Any) -> AsyncIterator[Multiplexer]:
    multiplexer = Server(url).async_client(**options)
    assert isinstance(multiplexer, Multiplexer)
    try:
        yield multiplexer
    finally:
        await multiplexer.close()


def echo(command: list[bytes]) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(command[-1]), command[-1])


async def test_who_asks_at_once_is_answered_for_its_own_question():
    async with multiplexed(redis_url(), max_connections=1) as multiplexer:
        answers = await asyncio.gather(*(multiplexer.execute([("ECHO", n), ("PING",)]) for n in range(100)))
    assert answers == [[str(n), True] for n in range(100)]


async def test_the_answer_to_one_who_was_cancelled_goes_to_nobody_else():
    received = asyncio.Event()

    def answer(command: list[bytes]) -> bytes | None:
        if command[0] == b"WAIT":
            received.set()
            return None
        return b"$4\r\nlate\r\n" + echo(command)

    async with serving(answer) as (_, url), multiplexed(url, max_connections=1) as multiplexer:
        waiting = asyncio.create_task(multiplexer.execute([("WAIT",)]))
        await received.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await multiplexer.execute([("ECHO", "mine")]) == ["mine"]


async def test_a_server_that_owes_an_answer_for_too_long_counts_as_away(monkeypatch: pytest.MonkeyPatch):  # X3
    monkeypatch.setattr("onward.engines.bullmq.client_factory._RESPONSE_TIMEOUT", 0.01)
    async with serving(lambda _: None) as (_, url), multiplexed(url) as multiplexer:
        pending = asyncio.gather(
            multiplexer.execute([("PING",)]), multiplexer.execute([("PING",)]), return_exceptions=True
        )
        assert [type(error) for error in await pending] == [exceptions.TimeoutError] * 2


async def test_many_questions_share_a_few_connections_and_one_has_one():
    async with serving(lambda _: None) as (fake, url), multiplexed(url) as multiplexer:
        pending = [asyncio.create_task(multiplexer.execute([("PING",)])) for _ in range(20)]
        for _ in range(MAX_CONNECTIONS):
            await fake.accepted.acquire()
        fake.answer = echo
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        assert len(fake.connections) == MAX_CONNECTIONS
    async with serving(echo) as (fake, url), multiplexed(url) as multiplexer:
        for n in range(20):
            assert await multiplexer.execute([("ECHO", n)]) == [str(n)]
        assert len(fake.connections) == 1


async def test_whoever_waits_when_the_server_hangs_up_is_told_and_the_next_has_a_new_connection():  # X3
    async with serving(lambda _: None) as (fake, url), multiplexed(url) as multiplexer:
        pending = asyncio.create_task(multiplexer.execute([("PING",)]))
        await fake.accepted.acquire()
        fake.connections[0].close()
        with pytest.raises(exceptions.ConnectionError):
            await pending
        fake.answer = echo
        assert await multiplexer.execute([("ECHO", 1)]) == ["1"]


@pytest.mark.parametrize("reply", [b"what?\r\n", b"+PONG\r\n+PONG\r\n"], ids=["gibberish", "too much"])
async def test_who_does_not_keep_to_the_protocol_is_hung_up_on(reply: bytes):
    async with serving(lambda _: reply) as (fake, url), multiplexed(url) as multiplexer:
        with suppress(exceptions.ConnectionError):
            assert await multiplexer.execute([("PING",)]) == [True]
        fake.answer = echo
        assert await multiplexer.execute([("ECHO", 1)]) == ["1"]
        assert len(fake.connections) == 2


async def test_a_master_that_became_a_replica_is_asked_once_and_then_looked_for_anew():
    async with serving(lambda _: b"-READONLY You can't write\r\n") as (fake, url), multiplexed(url) as multiplexer:
        server = Server(url)
        (error,) = await multiplexer.execute([("SET", "a", 1)])
        with pytest.raises(StoreReadOnly), server.translate_errors():
            raise error
        fake.answer = echo
        assert await multiplexer.execute([("ECHO", 1)]) == ["1"]
        assert len(fake.connections) == 2


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("NOSCRIPT No matching script", exceptions.NoScriptError),
        ("OOM command not allowed", exceptions.OutOfMemoryError),
        ("NOAUTH Authentication required", exceptions.AuthenticationError),
        ("LOADING Redis is loading", exceptions.ConnectionError),
        ("WRONGTYPE Operation against a key", exceptions.ResponseError),
    ],
)
async def test_errors_are_told_apart_as_the_driver_does(reply: str, kind: type[Exception]):
    async with serving(lambda _: f"-{reply}\r\n".encode()) as (_, url), multiplexed(url) as multiplexer:
        (error,) = await multiplexer.execute([("PING",)])
        assert isinstance(error, kind)
        with pytest.raises(StoreUnavailable), Server(url).translate_errors():
            raise error


async def test_of_commands_that_go_together_all_are_done_or_none():
    key = "multiplexer-atomic"
    async with multiplexed(redis_url()) as multiplexer:
        assert await multiplexer.execute(Atomic([("SET", key, 1), ("INCR", key), ("DEL", key)])) == ["OK", 2, 1]
        with pytest.raises(exceptions.ResponseError, match="wrong number of arguments"):
            await multiplexer.execute(Atomic([("SET", key, 1), ("INCR",)]))
        assert await multiplexer.execute([("EXISTS", key)]) == [0]


async def test_a_connection_may_be_encrypted():
    async with AsyncExitStack() as stack:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("localhost").configure_cert(context)
        _, url = await stack.enter_async_context(serving(echo, context))
        multiplexer = await stack.enter_async_context(multiplexed(f"{url}?ssl_cert_reqs=none"))
        large = "x" * 200_000
        for _ in range(3):
            assert await multiplexer.execute([("ECHO", large)]) == [large]
