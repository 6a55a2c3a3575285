"""What Node writes is read, whatever it is."""

from __future__ import annotations

import pytest

from onward import App
from onward.task import handler_of
from tests.engines.bullmq.queue import Queue


async def test_half_a_character_written_by_node_leaves_the_job_readable(queue: Queue):  # B1
    queue.add_as_node("1", data=r'{"to":"cut \ud83d"}')
    (claim,) = await queue.take()
    assert claim.payload == r'{"to":"cut \ufffd"}'
    job = await queue.engine.get(queue.ref("1"))
    assert job is not None
    assert job.payload == {"to": "cut \ufffd"}


@pytest.mark.parametrize("url", ["redis://localhost:1/0", "pgboss+postgresql://x/y", "pgmq+postgresql://x/y"])
@pytest.mark.parametrize("chosen", [None, "refuse"])
def test_on_a_foreign_store_unknown_keys_are_ignored_unless_the_app_says_otherwise(url: str, chosen):  # X1
    app = App(url, unknown_fields=chosen)

    @app.task
    def send(to: str) -> None: ...

    assert handler_of(send).arguments.ignores_unknown is (chosen is None)
