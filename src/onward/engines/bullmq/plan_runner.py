"""Plans: one logic for every kind of connection. A plan yields commands, a list at a time, and is sent their answers.

A list goes out in one write and comes back in one read. :func:`run` drives a plan on a plain client, :func:`arun` on
the connections of an event loop. A script goes by its hash; where the server does not know it, it has not run, and the
server is told.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from redis import RedisCluster
from redis.exceptions import NoScriptError

from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.lua_scripts import SCRIPTS

T = TypeVar("T")

Client = Any
"""A client of redis-py, ``redis.Redis``, whose types stop short of any command."""

Command = tuple[Any, ...]


class AsyncClient(Protocol):
    """Whom commands are asked of, on one event loop."""

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Give the answers; those that are errors are given as such."""
        ...

    async def close(self) -> None:
        """Let go of the server."""
        ...


class Atomic(list[Command]):
    """Commands of which all are done or none, and nobody sees some of them done."""


class Interleaved(list[Command]):
    """Commands between which others have their turn, where there are more than two.

    Redis reads what a client sends sixteen kilobytes at a time, does all that it finds there, and only then turns to
    others. So between two commands stands a question that is as long as that, and asks for nothing.
    """

    def __init__(self, keys: Keys, commands: Iterable[Command]) -> None:
        super().__init__(commands)
        self.padding = ("EXISTS", keys.onward_root + _PADDING)

    def with_padding(self) -> list[Command]:
        """Give them with what stands between them."""
        padded: list[Command] = [self.padding] * (2 * len(self) - 1)
        padded[::2] = self
        return padded


_PADDING: Final = "." * 16384

Plan = Generator[Sequence[Command], list[Any], T]


def script(name: str, keys: Keys, key_names: Sequence[str], *values: Any) -> Command:
    """Name a script with its keys and values; the arguments that all share are put before."""
    return ("EVALSHA", SCRIPTS[name].sha, len(key_names), *key_names, *keys.script_arguments(), *values)


LOAD_SCRIPTS: Final[Sequence[Command]] = [("SCRIPT", "LOAD", found.text) for found in SCRIPTS.values()]
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


async def arun(plan: Plan[T], client: AsyncClient) -> T:
    """Drive a plan on the connections of an event loop."""
    try:
        commands = next(plan)
        while True:
            commands = plan.send(await aexecute(client, commands))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _execute(client: Client, commands: Sequence[Command]) -> list[Any]:
    if len(commands) == 1:
        try:
            return [client.execute_command(*commands[0])]
        except NoScriptError:
            _execute(client, LOAD_SCRIPTS)
            return [client.execute_command(*commands[0])]
    if not commands:
        return []
    if isinstance(commands, Interleaved) and len(commands) > 2:
        return _execute(client, commands.with_padding())[::2]
    if commands is LOAD_SCRIPTS and isinstance(client, RedisCluster):
        many: Client = client
        return [many.execute_command(*command) for command in commands]  # each goes to every node
    is_atomic = isinstance(commands, Atomic)
    with client.pipeline(transaction=is_atomic) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
    missing = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if missing:
        _execute(client, LOAD_SCRIPTS)
        retried = [commands[index] for index in missing]
        for index, answer in zip(missing, _execute(client, Atomic(retried) if is_atomic else retried), strict=True):
            answers[index] = answer
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


async def aexecute(client: AsyncClient, commands: Sequence[Command]) -> list[Any]:
    """Ask, and give the answers; the first error among them is raised."""
    if not commands:
        return []
    if isinstance(commands, Interleaved) and len(commands) > 2:
        return (await aexecute(client, commands.with_padding()))[::2]
    answers = await client.execute(commands)
    missing = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if missing:
        await aexecute(client, LOAD_SCRIPTS)
        retried = [commands[index] for index in missing]
        retried = Atomic(retried) if isinstance(commands, Atomic) else retried
        for index, answer in zip(missing, await client.execute(retried), strict=True):
            answers[index] = answer
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
