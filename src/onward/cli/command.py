"""The shape that commands share: which app, which jobs, open and close the store, tell what went wrong.

A command is written as an ``async def`` whose first parameter is the :class:`App`; a parameter of type
:class:`JobFilter` asks for the options that say which jobs. :func:`on_app` gives typer a function that has those
options in place of the two.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Annotated, Any, Final, get_type_hints

import typer

from onward.app import App
from onward.arguments import nearest
from onward.cli import completion
from onward.cli.errors import report_errors, usage_error
from onward.cli.target import find_app, is_server, refuse_missing_file
from onward.cli.units import read_duration
from onward.core import core_of
from onward.engine.values import JobFilter
from onward.lifecycle import JobStatus
from onward.service.audited import audit_changes
from onward.service.identity import of_command_line

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE:APP", help="The app, module:name or module:make(); ONWARD_APP.", show_default=False
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The store, instead of an app; ONWARD_URL.", show_default=False),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.", show_default=False)]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", show_default=False)]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.", show_default=False)]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most so many.")]
CursorOption = Annotated[
    str | None, typer.Option("--cursor", metavar="CURSOR", help="Continue after this page.", show_default=False)
]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Jobs, by id.", show_default=False)]

StatusOption = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        "-s",
        metavar="STATUS",
        help="In one of these statuses: pending,running; unsuccessful: failed or dead_letter.",
        autocompletion=completion.statuses,
        show_default=False,
    ),
]
QueuesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="PATTERN",
        help="Of this queue, or of all below it: mail/*.",
        autocompletion=completion.queues,
        show_default=False,
    ),
]
TypesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--type", "-t", metavar="TASK", help="Of this task.", autocompletion=completion.tasks, show_default=False
    ),
]
OrgOption = Annotated[
    str | None, typer.Option("--org", metavar="ORG", help="Of this organisation.", show_default=False)
]
BatchOption = Annotated[
    str | None,
    typer.Option(
        "--batch", metavar="NAME", help="Of this batch.", autocompletion=completion.batches, show_default=False
    ),
]
WorkerOption = Annotated[
    str | None, typer.Option("--worker", metavar="ID", help="Held by this worker.", show_default=False)
]
ErrorOption = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Whose last error contains this.", show_default=False)
]
OlderOption = Annotated[
    timedelta | None,
    typer.Option(
        "--older-than", metavar="DURATION", parser=read_duration, help="Created before: 1h, 7d.", show_default=False
    ),
]
NewerOption = Annotated[
    timedelta | None,
    typer.Option(
        "--newer-than", metavar="DURATION", parser=read_duration, help="Created since: 1h, 7d.", show_default=False
    ),
]

_FILTER_OPTIONS: dict[str, Any] = {
    "status": StatusOption,
    "queue": QueuesOption,
    "type": TypesOption,
    "org": OrgOption,
    "batch": BatchOption,
    "worker": WorkerOption,
    "error": ErrorOption,
    "older_than": OlderOption,
    "newer_than": NewerOption,
}

UNSUCCESSFUL_WORD: Final = "unsuccessful"
"""Stands for every status of a job that ended in an error, in ``--status``."""
UNSUCCESSFUL: Final = frozenset({JobStatus.FAILED, JobStatus.DEAD_LETTER})

Command = Callable[..., Coroutine[Any, Any, None]]


def on_app(
    *,
    needs_tasks: bool = False,
    creates_store: bool = False,
    checks_store: bool = True,
    has_status_option: bool = True,
    action: str | None = None,
) -> Callable[[Command], Callable[..., None]]:
    """Make a command of a coroutine function: see the module.

    ``needs_tasks``: a store alone is not enough. ``creates_store``: a missing database is made, and one that is not up
    to date is brought up. ``checks_store``: whether other commands refuse that; one that does not, says what is
    wrong itself. ``has_status_option``: whether jobs may be chosen by status. ``action``: the operation that its
    changes are recorded as (S5).
    """

    def make(function: Command) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        filter_options = {
            name: hint
            for name, hint in _FILTER_OPTIONS.items()
            if has_status_option or name not in {"status", "worker"}
        }

        @wraps(function)
        def command(*, app: str | None, url: str | None, debug: bool, **given: Any) -> None:
            engine = ""

            def engine_name() -> str:
                return engine

            with report_errors(debug=debug, engine=engine_name):
                if has_filter:
                    given["job_filter"] = filter_of(**{name: given.pop(name) for name in filter_options})
                found = find_app(app, url, needs_tasks=needs_tasks)
                engine = found.capabilities.engine
                if not creates_store:
                    refuse_missing_file(found)
                if action is not None:
                    audit_changes(core_of(found), of_command_line(), action)
                checks = checks_store and not creates_store and is_server(found)
                asyncio.run(_run(lambda: function(found, **given), found, checks_store=checks))

        has_filter = hints.get("job_filter") is JobFilter
        parameters = []
        for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
            if name == "job_filter" and has_filter:
                parameters += [_option(one, hint, None) for one, hint in filter_options.items()]
            else:
                parameters.append(parameter.replace(annotation=hints[name]))
        parameters += [_option("app", AppOption, None), _option("url", UrlOption, None)]
        parameters.append(_option("debug", DebugOption, default=False))
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return make


def list_by_default(group: typer.Typer, list_command: Callable[..., None]) -> None:
    """Have a group of commands list when no command is named: ``onward queues``."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(list_command).parameters.items()
        if name not in {"app", "url", "debug", "json"}
    }

    @group.callback(invoke_without_command=True)
    def by_default(
        ctx: typer.Context,
        json: JsonOption = False,
        app: AppOption = None,
        url: UrlOption = None,
        debug: DebugOption = False,
    ) -> None:
        if ctx.invoked_subcommand is None:
            list_command(**defaults, json=json, app=app, url=url, debug=debug)
        elif json or app or url or debug:
            with report_errors(debug=debug):
                raise usage_error(
                    f"the options are before {ctx.invoked_subcommand}, and belong to it",
                    remedy=f"onward {ctx.info_name} {ctx.invoked_subcommand} … with the options behind it",
                )


def _option(name: str, hint: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


async def _run(work: Callable[[], Coroutine[Any, Any, None]], app: App, *, checks_store: bool) -> None:
    try:
        if checks_store:
            await core_of(app).engine.check()
        await work()
    finally:
        await app.close()


def filter_of(
    *,
    status: list[str] | None = None,
    queue: list[str] | None = None,
    type: list[str] | None = None,
    org: str | None = None,
    batch: str | None = None,
    worker: str | None = None,
    error: str | None = None,
    older_than: timedelta | None = None,
    newer_than: timedelta | None = None,
) -> JobFilter:
    """Read the options that say which jobs."""
    now = datetime.now(UTC)
    return JobFilter(
        status=_parse_statuses(status) if status else None,
        queues=tuple(queue) if queue else None,
        types=tuple(type) if type else None,
        org_id=org,
        batch=batch,
        worker_id=worker,
        error_contains=error,
        created_before=None if older_than is None else now - older_than,
        created_after=None if newer_than is None else now - newer_than,
    )


def _parse_statuses(texts: list[str]) -> frozenset[JobStatus]:
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    if not words:
        raise usage_error("--status names no status", remedy="--status failed,dead_letter")
    return frozenset().union(*map(_parse_status, words))


def _parse_status(word: str) -> frozenset[JobStatus]:
    if word.lower() == UNSUCCESSFUL_WORD:
        return UNSUCCESSFUL
    try:
        return frozenset({JobStatus(word.lower().replace("-", "_"))})
    except ValueError:
        known = [*(status.value for status in JobStatus), UNSUCCESSFUL_WORD]
        raise usage_error(f"there is no status {word!r}{nearest(word, known)}") from None
