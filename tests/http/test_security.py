"""Hosts, origins, sessions, proxies, limits (S1, S2, S4, S7)."""

from __future__ import annotations

import httpx
import pytest

from onward import App
from onward.errors import InvalidValue
from onward.http import TrustedProxy, asgi
from onward.http.application import API, Server
from onward.service.identity import of_user
from onward.service.values import TokenRequest
from tests.http.conftest import ROOT


def open_client(application, *, peer: str = "127.0.0.1", **options) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(application, client=(peer, 5), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=options.pop("base_url", "http://localhost"), **options)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("jobs.example.com", True),
        ("jobs.example.com:443", True),
        ("evil.example.com", False),
        ("localhost.evil.com", False),
        ("127.0.0.1.evil.com", False),
        ("", False),
        ("10.0.0.1", False),
    ],
)
async def test_a_rebound_name_is_refused(app: App, host, allowed):  # S1
    async with open_client(asgi(app, allowed_hosts=["jobs.example.com"])) as http:
        for path in ("/healthz", f"{API}/jobs", "/nope"):
            answer = await http.get(path, headers={"Host": host})
            assert (answer.status_code != 421) is allowed
            if not allowed:
                assert answer.json()["type"] == "urn:onward:problem:unknown-host"


async def test_every_answer_has_the_security_headers(client):  # S4
    http = await client("admin")
    for path in ("/healthz", f"{API}/jobs", "/nope", f"{API}/jobs/export", f"{API}/openapi.json"):
        headers = (await http.get(path)).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


@pytest.fixture
async def session(server: Server):
    """A browser that has logged in."""
    new = await server.services.access.create_token(ROOT, TokenRequest(name="web", role="admin"))
    async with open_client(server.application(), base_url="https://localhost") as http:
        answer = await http.post(f"{API}/session", json={"token": new.secret})
        assert answer.status_code == 201, answer.text
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Secure", "Path=/"} <= set(cookie.split("; "))
        assert new.secret not in cookie
        yield http


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, False),  # a cookie alone never suffices
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "https://localhost"}, True),
        ({"Origin": "https://localhost", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "https://localhost.evil.example"}, False),
        ({"Origin": "https://localhost:8443"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": "https://localhost", "Sec-Fetch-Site": "cross-site"}, False),
    ],
)
async def test_a_change_by_cookie_must_come_from_a_page_of_ours(session, app: App, headers, allowed):  # S4
    await app.queues.configure("q", weight=1)
    for method, path, body in (
        ("POST", "/jobs", {"type": "add"}),
        ("POST", "/queues/q/pause", None),
        ("PATCH", "/queues/q", {"weight": 2}),
        ("POST", "/tick", None),
    ):
        answer = await session.request(method, API + path, json=body, headers=headers)
        assert (answer.status_code < 300) is allowed, answer.text
        if not allowed:
            assert (answer.status_code, answer.json()["type"]) == (403, "urn:onward:problem:cross-site")
    assert (sum((await app.jobs.count()).values()) == 0) is not allowed
    assert (await session.get(f"{API}/jobs", headers=headers)).status_code == 200  # reading is the browser's business


async def test_a_session_ends_by_logging_out(session):  # S2
    same = {"Sec-Fetch-Site": "same-origin"}
    assert (await session.get(f"{API}/session")).json()["actor"] == "token:web"
    assert (await session.get(f"{API}/tick")).status_code == 401  # A6: never by cookie
    left = await session.delete(f"{API}/session", headers=same)
    assert (left.status_code, "Max-Age=0" in left.headers["set-cookie"]) == (204, True)
    assert (await session.get(f"{API}/session")).status_code == 401


async def test_a_login_from_another_site_is_refused(server: Server):  # S4
    new = await server.services.access.create_token(ROOT, TokenRequest(name="web"))
    async with open_client(server.application()) as http:
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            answer = await http.post(f"{API}/session", json={"token": new.secret}, headers=headers)
            assert answer.status_code == 403
        assert (await http.post(f"{API}/session", json={"token": "onw_x_y"})).status_code == 401


async def test_a_token_in_a_url_or_another_scheme_does_not_count(server: Server):  # S2
    secret = (await server.services.access.create_token(ROOT, TokenRequest(name="t", role="admin"))).secret
    async with open_client(server.application()) as http:
        for path, headers in (
            (f"/jobs?token={secret}", {}),
            (f"/jobs?access_token={secret}", {}),
            ("/jobs", {"Authorization": f"Basic {secret}"}),
            ("/jobs", {"Authorization": secret}),
            ("/jobs", {"X-Api-Key": secret}),
            ("/jobs", {"Cookie": f"onward_session={secret}"}),
        ):
            assert (await http.get(API + path, headers=headers)).status_code == 401
        twice = [("Authorization", f"Bearer {secret}"), ("Authorization", f"Bearer {secret}")]
        assert (await http.get(f"{API}/jobs", headers=twice)).status_code == 401
        good = await http.get(f"{API}/jobs", headers={"Authorization": f"bearer {secret}"})
        assert good.status_code == 200


async def test_a_revoked_token_is_refused_at_once(client, server: Server):  # S2
    http, root = await client("viewer"), await client("admin")
    assert (await http.get(f"{API}/jobs")).status_code == 200
    (id,) = [one["id"] for one in (await root.get(f"{API}/tokens")).json()["items"] if one["role"] == "viewer"]
    assert (await root.delete(f"{API}/tokens/{id}")).json()["revoked_at"] is not None
    refused = await http.get(f"{API}/jobs")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="onward"')


async def test_a_proxy_is_believed_from_listed_peers_only(app: App):  # S2
    proxy = TrustedProxy(peers=["10.0.0.0/8"], user_header="X-User", role="operator")
    application = asgi(app, trusted_proxy=proxy)
    for peer, headers, expected in (
        ("10.1.2.3", {"X-User": "ann"}, 200),
        ("192.0.2.1", {"X-User": "ann"}, 401),
        ("10.1.2.3", {}, 401),
        ("10.1.2.3", {"X-User": " "}, 401),
        ("not an address", {"X-User": "ann"}, 401),
    ):
        async with open_client(application, peer=peer) as http:
            assert (await http.get(f"{API}/jobs", headers=headers)).status_code == expected
    async with open_client(application, peer="10.1.2.3", headers={"X-User": "ann"}) as http:
        assert (await http.get(f"{API}/session")).json()["actor"] == "user:ann"
        assert (await http.post(f"{API}/jobs", json={"type": "add"})).status_code == 403  # S4
        same = {"Sec-Fetch-Site": "same-origin"}
        assert (await http.post(f"{API}/jobs", json={"type": "add"}, headers=same)).status_code == 201
        assert (await http.get(f"{API}/audit")).status_code == 403
    with pytest.raises(InvalidValue):
        TrustedProxy(peers=[])
    with pytest.raises(InvalidValue):
        TrustedProxy(peers=["everywhere"])


async def test_a_cookie_is_secure_where_a_listed_proxy_has_tls(app: App):  # S2
    application = asgi(app, trusted_proxy=TrustedProxy(peers=["10.0.0.0/8"], user_header="X-User"))
    access = application.state.onward.services.access
    secret = (await access.create_token(ROOT, TokenRequest(name="web"))).secret
    for peer, protocol, is_secure in (
        ("10.1.2.3", ["https"], True),
        ("10.1.2.3", ["http"], False),
        ("10.1.2.3", [], False),
        ("10.1.2.3", ["https", "http"], False),  # the client's own, and the proxy's
        ("192.0.2.1", ["https"], False),
    ):
        async with open_client(application, peer=peer) as http:
            headers = [("X-Forwarded-Proto", word) for word in protocol]
            answer = await http.post(f"{API}/session", json={"token": secret}, headers=headers)
            assert ("Secure" in answer.headers["set-cookie"].split("; ")) is is_secure, (peer, protocol)


async def test_the_host_application_can_authenticate(app: App):  # S2
    async def authenticate(request):
        name = request.headers.get("x-session")
        return None if name is None else of_user(name, role="viewer", orgs=[name])

    async with open_client(asgi(app, authenticate=authenticate)) as http:
        assert (await http.get(f"{API}/jobs")).status_code == 401
        answer = await http.get(f"{API}/session", headers={"X-Session": "acme"})
        assert (answer.json()["actor"], answer.json()["orgs"]) == ("user:acme", ["acme"])


async def test_guessing_is_slowed_down(app: App):  # S7
    application = asgi(app, max_failures=5)
    async with open_client(application) as http:
        for _ in range(5):
            assert (await http.post(f"{API}/session", json={"token": "onw_a_b"})).status_code == 401
        slowed = await http.post(f"{API}/session", json={"token": "onw_a_b"})
        assert (slowed.status_code, slowed.headers["retry-after"].isdecimal()) == (429, True)
        assert (await http.get(f"{API}/jobs", headers={"Authorization": "Bearer x"})).status_code == 429
        assert (await http.get("/healthz")).status_code == 200
    async with open_client(application, peer="192.0.2.7") as other:
        assert (await other.get(f"{API}/jobs", headers={"Authorization": "Bearer x"})).status_code == 401


async def test_the_access_log_is_one_escaped_line_without_queries(client, caplog):  # X6
    import json  # noqa: PLC0415

    from onward.worker.log_format import JsonFormatter, TextFormatter  # noqa: PLC0415

    caplog.set_level("INFO", "onward.http.access")
    http = await client("admin")
    await http.get(f"{API}/queues/a~0a~1b%0aFAKE?pattern=secret")
    (written,) = [record for record in caplog.records if record.name == "onward.http.access"]
    for form in (JsonFormatter(), TextFormatter()):
        assert "\n" not in form.format(written)
        assert "\x1b" not in form.format(written)
    line = JsonFormatter().format(written)
    logged = json.loads(line)
    assert (logged["status"], logged["method"]) == (400, "GET")
    assert logged["actor"].startswith("token:test-admin")
    assert "secret" not in line
