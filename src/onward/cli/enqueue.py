"""``onward enqueue``: one job, from a shell."""

from __future__ import annotations

import inspect
import sys
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer

from onward.app import App
from onward.arguments import nearest
from onward.cli import bulk, completion, output
from onward.cli.command import JsonOption, on_app
from onward.cli.errors import CommandError, usage_error
from onward.cli.units import read_datetime, read_duration
from onward.core import core_of
from onward.engine.values import WorkerInfo
from onward.errors import InvalidPayload, InvalidValue, JobFailed
from onward.handle import JobHandle
from onward.job import EnqueueStatus, NewJob
from onward.lifecycle import JobStatus
from onward.task import Task, handler_of
from onward.validation import encode_json, matches

Arguments = dict[str, Any]


@on_app(creates_store=True, action="jobs.enqueue")
async def enqueue(
    app: App,
    task: Annotated[str, typer.Argument(metavar="TASK", help="Its name.", autocompletion=completion.tasks)],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JSON | NAME=VALUE...]",
            help='Its arguments: \'{"to": "a@example.com"}\', or to=a@example.com, or - to read JSON.',
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the result and write it; exit 1 on failure.", show_default=False)
    ] = False,
    timeout: Annotated[
        timedelta | None,
        typer.Option(metavar="DURATION", parser=read_duration, help="Wait no longer than this.", show_default=False),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", "-q", help="Another than the task's.", autocompletion=completion.queues, show_default=False
        ),
    ] = None,
    org: Annotated[str | None, typer.Option(help="The organisation it belongs to.", show_default=False)] = None,
    priority: Annotated[int | None, typer.Option(help="Higher is more urgent.", show_default=False)] = None,
    delay: Annotated[
        timedelta | None,
        typer.Option(metavar="DURATION", parser=read_duration, help="Run it so much later.", show_default=False),
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(metavar="MOMENT", parser=read_datetime, help="Run it then.", show_default=False),
    ] = None,
    start_by: Annotated[
        datetime | None,
        typer.Option(
            metavar="MOMENT", parser=read_datetime, help="Cancel it if it has not started by then.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key gives the same job.", show_default=False)
    ] = None,
    dedupe: Annotated[
        bool, typer.Option("--dedupe", help="Add nothing while the same job waits or runs.", show_default=False)
    ] = False,
    max_attempts: Annotated[int | None, typer.Option(help="The most runs there may be.", show_default=False)] = None,
    json: JsonOption = False,
) -> None:
    """Enqueue a job and write its id."""
    if timeout is not None and not wait:
        raise usage_error("--timeout goes with --wait")
    options: dict[str, Any] = {
        "queue": queue,
        "org_id": org,
        "priority": priority,
        "delay": delay,
        "run_at": at,
        "start_by": start_by,
        "idempotency_key": key,
        "dedupe": dedupe or None,
        "max_attempts": max_attempts,
    }
    job = read_job(app, task, arguments or [], {name: value for name, value in options.items() if value is not None})
    (handle,) = await app.enqueue_many([job])
    await _warn(app, task, handle.ref.queue)
    if not wait:
        if json:
            output.show_json({"id": handle.id, "queue": handle.ref.queue, "enqueue_status": handle.enqueue_status})
        else:
            output.write(bulk.name_of(handle, app.capabilities))
            if handle.enqueue_status is not EnqueueStatus.INSERTED:
                output.note(f"nothing new was added: this job was there already ({handle.enqueue_status})")
        return
    await _show_result(handle, timeout, json=json)


def read_job(app: App, task: str, arguments: list[str], options: dict[str, Any]) -> NewJob:
    """Make a job of what was typed: of the app's task, or where there is only a store, for whoever knows the task."""
    given, texts = _parse_arguments(arguments)
    try:
        return (
            _job(core_of(app).find_task(task).using(**options), given, texts)
            if app.tasks
            else _job_without_task(task, given, options)
        )
    except InvalidValue as error:
        raise usage_error(str(error), remedy=_remedy(app, task, error)) from None


def _remedy(app: App, name: str, error: InvalidValue) -> str:
    """Say what would have been right."""
    if error.field == "org_id":
        return "add --org ORG"
    if not isinstance(error, InvalidPayload):
        return ""
    task = core_of(app).find_task(name)
    signature = inspect.signature(task.function)
    wanted = [str(one) for one in signature.parameters.values() if one.name != handler_of(task).arguments.context]
    return f"{name} takes {', '.join(wanted) or 'no arguments'}"


def _job(task: Task[..., Any], given: Arguments, texts: dict[str, str]) -> NewJob:
    """Make a job of a task. A value that was typed as NAME=7 is a number, unless the task wants text."""
    try:
        return task.job(**given)
    except InvalidPayload as error:
        name = error.field.removeprefix("payload.").partition(".")[0]
        if isinstance(given.get(name), str) or name not in texts:
            raise
        return _job(task, given | {name: texts[name]}, texts)


def _job_without_task(type: str, given: Arguments, options: dict[str, Any]) -> NewJob:
    """Make a job for whoever knows the task: there is only a store here."""
    if options.pop("dedupe", None):
        raise usage_error(
            "--dedupe compares a task's arguments, so the task must be known", remedy="add --app module:app"
        )
    return NewJob(type=type, payload=encode_json(given), **options)


def _parse_arguments(arguments: list[str]) -> tuple[Arguments, dict[str, str]]:
    """Read arguments as JSON, or as NAME=VALUE with the texts as they were typed."""
    if len(arguments) == 1 and (arguments[0] == "-" or arguments[0].lstrip().startswith("{")):
        text = sys.stdin.read() if arguments[0] == "-" else arguments[0]
        try:
            return msgspec.json.decode(text, type=Arguments), {}
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError) as error:
            raise usage_error(
                f"the arguments are no JSON object: {error}", remedy='write \'{"name": "value"}\''
            ) from None
    texts: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or not name.isidentifier():
            raise usage_error(
                f"{argument!r} is neither NAME=VALUE nor a JSON object",
                remedy='write to=a@example.com, or \'{"to": "a@example.com"}\' in single quotes',
            )
        if name in texts:
            raise usage_error(f"{name} was given twice")
        texts[name] = value
    return {name: _parse_value(text) for name, text in texts.items()}, texts


def _parse_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text


async def _warn(app: App, type: str, queue: str) -> None:
    """Say so if nobody is there to run the job: it is not an error, but seldom what was meant."""
    workers: list[WorkerInfo] = await app.workers.list()
    serving = [worker for worker in workers if any(matches(pattern, queue) for pattern in worker.queues)]
    if not serving:
        output.warn(f"no worker serves the queue {queue} now: the job waits", "onward work --app module:app")
        return
    known = {known for worker in serving for known in worker.types}
    if type not in known:
        output.warn(f"no worker of the queue {queue} has a task {type!r}{nearest(type, known)}; the job waits for one")


async def _show_result(handle: JobHandle[Any], timeout: timedelta | None, *, json: bool) -> None:
    output.note(f"job {handle.ref} waits or runs; Ctrl-C leaves it to itself")
    try:
        await handle.result(timeout=timeout)
    except TimeoutError as error:
        raise CommandError(str(error), remedy=f"onward jobs show {handle.ref}") from None
    except JobFailed as error:
        if not json:
            raise CommandError(str(error), remedy=f"onward jobs show {handle.ref}") from None
    except InvalidValue:
        pass  # not what the task says it returns; it is shown as it is stored
    job = await handle.info()
    if json:
        known = {"id": job.id, "queue": job.queue, "status": job.status}
        output.show_json({**known, "result": job.result, "error": job.last_error})
    else:
        output.show_json(job.result)
    if job.status is not JobStatus.COMPLETED:
        raise typer.Exit(1)
