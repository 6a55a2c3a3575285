"""``onward bench``: how fast Onward is here, beside the bare store on the same disk.

Progress goes to the standard error. With ``--json`` the last line of the standard output is one object.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
import typer

from onward.bench.environment import Environment, environment_for
from onward.bench.handlers import Handler
from onward.bench.report import Report
from onward.bench.statistics import ReportProgress
from onward.cli import output
from onward.cli.command import DebugOption, JsonOption
from onward.cli.errors import CommandError, report_errors
from onward.config import URL_VARIABLE

bench = typer.Typer(help="Measure Onward beside the bare store.", no_args_is_help=True)

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Measure on stores like this one: new files beside it, or new databases on its server; it is not touched. "
        "postgresql:// alone starts a server for the purpose. [env: ONWARD_URL]",
        show_default="a temporary file",
    ),
]
JobsOption = Annotated[int, typer.Option("--jobs", "-n", min=2, help="Jobs in each round.")]
RoundsOption = Annotated[int, typer.Option("--rounds", "-r", min=1, help="Rounds; the median counts.")]
ConcurrencyOption = Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Jobs at once in a worker.")]


@bench.command()
def drain(
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-n",
            min=2,
            help="Jobs in each round: of several processes each needs a while to find its pace.",
            show_default="20000, or 50000 for each of several processes",
        ),
    ] = None,
    rounds: RoundsOption = 5,
    handler: Annotated[
        Handler, typer.Option(help="What runs: it returns at once, or sleeps for 10 ms.")
    ] = Handler.ASYNC,
    concurrency: ConcurrencyOption = 100,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Jobs that the bare store takes at a time.", show_default="what is best for it"),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes; the figure of one is told too.")] = 1,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run jobs that wait."""
    from onward.bench.throughput import drain as scenario  # noqa: PLC0415 - only what is asked for is loaded

    many = 20_000 if processes == 1 else 50_000 * processes
    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment,
            jobs=jobs or many,
            rounds=rounds,
            report_progress=report_progress,
            handler=handler,
            concurrency=concurrency,
            batch=batch,
            processes=processes,
        ),
    )


@bench.command()
def enqueue(
    jobs: JobsOption = 2_000,
    rounds: RoundsOption = 5,
    callers: Annotated[int, typer.Option(min=1, help="How many enqueue at once, in one process.")] = 1,
    producers: Annotated[int, typer.Option(min=1, help="How many processes enqueue at once.")] = 1,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Enqueue one by one, each durable before the next."""
    from onward.bench.throughput import enqueue as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment, jobs=jobs, rounds=rounds, report_progress=report_progress, callers=callers, producers=producers
        ),
    )


@bench.command()
def bulk(
    jobs: JobsOption = 100_000,
    rounds: RoundsOption = 5,
    batch: Annotated[int, typer.Option(min=1, help="Jobs in one call.")] = 1_000,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Enqueue in bulk, by enqueue_many."""
    from onward.bench.throughput import bulk as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment, jobs=jobs, rounds=rounds, report_progress=report_progress, batch=batch
        ),
    )


@bench.command()
def latency(
    jobs: JobsOption = 200,
    rounds: RoundsOption = 5,
    concurrency: ConcurrencyOption = 100,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Time how soon an idle worker in another process starts a job."""
    from onward.bench.latency import latency as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment, jobs=jobs, rounds=rounds, report_progress=report_progress, concurrency=concurrency
        ),
    )


@bench.command()
def due(
    jobs: JobsOption = 200,
    rounds: RoundsOption = 5,
    concurrency: ConcurrencyOption = 100,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Time how late delayed jobs start. The worker is idle, in another process."""
    from onward.bench.due import due as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment, jobs=jobs, rounds=rounds, report_progress=report_progress, concurrency=concurrency
        ),
    )


@bench.command()
def idle(
    jobs: Annotated[int, typer.Option("--jobs", "-n", min=2, help="Jobs to run before.")] = 100,
    rounds: RoundsOption = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to watch.")] = 5.0,
    concurrency: ConcurrencyOption = 100,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Watch a worker that has nothing to do."""
    from onward.bench.idle import idle as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment,
            jobs=jobs,
            rounds=rounds,
            report_progress=report_progress,
            concurrency=concurrency,
            seconds=seconds,
        ),
    )


@bench.command()
def mixed(
    jobs: Annotated[
        int, typer.Option("--jobs", "-n", min=2, help="Jobs in each round, the slow one among them.")
    ] = 100,
    rounds: RoundsOption = 1,
    slow: Annotated[float, typer.Option(min=0.1, help="Seconds that the slow job takes.")] = 10.0,
    concurrency: ConcurrencyOption = 1,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Time quick jobs behind a slow one, on two workers."""
    from onward.bench.mixed import mixed as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment, jobs=jobs, rounds=rounds, report_progress=report_progress, concurrency=concurrency, slow=slow
        ),
    )


@bench.command()
def backlog(
    jobs: Annotated[int, typer.Option("--jobs", "-n", min=2, help="Jobs that wait.")] = 1_000_000,
    rounds: RoundsOption = 5,
    sample: Annotated[int, typer.Option(min=2, help="Jobs that are run in each round.")] = 20_000,
    concurrency: ConcurrencyOption = 100,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run jobs where a great many wait, ready or for next year."""
    from onward.bench.backlog import backlog as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment,
            jobs=jobs,
            rounds=rounds,
            report_progress=report_progress,
            concurrency=concurrency,
            sample=sample,
        ),
    )


@bench.command()
def batches(
    jobs: JobsOption = 100_000,
    rounds: RoundsOption = 5,
    concurrency: ConcurrencyOption = 100,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Put jobs in and run them, as a batch and without one."""
    from onward.bench.batched import batches as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment, jobs=jobs, rounds=rounds, report_progress=report_progress, concurrency=concurrency
        ),
    )


@bench.command()
def events(
    jobs: JobsOption = 20_000,
    rounds: RoundsOption = 5,
    concurrency: ConcurrencyOption = 100,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run jobs while their events are recorded. Another process reads them."""
    from onward.bench.events import events as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment, jobs=jobs, rounds=rounds, report_progress=report_progress, concurrency=concurrency
        ),
    )


@bench.command()
def http(
    rounds: RoundsOption = 5,
    seconds: Annotated[int, typer.Option(min=1, help="Seconds of each measurement.")] = 2,
    clients: Annotated[int, typer.Option(min=2, help="Clients that enqueue at once.")] = 64,
    streams: Annotated[int, typer.Option(min=2, help="Open event streams.")] = 200,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure the HTTP API beside bare Starlette routes, by wrk."""
    with report_errors(debug=debug):
        try:
            import starlette  # noqa: F401, PLC0415 - an extra
            import uvicorn  # noqa: F401, PLC0415
        except ModuleNotFoundError as error:
            raise CommandError(
                f"the server needs {error.name}", effect="nothing was measured", remedy="pip install 'onward[server]'"
            ) from None
    from onward.bench.http import http_api as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment,
            rounds=rounds,
            seconds=seconds,
            clients=clients,
            streams=streams,
            report_progress=report_progress,
        ),
    )


@bench.command()
def prune(
    jobs: Annotated[int, typer.Option("--jobs", "-n", min=2, help="Jobs that have ended.")] = 1_000_000,
    rounds: RoundsOption = 5,
    sample: Annotated[int, typer.Option(min=2, help="Jobs that are run in each round.")] = 20_000,
    concurrency: ConcurrencyOption = 100,
    url: UrlOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run jobs while a great many that have ended are archived."""
    from onward.bench.pruning import prune as scenario  # noqa: PLC0415 - as above

    _run(
        url,
        json,
        debug,
        lambda environment, report_progress: scenario(
            environment,
            jobs=jobs,
            rounds=rounds,
            report_progress=report_progress,
            concurrency=concurrency,
            sample=sample,
        ),
    )


def _run(url: str | None, json: bool, debug: bool, scenario: Callable[[Environment, ReportProgress], Report]) -> None:
    """Run a scenario and write what it found; exit 1 if not every job could be accounted for."""
    with report_errors(debug=debug):
        with environment_for(url or os.environ.get(URL_VARIABLE, "").strip() or "sqlite://") as environment:
            report = scenario(environment, output.note)
        if json:
            sys.stdout.write(msgspec.json.encode(report.flat()).decode() + "\n")
        else:
            _show(report.flat())
        if not report.verified:
            output.print_error(
                "store and ledger do not agree that each job was completed once", "the figures mean nothing"
            )
            raise typer.Exit(1)


def _show(found: Mapping[str, Any]) -> None:
    output.show_table(("", "found"), [(name, f"{value}") for name, value in found.items() if value is not None])
