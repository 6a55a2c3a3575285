"""What people do: log in, search, act on one job and on all, pause, configure; with and without JavaScript."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from playwright.async_api import Browser

from onward.engine.access import AuditQuery
from onward.lifecycle import JobStatus
from onward.service.services import Services
from tests.dashboard.browsing import Site, Visitor, serve, visitor
from tests.dashboard.shop import ROOT, make_app

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
SCRIPTS = pytest.mark.parametrize("scripts", [True, False], ids=["with JavaScript", "without"])


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await check():
            await asyncio.sleep(0.05)


async def actions_of(site: Site) -> list[str]:
    return [one.action for one in (await site.server.services.audit.list(ROOT, AuditQuery(), limit=200)).items]


async def confirm(person: Visitor) -> None:
    """Confirm, in the dialog or on the page."""
    await person.page.locator("[data-confirm-yes]").click()


@SCRIPTS
async def test_a_token_is_exchanged_for_a_session_and_ended(scripts: bool, browser: Browser, site: Site):  # S2
    secret = await site.token("viewer")
    async with visitor(browser, site, None, java_script_enabled=scripts) as person:
        page = await person.go("/queues")
        assert page.url.endswith("/login?next=%2Fqueues")
        await page.fill("#token", "onw_wrong_secret")
        await page.click("text=Log in with the token")
        assert "not valid" in await page.locator("[role=alert]").inner_text()
        await page.fill("#token", secret)
        await page.click("text=Log in with the token")
        await page.wait_for_url("**/queues")
        cookies = await person.context.cookies()
        session = next(one for one in cookies if one["name"] == "onward_session")
        assert session["httpOnly"]
        assert session["sameSite"] == "Strict"
        await page.locator(".who").get_by_text("Log out").click()
        await page.wait_for_url("**/login*")
        await person.go("/jobs")
        assert "/login" in page.url


async def test_the_one_time_code_logs_in_once(browser: Browser):  # S2
    app = make_app()
    code, text = await Services(app).access.create_login_code(ROOT)
    async with serve(app, login_code=code) as site:
        for expected in ("/", "/login"):
            async with visitor(browser, site, None) as person:
                page = await person.go("/login")
                await page.fill("#code", text.lower())
                await page.click("text=Log in with the code")
                await page.wait_for_load_state()
                assert page.url == site.root + expected
    await app.close()


async def test_another_site_cannot_send_a_form(site: Site, browser: Browser):  # S4
    session = await site.session("admin")
    job = (await site.app.jobs.list(status=[JobStatus.PENDING])).items[0]
    async with visitor(browser, site, None) as person:
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {}):
            answer = await person.context.request.post(
                f"{site.root}/jobs/{job.id}/cancel",
                form={"confirmed": "1"},
                headers={"Cookie": f"onward_session={session.secret}", **headers},
                max_redirects=0,
            )
            assert answer.status == 403
        answer = await person.context.request.post(
            f"{site.root}/login",
            form={"token": await site.token("viewer")},
            headers={"Origin": "https://evil.example"},
            max_redirects=0,
        )
        assert answer.status == 403
    assert (await site.app.jobs.get(job.id)).status is JobStatus.PENDING


@SCRIPTS
async def test_a_job_is_cancelled_after_a_question(scripts: bool, browser: Browser, site: Site):  # D3, S5
    job = (await site.app.jobs.list(status=[JobStatus.PENDING])).items[0]
    async with visitor(browser, site, "operator", java_script_enabled=scripts) as person:
        page = await person.go(f"/jobs/{job.id}")
        await page.get_by_role("button", name="Cancel…").click()
        await page.locator("[data-confirmation]").wait_for()
        assert (await site.app.jobs.get(job.id)).status is JobStatus.PENDING
        assert (await page.locator("dialog[open]").count() == 1) == scripts
        await confirm(person)
        await page.locator("text=The job was cancelled.").wait_for()
        assert (await site.app.jobs.get(job.id)).status is JobStatus.CANCELLED
        await page.get_by_role("button", name="Replay").click()
        await page.locator("text=The job was replayed").wait_for()
        assert (await site.app.jobs.get(job.id)).status is JobStatus.PENDING
    assert [one for one in await actions_of(site) if one.startswith("jobs.")] == ["jobs.replay", "jobs.cancel"]


async def test_a_viewer_is_offered_nothing_that_it_may_not_do(browser: Browser, site: Site):  # S3
    job = (await site.app.jobs.list(status=[JobStatus.PENDING])).items[0]
    async with visitor(browser, site, "viewer") as person:
        page = await person.go(f"/jobs/{job.id}")
        assert await page.locator(".actions .btn").count() == 0
        await person.go("/jobs")
        assert await page.locator("input[name=job]").count() == 0
        await person.go("/queues/mail")
        assert await page.locator("main form").count() == await page.locator("main form:not(:has(button))").count()
        origin = {"Origin": site.root, "Sec-Fetch-Site": "same-origin"}
        for path in (f"/jobs/{job.id}/cancel", f"/jobs/{job.id}/reveal", "/queues/mail/pause", "/tokens"):
            answer = await person.context.request.post(site.root + path, form={"confirmed": "1"}, headers=origin)
            assert answer.status == 403, path
    assert (await site.app.jobs.get(job.id)).status is JobStatus.PENDING


@SCRIPTS
async def test_all_matching_jobs_are_cancelled_by_a_stored_operation(scripts: bool, browser: Browser, site: Site):  # A5
    waiting = [one.id for one in (await site.app.jobs.list(status=["pending"], queue="reports")).items]
    async with visitor(browser, site, "operator", java_script_enabled=scripts) as person:
        page = await person.go("/jobs?q=state:pending+queue:reports")
        await page.check("input[name=which][value=all]")
        await page.get_by_role("button", name="Cancel…").click()
        question = page.locator("[data-confirmation]")
        await question.wait_for()
        assert f"Cancel {len(waiting)} jobs?" in await question.inner_text()
        await confirm(person)
        await page.wait_for_url("**/operations/*")

        async def is_done() -> bool:
            if not scripts:
                await page.reload()
            return "completed" in await page.locator("h1").inner_text()

        await until(is_done)
        assert "100 %" in await page.locator("#progress").inner_text()
    for id in waiting:
        assert (await site.app.jobs.get(id)).status is JobStatus.CANCELLED


@SCRIPTS
async def test_selected_jobs_are_replayed(scripts: bool, browser: Browser, site: Site):
    dead = (await site.app.jobs.list(status=[JobStatus.DEAD_LETTER])).items
    async with visitor(browser, site, "operator", java_script_enabled=scripts) as person:
        page = await person.go("/dead")
        await page.locator(f"input[name=job][value='{dead[0].ref}']").check()
        await page.get_by_role("button", name="Replay").click()
        await page.locator("text=The selected jobs were changed.").wait_for()
    assert (await site.app.jobs.get(dead[0].ref)).status is JobStatus.PENDING
    assert (await site.app.jobs.get(dead[-1].ref)).status is JobStatus.DEAD_LETTER or len(dead) == 1


async def test_revealing_a_payload_needs_the_permission_and_is_audited(browser: Browser, site: Site):  # S6
    job = (await site.app.jobs.list(type="send_mail", status=["completed"])).items[0]
    async with visitor(browser, site, "operator") as person:
        page = await person.go(f"/jobs/{job.id}")
        assert "hunter2-secret" not in await page.content()
        assert await page.get_by_role("button", name="Reveal").count() == 0
    async with visitor(browser, site, "viewer", scopes={"permissions": ("reveal",)}) as person:
        page = await person.go(f"/jobs/{job.id}")
        assert "hunter2-secret" not in await page.content()
        assert "jobs.reveal" not in await actions_of(site)
        await page.get_by_role("button", name="Reveal").click()
        await page.locator("text=without redaction").wait_for()
        assert "hunter2-secret" in await page.locator("#payload").inner_text()
    assert (await actions_of(site)).count("jobs.reveal") == 1


async def test_a_copy_takes_redacted_values_only_from_those_who_may_see_them(browser: Browser, site: Site):  # S6
    job = (await site.app.jobs.list(type="send_mail", status=["completed"])).items[0]
    async with visitor(browser, site, "operator") as person:
        page = await person.go(f"/jobs/{job.id}/copy")
        await page.get_by_role("button", name="Enqueue the copy").click()
        assert "You may not do this" in await page.locator("h1").inner_text()
    async with visitor(browser, site, "admin") as person:
        page = await person.go(f"/jobs/{job.id}/copy")
        assert "hunter2-secret" not in await page.content()
        await page.get_by_role("button", name="Enqueue the copy").click()
        await page.locator("text=A copy was enqueued").wait_for()
        copied = await site.app.jobs.get(page.url.rpartition("/")[2].partition("?")[0])
    assert copied.payload == job.payload
    assert copied.id != job.id


@SCRIPTS
async def test_a_waiting_job_is_edited_and_mistakes_are_kept(scripts: bool, browser: Browser, site: Site):
    job = (await site.app.jobs.list(status=[JobStatus.SCHEDULED], type="report")).items[0]
    async with visitor(browser, site, java_script_enabled=scripts) as person:
        page = await person.go(f"/jobs/{job.id}/edit")
        await page.fill("#f-payload", '{"month": ')
        await page.get_by_role("button", name="Save").click()
        assert "must be JSON" in await page.locator("[role=alert]").inner_text()
        assert await page.input_value("#f-payload") == '{"month":'
        await page.fill("#f-payload", '{"month": "2030-01"}')
        await page.fill("#f-priority", "7")
        await page.get_by_role("button", name="Save").click()
        await page.locator("text=The job was changed.").wait_for()
    edited = await site.app.jobs.get(job.id)
    assert (edited.payload, edited.priority) == ({"month": "2030-01"}, 7)


@SCRIPTS
async def test_a_queue_is_paused_with_a_reason_limited_and_resumed(scripts: bool, browser: Browser, site: Site):
    async with visitor(browser, site, java_script_enabled=scripts) as person:
        page = await person.go("/queues/images")
        await page.fill("#f-reason", "disk full")
        await page.get_by_role("button", name="Pause the queue").click()
        await page.locator("#paused >> text=disk full").wait_for()
        found = await site.app.queues.get("images")
        assert (found.settings.paused, found.settings.pause_reason) == (True, "disk full")
        await page.fill("#f-rate", "lots")
        await page.get_by_role("button", name="Save the limits").click()
        assert "must be a number of starts" in await page.locator("main [role=alert]").inner_text()
        await page.fill("#f-rate", "90/min")
        await page.get_by_role("button", name="Save the limits").click()
        await page.locator("text=The settings were saved.").wait_for()
        await page.fill("#f-completed", "1d")
        await page.get_by_role("button", name="Save the retention").click()
        await confirm(person)
        await page.locator("text=The settings were saved.").wait_for()
        await page.get_by_role("button", name="Resume").click()
        await page.locator("text=The queue is resumed.").wait_for()
    found = await site.app.queues.get("images")
    assert not found.settings.paused
    assert found.settings.rate is not None
    assert found.settings.rate.count == 90
    assert found.settings.retention.completed == timedelta(days=1)


@SCRIPTS
async def test_a_schedule_is_created_run_paused_and_deleted(scripts: bool, browser: Browser, site: Site):
    async with visitor(browser, site, java_script_enabled=scripts) as person:
        page = await person.go("/schedules/new")
        await page.fill("#f-name", "weekly")
        await page.fill("#f-type", "report")
        await page.fill("#f-cron", "0 9 * * mon")
        await page.get_by_role("button", name="Save").click()
        await page.locator("text=The schedule was saved.").wait_for()
        assert "at 09:00 on Monday" in await page.inner_text("main")
        await page.get_by_role("button", name="Pause").click()
        await page.locator("text=The schedule is paused.").wait_for()
        await page.get_by_role("button", name="Run now").click()
        await page.locator("text=The schedule's job was enqueued.").wait_for()
        await person.go("/schedules/weekly")
        await page.get_by_role("button", name="Delete…").click()
        await confirm(person)
        await page.locator("text=The schedule was deleted.").wait_for()
    assert "weekly" not in [one.name for one in await site.app.schedules.list()]


@SCRIPTS
async def test_a_token_is_shown_once_and_revoked(scripts: bool, browser: Browser, site: Site):  # S2
    async with visitor(browser, site, java_script_enabled=scripts) as person:
        page = await person.go("/tokens")
        await page.fill("#f-name", "grafana")
        await page.get_by_role("button", name="Create the token").click()
        secret = await page.locator(".notice code").inner_text()
        assert (await site.server.services.access.authenticate(secret)).actor == "token:grafana"
        await person.go("/tokens")
        assert secret not in await page.content()
        await page.locator("tr", has_text="grafana").get_by_role("button", name="Revoke…").click()
        await confirm(person)
        await page.locator("text=The token was revoked.").wait_for()
    tokens = (await site.server.services.access.list_tokens(ROOT)).items
    assert next(one for one in tokens if one.name == "grafana").revoked_at is not None


async def test_a_search_is_in_the_url_and_survives_back_forward_and_reload(browser: Browser, site: Site):  # D6
    async with visitor(browser, site) as person:
        page = await person.go("/jobs")
        await page.fill("#q", "state:completed queue:mail")
        await page.press("#q", "Enter")
        await page.wait_for_url("**/jobs?q=state%3Acompleted*")
        count = await page.locator("[data-row]").count()
        assert count > 0
        await page.locator("[data-open]").first.click()
        await page.wait_for_url("**/jobs/*")
        await page.go_back()
        await page.wait_for_url("**/jobs?q=*")
        assert await page.input_value("#q") == "state:completed queue:mail"
        assert await page.locator("[data-row]").count() == count
        await page.reload()
        assert await page.input_value("#q") == "state:completed queue:mail"
        await page.go_forward()
        job = (await site.app.jobs.list(limit=1)).items[0]
        await person.go("/jobs")
        await page.fill("#q", job.id)
        await page.press("#q", "Enter")
        await page.wait_for_url(f"**/jobs/{job.id}")


async def test_a_caller_of_one_organisation_sees_nothing_of_another(browser: Browser, site: Site):  # S3
    other = (await site.app.jobs.list(org_id="globex", limit=1)).items[0]
    async with visitor(browser, site, "operator", scopes={"orgs": ("acme",)}) as person:
        page = await person.go("/jobs")
        assert await page.locator("[data-row]").count() > 0
        await page.set_viewport_size({"width": 1600, "height": 900})
        assert "globex" not in await page.inner_text("main")
        await person.go(f"/jobs/{other.id}", expect=404)
        await person.go("/queues", expect=403)
        await person.go("/")
        assert "globex" not in await page.content()
