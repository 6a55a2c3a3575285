"""What a person is told when something does not work: the cause, its effect, and the next command.

Exit codes: 0 ok; 1 failed or not found; 2 wrong usage; 3 the store cannot be reached. A traceback is shown only with
``--debug``: whoever mistyped a queue's name has no use for one.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from onward.errors import (
    EngineNotIncluded,
    InvalidValue,
    JobError,
    JobNotFound,
    OnwardError,
    SchemaTooOld,
    StoreUnavailable,
)

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_STORE_UNREACHABLE: Final = 3

_START_REMEDIES: Final[Mapping[str, str]] = {
    "PostgreSQL": "start PostgreSQL (systemctl start postgresql, or pg_ctl start), then: onward doctor",
    "pg-boss": "start PostgreSQL (systemctl start postgresql, or pg_ctl start), then: onward doctor",
    "PGMQ": "start PostgreSQL (systemctl start postgresql, or pg_ctl start), then: onward doctor",
    "BullMQ": "start Redis (systemctl start redis, or redis-server), then: onward doctor",
}


class CommandError(Exception):
    """Something that the person at the keyboard must know."""

    def __init__(self, cause: str, *, effect: str = "", remedy: str = "", code: int = EXIT_FAILED) -> None:
        super().__init__(cause)
        self.cause = cause
        self.effect = effect
        self.remedy = remedy
        self.code = code


def usage_error(cause: str, *, remedy: str = "") -> CommandError:
    """Make the error of a command that was typed wrongly; nothing has been done."""
    return CommandError(cause, effect="nothing was done", remedy=remedy, code=EXIT_USAGE)


def refusal(cause: str, *, remedy: str = "") -> CommandError:
    """Make the error of a command whose object is not found, or not in a status for it; nothing has been done."""
    return CommandError(cause, effect="nothing was done", remedy=remedy)


@contextmanager
def report_errors(*, debug: bool = False, engine: Callable[[], str] = str) -> Iterator[None]:
    """Turn what goes wrong inside into a message and an exit code; ``engine`` names the store, once it is known."""
    import typer  # noqa: PLC0415 - worker processes report errors too, and need neither of these

    from onward.cli import output  # noqa: PLC0415

    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise  # typer has its own way to tell
    except BrokenPipeError:
        raise  # whoever read our output has read enough
    except Exception as error:  # noqa: BLE001 - no traceback for a user's mistake
        if debug:
            traceback.print_exc(file=sys.stderr)
        failure = to_command_error(error, engine())
        output.print_error(failure.cause, failure.effect, failure.remedy)
        raise typer.Exit(failure.code) from None


def to_command_error(error: Exception, engine: str = "") -> CommandError:
    """Say in terms of the command line what an error means."""
    match error:
        case CommandError():
            return error
        case InvalidValue(field="cursor"):
            return usage_error(f"{error.value!r} is not a cursor: give the next_cursor of the page before")
        case InvalidValue():
            return CommandError(str(error), effect="nothing was done", remedy=_remedy_for(error), code=EXIT_USAGE)
        case EngineNotIncluded():
            return CommandError(str(error), effect="nothing was done", code=EXIT_USAGE)
        case JobNotFound():
            return CommandError(str(error), remedy="onward jobs list, onward archive list")
        case JobError():
            return CommandError(str(error))
        case SchemaTooOld():
            return CommandError(str(error), effect="nothing was done", remedy="onward migrate")
        case StoreUnavailable():
            remedy = error.remedy or _START_REMEDIES.get(engine, "onward doctor")
            return CommandError(error.cause, effect="nothing was done", remedy=remedy, code=EXIT_STORE_UNREACHABLE)
        case OnwardError():
            return CommandError(str(error), effect="nothing was done")
        case TimeoutError():
            return CommandError(str(error))
        case _:
            return CommandError(
                f"{type(error).__qualname__}: {error}",
                effect="this is a bug in Onward, not a mistake of yours; the store may have been changed",
                remedy="the same command with --debug, and report what it shows",
            )


def _remedy_for(error: InvalidValue) -> str:
    if error.field in {"queue", "queues"}:
        return "onward queues list"
    return ""
