"""The HTTP API beside bare Starlette routes in the same server process, by requests of wrk.

A bare route does by hand, with Starlette and the store's driver, what a web application without a queue does: one
durable insert, one read by key, or nothing. Sides take turns, and the median of the rounds counts. What event streams
and an idle server cost the store is counted in statements.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from onward.app import App
from onward.bench.environment import Environment
from onward.bench.handlers import QUEUE, Handler
from onward.bench.http_server import BARE, HttpServer
from onward.bench.load import Load, Request, load_generator, send_load
from onward.bench.report import Report
from onward.bench.statistics import Measurement, ReportProgress, Variant, run_interleaved
from onward.engine.values import JobFilter
from onward.errors import OnwardError

_JOBS: Final = "/api/v1/jobs"
_EVENTS: Final = "/api/v1/events"
_BODY: Final = msgspec.json.encode({"type": Handler.ASYNC, "payload": {"n": 1}}).decode()
_STREAMS_PER_TOKEN: Final = 10
_STREAMED_JOBS: Final = 50
"""Jobs whose events the streams receive while statements are counted."""
_STREAM_TIMEOUT: Final = 60.0
_SETTLE_SECONDS: Final = 2.0
"""Seconds in which a server that has just started opens its store and prunes."""


class _Id(msgspec.Struct, frozen=True):
    id: str


@dataclass(frozen=True, slots=True)
class _StreamCost:
    statements_per_job: float
    memory: int
    received: bool
    """Whether every stream has received the event of every job."""


def http_api(
    environment: Environment,
    *,
    rounds: int,
    seconds: int,
    clients: int,
    streams: int,
    report_progress: ReportProgress,
) -> Report:
    """Measure enqueues and reads by HTTP, and count what event streams and an idle server ask of the store."""
    load_generator()  # said before anything is started
    url = environment.fresh()
    loads: list[tuple[Request, Load]] = []

    def variant(request: Request, connections: int) -> Variant:
        def measure() -> Measurement:
            load = send_load(request, clients=connections, seconds=seconds)
            loads.append((request, load))
            return load.measurement

        return measure

    with HttpServer(url, environment.baseline.bare_store()) as server:
        token = server.tokens[0]
        post = partial(Request, method="POST", body=_BODY, token=token)
        enqueue, insert = post(url=server.address(_JOBS)), post(url=server.address(f"{BARE}/jobs"))
        empty = Request(url=server.address(f"{BARE}/empty"))
        job, row = _post(server, _JOBS, token), _post(server, f"{BARE}/jobs", token)
        variants = {
            "bare insert": variant(insert, 1),
            "enqueue": variant(enqueue, 1),
            f"empty route by {clients} clients": variant(empty, clients),
            f"enqueue by {clients} clients": variant(enqueue, clients),
            "bare read": variant(Request(url=server.address(f"{BARE}/jobs/{row}")), 1),
            "read": variant(Request(url=server.address(f"{_JOBS}/{job}"), token=token), 1),
        }
        rates = run_interleaved(rounds, variants, report_progress)
    inserted, enqueued, emptied, enqueued_by_many, bare_read, read = map(rates.rate, variants)
    answered = 1 + sum(load.requests for request, load in loads if request == enqueue)
    stored = asyncio.run(_count(url))
    # A request under way when wrk ends is stored, and its answer counted by nobody.
    verified = answered <= stored <= answered + rounds * (1 + clients) and not any(load.failed for _, load in loads)
    environment.remove(url)
    one, many, idle = _stream_costs(environment, streams, seconds, report_progress)
    return Report(
        engine=environment.engine,
        scenario="http",
        jobs=stored,
        onward=enqueued,
        raw=inserted,
        unit="requests/s",
        verified=verified and one.received and many.received,
        against="a bare Starlette route that does one durable insert, in the same server process",
        rounds=rounds,
        more={
            "clients": clients,
            "concurrent": enqueued_by_many,
            "empty_route": emptied,
            "of_empty_route": enqueued_by_many / emptied,
            "read": read,
            "bare_read": bare_read,
            "of_bare_read": read / bare_read,
            "streams": streams,
            "streams_memory_mb": (many.memory - one.memory) / 1e6,
            "streams_queries_per_job": many.statements_per_job,
            "one_stream_queries_per_job": one.statements_per_job,
            "of_one_stream": many.statements_per_job / one.statements_per_job,
            "idle_queries_per_s": idle,
        },
    )


def _post(server: HttpServer, path: str, token: str) -> str:
    """Add a job or row, and return its id."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=_STREAM_TIMEOUT)) as client:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        client.request("POST", path, body=_BODY, headers=headers)
        answer = client.getresponse()
        text = answer.read()
        if answer.status != 201:
            raise OnwardError(f"the server answers {answer.status}: {text.decode(errors='replace')[:200]}")
        return msgspec.json.decode(text, type=_Id).id


async def _count(url: str) -> int:
    async with App(url) as app:
        return sum((await app.jobs.count(JobFilter(queues=(QUEUE,)))).values())


# Event streams


def _stream_costs(
    environment: Environment, streams: int, seconds: int, report_progress: ReportProgress
) -> tuple[_StreamCost, _StreamCost, float]:
    """Measure the cost of one stream, of many, and of an idle server in statements a second."""
    url, tokens = environment.fresh(), math.ceil(streams / _STREAMS_PER_TOKEN)
    with HttpServer(url, environment.baseline.bare_store(), tokens=tokens, count=True) as server:
        time.sleep(_SETTLE_SECONDS)
        before, began = server.state().statements, time.monotonic()
        time.sleep(seconds)
        idle = (server.state().statements - before) / (time.monotonic() - began)
        report_progress(f"idle server: {idle:.2f} statements/s")
        costs = []
        for number in (1, streams):
            cost = asyncio.run(_measure_streams(server, number, seconds))
            costs.append(cost)
            found = f"{cost.statements_per_job:.1f} statements/job, {cost.memory / 1e6:.1f} MB"
            report_progress(f"{number} event streams: {found}")
    environment.remove(url)
    return costs[0], costs[1], idle


async def _measure_streams(server: HttpServer, streams: int, seconds: int) -> _StreamCost:
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        for number in range(streams):
            token = server.tokens[number // _STREAMS_PER_TOKEN]
            opened.append(await _open_stream(server, token))
        receivers = [asyncio.create_task(_receive(reader, _STREAMED_JOBS)) for reader, _ in opened]
        before = await asyncio.to_thread(server.state)
        for _ in range(_STREAMED_JOBS):
            await asyncio.to_thread(_post, server, _JOBS, server.tokens[0])
            await asyncio.sleep(seconds / _STREAMED_JOBS)
        _, late = await asyncio.wait(receivers, timeout=_STREAM_TIMEOUT)
        after = await asyncio.to_thread(server.state)
        for each in late:
            each.cancel()
        statements = (after.statements - before.statements) / _STREAMED_JOBS
        return _StreamCost(statements, after.memory, not late and all(each.result() for each in receivers))
    finally:
        for _, writer in opened:
            writer.close()


async def _open_stream(server: HttpServer, token: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"GET {_EVENTS}?type=waiting HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(_STREAM_TIMEOUT):
        answer = await reader.readuntil(b": onward\n\n")
    if not answer.startswith(b"HTTP/1.1 200"):
        raise OnwardError(f"the server refuses an event stream: {answer.decode(errors='replace')[:200]}")
    return reader, writer


async def _receive(reader: asyncio.StreamReader, events: int) -> bool:
    """Read a stream until so many events have come."""
    received = 0
    while received < events:
        line = await reader.readline()
        if not line:
            return False
        received += line.startswith(b"event: waiting")
    return True
