"""Webhooks: events that are posted to an address, as jobs of the queue itself.

An event that a webhook wants becomes a job whose handler posts it; the queue stores it, tries it again and buries it as
it does every job. What is sent and signed follows the Standard Webhooks specification (docs/guides/webhooks.md).
Secrets stay in the program: the job names the webhook, and the worker that runs it knows the rest. A worker that makes
a delivery of a recorded event puts a proof into the payload, made with the secret; nothing else is signed and sent, so
a role that may only enqueue cannot have a message of its own signed.

An address may come from people who should not be trusted with the inside of a network. So what its name resolves to is
checked, and that very address is connected to: asked for again, the name could resolve to another. Redirects are not
followed, because nobody has checked where they lead.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from onward import alert, validation
from onward.backoff import Backoff
from onward.clock import micros_of
from onward.context import JobContext
from onward.control_flow import DoNotRetry
from onward.errors import InvalidValue, OnwardError
from onward.events import AnyEvent
from onward.handler import TaskOptions
from onward.job import NewJob
from onward.task import Task

TASK: Final = "onward.webhook"
QUEUE: Final = "onward/webhooks"
"""Where deliveries wait. Its own events, and those of alerts, are posted to no webhook: there would be no end to it."""
TOLERANCE: Final = 300.0
"""Seconds by which a receiver's clock may differ from the sender's."""

_BACKOFF: Final = Backoff.exponential(5, cap=3600, jitter=0.2)
"""With twelve attempts, a receiver may be away for two hours and lose nothing."""
_PREFIX: Final = "whsec_"
_LEAST_SECRET: Final = 16
"""Bytes."""
_HEAD: Final = 64 * 1024
"""Bytes of an answer that are read at most: nobody wants more than its first line."""
_GONE: Final = 410
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
"""Seconds. Of thousands of digits Python makes no number, and raises."""
_EMBEDDING: Final = tuple(map(IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
"""Addresses that stand for one of IPv4, which is their end: NAT64, IPv4-compatible, IPv4-translated."""
_RESERVED: Final = tuple(map(IPv6Network, ("64:ff9b:1::/48", "fec0::/10", "::/96", "::ffff:0:0:0/96", "2001::/23")))
"""Not public, which not every version of Python knows: local NAT64, site-local, and what no router passes on."""

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class DeliveryFailed(OnwardError):
    """A webhook's receiver could not be reached, or did not take what it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Where chosen events are posted to."""

    name: str
    url: str
    queues: tuple[str, ...]
    event_types: frozenset[str]
    """The words of the events: ``completed``, ``failed``, …"""
    keys: tuple[bytes, ...]
    """What is signed with; several while a secret is being changed."""
    allowed: tuple[Network, ...]
    """Where it may lead although that is no public address."""
    timeout: float
    max_attempts: int
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be sent to."""
        validation.check_name("webhook", self.name)
        validation.check_at_least("max_attempts", self.max_attempts, 1)
        for pattern in self.queues:
            validation.check_pattern(pattern)
        # Before it is parsed: urlsplit drops tabs and line ends, and what it drops would be sent all the same.
        if not self.url.isprintable() or any(character.isspace() for character in self.url):
            raise InvalidValue("webhook", "…", "must have no spaces and no control characters in its URL")
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:
            raise InvalidValue("webhook", "…", "must have a port from 1 to 65535 in its URL, or none") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or not self.url.isascii():
            raise InvalidValue("webhook", self.url, "must be a URL such as https://example.com/hook, in ASCII")
        if port == 0:
            raise InvalidValue("webhook", parts.hostname, "must have a port from 1 to 65535 in its URL, or none")
        if parts.username is not None or parts.fragment:
            raise InvalidValue("webhook", parts.hostname, "must have no user and no fragment in its URL")

    def __repr__(self) -> str:
        """Name it, without its secrets."""
        return f"<Webhook {self.name}>"

    def matches(self, event: AnyEvent) -> bool:
        """Say whether an event is to be posted."""
        own = event.ref.queue == QUEUE or event.ref.queue.startswith(f"{alert.QUEUES}/")
        return event.name in self.event_types and not own


def keys_of(secret: str | Sequence[str]) -> tuple[bytes, ...]:
    """Read secrets: text, or ``whsec_`` and base64, as Standard Webhooks writes them."""
    keys = []
    for text in [secret] if isinstance(secret, str) else secret:
        key = text.encode()
        try:
            if text.startswith(_PREFIX):
                key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except ValueError:
            raise InvalidValue("secret", "…", f"is no base64 after {_PREFIX}") from None
        if len(key) < _LEAST_SECRET:
            raise InvalidValue("secret", "…", f"must have at least {_LEAST_SECRET} bytes")
        keys.append(key)
    if not keys:
        raise InvalidValue("secret", secret, "must be given")
    return tuple(keys)


def networks_of(allow: Iterable[str]) -> tuple[Network, ...]:
    """Read networks, such as ``10.1.0.0/16``."""
    texts = list(allow)
    try:
        return tuple(map(ip_network, texts))
    except ValueError as error:
        raise InvalidValue("allow", texts, f"must be networks such as 10.1.0.0/16: {error}") from None


# What is sent ---------------------------------------------------------------------------------------------------------


def written(event: AnyEvent, *, max_bytes: int) -> dict[str, Any]:
    """Write an event down as it is posted; what does not fit is left out, and named."""
    data = msgspec.to_builtins(event)
    kind, at, ref = data.pop("event"), data.pop("at"), data.pop("ref")
    data.pop("cursor", None)
    message = {"type": f"job.{kind}", "timestamp": at, "data": {"queue": ref["queue"], "id": ref["id"], **data}}
    if len(msgspec.json.encode(message)) > max_bytes:
        long = [field for field in ("result", "traceback", "error", "message") if data.get(field)]
        for field in long:
            message["data"][field] = None
        message["data"]["left_out"] = long
    return message


def identity_of(webhook: str, event: AnyEvent) -> str:
    """Say which delivery this is, however often the event is told."""
    return f"{webhook}:{event.ref.id}:{event.name}:{micros_of(event.at)}"


def headers_of(keys: Iterable[bytes], message_id: str, body: bytes, *, now: float) -> dict[str, str]:
    """Sign a message."""
    timestamp = str(int(now))
    signatures = (f"v1,{_signature(key, message_id, timestamp, body)}" for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(signatures),
    }


def verify(body: bytes, headers: Mapping[str, str], secret: str | Sequence[str], *, now: float | None = None) -> bool:
    """Say, at the receiver, whether a message was signed with a secret, and lately."""
    sent = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp = sent.get("webhook-id", ""), sent.get("webhook-timestamp", "")
    if not _TIMESTAMP.fullmatch(timestamp) or abs((time.time() if now is None else now) - int(timestamp)) > TOLERANCE:
        return False
    given = [part.removeprefix("v1,") for part in sent.get("webhook-signature", "").split() if part.startswith("v1,")]
    ours = [_signature(key, message_id, timestamp, body) for key in keys_of(secret)]
    return any(hmac.compare_digest(one.encode(), other.encode()) for one in given for other in ours)


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return base64.b64encode(signed.digest()).decode()


# Where it is sent to --------------------------------------------------------------------------------------------------


def is_public(address: Address) -> bool:
    """Say whether an address is one that everybody can reach, and so is each that it stands for."""
    return all(
        each.is_global and not each.is_multicast and not any(each in network for network in _RESERVED)
        for each in _meant(address)
    )


def _meant(address: Address) -> Iterator[Address]:
    yield address
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        if address.sixtofour is not None:
            yield address.sixtofour
        if any(address in network for network in _EMBEDDING):
            yield IPv4Address(int(address) & 0xFFFFFFFF)


async def resolved(host: str, port: int, allowed: Sequence[Network]) -> str:
    """Find the address of a host, and refuse it unless all that it has are public or allowed."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DeliveryFailed(f"{host} has no address: {error}") from error
    addresses = [str(entry[4][0]) for entry in found]
    for text in addresses:
        address = ip_address(text)
        if not is_public(address) and not any(address in network for network in allowed):
            raise DoNotRetry(f"{host} leads to {address}, which is no public address; allow= may let it")
    return addresses[0]


async def post(webhook: Webhook, message_id: str, body: bytes) -> None:
    """Send a message once.

    Raises:
        DeliveryFailed: it was not taken.
        DoNotRetry: it never will be.
    """
    parts = urlsplit(webhook.url)
    host = str(parts.hostname)
    try:
        async with asyncio.timeout(webhook.timeout):
            status = await _exchange(webhook, host, message_id, body)
    except TimeoutError:
        raise DeliveryFailed(f"{host} has not answered in {webhook.timeout:g} s") from None
    except OSError as error:
        raise DeliveryFailed(f"{host} cannot be reached: {error}") from error
    if status == _GONE:
        raise DoNotRetry(f"{host} says that it is gone for good ({_GONE})")
    if not 200 <= status < 300:
        hint = "; redirects are not followed" if 300 <= status < 400 else ""
        raise DeliveryFailed(f"{host} answered {status}{hint}")


async def _exchange(webhook: Webhook, host: str, message_id: str, body: bytes) -> int:
    parts = urlsplit(webhook.url)
    is_secure = parts.scheme == "https"
    port = parts.port or (443 if is_secure else 80)
    address = await resolved(host, port, webhook.allowed)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {
        "host": parts.netloc,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "user-agent": "onward",
        "connection": "close",
        **headers_of(webhook.keys, message_id, body, now=time.time()),
    }
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    context = (webhook.tls or _system_tls()) if is_secure else None
    reader, writer = await asyncio.open_connection(
        address, port, ssl=context, server_hostname=host if is_secure else None, limit=_HEAD
    )
    try:
        writer.write("\r\n".join(lines).encode() + body)
        with suppress(ConnectionError):  # who has heard enough may answer and hang up
            await writer.drain()
        return await _status(reader)
    finally:
        writer.transport.abort()


@cache
def _system_tls() -> ssl.SSLContext:
    """Read the system's certificates once: that takes milliseconds, for which the event loop would stand still."""
    return ssl.create_default_context()


async def _status(reader: asyncio.StreamReader) -> int:
    """Read the number of an answer, past those that only say that another will come."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head = await reader.readline()
        except asyncio.IncompleteReadError as error:
            head = error.partial
        version, _, rest = head.partition(b" ")
        number = rest[:3]
        if not version.startswith(b"HTTP/1.") or not number.isdigit():
            raise DeliveryFailed("the answer is not HTTP")
        if not 100 <= int(number) < 200:
            return int(number)


class Deliveries:
    """The webhooks of an App, and the task that delivers to them."""

    def __init__(
        self, add: Callable[[Callable[..., Any], str, TaskOptions], Task[..., Any]], *, max_bytes: int
    ) -> None:
        """``max_bytes``: the size limit of a message."""
        self._by_name: dict[str, Webhook] = {}
        self._max_bytes = max_bytes
        self._task = add(self.deliver, TASK, TaskOptions(queue=QUEUE, backoff=_BACKOFF, store_result=False))

    @property
    def webhooks(self) -> Collection[Webhook]:
        """All that are declared."""
        return self._by_name.values()

    def declare(self, webhook: Webhook) -> Webhook:
        """Have one more."""
        if webhook.name in self._by_name:
            raise InvalidValue("webhook", webhook.name, "is declared twice: give one of them another name")
        self._by_name[webhook.name] = webhook
        return webhook

    def job_of(self, webhook: str, event: AnyEvent) -> NewJob:
        """Make the job that delivers an event: the same, however often the event is told."""
        attempts = self._by_name[webhook].max_attempts
        task = self._task.using(idempotency_key=identity_of(webhook, event), max_attempts=attempts)
        message = written(event, max_bytes=self._max_bytes)
        return task.job(webhook=webhook, event=message, proof=_proof(self._by_name[webhook].keys[0], webhook, message))

    def alert_job_of(self, rule: alert.AlertRule, message: dict[str, Any], key: str) -> NewJob:
        """Make the job that delivers that a rule has fired, or has been resolved."""
        webhook = self._by_name[rule.webhook]
        task = self._task.using(queue=rule.queue, idempotency_key=key, max_attempts=webhook.max_attempts)
        return task.job(webhook=webhook.name, event=message, proof=_proof(webhook.keys[0], webhook.name, message))

    async def deliver(self, context: JobContext, webhook: str, event: dict[str, Any], proof: str = "") -> None:
        """Post one event."""
        known = self._by_name.get(webhook)
        if known is None:  # a later version may know it, which is just being started elsewhere
            raise DeliveryFailed(f"this worker's program declares no webhook {webhook!r}")
        if not any(hmac.compare_digest(proof.encode(), _proof(key, webhook, event).encode()) for key in known.keys):
            raise DoNotRetry(
                "was not made from a recorded event with a secret of this webhook: someone enqueued it by hand, or the "
                "secret was replaced (give both for a while, secret=[new, old])"
            )
        await post(known, f"msg_{context.id}", msgspec.json.encode(event))


def _proof(key: bytes, webhook: str, message: dict[str, Any]) -> str:
    """Prove that a delivery was made by a program that has the secret. The key is derived: a proof signs no message."""
    derived = hmac.digest(key, b"onward.delivery", hashlib.sha256)
    text = msgspec.json.encode([webhook, message], order="deterministic")
    return hmac.new(derived, text, hashlib.sha256).hexdigest()
