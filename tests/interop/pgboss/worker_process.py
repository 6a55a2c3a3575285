"""A Python worker that is meant to be killed: ``python -m tests.interop.pgboss.worker_process URL QUEUE``.

What a run returns names the claim it rests on, so that a test can tell whose outcome was recorded.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

from onward.app import App
from onward.context import JobContext
from onward.worker.serve import serve

LEASE = timedelta(seconds=2)


def main() -> int:
    """Work until killed, or asked to stop."""
    url, queue = sys.argv[1:]
    app = App(url, lease=LEASE)

    @app.task(name=queue, queue=queue)
    async def labour(context: JobContext, n: int, seconds: float) -> dict[str, Any]:
        _, _, retry_count, began, *_ = context._run.claim.token
        await asyncio.sleep(seconds)
        return {"by": "python", "n": n, "run": [retry_count, began]}

    return serve(app.worker(queues=[queue], concurrency=5, lease=LEASE, leader_lease=LEASE), lifespan=app)


if __name__ == "__main__":
    sys.exit(main())
