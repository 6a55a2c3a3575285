"""Names, payloads, errors, log lines and every other text are shown as text (X6)."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.async_api import Browser

from onward import App
from onward.dashboard.wording import visible
from onward.http.names import encode_name
from onward.job import Job
from tests.dashboard.browsing import serve, visitor
from tests.dashboard.hostile import CORPUS, fill_with

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


async def test_no_text_of_the_corpus_becomes_markup_or_script(browser: Browser):  # X6, D6
    assert len(CORPUS) >= 200
    app = App("sqlite://")
    await fill_with(app, CORPUS)
    async with serve(app) as site, visitor(browser, site, viewport={"width": 1600, "height": 900}) as person:
        reports: list[str] = []

        def report(directive: str) -> None:
            reports.append(directive)

        await person.context.expose_function("reportViolation", report)
        await person.context.add_init_script(
            "addEventListener('securitypolicyviolation', event => reportViolation(event.violatedDirective))"
        )
        name = encode_name(CORPUS[0][:120])
        paths = ["/", "/queues", "/queues/bad", "/queues/waiting", "/workers", "/schedules", "/batches"]
        paths += [f"/batches/{name}", "/usage?by=type&range=hour", "/usage?by=org_id&range=hour", "/audit", "/tokens"]
        paths += ["/doctor", "/operations", "/archive", "/dead"]
        for list_path in ("/jobs", "/dead"):
            cursor = None
            for _ in range(8):
                path = f"{list_path}?cursor={quote(cursor)}" if cursor else list_path
                page = await person.go(path)
                older = page.get_by_role("link", name="Older →")
                if not await older.count():
                    break
                cursor = (await older.get_attribute("href") or "").rpartition("cursor=")[2]
        one_of_each: list[Job] = []
        for status in ("pending", "running", "completed", "dead_letter", "cancelled"):
            one_of_each += (
                await app.jobs.list(status=[status], limit=12 if status in {"completed", "dead_letter"} else 2)
            ).items
        paths += [f"/jobs/{job.id}" for job in one_of_each]
        paths += [f"/jobs/{job.id}/{form}" for job in one_of_each[:2] for form in ("edit", "copy")]
        first = next(iter(await app.schedules.list()))
        paths += [f"/schedules/{encode_name(first.name)}", f"/schedules/{encode_name(first.name)}/edit"]
        paths += [f"/jobs?q={quote(text)}" for text in CORPUS[:26]]
        paths += [f"/jobs?q={quote(f'type:{text}')}&note={quote(text)}&cursor=" for text in CORPUS[26:40]]
        paths += [f"/queues?pattern={quote(text)}" for text in CORPUS[40:50]]
        paths += [f"/queues/{encode_name(text)}" for text in CORPUS[50:60]]
        paths += [f"/login?next={quote(text)}" for text in CORPUS[60:70]]
        paths += [f"/audit?actor={quote(text)}" for text in CORPUS[70:80]]
        for path in paths:
            await person.go(path, expect=None)
            # What is on the page as an element is ours: none of these is.
            made = await person.page.locator(
                "main :is(script, iframe, object, embed, video, marquee, base, meta, style)"
            ).count()
            assert made == 0, path
            assert await person.page.locator("[onerror], [onload], [onclick], [ontoggle], [onfocus]").count() == 0, path
        job = one_of_each[0]
        await person.go(f"/jobs/{job.id}")
        assert visible(job.type) in await person.page.locator("h1").inner_text()
        assert reports == []
        assert (await person.page.goto(f"{site.root}/jobs/{job.id}")) is not None
    await app.close()


async def test_text_that_reverses_other_text_is_made_visible(browser: Browser):  # X6
    app = App("sqlite://")
    await fill_with(app, ("harmless", "w1", "h", "v", "q", "t", "r", "b", "c", "x\u202egnp.exe"))
    async with serve(app) as site, visitor(browser, site) as person:
        page = await person.go("/jobs")
        text = await page.inner_text("main")
        assert "\u202e" not in text
        assert "x\\u202egnp.exe" in text
    await app.close()
