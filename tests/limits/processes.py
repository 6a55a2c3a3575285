"""The role of another process: it takes permits until it has had its share."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

from onward.limits import Limit, Pace, Rate
from tests.engines.sqlite.processes import ready
from tests.limits.stores import STORES

SHARE = 80


def taker(pipe: Connection, kind: str, folder: str, schema: str, address: str, count: int) -> None:
    """Take permits of two keys, each in a transaction, and send the times at which they were used."""
    os.environ["ONWARD_TEST_POSTGRES"] = address
    store = STORES[kind](Path(folder), schema)
    limiter, connection = store.limiter(), store.connect()
    rate = Rate(count, timedelta(seconds=1))
    limits = [Limit("one", rate=rate), Limit("other", rate=rate)]
    ready(pipe)
    used: list[int] = []
    while len(used) < SHARE:
        asked = time.monotonic()
        permits = limiter.sync.take(limits if len(used) % 2 else limits[::-1], connection=connection)
        connection.commit()
        if not permits:
            assert permits.retry_after is not None
            time.sleep(permits.retry_after.total_seconds())
        elif time.monotonic() - asked > Pace.of(rate).start_within:
            limiter.sync.give_up(permits, connection=connection)
            connection.commit()
        else:
            used.append(time.time_ns() // 1000)
    connection.close()
    pipe.send(used)
