"""``onward dev``: one command for a worker, the server and their restarts (S2)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

SESSION = "/api/v1/session"
SHOP = """
from onward import App

app = App()

@app.task
async def add(a: int, b: int) -> int:
    return a + b
"""


def test_one_command_works_serves_reloads_and_stops(tmp_path: Path):  # S2
    (tmp_path / "shop.py").write_text(SHOP)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONWARD_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "onward.cli", "dev", "shop:app", "--port", "0"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        text = process.stdout.readline().rpartition(": ")[2].strip()
        url = process.stdout.readline().strip()
        assert text not in url
        with httpx.Client(base_url=url, timeout=60, headers={"Origin": url, "Connection": "close"}) as http:
            assert http.get("/healthz").status_code == 200
            assert [http.post(SESSION, json={"code": text}).status_code for _ in range(2)] == [201, 401]
            assert _result(http) == 3
            (tmp_path / "shop.py").write_text(SHOP.replace("a + b", "a + b + 10"))
            deadline, result = time.monotonic() + 60, None
            while result != 13:
                assert time.monotonic() < deadline
                with contextlib.suppress(httpx.TransportError):  # a request that the old server had accepted
                    result = _result(http)
            assert http.post(SESSION, json={"code": text}).status_code == 401  # nor after a restart
            assert http.get(SESSION).json()["role"] == "admin"
    finally:
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=60)  # ends when no child holds the pipe any more
    assert process.returncode == 0, log
    assert text not in log
    assert (tmp_path / "onward-dev.db").exists()


def _result(http: httpx.Client) -> object:
    made = http.post("/api/v1/jobs", json={"type": "add", "payload": {"a": 1, "b": 2}})
    assert made.status_code == 201, made.text
    path = f"/api/v1/jobs/{made.json()['id']}"
    deadline = time.monotonic() + 60
    while (job := http.get(path).json())["status"] != "completed":
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
    return job["result"]


def test_without_the_server_extra_the_command_names_the_package_to_install(tmp_path: Path):
    (tmp_path / "shop.py").write_text(SHOP)
    hidden = "import sys; sys.modules['uvicorn'] = None; from onward.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "dev", "shop:app"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "pip install 'onward[server]'" in done.stderr
    assert not (tmp_path / "onward-dev.db").exists()
