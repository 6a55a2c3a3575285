"""Functions in processes of their own: what they give back, and what becomes of the worker when they die."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onward.backoff import Backoff
from onward.context import RunState
from onward.control_flow import Cancel, DoNotRetry, Retry, Snooze
from onward.handler import Handler, TaskOptions
from onward.worker.processes import ProcessDied, Processes
from onward.worker.threads import StartFailed
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


@pytest.mark.parametrize(
    ("how", "kind", "name", "message"),
    [
        ("called process", subprocess.CalledProcessError, "CalledProcessError", "returned non-zero exit status 7"),
        ("group", ExceptionGroup, "ExceptionGroup", "several (2 sub-exceptions)"),
        ("unicode", UnicodeDecodeError, "UnicodeDecodeError", "can't decode byte 0xff in position 0"),
        ("surrogate", ValueError, "ValueError", "half of an emoji: ?"),
        ("keyword", processtasks.KeywordOnlyError, "KeywordOnlyError", "code 3"),
        ("unprintable", processtasks.UnprintableError, "UnprintableError", "cannot be shown"),
        ("local", LookupError, "fail.<locals>.LocalError", "defined within"),
        ("exit", SystemExit, "SystemExit", "4"),
        ("interrupt", Exception, "KeyboardInterrupt", "by hand"),
    ],
)
async def test_an_exception_of_a_child_keeps_class_message_and_traceback(
    processes: Processes, how: str, kind: type[BaseException], name: str, message: str
):  # O8
    with pytest.raises(kind) as raised:
        await processes.call(HERE, "fail", RunState(claim(1, payload=f'{{"how":"{how}"}}')))
    assert type(raised.value).__qualname__ == name
    assert message in str(raised.value)
    assert 'processtasks.py", line' in "".join(raised.value.__notes__)
    handler = Handler(lambda: None, name="any", options=TaskOptions(retry={Exception: Backoff(), kind: False}))
    assert handler.backoff_for(raised.value) is None


async def test_the_exceptions_of_a_group_are_rebuilt_too(processes: Processes):  # O8
    with pytest.raises(ExceptionGroup) as raised:
        await processes.call(HERE, "fail", RunState(claim(1, payload='{"how":"group"}')))
    first, second = raised.value.exceptions
    assert isinstance(first, ValueError)
    assert isinstance(second, processtasks.KeywordOnlyError)
    assert (str(first), str(second)) == ("one", "code 2")


@pytest.mark.parametrize("how", ["snooze until", "snooze subclass"])
async def test_the_moment_of_a_snooze_comes_back(processes: Processes, how: str):  # Counting
    with pytest.raises(Snooze) as snooze:
        await processes.call(HERE, "fail", RunState(claim(1, payload=f'{{"how":"{how}"}}')))
    assert snooze.value.until == processtasks.UNTIL
    assert snooze.value.delay_from(processtasks.UNTIL - timedelta(hours=1)) == timedelta(hours=1)


async def test_a_retry_comes_back_with_its_time_and_its_cause(processes: Processes):
    with pytest.raises(Retry) as retry:
        await processes.call(HERE, "fail", RunState(claim(1, payload='{"how":"retry"}')))
    assert (retry.value.delay, retry.value.reason) == (timedelta(hours=1), "busy")
    assert isinstance(retry.value.__cause__, ConnectionError)
    assert str(retry.value.__cause__) == "no line free"


async def test_the_value_of_a_lifespan_stays_in_the_worker(processes: Processes):
    with pytest.raises(RuntimeError, match='executor="process"'):
        await processes.call(HERE, "read_state", RunState(claim(1), state="a connection"))


async def test_a_child_reads_payloads_as_its_worker_does(processes: Processes):  # X1
    payload = '{"one":1,"two":2,"three":3}'
    result = await processes.call(HERE, "add", RunState(claim(1, payload=payload)), ignores_unknown=True)
    assert result["sum"] == 3
    with pytest.raises(Exception, match="three"):
        await processes.call(HERE, "add", RunState(claim(1, payload=payload)))


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


async def test_giving_up_a_call_that_was_answered_does_not_kill_the_next_call(processes: Processes):  # X3
    async def add(number: int) -> int:
        result = await processes.call(HERE, "add", RunState(claim(number, payload='{"one":1,"two":2}')))
        return int(result["pid"])

    pid = await add(1)
    answered = threading.Event()
    put_back = processes._put_back

    def put_back_and_tell(child: Any) -> None:
        put_back(child)
        answered.set()

    processes._put_back = put_back_and_tell  # type: ignore[method-assign]
    late = asyncio.create_task(add(2))
    await asyncio.sleep(0)
    assert answered.wait(30)  # holds up the loop: the answer has come, and nobody has seen it
    following = asyncio.create_task(add(3))
    late.cancel()  # as its timeout does
    await asyncio.wait([late])
    assert await following == pid
    assert alive(pid)


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
        failing = await processtasks.fail.enqueue(how="called process")
        living = await processtasks.add.enqueue(one=1, two=1)
        async with app.worker(process_slots=1):
            assert (await living.result(timeout=30))["sum"] == 2
            await eventually(lambda: _ended(dying.id))
            await eventually(lambda: _ended(failing.id))
        failed = await app._core.engine.get(failing.ref)
        job = await app._core.engine.get(dying.ref)
        assert job is not None
        assert job.status == "dead_letter"
        assert "SIGKILL" in (job.last_error or "")
    # What a child raised is recorded as the child saw it (O8).
    assert failed is not None
    (error,) = failed.errors
    assert error.error_type == "CalledProcessError"
    assert "returned non-zero exit status 7" in error.message
    assert "processtasks.py" in (error.traceback or "")
    assert "remote_error.py" not in (error.traceback or "")


async def _ended(job_id: str) -> bool:
    job = await processtasks.app._core.engine.get(job_id)
    return job is not None and job.completed_at is not None


async def test_a_process_that_cannot_be_started_is_no_crash(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
):  # Counting, X3
    run = RunState(claim(1, payload='{"one":1,"two":2}'))

    def refuse(_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr("onward.worker.processes._Child.start", refuse)
        for _ in range(3):
            with pytest.raises(StartFailed):
                await processes.call(HERE, "add", run)
    assert not processes._children
    assert (await processes.call(HERE, "add", run))["sum"] == 3


async def test_a_process_that_ends_before_it_is_ready_is_no_crash(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
):  # Counting, X3
    run = RunState(claim(1, payload='{"one":1,"two":2}'))
    with monkeypatch.context() as patched:
        patched.setattr(processes, "_main", processtasks.end_before_ready)
        with pytest.raises(StartFailed, match="before it was ready: exit code 1"):
            await processes.call(HERE, "add", run)
    assert not processes._children
    assert (await processes.call(HERE, "add", run))["sum"] == 3
