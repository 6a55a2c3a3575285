"""What Onward has to say of a message, in the message's headers under ``onward``: written here, read here.

It survives in PGMQ's archive, and every client of PGMQ's can read it. Others may write there too: a field that cannot
be understood counts as not written.
"""

from __future__ import annotations

from typing import Any, Final, assert_never

import msgspec

from onward.backoff import Backoff
from onward.clock import MICROSECOND as _MICROSECOND
from onward.engine.values import Settlement
from onward.engines.pgmq.settings import GROUP_HEADER
from onward.job import FailedAttempt, NewJob
from onward.lifecycle import Bury, Cancel, Complete, Fail, Failure, Release, Retry, Snooze

_encode = msgspec.json.encode


class JobHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job header, as it stands in the headers."""

    type: str | None = None
    org_id: str | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    trace: str | None = None
    attempts: int = 0
    """Runs that ended with an outcome and were not given back."""
    reads: int = 0
    """The read count when the last outcome, or loss, was written down: a higher one means that somebody has it now."""
    lost: int = 0
    """Reads in a row that ended with their worker."""
    put_backs: int = 0
    """Reads in a row by workers that do not have the task."""
    crashes: int = 0
    status: str | None = None
    """How it ended, or why it waits."""
    worker: str | None = None
    error: str | None = None
    errors: tuple[FailedAttempt, ...] = ()
    progress: int | None = None
    progress_message: str | None = None
    result: Any = None


EMPTY_HEADER: Final = JobHeader()
_backoffs = msgspec.json.Decoder(Backoff)
_decoder = msgspec.json.Decoder(JobHeader)
_FIELDS: Final = {field.name: field.type for field in msgspec.structs.fields(JobHeader)}


def header_of(text: str) -> JobHeader:
    """Read a job header."""
    if text == "{}":
        return EMPTY_HEADER
    try:
        return _decoder.decode(text)
    except (msgspec.ValidationError, ValueError):
        return _valid_fields_of(text)


def _valid_fields_of(text: str) -> JobHeader:
    valid = {}
    for name, value in msgspec.json.decode(text).items():
        if name in _FIELDS:
            try:
                valid[name] = msgspec.convert(value, _FIELDS[name])
            except (msgspec.ValidationError, ValueError):
                continue
    return JobHeader(**valid)


def backoff_of(text: str) -> Backoff | None:
    """Read what a queue says of its jobs' backoff. Anybody may write there: what is none counts as not said."""
    try:
        return _backoffs.decode(text)
    except (msgspec.MsgspecError, ValueError):
        return None


def headers_of(job: NewJob, *, grouped: bool) -> str:
    """Write the headers of a message to be."""
    header = JobHeader(
        type=job.type, org_id=job.org_id, max_attempts=job.max_attempts, backoff=job.backoff, trace=job.trace
    )
    headers: dict[str, object] = {"onward": header}
    if grouped and job.org_id is not None:
        headers[GROUP_HEADER] = job.org_id
    return _encode(headers).decode()


def completed_patch(attempts: int, reads: int, worker: str) -> str:
    """Write down that a run came to its end, and left nothing to be kept."""
    return _encode({"attempts": attempts, "reads": reads, "worker": worker, "status": "completed"}).decode()


SettledRow = tuple[str, int, int, int, str, int | None, str, str | None]
"""A row for ``onward.settle``: queue, id, read count, stamp, action, delay, header patch, failure."""


def settled_row(settlement: Settlement, *, completed_action: str) -> SettledRow:
    """Write down how a run ended; ``completed_action`` says what becomes of a message that is completed."""
    claim = settlement.claim
    msg_id, read_ct, queue, stamp, _, worker, _ = claim.token
    patch: dict[str, Any] = {"attempts": claim.attempts, "reads": read_ct, "worker": worker}
    action, delay = "archive", None
    failure: Failure | None = None
    match settlement.outcome:
        case Complete(result):
            action = completed_action
            patch["status"] = "completed"
            if result is not None:
                patch["result"] = msgspec.Raw(result.encode())
        case Fail(failure):
            patch |= {"status": "failed", "error": str(failure)}
        case Bury(failure):
            patch |= {"status": "dead_letter", "error": str(failure)}
        case Cancel(reason):
            patch |= {"status": "cancelled", "error": reason}
        case Retry(wait, failure):
            action, delay = "requeue", wait // _MICROSECOND
            patch |= {"status": "retry", "error": str(failure)}
        case Snooze(wait, is_put_back):
            action, delay = "requeue", wait // _MICROSECOND
            patch |= {"status": "put_back" if is_put_back else "snoozed", "attempts": claim.attempts - 1}
            if is_put_back:
                patch["put_backs"] = claim.put_backs + 1
        case Release():
            action = "requeue"
            patch |= {"status": "released", "attempts": claim.attempts - 1}
        case _:
            assert_never(settlement.outcome)
    if claim.put_backs and not isinstance(settlement.outcome, Release):
        patch.setdefault("put_backs", 0)  # in a row: a worker with the task has run it
    entry = None if failure is None else _failure_text(failure, claim.attempts, str(worker))
    return str(queue), int(msg_id), int(read_ct), int(stamp), action, delay, _encode(patch).decode(), entry


def _failure_text(failure: Failure, attempt: int, worker: str) -> str:
    """Write one entry of a message's history. The store adds when it was."""
    entry = {
        "attempt": attempt,
        "error_type": failure.error_type,
        "message": failure.message,
        "traceback": failure.traceback,
        "worker_id": worker,
    }
    return _encode(entry).decode()
