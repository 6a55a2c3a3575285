"""Keeping worker processes alive, and not outliving them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onward.lifecycle import JobStatus
from onward.worker.supervisor import Supervisor, _Child
from tests.worker.harness import eventually
from tests.worker.test_processes import alive
from tests.worker.test_serve import ProcessHarness, harness, states

__all__ = ["harness"]

SUPERVISE = """
import sys, logging
from datetime import timedelta
from onward.worker.supervisor import Supervisor
from onward.worker.log_format import configure
configure("json", level=logging.INFO)
command = [sys.executable, "-m", "tests.worker.program", *sys.argv[3:]]
sys.exit(Supervisor(command, processes=int(sys.argv[1]), grace=timedelta(seconds=float(sys.argv[2]))).run())
"""


def supervise(harness: ProcessHarness, *options: str, processes: int = 2, grace: float = 30) -> subprocess.Popen[bytes]:
    return harness.run([sys.executable, "-c", SUPERVISE, str(processes), str(grace), str(harness.directory), *options])


async def test_a_process_that_dies_is_started_again_and_its_jobs_are_not_lost(harness: ProcessHarness):
    supervisor = supervise(harness)
    first = {int(pid) for pid, *_ in await harness.wait_for_records("started", 2)}
    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    started = {int(pid) for pid, *_ in await harness.wait_for_records("started", 3)}
    assert len(started - first) == 1
    await harness.enqueue("quick", number=1)
    await harness.wait_for_records("quick")
    supervisor.terminate()
    assert await harness.exit_code(supervisor) == 0
    assert not any(alive(pid) for pid in started)


async def test_a_signal_is_passed_on_and_all_stop_in_good_order(harness: ProcessHarness):
    for _ in range(2):
        await harness.enqueue("sleep", seconds=0.5)
    supervisor = supervise(harness, "concurrency=1")
    await harness.wait_for_records("began", 2)
    assert len({pid for pid, *_ in harness.records("began")}) == 2
    supervisor.terminate()
    assert await harness.exit_code(supervisor) == 0
    assert await states(harness) == {JobStatus.COMPLETED: 2}


async def test_a_second_signal_is_passed_on_too(harness: ProcessHarness):
    await harness.enqueue("sleep", seconds=3600)
    supervisor = supervise(harness, "grace=3600", processes=1, grace=3600)
    await harness.wait_for_records("began")
    supervisor.terminate()
    await eventually(lambda: "worker stopping" in (harness.directory / "log").read_text(), timeout=60)
    supervisor.terminate()
    assert await harness.exit_code(supervisor) == 1


async def test_children_do_not_outlive_a_supervisor_that_is_killed(harness: ProcessHarness):
    supervisor = supervise(harness)
    pids = [int(pid) for pid, *_ in await harness.wait_for_records("started", 2)]
    supervisor.kill()
    await eventually(lambda: not any(alive(pid) for pid in pids), timeout=60)


async def test_children_that_will_not_stop_are_killed(harness: ProcessHarness):
    await harness.enqueue("block", seconds=3600)
    supervisor = supervise(harness, processes=1, grace=0.5)
    ((pid, _),) = await harness.wait_for_records("began")
    supervisor.terminate()
    assert await harness.exit_code(supervisor) == 1
    assert not alive(int(pid))


async def test_a_process_that_retires_is_replaced_at_once(harness: ProcessHarness):
    for number in range(3):
        await harness.enqueue("quick", number=number)
    supervisor = supervise(harness, "max_jobs=1", "concurrency=1", processes=1)
    await harness.wait_for_records("quick", 3)
    await harness.wait_for_records("started", 2)
    supervisor.terminate()
    assert await harness.exit_code(supervisor) == 0
    assert '"worker process finished"' in (harness.directory / "log").read_text()


async def test_a_process_that_dies_young_is_not_started_again_at_once_each_time(harness: ProcessHarness):
    # No such option: every child dies as soon as it is born.
    supervisor = supervise(harness, "nonsense=1", processes=1)
    await harness.wait_for_records("started", 3)
    supervisor.terminate()
    await asyncio.to_thread(supervisor.wait, 60)
    delays = [line for line in (harness.directory / "log").read_text().splitlines() if "worker process died" in line]
    assert '"restart_in":0.0' in delays[0].replace(" ", "")
    assert '"restart_in":0.0' not in delays[1].replace(" ", "")


@pytest.mark.parametrize("code", [0, 1])
def test_processes_that_end_as_soon_as_they_start_are_started_less_and_less_often(code: int):
    supervisor, child = Supervisor(["unused"], processes=1), _Child(0)
    delays, now = [], 0.0
    for _ in range(12):
        child.process, child.started_at = cast("Any", SimpleNamespace(pid=1)), now
        now += 0.1
        supervisor._on_exit(child, code, now)
        delays.append(child.start_at - now)
        now = child.start_at
    assert delays[0] == 0
    assert 0 < delays[1] < 2
    assert all(delay >= 2.5 for delay in delays[-3:])
    child.process, child.started_at = cast("Any", SimpleNamespace(pid=1)), now
    supervisor._on_exit(child, code, now + 3600)
    assert child.start_at == now + 3600


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/usr/bin/unshare").exists(), reason="needs a process namespace")
async def test_as_process_1_it_reaps_what_others_leave_behind(harness: ProcessHarness):
    orphan = "import os, time\nif os.fork() == 0:\n    time.sleep(0.2)\n    os._exit(0)\n"
    script = (
        "import subprocess, sys, os, threading, signal, time\n"
        "from onward.worker.supervisor import Supervisor\n"
        f"subprocess.run([sys.executable, '-c', {orphan!r}])\n"
        "def look():\n"
        "    time.sleep(2)\n"
        "    zombies = []\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        try: stat = open(f'/proc/{pid}/stat').read()\n"
        "        except OSError: continue\n"
        "        if stat.rsplit(')', 1)[1].split()[0] == 'Z': zombies.append(pid)\n"
        f"    open({str(harness.directory / 'zombies')!r}, 'w').write(repr(zombies))\n"
        "    os.kill(1, signal.SIGTERM)\n"
        "threading.Thread(target=look, daemon=True).start()\n"
        "Supervisor([sys.executable, '-c', 'import time; time.sleep(3600)'], processes=1).run()\n"
    )
    command = ["/usr/bin/unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "--", sys.executable]
    process = harness.run([*command, "-c", script])
    await harness.exit_code(process)
    assert (harness.directory / "zombies").read_text() == "[]"


def supervise_script(harness: ProcessHarness, script: str, processes: int) -> subprocess.Popen[bytes]:
    code = (
        "import sys; from onward.worker.supervisor import Supervisor; "
        f"sys.exit(Supervisor([sys.executable, '-c', {script!r}], processes={processes}).run())"
    )
    return harness.run([sys.executable, "-c", code])


async def test_a_child_that_cannot_work_is_not_started_again(harness: ProcessHarness):
    script = "import sys; from onward.worker.supervisor import report_final_exit; report_final_exit(3); sys.exit(3)"
    assert await harness.exit_code(supervise_script(harness, script, 2)) == 3


@pytest.mark.parametrize("code", [1, 3, 103])
async def test_an_exit_code_alone_does_not_stop_the_worker_for_good(harness: ProcessHarness, code: int):
    # A handler can call os._exit with any code.  Counting
    starts = harness.directory / "starts"
    script = f"import os; open({str(starts)!r}, 'a').write('.'); os._exit({code})"
    supervisor = supervise_script(harness, script, 1)
    async with asyncio.timeout(60):
        while not starts.exists() or len(starts.read_text()) < 3:
            await asyncio.sleep(0.05)
    supervisor.terminate()
    await asyncio.to_thread(supervisor.wait, 60)
