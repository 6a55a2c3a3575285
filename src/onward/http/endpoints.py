"""Routes as data: what each takes, what it returns, and the operation that it asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from onward.http.names import decode_name
from onward.http.settings import Settings
from onward.job import JobRef
from onward.service.identity import Identity
from onward.service.jobs import Name
from onward.service.operations import Operation, find
from onward.service.services import Services

JSON: Final = "application/json"


@dataclass(kw_only=True, slots=True)
class Call:
    """A request to an endpoint, read and checked."""

    request: Request
    services: Services
    settings: Settings
    identity: Identity
    path: Mapping[str, str]
    """The names in the path, decoded."""
    query: Any = None
    body: Any = None

    @property
    def job(self) -> Name:
        """The job that the path names."""
        queue = self.path.get("queue")
        return self.path["id"] if queue is None else JobRef(queue, self.path["id"])


Handle = Callable[[Any], Awaitable[Any]]
"""Takes a :class:`Call`, and returns a value to encode or a :class:`Reply`."""


@dataclass(kw_only=True, slots=True)
class Reply:
    """An answer that is more than a value."""

    value: Any = None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    media_type: str | None = None
    stream: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None
    """An ASGI application that answers by itself."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    operation: Operation
    handle: Handle
    query: type[msgspec.Struct] | None = None
    body: Any = None
    """The type of the JSON body; None: there is none."""
    is_bulk: bool = False
    """The body may be large, and NDJSON too; the endpoint decodes it."""
    optional_body: bool = False
    returns: Any = None
    """The type of the answer; None: no content."""
    status: int = 200
    media_types: tuple[str, ...] = (JSON,)
    """Of the answer."""
    bearer_only: bool = False
    """No cookie counts (A6)."""
    is_public: bool = False
    """No credential is needed."""
    id_suffix: str = ""
    """Tells apart endpoints of one operation."""

    @property
    def has_head(self) -> bool:
        """Whether it can be asked for its headers alone: it changes nothing, and is no stream."""
        return not self.operation.changes and self.media_types == (JSON,)

    @property
    def operation_id(self) -> str:
        """Its name in the OpenAPI document."""
        return self.operation.name + self.id_suffix


def endpoint(method: str, path: str, operation: str, handle: Handle, **options: Any) -> Endpoint:
    """Declare an endpoint of an operation in the table."""
    return Endpoint(method=method, path=path, operation=find(operation), handle=handle, **options)


def decoded_path(request: Request) -> dict[str, str]:
    """Read the names in a path."""
    return {name: decode_name(value) for name, value in request.path_params.items()}


class Paging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page."""

    cursor: str | None = None
    """The ``next_cursor`` of the page before."""
    limit: int = 50
    """Rows, at most 200."""
