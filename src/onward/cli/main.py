"""``onward``: the commands, joined. Importing this imports neither a driver nor anybody's app."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from onward.cli import output
from onward.cli.archive import archive
from onward.cli.batches import batches
from onward.cli.bench import bench
from onward.cli.capabilities import capabilities
from onward.cli.dead import dead
from onward.cli.demo.command import demo
from onward.cli.dev import dev
from onward.cli.doctor import doctor
from onward.cli.enqueue import enqueue
from onward.cli.explain import explain
from onward.cli.health import health
from onward.cli.jobs import jobs
from onward.cli.plugin import plugin
from onward.cli.queues import queues
from onward.cli.schedules import schedules
from onward.cli.schema import migrate
from onward.cli.serve import serve
from onward.cli.tokens import audit, tokens
from onward.cli.top import top
from onward.cli.usage import metrics, usage
from onward.cli.work import tick, work
from onward.cli.workers import workers

# Through a pipe, help and errors are plain text.
onward = typer.Typer(
    name="onward",
    help="A durable job queue: run jobs, look at them, and look after them.",
    epilog="Exit codes: 0 ok, 1 failed or not found, 2 wrong usage, 3 store unreachable.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if sys.stderr.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RUN = "Run jobs"
INSPECT = "Inspect"
OPERATE = "Operate"
EXPLORE = "Try it"

onward.command(rich_help_panel=RUN)(work)
onward.command(rich_help_panel=RUN)(tick)
onward.command(rich_help_panel=RUN)(enqueue)
onward.command(rich_help_panel=RUN)(serve)
onward.command(rich_help_panel=RUN)(dev)
onward.add_typer(jobs, name="jobs", rich_help_panel=OPERATE)
onward.add_typer(queues, name="queues", rich_help_panel=OPERATE)
onward.add_typer(schedules, name="schedules", rich_help_panel=OPERATE)
onward.add_typer(batches, name="batches", rich_help_panel=OPERATE)
onward.add_typer(dead, name="dead", rich_help_panel=OPERATE)
onward.add_typer(archive, name="archive", rich_help_panel=OPERATE)
onward.add_typer(workers, name="workers", rich_help_panel=OPERATE)
onward.add_typer(tokens, name="tokens", rich_help_panel=OPERATE)
onward.command(rich_help_panel=INSPECT)(top)
onward.command(rich_help_panel=INSPECT)(explain)
onward.command(rich_help_panel=INSPECT)(usage)
onward.command(rich_help_panel=INSPECT)(metrics)
onward.command(rich_help_panel=INSPECT)(audit)
onward.command(rich_help_panel=INSPECT)(doctor)
onward.command(rich_help_panel=INSPECT)(health)
onward.command(rich_help_panel=INSPECT)(capabilities)
onward.command(rich_help_panel=OPERATE)(migrate)
onward.command(rich_help_panel=OPERATE, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    plugin
)
onward.command(rich_help_panel=EXPLORE)(demo)
onward.add_typer(bench, name="bench", rich_help_panel=EXPLORE)


@onward.command(rich_help_panel=EXPLORE)
def version() -> None:
    """Say which version this is."""
    from onward.worker.identity import onward_version  # noqa: PLC0415 - the other commands do not ask

    output.write(f"onward {onward_version()}, Python {sys.version.split()[0]}")


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@onward.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say which version this is.", show_default=False, is_eager=True, callback=_version
        ),
    ] = False,
) -> None:
    """Run jobs, look at them, and look after them."""


def main() -> None:
    """Run the command line."""
    onward(prog_name="onward")


if __name__ == "__main__":
    main()
