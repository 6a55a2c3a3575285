"""How many jobs a second: in, one by one and in bulk, and out."""

from __future__ import annotations

from onward.bench import bare_sqlite, product
from onward.bench.account import is_accounted_for
from onward.bench.apart import apart
from onward.bench.ground import Ground
from onward.bench.handlers import NAP, Handler
from onward.bench.pace import Pace, Paces, Side, Tell, take_turns
from onward.bench.report import Report


class _Account:
    """Whether all rounds could be accounted for."""

    def __init__(self, ground: Ground, jobs: int) -> None:
        self.holds = True
        self._ground = ground
        self._jobs = jobs

    def close(self, url: str, drained: product.Drained | None = None) -> None:
        """Look whether each job of a store was completed once; run them first if that has not been done."""
        if drained is None:
            drained = apart(product.drain, url, self._jobs, 100)
        self.holds &= len(drained.ran) == self._jobs and is_accounted_for(url, drained.ran)
        self._ground.remove(url)


def drain(
    ground: Ground, *, jobs: int, rounds: int, tell: Tell, handler: Handler, concurrency: int, batch: int
) -> Report:
    """Run jobs that are there already: the worker's own start is not counted, storing every outcome is."""
    account = _Account(ground, jobs)

    def onward(handler: Handler) -> Side:
        def measure() -> Pace:
            url = ground.fresh()
            apart(product.fill, url, handler, jobs)
            drained = apart(product.drain, url, jobs, concurrency)
            account.close(url, drained)
            return drained.pace

        return measure

    sides: dict[str, Side] = {"onward": onward(handler)}
    if handler is Handler.SLEEP10:
        against = "as many sleeps at once by asyncio alone"
        sides["raw"] = lambda: apart(product.sleep_without_a_queue, jobs, concurrency, NAP)
    else:
        against = f"SQLite alone, {batch} at a time, finished rows kept"
        sides["raw"] = lambda: apart(bare_sqlite.drain, *ground.fresh_bare(), jobs, batch)
    if handler is Handler.DEF:
        sides["async"] = onward(Handler.ASYNC)
    paces = take_turns(rounds, sides, tell)

    more: dict[str, float | str] = {"handler": handler.value, **_cpu(paces)}
    if handler is Handler.DEF:
        more |= {"async": paces.rate("async"), "of_async": paces.rate("onward") / paces.rate("async")}
    if handler is Handler.SLEEP10:
        # From the first start to the last, the last row of hands has yet to sleep.
        ideal = (jobs - 1) / (max(-(-jobs // concurrency) - 1, 1) * NAP)
        more |= {"ideal": ideal, "of_ideal": paces.rate("onward") / ideal}
    return Report(
        engine=ground.engine,
        scenario="drain",
        jobs=jobs,
        onward=paces.rate("onward"),
        raw=paces.rate("raw"),
        unit="jobs/s",
        verified=account.holds,
        against=against,
        rounds=rounds,
        more=more,
    )


def enqueue(ground: Ground, *, jobs: int, rounds: int, tell: Tell, callers: int) -> Report:
    """Enqueue one by one, each durable before the next; with several callers, each waits for its own."""
    account = _Account(ground, jobs)

    def alone() -> Pace:
        url = ground.fresh()
        pace = apart(product.enqueue, url, jobs)
        account.close(url)
        return pace

    def together() -> Pace:
        url = ground.fresh()
        pace = apart(product.enqueue_together, url, jobs, callers)
        account.close(url)
        return pace

    sides: dict[str, Side] = {
        "onward": alone if callers == 1 else together,
        "raw": lambda: apart(bare_sqlite.insert, *ground.fresh_bare(), jobs),
    }
    if callers > 1:
        sides["single"] = alone
    paces = take_turns(rounds, sides, tell)
    more: dict[str, float | int] = {"callers": callers, **_cpu(paces)}
    if callers > 1:
        more |= {"single": paces.rate("single"), "of_single": paces.rate("onward") / paces.rate("single")}
    return Report(
        engine=ground.engine,
        scenario="enqueue",
        jobs=jobs,
        onward=paces.rate("onward"),
        raw=paces.rate("raw"),
        unit="jobs/s",
        verified=account.holds,
        against="one durable insert after the other, by SQLite alone",
        rounds=rounds,
        more=more,
    )


def bulk(ground: Ground, *, jobs: int, rounds: int, tell: Tell, batch: int) -> Report:
    """Enqueue in batches, each durable before the next."""
    account = _Account(ground, jobs)

    def onward() -> Pace:
        url = ground.fresh()
        pace = apart(product.enqueue_many, url, jobs, batch)
        account.close(url)
        return pace

    paces = take_turns(
        rounds,
        {
            "onward": onward,
            "executemany": lambda: apart(bare_sqlite.insert_by_executemany, *ground.fresh_bare(), jobs, batch),
            "json_each": lambda: apart(bare_sqlite.insert_by_json, *ground.fresh_bare(), jobs, batch),
        },
        tell,
    )
    ways = {way: paces.rate(way) for way in ("executemany", "json_each")}
    best = max(ways, key=lambda way: ways[way])
    return Report(
        engine=ground.engine,
        scenario="bulk",
        jobs=jobs,
        onward=paces.rate("onward"),
        raw=ways[best],
        unit="jobs/s",
        verified=account.holds,
        against=f"SQLite alone, {batch} in a transaction, by {best}, the faster way",
        rounds=rounds,
        more={"batch": batch, **ways, **_cpu(paces, best)},
    )


def _cpu(paces: Paces, raw: str = "raw") -> dict[str, float]:
    """Compare processor time: what still means something on a machine that is busy with other things."""
    onward, bare = paces.cpu_per_job("onward"), paces.cpu_per_job(raw)
    if not onward or not bare:
        return {}
    return {"cpu_us": onward * 1e6, "raw_cpu_us": bare * 1e6}
