"""Lines to the server for one event loop: a question goes out at once, and answers come back in the order of questions.

The driver opens the connection by all its means (TLS, passwords, sentinels) and hands it over. What is said on it is
said here, since an idle worker's job waits for three round trips, and the layers that the driver lays around a command
take longer than the server does. A cluster is left to the driver, which knows which node has what.

Nothing is tried again: a command whose answer was lost may have been done. Whoever is cancelled while waiting has asked
all the same, and the answer is thrown away when it comes. A server that owes an answer for too long counts as away, and
takes with it the line, and whoever else waits on it.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import hiredis
import redis
from redis import exceptions

from onward.engines.bullmq.commands import LOADING, Atomic, Command

_ERRORS: Final[dict[str, type[exceptions.RedisError]]] = {
    "LOADING": exceptions.BusyLoadingError,
    "MASTERDOWN": exceptions.ConnectionError,
    "NOAUTH": exceptions.AuthenticationError,
    "NOPERM": exceptions.NoPermissionError,
    "NOSCRIPT": exceptions.NoScriptError,
    "OOM": exceptions.OutOfMemoryError,
    "READONLY": exceptions.ReadOnlyError,
}
"""By the word with which the server begins; any other is a ``ResponseError``."""
_READ: Final = dict(redis.Redis(protocol=2).response_callbacks)
"""How the driver reads answers to plain commands: a plan is told the same, whoever drives it."""


class Handed(Protocol):
    """A connection of the driver's, open, that others may speak on."""

    def hand_over(self, to: asyncio.Protocol) -> asyncio.Transport:
        """Have another hear what comes."""
        ...

    def let_go(self) -> None:
        """Close it."""
        ...


@contextmanager
def cancellation_heeded() -> Iterator[None]:
    """Raise at the end if the task has been cancelled meanwhile.

    The driver waits by asyncio.wait_for, which before Python 3.12 swallows a cancellation that comes in the same turn
    as its end; whoever cancelled would wait for ever.
    """
    task = asyncio.current_task()
    cancelled = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > cancelled:
        raise asyncio.CancelledError


class _Question:
    __slots__ = ("answer", "asked_at", "count", "replies")

    def __init__(self, count: int, answer: asyncio.Future[list[Any]], asked_at: float) -> None:
        self.count = count
        self.answer = answer
        self.asked_at = asked_at
        self.replies: list[Any] = []


class Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, connection: Handed, *, within: float) -> None:
        """Speak on a connection, to a server that should answer ``within`` seconds."""
        self._loop = asyncio.get_running_loop()
        self._questions: deque[_Question] = deque()
        self._reader = hiredis.Reader(
            protocolError=exceptions.InvalidResponse,
            replyError=_error,
            encoding="utf-8",
            errors="replace",  # what is no text is shown as such, and fails as damaged
        )
        self._within = within
        self._watch: asyncio.TimerHandle | None = None
        self._connection = connection
        self._transport = connection.hand_over(self)
        self._poll = select.poll()
        self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.is_open = True

    @property
    def waiting(self) -> int:
        """How many questions are not answered."""
        return len(self._questions)

    @property
    def is_told_unasked(self) -> bool:
        """Whether the server has said what nobody asked for: it has hung up, and the loop has not got round to it."""
        return not self._questions and bool(self._poll.poll(0))

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Ask, and give the answers; those that are errors are given as such."""
        if not self.is_open:
            raise exceptions.ConnectionError("the line is closed")
        if not isinstance(commands, Atomic) or len(commands) == 1:
            replies = await self._send(commands)
            for index, command in enumerate(commands):
                if (read := _READ.get(command[0])) is not None and not isinstance(replies[index], Exception):
                    replies[index] = read(replies[index])
            return replies
        *queued, done = await self._send([("MULTI",), *commands, ("EXEC",)])
        if isinstance(done, Exception):
            raise next((reply for reply in queued if isinstance(reply, Exception)), done)
        return done  # type: ignore[no-any-return]

    def _send(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        text = b"".join([hiredis.pack_command(command) for command in commands])
        question = _Question(len(commands), self._loop.create_future(), self._loop.time())
        self._questions.append(question)
        if self._watch is None:
            self._watch = self._loop.call_later(self._within, self._look)
        self._transport.write(text)
        return question.answer

    def data_received(self, data: bytes) -> None:
        """Hand answers to those who asked."""
        reader, questions = self._reader, self._questions
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                question = questions[0]
                question.replies.append(reply)
                if type(reply) is exceptions.ReadOnlyError:
                    self.is_open = False  # no longer the master: the next question asks for who is
                if len(question.replies) == question.count:
                    questions.popleft()
                    if not question.answer.done():
                        question.answer.set_result(question.replies)
        except (exceptions.InvalidResponse, IndexError) as error:
            self._break(exceptions.ConnectionError(f"the server does not keep to the protocol: {error}"))
        if not self.is_open and not questions:
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits that no answer will come."""
        self._break(exceptions.ConnectionError(f"connection lost: {exc or 'closed by the server'}"))

    def cut(self) -> None:
        """Hang up."""
        self._break(exceptions.ConnectionError("the line is closed"))

    def _look(self) -> None:
        """Give a server up that owes an answer for too long."""
        self._watch = None
        if self._questions:
            left = self._questions[0].asked_at + self._within - self._loop.time()
            if left <= 0:
                self._break(exceptions.TimeoutError(f"no answer within {self._within:g} s"))
            else:
                self._watch = self._loop.call_later(left, self._look)

    def _break(self, error: Exception) -> None:
        self.is_open = False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._questions:
            answer = self._questions.popleft().answer
            if not answer.done():
                answer.set_exception(error)
        self._connection.let_go()


def _error(said: str) -> exceptions.RedisError:
    word, _, rest = said.partition(" ")
    kind = _ERRORS.get(word)
    return exceptions.ResponseError(said) if kind is None else kind(rest)


class Dialler(Protocol):
    """Opens lines."""

    async def dial(self) -> Line:
        """Open one."""
        ...

    async def close(self) -> None:
        """Let go of what it takes to."""
        ...


class Lines:
    """A few lines: whoever asks has one on which nobody waits, where there is one."""

    def __init__(self, dialler: Dialler, *, most: int) -> None:
        self._dialler = dialler
        self._most = most
        self._lines: list[Line] = []
        self._dialling = asyncio.Lock()

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """See :class:`~onward.engines.bullmq.commands.Asked`."""
        line = self._free()
        while line is not None and line.is_told_unasked:
            line.cut()
            line = self._free()
        return await (line or await self._another()).ask(commands)

    def _free(self) -> Line | None:
        self._lines = [line for line in self._lines if line.is_open]
        best = min(self._lines, key=lambda line: line.waiting, default=None)
        return best if best is not None and (not best.waiting or len(self._lines) >= self._most) else None

    async def _another(self) -> Line:
        async with self._dialling:
            if (line := self._free()) is None:
                line = await self._dialler.dial()
                self._lines.append(line)
            return line

    async def close(self) -> None:
        """See :class:`~onward.engines.bullmq.commands.Asked`."""
        lines, self._lines = self._lines, []
        for line in lines:
            line.cut()
        await self._dialler.close()


class ByDriver:
    """A client of the driver's, asked alike."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """See :class:`~onward.engines.bullmq.commands.Asked`."""
        with cancellation_heeded():
            return await self._ask(commands)

    async def _ask(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) == 1 or commands is LOADING:  # which goes to every node
            return [await self._ask_one(command) for command in commands]
        async with self._client.pipeline(transaction=isinstance(commands, Atomic)) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers

    async def _ask_one(self, command: Command) -> Any:
        try:
            return await self._client.execute_command(*command)
        except exceptions.ResponseError as error:
            return error

    async def close(self) -> None:
        """See :class:`~onward.engines.bullmq.commands.Asked`."""
        await self._client.aclose()
