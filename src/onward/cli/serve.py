"""``onward serve``: the HTTP API of an App."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from onward.app import App
from onward.cli import output
from onward.cli.command import AppOption, DebugOption, UrlOption
from onward.cli.errors import CommandError, report_errors, usage_error
from onward.cli.target import find_app
from onward.cli.units import read_duration
from onward.errors import NotFound
from onward.service.identity import of_command_line
from onward.service.login_code import VALID_FOR, LoginCode

if TYPE_CHECKING:
    from starlette.applications import Starlette

FACTORY = "onward.cli.serve:make_served_application"


def serve(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="The app; else --app, --url.", show_default=False)
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8300,
    workers: Annotated[int, typer.Option(min=1, help="Server processes.")] = 1,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, help="Certificate.", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, help="Its private key.", show_default=False)
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy encrypts what comes here.", show_default=False)
    ] = False,
    proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Address or network of such a proxy.", show_default=False),
    ] = None,
    user_header: Annotated[
        str | None,
        typer.Option(metavar="HEADER", help="Header in which these proxies name the user.", show_default=False),
    ] = None,
    user_role: Annotated[
        Literal["viewer", "operator", "admin"], typer.Option(help="Role of users named by a proxy.")
    ] = "viewer",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name in Host besides loopback names.", show_default=False),
    ] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION", parser=read_duration, help="Time for requests under way at a stop; 25s.",
            show_default=False,
        ),
    ] = None,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Format of the log.")] = "text",
    log_level: Annotated[str, typer.Option(help="Least level of the log.")] = "INFO",
    app: AppOption = None,
    url: UrlOption = None,
    debug: DebugOption = False,
) -> None:  # fmt: skip
    """Serve the HTTP API and the dashboard. Loopback only, unless tokens and TLS or a proxy protect it."""
    with report_errors(debug=debug):
        try:
            from onward.http.binding import check_binding  # noqa: PLC0415 - an extra
            from onward.http.serving import ServeOptions, run  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise CommandError(
                f"the server needs {error.name}", effect="nothing was done", remedy="pip install 'onward[server]'"
            ) from None
        if target is not None and app is not None:
            raise usage_error("give the app once: as an argument or by --app")
        if (tls_cert is None) != (tls_key is None):
            raise usage_error("--tls-cert and --tls-key go together")
        if (proxy or user_header) and not behind_proxy:
            raise usage_error("--proxy and --user-header need --behind-proxy")
        if user_header and not proxy:
            raise usage_error("--user-header needs --proxy: anybody else could name a user")
        options = ServeOptions(
            app=target or app,
            url=url,
            host=host,
            port=port,
            processes=workers,
            tls_cert=None if tls_cert is None else str(tls_cert),
            tls_key=None if tls_key is None else str(tls_key),
            behind_proxy=behind_proxy,
            proxies=tuple(proxy or ()),
            user_header=user_header,
            user_role=user_role,
            allow_hosts=tuple(allow_host or ()),
            grace=25.0 if grace is None else grace.total_seconds(),
            log_format=log_format,
            log_level=log_level.upper(),
        )
        found = find_app(options.app, options.url)
        has_credential = asyncio.run(_has_tokens(found))
        check_binding(host, has_credential=has_credential, has_tls=tls_cert is not None, behind_proxy=behind_proxy)
        needs_login = not has_credential and user_header is None
        if needs_login and workers > 1:
            output.warn("there is no token: every request but probes is refused", "onward tokens create NAME")
        from onward.worker.log_format import configure  # noqa: PLC0415

        configure(options.log_format, level=options.log_level, is_batched=True)
        if needs_login and workers == 1:
            with one_time_login(found) as code:
                run(found, options, factory=FACTORY, login_code=code)
        else:
            run(found, options, factory=FACTORY)


@contextmanager
def one_time_login(app: App) -> Iterator[LoginCode]:
    """Print a one-time code, and revoke the token that it rests on at the end (S2)."""
    # uvicorn raises the signal that stopped it again; by default, it would end the process before the token's end.
    previous = signal.signal(signal.SIGTERM, exit_in_good_order)
    code, text = asyncio.run(_create_login_code(app))
    try:
        # To the terminal of the person who started this, and not to the log.
        output.write(f"one-time login code: {text}")
        output.note(f"valid once, for {VALID_FOR.total_seconds() / 60:.0f} minutes; its session ends with this command")
        sys.stdout.flush()
        yield code
    finally:
        asyncio.run(_revoke(app, code))
        signal.signal(signal.SIGTERM, previous)


def exit_in_good_order(_number: int, _frame: object) -> None:
    """End the process by SystemExit, so that whatever is to be done at the end is done."""
    sys.exit(0)


async def _create_login_code(app: App) -> tuple[LoginCode, str]:
    from onward.service.services import Services  # noqa: PLC0415

    try:
        return await Services(app).access.create_login_code(of_command_line())
    finally:
        await app.close()


async def _revoke(app: App, code: LoginCode) -> None:
    from onward.service.services import Services  # noqa: PLC0415

    try:
        await Services(app).access.revoke_token(of_command_line(), code.token_id)
    except NotFound:
        pass
    finally:
        await app.close()


def make_served_application() -> Starlette:
    """Make the application of one of several processes."""
    from onward.http.serving import VARIABLE, ServeOptions, make_application  # noqa: PLC0415
    from onward.worker.log_format import configure  # noqa: PLC0415

    options = msgspec.json.decode(os.environ[VARIABLE], type=ServeOptions)
    configure(options.log_format, level=options.log_level, is_batched=True)
    return make_application(find_app(options.app, options.url), options)


async def _has_tokens(app: App) -> bool:
    from onward.service.services import Services  # noqa: PLC0415

    try:
        return await Services(app).access.has_tokens()
    finally:
        await app.close()
