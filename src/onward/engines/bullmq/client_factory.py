"""The server: where it is, how a client for it is made, and what its troubles are called here."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
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
_PROBE_TIMEOUT: Final = 3.0
"""Seconds in which a server should begin to speak TLS."""
_CONNECT_TIMEOUT: Final = 10.0
"""Seconds, in which a busy event loop must get round to it too."""


class Server:
    """One Redis or Valkey, alone, behind sentinels, or a cluster."""

    def __init__(self, url: str) -> None:
        """Read a URL.

        ``redis://host:6379/0``, ``rediss://`` with TLS, ``unix:///path?db=0``; with ``sentinel=name`` the hosts, joined
        by commas, are sentinels and the name is that of the master; with ``cluster=on`` they are nodes of a cluster, of
        which one that answers is enough.
        """
        address, _, query = check_credentials(url).partition("?")
        settings = dict(parse_qsl(query, keep_blank_values=True))
        self.master = settings.pop("sentinel", None)
        self.is_cluster = settings.pop("cluster", "off") == "on"
        self._url = f"{address}?{urlencode(settings, quote_via=quote)}" if settings else address
        parts = urlsplit(address)
        self._parts = parts
        self._sentinels: list[tuple[str, int]] = []
        self._nodes: list[tuple[str, int]] = []
        """The nodes of a cluster, or the one server."""
        try:
            if self.master is not None:
                self._sentinels = _hosts(parts.netloc, default_port=26379)
            elif parts.scheme != "unix":
                self._nodes = _hosts(parts.netloc, default_port=6379)
                if self.is_cluster and len(self._nodes) > 1:
                    login, at, _ = parts.netloc.rpartition("@")
                    self._url = self._url.replace(parts.netloc, f"{login}{at}{_host_text(*self._nodes[0])}", 1)
                    self._parts = parts = urlsplit(self._url.partition("?")[0])
            if self.master is None:
                redis.ConnectionPool.from_url(self._url)
        except ValueError as error:
            rule = f"is no address of a Redis server: {hide_quoted(str(error))}"
            raise InvalidValue("url", self._shown, rule) from None
        database = settings.get("db") or parts.path.strip("/") or "0"
        if self.is_cluster and database != "0":
            rule = f"names the database {database}, and a cluster has only database 0: remove it from the URL"
            raise InvalidValue("url", self._shown, rule)

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

    def client(self, *, max_connections: int = MAX_CONNECTIONS, timeout: float | None = None) -> redis.Redis:
        """Make a plain client, for threads; ``timeout``: seconds to connect, and to answer."""
        options: dict[str, Any] = {**_OPTIONS, "retry": Retry(NoBackoff(), 0)}
        if timeout is not None:
            options.update(socket_timeout=timeout, socket_connect_timeout=timeout)
        if self.is_cluster:
            nodes = [redis.cluster.ClusterNode(host, port) for host, port in self._nodes]  # type: ignore[no-untyped-call]
            return redis.RedisCluster.from_url(  # type: ignore[return-value]
                self._url, startup_nodes=nodes, **_cluster_options(options)
            )
        if self.master is not None:
            sentinel = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
                self._sentinels, **self._credentials, socket_timeout=timeout or _CONNECT_TIMEOUT
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
            nodes = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in self._nodes]
            return DriverClient(
                redis.asyncio.RedisCluster.from_url(self._url, startup_nodes=nodes, **_cluster_options(options))
            )
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
        except exceptions.NoPermissionError as error:
            raise self._permission_missing(error) from error
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            remedy = "check the user and the password in the URL"
            raise StoreUnavailable(f"{self} refuses the login ({error})", remedy=remedy) from error
        except (exceptions.MovedError, exceptions.AskError) as error:
            raise self._is_cluster_node(error) from error
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
            if re.match(r"(MOVED|ASK|CROSSSLOT|CLUSTERDOWN)\b", str(error)):
                raise self._is_cluster_node(error) from error
            if "NOPERM" in str(error) or "ACL failure in script" in str(error):
                raise self._permission_missing(error) from error
            if "WRONGTYPE" in str(error):
                message = f"{self} has something else where BullMQ's keys should be ({error})"
                raise StoreCorrupt(message, remedy="choose another prefix") from error
            if "MISCONF" in str(error) or "NOREPLICAS" in str(error):
                raise StoreReadOnly(f"{self} takes no writes now: {error}") from error
            raise StoreUnavailable(f"{self} would not do it: {error}") from error
        except exceptions.RedisClusterException as error:
            remedy = "give a node of the cluster that runs, or several: redis://one:6379,two:6379?cluster=on"
            if "mode is not enabled" in str(error):
                remedy = "it is no cluster: remove cluster=on from the URL"
            raise StoreUnavailable(f"{self}: {error}", remedy=remedy) from error
        except exceptions.RedisError as error:
            raise StoreUnavailable(f"{self}: {error}") from error

    def _is_cluster_node(self, error: Exception) -> StoreUnavailable:
        if self.is_cluster:
            return StoreUnavailable(f"{self}: {error}", remedy="see CLUSTER INFO: some slots may have no node")
        remedy = "add cluster=on and a prefix in braces to the URL: ?cluster=on&prefix={bull}"
        return StoreUnavailable(f"{self} is a node of a Redis Cluster ({error})", remedy=remedy)

    def _permission_missing(self, error: Exception) -> StoreUnavailable:
        user = self._credentials["username"] or "default"
        if "key" in str(error):
            what = "keys that Onward needs"
            remedy = f"ACL SETUSER {user} ~bull:* ~onward:* (with prefix=: ~PREFIX:* ~onward:PREFIX:*)"
        else:
            what = "a command that Onward needs"
            remedy = f"ACL SETUSER {user} +@all, or add the command that the message names"
        return StoreUnavailable(f"{self} denies the user {user} {what} ({error})", remedy=remedy)

    def check_tls(self) -> None:
        """Refuse ``rediss://`` to a port without TLS: such a server waits for the rest of a command, and says nothing.

        Raises:
            StoreUnavailable: the server answers, and not by TLS.
        """
        if self._parts.scheme != "rediss" or self.master is not None:
            return
        for host, port in self._nodes:
            if _speaks_tls(host, port) or not _speaks_plain(host, port):
                continue
            message = f"{self} does not speak TLS on port {port}"
            raise StoreUnavailable(message, remedy="use redis:// for this port, or give the port for TLS")


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only whether it speaks TLS; the client itself verifies
    try:
        with socket.create_connection((host, port), timeout=_PROBE_TIMEOUT) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except OSError:
        return False
    return True


def _speaks_plain(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_PROBE_TIMEOUT) as plain:
            plain.sendall(b"PING\r\n")
            return plain.recv(1) in {b"+", b"-"}
    except OSError:
        return False


def _sentinels_of(pool: Any) -> list[Any]:
    manager = getattr(pool, "sentinel_manager", None)
    return list(getattr(manager, "sentinels", ()))


def _hosts(netloc: str, *, default_port: int) -> list[tuple[str, int]]:
    found = []
    for host in netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{host}")
        found.append((parts.hostname or "localhost", parts.port or default_port))
    return found


def _host_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
