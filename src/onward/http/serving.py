"""Runs the server by uvicorn: in this process, or in several that share one socket."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Final, Literal

import msgspec
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from onward.app import App
from onward.http.application import asgi
from onward.http.settings import TrustedProxy
from onward.service.login_code import LoginCode

VARIABLE: Final = "ONWARD_SERVE"
"""Where worker processes find what they are to serve."""
HEADER_TIMEOUT: Final = 10.0
"""Seconds that the head of a request may take to arrive."""
_MAX_HEAD: Final = 32 * 1024
"""Bytes of the head of a request."""


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve."""

    app: str | None = None
    url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8300
    processes: int = 1
    tls_cert: str | None = None
    tls_key: str | None = None
    behind_proxy: bool = False
    proxies: tuple[str, ...] = ()
    """Peers whose ``X-Forwarded-*`` headers are believed."""
    user_header: str | None = None
    """The header in which these proxies name an authenticated user."""
    user_role: str = "viewer"
    allow_hosts: tuple[str, ...] = ()
    grace: float = 25.0
    log_format: Literal["text", "json"] = "text"
    log_level: str = "INFO"


class JoiningTransport(asyncio.Transport):
    """Sends the head and the body of an answer, which uvicorn writes one after the other, by one call of the system.

    Each such call lets another thread take Python's global lock, and wakes the client.
    """

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._parts: list[bytes] = []
        self._timer: asyncio.Handle | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep data until the answer is complete, or the event loop's next turn: an event must not wait longer."""
        if data:
            self._parts.append(bytes(data))
            if self._timer is None:
                self._timer = self._loop.call_soon(self.send)

    def send(self) -> None:
        """Send what is kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._parts:
            parts, self._parts = self._parts, []
            self._inner.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        """Send what is kept, and close."""
        self.send()
        self._inner.close()

    def abort(self) -> None:
        """Close at once."""
        self._parts.clear()
        self._inner.abort()

    def is_closing(self) -> bool:
        """See the inner one."""
        return self._inner.is_closing()

    def is_reading(self) -> bool:
        """See the inner one."""
        return self._inner.is_reading()

    def pause_reading(self) -> None:
        """See the inner one."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """See the inner one."""
        self._inner.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See the inner one."""
        return self._inner.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See the inner one."""
        return self._inner.get_protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See the inner one."""
        self._inner.set_protocol(protocol)

    def get_write_buffer_size(self) -> int:
        """See the inner one."""
        return self._inner.get_write_buffer_size() + sum(map(len, self._parts))


class TimedHeadProtocol(H11Protocol):
    """HTTP/1.1, with a time limit on the head of each request: a client that sends it byte by byte is given up."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock."""
        super().connection_made(JoiningTransport(transport, self.loop))
        self._start_clock()

    def data_received(self, data: bytes) -> None:
        """Stop the clock when a head is complete."""
        self._start_clock()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Send the answer, and leave what comes next to the keep-alive timer."""
        if isinstance(self.transport, JoiningTransport):
            self.transport.send()
        super().on_response_complete()
        self._stop_clock()

    def _start_clock(self) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEADER_TIMEOUT, self._give_up)

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


class StoppingServer(uvicorn.Server):
    """Ends the streams of open dashboards when it stops: they would last until the grace is over."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        if isinstance(self.config.app, Starlette):
            self.config.app.state.onward.dashboard.end_streams()
        await super().shutdown(sockets)


def make_application(app: App, options: ServeOptions, login_code: LoginCode | None = None) -> Starlette:
    """Make the ASGI application that is served."""
    proxy = None
    if options.user_header is not None:
        proxy = TrustedProxy(peers=options.proxies, user_header=options.user_header, role=options.user_role)
    hosts = list(options.allow_hosts)
    return asgi(app, allowed_hosts=hosts, trusted_proxy=proxy, login_code=login_code)


def uvicorn_options(options: ServeOptions) -> dict[str, Any]:
    """Say to uvicorn how to serve."""
    return {
        "host": options.host,
        "port": options.port,
        "http": TimedHeadProtocol,
        "ws": "none",
        "lifespan": "on",
        "ssl_certfile": options.tls_cert,
        "ssl_keyfile": options.tls_key,
        # The peers whose word about the client is believed. Where they also name users, the peer itself is checked.
        "proxy_headers": options.behind_proxy and bool(options.proxies) and options.user_header is None,
        "forwarded_allow_ips": list(options.proxies),
        "server_header": False,
        "access_log": False,
        "log_config": None,
        "timeout_graceful_shutdown": int(options.grace),
        "timeout_keep_alive": 15,
        "h11_max_incomplete_event_size": _MAX_HEAD,
    }


def run(
    app: App,
    options: ServeOptions,
    *,
    factory: str,
    login_code: LoginCode | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Serve until a signal comes; then finish the requests under way, within the grace.

    ``factory`` names the function that makes the application in each of several processes. A login code needs a
    single process, which counts its attempts. ``listener`` is a socket to serve instead of the options' address.
    """
    if options.processes == 1:
        application = make_application(app, options, login_code)
        server = StoppingServer(uvicorn.Config(application, **uvicorn_options(options)))
        server.run(sockets=None if listener is None else [listener])
    else:
        os.environ[VARIABLE] = msgspec.json.encode(options).decode()
        uvicorn.run(factory, factory=True, workers=options.processes, **uvicorn_options(options))
