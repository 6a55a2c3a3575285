"""The one-time code for the first login (S2)."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import httpx
import msgspec
import pytest

from onward import App
from onward.http import asgi
from onward.http.application import API
from onward.service.identity import of_user
from onward.service.login_code import MAX_ATTEMPTS, LoginCode
from onward.service.services import Services

ROOT = of_user("root", role="admin")
SESSION = f"{API}/session"


def client_of(app: App, code: LoginCode | None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(asgi(app, login_code=code))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.fixture
async def made(app: App) -> tuple[LoginCode, str]:
    return await Services(app).access.create_login_code(ROOT)


async def test_a_code_is_exchanged_for_the_session_of_an_admin_once(app: App, made, caplog):  # S2
    code, text = made
    with caplog.at_level(logging.DEBUG):
        async with client_of(app, code) as http:
            assert (await http.post(SESSION, json={"code": "AAAA-AAAA-AAAA"})).status_code == 401
            answers = await asyncio.gather(*(http.post(SESSION, json={"code": text}) for _ in range(5)))
            assert sorted(answer.status_code for answer in answers) == [201, 401, 401, 401, 401]
            assert (await http.get(SESSION)).json()["role"] == "admin"
            actions = (await http.get(f"{API}/audit")).json()["items"]
            assert [one["action"] for one in actions] == ["session.create", "tokens.create"]
            assert actions[0]["actor"] == "token:one-time-code"
        async with client_of(app, code) as restarted:  # its memory is empty, the store's is not
            assert (await restarted.post(SESSION, json={"code": text})).status_code == 401
    log = "\n".join(str(vars(record)) for record in caplog.records)
    assert "onward.http.access" in log
    for secret in (text, text.replace("-", ""), "AAAA", code.digest):
        assert secret not in log


async def test_the_session_ends_when_the_token_of_the_code_is_revoked(app: App, made):  # S2
    code, text = made
    application = asgi(app, login_code=code)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://localhost") as http:
        assert (await http.post(SESSION, json={"code": text.lower().replace("-", " ")})).status_code == 201
        await application.state.onward.services.access.revoke_token(ROOT, code.token_id)
        assert (await http.get(SESSION)).status_code == 401


async def test_a_code_is_refused_after_its_time_and_after_too_many_attempts(app: App, made):  # S2
    code, text = made
    late = msgspec.structs.replace(code, expires_at=code.expires_at - timedelta(hours=1))
    for known in (late, None):
        async with client_of(app, known) as http:
            assert (await http.post(SESSION, json={"code": text})).status_code == 401
    async with client_of(app, code) as http:
        for _ in range(MAX_ATTEMPTS):
            assert (await http.post(SESSION, json={"code": "é"})).status_code == 401
            assert (await http.post(SESSION, json={"code": "AAAA-AAAA-AAAA"})).status_code == 401
        assert (await http.post(SESSION, json={"code": text})).status_code == 401


async def test_a_login_takes_a_token_or_a_code_and_never_from_a_url(app: App, made):  # S2
    code, text = made
    async with client_of(app, code) as http:
        for body in ({}, {"token": "onw_a_b", "code": text}, {"code": 1}):
            refused = await http.post(SESSION, json=body)
            assert refused.status_code == 400
            assert text not in refused.text
        assert (await http.post(f"{SESSION}?code={text}", json={})).status_code == 400
        assert (await http.post(SESSION, json={"code": text})).status_code == 201


async def test_the_token_of_a_code_is_no_credential_that_opens_a_server(app: App, made):  # S1
    assert not await Services(app).access.has_tokens()


def test_a_server_without_tokens_prints_a_code_and_revokes_it_at_its_end(tmp_path: Path):  # S2
    (tmp_path / "shop.py").write_text('from onward import App\napp = App("sqlite:///jobs.db")\n')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "onward.cli"]
    process = subprocess.Popen(
        [*command, "serve", "shop:app", "--port", str(port)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        text = process.stdout.readline().rpartition(": ")[2].strip()
        transport = httpx.HTTPTransport(retries=8)  # until it listens
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, transport=transport) as http:
            assert [http.post(SESSION, json={"code": text}).status_code for _ in range(2)] == [201, 401]
            assert http.get(SESSION).json()["role"] == "admin"
    finally:
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert SESSION in log
    assert text not in log
    listed = subprocess.run(
        [*command, "tokens", "list", "--json", "--app", "shop:app"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert [token["revoked_at"] is not None for token in json.loads(listed.stdout)["tokens"]] == [True]
