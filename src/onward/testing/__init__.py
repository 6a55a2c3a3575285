"""For testing code that enqueues: run its jobs in the test, move the clock, and look at what was enqueued.

Everything here runs on a real store, the same as in production; ``App("sqlite://")`` is a private file that is gone
when the App is closed. For example::

    import pytest
    from onward import App, Backoff
    from onward.testing import ManualClock, assert_enqueued, drain, inline

    clock = ManualClock()
    app = App("sqlite://", clock=clock)
    sent = []

    @app.task(queue="mail", max_attempts=3, backoff=Backoff.fixed(60))
    async def send_mail(to: str, subject: str = "Hello") -> int:
        sent.append(to)
        if sent.count(to) < 2:
            raise ConnectionError("the post office is closed")
        return len(sent)

    async def sign_up(address: str) -> None:
        await send_mail.using(delay=3600).enqueue(to=address)

    async def test_the_function_itself():       # a task is still a function
        with pytest.raises(ConnectionError):
            await send_mail("first@example.com")

    async def test_that_a_job_is_enqueued():    # without running it
        await sign_up("a@example.com")
        await assert_enqueued(app, send_mail, count=1, arguments={"to": "a@example.com"})

    async def test_in_time():                   # an hour and a minute pass at once
        report = await drain(app, until_idle=True)
        assert (report.retried, report.completed) == (1, 1)
        assert sent.count("a@example.com") == 2

    async def test_inline():                    # enqueue runs the job, retries and all, before it returns
        with inline(app):
            job = await send_mail.enqueue(to="b@example.com")
        assert await job.result() == len(sent)
"""

from onward.clock import ManualClock
from onward.context import detached_context
from onward.testing.assertions import assert_enqueued, enqueued
from onward.testing.draining import drain
from onward.testing.inlining import inline

__all__ = ["ManualClock", "assert_enqueued", "detached_context", "drain", "enqueued", "inline"]
