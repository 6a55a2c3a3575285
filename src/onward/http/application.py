"""The ASGI application: finds the endpoint, recognises the caller, checks the operation, and encodes the answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from onward.app import App
from onward.core import core_of
from onward.dashboard.site import Dashboard
from onward.errors import NotAuthenticated
from onward.http import openapi
from onward.http.access_log import write_access_log
from onward.http.access_pruner import AccessPruner
from onward.http.authentication import Authenticator
from onward.http.bodies import check_media_type, decode, read_body, read_query
from onward.http.endpoints import JSON, Call, Endpoint, Reply, decoded_path, endpoint
from onward.http.operation_runner import OperationRunner
from onward.http.problems import MEDIA_TYPE, HttpError, http_error
from onward.http.request_headers import header
from onward.http.routes import all_endpoints
from onward.http.routes.jobs import NoQuery
from onward.http.routes.status import ENDPOINTS as STATUS_ENDPOINTS
from onward.http.security import check_host, check_origin, raw_headers
from onward.http.settings import Authenticate, Settings, TrustedProxy
from onward.ids import new_id
from onward.service.access import SESSION_IDLE, SESSION_LENGTH
from onward.service.identity import Identity
from onward.service.login_code import LoginCode
from onward.service.operations import permit
from onward.service.plugins import Plugin, PluginRoute
from onward.service.services import Services
from onward.service.store import record

log = logging.getLogger("onward.http")

API: Final = "/api/v1"
TICK: Final = "/api/jobs/tick"
"""The path of the source design (A6)."""
_SMALL_BODY: Final = 1024 * 1024
_OPTIONS_ROOM: Final = 64 * 1024
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_encode: Final = msgspec.json.Encoder().encode
_NOBODY: Final = ""


def asgi(
    app: App,
    *,
    allowed_hosts: Sequence[str] = (),
    authenticate: Authenticate | None = None,
    trusted_proxy: TrustedProxy | None = None,
    max_bulk_body: int = 64 * 1024 * 1024,
    body_timeout: float = 30.0,
    max_streams: int = 20,
    max_failures: int = 60,
    session_idle: timedelta = SESSION_IDLE,
    session_length: timedelta = SESSION_LENGTH,
    run_operations: bool = True,
    keep_audit: timedelta = timedelta(days=365),
    login_code: LoginCode | None = None,
) -> Starlette:
    """Make the server of an App as an ASGI application, to run or to mount under any path (A1).

    Args:
        app: whose jobs are served.
        allowed_hosts: names in ``Host`` besides the loopback ones; ``*`` where another server checks them.
        authenticate: recognises users of the host application; see ``onward.service.identity.of_user``.
        trusted_proxy: recognises users by a header, from listed peers only.
        max_bulk_body: bytes of a bulk enqueue.
        body_timeout: seconds that a body may take to arrive.
        max_streams: open event streams of one caller.
        max_failures: refused credentials of one peer in a minute.
        session_idle: after which an unused session ends.
        session_length: after which every session ends.
        run_operations: whether changes by filter are also made in this process, so that they need no worker.
        keep_audit: how long audit records are kept; 30 days at least.
        login_code: a one-time code that is accepted for a session; of ``Access.create_login_code``.
    """
    settings = Settings(
        allowed_hosts=allowed_hosts,
        authenticate=authenticate,
        trusted_proxy=trusted_proxy,
        max_bulk_body=max_bulk_body,
        body_timeout=body_timeout,
        max_streams=max_streams,
        max_failures=max_failures,
        session_idle=session_idle,
        session_length=session_length,
        run_operations=run_operations,
        keep_audit=keep_audit,
        login_code=login_code,
    )
    return Server(app, settings).application()


class Server:
    """Everything that requests to one App share."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self._hosts = settings.hosts
        self.services = Services(app, session_idle=settings.session_idle, session_length=settings.session_length)
        if settings.login_code is not None:
            self.services.access.accept_code(settings.login_code)
        self.authenticator = Authenticator(self.services.access, settings)
        self.operations = OperationRunner(app) if settings.run_operations else None
        self.access_pruner = AccessPruner(self.services.store, keep_audit=settings.keep_audit)
        plugins = [plugin for plugin in core_of(app).plugins if isinstance(plugin, Plugin)]
        self.dashboard = Dashboard(self.services, settings, self.authenticator, on_operation=self.wake_operations)
        self.endpoints = [*all_endpoints(), *self._openapi(), *(one for each in plugins for one in _routes_of(each))]

    def application(self) -> Starlette:
        """Make the ASGI application."""
        application = Starlette(routes=self._routes(), lifespan=self._lifespan, exception_handlers={})
        application.router.redirect_slashes = False
        application.router.default = self._unknown
        application.state.onward = self
        # Starlette's own answers to errors are pages; ours are problem documents, and made in one place.
        application.middleware_stack = application.router
        return application

    def _routes(self) -> list[BaseRoute]:
        by_path: dict[str, dict[str, Endpoint]] = {}
        for one in self.endpoints:
            by_path.setdefault(API + one.path, {})[one.method] = one
        for one in STATUS_ENDPOINTS:
            if one.path == "/tick":
                by_path.setdefault(TICK, {})[one.method] = one
            elif one.path == "/metrics":
                by_path.setdefault("/metrics", {})[one.method] = one
        routes: list[BaseRoute] = [
            Route(path, _Resource(self, methods), methods=None) for path, methods in by_path.items()
        ]
        routes.append(Route("/healthz", _Probe(self, self._is_alive), methods=None))
        routes.append(Route("/readyz", _Probe(self, self.services.status.is_ready), methods=None))
        return [*routes, *self.dashboard.routes(self.run)]

    def wake_operations(self) -> None:
        """Make changes by filter here, where this process does so."""
        if self.operations is not None:
            self.operations.wake()

    def _openapi(self) -> list[Endpoint]:
        async def document(call: Call) -> Reply:
            text = openapi.document_text(self.endpoints, API, root_path=call.request.scope.get("root_path", ""))
            return Reply(text=text, media_type=JSON)

        return [endpoint("GET", "/openapi.json", "capabilities.read", document, returns=dict, id_suffix=".openapi")]

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None, None]:
        try:
            if self.operations is not None:
                self.operations.start()
            self.access_pruner.start()
            yield
        finally:
            await self.access_pruner.stop()
            if self.operations is not None:
                await self.operations.stop()
            await self.app.close()

    async def _is_alive(self) -> bool:
        return True

    async def _unknown(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return

        async def answer(_: Request, __: Exchange) -> None:
            raise HttpError(404, "unknown-route", "unknown route", "there is nothing at this path")

        await self.run(scope, receive, send, answer)

    async def run(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        answer: Callable[[Request, Exchange], Any],
    ) -> None:
        """Answer a request: whatever goes wrong becomes a problem document, and every request a line of the log."""
        request = Request(scope, receive)
        exchange = Exchange(scope, receive, send, request_id=_request_id(request))
        try:
            check_host(request, self._hosts)
            await answer(request, exchange)
        except Exception as error:  # whatever it is, the client is told something that it can read
            failure = http_error(error)
            if failure.problem.status == 500:
                log.exception("request %s failed", exchange.request_id)
            if exchange.started:
                raise
            await exchange.problem(failure)
        finally:
            write_access_log(request, exchange)


class Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, request_id: str) -> None:
        self._send = send
        self.scope = scope
        self.receive = receive
        self.request_id = request_id
        self.began = time.perf_counter()
        self.status = 0
        self.actor = _NOBODY

    @property
    def started(self) -> bool:
        """Whether the answer is under way."""
        return self.status != 0

    async def send(self, message: Any) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.request_id.encode())]
        await self._send(message)

    async def reply(
        self, status: int, body: bytes = b"", *, media_type: str = JSON, headers: dict[str, str] | None = None
    ) -> None:
        """Send a whole answer."""
        raw = raw_headers(headers)
        if status != 204:
            raw += [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        is_head = self.scope["method"] == "HEAD"
        await self.send({"type": "http.response.body", "body": b"" if is_head or status == 204 else body})

    async def problem(self, error: HttpError) -> None:
        """Send a problem document."""
        problem = msgspec.structs.replace(error.problem, request_id=self.request_id)
        await self.reply(problem.status, _encode(problem), media_type=MEDIA_TYPE, headers=error.headers)


class _Resource:
    """One path, and what its methods do."""

    def __init__(self, server: Server, methods: dict[str, Endpoint]) -> None:
        self._server = server
        self._methods = methods
        head = ["HEAD"] if "GET" in methods and methods["GET"].has_head else []
        self._allow = ", ".join(sorted({*methods, *head}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._server.run(scope, receive, send, self._answer)

    async def _answer(self, request: Request, exchange: Exchange) -> None:
        found = self._methods.get("GET" if request.method == "HEAD" else request.method)
        if found is None or (request.method == "HEAD" and not found.has_head):
            raise HttpError(
                405,
                "method-not-allowed",
                "method not allowed",
                f"allowed: {self._allow}",
                headers={"Allow": self._allow},
            )
        server = self._server
        identity, body = await self._identify(found, request, exchange)
        exchange.actor = identity.actor
        permit(identity, found.operation)
        query = read_query(request, found.query or NoQuery)
        if body is None:
            body = await self._body(found, request)
        call = Call(
            request=request,
            services=server.services,
            settings=server.settings,
            identity=identity,
            path=decoded_path(request),
            query=query,
            body=body,
        )
        value = await self._run(found, call)
        if isinstance(value, Reply) and value.status == 202:
            server.wake_operations()
        await _send(exchange, found, value)

    async def _identify(self, found: Endpoint, request: Request, exchange: Exchange) -> tuple[Identity, Any]:
        authenticator = self._server.authenticator
        if found.operation.name != "session.create":
            return await authenticator.identify(request, exchange.request_id, bearer_only=found.bearer_only), None
        # The credential is in the body: it is exchanged for a cookie, so that no page ever holds it.
        if header(request, b"sec-fetch-site") is not None or header(request, b"origin") is not None:
            check_origin(request)
        authenticator.check_peer(request)
        body = await self._body(found, request)
        try:
            access = self._server.services.access
            if body.code is not None:
                identity = await access.authenticate_code(body.code)
            else:
                identity = await access.authenticate(body.token)
        except NotAuthenticated:
            authenticator.refused(request)
            raise
        return msgspec.structs.replace(identity, request_id=exchange.request_id), body

    async def _body(self, found: Endpoint, request: Request) -> Any:
        settings = self._server.settings
        if found.body is None:
            data = await read_body(request, limit=_SMALL_BODY, timeout=settings.body_timeout)
            if data.strip():
                raise HttpError(400, "unexpected-body", "unexpected body", "this takes no body")
            return None
        if found.is_bulk:
            return await read_body(request, limit=settings.max_bulk_body, timeout=settings.body_timeout)
        limit = core_of(self._server.app).max_payload + _OPTIONS_ROOM
        data = await read_body(request, limit=limit, timeout=settings.body_timeout)
        if not data and found.optional_body:
            return None
        check_media_type(request, frozenset({JSON}))
        return decode(data, found.body)

    async def _run(self, found: Endpoint, call: Call) -> Any:
        if not found.operation.changes:
            return await found.handle(call)
        # A client that goes away does not stop a change half-way, whatever the server does with its task (S5).
        return await asyncio.shield(asyncio.ensure_future(found.handle(call)))


async def _send(exchange: Exchange, found: Endpoint, value: Any) -> None:
    if not isinstance(value, Reply):
        if found.returns is None:
            await exchange.reply(204)
        else:
            await exchange.reply(found.status, _encode(value))
    elif value.stream is not None:
        await value.stream(exchange.scope, exchange.receive, exchange.send)
    else:
        status = value.status or found.status
        body = _encode(value.value) if value.text is None else value.text.encode()
        await exchange.reply(status, body, media_type=value.media_type or JSON, headers=value.headers)


class _Probe:
    """A path for probes, which need no credential and learn one word."""

    def __init__(self, server: Server, is_ok: Callable[[], Any]) -> None:
        self._server = server
        self._is_ok = is_ok

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._server.run(scope, receive, send, self._answer)

    async def _answer(self, request: Request, exchange: Exchange) -> None:
        if request.method not in {"GET", "HEAD"}:
            raise HttpError(405, "method-not-allowed", "method not allowed", headers={"Allow": "GET, HEAD"})
        ok = await self._is_ok()
        headers = {} if ok else {"Retry-After": "5"}
        await exchange.reply(200 if ok else 503, _encode({"ok": ok}), headers=headers)


def _request_id(request: Request) -> str:
    given = header(request, b"x-request-id") or ""
    return given if _REQUEST_ID.fullmatch(given) else new_id()


def _routes_of(plugin: Plugin) -> list[Endpoint]:
    return [_endpoint_of(plugin, each) for each in plugin.routes]


def _endpoint_of(plugin: Plugin, route: PluginRoute) -> Endpoint:
    async def handle(call: Call) -> Any:
        if route.operation.changes:
            target = "/".join(call.path.values())
            engine = await call.services.store.engine()
            await engine.record_audit(record(call.identity, route.operation.name, target=target))
        return await route.handle(call)

    return Endpoint(
        method=route.method,
        path=f"/plugins/{plugin.name}{route.path}",
        operation=route.operation,
        handle=handle,
        query=route.query,
        body=route.body,
        returns=route.returns,
    )
