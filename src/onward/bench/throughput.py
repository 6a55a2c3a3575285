"""How many jobs a second: in, one by one and in bulk, and out."""

from __future__ import annotations

from onward.bench import scenarios
from onward.bench.environment import Ground
from onward.bench.handlers import NAP, Handler
from onward.bench.isolated import apart, together
from onward.bench.report import Report
from onward.bench.statistics import Pace, Paces, Side, Tell, take_turns
from onward.bench.verification import is_accounted_for
from onward.bench.workers import Crew


class _Account:
    """Whether all rounds could be accounted for."""

    def __init__(self, ground: Ground, jobs: int) -> None:
        self.holds = True
        self._ground = ground
        self._jobs = jobs

    def close(self, url: str, ran: list[int] | None = None) -> None:
        """Look whether each job of a store was completed once; run them first if that has not been done."""
        if ran is None:
            ran = apart(scenarios.drain, url, self._jobs, 100).ran
        self.holds &= len(ran) == self._jobs and is_accounted_for(url, ran)
        self._ground.remove(url)


def drain(
    ground: Ground,
    *,
    jobs: int,
    rounds: int,
    tell: Tell,
    handler: Handler,
    concurrency: int,
    batch: int | None = None,
    processes: int = 1,
) -> Report:
    """Run jobs that are there already: the worker's own start is not counted, storing every outcome is."""
    account = _Account(ground, jobs)

    def by_one(handler: Handler) -> Side:
        def measure() -> Pace:
            url = ground.fresh()
            apart(scenarios.fill, url, handler, jobs)
            drained = apart(scenarios.drain, url, jobs, concurrency)
            account.close(url, drained.ran)
            return drained.pace

        return measure

    def by_several(workers: int) -> Side:
        def measure() -> Pace:
            url = ground.fresh()
            apart(scenarios.fill, url, handler, jobs, paused=True)
            with Crew(url, workers=workers, concurrency=concurrency) as crew:
                apart(scenarios.resume, url)
                crew.wait_for(jobs)
            account.close(url, crew.ran)
            return crew.pace

        return measure

    sides: dict[str, Side] = {"onward": by_one(handler) if processes == 1 else by_several(processes)}
    if handler is Handler.SLEEP10:
        against = "as many sleeps at once by asyncio alone"
        sides["raw"] = lambda: apart(scenarios.sleep_without_a_queue, jobs, concurrency, NAP)
    else:
        against = f"{ground.bare.name}, finished rows kept" + (f", {batch} at a time" if batch else "")
        sides["raw"] = lambda: ground.bare.drain(jobs, batch)
    if handler is Handler.DEF:
        sides["async"] = by_one(Handler.ASYNC)
    if processes > 1:
        sides["one"] = by_several(1)
    paces = take_turns(rounds, sides, tell)

    more: dict[str, float | str] = {"handler": handler.value, **_cpu(paces)}
    if handler is Handler.DEF:
        more |= {"async": paces.rate("async"), "of_async": paces.rate("onward") / paces.rate("async")}
    if processes > 1:
        more |= {"processes": processes, "one": paces.rate("one"), "of_one": paces.rate("onward") / paces.rate("one")}
    if handler is Handler.SLEEP10:
        # From the first start to the last, the last row of hands has yet to sleep.
        ideal = (jobs - 1) / (max(-(-jobs // (concurrency * processes)) - 1, 1) * NAP)
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


def enqueue(ground: Ground, *, jobs: int, rounds: int, tell: Tell, callers: int, producers: int = 1) -> Report:
    """Enqueue one by one, each durable before the next; with several callers, each waits for its own."""
    account = _Account(ground, jobs)

    def alone() -> Pace:
        url = ground.fresh()
        apart(scenarios.fill, url, Handler.ASYNC, 0)  # the schema is made by nobody's watch
        pace = together(producers, scenarios.enqueue, url, jobs)
        account.close(url)
        return pace

    def by_callers() -> Pace:
        url = ground.fresh()
        pace = apart(scenarios.enqueue_together, url, jobs, callers)
        account.close(url)
        return pace

    sides: dict[str, Side] = {
        "onward": alone if callers == 1 else by_callers,
        "raw": lambda: ground.bare.insert(jobs, producers),
    }
    if callers > 1:
        sides["single"] = alone
    paces = take_turns(rounds, sides, tell)
    more: dict[str, float | int] = {"callers": callers, **_cpu(paces)}
    if producers > 1:
        more["producers"] = producers
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
        against=f"one durable insert after the other, by {ground.bare.name}",
        rounds=rounds,
        more=more,
    )


def bulk(ground: Ground, *, jobs: int, rounds: int, tell: Tell, batch: int) -> Report:
    """Enqueue in batches, each durable before the next."""
    account = _Account(ground, jobs)

    def onward() -> Pace:
        url = ground.fresh()
        pace = apart(scenarios.enqueue_many, url, jobs, batch)
        account.close(url)
        return pace

    bare = ground.bare.in_bulk(jobs, batch)
    paces = take_turns(rounds, {"onward": onward, **bare}, tell)
    ways = {way: paces.rate(way) for way in bare}
    best = max(ways, key=lambda way: ways[way])
    return Report(
        engine=ground.engine,
        scenario="bulk",
        jobs=jobs,
        onward=paces.rate("onward"),
        raw=ways[best],
        unit="jobs/s",
        verified=account.holds,
        against=f"{ground.bare.name}, {batch} in a transaction, by {best}, the faster way",
        rounds=rounds,
        more={"batch": batch, **ways, **_cpu(paces, best)},
    )


def _cpu(paces: Paces, raw: str = "raw") -> dict[str, float]:
    """Compare processor time: what still means something on a machine that is busy with other things."""
    onward, bare = paces.cpu_per_job("onward"), paces.cpu_per_job(raw)
    if not onward or not bare:
        return {}
    return {"cpu_us": onward * 1e6, "raw_cpu_us": bare * 1e6}
