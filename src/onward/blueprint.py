"""Tasks that are declared before there is an App: a blueprint, which an App includes later."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol
from weakref import WeakSet

from onward.declarations import Declarations, ScheduleDeclaration
from onward.engine.capabilities import Capabilities
from onward.errors import InvalidValue
from onward.handler import Handler, TaskOptions
from onward.job import Enqueued, NewJob
from onward.results import Results
from onward.task import AsyncTask, PlainTask, Sender, Task, check_queue_template
from onward.validation import MAX_PAYLOAD, check_type


class Includer(Protocol):
    """What includes blueprints: an App."""

    def _include_task(self, task: Task[..., Any]) -> None: ...
    def _declare_schedule(self, declaration: ScheduleDeclaration) -> None: ...


class Tasks(Declarations):
    """Tasks without an App, for modules that must not import one: ``tasks = Tasks(prefix="mail", queue="mail")``.

    ``app.include(tasks)`` adds them to an App. Before that they can be called and can make jobs, and cannot be
    enqueued. A blueprint that several Apps include enqueues to the one that included it last;
    ``app.tasks["mail.send"]`` is the task of that App.
    """

    def __init__(self, *, prefix: str = "", queue: str = "default") -> None:
        """Make a blueprint.

        Args:
            prefix: put before the names of its tasks and schedules, with a dot: ``mail.send``.
            queue: of the tasks that do not name one; ``mail/{org_id}`` gives each organisation a queue of its own.
        """
        self._prefix = check_type("prefix", prefix) if prefix else ""
        self._queue = check_queue_template(queue, foreign=True)
        self._sender = _LastIncluded()
        self._includers: WeakSet[Any] = WeakSet()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._schedules: dict[str, ScheduleDeclaration] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)
        """The tasks, by name with the prefix."""

    def __repr__(self) -> str:
        """Name the prefix and count the tasks."""
        return f"<Tasks {self._prefix or '(no prefix)'}, {len(self._tasks)} tasks>"

    def _default_queue(self) -> str:
        return self._queue

    def _full_name(self, name: str) -> str:
        return f"{self._prefix}.{name}" if self._prefix else name

    def _declare_task(self, function: Callable[..., Any], name: str, options: TaskOptions) -> Task[..., Any]:
        if name in self._tasks:
            raise InvalidValue("name", name, "is taken by another task of this blueprint: give one of them name=…")
        handler = Handler(function, name=name, options=options)
        task: Task[..., Any] = (AsyncTask if handler.is_async else PlainTask)(handler, self._sender)
        for includer in self._includers:
            includer._include_task(task)  # noqa: SLF001 - an App's side of a blueprint is not for users
        self._tasks[name] = task
        return task

    def _declare_schedule(self, declaration: ScheduleDeclaration) -> None:
        if declaration.name in self._schedules:
            raise InvalidValue("schedule", declaration.name, "is declared twice: give one of them another name=")
        for includer in self._includers:
            includer._declare_schedule(declaration)  # noqa: SLF001 - as above
        self._schedules[declaration.name] = declaration


class _LastIncluded:
    """Sends jobs to the App that included the blueprint last."""

    def __init__(self) -> None:
        self.core: Sender | None = None

    def _required(self) -> Sender:
        if self.core is None:
            rule = "belongs to no App yet: call app.include(tasks), or app.discover(…), before you enqueue"
            raise InvalidValue("task", "of a blueprint", rule)
        return self.core

    @property
    def max_payload(self) -> int:
        return MAX_PAYLOAD if self.core is None else self.core.max_payload

    @property
    def results(self) -> Results:
        return self._required().results

    @property
    def capabilities(self) -> Capabilities:
        return self._required().capabilities

    @property
    def allows_foreign_names(self) -> bool:
        return self.core is None or self.core.allows_foreign_names

    def send(self, jobs: Sequence[NewJob], *, connection: object | None) -> Coroutine[Any, Any, list[Enqueued]]:
        return self._required().send(jobs, connection=connection)

    def send_sync(self, jobs: Sequence[NewJob], *, connection: object | None) -> list[Enqueued]:
        return self._required().send_sync(jobs, connection=connection)


def is_included(tasks: Tasks, app: Includer) -> bool:
    """Say whether an App has included a blueprint."""
    return app in tasks._includers  # noqa: SLF001 - the App's side of a blueprint


def include(tasks: Tasks, app: Includer, core: Sender) -> None:
    """Add a blueprint's tasks and schedules to an App, once, and have its tasks enqueue there."""
    if not is_included(tasks, app):
        for task in tasks.tasks.values():
            app._include_task(task)  # noqa: SLF001
        for declaration in tasks._schedules.values():  # noqa: SLF001
            app._declare_schedule(declaration)  # noqa: SLF001
        tasks._includers.add(app)  # noqa: SLF001
    tasks._sender.core = core  # noqa: SLF001
