"""Plans: one logic for every kind of connection. A plan yields commands, a list at a time, and is sent their answers.

A list goes out in one write and comes back in one read. :func:`run` drives a plan on a plain client, :func:`arun` on
the lines of an event loop. A script goes by its hash; where the server does not know it, it has not run, and the server
is told.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from redis import RedisCluster
from redis.exceptions import NoScriptError

from onward.engines.bullmq.keys import Layout
from onward.engines.bullmq.scripts import SCRIPTS

T = TypeVar("T")

Client = Any
"""A client of redis-py, ``redis.Redis``, whose types stop short of any command."""

Command = tuple[Any, ...]


class Asked(Protocol):
    """Whom commands are asked of, on one event loop."""

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Give the answers; those that are errors are given as such."""
        ...

    async def close(self) -> None:
        """Let go of the server."""
        ...


class Atomic(list[Command]):
    """Commands of which all are done or none, and nobody sees some of them done."""


class InTurns(list[Command]):
    """Commands between which others have their turn, where there are more than two.

    Redis reads what a client sends sixteen kilobytes at a time, does all that it finds there, and only then turns to
    others. So between two commands stands a question that is as long as that, and asks for nothing.
    """

    def __init__(self, layout: Layout, commands: Iterable[Command]) -> None:
        super().__init__(commands)
        self.filler = ("EXISTS", layout.home + _FILLER)

    def spaced(self) -> list[Command]:
        """Give them with what stands between them."""
        spaced: list[Command] = [self.filler] * (2 * len(self) - 1)
        spaced[::2] = self
        return spaced


_FILLER: Final = "." * 16384

Plan = Generator[Sequence[Command], list[Any], T]


def script(name: str, layout: Layout, keys: Sequence[str], *values: Any) -> Command:
    """Name a script with its keys and values; the arguments that all share are put before."""
    return ("EVALSHA", SCRIPTS[name].sha, len(keys), *keys, *layout.common(), *values)


LOADING: Final[Sequence[Command]] = [("SCRIPT", "LOAD", found.text) for found in SCRIPTS.values()]
"""Tells a server all scripts: if it were told only the one that it lacks, the next list would find others lacking, and
those that it knows would go ahead of them."""


def run(plan: Plan[T], client: Client) -> T:
    """Drive a plan on a plain client."""
    try:
        commands = next(plan)
        while True:
            commands = plan.send(_execute(client, commands))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(plan: Plan[T], asked: Asked) -> T:
    """Drive a plan on the lines of an event loop."""
    try:
        commands = next(plan)
        while True:
            commands = plan.send(await aexecute(asked, commands))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _execute(client: Client, commands: Sequence[Command]) -> list[Any]:
    if len(commands) == 1:
        try:
            return [client.execute_command(*commands[0])]
        except NoScriptError:
            _execute(client, LOADING)
            return [client.execute_command(*commands[0])]
    if not commands:
        return []
    if isinstance(commands, InTurns) and len(commands) > 2:
        return _execute(client, commands.spaced())[::2]
    if commands is LOADING and isinstance(client, RedisCluster):
        many: Client = client
        return [many.execute_command(*command) for command in commands]  # each goes to every node
    is_atomic = isinstance(commands, Atomic)
    with client.pipeline(transaction=is_atomic) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
    lacking = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if lacking:
        _execute(client, LOADING)
        again = [commands[index] for index in lacking]
        for index, answer in zip(lacking, _execute(client, Atomic(again) if is_atomic else again), strict=True):
            answers[index] = answer
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


async def aexecute(asked: Asked, commands: Sequence[Command]) -> list[Any]:
    """Ask, and give the answers; the first error among them is raised."""
    if not commands:
        return []
    if isinstance(commands, InTurns) and len(commands) > 2:
        return (await aexecute(asked, commands.spaced()))[::2]
    answers = await asked.ask(commands)
    lacking = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if lacking:
        await aexecute(asked, LOADING)
        again = [commands[index] for index in lacking]
        again = Atomic(again) if isinstance(commands, Atomic) else again
        for index, answer in zip(lacking, await asked.ask(again), strict=True):
            answers[index] = answer
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
