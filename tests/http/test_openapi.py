"""The OpenAPI document matches the answers (A4)."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import SkipTest
from uuid import uuid4

import httpx
import psycopg
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from onward.http import asgi
from onward.http.application import API, Server
from onward.service.identity import Role
from onward.service.values import TokenRequest
from tests.http.conftest import ROOT, make_app
from tests.servers.postgres import postgres_url


async def test_the_document_names_every_route(client, server: Server):  # A4
    document = (await (await client("viewer")).get(f"{API}/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    found = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert found == {(one.method, API + one.path) for one in server.endpoints}
    ids = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(ids) == len(set(ids))
    assert "http" not in str(document.get("externalDocs", ""))


class Served:
    """A server's application, called from Schemathesis's threads by an event loop of its own."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.app = make_app(url)
        self.application = asgi(self.app, max_failures=10**9, run_operations=False)
        self.server: Server = self.application.state.onward

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def token(self, role: str) -> str:
        request = TokenRequest(name=role, role=role)  # type: ignore[arg-type]
        secret: str = self.run(self.server.services.access.create_token(ROOT, request)).secret
        return secret

    def close(self) -> None:
        self.run(self.app.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(params=["sqlite", "postgres"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    schema = f"fuzz_{uuid4().hex[:12]}"
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    served = Served(f"{postgres_url()}&schema={schema}" if request.param == "postgres" else url)
    yield served
    served.close()
    if request.param == "postgres":
        with psycopg.connect(postgres_url(), autocommit=True) as connection:
            connection.execute(f"drop schema if exists {schema} cascade")


EXAMPLES = int(os.environ.get("ONWARD_FUZZ_EXAMPLES", "150"))
"""Requests of each role on each store, some 900 in all; ``make fuzz`` asks for 5 000 of each."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("role", Role)
def test_the_answers_match_the_document(served: Served, role):  # A4
    """Made-up requests: no answer but those that the document has, and none but 501 and 503 from 500 on."""
    headers = {"Authorization": f"Bearer {served.token(role)}"}
    transport = httpx.ASGITransport(served.application, raise_app_exceptions=False)

    def call(method: str, url: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, url, **options)

        answer: httpx.Response = served.run(send())
        return answer

    document = call("GET", f"{API}/openapi.json", headers=headers).json()
    # A stream has no end, and a tick runs what is there.
    for path in ("/events", "/tick"):
        del document["paths"][API + path]
    schema = schemathesis.openapi.from_dict(document)
    failures: list[str] = []
    checked = 0
    operations = list(schema.get_all_operations())
    share = math.ceil(EXAMPLES / (2 * len(operations)))
    for found in operations:
        operation: Any = found.ok()  # type: ignore[union-attr]
        for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
            try:
                strategy = operation.as_strategy(mode)
            except Unsatisfiable:
                continue

            @settings(
                max_examples=share, deadline=None, database=None, derandomize=True,
                suppress_health_check=list(HealthCheck), phases=[Phase.generate],
            )  # fmt: skip
            @given(case=strategy)
            def one(case: Any) -> None:
                nonlocal checked
                options = case.as_transport_kwargs(base_url="http://localhost", headers=headers)
                options.pop("cookies", None)
                if isinstance(options.get("data"), str | bytes):
                    options["content"] = options.pop("data")
                try:
                    answer = call(options.pop("method"), options.pop("url"), **options)
                except (httpx.InvalidURL, UnicodeEncodeError, TypeError):
                    return  # the client would not send it
                checked += 1
                try:
                    case.validate_response(
                        answer,
                        checks=[content_type_conformance, response_schema_conformance, status_code_conformance],
                    )
                except FailureGroup as group:
                    why = "; ".join(type(each).__name__ for each in group.exceptions)
                    failures.append(f"{case.method} {answer.request.url} {case.body}: {why}: {answer.text[:300]}")

            try:
                one()
            except (Unsatisfiable, SkipTest):
                continue  # nothing can be wrong about it
    assert failures == []
    # A route without parameters has few requests that differ, and some cannot be sent.
    assert checked > 0.5 * min(EXAMPLES, 1000)
