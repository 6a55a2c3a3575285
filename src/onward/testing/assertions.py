"""What has been enqueued, and assertions about it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from onward.app import App
from onward.arguments import nearest, to_json
from onward.engine.values import JobFilter
from onward.errors import InvalidPayload
from onward.job import Job
from onward.task import Task

_SHOWN = 5


async def enqueued(app: App, task: Task[..., Any] | None = None) -> list[Job]:
    """List the jobs of a task, or of all, whatever has become of them; the oldest first."""
    which = JobFilter() if task is None else JobFilter(types=(task.name,))
    found: list[Job] = []
    cursor = None
    while True:
        page = await app.jobs.list(which, cursor=cursor, limit=200, newest_first=False)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


async def assert_enqueued(
    app: App, task: Task[..., Any], /, *, count: int | None = None, arguments: Mapping[str, Any] | None = None
) -> list[Job]:
    """Assert that jobs of a task were enqueued with these arguments, and give them.

    Arguments that are not named may be anything; ``count`` None is at least one.

    Raises:
        AssertionError: there are none, or not so many; the message shows those that there are.
    """
    __tracebackhide__ = True
    given = arguments or {}
    wanted = {name: _plain(value) for name, value in given.items()}
    defaults = _defaults(task, wanted)
    jobs = await enqueued(app, task)
    matching = [job for job in jobs if all((defaults | job.payload)[name] == wanted[name] for name in wanted)]
    if len(matching) == count or (count is None and matching):
        return matching
    asked = f"{task.name}({', '.join(f'{name}={value!r}' for name, value in given.items())})"
    number = "at least one job" if count is None else "one job" if count == 1 else f"{count} jobs"
    there = "".join(f"\n  {job.payload} ({job.status})" for job in jobs[:_SHOWN])
    more = f"\n  … and {len(jobs) - _SHOWN} more" if len(jobs) > _SHOWN else ""
    raise AssertionError(
        f"expected {number} {asked}, found {len(matching)}; of this task there are {len(jobs)}{there}{more}"
    )


def _defaults(task: Task[..., Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Read the defaults of the arguments asked for: those that were not given are not in the payload."""
    parameters = inspect.signature(task.function).parameters
    defaults = {}
    for name, value in wanted.items():
        if name not in parameters:
            rule = f"{task.name}() has no such argument{nearest(name, parameters)}"
            raise InvalidPayload(f"payload.{name}", value, rule)
        default = parameters[name].default
        defaults[name] = inspect.Parameter.empty if default is inspect.Parameter.empty else _plain(default)
    return defaults


def _plain(value: Any) -> Any:
    """Turn a value into what it is after its way through JSON."""
    return msgspec.json.decode(to_json(value))
