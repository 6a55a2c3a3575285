"""Outcomes on their way to the store.

An outcome leaves with the next round trip, beside its neighbours. It is kept until the store has answered for it: a
store that is away loses nothing. If the store refuses a whole batch for a reason of its own (not because it is away),
the batch is sent one by one, so that one outcome which cannot be written does not keep the others from being stored.

One whose job is in somebody's open transaction is set aside for a moment, and said again: nobody else waits for it.

A lost claim is an answer: the outcome is dropped, said once in the log, and counted under ``stale_rejections`` (X3).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from onward.engine.contract import Consumer
from onward.engine.values import Settlement, Token
from onward.errors import StoreUnavailable
from onward.lifecycle import MOVE_OF, Commit, Complete, Fail, Failure, Outcome, Release, Retry, SelfCompleted, Snooze
from onward.worker.inflight import LOST, SETTLING, HeldClaim, Inflight
from onward.worker.metering import Count

log = logging.getLogger("onward.job")

_NAME_OF: Final = {outcome: move.value for outcome, move in MOVE_OF.items()}
_INFO_OUTCOMES: Final = frozenset({Complete, Snooze, Release})
"""Ordinary ends, told at INFO; what needs a person's eye is told at WARNING."""
_DEFER_SECONDS: Final = 0.5
"""Seconds until an outcome is said again whose job was in somebody's open transaction."""


class Settler:
    """The outbox of one pool."""

    def __init__(self, inflight: Inflight, count: Count) -> None:
        self.on_outcome: Callable[[], None] = lambda: None
        """Called when a run has ended."""
        self._inflight = inflight
        self._count = count
        self._outbox: list[Settlement] = []
        self._deferred: list[Settlement] = []
        self._deferred_until = math.inf

    @property
    def deferred_until(self) -> float:
        """When, by the loop's clock, outcomes that were set aside are to be said again; infinite: there are none."""
        return self._deferred_until

    def __len__(self) -> int:
        """Count the outcomes that the store has not been sent."""
        return len(self._outbox)

    def add(self, held: HeldClaim, outcome: Outcome | SelfCompleted) -> None:
        """Send an outcome with the next round trip, unless the handler has stored it itself."""
        if isinstance(outcome, SelfCompleted):
            if outcome.commit is Commit.UNKNOWN:
                self._inflight.remove(held.claim.token)
            else:
                lost = {held.claim.token} if outcome.commit is Commit.LOST else frozenset()
                self.confirm([Settlement(held.claim, Complete(outcome.result), held.run_seconds)], lost)
            self.on_outcome()
            return
        if held.stage is LOST:
            if type(outcome) is not Release:  # a handler that was stopped had nothing to say
                self._inflight.tally["stale_rejections"] += 1
            self.on_outcome()
            return
        if held.stage is SETTLING:
            return  # given up for dead before; a late word changes nothing
        held.stage = SETTLING
        self._outbox.append(Settlement(held.claim, outcome, held.run_seconds))
        self.on_outcome()

    def take(self, limit: int) -> tuple[Settlement, ...]:
        """Take outcomes for a round trip. Whoever takes them answers by :meth:`stored` or :meth:`put_back`."""
        taken = tuple(self._outbox[:limit])
        del self._outbox[:limit]
        return taken

    def requeue(self, settlements: Sequence[Settlement]) -> None:
        """Keep outcomes for which the store has not answered, ahead of newer ones."""
        self._outbox[:0] = settlements

    def defer(self, settlements: tuple[Settlement, ...], busy: Collection[Token], now: float) -> tuple[Settlement, ...]:
        """Keep outcomes for later whose jobs somebody else holds, and give the others."""
        deferred = [settlement for settlement in settlements if settlement.claim.token in busy]
        if deferred:
            self._deferred += deferred
            self._deferred_until = now + _DEFER_SECONDS
            log.info("%d outcomes deferred: an open transaction locks their jobs", len(deferred))
        return tuple(settlement for settlement in settlements if settlement.claim.token not in busy)

    def requeue_deferred(self) -> None:
        """Have outcomes said again that were set aside."""
        self._outbox += self._deferred
        self._deferred.clear()
        self._deferred_until = math.inf

    def confirm(self, settlements: Sequence[Settlement], lost: Collection[Token]) -> None:
        """Let go of what the store has answered for."""
        inflight, tally = self._inflight, self._inflight.tally
        inflight.remove_all([settlement.claim.token for settlement in settlements])
        if lost:
            for settlement in settlements:
                if settlement.claim.token in lost:
                    tally["stale_rejections"] += 1
                    log.warning("claim lost, outcome dropped", extra=_log_fields(settlement))
            settlements = [settlement for settlement in settlements if settlement.claim.token not in lost]
        kinds = Counter([type(settlement.outcome) for settlement in settlements])
        for kind, count in kinds.items():
            tally[_NAME_OF[kind]] += count
        self._count(settlements)
        if log.isEnabledFor(logging.INFO) or not kinds.keys() <= _INFO_OUTCOMES:
            for settlement in settlements:
                _log_outcome(settlement)

    async def settle_one_by_one(self, engine: Consumer, settlements: Sequence[Settlement]) -> None:
        """Store what can be stored of a batch that the store refused as a whole."""
        for index, settlement in enumerate(settlements):
            try:
                self.confirm([settlement], await engine.settle([settlement]))
            except (StoreUnavailable, asyncio.CancelledError):
                self.requeue(settlements[index:])
                raise
            except Exception as error:
                log.exception("outcome cannot be stored, failing the job", extra=_log_fields(settlement))
                failure = Failure("OutcomeNotStored", f"{type(error).__name__}: {error}")
                failed = Settlement(settlement.claim, Fail(failure), settlement.seconds)
                try:
                    self.confirm([failed], await engine.settle([failed]))
                except (StoreUnavailable, asyncio.CancelledError):
                    self.requeue([failed, *settlements[index + 1 :]])
                    raise
                except Exception:
                    # Nothing can be written for this job: its lease will run out, and it will be given back.
                    log.exception("job cannot be settled, leaving it to its lease", extra=_log_fields(settlement))
                    self._inflight.remove(settlement.claim.token)


def _log_fields(settlement: Settlement) -> dict[str, object]:
    claim, outcome = settlement.claim, settlement.outcome
    fields: dict[str, object] = {
        "job_id": claim.ref.id,
        "queue": claim.ref.queue,
        "task": claim.type,
        "attempt": claim.attempts,
        "outcome": _NAME_OF[type(outcome)],
    }
    if isinstance(outcome, Retry | Snooze):
        fields["delay"] = outcome.delay.total_seconds()
    if (failure := getattr(outcome, "failure", None)) is not None:
        fields["error"] = str(failure)
    if (reason := getattr(outcome, "reason", None)) is not None:
        fields["reason"] = reason
    return fields


def _log_outcome(settlement: Settlement) -> None:
    kind = type(settlement.outcome)
    level = logging.INFO if kind in _INFO_OUTCOMES else logging.WARNING
    if not log.isEnabledFor(level):
        return
    log.log(level, "job %s", _LOG_VERBS.get(_NAME_OF[kind], _NAME_OF[kind]), extra=_log_fields(settlement))


_LOG_VERBS: Final = {
    "complete": "completed",
    "retry": "failed, will be retried",
    "fail": "failed",
    "bury": "failed, no attempts left",
    "snooze": "snoozed",
    "release": "released",
    "cancel": "cancelled",
}
