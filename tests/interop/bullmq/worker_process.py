"""A worker of ours that is meant to be killed: ``python -m tests.interop.bullmq.worker_process URL QUEUE``.

It says ``ready`` when it works. Each run leaves a line in a ledger before it does anything else, and answers with the
name of the run: by the ledger a test can tell which run should have had the last word.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from onward import App, JobContext
from onward.engines.bullmq.engine import BullMQEngine

LEASE: Final = timedelta(seconds=2)


def make_app(url: str, queue: str) -> App:
    """Make the App that worker processes and the test share."""
    app = App(engine=BullMQEngine(url), lease=LEASE, max_crashes=1000)

    @app.task(name="work", queue=queue)
    async def work(context: JobContext, n: int, steps: list[list[Any]]) -> dict[str, str]:
        ((_, options),) = steps
        run = record_run(options["ledger"], context.id)
        print(f"started {context.id}", flush=True)
        await asyncio.sleep(options["ms"] / 1000)
        return {"run": run}

    return app


def record_run(ledger: str, id: str) -> str:
    """Write a line for this run, in one step, and give the run's name."""
    run = uuid.uuid4().hex
    with Path(ledger).open("a") as file:
        file.write(f"{id} {run} python {os.getpid()}\n")
    return run


async def main(url: str, queue: str) -> None:
    """Work until killed."""
    app = make_app(url, queue)
    async with app, app.worker(queues=[queue], concurrency=10, leader_lease=LEASE):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
