"""Two apps with different tasks on one store: neither fails, loses or runs a job of the other (O8).

The short forms run with the other tests. The long one, with kills, by ``make chaos``.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from onward import App, NewJob
from tests.chaos import ledger
from tests.chaos.fleet import Fleet
from tests.worker.harness import eventually

PROGRAM = """
from onward import App, JobContext
from tests.chaos.ledger import record

app = App(lease=2)

@app.task
async def {name}_async(context: JobContext, number: int) -> dict[str, object]:
    return record(context, "{name}", number)

@app.task
def {name}_plain(context: JobContext, number: int) -> dict[str, object]:
    return record(context, "{name}", number)
"""
APPS = ("shop", "blog")
NO_JOBS: dict[str, object] = {"jobs": [], "next_cursor": None}


@pytest.fixture
def apps(fleet: Fleet) -> Fleet:
    """Both programs, in the same queue."""
    for name in APPS:
        fleet.write(name, PROGRAM.format(name=name))
    return fleet


def types_of(name: str) -> tuple[str, str]:
    return f"{name}_async", f"{name}_plain"


async def enqueue(app: App, name: str, jobs: int) -> dict[str, str]:
    """Add jobs of a program, of both kinds; answer which program must run each."""
    new = [NewJob(type=types_of(name)[number % 2], payload=f'{{"number": {number}}}') for number in range(jobs)]
    return {handle.id: name for handle in await app.enqueue_many(new)}


async def test_a_worker_leaves_the_jobs_of_the_other_app_alone_across_a_restart(apps: Fleet):  # O8
    own, foreign = await enqueue(apps.app, "shop", 6), await enqueue(apps.app, "blog", 6)
    shop = apps.work("shop:app")
    await apps.ended(own)
    await apps.stop(shop)
    shop = apps.work("shop:app")
    later = await enqueue(apps.app, "shop", 2)
    await apps.ended(later)
    await eventually(lambda: apps.log().count('"outcome":"snooze"') > len(foreign), timeout=60)
    report = await apps.command_json("doctor", code=1)
    assert [type_ for type_ in types_of("blog") if f"no worker has a task '{type_}'" in str(report)] == [
        *types_of("blog")
    ]
    assert await apps.command_json("jobs", "list", "--status", "failed", "--status", "dead_letter") == NO_JOBS
    blog = apps.work("blog:app")
    await apps.serves(*types_of("blog"))
    await apps.stop(shop)
    await apps.ended(foreign)
    await apps.stop(blog)
    await apps.verify(own | foreign | later)


async def test_workers_of_both_apps_share_a_queue(apps: Fleet):  # O8
    shop, blog = (apps.work(f"{name}:app") for name in APPS)
    await apps.serves(*types_of("shop"), *types_of("blog"))
    of_shop, of_blog = await enqueue(apps.app, "shop", 8), await enqueue(apps.app, "blog", 8)
    # Unless each happens to claim its own.
    await eventually(lambda: '"outcome":"snooze"' in apps.log() or len(ledger.read(apps.folder)) == 16, timeout=60)
    await apps.stop(shop)
    await apps.ended(of_blog)
    shop = apps.work("shop:app")
    await apps.stop(blog)
    await apps.serves(*types_of("shop"))
    await apps.ended(of_shop)
    await apps.stop(shop)
    await apps.verify(of_shop | of_blog)


@pytest.mark.slow
async def test_neither_app_keeps_the_other_from_its_jobs(apps: Fleet):  # O8
    workers = [apps.work(f"{name}:app") for name in APPS]
    await apps.serves(*types_of("shop"), *types_of("blog"))
    expected = await enqueue(apps.app, "shop", 12) | await enqueue(apps.app, "blog", 12)
    await apps.ended(expected, timeout=30)
    await apps.stop(*workers)
    await apps.verify(expected)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_workers_of_both_apps_are_killed_and_restarted(apps: Fleet):  # O8, X3
    workers = {f"{name}:{number}": apps.work(f"{name}:app") for name in APPS for number in range(2)}
    await apps.serves(*types_of("shop"), *types_of("blog"))
    expected: dict[str, str] = {}
    for _ in range(20):
        for name in APPS:
            expected |= await enqueue(apps.app, name, 20)
        await asyncio.sleep(random.uniform(0, 1))
        victim = random.choice(list(workers))
        apps.kill(workers[victim])
        workers[victim] = apps.work(f"{victim.split(':')[0]}:app")
    await apps.ended(expected, timeout=600)
    await apps.stop(*workers.values())
    await apps.verify(expected, once=False)
