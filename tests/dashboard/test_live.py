"""Live updates, without stealing focus, selection or typed text; keys; the store lost and found."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page

from onward.dashboard.pulse import Pulse
from onward.engine.values import JobFilter
from onward.errors import StoreUnavailable
from onward.lifecycle import JobStatus
from tests.dashboard.browsing import Site, visitor
from tests.dashboard.shop import ROOT
from tests.dashboard.test_actions import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


async def is_live(page: Page) -> None:
    await page.locator("#live[data-state=live]").wait_for(timeout=60_000)


async def test_a_change_in_the_store_is_shown_without_a_reload(browser: Browser, site: Site):  # D2
    async with visitor(browser, site) as person:
        page = await person.go("/jobs?q=state:pending")
        await is_live(page)
        await page.evaluate("window.stays = true")
        added = await site.app.tasks["report"].enqueue(month="2031-01")
        await page.locator(f"a[href$='{added.id}']").wait_for(timeout=60_000)
        assert await page.evaluate("window.stays")


async def test_a_jobs_page_follows_its_events(browser: Browser, site: Site):  # D2
    job = (await site.app.jobs.list(status=[JobStatus.PENDING], type="report")).items[0]
    async with visitor(browser, site) as person:
        page = await person.go(f"/jobs/{job.id}")
        await is_live(page)
        await site.app.jobs.cancel(job.ref, reason="of no use")
        await page.locator("h1 >> text=cancelled").wait_for(timeout=60_000)
        await page.locator("#timeline >> text=of no use").wait_for()
        assert await page.get_by_role("button", name="Replay").count() == 1


async def test_an_update_keeps_focus_selection_typed_text_and_checked_boxes(browser: Browser, site: Site):  # D2
    async with visitor(browser, site) as person:
        page = await person.go("/jobs")
        await is_live(page)
        box = page.locator("input[name=job]").nth(3)
        value = await box.get_attribute("value")
        await box.check()
        await page.focus("#q")
        await page.keyboard.type("state:pen")
        added = [await site.app.tasks["report"].enqueue(month=f"2032-{at:02d}") for at in range(5)]
        await page.locator(f"a[href$='{added[-1].id}']").wait_for(timeout=60_000)
        assert await page.evaluate("document.activeElement.id") == "q"
        assert await page.input_value("#q") == "state:pen"
        assert await page.locator(f"input[name=job][value='{value}']").is_checked()
        assert await page.locator("input[name=job]:checked").count() == 1
        # A selection holds updates back until it is gone.
        await page.evaluate(
            "getSelection().selectAllChildren(document.querySelector('main table tbody tr td:nth-child(3)'))"
        )
        chosen = await page.evaluate("getSelection().toString()")
        late = await site.app.tasks["report"].enqueue(month="2033-01")
        static = site.server.dashboard.static_path
        await page.evaluate(f"import('{static}/live.js').then(live => live.refresh())")
        assert await page.locator(f"a[href$='{late.id}']").count() == 0
        assert await page.evaluate("getSelection().toString()") == chosen
        await page.evaluate("getSelection().removeAllRanges()")
        await page.locator(f"a[href$='{late.id}']").wait_for(timeout=60_000)


async def test_tabs_share_one_stream_and_nobody_watching_reads_nothing(
    browser: Browser, site: Site, monkeypatch: pytest.MonkeyPatch
):  # D2
    reads = 0
    real = Pulse._beat

    async def counted(self: Pulse) -> Any:
        nonlocal reads
        reads += 1
        return await real(self)

    monkeypatch.setattr(Pulse, "_beat", counted)
    streams = site.server.dashboard._streams
    async with visitor(browser, site) as person:
        pages = [await person.context.new_page() for _ in range(4)]
        for page in pages:
            await page.goto(site.root + "/queues")
        for page in pages:
            await is_live(page)
        assert sum(streams._open.values()) == 1
    async with asyncio.timeout(60):
        while streams._open:
            await asyncio.sleep(0.05)
    before = reads
    await asyncio.sleep(0)
    pulse = next(iter(site.server.dashboard.pulses._known.values()))
    assert pulse._loop is None
    assert reads == before


async def test_a_stream_ends_with_its_token(site: Site):  # S2
    secret = await site.token("viewer")
    headers = {"Authorization": f"Bearer {secret}"}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", f"{site.root}/live", headers=headers) as open,
    ):
        assert open.status_code == 200
        lines = open.aiter_lines()
        assert (await anext(lines)).startswith(":")
        identity = await site.server.services.access.authenticate(secret)
        await site.server.services.access.revoke_token(ROOT, identity.token_id or "")
        async with asyncio.timeout(60):
            async for _ in lines:
                pass


async def test_a_server_that_stops_does_not_wait_for_open_pages(site: Site):
    headers = {"Authorization": f"Bearer {await site.token('viewer')}"}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", f"{site.root}/live", headers=headers) as stream,
    ):
        lines = stream.aiter_lines()
        assert (await anext(lines)).startswith(":")
        site.server.dashboard.end_streams()
        async with asyncio.timeout(60):
            async for _ in lines:
                pass


async def test_a_browser_whose_token_is_revoked_is_asked_to_log_in(site: Site, browser: Browser):  # S2
    async with visitor(browser, site, "viewer") as person:
        page = await person.go("/jobs")
        await is_live(page)
        tokens = await site.server.services.store.core.engine.tokens()
        for one in tokens:
            await site.server.services.store.core.engine.revoke_token(one.id)
        await page.wait_for_url("**/login*", timeout=60_000)


async def test_a_lost_store_greys_the_page_and_is_found_again(
    browser: Browser, site: Site, monkeypatch: pytest.MonkeyPatch
):  # D5
    jobs = site.server.services.jobs
    async with visitor(browser, site) as person:
        page = await person.go("/jobs")
        await is_live(page)
        shown = await page.locator("[data-row]").count()

        async def lost(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("the database is down")

        with monkeypatch.context() as patch:
            patch.setattr(jobs, "list", lost)
            await site.app.tasks["report"].enqueue(month="2034-01")
            await page.locator("body[data-stale]").wait_for(timeout=60_000)
            await page.locator("#lost >> text=The store does not answer").wait_for()
            assert await page.locator("[data-row]").count() == shown
            other = await person.context.new_page()
            answer = await other.goto(site.root + "/jobs")
            assert answer is not None
            assert answer.status == 503
            assert "database is down" not in await other.content()
        await page.locator("body:not([data-stale])").wait_for(timeout=60_000)
        await other.locator("[data-row]").first.wait_for(timeout=60_000)


async def test_everything_can_be_reached_by_keys(browser: Browser, site: Site):  # D3, D6
    async with visitor(browser, site) as person:
        page = await person.go("/")
        await page.keyboard.press("?")
        await page.locator("dialog >> text=Next and previous row").wait_for()
        await page.keyboard.press("Escape")
        await page.keyboard.press("g")
        await page.keyboard.press("j")
        await page.wait_for_url("**/jobs")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        await page.keyboard.press("x")
        assert await page.locator("tr.at input[name=job]").is_checked()
        assert await page.locator("[data-selected]").inner_text() == "1 selected"
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.id") == "q"
        await page.keyboard.type("g")  # no command inside a field
        assert await page.input_value("#q") == "g"
        await page.keyboard.press("Escape")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/jobs/*")
        await page.keyboard.press("Control+k")
        await page.keyboard.type("work")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/workers")
        await page.keyboard.press("t")
        await page.locator("html[data-theme=light]").wait_for()
        await page.keyboard.press("t")
        await page.locator("html[data-theme=dark]").wait_for()


async def test_a_bulk_action_by_keys_alone(browser: Browser, site: Site):  # D3
    dead = (await site.app.jobs.list(status=[JobStatus.DEAD_LETTER], limit=1)).items[0]

    async def is_deleted() -> bool:
        return not (await site.app.jobs.list(JobFilter(ids=(dead.id,)))).items

    async with visitor(browser, site) as person:
        page = await person.go("/dead")
        await page.keyboard.press("j")
        await page.keyboard.press("x")
        button = page.get_by_role("button", name="Purge…")
        await button.focus()
        await page.keyboard.press("Enter")
        await page.locator("dialog[open]").wait_for()
        await page.keyboard.press("Escape")
        await page.locator("dialog").wait_for(state="detached")
        assert await page.evaluate("document.activeElement.textContent") == "Purge…"
        await page.keyboard.press("Enter")
        await page.locator("dialog[open] [data-confirm-yes]").focus()
        await page.keyboard.press("Enter")
        await page.locator("text=The selected jobs were changed.").wait_for()
    await until(is_deleted)
