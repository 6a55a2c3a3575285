"""Webhooks: events posted by jobs of the queue itself, signed, tried again, and never to where they should not go."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from onward import App, InvalidValue, JobFilter, JobRef, JobStatus, Unsupported
from onward.control_flow import DoNotRetry
from onward.engine.values import JobFilter as Filter
from onward.events import Active, Completed, Failed, Waiting
from onward.job import NewJob
from onward.webhook import QUEUE, TASK, DeliveryFailed, Webhook, headers_of, is_public, keys_of, post, verify, written
from tests.servers import missing

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()
LOCAL = ["127.0.0.0/8", "::1/128"]
DEADLINE = 20


@dataclass
class Receiver:
    """A real HTTP server that takes down what it is sent, and answers as told."""

    port: int = 0
    answers: list[bytes] = field(default_factory=list)
    """What to answer, one after the other; then always that all is well."""
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?x=1"

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while len(self.got) < count:
                self.heard.clear()
                await self.heard.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode().strip()
        headers: dict[str, str] = {}
        while text := (await reader.readline()).decode().strip():
            name, _, value = text.partition(": ")
            headers[name] = value
        body = await reader.readexactly(int(headers["content-length"]))
        self.got.append((line, headers, body))
        writer.write(self.answers.pop(0) if self.answers else b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()
        self.heard.set()


@asynccontextmanager
async def receiving(*answers: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """Have a receiver for a while."""
    receiver = Receiver(answers=list(answers))
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await server.wait_closed()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def hook(url: str, **more: Any) -> Webhook:
    """Make a webhook, of which only some things matter."""
    app = App("sqlite://")
    return app.webhook("test", url, **{"secret": SECRET, "allow": LOCAL, **more})


@asynccontextmanager
async def halving(url: str) -> AsyncIterator[tuple[App, Callable[[int], Awaitable[JobRef]]]]:
    """An app that halves numbers, of which odd ones fail."""
    app = App(url)

    @app.task(max_attempts=1)
    async def half(n: int) -> int:
        if n % 2:
            raise ValueError(n)
        return n // 2

    async def add(n: int) -> JobRef:
        return (await half.enqueue(n=n)).ref

    async with app:
        yield app, add


# From an event to a message


async def test_chosen_events_are_posted_signed_and_once(tmp_path: Path, receiver: Receiver):  # B7
    async with halving(f"sqlite:///{tmp_path}/jobs.db") as (app, add):
        app.webhook("crm", receiver.url, secret=SECRET, allow=LOCAL)
        async with app.worker():
            await bookmarked(app)
            done, failed = await add(8), await add(3)
            await receiver.wait_for(2)
        messages = {json.loads(body)["data"]["id"]: json.loads(body) for _, _, body in receiver.got}
        assert messages[done.id]["type"] == "job.completed"
        assert messages[done.id]["data"] | {"result": 4, "queue": "default"} == messages[done.id]["data"]
        assert messages[failed.id]["type"] == "job.failed"
        assert messages[failed.id]["data"]["error"] == "ValueError: 3"
        for line, headers, body in receiver.got:
            assert line == "POST /hook?x=1 HTTP/1.1"
            assert headers["host"] == f"127.0.0.1:{receiver.port}"
            assert headers["content-type"] == "application/json"
            assert verify(body, headers, SECRET)
        async with app.worker():  # another worker goes on from the bookmark, and posts nothing again
            await add(6)
            await receiver.wait_for(3)
        assert len(receiver.got) == 3
        assert await app.jobs.count(JobFilter(queues=(QUEUE,))) == {"completed": 3}


async def bookmarked(app: App) -> None:
    """Wait until a worker has begun to read events for a webhook: what comes then is posted for certain."""
    async with asyncio.timeout(DEADLINE):
        while await app._core.engine.acquire_cursor("crm", "a test", lease=timedelta(0)) is not None:
            await asyncio.sleep(0.01)


async def test_what_is_not_taken_is_tried_again_by_the_queue(tmp_path: Path):  # B7
    async with (
        receiving(b"HTTP/1.1 500 Oh\r\n\r\n") as receiver,
        halving(f"sqlite:///{tmp_path}/jobs.db") as (app, add),
    ):
        app.webhook("crm", receiver.url, secret=SECRET, allow=LOCAL, events=[Completed], max_attempts=7)
        async with app.worker():
            await bookmarked(app)
            await add(8)
            await receiver.wait_for(1)
            job = await found(app, JobStatus.SCHEDULED)
        assert (job.attempts, job.max_attempts, job.last_error) == (1, 7, "DeliveryFailed: 127.0.0.1 answered 500")


async def found(app: App, state: JobStatus) -> Any:
    """Wait for the one delivery to be in a state."""
    async with asyncio.timeout(DEADLINE):
        while True:
            page = await app.jobs.list(Filter(queues=(QUEUE,), status=frozenset({state})))
            if page.items:
                return page.items[0]
            await asyncio.sleep(0.01)


async def test_a_private_address_is_refused_at_once_and_for_good(tmp_path: Path, receiver: Receiver):  # B7
    async with halving(f"sqlite:///{tmp_path}/jobs.db") as (app, add):
        app.webhook("crm", receiver.url, secret=SECRET, events=[Completed])
        async with app.worker():
            await bookmarked(app)
            await add(8)
            job = await found(app, JobStatus.FAILED)
    assert "127.0.0.1, which is no public address" in str(job.last_error)
    assert receiver.got == []


async def test_a_delivery_that_no_worker_made_is_neither_signed_nor_sent(tmp_path: Path, receiver: Receiver):  # B7
    async with halving(f"sqlite:///{tmp_path}/jobs.db") as (app, add):
        app.webhook("crm", receiver.url, secret=SECRET, allow=LOCAL, events=[Completed])
        app.webhook("other", receiver.url, secret=SECRET, allow=LOCAL, queues=["none"])
        async with app.worker():
            await bookmarked(app)
            await add(8)
            await receiver.wait_for(1)
        ((delivered,),) = [(await app.jobs.list(Filter(queues=(QUEUE,)))).items]
        event, proof = delivered.payload["event"], delivered.payload["proof"]
        forged: list[dict[str, Any]] = [
            {"webhook": "crm", "event": {"type": "job.completed", "data": {"paid": True}}},
            {"webhook": "crm", "event": event},
            {"webhook": "crm", "event": event | {"timestamp": "2031-01-01T00:00:00Z"}, "proof": proof},
            {"webhook": "other", "event": event, "proof": proof},
        ]
        jobs = [NewJob(type=TASK, queue=QUEUE, payload=json.dumps(payload)) for payload in forged]
        await app._core.engine.enqueue(jobs)
        async with app.worker():
            async with asyncio.timeout(DEADLINE):
                while (await app.jobs.count(Filter(queues=(QUEUE,)))).get("failed", 0) < len(forged):
                    await asyncio.sleep(0.01)
        failed = await app.jobs.list(Filter(queues=(QUEUE,), status=frozenset({JobStatus.FAILED})))
        assert all("not made from a recorded event" in str(job.last_error) for job in failed.items)
    assert len(receiver.got) == 1


async def test_a_delivery_waits_through_a_change_of_the_secret(tmp_path: Path, receiver: Receiver):  # B7
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with halving(url) as (app, add):
        app.webhook("crm", "http://127.0.0.1:1/gone", secret=SECRET, allow=LOCAL, events=[Completed])
        async with app.worker():
            await bookmarked(app)
            await add(8)
            job = await found(app, JobStatus.SCHEDULED)
        await app.jobs.edit(job.ref, run_at=datetime.now(UTC))
    async with halving(url) as (later, _):
        later.webhook("crm", receiver.url, secret=["another secret of ours", SECRET], allow=LOCAL, events=[Completed])
        async with later.worker():
            await receiver.wait_for(1)


async def test_none_is_told_of_deliveries_nor_of_what_it_did_not_ask_for(tmp_path: Path, receiver: Receiver):  # B7
    async with halving(f"sqlite:///{tmp_path}/jobs.db") as (app, add):
        app.webhook("crm", receiver.url, secret=SECRET, allow=LOCAL, events=[Waiting, Active])
        app.webhook("other", receiver.url, secret=SECRET, allow=LOCAL, queues=["mail/*"])
        async with app.worker():
            await bookmarked(app)
            ref = await add(8)
            await receiver.wait_for(2)
            again = await add(6)
            await receiver.wait_for(4)
        told = [(json.loads(body)["data"]["id"], json.loads(body)["type"]) for _, _, body in receiver.got]
        assert sorted(told) == sorted((job.id, word) for job in (ref, again) for word in ("job.waiting", "job.active"))


async def test_a_worker_that_comes_back_delivers_what_ended_meanwhile(tmp_path: Path, receiver: Receiver):  # B7
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with halving(url) as (app, add):
        app.webhook("crm", receiver.url, secret=SECRET, allow=LOCAL, events=[Completed])
        async with app.worker():
            await bookmarked(app)
        async with halving(url) as (plain, _):  # a program that knows of no webhook
            ref = await add(8)
            await plain.tick()
        async with app.worker():
            await receiver.wait_for(1)
    assert json.loads(receiver.got[0][2])["data"]["id"] == ref.id


async def test_an_event_that_is_told_twice_makes_one_delivery(tmp_path: Path):  # B7
    async with halving(f"sqlite:///{tmp_path}/jobs.db") as (app, add):
        app.webhook("crm", "https://example.com", secret=SECRET)
        start = await app._core.engine.acquire_cursor("crm", "one", lease=timedelta(seconds=30))
        assert start is not None
        await add(8)
        await app.tick()
        for _ in range(2):
            (relay,) = app._relays("one")
            await relay.step()
            assert await app._core.engine.commit_cursor(
                "crm", "one", start
            )  # as if it had died before it noted how far it was
        assert await app.jobs.count(JobFilter(queues=(QUEUE,))) == {"pending": 1}


# Declaring


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"url": "ftp://example.com"}, "must be a URL"),
        ({"url": "https:///path"}, "must be a URL"),
        ({"url": "https://user:word@example.com"}, "no user"),
        ({"url": "https://example.com/a b"}, "no spaces"),
        ({"url": "https://example.com/a\nb"}, "no control characters"),
        ({"url": "https://example.com/a\r\nx-injected: 1"}, "no control characters"),
        ({"url": "https://example.com/\x7f"}, "no control characters"),
        ({"url": "https://example.com/\x00"}, "no control characters"),
        ({"url": "https://example.com:0/"}, "port from 1 to 65535"),
        ({"url": "https://example.com:65536/"}, "port from 1 to 65535"),
        ({"url": "https://example.com:http/"}, "port from 1 to 65535"),
        ({"url": f"https://example.com:{'9' * 5000}/"}, "port from 1 to 65535"),
        ({"secret": "short"}, "at least 16 bytes"),
        ({"secret": "whsec_!!!"}, "no base64"),
        ({"secret": []}, "must be given"),
        ({"allow": ["10.0.0.1/8"]}, "must be networks"),
        ({"queues": ["Mail*"]}, "queue"),
        ({"max_attempts": 0}, "at least 1"),
        ({"name": ""}, "non-empty"),
    ],
)
def test_what_could_not_be_kept_to_is_refused(wrong: dict[str, Any], rule: str):  # B7
    told: dict[str, Any] = {"name": "crm", "url": "https://example.com/hook", "secret": SECRET, **wrong}
    name, url = told.pop("name"), told.pop("url")
    with pytest.raises(InvalidValue, match=rule) as refusal:
        App("sqlite://").webhook(name, url, **told)
    assert "word" not in str(refusal.value)


def test_a_name_is_declared_once_and_only_where_there_are_events():  # B7, X1
    app = App("sqlite://")
    app.webhook("crm", "https://example.com", secret=SECRET)
    with pytest.raises(InvalidValue, match="twice"):
        app.webhook("crm", "https://example.com", secret=SECRET)
    with pytest.raises(Unsupported, match="webhooks"):
        App("pgmq+postgresql://nowhere/db").webhook("crm", "https://example.com", secret=SECRET)
    assert SECRET not in repr(app.webhook("other", "https://example.com", secret=SECRET))


# Signing


def test_a_signature_is_that_of_standard_webhooks():  # B7
    body, key = b'{"a":1}', b"0123456789abcdef01234567"
    headers = headers_of([key], "msg_1", body, now=1_700_000_000.9)
    expected = base64.b64encode(hmac.new(key, b'msg_1.1700000000.{"a":1}', hashlib.sha256).digest()).decode()
    assert headers == {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": f"v1,{expected}",
    }


def test_only_what_was_signed_lately_with_one_of_the_secrets_is_genuine():  # B7
    body, now, other = b"{}", 1_700_000_000.0, "another secret of some length"
    headers = headers_of(keys_of([SECRET, other]), "msg_1", body, now=now)
    assert verify(body, headers, SECRET, now=now)
    assert verify(body, {name.title(): value for name, value in headers.items()}, [other, "x" * 16], now=now + 299)
    assert not verify(b"{ }", headers, SECRET, now=now)
    assert not verify(body, headers | {"webhook-id": "msg_2"}, SECRET, now=now)
    assert not verify(body, headers, "x" * 16, now=now)
    assert not verify(body, headers, SECRET, now=now + 301)
    assert not verify(body, {}, SECRET, now=now)
    for absurd in ("9" * 5000, "9" * 13, "-1", "1e9", "", "²", "١٢٣", "nan", " 1"):
        assert not verify(body, headers | {"webhook-timestamp": absurd}, SECRET, now=now)


def test_what_is_too_long_is_left_out_and_named():  # B7
    about: dict[str, Any] = {"ref": JobRef("mail", "7"), "at": datetime(2030, 1, 1, tzinfo=UTC), "attempts": 1}
    about |= {"type": "send", "org_id": "acme"}
    message = written(Completed(**about, result="x" * 1000, cursor="secret"), max_bytes=500)
    assert message == {
        "type": "job.completed",
        "timestamp": "2030-01-01T00:00:00Z",
        "data": {
            "queue": "mail",
            "id": "7",
            "type": "send",
            "org_id": "acme",
            "attempts": 1,
            "result": None,
            "left_out": ["result"],
        },
    }
    assert written(Failed(**about, error="no"), max_bytes=500)["data"]["error"] == "no"


# Sending


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:10.0.0.1"),
        *("::ffff:169.254.169.254", "64:ff9b::10.0.0.1", "2002:0a00:0001::1"),
        *("::10.0.0.1", "::127.0.0.1", "::8.8.8.8", "::ffff:0:10.0.0.1", "::ffff:0:169.254.169.254"),
        *("64:ff9b:1::1", "64:ff9b:1:a::10.0.0.1", "fec0::1", "feff::1", "2001::1"),
    ],
)
def test_an_address_inside_is_not_public_in_whatever_clothes(address: str):  # B7
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946"])
def test_an_address_outside_is_public(address: str):  # B7
    assert is_public(ip_address(address))


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):  # B7
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.99"  # a name that has changed its mind
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    await post(hook(f"http://inside.example:{receiver.port}/"), "msg_1", b"{}")
    assert receiver.got[0][1]["host"] == f"inside.example:{receiver.port}"
    assert "inside.example" not in asked[1:]


async def test_a_name_that_also_leads_inside_is_refused(monkeypatch: pytest.MonkeyPatch):  # B7
    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("93.184.216.34", "10.0.0.1")
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(DoNotRetry, match=r"10\.0\.0\.1"):
        await post(hook("http://two.example/", allow=()), "msg_1", b"{}")


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\n\r\n", DeliveryFailed, "redirects are not followed"),
        (b"HTTP/1.1 410 Gone\r\n\r\n", DoNotRetry, "gone for good"),
        (b"HTTP/1.1 429 Too Many\r\n\r\n", DeliveryFailed, "answered 429"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", DeliveryFailed, "not HTTP"),
        (b"", DeliveryFailed, "not HTTP"),
    ],
)
async def test_only_a_two_hundred_is_a_success(answer: bytes, error: type[Exception], says: str):  # B7
    async with receiving(answer) as receiver:
        with pytest.raises(error, match=says):
            await post(hook(receiver.url), "msg_1", b"{}")
        assert len(receiver.got) == 1


async def test_an_answer_may_be_announced_and_may_be_long():  # B7
    lengthy = b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"
    async with receiving(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n", lengthy) as receiver:
        await post(hook(receiver.url), "msg_1", b"{}")
        await post(hook(receiver.url), "msg_2", b"{}")


async def test_who_does_not_answer_in_time_has_not_taken_it():  # B7
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(DeliveryFailed, match="has not answered"):
        await post(hook(f"http://127.0.0.1:{port}/", timeout=0.05), "msg_1", b"{}")
    server.close()
    await server.wait_closed()
    with pytest.raises(DeliveryFailed, match="cannot be reached"):
        await post(hook(f"http://127.0.0.1:{port}/"), "msg_1", b"{}")


async def test_a_receiver_is_known_by_its_name_although_its_address_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):  # B7
    openssl = shutil.which("openssl")
    if openssl is None:
        missing("there is no openssl here, to make a certificate for the test: apt install openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    names = ("-subj", "/CN=hook.example", "-addext", "subjectAltName=DNS:hook.example")
    made = ("req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", str(key), "-out", str(certificate), *names)
    making = await asyncio.create_subprocess_exec(openssl, *made, stderr=subprocess.DEVNULL)
    assert await making.wait() == 0
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    async with receiving(tls=ours) as receiver:
        await post(hook(f"https://hook.example:{receiver.port}/", tls=trusting), "msg_1", b"{}")
        for wrong in (
            hook(f"https://other.example:{receiver.port}/", tls=trusting),  # another's certificate
            hook(f"https://hook.example:{receiver.port}/"),  # nobody vouches for it
        ):
            with pytest.raises(DeliveryFailed, match=r"cannot be reached: .*CERTIFICATE_VERIFY_FAILED"):
                await post(wrong, "msg_2", b"{}")
        assert len(receiver.got) == 1


async def test_a_job_for_a_webhook_that_this_program_does_not_know_waits_for_one_that_does(tmp_path: Path):  # B7
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with App(url) as app:
        app.webhook("crm", "https://example.com", secret=SECRET)
        task = app.tasks["onward.webhook"]
        await task.enqueue(webhook="newer", event={})
        await app.tick()
        job = await found(app, JobStatus.SCHEDULED)
    assert "declares no webhook 'newer'" in str(job.last_error)
