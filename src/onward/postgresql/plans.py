"""One logic for every kind of connection: a plan yields statements and is sent their rows.

What the database answers with an error is raised in the plan, at the statement, so that a plan can expect it.
:func:`run` drives a plan on a plain connection, :func:`arun` on an asynchronous one, and the caller's own transaction
is just another connection (:mod:`onward.postgresql.within`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

Row = tuple[Any, ...]


class Statement(NamedTuple):
    """A statement and its values, which stand as ``$1``, ``$2``, … in it."""

    text: str
    values: Sequence[Any] = ()
    rows: Callable[[Sequence[Row]], Iterable[str]] | None = None
    """Gives what is read by the ``copy … from stdin`` at its end, given what was answered before. Only for connections
    of our own."""


Plan = Generator[Statement, Sequence[Row], T]
Execute = Callable[[Statement], Sequence[Row]]
AsyncExecute = Callable[[Statement], Awaitable[Sequence[Row]]]


def run(plan: Plan[T], execute: Execute) -> T:
    """Drive a plan on a plain connection."""
    try:
        statement = next(plan)
        while True:
            try:
                rows = execute(statement)
            except Exception as error:  # noqa: BLE001 - the plan's to catch, or nobody's
                statement = plan.throw(error)
            else:
                statement = plan.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(plan: Plan[T], execute: AsyncExecute) -> T:
    """Drive a plan on an asynchronous connection."""
    try:
        statement = next(plan)
        while True:
            try:
                rows = await execute(statement)
            except Exception as error:  # noqa: BLE001 - the plan's to catch, or nobody's
                statement = plan.throw(error)
            else:
                statement = plan.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
