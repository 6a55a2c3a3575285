"""Every screen: answers to each role, in both themes, without violations, at every width, and mounted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import Browser

from tests.dashboard.browsing import Site, serve, visitor
from tests.dashboard.shop import fill, make_app

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

ADMIN_ONLY = {"audit", "tokens"}
CONFIGURED = {"schedule-form"}


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_every_screen_answers_each_role(
    role: str, browser: Browser, shop: Site, screens: dict[str, str]
):  # D1, S3
    async with visitor(browser, shop, role) as person:
        for name, path in screens.items():
            expected = 403 if name in ADMIN_ONLY and role != "admin" else 404 if name == "error" else 200
            page = await person.go(path, expect=expected)
            assert await page.locator("h1").first.inner_text(), name
            if expected == 403:
                assert "You may not do this" in await page.locator("h1").first.inner_text()
            links = await page.locator(".nav .entry").all_inner_texts()
            assert any("Tokens" in link for link in links) == (role == "admin"), name


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_no_screen_violates_accessibility_rules(
    theme: str, browser: Browser, shop: Site, screens: dict[str, str], axe: str
):  # D3
    found: list[str] = []
    async with visitor(browser, shop, color_scheme=theme, viewport={"width": 1280, "height": 900}) as person:
        for name, path in screens.items():
            await person.go(path, expect=None)
            found += await _violations(person.page, name, axe)
    async with visitor(browser, shop, None, color_scheme=theme) as person:
        await person.go("/login")
        found += await _violations(person.page, "login", axe)
    assert found == []


async def _violations(page: Any, name: str, axe: str) -> list[str]:
    await page.evaluate(axe)  # by the debugger's protocol, so the page's policy stays as it is
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{name}: {one['id']}: {json.dumps([node['html'][:160] for node in one['nodes']][:3])}"
        for one in found["violations"]
    ]


async def test_no_screen_is_wider_than_the_window(browser: Browser, shop: Site, screens: dict[str, str]):  # D3
    wide: list[str] = []
    for width in (360, 768, 1280, 1920):
        async with visitor(browser, shop, viewport={"width": width, "height": 900}) as person:
            for name, path in screens.items():
                await person.go(path, expect=None)
                beyond = await person.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                if beyond > 0:
                    wide.append(f"{name} at {width}: {beyond}")
    assert wide == []


async def test_pages_work_under_a_path_prefix(browser: Browser):  # A1
    app = make_app()
    await fill(app, jobs=4, with_usage=False)
    async with serve(app, prefix="/ops/onward") as site:
        secret = await site.token("admin")
        async with visitor(browser, site, None) as person:
            page = await person.go("/jobs?q=state:completed")
            await page.fill("#token", secret)
            await page.click("text=Log in with the token")
            await page.wait_for_url(f"{site.root}/jobs?q=state*")
            await page.locator("[data-open]").first.click()
            await page.wait_for_url(f"{site.root}/jobs/*")
            for link in await page.locator("a[href], form[action]").all():
                address = await link.get_attribute("href") or await link.get_attribute("action") or ""
                assert address.startswith(("/ops/onward/", "#")), address
            await page.locator("#live[data-state=live]").wait_for()
    await app.close()


async def test_a_page_has_the_policy_and_asks_no_other_machine(browser: Browser, shop: Site):  # S4
    async with visitor(browser, shop) as person:
        answer = await person.page.goto(shop.root + "/jobs")
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "form-action 'self'" in policy
        assert "base-uri 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        html = await answer.text()
        assert "<style" not in html
        assert " style=" not in html
        assert " onclick" not in html


async def test_the_first_load_is_small(browser: Browser, shop: Site):  # D4
    sizes: list[int] = []
    async with visitor(browser, shop) as person:
        person.page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", "0"))))
        await person.go("/")
        await person.page.locator("#live[data-state=live]").wait_for()
    assert 0 < sum(sizes[:12]) < 100_000
