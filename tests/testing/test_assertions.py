"""Assertions on what was enqueued."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from onward import App, InvalidPayload, JobStatus
from onward.testing import assert_enqueued, drain, enqueued

ID = UUID("0190b0c4-0000-7000-8000-000000000000")
NOON = datetime(2030, 5, 1, 12, tzinfo=UTC)


async def test_what_was_enqueued_is_listed_in_order_whatever_became_of_it(app: App):
    @app.task
    async def send(to: str) -> None: ...

    @app.task
    async def other() -> None: ...

    await send.enqueue("a")
    await drain(app)
    await other.enqueue()
    await send.using(delay=60).enqueue("b")
    jobs = await enqueued(app, send)
    assert [(job.payload["to"], job.status) for job in jobs] == [("a", JobStatus.COMPLETED), ("b", JobStatus.SCHEDULED)]
    assert [job.type for job in await enqueued(app)] == ["send", "other", "send"]


async def test_long_lists_are_complete(app: App):
    @app.task
    async def send(number: int) -> None: ...

    await send.enqueue_many([(number,) for number in range(1201)])
    assert [job.payload["number"] for job in await enqueued(app)] == list(range(1201))


async def test_arguments_are_compared_as_values(app: App):
    @app.task
    async def send(id: UUID, at: datetime, subject: str = "Hello", tags: tuple[str, ...] = ()) -> None: ...

    await send.enqueue(ID, NOON)
    await send.enqueue(ID, NOON, subject="Bye", tags=("a",))
    assert len(await assert_enqueued(app, send)) == 2
    assert len(await assert_enqueued(app, send, count=2, arguments={"id": ID, "at": NOON})) == 2
    await assert_enqueued(app, send, count=1, arguments={"subject": "Hello", "tags": ()})
    await assert_enqueued(app, send, count=1, arguments={"subject": "Bye", "tags": ("a",)})
    await assert_enqueued(app, send, count=0, arguments={"subject": "Never"})


async def test_a_failed_assertion_shows_what_there_is(app: App):
    @app.task
    async def send(to: str) -> None: ...

    with pytest.raises(AssertionError, match=r"expected at least one job send\(\), found 0; of this task there are 0$"):
        await assert_enqueued(app, send)
    for number in range(7):
        await send.enqueue(f"{number}@example.com")
    with pytest.raises(AssertionError) as failure:
        await assert_enqueued(app, send, count=2, arguments={"to": "0@example.com"})
    said = str(failure.value)
    assert said.startswith("expected 2 jobs send(to='0@example.com'), found 1; of this task there are 7")
    assert "{'to': '4@example.com'} (pending)" in said
    assert said.endswith("… and 2 more")


async def test_an_argument_that_the_task_does_not_have_is_a_mistake_in_the_test(app: App):
    @app.task
    async def send(to: str) -> None: ...

    with pytest.raises(InvalidPayload, match="did you mean 'to'"):
        await assert_enqueued(app, send, count=0, arguments={"too": "a"})
