"""Many processes on one limited queue, some of them killed: when did each handler start?

``run()`` starts the processes, kills the given number of them at random moments, and reads the ledger afterwards. Each
process is a worker reduced to what matters here: claim, look whether the handler may still start, start it, settle.
At its start a handler writes the time by a clock of its own, not the store's, to a file of its own: fixed-size records,
written at once, so that a killed process leaves whole ones.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from onward.engine.values import Claim, ClaimRequest, Exchange, QueueChange, Rate, Settlement
from onward.engines.sqlite.engine import SQLiteEngine
from onward.job import NewJob
from onward.lifecycle import Complete, Release

QUEUE = "send-message/campaign-42"
SLOTS = 4
RECORD = struct.Struct("<qq")
REPOSITORY = Path(__file__).parents[2]
START_TIMEOUT = 120.0
"""Seconds until the first handler must have started; never reached where all is well."""


@dataclass(frozen=True)
class RateReport:
    """What a run came to."""

    rate: Rate
    processes: int
    killed: int
    seconds: float
    starts: int
    """Handler starts within ``seconds`` of the first."""
    worst_window: int
    """The most handler starts in any half-open window of the rate's period."""
    started_twice: int

    @property
    def used(self) -> float:
        """The share of the rate that was used."""
        return self.starts / (self.rate.count * self.seconds / self.rate.period.total_seconds())

    def __str__(self) -> str:
        return (
            f"{self.processes} processes, {self.killed} killed -9, {self.rate.count} per {self.rate.period}: "
            f"{self.starts} starts in {self.seconds:g} s = {self.used:.1%} of the rate; "
            f"worst half-open window {self.worst_window} of {self.rate.count}; started twice: {self.started_twice}"
        )


def run(folder: Path, *, rate: Rate, processes: int, kills: int, seconds: float, seed: int = 1) -> RateReport:
    """Let processes work on one limited queue for so many seconds, and account for every start."""
    path, ledgers = folder / "jobs.db", folder / "ledgers"
    ledgers.mkdir()
    asyncio.run(_prepare(path, rate, jobs=round(1.5 * rate.count * seconds / rate.period.total_seconds()) + rate.count))
    command = [sys.executable, "-m", "tests.chaos.rate_run", str(path)]
    workers = [
        subprocess.Popen([*command, str(ledgers / str(number))], cwd=REPOSITORY, stdin=subprocess.PIPE)
        for number in range(processes)
    ]
    killed = 0
    try:
        _start_together(workers, ledgers)
        first = _first_start(ledgers)
        rng = random.Random(seed)
        moments = sorted(rng.uniform(0.05, 0.9) * seconds for _ in range(kills))
        for moment, victim in zip(moments, rng.sample(workers, kills), strict=True):
            _wait_until(first + moment)
            victim.send_signal(signal.SIGKILL)
            killed += victim.wait() == -signal.SIGKILL
        _wait_until(first + seconds)
        assert all(worker.poll() is None for worker in workers if worker.returncode is None), (
            "a worker has ended by itself"
        )
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    records = _read(ledgers)
    starts = sorted(at for at, _ in records if at < records[0][0] + seconds * 1e9)
    return RateReport(
        rate=rate,
        processes=processes,
        killed=killed,
        seconds=seconds,
        starts=len(starts),
        worst_window=worst_window([at for at, _ in records], round(rate.period.total_seconds() * 1e9)),
        started_twice=len(records) - len({job for _, job in records}),
    )


def worst_window(starts: list[int], period: int) -> int:
    """Count the most starts that any half-open window of the period holds."""
    max_starts = first = 0
    for index, start in enumerate(starts):
        while start - starts[first] >= period:
            first += 1
        max_starts = max(max_starts, index - first + 1)
    return max_starts


async def _prepare(path: Path, rate: Rate, *, jobs: int) -> None:
    engine = SQLiteEngine(path)
    await engine.open()
    await engine.configure(QUEUE, QueueChange(rate=rate))
    await engine.enqueue([NewJob(type="send", queue=QUEUE)] * jobs)
    await engine.close()


def _read(ledgers: Path) -> list[tuple[int, int]]:
    records: list[tuple[int, int]] = []
    for ledger in ledgers.iterdir():
        text = ledger.read_bytes()
        records += RECORD.iter_unpack(text[: len(text) // RECORD.size * RECORD.size])
    return sorted(records)


def _start_together(workers: Sequence[subprocess.Popen[bytes]], ledgers: Path) -> None:
    """Wait until every process has opened its ledger and the store, then give the word."""
    deadline = time.monotonic() + START_TIMEOUT
    while len(list(ledgers.iterdir())) < len(workers):
        assert time.monotonic() < deadline, "not every process has come up"
        time.sleep(0.01)
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"begin\n")
        worker.stdin.flush()


def _first_start(ledgers: Path) -> float:
    deadline = time.monotonic() + START_TIMEOUT
    while not (records := _read(ledgers)):
        assert time.monotonic() < deadline, "no handler has started"
        time.sleep(0.01)
    return records[0][0] / 1e9


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


# The other processes --------------------------------------------------------------------------------------------------


async def work(path: Path, ledger: Path) -> None:
    """Claim, start and settle until killed."""
    engine = SQLiteEngine(path, busy_timeout=30)
    await engine.open()
    ledger_file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    await asyncio.to_thread(sys.stdin.readline)
    request = ClaimRequest(worker_id=ledger.name, queues=(QUEUE,), slots=SLOTS, lease=timedelta(hours=1))
    settlements: tuple[Settlement, ...] = ()
    while True:
        requested_at = time.monotonic_ns()
        claimed = (await engine.exchange(Exchange(settlements=settlements, request=request))).claimed
        settlements = tuple(_handle(claim, requested_at, ledger_file) for claim in claimed.claims)
        if not settlements:
            await asyncio.sleep(0.02 if claimed.retry_after is None else claimed.retry_after)


def _handle(claim: Claim, requested_at: int, ledger_file: int) -> Settlement:
    """Start the handler, unless it is too late for its slot: then somebody else's window has begun."""
    assert claim.start_within is not None
    started = time.monotonic_ns()
    if started - requested_at > claim.start_within * 1e9:
        return Settlement(claim, Release())
    os.write(ledger_file, RECORD.pack(started, int(claim.token[0])))
    return Settlement(claim, Complete())


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), Path(sys.argv[2])))
