"""A made-up shop with something on every screen: for tests, screenshots and people who want to look.

``python -m tests.dashboard.shop [URL]`` fills a store, serves it with a worker, and prints a one-time login code.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import sys
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

from onward import App, JobContext
from onward.core import core_of
from onward.engine.capabilities import Feature
from onward.engine.values import QueueChange, Rate
from onward.metering import BUCKETS, Usage
from onward.service.identity import of_user
from onward.service.services import Services
from onward.service.values import TokenRequest

ROOT = of_user("ada", role="admin")
ORGS = ("acme", "globex", "initech")


class SmtpTimeout(Exception):
    pass


def make_app(url: str = "sqlite://") -> App:
    app = App(url)

    @app.task(queue="mail", max_attempts=5)
    async def send_mail(to: str, subject: str = "Hello", password: str | None = None, order: int = 0) -> str:
        if order % 7 == 3:
            raise SmtpTimeout("smtp.example.com:587 did not answer within 10 s")
        return f"queued as {order:06x}"

    @app.task(queue="images")
    async def resize(context: JobContext, path: str, sizes: list[int] | None = None) -> dict[str, Any]:
        context.log(f"reading {path}")
        context.set_progress(47, "third of six sizes")
        context.log("wrote 320 × 240")
        return {"path": path, "sizes": sizes or [320, 640]}

    @app.task(queue="billing", max_attempts=1)
    def charge(invoice: str, amount: float = 0.0) -> None:
        raise KeyError("invoice_id")

    @app.task(queue="reports")
    async def report(month: str = "2026-10") -> str:
        return f"report of {month}"

    @app.task(queue="digest")
    async def fetch(url: str) -> str:
        return f"text of {url}"

    @app.task(queue="digest")
    async def join_pages(edition: int = 0) -> int:
        return edition

    @app.task(queue="images")
    async def encode(context: JobContext, video: str) -> None:
        context.log(f"probing {video}")
        context.set_progress(62, "frame 7 440 of 12 000")
        context.log("pass 1 of 2")
        await asyncio.sleep(3600)

    return app


async def fill(app: App, *, jobs: int = 60, with_usage: bool = True) -> None:
    """Fill a store with a bit of everything. Runs some jobs by ticks, so no worker is needed."""
    tasks = app.tasks
    chance = random.Random(7)
    has = app.capabilities.has

    def org(at: int) -> dict[str, Any]:
        return {"org_id": ORGS[at % 3]} if has(Feature.ORGANISATIONS) else {}

    if app.capabilities.is_shared:
        engine = await core_of(app).opened()
        for queue in ("mail", "images", "billing", "reports", "digest"):
            with contextlib.suppress(Exception):
                await engine.configure(queue, QueueChange())
    for at in range(jobs):
        await (
            tasks["send_mail"]
            .using(**org(at))
            .enqueue(
                to=f"customer{at}@example.com", subject="Your order has shipped", password="hunter2-secret", order=at
            )
        )
        if at % 4 == 0:
            await tasks["resize"].using(**org(at)).enqueue(path=f"/uploads/{at:04d}.jpg", sizes=[320, 640, 1280])
        if at % 12 == 0:
            await (
                tasks["charge"]
                .using(**org(at))
                .enqueue(invoice=f"INV-{at:05d}", amount=round(chance.uniform(5, 90), 2))
            )
    if has(Feature.BATCHES):
        flow = app.flow("digest-2026-11-18")
        pages = [
            flow.add(tasks["fetch"].job(url=f"https://{name}.example/news")) for name in ("alpha", "beta", "gamma")
        ]
        joined = flow.add(tasks["join_pages"].job(edition=7), after=pages)
        flow.add(tasks["send_mail"].job(to="readers@example.com", subject="The digest", order=1), after=joined)
        await flow.start()
    await app.tick(jobs, timeout=60)
    if has(Feature.BATCHES):
        flow = app.flow("digest-2026-11-19")
        broken = flow.add(tasks["charge"].job(invoice="INV-99999"))
        pages = [flow.add(tasks["fetch"].job(url=f"https://{name}.example/news")) for name in ("alpha", "beta")]
        joined = flow.add(tasks["join_pages"].job(edition=8), after=[broken, *pages])
        flow.add(tasks["send_mail"].job(to="readers@example.com", order=1), after=joined)
        await flow.start()
    if has(Feature.DELAY):
        for at in range(6):
            await tasks["report"].using(delay=timedelta(minutes=5 + at)).enqueue(month=f"2026-{at + 1:02d}")
    waiting = [await tasks["report"].enqueue(month=f"2025-{at + 1:02d}") for at in range(4)]
    cancelled = waiting[0]
    await app.jobs.cancel(cancelled.ref, reason="the customer has left")
    if has(Feature.SCHEDULES):
        services = Services(app)
        from onward.service.values import EnqueueRequest, ScheduleRequest  # noqa: PLC0415

        for name, cron in (("nightly-report", "30 6 * * mon-fri"), ("hourly-sync", "0 * * * *")):
            request = ScheduleRequest(job=EnqueueRequest(type="report", payload={"month": "2026-11"}), cron=cron)
            await services.schedules.set(ROOT, name, request)
        trigger: dict[str, Any] = {"every": 900} if has(Feature.INTERVALS) else {"cron": "*/15 * * * *"}
        every = ScheduleRequest(job=EnqueueRequest(type="report", payload={}), **trigger)
        await services.schedules.set(ROOT, "every-quarter", every)
        await services.schedules.pause(ROOT, "every-quarter")
    engine = await core_of(app).opened()
    if has(Feature.PAUSE):
        await Services(app).queues.pause(ROOT, "reports", reason="the data warehouse is being moved")
    if has(Feature.RATE) and not app.capabilities.is_shared:
        await engine.configure("mail", QueueChange(rate=Rate(600), global_concurrency=50))
    if has(Feature.USAGE) and with_usage:
        await _past_usage(app, chance)


async def _past_usage(app: App, chance: random.Random) -> None:
    """Count runs that were never made, so that charts have a day to show."""
    engine = await core_of(app).opened()
    for queue, type, size in (("mail", "send_mail", 90), ("images", "resize", 40), ("digest", "fetch", 12)):
        for outcome, share in (("completed", 1.0), ("retried", 0.04)):
            runs = max(1, int(size * share * chance.uniform(0.7, 1.3)))
            await engine.record_usage(
                [Usage(queue=queue, type=type, outcome=outcome, runs=runs, attempts=runs,
                       wait_seconds=runs * 0.08, run_seconds=runs * 0.4, wait_histogram=[0, runs] + [0] * 9,
                       run_histogram=[0, 0, 0, runs] + [0] * 7)]
            )  # fmt: skip


def spread_usage(path: str) -> None:
    """Spread made-up runs over the last hour of an SQLite store: a store counts only what runs now."""
    chance, now = random.Random(11), int(time.time()) // 60 * 60
    sums = [f"wait_bucket_{number}" for number in range(BUCKETS)] + [
        f"run_bucket_{number}" for number in range(BUCKETS)
    ]
    with closing(sqlite3.connect(path)) as connection, connection:
        columns = {row[1] for row in connection.execute("pragma table_info(onward_usage)")}
        names = ["grain", "at", "queue", "type", "outcome", "runs", "attempts", "wait_us", "run_us", *sums]
        assert columns.issuperset(names)
        grain = connection.execute("select max(grain), min(grain) from onward_usage").fetchone()[1]
        for queue, type, size in (("mail", "send_mail", 260), ("images", "resize", 120), ("digest", "fetch", 30)):
            level = 1.0
            for minute in range(59, 0, -1):
                level = min(1.5, max(0.4, level + chance.uniform(-0.12, 0.12)))
                trouble = 0.18 if 20 < minute < 26 and queue == "mail" else 0.01
                for outcome, share in (("completed", 1.0), ("retried", trouble)):
                    runs = int(size * level * share)
                    values = [grain, (now - 60 * minute) * 1_000_000, queue, type, outcome, runs, runs]
                    values += [runs * 80_000, runs * 300_000] + [0, runs] + [0] * 9 + [0, 0, 0, runs] + [0] * 7
                    marks = ", ".join("?" * len(names))
                    connection.execute(f"insert into onward_usage ({', '.join(names)}) values ({marks})", values)


async def token(app: App, role: str = "admin", **fields: Any) -> str:
    """Create a token and return its secret."""
    request = TokenRequest(name=f"{role}-of-the-shop", role=role, **fields)  # type: ignore[arg-type]
    return (await Services(app).access.create_token(ROOT, request)).secret


async def _look(url: str) -> None:
    import uvicorn  # noqa: PLC0415

    from onward.http import asgi  # noqa: PLC0415

    app = make_app(url)
    await fill(app)
    code, text = await Services(app).access.create_login_code(ROOT)
    server = uvicorn.Server(uvicorn.Config(asgi(app, login_code=code), port=8300, log_level="warning"))
    print(f"http://127.0.0.1:8300/\none-time login code: {text}", flush=True)
    async with app.worker(concurrency=4):
        await app.tasks["encode"].enqueue(video="/films/harbour.mkv")
        await server.serve()


if __name__ == "__main__":
    asyncio.run(_look(sys.argv[1] if len(sys.argv) > 1 else "sqlite://"))
