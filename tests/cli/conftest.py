"""The command line as a person uses it: words in, an exit code and two streams out. Each test has its own folder."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner

from onward import App
from onward.cli.main import onward

T = TypeVar("T")

SHOP = """
from onward import App, DoNotRetry, JobContext

app = App("sqlite:///jobs.db")
other = 7

@app.task(queue="mail")
async def send_mail(to: str, count: int = 1) -> str:
    return f"{count} to {to}"

@app.task(queue="video/{org_id}")
def render(context: JobContext, path: str) -> dict[str, int]:
    context.log("first line")
    context.set_progress(50, "half-way")
    return {"frames": 7}

@app.task
def broken() -> None:
    raise DoNotRetry("this \\x1b[31mcannot work")

@app.task(max_attempts=1)
def doomed() -> None:
    raise ValueError("never")
"""


@dataclass(frozen=True)
class CommandResult:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def ok(self) -> CommandResult:
        """It is done, and nobody saw a traceback."""
        assert self.code == 0, self
        assert "Traceback" not in self.err
        return self

    def failed(self, *words: str, code: int = 1) -> CommandResult:
        """It has said why not, on the standard error, without a traceback, and nothing on the standard output."""
        assert self.code == code, self
        assert "Traceback" not in self.err
        assert "bug in Onward" not in self.err
        for word in words:
            assert word in self.err
        return self

    def unreachable(self, *words: str) -> CommandResult:
        """The store could not be reached."""
        return self.failed(*words, code=3)

    def usage_error(self, *words: str) -> CommandResult:
        """It was asked for wrongly."""
        return self.failed(*words, code=2)


Cli = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an app in it, and nothing of the surroundings."""
    for name in ("ONWARD_APP", "ONWARD_URL", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.setenv(name, "")  # so that it is put back even if a command sets it
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "shop.py").write_text(SHOP)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def cli() -> Cli:
    """Run a command in this process."""

    def run(*words: str, input: str | None = None) -> CommandResult:
        result = CliRunner().invoke(onward, list(words), input=input, prog_name="onward")
        return CommandResult(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Cli:
    """Run a command on the shop's app, whose store is there and empty."""
    monkeypatch.setenv("ONWARD_APP", "shop:app")
    cli("migrate").ok()
    return cli


@pytest.fixture
def on_store(workdir: Path) -> Callable[[Callable[[App], Awaitable[T]]], T]:
    """Do something to the shop's store by another door than the command line."""

    def do(work: Callable[[App], Awaitable[T]]) -> T:
        async def main() -> T:
            async with App(f"sqlite:///{workdir / 'jobs.db'}") as app:
                return await work(app)

        return asyncio.run(main())

    return do


@pytest.fixture
def spawn(workdir: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command as a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "onward.cli", *words],
            cwd=workdir,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()  # not killed at once: its children would keep its output open, and this waiting
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
