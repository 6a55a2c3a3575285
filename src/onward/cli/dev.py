"""``onward dev``: a worker and the HTTP server, both restarted when a source file changes."""

from __future__ import annotations

import os
import signal
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from onward.cli import output
from onward.cli.command import AppOption, DebugOption, UrlOption
from onward.cli.errors import CommandError, report_errors, usage_error
from onward.cli.serve import FACTORY, exit_in_good_order, one_time_login
from onward.cli.target import find_app
from onward.cli.units import read_duration
from onward.config import URL_VARIABLE
from onward.core import core_of
from onward.service.login_code import LoginCode

DEFAULT_URL: Final = "sqlite:///onward-dev.db"
VARIABLE: Final = "ONWARD_DEV_SERVER"
"""Where the server process finds its settings: other users cannot read the environment, unlike the arguments."""
_GRACE: Final = timedelta(seconds=5)
_BEYOND_GRACE: Final = 15.0
"""Seconds that the worker's supervisor may need beyond the grace."""


class DevServer(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the server process."""

    app: str | None
    url: str | None
    descriptor: int
    """The listening socket: it stays open while the server restarts, and requests wait."""
    grace: float
    code: LoginCode


def dev(
    target: Annotated[str | None, typer.Argument(metavar="[MODULE:APP]", help="The app.", show_default=False)] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1.")] = 8300,
    grace: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION", parser=read_duration, help="Time for jobs and requests at a stop; 5s.",
            show_default=False,
        ),
    ] = None,
    app: AppOption = None,
    url: UrlOption = None,
    debug: DebugOption = False,
) -> None:  # fmt: skip
    """Run worker and server, with reload. Both restart when a source file changes."""
    with report_errors(debug=debug):
        try:
            import onward.http.serving  # noqa: F401, PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise CommandError(
                f"the server needs {error.name}", effect="nothing was done", remedy="pip install 'onward[server]'"
            ) from None
        from onward.cli.reload import Command, Reloader  # noqa: PLC0415
        from onward.cli.worker_command import Settings, WorkerCommand  # noqa: PLC0415
        from onward.worker.log_format import configure  # noqa: PLC0415

        if target is not None and app is not None:
            raise usage_error("give the app once: as an argument or by --app")
        if not os.environ.get(URL_VARIABLE, "").strip():
            os.environ[URL_VARIABLE] = DEFAULT_URL  # for App() alone; one that names its store keeps it
        path, length = target or app, _GRACE if grace is None else grace
        found = find_app(path, url, needs_tasks=True)
        if core_of(found).url == "sqlite://":
            raise usage_error(
                "a store in memory cannot be shared by the worker and the server", remedy=f"use a file: {DEFAULT_URL}"
            )
        configure("text", level="INFO")
        with _listen(port) as listener, one_time_login(found) as code:
            output.write(f"http://127.0.0.1:{listener.getsockname()[1]}")
            sys.stdout.flush()
            server = DevServer(app=path, url=url, descriptor=listener.fileno(), grace=length.total_seconds(), code=code)
            commands = [
                Command(WorkerCommand(app=path, url=url, settings=Settings(grace=length)).argv),
                Command(
                    [sys.executable, "-m", "onward.cli.dev"],
                    {VARIABLE: msgspec.json.encode(server).decode()},
                    [listener.fileno()],
                ),
            ]
            timeout = length.total_seconds() + _BEYOND_GRACE
            exit_code = Reloader(commands, Path.cwd(), stop_timeout=timeout).run()
        raise typer.Exit(exit_code)


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise CommandError(
            f"cannot listen on 127.0.0.1:{port}: {error.strerror}", effect="nothing was done", remedy="--port 0"
        ) from None


def main() -> None:
    """Serve, as the server process of ``onward dev``."""
    from onward.http.serving import ServeOptions, run  # noqa: PLC0415
    from onward.worker.log_format import configure  # noqa: PLC0415

    signal.signal(signal.SIGTERM, exit_in_good_order)
    server = msgspec.json.decode(os.environ.pop(VARIABLE), type=DevServer)
    configure("text", level="INFO")
    with report_errors(debug=False):
        options = ServeOptions(app=server.app, url=server.url, grace=server.grace)
        listener = socket.socket(fileno=server.descriptor)
        listener.set_inheritable(False)
        run(
            find_app(server.app, server.url, needs_tasks=True),
            options,
            factory=FACTORY,
            login_code=server.code,
            listener=listener,
        )


if __name__ == "__main__":
    main()
