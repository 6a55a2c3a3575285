"""The server that ``onward bench http`` measures: Onward's, and bare Starlette routes in the same process.

Both are served by uvicorn with the options of ``onward serve``, in a process that does nothing else.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from onward.bench.counting import count_statements
from onward.bench.environment import BareStore
from onward.bench.handlers import make_producer
from onward.errors import OnwardError
from onward.worker.resident_memory import resident_memory

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

BARE: Final = "/bare"
_START_TIMEOUT: Final = 60.0
"""Seconds until a server that does not start is given up."""


class ServerState(msgspec.Struct, frozen=True):
    """What the server says about itself."""

    statements: int
    """Statements that the process has sent to the store; only counted where that was asked for."""
    memory: int
    """Bytes in memory."""


class HttpServer:
    """A server in a process of its own, for the length of a block."""

    def __init__(self, url: str, bare_store: Callable[[], BareStore], *, tokens: int = 1, count: bool = False) -> None:
        """Prepare the process.

        Args:
            url: whose jobs are served.
            bare_store: opens the table of the bare routes.
            tokens: how many to create.
            count: whether statements are counted, which costs time for each.
        """
        spawn = get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._theirs = theirs
        self._process = spawn.Process(target=_serve, args=(url, bare_store, tokens, count, theirs), daemon=True)
        self.port = 0
        self.tokens: list[str] = []

    def __enter__(self) -> Self:
        """Start it, and wait until it serves."""
        self._process.start()
        self._theirs.close()
        try:
            if not self._pipe.poll(_START_TIMEOUT):
                raise OnwardError(f"the server did not start within {_START_TIMEOUT:g} s")
            self.port, self.tokens = self._pipe.recv()
            self.state()  # answered as soon as it serves
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it: SIGTERM, as a process manager does."""
        self._process.terminate()
        self._process.join()
        self._pipe.close()

    def address(self, path: str) -> str:
        """Return the URL of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    def state(self) -> ServerState:
        """Ask the server about itself."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=_START_TIMEOUT)) as client:
            client.request("GET", f"{BARE}/state")
            return msgspec.json.decode(client.getresponse().read(), type=ServerState)


def _serve(url: str, bare_store: Callable[[], BareStore], tokens: int, count: bool, pipe: Connection) -> None:  # noqa: FBT001 - of a process
    import asyncio  # noqa: PLC0415 - in the server's process alone, as all of these

    import uvicorn  # noqa: PLC0415

    from onward.http.serving import ServeOptions, make_application, uvicorn_options  # noqa: PLC0415
    from onward.service.identity import of_command_line  # noqa: PLC0415
    from onward.service.services import Services  # noqa: PLC0415
    from onward.service.values import TokenRequest  # noqa: PLC0415
    from onward.worker.log_format import configure  # noqa: PLC0415

    statements = count_statements(url) if count else [0]
    # The access log is written as `onward serve` writes it, and read by nobody.
    configure("json", stream=open(os.devnull, "w", encoding="utf-8"), is_batched=True)  # noqa: SIM115, PTH123 - until the process ends
    app = make_producer(url)

    async def make_tokens() -> list[str]:
        access, identity = Services(app).access, of_command_line()
        requests = (TokenRequest(name=f"bench-{number}", role="admin") for number in range(tokens))
        made = [(await access.create_token(identity, request)).secret for request in requests]
        await app.close()
        return made

    secrets = asyncio.run(make_tokens())
    options = ServeOptions(grace=2)
    served, bare = make_application(app, options), _bare_application(bare_store(), statements)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        is_bare = scope["type"] == "http" and scope["path"].startswith(BARE)
        await (bare if is_bare else served)(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        pipe.send((listener.getsockname()[1], secrets))
        uvicorn.Server(uvicorn.Config(application, **uvicorn_options(options))).run(sockets=[listener])


def _bare_application(store: BareStore, statements: list[int]) -> ASGIApp:
    """Make the bare routes: what a web application does by hand, with Starlette's own parts."""
    from starlette.applications import Starlette  # noqa: PLC0415 - as above
    from starlette.responses import JSONResponse  # noqa: PLC0415
    from starlette.responses import Response as PlainResponse  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    async def empty(_: Request) -> Response:
        return PlainResponse()

    async def insert(request: Request) -> Response:
        body: Any = await request.json()
        id = await store.insert(msgspec.json.encode(body["payload"]).decode())
        return JSONResponse({"id": id}, status_code=201)

    async def read(request: Request) -> Response:
        row = await store.read(request.path_params["id"])
        return JSONResponse({"job": None if row is None else [str(value) for value in row]})

    async def state(_: Request) -> Response:
        found = ServerState(statements=statements[0], memory=resident_memory())
        return PlainResponse(msgspec.json.encode(found), media_type="application/json")

    return Starlette(
        routes=[
            Route(f"{BARE}/empty", empty),
            Route(f"{BARE}/jobs", insert, methods=["POST"]),
            Route(f"{BARE}/jobs/{{id}}", read),
            Route(f"{BARE}/state", state),
        ]
    )
