"""One run of one job: whatever happens in it is an answer."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pydantic
import pytest

from onward import App, Backoff, Cancel, DoNotRetry, InvalidValue, JobContext, Retry, Snooze, StoreUnavailable
from onward.clock import ManualClock
from onward.context import RunState
from onward.engine.values import Claim
from onward.job import JobRef, NewJob
from onward.lifecycle import Interrupted, Raised, Returned, Snoozed, Stopped
from onward.testing import detached_context
from onward.worker.runner import CallNext, Invocation, Middleware, Runner, run_in_thread
from onward.worker.unknown_tasks import UnknownTasks


def claim(type: str = "handler", payload: str = "{}", **others: Any) -> Claim:
    settings: dict[str, Any] = {"attempts": 1, "started": True, "token": (1, 1), "ref": JobRef("default", "1")} | others
    return Claim(type=type, payload=payload, **settings)


@pytest.fixture
def runner(app: App, clock: ManualClock) -> Runner:
    return Runner(handlers=app._core.handlers, engine=app._core.engine, worker_id="me", clock=clock)


class Answer(pydantic.BaseModel):
    number: int


# Returning


@pytest.mark.parametrize(
    ("value", "stored"),
    [(None, None), (3, "3"), ({"a": [1, 2]}, '{"a":[1,2]}'), (Answer(number=1), '{"number":1}'), ("ü", '"ü"')],
    ids=str,
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_handler_returns_is_its_result(app: App, runner: Runner, value, stored, is_async):
    if is_async:

        @app.task
        async def handler() -> Any:
            return value
    else:

        @app.task(name="handler")
        def plain() -> Any:
            return value

    assert await runner.run(claim()) == Returned(stored)
    assert runner.running == 0


async def test_a_result_that_nobody_wants_is_not_kept(app: App, runner: Runner):
    @app.task(store_result=False)
    async def handler() -> object:
        return object()

    assert await runner.run(claim()) == Returned(None)


async def test_a_result_that_cannot_be_stored_fails_at_once(app: App, clock: ManualClock):  # O1
    runner = Runner(handlers=app._core.handlers, engine=app._core.engine, worker_id="me", max_result=10)

    @app.task
    async def odd() -> object:
        return {"a": [object()]}

    @app.task
    async def long() -> str:
        return "x" * 20

    result = await runner.run(claim("odd"))
    assert isinstance(result, Raised)
    assert (result.retryable, result.failure.error_type) == (False, "BadResult")
    assert "result" in result.failure.message
    result = await runner.run(claim("long"))
    assert isinstance(result, Raised)
    assert (result.retryable, result.failure.error_type) == (False, "ResultTooLarge")


# Before the handler


async def test_a_job_without_a_handler_names_the_nearest(app: App):  # O1, O8
    @app.task
    async def send_mail() -> None: ...

    unknown_tasks = UnknownTasks(app._core.engine, worker_id="me", policy="fail")
    runner = Runner(handlers=app._core.handlers, engine=app._core.engine, worker_id="me", unknown_tasks=unknown_tasks)
    result = await runner.run(claim("send_male"))
    assert isinstance(result, Raised)
    assert (result.retryable, result.failure.error_type) == (False, "NoHandler")
    assert "did you mean 'send_mail'?" in result.failure.message


async def test_a_payload_that_does_not_fit_is_retried_by_policy_and_names_the_argument(app: App, runner: Runner):  # O8
    called = []

    @app.task
    async def handler(to: str) -> None:
        called.append(to)

    result = await runner.run(claim(payload='{"to":3}'))
    assert isinstance(result, Raised)
    assert (result.retryable, result.delay, result.failure.error_type) == (True, None, "InvalidPayload")
    assert result.failure.message == "payload.to: Expected `str`, got `int`"
    assert not called


@pytest.mark.parametrize("whole", [True, False])
async def test_a_payload_that_is_nested_too_deep_is_retried_by_policy(app: App, runner: Runner, whole: bool):  # O8
    @app.task(whole_payload=whole)
    async def handler(data: Any) -> None: ...

    deep = "[" * 5000 + "]" * 5000
    result = await runner.run(claim(payload=deep if whole else f'{{"data":{deep}}}'))
    assert isinstance(result, Raised)
    assert (result.retryable, result.failure.error_type) == (True, "InvalidPayload")
    assert "nested too deep" in result.failure.message


@pytest.mark.parametrize(
    ("payload", "value"),
    [('"text"', "text"), ("[1,2]", [1, 2]), ("7", 7), ("null", None), ('{"a":1}', {"a": 1})],
    ids=str,
)
async def test_a_task_may_take_the_whole_payload(app: App, runner: Runner, payload: str, value: Any):
    @app.task(whole_payload=True)
    async def handler(context: JobContext, data: Any) -> Any:
        assert context.payload == data
        return [data]

    assert handler.job(value).payload == payload
    result = await runner.run(claim(payload=payload))
    assert isinstance(result, Returned)
    assert result.result == f"[{payload}]"


async def test_keys_that_are_no_python_names_have_aliases_at_both_ends(app: App, runner: Runner):
    @app.task(aliases={"sender": "from", "user_id": "user-id"})
    async def handler(sender: str, user_id: int = 0) -> list[Any]:
        return [sender, user_id]

    assert handler.job("ann", user_id=3).payload == '{"from":"ann","user-id":3}'
    assert [job.payload for job in handler.jobs([{"sender": "bob"}])] == ['{"from":"bob"}']
    assert await runner.run(claim(payload='{"from":"ann","user-id":3}')) == Returned('["ann",3]')
    with pytest.raises(InvalidValue, match=r"payload\.from"):
        handler.jobs([{"from": "ann"}])


async def test_unknown_keys_are_refused_or_ignored_as_the_task_says_and_the_context_has_them(
    app: App, runner: Runner
):  # X1
    @app.task(unknown_fields="ignore")
    async def ignores(context: JobContext, to: str) -> Any:
        return [to, context.payload["extra"]]

    @app.task
    async def refuses(to: str) -> None: ...

    @app.task
    async def takes(to: str, **others: int) -> Any:
        return [to, others]

    payload = '{"to":"a","extra":1}'
    assert await runner.run(claim("ignores", payload)) == Returned('["a",1]')
    assert isinstance(await runner.run(claim("refuses", payload)), Raised)
    assert await runner.run(claim("takes", payload)) == Returned('["a",{"extra":1}]')
    assert isinstance(await runner.run(claim("takes", '{"to":"a","extra":"x"}')), Raised)
    # Whatever is ignored in a job, a producer that misspells an argument is refused.
    for calls in ([{"to": "a", "cc": "b"}], [{"to": "a", "cc": "b"}, {"to": "c", "cc": "d"}]):
        with pytest.raises(InvalidValue, match=r"payload\.cc"):
            ignores.jobs(calls)
    assert takes.job("a", cc=1).payload == '{"to":"a","cc":1}'
    assert [job.payload for job in takes.jobs([{"to": "a", "cc": 1}])] == ['{"to":"a","cc":1}']


@pytest.mark.parametrize(
    "options",
    [
        {"aliases": {"nobody": "x"}},
        {"aliases": {"to": "count"}},
        {"aliases": {"to": ""}},
        {"whole_payload": True},
        {"unknown_fields": "drop"},
    ],
    ids=str,
)
def test_options_that_do_not_fit_the_function_are_refused(app: App, options: Any):
    def handler(to: str, count: int = 1) -> None: ...

    with pytest.raises(InvalidValue):
        app.task(**options)(handler)


async def test_half_a_character_from_javascript_costs_a_character_and_not_the_job(app: App, runner: Runner):
    @app.task
    async def handler(context: JobContext, to: str, other: str = "") -> list[str]:
        assert context.payload["to"] == to
        return [to, other]

    payload = r'{"to":"a\\ud83d \ud83d","other":"\ud83d\ude00\udE00"}'
    result = await runner.run(claim(payload=payload))
    assert isinstance(result, Returned)
    assert json.loads(result.result or "") == ["a\\ud83d \ufffd", "\U0001f600\ufffd"]


async def test_jobs_of_unknown_names_go_to_the_catch_all_task_of_their_queue(app: App):  # O8
    ran = []

    @app.task(queue="mail/{org_id}", catch_all=True, whole_payload=True)
    async def anything(context: JobContext, payload: Any) -> None:
        ran.append((context.type, payload))

    jobs = [NewJob(type="from-node", payload="[1]", queue="mail/acme"), NewJob(type="from-node", queue="other")]
    await app.enqueue_many(jobs)
    report = await app.tick()
    assert (report.completed, report.snoozed, ran) == (1, 1, [("from-node", [1])])
    with pytest.raises(InvalidValue, match="anything"):

        @app.task(queue="mail/{org_id}", catch_all=True)
        async def second() -> None: ...


# Raising


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_failure_says_what_and_where(app: App, runner: Runner, is_async):
    def fail() -> None:
        raise ValueError("no \0 such thing \ud800")

    if is_async:

        @app.task(name="handler")
        async def handler() -> None:
            fail()
    else:

        @app.task(name="handler")
        def plain() -> None:
            fail()

    result = await runner.run(claim())
    assert isinstance(result, Raised)
    assert (result.retryable, result.delay) == (True, None)
    assert (result.failure.error_type, result.failure.message) == ("ValueError", "no � such thing ?")
    trace = result.failure.traceback
    assert trace is not None
    assert "in fail\n" in trace
    assert "onward/worker" not in trace, "the handler's own frames, and none of ours"
    assert "\0" not in trace
    trace.encode()


async def test_a_failure_is_kept_short(app: App, runner: Runner):
    @app.task
    async def handler() -> None:
        raise ValueError("x" * 100_000)

    result = await runner.run(claim())
    assert isinstance(result, Raised)
    assert len(result.failure.message) <= 4_000
    assert len(result.failure.traceback or "") <= 16_000


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), StopIteration(1), BaseExceptionGroup])
@pytest.mark.parametrize("is_async", [True, False])
async def test_nothing_that_a_handler_raises_gets_out_of_its_run(app: App, runner: Runner, error, is_async):
    if error is BaseExceptionGroup:
        error = ExceptionGroup("several", [ValueError(), KeyError()])
    if is_async:

        @app.task
        async def handler() -> None:
            raise error
    else:

        @app.task(name="handler")
        def plain() -> None:
            raise error

    result = await runner.run(claim())
    assert isinstance(result, Raised)
    assert result.retryable
    assert runner.running == 0


async def test_an_exception_that_cannot_be_shown_is_still_a_failure(app: App, runner: Runner):
    class Faulty(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @app.task
    async def handler() -> None:
        raise Faulty

    result = await runner.run(claim())
    assert isinstance(result, Raised)
    assert result.failure.error_type.endswith("Faulty")


async def test_single_exceptions_are_retried_as_the_task_says(app: App, runner: Runner):
    @app.task(retry={ConnectionError: Backoff.exponential(10, cap=None), ValueError: False})
    async def handler(error: str) -> None:
        raise {"connection": ConnectionResetError, "value": UnicodeError, "key": KeyError}[error]

    async def said(error: str, attempts: int = 1) -> tuple[bool, timedelta | None]:
        result = await runner.run(claim(payload=f'{{"error":"{error}"}}', attempts=attempts))
        assert isinstance(result, Raised)
        return result.retryable, result.delay

    assert await said("connection") == (True, timedelta(seconds=10))
    assert await said("connection", attempts=3) == (True, timedelta(seconds=40))
    assert await said("value") == (False, None)
    assert await said("key") == (True, None)


async def test_a_handler_may_end_otherwise(app: App, runner: Runner, clock: ManualClock):
    ends: dict[str, BaseException] = {
        "later": Snooze(90),
        "at": Snooze(until=clock.now() + timedelta(hours=1)),
        "past": Snooze(until=clock.now() - timedelta(hours=1)),
        "stop": Cancel("the order was withdrawn"),
        "never": DoNotRetry("the address does not exist"),
    }

    @app.task
    async def handler(end: str) -> None:
        raise ends[end]

    async def run(end: str) -> Any:
        return await runner.run(claim(payload=f'{{"end":"{end}"}}'))

    assert await run("later") == Snoozed(timedelta(seconds=90))
    assert await run("at") == Snoozed(timedelta(hours=1))
    assert await run("past") == Snoozed(timedelta(0))
    assert await run("stop") == Stopped("the order was withdrawn")
    never = await run("never")
    assert (never.retryable, str(never.failure)) == (False, "DoNotRetry: the address does not exist")


async def test_a_handler_may_ask_for_a_retry_at_a_time_of_its_choice(app: App, runner: Runner, clock: ManualClock):
    ends = {
        "later": Retry(90, reason="rate limited"),
        "at": Retry(until=clock.now() + timedelta(hours=1)),
        "past": Retry(until=clock.now() - timedelta(hours=1)),
    }

    @app.task(retry={Exception: False})
    async def handler(end: str) -> None:
        if end == "because":
            try:
                raise ConnectionError("busy")
            except ConnectionError as error:
                raise Retry(5) from error
        raise ends[end]

    async def run(end: str) -> tuple[str, str, timedelta | None]:
        result = await runner.run(claim(payload=json.dumps({"end": end})))
        assert isinstance(result, Raised)
        assert result.retryable
        return result.failure.error_type, result.failure.message, result.delay

    assert await run("later") == ("Retry", "rate limited", timedelta(seconds=90))
    assert await run("at") == ("Retry", "its handler asked for a retry", timedelta(hours=1))
    assert await run("past") == ("Retry", "its handler asked for a retry", timedelta(0))
    assert await run("because") == ("ConnectionError", "busy", timedelta(seconds=5))
    with pytest.raises(InvalidValue, match="retry = None: give either a delay or until="):
        Retry()


def test_a_snooze_wants_one_time_to_come():
    for wrong in (None, -1, "soon", float("nan")):
        with pytest.raises(InvalidValue):
            Snooze(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        Snooze(1, until=ManualClock().now())


async def test_an_exception_that_a_task_group_has_wrapped_counts_as_itself(app: App, runner: Runner):
    ends = {"snooze": Snooze(5), "cancel": Cancel("no"), "connection": ConnectionError()}

    @app.task(retry={ConnectionError: False})
    async def handler(end: str) -> None:
        async def fail() -> None:
            raise ends[end]

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    assert await runner.run(claim(payload='{"end":"snooze"}')) == Snoozed(timedelta(seconds=5))
    assert await runner.run(claim(payload='{"end":"cancel"}')) == Stopped("no")
    result = await runner.run(claim(payload='{"end":"connection"}'))
    assert isinstance(result, Raised)
    assert not result.retryable


# Stopping


async def test_an_async_handler_that_takes_too_long_is_stopped_and_fails(app: App, runner: Runner):
    stopped = []

    @app.task(timeout=0.01)
    async def handler() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    result = await runner.run(claim())
    assert isinstance(result, Raised)
    assert result.retryable
    assert str(result.failure) == "TimeoutError: ran longer than its timeout of 0:00:00.010000"
    assert "await asyncio.Event().wait()" in (result.failure.traceback or "")
    assert stopped == [True]


async def test_a_timeout_is_retried_as_the_task_says_of_timeouts(app: App, runner: Runner):
    @app.task(timeout=0.01, retry={TimeoutError: False})
    async def handler() -> None:
        await asyncio.Event().wait()

    result = await runner.run(claim())
    assert isinstance(result, Raised)
    assert not result.retryable


async def test_a_thread_that_takes_too_long_is_left_and_told(app: App, runner: Runner):
    go_on, seen = threading.Event(), []

    @app.task(timeout=0.01)
    def handler(context: JobContext) -> str:
        go_on.wait()
        seen.append(context.should_stop)
        return "too late"

    result = await runner.run(claim())
    assert isinstance(result, Raised)
    assert result.failure.error_type == "TimeoutError"
    assert runner.running == 0
    go_on.set()
    while not seen:
        await asyncio.to_thread(lambda: None)
    assert seen == [True]


async def test_each_run_has_its_own_deadline(app: App, runner: Runner):
    started: dict[str, asyncio.Event] = {"quick": asyncio.Event(), "slow": asyncio.Event()}

    @app.task(timeout=0.02)
    async def quick() -> None:
        started["quick"].set()
        await asyncio.Event().wait()

    @app.task(timeout=1000)
    async def slow() -> str:
        started["slow"].set()
        await started["quick"].wait()
        await quick_run
        return "done"

    slow_run = asyncio.create_task(runner.run(claim("slow", token=(1, 1))))
    await started["slow"].wait()
    quick_run = asyncio.create_task(runner.run(claim("quick", token=(2, 1))))
    assert isinstance(await quick_run, Raised)
    assert await slow_run == Returned('"done"')


async def test_a_run_that_ends_in_time_leaves_no_deadline(app: App, runner: Runner):
    @app.task(timeout=1000)
    async def handler() -> None: ...

    for number in range(10):
        await runner.run(claim(token=(number, 1)))
    assert len(runner._timeouts) == 0


async def test_cancelling_a_job_reaches_its_handler(app: App, runner: Runner):
    running, stopped = asyncio.Event(), []

    @app.task
    async def handler(context: JobContext) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(context.should_stop)
            raise

    run = asyncio.create_task(runner.run(claim()))
    await running.wait()
    assert runner.cancel((1, 1))
    assert await run == Interrupted()
    assert stopped == [True]
    assert not runner.cancel((1, 1))


async def test_cancelling_a_job_tells_its_thread(app: App, runner: Runner):
    running, stopped = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @app.task
    def handler(context: JobContext) -> None:
        loop.call_soon_threadsafe(running.set)
        while not context.should_stop:
            pass
        stopped.set()

    run = asyncio.create_task(runner.run(claim()))
    await running.wait()
    runner.cancel((1, 1))
    assert await run == Interrupted()
    await asyncio.to_thread(stopped.wait)


async def test_a_handler_that_will_not_be_cancelled_records_nothing(app: App, runner: Runner):  # X3
    running = asyncio.Event()

    @app.task
    async def handler() -> str:
        running.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "stubborn"

    run = asyncio.create_task(runner.run(claim()))
    await running.wait()
    runner.cancel((1, 1))
    assert await run == Interrupted()


async def test_a_handler_that_ends_in_spite_of_its_timeout_has_ended(app: App, runner: Runner):
    @app.task(timeout=0.01)
    async def handler() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "just so"

    assert await runner.run(claim()) == Returned('"just so"')


async def test_one_task_can_run_job_after_job_whatever_was_cancelled(app: App, runner: Runner):
    running = asyncio.Event()

    @app.task
    async def waits() -> None:
        running.set()
        await asyncio.Event().wait()

    @app.task(timeout=0.01)
    async def late() -> None:
        await asyncio.Event().wait()

    @app.task
    async def fine() -> str:
        async with asyncio.timeout(1000):
            await asyncio.sleep(0)
        return "fine"

    async def hand() -> list[Any]:
        results = [
            await runner.run(claim(type, token=(number, 1))) for number, type in enumerate(["waits", "late", "fine"])
        ]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return results

    work = asyncio.create_task(hand())
    await running.wait()
    runner.cancel((0, 1))
    first, second, third = await work
    assert (first, third) == (Interrupted(), Returned('"fine"'))
    assert isinstance(second, Raised)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_cancellation_from_outside_goes_through(app: App, runner: Runner, is_async):
    running, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    if is_async:

        @app.task
        async def handler() -> None:
            running.set()
            await asyncio.Event().wait()
    else:

        @app.task(name="handler")
        def plain() -> None:
            loop.call_soon_threadsafe(running.set)
            release.wait()

    run = asyncio.create_task(runner.run(claim()))
    await running.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert runner.running == 0
    release.set()


async def test_a_cancellation_from_outside_wins_over_one_of_ours(app: App, runner: Runner):
    running = asyncio.Event()

    @app.task
    async def handler() -> None:
        running.set()
        await asyncio.Event().wait()

    run = asyncio.create_task(runner.run(claim()))
    await running.wait()
    runner.cancel((1, 1))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


# The context


async def test_a_handler_can_know_its_job(app: App, runner: Runner):
    seen: list[Any] = []

    @app.task
    async def handler(to: str, *, about: JobContext) -> None:
        seen.extend([about.id, about.ref, about.type, about.queue, about.org_id, about.attempt, about.max_attempts])
        seen.append(about.should_stop)
        assert "attempt 3 of 5" in repr(about)

    ref = JobRef("mail", "17")
    assert await runner.run(claim(payload='{"to":"a"}', ref=ref, attempts=3, org_id="acme")) == Returned()
    assert seen == ["17", ref, "handler", "mail", "acme", 3, 5, False]


async def test_a_run_that_was_claimed_ahead_counts_itself(app: App, runner: Runner):  # Counting
    @app.task
    async def handler(context: JobContext) -> int:
        return context.attempt

    assert await runner.run(claim(attempts=2, started=False)) == Returned("3")


async def test_progress_and_lines_are_checked_where_they_are_said(app: App):
    context = detached_context()
    for wrong in (-1, 101, 1.5, True):
        with pytest.raises(InvalidValue, match="progress"):
            context.set_progress(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="log line"):
        context.log("a\0b")
    with pytest.raises(InvalidValue, match="progress message"):
        context.set_progress(1, "\ud800")


def test_only_the_newest_thousand_lines_are_held(app: App):  # B8
    state = RunState(claim())
    for number in range(1500):
        state.note(line=str(number))
    assert state.take_notes() == (None, None, [str(number) for number in range(500, 1500)])
    assert not state.has_notes


async def test_a_run_is_over_when_all_that_it_said_has_arrived(
    app: App, runner: Runner, monkeypatch: pytest.MonkeyPatch
):
    sending, go_on = asyncio.Event(), asyncio.Event()
    arrived: list[str] = []

    async def report(claim: Claim, *, progress: int | None, message: str | None, lines: Sequence[str]) -> bool:
        sending.set()
        await go_on.wait()
        arrived.extend(lines)
        return True

    monkeypatch.setattr(app._core.engine, "report", report)

    @app.task
    async def handler(context: JobContext) -> None:
        context.log("one")
        await sending.wait()

    run = asyncio.create_task(runner.run(claim()))
    await sending.wait()
    await asyncio.wait([run], timeout=0.01)
    assert not run.done()
    go_on.set()
    assert await run == Returned()
    assert arrived == ["one"]


async def test_a_report_that_cannot_be_stored_does_not_fail_the_run(
    app: App, runner: Runner, monkeypatch: pytest.MonkeyPatch
):
    async def report(*_: Any, **__: Any) -> bool:
        raise StoreUnavailable("away")

    monkeypatch.setattr(app._core.engine, "report", report)

    @app.task
    async def handler(context: JobContext) -> str:
        context.log("lost")
        return "done"

    assert await runner.run(claim()) == Returned('"done"')


async def test_a_report_that_finds_the_claim_lost_stops_the_handler(
    app: App, runner: Runner, monkeypatch: pytest.MonkeyPatch
):  # X3
    async def report(*_: Any, **__: Any) -> bool:
        return False

    monkeypatch.setattr(app._core.engine, "report", report)

    @app.task
    async def handler(context: JobContext) -> None:
        context.log("anybody there?")
        await asyncio.Event().wait()

    assert await runner.run(claim()) == Interrupted()


# Around the run


async def test_middleware_stands_around_every_run_the_first_outermost(app: App):
    seen: list[str] = []

    def named(name: str) -> Middleware:
        async def middleware(context: JobContext, call_next: CallNext) -> Any:
            seen.append(f"{name} before {context.type}")
            try:
                return f"{name}({await call_next()})"
            finally:
                seen.append(f"{name} after")

        return middleware

    runner = Runner(
        handlers=app._core.handlers,
        engine=app._core.engine,
        worker_id="me",
        middleware=[named("outer"), named("inner")],
    )

    @app.task
    async def asynchronous() -> str:
        return "a"

    @app.task
    def plain() -> str:
        return "b"

    assert await runner.run(claim("asynchronous")) == Returned('"outer(inner(a))"')
    assert await runner.run(claim("plain")) == Returned('"outer(inner(b))"')
    assert seen[:4] == ["outer before asynchronous", "inner before asynchronous", "inner after", "outer after"]


async def test_middleware_can_end_a_run_by_itself(app: App):
    async def closed(context: JobContext, call_next: CallNext) -> Any:
        raise Snooze(60)

    runner = Runner(handlers=app._core.handlers, engine=app._core.engine, worker_id="me", middleware=[closed])

    @app.task
    async def handler() -> None:
        raise AssertionError

    assert await runner.run(claim()) == Snoozed(timedelta(seconds=60))


async def test_plain_functions_are_called_where_the_task_says(app: App):
    seen: list[tuple[str, str]] = []

    def place(name: str) -> Any:
        async def invoke(invocation: Invocation) -> Any:
            seen.append((name, invocation.claim.type))
            return await run_in_thread(invocation)

        return invoke

    runner = Runner(
        handlers=app._core.handlers,
        engine=app._core.engine,
        worker_id="me",
        thread=place("thread"),
        process=place("process"),
    )

    @app.task
    def one() -> int:
        return threading.get_ident()

    @app.task(executor="process")
    def two() -> None: ...

    result = await runner.run(claim("one"))
    assert isinstance(result, Returned)
    assert result.result != str(threading.get_ident())
    await runner.run(claim("two"))
    assert seen == [("thread", "one"), ("process", "two")]
    assert sys.exc_info() == (None, None, None)
