"""A TypeScript client generated from the OpenAPI document compiles, and runs a job (A4)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onward.http.application import API, asgi
from tests.http.conftest import make_app
from tests.http.test_events_api import Running, serve
from tests.servers.node import NodePackages, node_packages, node_program

CLIENT = Path(__file__).with_name("client.ts")
PACKAGES = ("openapi-typescript@7", "openapi-fetch@0", "typescript@5")
CONFIG = {
    "compilerOptions": {
        "strict": True,
        "noUncheckedIndexedAccess": True,
        "exactOptionalPropertyTypes": True,
        "target": "es2022",
        "lib": ["es2022", "dom", "dom.iterable"],
        "module": "commonjs",
        "moduleResolution": "node10",
        "types": [],
        "outDir": "out",
    },
    "files": ["client.ts"],
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    app = make_app(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with serve(app, asgi(app)) as running:
        yield running


async def run(folder: Path, *command: str) -> str:
    """Run a program of Node, and return what it prints."""
    environment = {**os.environ, "NODE_PATH": str(folder / "node_modules")}

    def call() -> subprocess.CompletedProcess[str]:
        words = [str(node_program()), *command]
        return subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )

    done = await asyncio.to_thread(call)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_folder(folder: Path, packages: NodePackages, document: str) -> None:
    (folder / "node_modules").symlink_to(packages.folder / "node_modules")
    (folder / "openapi.json").write_text(document)
    (folder / "tsconfig.json").write_text(json.dumps(CONFIG))
    shutil.copy(CLIENT, folder)


@pytest.mark.timeout(600)
async def test_a_generated_client_compiles_and_runs_a_job(server: Running, tmp_path: Path):  # A4
    packages = await asyncio.to_thread(node_packages, *PACKAGES)
    async with await server.client() as http:
        document = (await http.get(f"{API}/openapi.json")).text
        token = http.headers["Authorization"].removeprefix("Bearer ")
    folder = tmp_path / "client"
    folder.mkdir()
    make_folder(folder, packages, document)
    await run(folder, "node_modules/openapi-typescript/bin/cli.js", "openapi.json", "--output", "schema.d.ts")
    await run(folder, "node_modules/typescript/bin/tsc", "--project", "tsconfig.json")
    printed = json.loads(await run(folder, "out/client.js", server.url, token))
    job = printed.pop("job")
    assert printed == {
        "status": "inserted",
        "isFinished": True,
        "result": 42,
        "listed": True,
        "problem": "urn:onward:problem:not-found",
    }
    stored = await server.app.jobs.get(job["id"])
    assert (job["status"], job["attempts"], stored.result) == ("completed", 1, 42)
    # The types are not `any`: a field that does not exist is refused.
    (folder / "client.ts").write_text(CLIENT.read_text().replace('type: "add", payload', 'tpye: "add", payload'))
    with pytest.raises(AssertionError, match="tpye"):
        await run(folder, "node_modules/typescript/bin/tsc", "--project", "tsconfig.json")
