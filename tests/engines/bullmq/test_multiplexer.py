"""Lines: whoever asks is answered, in the order of the questions, and told when no answer will come."""

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

from onward.engines.bullmq.commands import Atomic
from onward.engines.bullmq.multiplexer import Lines
from onward.engines.bullmq.server import MOST, Server
from onward.errors import StoreReadOnly, StoreUnavailable
from tests.servers.redis import redis_url

Answer = Callable[[list[bytes]], bytes | None]


class Host:
    """Speaks as a Redis would, as far as it is told to."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connections: list[asyncio.StreamWriter] = []
        self.came = asyncio.Semaphore(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        self.came.release()
        questions = hiredis.Reader()
        while data := await reader.read(65536):
            questions.feed(data)
            while (asked := questions.gets()) is not False:
                said = b"+OK\r\n" if asked[0] in {b"CLIENT", b"HELLO"} else self.answer(asked)
                if said is None:
                    continue
                writer.write(said)
        writer.close()


@asynccontextmanager
async def hosted(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Host, str]]:
    host = Host(answer)
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield host, f"redis{'s' if tls else ''}://127.0.0.1:{port}"
    finally:
        server.close()
        for writer in host.connections:
            writer.close()


@asynccontextmanager
async def asked(url: str, **how: Any) -> AsyncIterator[Lines]:
    lines = Server(url).asked(**how)
    assert isinstance(lines, Lines)
    try:
        yield lines
    finally:
        await lines.close()


def echo(asked: list[bytes]) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(asked[-1]), asked[-1])


async def test_who_asks_at_once_is_answered_for_its_own_question():
    async with asked(redis_url(), most=1) as lines:
        answers = await asyncio.gather(*(lines.ask([("ECHO", n), ("PING",)]) for n in range(100)))
    assert answers == [[str(n), True] for n in range(100)]


async def test_the_answer_to_one_who_was_cancelled_goes_to_nobody_else():
    silent = asyncio.Event()

    def answer(asked: list[bytes]) -> bytes | None:
        if asked[0] == b"WAIT":
            silent.set()
            return None
        return b"$4\r\nlate\r\n" + echo(asked)

    async with hosted(answer) as (_, url), asked(url, most=1) as lines:
        waiting = asyncio.create_task(lines.ask([("WAIT",)]))
        await silent.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await lines.ask([("ECHO", "mine")]) == ["mine"]


async def test_a_server_that_owes_an_answer_for_too_long_counts_as_away(monkeypatch: pytest.MonkeyPatch):  # X3
    monkeypatch.setattr("onward.engines.bullmq.server._ANSWER_WITHIN", 0.01)
    async with hosted(lambda _: None) as (_, url), asked(url) as lines:
        asking = asyncio.gather(lines.ask([("PING",)]), lines.ask([("PING",)]), return_exceptions=True)
        assert [type(error) for error in await asking] == [exceptions.TimeoutError] * 2


async def test_many_questions_share_a_few_lines_and_one_has_one():
    async with hosted(lambda _: None) as (host, url), asked(url) as lines:
        asking = [asyncio.create_task(lines.ask([("PING",)])) for _ in range(20)]
        for _ in range(MOST):
            await host.came.acquire()
        host.answer = echo
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert len(host.connections) == MOST
    async with hosted(echo) as (host, url), asked(url) as lines:
        for n in range(20):
            assert await lines.ask([("ECHO", n)]) == [str(n)]
        assert len(host.connections) == 1


async def test_whoever_waits_when_the_server_hangs_up_is_told_and_the_next_has_a_new_line():  # X3
    async with hosted(lambda _: None) as (host, url), asked(url) as lines:
        asking = asyncio.create_task(lines.ask([("PING",)]))
        await host.came.acquire()
        host.connections[0].close()
        with pytest.raises(exceptions.ConnectionError):
            await asking
        host.answer = echo
        assert await lines.ask([("ECHO", 1)]) == ["1"]


@pytest.mark.parametrize("said", [b"what?\r\n", b"+PONG\r\n+PONG\r\n"], ids=["gibberish", "too much"])
async def test_who_does_not_keep_to_the_protocol_is_hung_up_on(said: bytes):
    async with hosted(lambda _: said) as (host, url), asked(url) as lines:
        with suppress(exceptions.ConnectionError):
            assert await lines.ask([("PING",)]) == [True]
        host.answer = echo
        assert await lines.ask([("ECHO", 1)]) == ["1"]
        assert len(host.connections) == 2


async def test_a_master_that_became_a_replica_is_asked_once_and_then_looked_for_anew():
    async with hosted(lambda _: b"-READONLY You can't write\r\n") as (host, url), asked(url) as lines:
        server = Server(url)
        (error,) = await lines.ask([("SET", "a", 1)])
        with pytest.raises(StoreReadOnly), server.translated():
            raise error
        host.answer = echo
        assert await lines.ask([("ECHO", 1)]) == ["1"]
        assert len(host.connections) == 2


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("NOSCRIPT No matching script", exceptions.NoScriptError),
        ("OOM command not allowed", exceptions.OutOfMemoryError),
        ("NOAUTH Authentication required", exceptions.AuthenticationError),
        ("LOADING Redis is loading", exceptions.ConnectionError),
        ("WRONGTYPE Operation against a key", exceptions.ResponseError),
    ],
)
async def test_errors_are_told_apart_as_the_driver_does(said: str, kind: type[Exception]):
    async with hosted(lambda _: f"-{said}\r\n".encode()) as (_, url), asked(url) as lines:
        (error,) = await lines.ask([("PING",)])
        assert isinstance(error, kind)
        with pytest.raises(StoreUnavailable), Server(url).translated():
            raise error


async def test_of_commands_that_go_together_all_are_done_or_none():
    key = "lines-together"
    async with asked(redis_url()) as lines:
        assert await lines.ask(Atomic([("SET", key, 1), ("INCR", key), ("DEL", key)])) == ["OK", 2, 1]
        with pytest.raises(exceptions.ResponseError, match="wrong number of arguments"):
            await lines.ask(Atomic([("SET", key, 1), ("INCR",)]))
        assert await lines.ask([("EXISTS", key)]) == [0]


async def test_a_line_may_be_encrypted():
    async with AsyncExitStack() as stack:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("localhost").configure_cert(context)
        _, url = await stack.enter_async_context(hosted(echo, context))
        lines = await stack.enter_async_context(asked(f"{url}?ssl_cert_reqs=none"))
        large = "x" * 200_000
        for _ in range(3):
            assert await lines.ask([("ECHO", large)]) == [large]
