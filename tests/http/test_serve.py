"""``onward serve``: where it listens, how it stops, and the commands around it (S1, S2, S5)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import uvicorn

from onward.errors import InvalidValue
from onward.http import serving
from onward.http.application import API
from onward.http.binding import check_binding, is_loopback
from onward.http.serving import ServeOptions, TimedHeadProtocol, make_application, uvicorn_options
from tests.http.conftest import make_app

LOOPBACK = ("127.0.0.1", "127.0.0.2", "localhost", "::1", "[::1]", "::ffff:127.0.0.1")
OPEN = ("0.0.0.0", "::", "10.0.0.1", "jobs.example.com", "::ffff:10.0.0.1", "", "localhost.evil.com")

# Host, token, TLS, behind a proxy, allowed: 20 configurations and more, of which none may be open by accident.
CONFIGURATIONS = [
    *((host, token, False, False, True) for host in LOOPBACK for token in (False, True)),
    *((host, False, False, False, False) for host in OPEN),
    *((host, True, False, False, False) for host in OPEN),
    *((host, False, True, False, False) for host in OPEN),
    *((host, False, False, True, False) for host in OPEN),
    *((host, True, True, False, True) for host in OPEN),
    *((host, True, False, True, True) for host in OPEN),
]


@pytest.mark.parametrize(("host", "token", "tls", "proxy", "allowed"), CONFIGURATIONS)
def test_no_server_is_open_by_accident(host, token, tls, proxy, allowed):  # S1
    def check() -> None:
        check_binding(host, has_credential=token, has_tls=tls, behind_proxy=proxy)

    if allowed:
        check()
    else:
        assert not is_loopback(host)
        with pytest.raises(InvalidValue):
            check()


MODULE = """
import asyncio
from onward import App
from onward.service.plugins import Plugin

app = App("sqlite:///jobs.db")
plugin = Plugin("shop")
app.add_plugin(plugin)

@app.task
async def add(a: int = 0, b: int = 0) -> int:
    return a + b

@app.task
async def slow() -> str:
    await asyncio.sleep(0.5)
    return "done"

@plugin.command(changes=True)
def reindex(full: bool = False) -> None:
    print("reindexed", full)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODULE)
    return tmp_path


def onward(folder: Path, *arguments: str, code: int = 0) -> str:
    environment = {**os.environ, "ONWARD_APP": "shop:app", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "onward.cli", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def test_the_commands_leave_records_and_refuse_unsafe_starts(folder: Path):  # S1, S2, S5
    assert "there is no token" in onward(folder, "serve", "--host", "0.0.0.0", "--behind-proxy", code=2)
    secret = onward(folder, "tokens", "create", "ci", "--role", "operator", "--queue", "mail/*").strip()
    assert re.fullmatch(r"onw_[0-9a-f-]{36}_[A-Za-z0-9_-]{43}", secret)
    listed = json.loads(onward(folder, "tokens", "list", "--json"))["tokens"]
    assert [(one["name"], one["role"], one["queues"]) for one in listed] == [("ci", "operator", ["mail/*"])]
    assert secret.split("_", 2)[2] not in json.dumps(listed)
    assert "clear text" in onward(folder, "serve", "--host", "0.0.0.0", code=2)
    assert "go together" in onward(folder, "serve", "--tls-cert", "shop.py", code=2)
    assert "anybody else" in onward(folder, "serve", "--behind-proxy", "--user-header", "X-User", code=2)
    assert onward(folder, "plugin", "shop", "reindex", "--full").strip() == "reindexed True"
    assert "no command" in onward(folder, "plugin", "shop", "reindxe", code=2)
    onward(folder, "tokens", "revoke", listed[0]["id"])
    records = json.loads(onward(folder, "audit", "--json"))["records"]
    assert [one["action"] for one in records] == ["tokens.revoke", "shop.reindex", "tokens.create"]
    assert all(one["actor"].startswith("cli:") for one in records)
    assert secret.split("_", 2)[2] not in json.dumps(records)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_serves_and_stops_in_good_order(folder: Path, workers):  # A1
    secret = onward(folder, "tokens", "create", "root", "--role", "admin").strip()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "onward.cli", "serve", "shop:app", "--port", str(port), "--workers", str(workers),
         "--log-format", "json"],
        cwd=folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {secret}"},
            timeout=60,
            transport=httpx.HTTPTransport(retries=0),
        ) as http:
            for _ in range(600):
                try:
                    if http.get("/readyz").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                import time  # noqa: PLC0415

                time.sleep(0.1)
            made = http.post(f"{API}/jobs", json={"type": "add", "payload": {"a": 1, "b": 1}})
            assert made.status_code == 201, made.text
            assert http.post("/api/jobs/tick").json()["completed"] == 1
            http.post(f"{API}/jobs", json={"type": "slow"})
            assert "server" not in made.headers
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode in {0, -signal.SIGTERM}, log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["logger"] == "onward.http.access"]
    assert {"/readyz", f"{API}/jobs", "/api/jobs/tick"} <= {line["path"] for line in requests}
    assert secret not in log


async def test_a_head_that_takes_too_long_is_given_up(monkeypatch):  # S7
    monkeypatch.setattr(serving, "HEADER_TIMEOUT", 0.2)
    app = make_app()
    options = ServeOptions()
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(make_application(app, options), **uvicorn_options(options))
    assert config.http is TimedHeadProtocol
    server = uvicorn.Server(config)
    serving_task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        address = listener.getsockname()
        for sent in (
            b"",
            b"GET /healthz HTTP/1.1\r\nHost: local",
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET",
        ):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(sent)
            async with asyncio.timeout(30):
                answer = await reader.read()
            assert (b"200 OK" in answer) is sent.endswith(b"GET")
            writer.close()
    finally:
        server.should_exit = True
        await serving_task
        listener.close()
        await app.close()


def test_verbs_of_the_command_line_leave_records(folder: Path):  # S5
    id = onward(folder, "enqueue", "add", "--delay", "1h").strip()
    for arguments in (
        ("jobs", "cancel", id),
        ("jobs", "replay", id),
        ("jobs", "delete", "--type", "add", "--yes"),
        ("queues", "pause", "default"),
        ("queues", "configure", "default", "--weight", "2"),
        ("schedules", "set", "nightly", "add", "--cron", "0 3 * * *"),
        ("schedules", "delete", "nightly", "--yes"),
    ):
        onward(folder, *arguments)
    records = json.loads(onward(folder, "audit", "--json"))["records"]
    assert [(one["action"], one["count"]) for one in reversed(records)] == [
        ("jobs.enqueue", 1),
        ("jobs.cancel", 1),
        ("jobs.replay", 1),
        ("jobs.delete", 1),
        ("queues.pause", 1),
        ("queues.configure", 1),
        ("schedules.set", 1),
        ("schedules.delete", 1),
    ]
    assert records[-2]["target"] == f"default:{id}"
    assert '"types":["add"]' in records[-4]["filter"]
    assert all(one["actor"].startswith("cli:") for one in records)
