"""Takes pictures of the dashboard: ``python -m tests.dashboard.screenshots [FOLDER] [--all]``.

Without ``--all`` it takes the pictures that the documentation shows, into docs/images.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

from onward import App
from onward.lifecycle import JobStatus
from tests.dashboard.browsing import open_browser, serve, visitor
from tests.dashboard.shop import fill, make_app, spread_usage

WIDTHS = (360, 768, 1280, 1920)


async def paths_of(app: App) -> dict[str, str]:
    """Name every screen, with a job in each state."""
    found = {
        "overview": "/",
        "jobs": "/jobs",
        "jobs-filtered": "/jobs?q=queue:mail+state:completed",
        "jobs-mistake": "/jobs?q=bogus:1",
        "jobs-none": "/jobs?q=type:nothing",
        "queues": "/queues",
        "queue": "/queues/mail",
        "queue-paused": "/queues/reports",
        "workers": "/workers",
        "schedules": "/schedules",
        "schedule": "/schedules/nightly-report",
        "schedule-form": "/schedules/nightly-report/edit",
        "batches": "/batches",
        "batch": "/batches/digest-2026-11-18",
        "batch-broken": "/batches/digest-2026-11-19",
        "dead": "/dead",
        "archive": "/archive",
        "usage": "/usage?range=hour",
        "operations": "/operations",
        "audit": "/audit",
        "tokens": "/tokens",
        "doctor": "/doctor",
        "error": "/jobs/00000000-0000-7000-8000-000000000000",
    }
    for status in JobStatus:
        jobs = (await app.jobs.list(status=[status], limit=1)).items
        if jobs:
            found[f"job-{status}"] = f"/jobs/{jobs[0].id}"
            if status is JobStatus.SCHEDULED:
                found["job-edit"] = f"/jobs/{jobs[0].id}/edit"
    return found


async def take(folder: Path, *, everything: bool) -> None:
    """Take the pictures."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        app = make_app("sqlite:///shop.db")
        await fill(app, jobs=80, with_usage=False)
        spread_usage("shop.db")
        async with serve(app) as site, open_browser() as browser, app.worker(concurrency=4):
            running = await app.tasks["encode"].enqueue(video="/films/harbour.mkv")
            while (await app.jobs.get(running.ref)).progress is None:
                await asyncio.sleep(0.05)
            names = await paths_of(app)
            wanted = names if everything else {name: names[name] for name in ("overview", "job-running")}
            for theme in ("light", "dark"):
                for width in WIDTHS if everything else (1280,):
                    if not everything and theme == "dark":
                        continue
                    size = {"width": width, "height": 900 if width > 500 else 780}
                    async with visitor(browser, site, viewport=size, color_scheme=theme) as person:
                        for name, path in wanted.items():
                            await person.go(path, expect=None)
                            await person.page.wait_for_timeout(150)
                            picture = folder / (f"{name}-{width}-{theme}.png" if everything else f"{name}.png")
                            await person.page.screenshot(path=picture, full_page=everything)
                            wide = await person.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                            if wide > 0:
                                print(f"{name} at {width} px is {wide} px too wide")
        await app.close()


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if not word.startswith("--")]
    default = Path(__file__).parents[2] / "docs" / "images"
    target = Path(given[0]) if given else default
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(target.absolute(), everything="--all" in sys.argv))
