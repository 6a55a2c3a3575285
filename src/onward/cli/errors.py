"""What a person is told when something does not work: the cause, its effect, and the next command.

Exit codes: 0 it is done; 1 what was asked for failed; 2 it was asked for wrongly. A traceback is shown only with
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
    InvalidJob,
    JobFailed,
    JobNotFound,
    OnwardError,
    SchemaTooOld,
    StoreUnavailable,
)

FAILED: Final = 1
WRONG: Final = 2

_TO_START: Final[Mapping[str, str]] = {
    "PostgreSQL": "start PostgreSQL (systemctl start postgresql, or pg_ctl start), then: onward doctor",
    "pg-boss": "start PostgreSQL (systemctl start postgresql, or pg_ctl start), then: onward doctor",
    "PGMQ": "start PostgreSQL (systemctl start postgresql, or pg_ctl start), then: onward doctor",
    "BullMQ": "start Redis (systemctl start redis, or redis-server), then: onward doctor",
}


class Trouble(Exception):
    """Something that the person at the keyboard must know."""

    def __init__(self, cause: str, *, effect: str = "", remedy: str = "", code: int = FAILED) -> None:
        super().__init__(cause)
        self.cause = cause
        self.effect = effect
        self.remedy = remedy
        self.code = code


def usage(cause: str, *, remedy: str = "") -> Trouble:
    """Make the trouble of a command that was typed wrongly; nothing has been done."""
    return Trouble(cause, effect="nothing was done", remedy=remedy, code=WRONG)


@contextmanager
def told(*, debug: bool = False, engine: Callable[[], str] = str) -> Iterator[None]:
    """Turn what goes wrong inside into a message and an exit code; ``engine`` names the store, once it is known."""
    import typer  # noqa: PLC0415 - worker processes know of troubles too, and need neither of these

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
        trouble = trouble_of(error, engine())
        output.complain(trouble.cause, trouble.effect, trouble.remedy)
        raise typer.Exit(trouble.code) from None


def trouble_of(error: Exception, engine: str = "") -> Trouble:
    """Say in terms of the command line what an error means."""
    match error:
        case Trouble():
            return error
        case InvalidJob():
            return Trouble(str(error), effect="nothing was done", remedy=_lookup(error), code=WRONG)
        case EngineNotIncluded():
            return Trouble(str(error), effect="nothing was done", code=WRONG)
        case JobNotFound():
            return Trouble(str(error), remedy="onward jobs list, onward archive list")
        case JobFailed():
            return Trouble(str(error))
        case SchemaTooOld():
            return Trouble(str(error), effect="nothing was done", remedy="onward migrate")
        case StoreUnavailable():
            remedy = error.remedy or _TO_START.get(engine, "onward doctor")
            return Trouble(error.cause, effect="nothing was done", remedy=remedy)
        case OnwardError():
            return Trouble(str(error), effect="nothing was done")
        case TimeoutError():
            return Trouble(str(error))
        case _:
            return Trouble(
                f"{type(error).__qualname__}: {error}",
                effect="this is a bug in Onward, not a mistake of yours; the store may have been changed",
                remedy="the same command with --debug, and report what it shows",
            )


def _lookup(error: InvalidJob) -> str:
    if error.field in {"queue", "queues"}:
        return "onward queues list"
    return ""
