"""Functions in processes of their own: what they give back, and what becomes of the worker when they die."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from onward.context import RunState
from onward.control_flow import Cancel, DoNotRetry, Snooze
from onward.worker.processes import ProcessDied, Processes
from tests.worker import processtasks
from tests.worker.harness import claim, eventually

HERE = processtasks.__name__


@pytest.fixture
async def processes():
    made = Processes(2)
    yield made
    made.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


async def test_a_result_comes_back_from_a_process_that_is_kept(processes: Processes):
    first = await processes.call(HERE, "add", RunState(claim(1, payload='{"one":1,"two":2}')))
    second = await processes.call(HERE, "add", RunState(claim(2, payload='{"one":3,"two":4}')))
    assert (first["sum"], second["sum"]) == (3, 7)
    assert first["pid"] == second["pid"] != os.getpid()


async def test_the_context_tells_the_attempt(processes: Processes):
    assert await processes.call(HERE, "attempt", RunState(claim(1, attempts=4))) == 4


async def test_what_the_function_says_of_its_job_is_passed_on(processes: Processes):
    reports: list[tuple[object, ...]] = []
    run = RunState(claim(1), on_note=lambda run: reports.append(run.take_notes()))
    await processes.call(HERE, "report", run)
    assert reports == [(None, None, ["first"]), (50, "half-way", []), (None, None, ["second"])]


@pytest.mark.parametrize(("how", "says"), [("killed", "SIGKILL"), ("exit", "exit code 3"), ("abort", "SIGABRT")])
async def test_a_process_that_dies_fails_its_run_and_nothing_else(processes: Processes, how: str, says: str):
    beside = asyncio.create_task(processes.call(HERE, "add", RunState(claim(1, payload='{"one":1,"two":2}'))))
    with pytest.raises(ProcessDied, match=says):
        await processes.call(HERE, "die", RunState(claim(2, payload=f'{{"how":"{how}"}}')))
    assert (await beside)["sum"] == 3
    assert (await processes.call(HERE, "add", RunState(claim(3, payload='{"one":2,"two":2}'))))["sum"] == 4


async def test_exceptions_come_back_as_what_they_were(processes: Processes):
    with pytest.raises(processtasks.CustomError, match="1 and 2") as odd:
        await processes.call(HERE, "fail", RunState(claim(1, payload='{"how":"odd"}')))
    assert "processtasks.py" in "".join(odd.value.__notes__)
    with pytest.raises(Cancel, match="not needed"):
        await processes.call(HERE, "fail", RunState(claim(2, payload='{"how":"cancel"}')))
    with pytest.raises(DoNotRetry, match="hopeless"):
        await processes.call(HERE, "fail", RunState(claim(3, payload='{"how":"never"}')))
    with pytest.raises(Snooze) as snooze:
        await processes.call(HERE, "fail", RunState(claim(4, payload='{"how":"snooze"}')))
    assert snooze.value.delay is not None
    assert snooze.value.delay.total_seconds() == 3600


async def test_a_task_that_the_child_cannot_find_is_said_to_be_so(processes: Processes):
    with pytest.raises(TypeError, match="top level of an importable module"):
        await processes.call(HERE, "test_of.<locals>.inner", RunState(claim(1)))


async def test_a_call_that_is_given_up_is_really_stopped(processes: Processes, tmp_path: Path):
    pids = tmp_path / "pids"
    call = asyncio.create_task(processes.call(HERE, "run_forever", RunState(claim(1, payload=f'{{"path":"{pids}"}}'))))
    await eventually(lambda: pids.exists() and pids.read_text().endswith("\n"))
    pid = int(pids.read_text())
    call.cancel()
    await asyncio.wait([call])
    await eventually(lambda: not alive(pid))


async def test_the_processes_end_when_they_are_let_go(tmp_path: Path):
    processes = Processes(1)
    pid = (await processes.call(HERE, "add", RunState(claim(1, payload='{"one":1,"two":2}'))))["pid"]
    assert alive(pid)
    processes.close()
    await eventually(lambda: not alive(pid))


async def test_a_worker_survives_jobs_that_kill_their_process():
    app = processtasks.app
    async with app:
        dying = await processtasks.die.enqueue(how="killed")
        living = await processtasks.add.enqueue(one=1, two=1)
        async with app.worker(process_slots=1):
            assert (await living.result(timeout=30))["sum"] == 2
            await eventually(lambda: _ended(dying.id))
        job = await app._core.engine.get(dying.ref)
        assert job is not None
        assert job.status == "dead_letter"
        assert "SIGKILL" in (job.last_error or "")


async def _ended(job_id: str) -> bool:
    job = await processtasks.app._core.engine.get(job_id)
    return job is not None and job.completed_at is not None
