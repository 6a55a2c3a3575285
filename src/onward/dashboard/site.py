"""Serves the pages: finds the view, recognises the caller, renders, and turns every error into a page."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote, urlencode

import jinja2
import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from onward.dashboard.frame import Frame, make_frame, make_public_frame
from onward.dashboard.live import MAX_WATCHED, Streams
from onward.dashboard.pages import PAGES
from onward.dashboard.pulse import Pulses
from onward.dashboard.reads import Reads
from onward.dashboard.visit import (
    NOTES,
    Confirmation,
    Form,
    FormKind,
    NeedsConfirmation,
    PageRoute,
    Redirect,
    Screen,
    View,
    Visit,
)
from onward.dashboard.wording import number, span, visible
from onward.errors import InvalidValue, NotAuthenticated
from onward.http.authentication import COOKIE, Authenticator, session_cookie
from onward.http.bodies import media_type, read_body
from onward.http.names import decode_name, encode_name
from onward.http.problems import HttpError, Problem, http_error
from onward.http.security import HEADERS, check_origin
from onward.http.settings import Settings
from onward.job import JobRef
from onward.service.identity import Identity
from onward.service.operations import find, permit
from onward.service.services import Services

log = logging.getLogger("onward.dashboard")

_HERE: Final = Path(__file__).parent
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""S4. ``script-src`` covers the shared worker too."""
PAGE_HEADERS: Final = {**HEADERS, "Content-Security-Policy": CSP}
LIVE_HEADER: Final = "x-onward-live"
THEMES: Final = ("auto", "light", "dark")
THEME_COOKIE: Final = "onward_theme"
_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FORM: Final = "application/x-www-form-urlencoded"
_SMALL_FORM: Final = 16 * 1024
_SELECTION_FORM: Final = 256 * 1024
"""Bytes of a form that lists jobs. A larger form is parsed in a thread."""
_OPTIONS_ROOM: Final = 64 * 1024
"""Bytes for the other fields of a form with a payload."""
_SAFE: Final = frozenset({"GET", "HEAD"})
_MOST_FIELDS: Final = 1000


class Answering(Protocol):
    """One request and its answer, as the HTTP server has it."""

    request_id: str
    actor: str
    scope: Scope
    receive: Receive

    async def send(self, message: Any) -> None:
        """Send a part of the answer."""
        ...

    async def reply(
        self, status: int, body: bytes = b"", *, media_type: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send a whole answer."""
        ...


Run = Callable[[Scope, Receive, Send, Callable[[Request, Any], Any]], Awaitable[None]]


class Dashboard:
    """The pages of one server."""

    def __init__(
        self,
        services: Services,
        settings: Settings,
        authenticator: Authenticator,
        *,
        on_operation: Callable[[], None],
    ) -> None:
        self.services = services
        self.settings = settings
        self._authenticator = authenticator
        self._on_operation = on_operation
        self.pulses = Pulses(services)
        self.reads = Reads()
        self._streams = Streams(services, most=settings.max_streams)
        self._static = {path.name: path.read_bytes() for path in sorted((_HERE / "static").iterdir()) if path.is_file()}
        digest = hashlib.sha256()
        for name, content in self._static.items():
            digest.update(name.encode() + b"\0" + content)
        self.static_path = f"/static/{digest.hexdigest()[:12]}"
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=visible,
        )
        self._templates.filters |= {"number": number, "span": span, "name": encode_name, "query": _query}

    def routes(self, run: Run) -> list[BaseRoute]:
        """Make the routes. ``run`` checks the host and logs each request."""

        def route(path: str, answer: Callable[[Request, Any], Any]) -> Route:
            return Route(path, _Endpoint(run, answer), methods=None)

        found = [route(page.path, self._answer_of(page)) for page in PAGES]
        found.append(route("/login", self._login))
        found.append(route("/theme", self._theme))
        found.append(route("/live", self._live))
        found.append(route("/static/{digest}/{name}", self._file))
        return [*found]

    def end_streams(self) -> None:
        """End the streams of open pages, so that a server can stop."""
        self._streams.end()

    # Pages

    def _answer_of(self, page: PageRoute) -> Callable[[Request, Any], Any]:
        async def answer(request: Request, exchange: Answering) -> None:
            identity: Identity | None = None
            visit: Visit | None = None
            try:
                view = _view_of(page, request.method)
                identity = await self._authenticator.identify(request, exchange.request_id)
                exchange.actor = identity.actor
                if request.method == "POST" and page.operation:
                    permit(identity, find(page.operation))
                visit = await self._visit(request, identity, page.form)
                if view is page.change:
                    given = await asyncio.shield(asyncio.ensure_future(self._change(view, visit)))
                else:
                    given = await view(visit)
                await self._send(request, exchange, visit, given)
            except NotAuthenticated:
                await self._ask_for_login(request, exchange)
            except NeedsConfirmation as question:
                await self._ask(request, exchange, visit, question.question)
            except Exception as error:  # noqa: BLE001 - whatever it is becomes a page
                await self._fail(request, exchange, identity, error)

        return answer

    async def _change(self, view: View, visit: Visit) -> Screen | Redirect:
        given = await view(visit)
        if isinstance(given, Redirect) or given.status < 400:
            self.reads.expire()
            self._on_operation()
        return given

    async def _visit(self, request: Request, identity: Identity, kind: FormKind) -> Visit:
        form = Form(await self._fields(request, kind)) if request.method == "POST" else Form(())
        return Visit(
            request=request,
            services=self.services,
            identity=identity,
            reads=self.reads,
            pulse=self.pulses.of(identity),
            path={name: decode_name(value) for name, value in request.path_params.items()},
            query=_query_of(request),
            form=form,
            is_live=LIVE_HEADER in request.headers,
        )

    async def _fields(self, request: Request, kind: FormKind = FormKind.SMALL) -> list[tuple[str, str]]:
        limits = {
            FormKind.SMALL: _SMALL_FORM,
            FormKind.SELECTION: _SELECTION_FORM,
            FormKind.PAYLOAD: self.services.store.core.max_payload * 3 // 2 + _OPTIONS_ROOM,  # a form escapes as %XX
        }
        limit = limits[kind]
        data = await read_body(request, limit=limit, timeout=self.settings.body_timeout)
        if data and media_type(request) != _FORM:
            raise HttpError(415, "media-type", "unsupported media type", f"send {_FORM}", field="Content-Type")
        try:
            if len(data) <= _SELECTION_FORM:
                return _parse_form(data)
            return await asyncio.to_thread(_parse_form, data)
        except ValueError:
            raise HttpError(400, "malformed-form", "malformed form", "the form is not UTF-8, or too long") from None

    async def _send(self, request: Request, exchange: Answering, visit: Visit, given: Screen | Redirect) -> None:
        if isinstance(given, Redirect):
            await self._redirect(request, exchange, given)
            return
        frame = await self._frame(request, visit.identity, given)
        await self._render(exchange, given.template, given.status, frame=frame, page=given.page)

    async def _frame(self, request: Request, identity: Identity | None, screen: Screen) -> Frame:
        common = {
            "title": screen.title,
            "section": screen.section,
            "root": request.scope.get("root_path", ""),
            "static": self.static_path,
            "theme": _theme_of(request),
            "here": _here(request),
            "note": NOTES.get(request.query_params.get("note", ""), ""),
        }
        if identity is None:
            return make_public_frame(**common)
        pulse = self.pulses.of(identity)
        await pulse.current()
        # A page that updates itself may reload. To reload the answer of a POST is to send the form again.
        is_live = screen.is_live and request.method in _SAFE
        return make_frame(self.services, identity, pulse, watch=screen.watch, is_live=is_live, **common)

    async def _render(self, exchange: Answering, template: str, status: int, **values: Any) -> None:
        text = self._templates.get_template(template).render(**values)
        await exchange.reply(
            status,
            text.encode("utf-8", "replace"),
            media_type="text/html; charset=utf-8",
            headers={**PAGE_HEADERS, "Vary": "Cookie, X-Onward-Live"},
        )

    async def _redirect(self, request: Request, exchange: Answering, given: Redirect) -> None:
        path = request.scope.get("root_path", "") + given.path
        if given.note:
            path += ("&" if "?" in path else "?") + urlencode({"note": given.note})
        headers = {**PAGE_HEADERS, "Location": path}
        if given.cookies:
            headers["Set-Cookie"] = given.cookies[0]
        await exchange.reply(303, b"", media_type="text/plain", headers=headers)

    # What is not a page of its own

    async def _ask(self, request: Request, exchange: Answering, visit: Visit | None, question: Confirmation) -> None:
        if visit is None:
            raise RuntimeError("only a view asks")
        page = ConfirmPage(question=question, fields=visit.form.pairs, action=_here(request), back=_back(request))
        screen = Screen(template="confirm.html", title=question.title, section="", page=page, is_live=False)
        frame = await self._frame(request, visit.identity, screen)
        await self._render(exchange, screen.template, 200, frame=frame, page=page)

    async def _fail(self, request: Request, exchange: Answering, identity: Identity | None, error: Exception) -> None:
        failure = http_error(error)
        problem = failure.problem
        if problem.status == 500:
            log.error("page %s failed", exchange.request_id, exc_info=error)
        page = ErrorPage(
            problem=problem,
            heading=_HEADINGS.get(problem.status, problem.title.capitalize()),
            request_id=exchange.request_id,
            back=_back(request),
        )
        screen = Screen(template="error.html", title=page.heading, section="", page=page, status=problem.status)
        try:
            frame = await self._frame(request, identity, screen)
        except Exception:  # the frame fails for the same reason as the page
            log.exception("the frame of page %s failed", exchange.request_id)
            frame = await self._frame(request, None, screen)
        text = self._templates.get_template(screen.template).render(frame=frame, page=page)
        await exchange.reply(
            problem.status,
            text.encode("utf-8", "replace"),
            media_type="text/html; charset=utf-8",
            headers={**PAGE_HEADERS, **failure.headers},
        )

    # Login

    async def _ask_for_login(self, request: Request, exchange: Answering) -> None:
        if LIVE_HEADER in request.headers:
            await exchange.reply(401, b"", media_type="text/plain", headers=dict(PAGE_HEADERS))
            return
        path = "/login"
        if request.method == "GET" and _here(request) not in {"/", "/logout"}:
            path += f"?next={quote(_here(request), safe='')}"
        await self._redirect(request, exchange, Redirect(path=path))

    async def _login(self, request: Request, exchange: Answering) -> None:
        refusal = ""
        status = 200
        after = _local(request.query_params.get("next", ""))
        try:
            if request.method == "POST":
                check_origin(request)
                self._authenticator.check_peer(request)
                form = Form(await self._fields(request))
                after = _local(form.text("next"))
                cookie = await self._session(request, exchange, form)
                await self._redirect(request, exchange, Redirect(path=after, cookies=(cookie,)))
                return
            if request.method not in {"GET", "HEAD"}:
                raise HttpError(405, "method-not-allowed", "method not allowed", headers={"Allow": "GET, HEAD, POST"})
        except NotAuthenticated:
            self._authenticator.refused(request)
            refusal, status = "This token or code is not valid: it is unknown, expired, used or revoked.", 401
        except InvalidValue as error:
            refusal, status = str(error), 400
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a page
            await self._fail(request, exchange, None, error)
            return
        page = LoginPage(
            refusal=refusal,
            after=after,
            has_code=self.settings.login_code is not None,
            is_logged_in=COOKIE in request.cookies and not refusal,
        )
        screen = Screen(template="login.html", title="Log in", section="", page=page, is_live=False)
        frame = await self._frame(request, None, screen)
        await self._render(exchange, screen.template, status, frame=frame, page=page)

    async def _session(self, request: Request, exchange: Answering, form: Form) -> str:
        access = self.services.access
        if code := form.text("code"):
            identity = await access.authenticate_code(code)
        elif token := form.text("token"):
            identity = await access.authenticate(token)
        else:
            raise InvalidValue("token", "", "give a token or a one-time code")
        identity = msgspec.structs.replace(identity, request_id=exchange.request_id)
        session = await access.create_session(identity)
        exchange.actor = identity.actor
        return session_cookie(request, session.secret, proxy=self.settings.trusted_proxy)

    async def _theme(self, request: Request, exchange: Answering) -> None:
        try:
            if request.method != "POST":
                raise HttpError(405, "method-not-allowed", "method not allowed", headers={"Allow": "POST"})
            check_origin(request)
            form = Form(await self._fields(request))
            theme = form.text("theme")
            if theme not in THEMES:
                raise InvalidValue("theme", theme, f"must be one of {', '.join(THEMES)}")
            path = request.scope.get("root_path", "") or "/"
            cookie = f"{THEME_COOKIE}={theme}; Path={path}; SameSite=Strict; Max-Age=31536000"
            await self._redirect(request, exchange, Redirect(path=_local(form.text("next")), cookies=(cookie,)))
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a page
            await self._fail(request, exchange, None, error)

    # Live, static

    async def _live(self, request: Request, exchange: Answering) -> None:
        if request.method != "GET":
            raise HttpError(405, "method-not-allowed", "method not allowed", headers={"Allow": "GET"})
        identity = await self._authenticator.identify(request, exchange.request_id)
        exchange.actor = identity.actor
        named = [JobRef.parse(text) for text in request.query_params.getlist("job")[:MAX_WATCHED]]
        who = self._streams.enter(identity)
        try:
            watched = tuple(ref for ref in named if ref is not None)
            pulse = self.pulses.of(identity)
            await self._streams.send(identity, pulse, watched, exchange.receive, exchange.send, HEADERS)
        finally:
            self._streams.leave(who)

    async def _file(self, request: Request, exchange: Answering) -> None:
        content = self._static.get(request.path_params["name"])
        if content is None or request.method not in {"GET", "HEAD"}:
            raise HttpError(404, "not-found", "not found", "there is no such file")
        is_current = self.static_path.endswith(f"/{request.path_params['digest']}")
        headers = {
            **HEADERS,
            "Content-Security-Policy": CSP,  # the policy of a shared worker is that of its own file
            "Cache-Control": "public, max-age=31536000, immutable" if is_current else "no-store",
        }
        kind = _TYPES[Path(request.path_params["name"]).suffix]
        await exchange.reply(200, content, media_type=kind, headers=headers)


class _Endpoint:
    """An ASGI application of one path."""

    def __init__(self, run: Run, answer: Callable[[Request, Any], Any]) -> None:
        self._run = run
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send, self._answer)


class ErrorPage(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, for a person."""

    problem: Problem
    heading: str
    request_id: str
    back: str


class ConfirmPage(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and the form that is sent again when it is confirmed."""

    question: Confirmation
    fields: tuple[tuple[str, str], ...]
    action: str
    back: str


class LoginPage(msgspec.Struct, frozen=True, kw_only=True):
    """How to log in."""

    refusal: str
    after: str
    has_code: bool
    is_logged_in: bool


_HEADINGS: Final[Mapping[int, str]] = {
    400: "That is not valid",
    403: "You may not do this",
    404: "Not found",
    409: "It cannot be done now",
    429: "Too many requests",
    500: "The server has failed",
    501: "This store cannot do it",
    503: "The store does not answer",
}


def _view_of(page: PageRoute, method: str) -> View:
    views = {"GET": page.show, "HEAD": page.show, "POST": page.change}
    found = views.get(method)
    if found is None:
        allow = ", ".join(name for name, view in views.items() if view is not None)
        raise HttpError(405, "method-not-allowed", "method not allowed", headers={"Allow": allow})
    return found


def _parse_form(data: bytes) -> list[tuple[str, str]]:
    return parse_qsl(data.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)


def _query_of(request: Request) -> dict[str, str]:
    """Read the query of a page; of a parameter given twice, the last."""
    try:
        pairs = parse_qsl(
            request.scope.get("query_string", b"").decode("ascii"), errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise HttpError(400, "malformed-query", "malformed query", "the query is not UTF-8, or too long") from None
    return dict(pairs)


def _here(request: Request) -> str:
    """Return the path and query of a request, below the mount point, without what the page has said."""
    root = request.scope.get("root_path", "")
    path = request.scope["path"]
    path = path[len(root) :] if root and path.startswith(root) else path
    pairs = [pair for pair in parse_qsl(request.url.query, keep_blank_values=True) if pair[0] != "note"]
    return quote(path or "/", safe="/~") + (f"?{urlencode(pairs)}" if pairs else "")


def _back(request: Request) -> str:
    """Return the page that a form was sent from, if it is one of ours."""
    root = request.scope.get("root_path", "")
    referrer = request.headers.get("referer", "")
    base = f"{request.url.scheme}://{request.headers.get('host', '')}{root}/"
    return _local("/" + referrer[len(base) :]) if referrer.startswith(base) else "/"


def _local(path: str) -> str:
    """Return a path below the mount point; another site's address becomes the overview."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and path.isascii()
    return path if is_local and "\\" not in path else "/"


def _theme_of(request: Request) -> str:
    theme = request.cookies.get(THEME_COOKIE, "")
    return theme if theme in THEMES else "auto"


def _query(values: Mapping[str, Any]) -> str:
    """Write a query, without what is empty."""
    given = {name: value for name, value in values.items() if value}
    return f"?{urlencode(given)}" if given else ""
