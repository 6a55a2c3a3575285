"""Alert rules: a condition over queues, and the webhook that is told when it begins and when it ends.

:meth:`AlertRule.measure` is pure: what the store shows in, a measurement out. The state of a rule is its newest
delivery, in a queue of its own: what was delivered last is what the receiver believes. So a new leader continues where
the last one stopped, and nothing is delivered twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from onward import validation
from onward.engine.values import QueueInfo
from onward.errors import InvalidValue
from onward.job import Job
from onward.lifecycle import JobStatus
from onward.metering import Usage

T = TypeVar("T")

QUEUES: Final = "onward/alerts"
"""Below it, each rule has a queue for its deliveries."""
_OWN: Final = "onward/"
"""Onward's own queues, which no rule looks at: an alert about failing deliveries of alerts has no end."""
_FAILURES: Final = frozenset({"retried", "failed", "dead_letter"})
MAX_WINDOW: Final = timedelta(days=1)


class Condition(StrEnum):
    """What a rule looks at."""

    OLDEST_READY = "oldest_ready"
    """Seconds that the job which has been ready longest has waited, in queues that are not paused."""
    FAILURE_RATE = "failure_rate"
    """The share of the runs of the last ``window`` that failed."""
    DEAD_LETTERS = "dead_letters"
    """Jobs whose attempts are used up."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule has found."""

    value: float
    queue: str | None = None
    """The queue that contributes most."""
    is_firing: bool


class AlertState(msgspec.Struct, frozen=True, kw_only=True):
    """How a rule stands, by what was delivered last."""

    name: str
    condition: Condition
    threshold: float
    webhook: str
    queues: tuple[str, ...]
    is_firing: bool = False
    since: datetime | None = None
    """When that was delivered; None: nothing was delivered yet, or it is no longer kept."""
    value: float | None = None
    queue: str | None = None


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """A condition over queues, and where its begin and its end are delivered to."""

    name: str
    webhook: str
    condition: Condition
    threshold: float
    """Seconds, a share between 0 and 1, or a number of jobs: it fires when the value is at least that."""
    queues: tuple[str, ...] = ("*",)
    window: timedelta = timedelta(minutes=5)
    """Of the failure rate."""
    min_runs: int = 20
    """Fewer runs in the window have no failure rate."""
    min_interval: timedelta = timedelta(minutes=5)
    """The shortest time between two deliveries."""

    def __post_init__(self) -> None:
        """Refuse what cannot be evaluated."""
        validation.check_queue_name(self.queue)
        validation.check_at_least("min_runs", self.min_runs, 1)
        for pattern in self.queues:
            validation.check_pattern(pattern)
        if not self.queues:
            raise InvalidValue("queues", (), "must name at least one queue or pattern")
        if self.condition is Condition.FAILURE_RATE and not 0 < self.threshold <= 1:
            raise InvalidValue("failure_rate", self.threshold, "must be more than 0 and at most 1")
        if self.condition is not Condition.FAILURE_RATE and self.threshold <= 0:
            raise InvalidValue(self.condition.value, self.threshold, "must be more than 0")
        if not timedelta(minutes=1) <= self.window <= MAX_WINDOW:
            raise InvalidValue("window", self.window, "must be between a minute, in which usage is counted, and a day")
        if self.min_interval < timedelta(0):
            raise InvalidValue("min_interval", self.min_interval, "must not be negative")

    @property
    def queue(self) -> str:
        """Where its deliveries wait."""
        return f"{QUEUES}/{self.name}"

    def matches(self, queue: str | None) -> bool:
        """Say whether the rule looks at a queue."""
        if queue is None or queue.startswith(_OWN):
            return False
        return any(validation.matches(pattern, queue) for pattern in self.queues)

    def measure(self, queues: Iterable[QueueInfo], usage: Iterable[Usage], now: datetime) -> Measurement:
        """Evaluate the condition. ``usage`` is by queue and outcome, of the rule's window at least."""
        if self.condition is Condition.FAILURE_RATE:
            return self._failure_rate([row for row in usage if self.matches(row.queue)], now)
        found = {one.name: self._value(one, now) for one in queues if self.matches(one.name)}
        worst = max(found, key=lambda name: found[name], default=None)
        values = found.values()
        value = sum(values) if self.condition is Condition.DEAD_LETTERS else max(values, default=0.0)
        return Measurement(value=value, queue=worst if value else None, is_firing=value >= self.threshold)

    def _value(self, queue: QueueInfo, now: datetime) -> float:
        if self.condition is Condition.DEAD_LETTERS:
            return queue.counts.get(JobStatus.DEAD_LETTER, 0)
        if queue.oldest_ready_at is None or queue.settings.paused:
            return 0.0
        return max(0.0, (now - queue.oldest_ready_at).total_seconds())

    def _failure_rate(self, usage: Sequence[Usage], now: datetime) -> Measurement:
        counted = [row for row in usage if row.at is None or row.at > now - self.window]
        counted = [row for row in counted if row.outcome == "completed" or row.outcome in _FAILURES]
        runs = sum(row.runs for row in counted)
        failures: dict[str, int] = {}
        for row in counted:
            if row.outcome in _FAILURES and row.queue is not None:
                failures[row.queue] = failures.get(row.queue, 0) + row.runs
        if runs < self.min_runs:
            return Measurement(value=0.0, is_firing=False)
        rate = sum(failures.values()) / runs
        worst = max(failures, key=lambda name: failures[name], default=None)
        return Measurement(value=round(rate, 4), queue=worst, is_firing=rate >= self.threshold)

    # Its state

    def state_of(self, last: Job | None) -> AlertState:
        """Read the state from the newest delivery."""
        event = _object(_object(None if last is None else last.payload).get("event"))
        data = _object(event.get("data"))
        return AlertState(
            name=self.name,
            condition=self.condition,
            threshold=self.threshold,
            webhook=self.webhook,
            queues=self.queues,
            is_firing=event.get("type") == "alert.fired",
            since=None if last is None else last.created_at,
            value=_typed(data.get("value"), float),
            queue=_typed(data.get("queue"), str),
        )

    def message(self, measured: Measurement, now: datetime) -> dict[str, Any]:
        """Write what is delivered."""
        return {
            "type": "alert.fired" if measured.is_firing else "alert.resolved",
            "timestamp": msgspec.to_builtins(now),
            "data": {
                "alert": self.name,
                "condition": self.condition.value,
                "threshold": self.threshold,
                "value": measured.value,
                "queue": measured.queue,
                "queues": list(self.queues),
            },
        }


def _object(value: Any) -> dict[str, Any]:
    """Read a JSON object; anything else is an empty one: jobs can be enqueued by hand."""
    return value if isinstance(value, dict) else {}


def _typed(value: Any, kind: type[T]) -> T | None:
    """Read a value of a type; anything else is None."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def is_delivery_queue(queue: str) -> bool:
    """Whether a queue has the deliveries of a rule: only Onward may add to it, for they are the rule's state."""
    return queue.startswith(f"{QUEUES}/")


def rule_of(name: str, webhook: str, conditions: dict[str, timedelta | float | None], **options: Any) -> AlertRule:
    """Make a rule of the one condition that is given.

    Raises:
        InvalidValue: it is not one, or cannot be evaluated.
    """
    given = {word: value for word, value in conditions.items() if value is not None}
    if len(given) != 1:
        words = ", ".join(conditions)
        raise InvalidValue("alert", sorted(given), f"must have exactly one condition: {words}")
    ((word, value),) = given.items()
    threshold = value.total_seconds() if isinstance(value, timedelta) else float(value)
    return AlertRule(name=name, webhook=webhook, condition=Condition(word), threshold=threshold, **options)
