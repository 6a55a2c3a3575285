"""Threads for plain functions."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from onward.worker.threads import StartFailed, Threads
from tests.worker.harness import eventually


@pytest.fixture
def threads():
    made = Threads(4)
    yield made
    made.close()


async def test_what_a_function_returns_and_raises_comes_back(threads: Threads):
    assert await threads.call(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await threads.call(lambda: 1 // 0)


async def test_calls_run_at_once_up_to_the_number_of_threads(threads: Threads):
    barrier = threading.Barrier(4)
    await asyncio.gather(*(threads.call(lambda: barrier.wait(20)) for _ in range(4)))


async def test_no_more_run_at_once_than_there_are_threads(threads: Threads):
    running = max_running = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, max_running
        with lock:
            running += 1
            max_running = max(max_running, running)
        threading.Event().wait(0.002)
        with lock:
            running -= 1

    await asyncio.gather(*(threads.call(work) for _ in range(40)))
    assert 1 < max_running <= 4


async def test_a_slow_call_holds_up_none_behind_it(threads: Threads):
    release = threading.Event()
    slow = asyncio.create_task(threads.call(lambda: release.wait(20)))
    quick = [await threads.call(lambda n=n: n) for n in range(100)]  # type: ignore[misc]
    assert quick == list(range(100))
    assert not slow.done()
    release.set()
    assert await slow


async def test_a_call_answered_as_it_is_given_up_keeps_its_thread():  # X3
    threads = Threads(1)
    late = asyncio.create_task(threads.call(lambda: None))
    await asyncio.sleep(0)
    while not threads._is_delivery_scheduled:  # holds up the loop: the answer has come, and nobody has seen it
        threading.Event().wait(0.001)
    following = asyncio.create_task(threads.call(lambda: 42))
    late.cancel()
    assert await asyncio.wait_for(following, 20) == 42
    assert late.cancelled()
    assert threads._abandoned == 0
    threads.close()


async def test_threads_are_kept_for_the_next_call(threads: Threads):
    idents = {await threads.call(threading.get_ident) for _ in range(50)}
    assert len(idents) == 1


async def test_a_call_sees_the_context_of_its_caller(threads: Threads):
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")
    name.set("caller")
    assert await threads.call(name.get) == "caller"


async def test_what_a_call_leaves_in_a_context_variable_stays_there(threads: Threads):
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")
    await threads.call(lambda: name.set("somebody"))
    assert await threads.call(name.get) == "nobody"


async def test_a_thread_left_behind_by_a_caller_who_gave_up_is_replaced(threads: Threads):
    release = threading.Event()
    begun = threading.Semaphore(0)

    def stuck() -> None:
        begun.release()
        release.wait(20)

    given_up = [asyncio.create_task(threads.call(stuck)) for _ in range(4)]
    for _ in range(4):
        await eventually(lambda: begun.acquire(blocking=False))
    for call in given_up:
        call.cancel()
    await asyncio.wait(given_up)
    barrier = threading.Barrier(4)
    await asyncio.gather(*(threads.call(lambda: barrier.wait(20)) for _ in range(4)))
    release.set()
    await eventually(lambda: threads._abandoned == 0)
    assert await threads.call(lambda: "fit") == "fit"


async def test_a_call_given_up_before_it_began_is_not_made(threads: Threads):
    release, called = threading.Event(), threading.Event()
    busy = [asyncio.create_task(threads.call(lambda: release.wait(20))) for _ in range(4)]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(threads.call(called.set))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    release.set()
    await asyncio.gather(*busy)
    assert await threads.call(lambda: "next") == "next"
    assert not called.is_set()


async def test_the_threads_end_when_they_are_let_go():
    threads = Threads(4, name="let-go")
    barrier = threading.Barrier(4)
    await asyncio.gather(*(threads.call(lambda: barrier.wait(20)) for _ in range(4)))

    def living() -> int:
        return sum(thread.name.startswith("let-go") for thread in threading.enumerate())

    assert living() == 4
    threads.close()
    await eventually(lambda: not living())


def refuse_threads(monkeypatch: pytest.MonkeyPatch, prefix: str) -> list[bool]:
    """Let threads of these names fail to start while the list that is returned is not empty."""
    refusing, start = [True], threading.Thread.start

    def start_or_fail(thread: threading.Thread) -> None:
        if refusing and thread.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    return refusing


async def test_a_call_without_any_thread_is_refused_and_the_next_one_tries_again(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
):  # X3
    refusing = refuse_threads(monkeypatch, "onward-thread")
    called = threading.Event()
    for _ in range(10):
        with pytest.raises(StartFailed):
            await threads.call(called.set)
    refusing.clear()
    barrier = threading.Barrier(4)
    await asyncio.gather(*(threads.call(lambda: barrier.wait(20)) for _ in range(4)))
    assert not called.is_set()


async def test_a_call_waits_for_a_thread_that_exists_if_no_other_can_be_started(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
):  # X3
    assert await threads.call(lambda: 1) == 1
    refuse_threads(monkeypatch, "onward-thread")
    assert await asyncio.gather(*(threads.call(lambda n=n: n) for n in range(20))) == list(range(20))  # type: ignore[misc]
