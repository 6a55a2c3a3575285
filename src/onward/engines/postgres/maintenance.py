"""What one worker does for all: each statement matches the leader's term."""

from __future__ import annotations

import math
from datetime import timedelta
from time import monotonic
from typing import Final

from onward.batches.values import BATCH_KEPT
from onward.clock import MICROSECOND, moment_of
from onward.engine.values import MaintenanceResult, Term
from onward.engines.postgres.schema import Schema
from onward.engines.postgres.usage import roll_up
from onward.pg import arrays
from onward.pg.plans import Plan, Statement

_TEND_EVERY: Final = 1.0
"""Seconds between two looks after the lanes at least: one comes with each look for leases that ran out."""
_TEND_SHARE: Final = 20
"""Of a leader's time that goes into it, at most one part in so many."""
_SWEEP_EVERY: Final = 0.4
"""Seconds between two moves of the ground at least, where jobs come and go: one comes with each look for due jobs."""
_SWEEP_SELDOM: Final = 10.0
"""The same where nothing was done."""
_SWEEP_RARELY: Final = 60.0
"""The same where nothing was heard of either."""
_SWEEP_SHARE: Final = 5
"""Of a leader's time that goes into it, at most one part in so many: every claim is the cheaper for it."""
_PARTS: Final = 64
"""Of the lanes, of which one at a time is looked at from the beginning: as ``onward.is_in`` has it."""
_MOST_SEEN: Final = 100
"""Moments that are kept in mind, while transactions from before them are still open."""
_DAYS_EVERY: Final = 600.0
"""Seconds between looks after the days of the history, which are made three days ahead."""


def elect(schema: Schema, candidate: str, lease: timedelta, holding: Term | None) -> Plan[Term | None]:
    """Become or stay leader."""
    values = [schema.now, candidate, lease // MICROSECOND]
    if holding is None:
        rows = yield Statement(schema.elect, values)
    else:
        rows = yield Statement(schema.elect_renew, [*values, holding.number])
    if not rows:
        return None
    number, leader_id, until = rows[0]
    return Term(number, leader_id, moment_of(until))


def resign(schema: Schema, term: Term) -> Plan[None]:
    """End a term before its time."""
    yield Statement(schema.resign, [schema.now, term.number, term.leader_id])


class NextDue:
    """When the next job comes due. Whoever listens is told of one that comes sooner, and need not ask until then."""

    TRUST: Final = timedelta(seconds=10)
    """How long it is believed: somebody may have put a job in by hand."""
    _APART: Final = 0.02
    """Seconds between two looks at least, however often it is told that a job comes due."""

    def __init__(self) -> None:
        self._asked_at = self._until = -math.inf

    def wait(self) -> float | None:
        """Say for how many seconds there is nothing to do; None: it is time to look."""
        left = max(self._until, self._asked_at + self._APART) - monotonic()
        return left if left > 0 else None

    def ask(self) -> None:
        """Note that it is being asked: what is told from now on may not be in the answer."""
        self._asked_at = monotonic()
        self._until = math.inf

    def learn(self, next_in: float | None) -> None:
        """Note the answer, unless something was told meanwhile."""
        trust = self.TRUST.total_seconds()
        self._until = min(self._until, self._asked_at + (trust if next_in is None else min(next_in, trust)))

    def forget(self) -> None:
        """Note that a job comes due, sooner perhaps than was known. From any thread."""
        self._until = -math.inf


def promote(schema: Schema, term: Term, limit: int, next_due: NextDue) -> Plan[tuple[MaintenanceResult, bool]]:
    """Make due jobs ready; cancel expired ones; say, too, whether there is news of batches."""
    next_due.ask()
    values = [schema.now, schema.channel, term.number, term.leader_id, limit]
    try:
        ((promoted, expired, queues, next_in, has_news),) = yield Statement(schema.promote, values)
    except BaseException:
        next_due.forget()
        raise
    batch = MaintenanceResult(
        changed=promoted + expired,
        queues=frozenset(queues),
        more=limit in {promoted, expired},
        next_in=None if next_in is None else max(0.0, next_in),
    )
    next_due.learn(0.0 if batch.more else batch.next_in)
    return batch, has_news


class Rescuing:
    """What is known of the leases that run out next. In memory: who leads next begins with a look at all."""

    _QUIET: Final = 3.0
    """Seconds for which what is known will do, where nothing is heard of. Others may claim jobs that waited before."""
    _NEXT_LOOK: Final = 2.5
    """Seconds in which one will be had at the latest."""
    _WITHIN: Final = 60_000_000
    """Microseconds. A claim that takes longer than this to commit is found by one of the deep looks."""
    _DEEP: Final = 64
    """Of so many looks, one is at all that there is: beside an open transaction it meets the remains of all before."""

    def __init__(self) -> None:
        self._is_busy = True
        self._looked_at = self._next_at = -math.inf
        self._looked: int | None = None
        self._looks = 0

    def stir(self) -> None:
        """Note that jobs come and go."""
        self._is_busy = True

    def may_wait(self) -> bool:
        """Say whether no lease can have run out that one would not learn of in time, if one hears of what goes on."""
        now = monotonic()
        return not self._is_busy and now < self._looked_at + self._QUIET and now + self._NEXT_LOOK < self._next_at

    def begin(self) -> int | None:
        """Note that a look begins; say up to when it has been done; None: look at all."""
        self._is_busy = False
        self._looks += 1
        return None if self._looked is None or self._looks % self._DEEP == 0 else self._looked - self._WITHIN

    def learn(self, looked: int | None, next_in: float | None) -> None:
        """Note the answer."""
        self._looked_at = monotonic()
        self._next_at = math.inf if next_in is None else self._looked_at + next_in
        if looked is not None:
            self._looked = looked


class Tending:
    """When what is not urgent is next to be looked after. In memory: who leads next begins with a look."""

    def __init__(self) -> None:
        self._due = 0.0
        self._looks = 0
        self._days_due = 0.0

    def is_due(self) -> bool:
        """Say whether it is time for a look."""
        return monotonic() >= self._due

    def part(self) -> int | None:
        """Say which part of the lanes is next to be looked at from its beginning; None: all, for nobody has yet."""
        return self._looks % _PARTS if self._looks else None

    def is_time_for_days(self, now: int | None) -> bool:
        """Say whether it is time to look after the days of the history, and count it as done.

        ``now``: the store's time, where it does not go by its own clock.
        """
        clock = monotonic() if now is None else now / 1e6
        is_due = clock >= self._days_due
        if is_due:
            self._days_due = clock + _DAYS_EVERY
        return is_due

    def look_at_days_again(self) -> None:
        """Note that one has gone, and that there may be more."""
        self._days_due = 0.0

    def done(self, began: float) -> None:
        """Note that a look has been had: the longer it took, the later the next one."""
        now = monotonic()
        self._due = now + max(_TEND_EVERY, (now - began) * _TEND_SHARE)
        self._looks += 1


class Sweeping:
    """When the ground is next to be moved, and what was seen on the way. In memory: who leads next begins anew."""

    def __init__(self) -> None:
        self._swept_at = self._spent = -math.inf
        self._is_busy = True
        self._term = 0
        """The number of the last one."""
        self._ground = 0
        self._seen: list[tuple[int, str]] = []
        """Moments, each with the first transaction after it: from the last on before which all have ended."""
        self.late: int | None = 0
        """From which moment on jobs may come to light below the ground; None: it has not gone ahead of any."""

    def lead(self, term: Term) -> None:
        """Note for which term it is. If somebody else has led since, who knows what they moved the ground ahead of."""
        if term.number > self._term + 1:
            self._seen = []  # for them the clock may have gone back
            self.late = 0
        self._term = term.number

    def stir(self) -> None:
        """Note that jobs come and go."""
        self._is_busy = True

    def is_due(self, *, hears: bool) -> bool:
        """Say whether it is time. ``hears``: whether somebody listens."""
        apart = _SWEEP_EVERY if self._is_busy else _SWEEP_RARELY if hears else _SWEEP_SELDOM
        return monotonic() >= self._swept_at + max(apart, self._spent * _SWEEP_SHARE)

    def seen(self) -> tuple[str, str]:
        """Lay out what was seen as the store wants it."""
        return arrays.numbers([at for at, _ in self._seen]), arrays.words([first for _, first in self._seen])

    def sweep(self, schema: Schema, term: Term) -> Plan[None]:
        """Move the ground up to where every job that is ready can be seen, or nearly so."""
        self.lead(term)
        began, self._is_busy = monotonic(), False
        who = [schema.now, term.number, term.leader_id]
        ((next_, sure, at, first),) = yield Statement(schema.prepare_watermark, [*who, *self.seen()])
        if next_ is not None:
            yield Statement(schema.move_watermark, [*who, next_])
            self._ground = next_
        if next_ is not None and at is None:  # the clock has gone back
            self._seen = []
            self.late = None
        elif next_ is not None:
            if self.late is None and (sure is None or next_ > sure):
                self.late = sure or 0
            self._seen = [one for one in self._seen if sure is None or one[0] >= sure]
            self._seen.append((at, first))
            if len(self._seen) > _MOST_SEEN:
                del self._seen[1:-1:2]
        self._swept_at = monotonic()
        self._spent = self._swept_at - began

    def tended(self, late: int | None, sure: int | None) -> None:
        """Note that floors were brought down for all jobs from ``late`` up to ``sure``: there will be no more of them.

        The ground may have gone ahead only meanwhile: then that is for the next time.
        """
        if late is not None and late == self.late and sure is not None and sure > late:
            self.late = sure if sure < self._ground else None


def rescue(
    schema: Schema,
    term: Term,
    worker_timeout: timedelta,
    max_crashes: int,
    limit: int,
    rescuing: Rescuing,
    tending: Tending,
    sweeping: Sweeping,
) -> Plan[MaintenanceResult]:
    """Give back what dead workers held; forget the workers; look after the lanes."""
    sweeping.lead(term)
    values = [
        schema.now,
        schema.channel,
        term.number,
        term.leader_id,
        worker_timeout // MICROSECOND,
        max_crashes,
        limit,
        rescuing.begin(),
    ]
    began, tends, late = monotonic(), tending.is_due(), sweeping.late
    lanes = [tends, late, *sweeping.seen(), tending.part()]
    ((rescued, buried, queues, looked, next_in, sure),) = yield Statement(schema.rescue, [*values, *lanes])
    rescuing.learn(looked, next_in)
    if tends:
        tending.done(began)
        sweeping.tended(late, sure)
    changed = rescued + buried
    return MaintenanceResult(changed=changed, queues=frozenset(queues), more=changed == limit, buried=buried)


def prune(schema: Schema, term: Term, limit: int, tending: Tending) -> Plan[MaintenanceResult]:
    """Archive ended jobs that are no longer kept: by whole days where it can be, else one by one."""
    by_day = 0
    if tending.is_time_for_days(schema.now):
        ((by_day,),) = yield Statement(schema.rotate_partitions, [schema.now, term.number, term.leader_id])
        if by_day:
            tending.look_at_days_again()
    values = [schema.now, term.number, term.leader_id, limit]
    ((pruned,),) = yield Statement(schema.prune, values)
    ((over,),) = yield Statement(schema.prune_archive, values)
    yield from roll_up(schema, term)
    ((forgotten,),) = yield Statement(schema.throttle_prune, values)
    ((batches,),) = yield Statement(schema.batch_prune, [*values, BATCH_KEPT // MICROSECOND])
    return MaintenanceResult(changed=by_day + pruned, more=by_day > 0 or limit in {pruned, over, forgotten, batches})
