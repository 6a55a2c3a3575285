"""The server: where it is, how a client for it is made, and what its troubles are called here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.sentinel
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from onward.engines.bullmq.multiplexer import Connection, DriverClient, Multiplexer, preserve_cancellation
from onward.engines.bullmq.plan_runner import AsyncClient
from onward.errors import InvalidValue, StoreCorrupt, StoreFull, StoreReadOnly, StoreUnavailable
from onward.store_url import check_credentials, hide_quoted, hide_secrets

MAX_CONNECTIONS: Final = 4
"""Connections for one event loop, and for all threads together. A verb takes one for a moment."""
_RESPONSE_TIMEOUT: Final = 30.0
"""Seconds after which a server that does not answer counts as away."""
_FULL_REMEDY: Final = "give it more memory, or remove finished jobs"
_REPLICA_REMEDY: Final = "give the address of the master, or of the sentinels"
_RAISED_IN_SCRIPT: Final = re.compile(r"-(OOM|READONLY) ")
"""The code of an error within a script: before Redis 7 the reply itself begins with ERR."""
_CONNECT_TIMEOUT: Final = 10.0
"""Seconds, in which a busy event loop must get round to it too."""


class Server:
    """One Redis or Valkey, alone, behind sentinels, or a cluster."""

    def __init__(self, url: str) -> None:
        """Read a URL.

        ``redis://host:6379/0``, ``rediss://`` with TLS, ``unix:///path?db=0``; with ``sentinel=name`` the hosts, joined
        by commas, are sentinels and the name is that of the master; with ``cluster=on`` it is a node of a cluster.
        """
        address, _, query = check_credentials(url).partition("?")
        settings = dict(parse_qsl(query, keep_blank_values=True))
        self.master = settings.pop("sentinel", None)
        self.is_cluster = settings.pop("cluster", "off") == "on"
        self._url = f"{address}?{urlencode(settings, quote_via=quote)}" if settings else address
        parts = urlsplit(address)
        self._parts = parts
        self._sentinels: list[tuple[str, int]] = []
        try:
            if self.master is None:
                redis.ConnectionPool.from_url(self._url)
            else:
                for host in parts.netloc.rpartition("@")[2].split(","):
                    name, _, port = host.partition(":")
                    self._sentinels.append((name, int(port or 26379)))
        except ValueError as error:
            rule = f"is no address of a Redis server: {hide_quoted(str(error))}"
            raise InvalidValue("url", self._shown, rule) from None

    @property
    def address(self) -> Mapping[str, Any]:
        """Where it is, without secrets."""
        if self._parts.scheme == "unix":
            return {"socket": self._parts.path}
        if self.master is not None:
            return {"sentinels": [f"{host}:{port}" for host, port in self._sentinels], "master": self.master}
        return {
            "host": self._parts.hostname or "localhost",
            "port": self._parts.port or 6379,
            "database": self._parts.path.strip("/") or "0",
        }

    def __str__(self) -> str:
        """Name it, without secrets."""
        return self._shown

    @property
    def _shown(self) -> str:
        return hide_secrets(self._parts.geturl()).replace("…@", "")

    # Clients. None of them tries again by itself: a command whose answer was lost may have been done.

    def client(self, *, max_connections: int = MAX_CONNECTIONS) -> redis.Redis:
        """Make a plain client, for threads."""
        options: dict[str, Any] = {**_OPTIONS, "retry": Retry(NoBackoff(), 0)}
        if self.is_cluster:
            return redis.RedisCluster.from_url(self._url, **_cluster_options(options))  # type: ignore[return-value]
        if self.master is not None:
            sentinel = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
                self._sentinels, **self._credentials, socket_timeout=_CONNECT_TIMEOUT
            )
            made: Any = sentinel.master_for(  # type: ignore[no-untyped-call,unused-ignore]
                self.master, **options, **self._credentials, db=self._database
            )
            return made  # type: ignore[no-any-return]
        pool = redis.BlockingConnectionPool.from_url(
            self._url, max_connections=max_connections, timeout=None, **options
        )
        return redis.Redis.from_pool(pool)

    def async_client(self, *, max_connections: int = MAX_CONNECTIONS, blocking_timeout: float = 0) -> AsyncClient:
        """Make a client for the running event loop; commands may block for ``blocking_timeout`` seconds."""
        options: dict[str, Any] = {**_OPTIONS, "retry": redis.asyncio.retry.Retry(NoBackoff(), 0)}
        if self.is_cluster:
            options["socket_timeout"] += blocking_timeout
            return DriverClient(redis.asyncio.RedisCluster.from_url(self._url, **_cluster_options(options)))
        return Multiplexer(
            DriverConnector(self._async_pool(options), timeout=_RESPONSE_TIMEOUT + blocking_timeout),
            max_connections=max_connections,
        )

    def _async_pool(self, options: dict[str, Any]) -> redis.asyncio.ConnectionPool:
        if self.master is None:
            pool = redis.asyncio.ConnectionPool.from_url(self._url, **options)
        else:
            sentinel = redis.asyncio.sentinel.Sentinel(  # type: ignore[no-untyped-call]
                self._sentinels, **self._credentials, socket_timeout=_CONNECT_TIMEOUT
            )
            pool = sentinel.master_for(  # type: ignore[no-untyped-call,unused-ignore]
                self.master, **options, **self._credentials, db=self._database
            ).connection_pool
        pool.connection_class = _attachable_class(pool.connection_class)  # type: ignore[arg-type]
        return pool

    @contextmanager
    def connected(self) -> Iterator[redis.Redis]:
        """Have a plain client for a moment."""
        client = self.client(max_connections=1)
        try:
            yield client
        finally:
            self.close(client)

    @staticmethod
    def close(client: redis.Redis) -> None:
        """Let go of a client, and of those by which it asks sentinels."""
        client.close()
        for sentinel in _sentinels_of(getattr(client, "connection_pool", None)):
            sentinel.close()

    @property
    def _credentials(self) -> dict[str, Any]:
        user, _, password = self._parts.netloc.rpartition("@")[0].partition(":")
        return {"username": unquote(user) or None, "password": unquote(password) or None}

    @property
    def _database(self) -> int:
        return int(self._parts.path.strip("/") or 0)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Call the server's troubles by our own names, with what to do about them."""
        try:
            yield
        except exceptions.OutOfMemoryError as error:
            raise StoreFull(f"{self} is full ({error})", remedy=_FULL_REMEDY) from error
        except exceptions.ReadOnlyError as error:
            raise StoreReadOnly(f"{self} is a replica ({error})", remedy=_REPLICA_REMEDY) from error
        except (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError) as error:
            remedy = "check the user and the password in the URL"
            raise StoreUnavailable(f"{self} does not let us in ({error})", remedy=remedy) from error
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            message = f"{self} does not answer ({error}): is it running, and is this its address?"
            raise StoreUnavailable(message) from error
        except exceptions.ResponseError as error:
            raised_in_script = _RAISED_IN_SCRIPT.search(str(error))
            code = raised_in_script[1] if raised_in_script else ""
            if code == "OOM":
                raise StoreFull(f"{self} is full ({error})", remedy=_FULL_REMEDY) from error
            if code == "READONLY":
                raise StoreReadOnly(f"{self} is a replica ({error})", remedy=_REPLICA_REMEDY) from error
            if "WRONGTYPE" in str(error):
                message = f"{self} has something else where BullMQ's keys should be ({error})"
                raise StoreCorrupt(message, remedy="choose another prefix") from error
            if "MISCONF" in str(error) or "NOREPLICAS" in str(error):
                raise StoreReadOnly(f"{self} takes no writes now: {error}") from error
            raise StoreUnavailable(f"{self} would not do it: {error}") from error
        except exceptions.RedisError as error:
            raise StoreUnavailable(f"{self}: {error}") from error


def _sentinels_of(pool: Any) -> list[Any]:
    manager = getattr(pool, "sentinel_manager", None)
    return list(getattr(manager, "sentinels", ()))


class DriverConnector:
    """Has the driver open connections, by all its means."""

    def __init__(self, pool: redis.asyncio.ConnectionPool, *, timeout: float) -> None:
        self._pool = pool
        self._timeout = timeout

    async def connect(self) -> Connection:
        """Open one, to a server that should answer ``timeout`` seconds."""
        connection: Any = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            with preserve_cancellation():
                await connection.connect()
        except BaseException:
            connection.close_writer()
            raise
        return Connection(connection, timeout=self._timeout)

    async def close(self) -> None:
        """Let go of the sentinels."""
        for sentinel in _sentinels_of(self._pool):
            await sentinel.aclose()


@cache
def _attachable_class(kind: type[Any]) -> type[Any]:
    """Make connections that can be handed over: see :mod:`.multiplexer`."""

    def attach_protocol(self: Any, protocol: asyncio.Protocol) -> asyncio.Transport:
        transport: asyncio.Transport = self._writer.transport
        transport.set_protocol(protocol)
        return transport

    def close_writer(self: Any) -> None:
        self._close()

    return type(
        f"Attachable{kind.__name__}", (kind,), {"attach_protocol": attach_protocol, "close_writer": close_writer}
    )


_OPTIONS: Final[dict[str, Any]] = {
    "decode_responses": True,
    "encoding_errors": "replace",  # what is no text is shown as such, and fails as damaged
    "socket_timeout": _RESPONSE_TIMEOUT,
    "socket_connect_timeout": _CONNECT_TIMEOUT,
    "protocol": 2,
    "client_name": "onward",
}


def _cluster_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in {"retry", "client_name"}}
