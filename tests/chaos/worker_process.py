"""A worker that is meant to be killed: ``python -m tests.chaos.worker_process URL DIRECTORY MAX_CRASHES``.

Its handlers keep a ledger, one line for each effect, written in one step to a file that no worker of Onward knows of:
by it a test can tell what really happened from what the store says happened.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from onward.app import App
from onward.context import JobContext
from onward.worker.log_format import configure
from onward.worker.serve import serve

LEASE = timedelta(seconds=2)


def make_app(url: str, directory: Path) -> App:
    """Make the App that workers and the test share."""
    app = App(url, lease=LEASE)
    ledger = os.open(directory / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def record_effect(context: JobContext) -> int:
        """Leave the effect of a run, with the number of the claim it rests on."""
        number = int(context._run.claim.token[1])
        os.write(ledger, f"{context.id} {number} {os.getpid()}\n".encode())
        return number

    @app.task(name="async_work", max_attempts=1)
    async def async_work(context: JobContext, seconds: float) -> dict[str, str | int]:
        number = record_effect(context)
        await asyncio.sleep(seconds)
        return {"claim": str(number), "pid": os.getpid()}

    @app.task(name="sync_work", max_attempts=1)
    def sync_work(context: JobContext, seconds: float) -> dict[str, str | int]:
        number = record_effect(context)
        signal.sigtimedwait([], seconds)
        return {"claim": str(number), "pid": os.getpid()}

    @app.task(name="kill_worker", max_attempts=1)
    async def kill_worker(context: JobContext) -> None:
        record_effect(context)
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)

    return app


app: App | None = None
if __name__ in {"__main__", "__mp_main__"}:  # here, and in the child processes that suspects run in
    app = make_app(sys.argv[1], Path(sys.argv[2]))


def main() -> int:
    """Work until killed, or asked to stop."""
    assert app is not None
    configure("json", level=logging.WARNING)
    logging.getLogger("onward.worker").setLevel(logging.INFO)
    options: dict[str, Any] = {
        "lease": LEASE,
        "leader_lease": LEASE,
        "concurrency": 10,
        "max_crashes": int(sys.argv[3]),
    }
    return serve(app.worker(**options), lifespan=app)


if __name__ == "__main__":
    sys.exit(main())
