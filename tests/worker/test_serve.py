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
from onward.lifecycle import JobStatus
from onward.worker.serve import SUPERVISOR_PIPE
from tests.worker.harness import eventually
from tests.worker.program import make_app


class ProcessHarness:
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

    def records(self, name: str) -> list[list[str]]:
        path = self.directory / name
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    async def enqueue(self, task: str, **arguments: object):
        return await self.app.tasks[task].enqueue(**arguments)

    async def wait_for_records(self, name: str, count: int = 1) -> list[list[str]]:
        await eventually(lambda: len(self.records(name)) >= count, timeout=60)
        return self.records(name)

    async def exit_code(self, process: subprocess.Popen[bytes]) -> int:
        return await asyncio.wait_for(asyncio.to_thread(process.wait), 60)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ProcessHarness]:
    app = make_app(tmp_path)
    async with app:
        harness = ProcessHarness(tmp_path, app)
        try:
            yield harness
        finally:
            for process in harness.processes:
                process.kill()
                process.wait()


def only_child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


async def states(harness: ProcessHarness) -> dict[str, int]:
    return dict(await harness.app.jobs.count())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_stops_in_good_order(harness: ProcessHarness, number: signal.Signals):
    await harness.enqueue("sleep", seconds=0.5)
    process = harness.start()
    await harness.wait_for_records("began")
    process.send_signal(number)
    assert await harness.exit_code(process) == 0
    assert len(harness.records("ended")) == 1
    assert await states(harness) == {JobStatus.COMPLETED: 1}
    assert await harness.app._core.engine.workers() == []


async def test_what_outlasts_the_grace_is_given_back(harness: ProcessHarness):  # Counting
    handle = await harness.enqueue("sleep", seconds=3600)
    process = harness.start("grace=0.1")
    await harness.wait_for_records("began")
    process.terminate()
    assert await harness.exit_code(process) == 0
    job = await harness.app._core.engine.get(handle.ref)
    assert job is not None
    assert (job.status, job.attempts, job.is_suspect) == (JobStatus.PENDING, 0, False)


async def test_a_handler_that_will_not_stop_does_not_keep_the_process(harness: ProcessHarness):
    handle = await harness.enqueue("unstoppable")
    process = harness.start("grace=0.1")
    await harness.wait_for_records("began")
    process.terminate()
    await harness.wait_for_records("refused")
    assert await harness.exit_code(process) == 0
    job = await harness.app._core.engine.get(handle.ref)
    assert job is not None
    assert (job.status, job.attempts, job.is_suspect) == (JobStatus.PENDING, 0, False)


async def test_the_second_signal_stops_at_once(harness: ProcessHarness):
    await harness.enqueue("sleep", seconds=3600)
    process = harness.start("grace=3600")
    await harness.wait_for_records("began")
    process.terminate()
    await eventually(lambda: "worker stopping" in (harness.directory / "log").read_text(), timeout=60)
    process.terminate()
    assert await harness.exit_code(process) == 128 + signal.SIGTERM


async def test_the_second_signal_stops_at_once_even_if_a_handler_blocks_the_loop(harness: ProcessHarness):
    await harness.enqueue("block", seconds=3600)
    process = harness.start("grace=3600")
    await harness.wait_for_records("began")
    process.terminate()
    # The loop is blocked: nothing can tell that the first has been taken, so go on until the process has gone.
    while process.poll() is None:
        process.terminate()
        await asyncio.sleep(0.05)
    assert process.returncode == 128 + signal.SIGTERM


async def test_a_child_that_a_handler_forks_can_be_terminated_and_leaves_the_worker_alone(harness: ProcessHarness):
    await harness.enqueue("fork")
    process = harness.start()
    ((_, code),) = await harness.wait_for_records("forked")
    assert int(code) == -signal.SIGTERM
    assert process.poll() is None
    await harness.enqueue("quick", number=1)
    await harness.wait_for_records("quick")
    process.terminate()
    assert await harness.exit_code(process) == 0


async def test_a_worker_stops_in_good_order_when_its_supervisor_is_gone(harness: ProcessHarness):
    await harness.enqueue("sleep", seconds=0.3)
    reading, writing = os.pipe()
    process = harness.start(env={**os.environ, SUPERVISOR_PIPE: str(reading)}, pass_fds=(reading,))
    os.close(reading)
    await harness.wait_for_records("began")
    os.close(writing)
    assert await harness.exit_code(process) == 0
    assert await states(harness) == {JobStatus.COMPLETED: 1}


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/usr/bin/unshare").exists(), reason="needs a process namespace")
async def test_as_process_1_it_obeys_signals_too(harness: ProcessHarness):
    await harness.enqueue("sleep", seconds=0.3)
    command = ["/usr/bin/unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--", sys.executable]
    process = harness.run([*command, "-m", "tests.worker.program", str(harness.directory)])
    await harness.wait_for_records("began")
    os.kill(only_child_of(process.pid), signal.SIGTERM)
    assert await harness.exit_code(process) == 0
    assert await states(harness) == {JobStatus.COMPLETED: 1}
