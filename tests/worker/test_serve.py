"""A worker as a process of its own: signals, blocked loops, forks, and the end of its supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onward.app import App
from onward.lifecycle import State
from onward.worker.serve import SUPERVISOR_PIPE
from tests.worker.harness import eventually
from tests.worker.program import make_app


class Site:
    """A directory with a store in it, and the worker processes that a test has started there."""

    def __init__(self, directory: Path, app: App) -> None:
        self.directory = directory
        self.app = app
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, **more: object) -> subprocess.Popen[bytes]:
        return self.run([sys.executable, "-m", "tests.worker.program", str(self.directory), *options], **more)

    def run(self, command: list[str], **more: object) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(command, stderr=log, **more)  # type: ignore[call-overload]
        self.processes.append(process)
        return process

    def notes(self, word: str) -> list[list[str]]:
        path = self.directory / word
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    async def enqueue(self, task: str, **arguments: object):
        return await self.app.tasks[task].enqueue(**arguments)

    async def noted(self, word: str, count: int = 1) -> list[list[str]]:
        await eventually(lambda: len(self.notes(word)) >= count, within=60)
        return self.notes(word)

    async def exit_code(self, process: subprocess.Popen[bytes]) -> int:
        return await asyncio.wait_for(asyncio.to_thread(process.wait), 60)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    app = make_app(tmp_path)
    async with app:
        site = Site(tmp_path, app)
        try:
            yield site
        finally:
            for process in site.processes:
                process.kill()
                process.wait()


def only_child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


async def states(site: Site) -> dict[str, int]:
    return dict(await site.app.jobs.count())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_stops_in_good_order(site: Site, number: signal.Signals):
    await site.enqueue("sleep", seconds=0.5)
    process = site.start()
    await site.noted("began")
    process.send_signal(number)
    assert await site.exit_code(process) == 0
    assert len(site.notes("ended")) == 1
    assert await states(site) == {State.COMPLETED: 1}
    assert await site.app.engine.workers() == []


async def test_what_outlasts_the_grace_is_given_back(site: Site):  # Counting
    handle = await site.enqueue("sleep", seconds=3600)
    process = site.start("grace=0.1")
    await site.noted("began")
    process.terminate()
    assert await site.exit_code(process) == 0
    job = await site.app.engine.get(handle.ref)
    assert job is not None
    assert (job.status, job.attempts, job.is_suspect) == (State.PENDING, 0, False)


async def test_a_handler_that_will_not_stop_does_not_keep_the_process(site: Site):
    handle = await site.enqueue("unstoppable")
    process = site.start("grace=0.1")
    await site.noted("began")
    process.terminate()
    await site.noted("refused")
    assert await site.exit_code(process) == 0
    job = await site.app.engine.get(handle.ref)
    assert job is not None
    assert (job.status, job.attempts, job.is_suspect) == (State.PENDING, 0, False)


async def test_the_second_signal_stops_at_once(site: Site):
    await site.enqueue("sleep", seconds=3600)
    process = site.start("grace=3600")
    await site.noted("began")
    process.terminate()
    await eventually(lambda: "worker stopping" in (site.directory / "log").read_text(), within=60)
    process.terminate()
    assert await site.exit_code(process) == 128 + signal.SIGTERM


async def test_the_second_signal_stops_at_once_even_if_a_handler_blocks_the_loop(site: Site):
    await site.enqueue("block", seconds=3600)
    process = site.start("grace=3600")
    await site.noted("began")
    process.terminate()
    # The loop is blocked: nothing can tell that the first has been taken, so go on until the process has gone.
    while process.poll() is None:
        process.terminate()
        await asyncio.sleep(0.05)
    assert process.returncode == 128 + signal.SIGTERM


async def test_a_child_that_a_handler_forks_can_be_terminated_and_leaves_the_worker_alone(site: Site):
    await site.enqueue("fork")
    process = site.start()
    ((_, code),) = await site.noted("forked")
    assert int(code) == -signal.SIGTERM
    assert process.poll() is None
    await site.enqueue("quick", number=1)
    await site.noted("quick")
    process.terminate()
    assert await site.exit_code(process) == 0


async def test_a_worker_stops_in_good_order_when_its_supervisor_is_gone(site: Site):
    await site.enqueue("sleep", seconds=0.3)
    reading, writing = os.pipe()
    process = site.start(env={**os.environ, SUPERVISOR_PIPE: str(reading)}, pass_fds=(reading,))
    os.close(reading)
    await site.noted("began")
    os.close(writing)
    assert await site.exit_code(process) == 0
    assert await states(site) == {State.COMPLETED: 1}


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/usr/bin/unshare").exists(), reason="needs a process namespace")
async def test_as_process_1_it_obeys_signals_too(site: Site):
    await site.enqueue("sleep", seconds=0.3)
    command = ["/usr/bin/unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--", sys.executable]
    process = site.run([*command, "-m", "tests.worker.program", str(site.directory)])
    await site.noted("began")
    os.kill(only_child_of(process.pid), signal.SIGTERM)
    assert await site.exit_code(process) == 0
    assert await states(site) == {State.COMPLETED: 1}
