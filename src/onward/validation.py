"""What a job, a queue name and a payload must be like (B3, B4, X5): checked before anything is written.

The same limits and messages hold on every engine, so that a job which one store takes is not refused by the next.
"""

from __future__ import annotations

import math
import re
import warnings
from datetime import MAXYEAR, MINYEAR, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from onward.errors import InvalidJob, InvalidPayload, InvalidValue, PayloadTooLarge
from onward.job import NewJob

MAX_PAYLOAD: Final = 10 * 1024 * 1024
"""Bytes of JSON, payload and options together."""
MAX_PRIORITY: Final = 1_000_000
MAX_QUEUE_NAME: Final = 120
MAX_TYPE: Final = 255
"""Characters. Lists, events, usage rows and metrics repeat the type of every job."""
MAX_SAFE_INTEGER: Final = 2**53
"""Beyond it JavaScript and JSON readers of other languages lose digits."""
MAX_KEPT: Final = 10_000
"""Keeping more finished jobs by count is allowed but slow to trim."""
MAX_DEPTH: Final = 100
"""Deeper payloads overflow the parsers of some stores."""
MAX_LOG_LINES: Final = 1_000
MAX_TRACE: Final = 8_192
"""Characters of the headers that tracing sends along: what it allows for baggage."""
_LONGEST_DELAY: Final = timedelta(days=365 * 100)
# Room for a time zone at one end, and for the longest delay at the other.
_EARLIEST: Final = MINYEAR + 1
_LATEST: Final = MAXYEAR - 101
# A control character in JSON (\u0001) takes six bytes, UTF-8 at most four; options other than text take a few hundred.
_WIDEST: Final = 6
_OPTIONS_ROOM: Final = 1024

_QUEUE_NAME = re.compile(r"[a-z0-9_.-]+(?:/[a-z0-9_.-]+)*")
_json_reader = msgspec.json.Decoder(msgspec.Raw)
_PLAIN = frozenset({bool, type(None)})
_SCALARS = _PLAIN | {str, int, float}
_encode = msgspec.json.Encoder().encode


# Jobs -----------------------------------------------------------------------------------------------------------------


def check_job(job: NewJob, *, max_payload: int = MAX_PAYLOAD, foreign: bool = False) -> NewJob:
    """Check a job and return it.

    Raises:
        InvalidJob: an option breaks a rule; names the field, the value and the rule.
        PayloadTooLarge: payload and options exceed ``max_payload`` bytes.
    """
    try:
        return _check_job(job, max_payload=max_payload, foreign=foreign)
    except InvalidPayload:
        raise
    except InvalidValue as error:
        raise InvalidJob(error.field, error.value, error.rule) from None


def _check_job(job: NewJob, *, max_payload: int, foreign: bool) -> NewJob:
    check_type("type", job.type)
    if job.queue != "default":
        check_queue_name(job.queue, foreign=foreign)
    if job.priority != 0:
        check_priority(job.priority)
    if job.max_attempts is not None:
        check_at_least("max_attempts", job.max_attempts, 1)
    if job.delay is not None:
        check_delay(job.delay)
        if job.run_at is not None:
            raise InvalidValue("run_at", job.run_at, "give delay or run_at, not both")
    if job.run_at is not None:
        check_moment("run_at", job.run_at)
    if job.start_by is not None:
        check_moment("start_by", job.start_by)
    if job.throttle is not None or job.debounce is not None:
        _check_quiet(job)
    if job.batch is not None:
        check_name("batch", job.batch)
    if job.after:
        _check_after(job)
    if job.trace is not None:
        _check_trace(job.trace)
    if not isinstance(job.payload, str):
        raise InvalidValue("payload", job.payload, "must be JSON text, as encode_json writes it")
    for field in ("org_id", "idempotency_key", "dedupe_key"):
        text = getattr(job, field)
        if text is not None:
            if not isinstance(text, str) or not text:
                raise InvalidValue(field, text, "must be a non-empty string, or None")
            check_text(field, text)
    if len(job.payload) > room_for_payload(job, max_payload):
        size = len(job.payload.encode()) + len(msgspec.json.encode(_options_of(job)))
        if size > max_payload:
            raise PayloadTooLarge(size, max_payload)
    check_json_text("payload", job.payload)
    return job


def check_type(field: str, name: str) -> str:
    """Refuse a task name that is empty, too long, or that not every store can keep."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidValue(field, name, "must be a non-empty string")
    if len(name) > MAX_TYPE:
        raise InvalidValue(field, name, f"must be at most {MAX_TYPE} characters, this is {len(name)}")
    return check_text(field, name)


def _check_quiet(job: NewJob) -> None:
    for field in ("throttle", "debounce"):
        period = getattr(job, field)
        if period is not None and (not isinstance(period, timedelta) or not timedelta(0) < period < _LONGEST_DELAY):
            raise InvalidValue(field, period, "must be a timedelta of more than zero and less than a hundred years")
    if job.dedupe_key is None:
        raise InvalidValue("dedupe_key", None, "is needed to know which jobs are throttled or debounced together")
    if job.throttle is not None and job.debounce is not None:
        raise InvalidValue("debounce", job.debounce, "give throttle or debounce, not both")
    if job.debounce is not None and (job.delay or job.run_at is not None or job.after):
        raise InvalidValue(
            "debounce", job.debounce, "says when the job runs: it cannot be combined with delay or run_at"
        )


def _check_trace(trace: str) -> None:
    if not isinstance(trace, str) or not trace.startswith("{") or len(trace) > MAX_TRACE:
        raise InvalidValue("trace", trace, f"must be a JSON object of headers, of at most {MAX_TRACE:,} characters")
    check_json_text("trace", trace)


def _check_after(job: NewJob) -> None:
    if job.batch is None:
        raise InvalidValue("after", job.after, "needs a batch that the job belongs to: see app.flow")
    if job.delay or job.run_at is not None:
        raise InvalidValue("after", job.after, "cannot be combined with delay or run_at: raise Snooze in the handler")
    for parent in job.after:
        if type(parent) is not int and (not isinstance(parent, str) or not parent):
            raise InvalidValue("after", parent, "must be the id of a job, or its place among those enqueued with it")


def check_places(job: NewJob, place: int) -> None:
    """Refuse a job, enqueued at a place among others, that waits for itself or for one that comes after it."""
    for parent in job.after:
        if type(parent) is int and not 0 <= parent < place:
            raise InvalidValue("after", parent, "must be the place of a job that comes before it")


def room_for_payload(job: NewJob, max_payload: int) -> int:
    """Say how many characters a job's payload may have before it is worth while to count its bytes."""
    texts = (job.type, job.org_id, job.idempotency_key, job.dedupe_key)
    return (max_payload - _OPTIONS_ROOM) // _WIDEST - sum(len(text) for text in texts if text)


def _options_of(job: NewJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__ if name != "payload"}


def check_priority(priority: int) -> int:
    """Refuse a priority outside 0 … 1 000 000."""
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise InvalidValue("priority", priority, f"must be a whole number from 0 to {MAX_PRIORITY:,}")
    return priority


def check_unknown_tasks(policy: object, grace: timedelta) -> None:
    """Refuse an unknown policy for unknown tasks, or a grace period that is negative."""
    if policy not in {"wait", "fail"}:
        raise InvalidValue("unknown_tasks", policy, "must be 'wait' or 'fail'")
    if grace < timedelta(0):
        raise InvalidValue("unknown_task_grace", grace, "must be 0 seconds or more")


def check_at_least(field: str, value: int, least: int) -> int:
    """Refuse what is no whole number, or too small a one."""
    if type(value) is not int or not least <= value <= MAX_SAFE_INTEGER:
        raise InvalidValue(field, value, f"must be a whole number of at least {least}")
    return value


def check_delay(delay: timedelta) -> timedelta:
    """Refuse a negative delay."""
    if not isinstance(delay, timedelta) or delay < timedelta(0):
        raise InvalidValue("delay", delay, "must be a timedelta of zero or more")
    if delay > _LONGEST_DELAY:
        raise InvalidValue("delay", delay, "must be less than a hundred years")
    return delay


def check_retention(field: str, kept: timedelta) -> timedelta:
    """Refuse a negative retention, or one that no store could subtract from a time."""
    if not isinstance(kept, timedelta) or not timedelta(0) <= kept <= _LONGEST_DELAY:
        raise InvalidValue(field, kept, "must be a timedelta between zero and a hundred years")
    return kept


def check_moment(field: str, moment: datetime) -> datetime:
    """Refuse a moment without a time zone: it would mean something else on another machine."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidValue(field, moment, "must be a datetime with a time zone, such as datetime.now(UTC)")
    if not _EARLIEST <= moment.year <= _LATEST:
        raise InvalidValue(field, moment, f"must be in one of the years {_EARLIEST} to {_LATEST}")
    return moment


def check_progress(progress: int) -> int:
    """Refuse progress outside 0 … 100."""
    if type(progress) is not int or not 0 <= progress <= 100:
        raise InvalidValue("progress", progress, "must be a whole number from 0 to 100")
    return progress


def check_kept(field: str, keep: bool | int) -> int | None:  # noqa: FBT001 - BullMQ's own shape
    """Read BullMQ's way of saying how many finished jobs to keep: None for all, 0 for none, n for the last n."""
    if keep is True:
        return 0
    if keep is False:
        return None
    if type(keep) is not int or keep < 0:
        raise InvalidValue(
            field, keep, "must be true or 0 (delete at once), false (keep all), or n > 0 (keep the last n)"
        )
    if keep > MAX_KEPT:
        warnings.warn(f"{field} = {keep}: keeping more than {MAX_KEPT:,} jobs by count is slow", stacklevel=2)
    return keep


Word = TypeVar("Word", bound=StrEnum)


def one_of(field: str, words: type[Word], word: str) -> Word:
    """Read a word that a person wrote."""
    try:
        return words(word)
    except ValueError:
        raise InvalidValue(field, word, f"must be one of {', '.join(words)}") from None


def check_redact(names: tuple[str, ...]) -> None:
    """Refuse names of keys to redact that match no key, or that came as one string."""
    for name in names:
        if not isinstance(name, str) or (name != "*" and not re.search(r"[^\W_]", name)):
            raise InvalidValue("redact", name, "must be names of keys, such as ['iban', 'birth_date']")
    if len(names) > 1 and all(len(name) == 1 for name in names):
        raise InvalidValue("redact", "".join(names), "must be a list of names, not one string")


def check_text(field: str, text: str) -> str:
    """Refuse characters that not every store can keep."""
    if "\0" in text:
        raise InvalidValue(field, text, "must not contain NUL characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidValue(field, text, "must not contain lone surrogates: not valid Unicode text") from None
    return text


LAST_NUMBER: Final = 2**63 - 1
"""What stores count up to."""
LAST_MOMENT: Final = 253_402_300_799_999_999
"""Microseconds until the end of the year 9999, the last that Python has."""


def read_cursor(cursor: str, number: str | None = None, *, most: int = LAST_NUMBER) -> int:
    """Read what a page gave as its end, or the part of it that is a number.

    Raises:
        InvalidValue: no page gave that.
    """
    digits = cursor if number is None else number
    # Its length comes first: of very long ones Python makes no number, and raises an error of its own.
    if len(digits) > len(str(most)) or not digits.isascii() or not digits.isdecimal() or int(digits) > most:
        raise InvalidValue("cursor", cursor, "must be the next_cursor of the page before")
    return int(digits)


def read_number(text: str) -> int | None:
    """Read a whole number that a person wrote; None: it is none, or one that no store could keep."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(LAST_NUMBER)) else None


# Queues ---------------------------------------------------------------------------------------------------------------


def check_queue_name(name: str, *, foreign: bool = False) -> str:
    """Refuse a queue name that is no path of ``[a-z0-9_.-]+`` joined by ``/`` (X5).

    A ``foreign`` store has queues that others have named: there any text may be one, and the engine says which is.
    """
    if foreign:
        if not isinstance(name, str) or not name:
            raise InvalidValue("queue", name, "must be a non-empty string")
        return check_text("queue", name)
    if not isinstance(name, str) or not _QUEUE_NAME.fullmatch(name):
        raise InvalidValue("queue", name, "must be lower-case letters, digits, '_', '.', '-', in parts joined by '/'")
    if len(name) > MAX_QUEUE_NAME:
        raise InvalidValue("queue", name, f"must be at most {MAX_QUEUE_NAME} characters, this is {len(name)}")
    return name


def check_pattern(pattern: str, *, foreign: bool = False) -> str:
    """Refuse what is neither a queue name, nor a path ending in ``/*``, nor ``*`` for all."""
    if pattern == "*":
        return pattern
    if foreign:
        return check_queue_name(pattern, foreign=True)
    stem = pattern.removesuffix("/*") if isinstance(pattern, str) else pattern
    if not isinstance(stem, str) or not _QUEUE_NAME.fullmatch(stem):
        raise InvalidValue("queues", pattern, "must be a queue name, a path ending in '/*' (mail/*), or '*'")
    return pattern


def matches(pattern: str, name: str) -> bool:
    """Say whether a queue is one of a pattern's: ``mail/*`` is every queue below ``mail/``, at any depth."""
    if pattern == "*":
        return True
    return name.startswith(pattern[:-1]) if pattern.endswith("/*") else name == pattern


def check_name(field: str, name: str) -> str:
    """Refuse a name, of a schedule or a batch, that nobody could type."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidValue(field, name, "must be a non-empty string")
    if len(name) > MAX_QUEUE_NAME:
        raise InvalidValue(field, name, f"must be at most {MAX_QUEUE_NAME} characters, this is {len(name)}")
    return check_text(field, name)


# Payloads -------------------------------------------------------------------------------------------------------------


def encode_json(value: Any, *, field: str = "payload", max_size: int = MAX_PAYLOAD) -> str:
    """Write a value as JSON that every store gives back unchanged, or say which part of it is not such (B4)."""
    plain = value
    if type(value) not in _SCALARS:
        try:
            plain = msgspec.to_builtins(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidValue(field, value, f"must be JSON-able: {error}") from None
    _check_portable(plain, field, 0)
    text = _encode(plain)
    if len(text) > max_size:
        raise PayloadTooLarge(len(text), max_size)
    return text.decode()


def check_json_text(field: str, text: str) -> str:
    """Refuse text that is not JSON: who reads the job would stumble over it."""
    if not text.isascii() or "\0" in text:
        check_text(field, text)
    try:
        _json_reader.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidValue(field, text, f"must be JSON text, as encode_json writes it: {error}") from None
    return text


def _check_portable(value: Any, path: str, depth: int) -> None:
    kind = type(value)
    if kind is str:
        if not value.isascii() or "\0" in value:
            check_text(path, value)
    elif kind is int:
        if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            raise InvalidValue(path, value, "must be within ±2^53: send larger whole numbers as strings")
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidValue(path, value, "must be finite: JSON has no NaN and no Infinity")
    elif kind is dict:
        if depth >= MAX_DEPTH:
            raise InvalidValue(path, "…", f"must not be nested deeper than {MAX_DEPTH} levels")
        for name, member in value.items():
            if type(name) is not str:
                raise InvalidValue(path, name, "must have strings as keys: JSON has no others")
            _check_portable(name, path, depth)
            _check_portable(member, f"{path}.{name}", depth + 1)
    elif kind is list or kind is tuple:
        if depth >= MAX_DEPTH:
            raise InvalidValue(path, "…", f"must not be nested deeper than {MAX_DEPTH} levels")
        for index, member in enumerate(value):
            _check_portable(member, f"{path}[{index}]", depth + 1)
    elif kind not in _PLAIN:
        raise InvalidValue(path, value, f"must be JSON-able, {kind.__name__} is not")
