"""One logic for every kind of connection: a plan yields statements and is sent their rows.

What the database answers with an error is raised in the plan, at the statement, so that a plan can expect it.
:func:`run` drives a plan on a plain connection, :func:`arun` on an asynchronous one, and the caller's own transaction
is just another connection (:mod:`onward.pg.caller_transaction`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

Row = tuple[Any, ...]
Rows = Generator[bytes, Sequence[Row], None]
"""What a ``copy … from stdin`` reads, part by part. It yields nothing at first, so that what it does until then is done
while the server is at what stands before the COPY, and is sent what was answered to that."""


class Statement(NamedTuple):
    """A statement and its values, which stand as ``$1``, ``$2``, … in it."""

    text: str
    values: Sequence[Any] = ()
    rows: Rows | None = None
    """For the ``copy … from stdin`` at its end. Only for connections of our own."""


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
