"""One object by which an application adds routes and commands of its own, under the same rules as Onward's.

A route is an operation: it has a permission, is refused to callers with a limited scope unless it says otherwise, and
leaves one audit record for each call that changes something. The record is written before the call: no record, no
change.

::

    billing = Plugin("billing")

    @billing.route("POST", "/refunds/{id}", permission="operate", changes=True)
    async def refund(call: PluginCall) -> Refund: ...

    @billing.command
    def reindex(full: bool = False) -> None: ...

    app.add_plugin(billing)
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeVar

from onward.errors import InvalidValue
from onward.service.identity import Identity, Permission
from onward.service.operations import Operation, Scoped, add_plugin_operation
from onward.validation import one_of

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
_PATH: Final = re.compile(r"(?:/(?:[a-z0-9_.-]+|\{[a-z_]+\}))+")
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})

F = TypeVar("F", bound=Callable[..., Any])


class PluginCall(Protocol):
    """A call of a plug-in's route."""

    @property
    def identity(self) -> Identity:
        """The caller."""
        ...

    @property
    def path(self) -> Mapping[str, str]:
        """The names in the path."""
        ...

    @property
    def query(self) -> Any:
        """The query, of the type that the route declares."""
        ...

    @property
    def body(self) -> Any:
        """The body, of the type that the route declares."""
        ...


@dataclass(frozen=True, kw_only=True)
class PluginRoute:
    """A route of a plug-in."""

    method: str
    path: str
    operation: Operation
    handle: Callable[[PluginCall], Awaitable[Any]]
    query: type | None = None
    body: Any = None
    returns: Any = Any


@dataclass(frozen=True, kw_only=True)
class PluginCommand:
    """A command of a plug-in."""

    name: str
    function: Callable[..., Any]
    changes: bool = False
    """Whether each call leaves an audit record."""


@dataclass
class Plugin:
    """Routes and commands of an application."""

    name: str
    routes: list[PluginRoute] = field(default_factory=list)
    commands: dict[str, PluginCommand] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a name that is no part of a path."""
        if not _NAME.fullmatch(self.name):
            raise InvalidValue("name", self.name, "must be lower-case letters, digits and '-', at most 40 characters")

    def route(
        self,
        method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"],
        path: str,
        *,
        permission: Permission | str = Permission.READ,
        name: str | None = None,
        changes: bool | None = None,
        scoped: Literal["refused", "same"] = "refused",
        query: type | None = None,
        body: Any = None,
        returns: Any = Any,
    ) -> Callable[[F], F]:
        """Add a route at ``/api/v1/plugins/<plug-in><path>``.

        Args:
            method: of HTTP.
            path: such as ``/refunds/{id}``.
            permission: that the caller needs.
            name: of the operation in audit records; the function's own name unless given.
            changes: whether each call leaves an audit record; True unless the method is GET.
            scoped: whether callers limited to queues or organisations are refused, or get the same as others: then
                the function itself looks at ``call.identity.scope``.
            query: a msgspec struct of the query's parameters.
            body: the type of the JSON body.
            returns: the type of the answer.
        """
        if method not in _METHODS:
            raise InvalidValue("method", method, f"must be one of {', '.join(sorted(_METHODS))}")
        if not _PATH.fullmatch(path):
            raise InvalidValue("path", path, "must be segments such as /refunds/{id}")
        if any((each.method, each.path) == (method, path) for each in self.routes):
            raise InvalidValue("path", path, f"has a route for {method} already")
        if changes is False and method != "GET":
            raise InvalidValue("changes", method, "a method that changes something leaves a record")

        def add(function: F) -> F:
            operation = Operation(
                name=f"{self.name}.{name or function.__name__}",
                permission=one_of("permission", Permission, permission),
                summary=(function.__doc__ or function.__name__).strip().splitlines()[0],
                changes=method != "GET" if changes is None else changes,
                orgs=Scoped(scoped),
                queues=Scoped(scoped),
            )
            add_plugin_operation(operation)
            self.routes.append(
                PluginRoute(
                    method=method,
                    path=path,
                    operation=operation,
                    handle=function,
                    query=query,
                    body=body,
                    returns=returns,
                )
            )
            return function

        return add

    def command(self, function: F | None = None, /, *, name: str | None = None, changes: bool = False) -> Any:
        """Add a command: ``onward plugin <plug-in> <command>``. Its parameters are read as typer reads them."""

        def add(function: F) -> F:
            called = name or function.__name__.replace("_", "-")
            if called in self.commands:
                raise InvalidValue("name", called, "is taken: give one of them another name=")
            self.commands[called] = PluginCommand(name=called, function=function, changes=changes)
            return function

        return add if function is None else add(function)
