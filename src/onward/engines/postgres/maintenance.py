"""What one worker does for all: each statement matches the leader's term."""

from __future__ import annotations

import math
from datetime import timedelta
from time import monotonic
from typing import Final

from onward.batches.values import BATCH_KEPT
from onward.clock import MICROSECOND, moment_of
from onward.engine.restore import Home
from onward.engine.values import MaintenanceResult, Term
from onward.engines.postgres.statements import Schema
from onward.engines.postgres.usage import roll_up
from onward.pg import arrays
from onward.pg.plan_runner import Plan, Statement

_LANES_INTERVAL: Final = 1.0
"""Seconds between two looks after the lanes at least: one comes with each look for leases that ran out."""
_LANES_TIME_FACTOR: Final = 9
"""Pause after a repair of the lanes, as a multiple of its duration: at most a tenth of the leader's time."""
_LANES_MAX_DURATION: Final = 0.2
"""Seconds for one repair of the lanes. Above it, fewer lanes are scanned from their beginning."""
_LANES_SHORT_DURATION: Final = 0.05
"""Seconds. Below it, more lanes are scanned from their beginning."""
_WATERMARK_INTERVAL: Final = 0.4
"""Seconds between two moves of the watermark at least, where jobs come and go: one with each look for due jobs."""
_WATERMARK_IDLE_INTERVAL: Final = 10.0
"""The same where nothing was done."""
_WATERMARK_QUIET_INTERVAL: Final = 60.0
"""The same where nothing was heard of either."""
_WATERMARK_TIME_FACTOR: Final = 5
"""Of a leader's time that goes into it, at most one part in so many: every claim is the cheaper for it."""
_SHARDS: Final = 64
"""Shards of the lanes, as ``onward.is_in_shard`` has it: empty lanes are removed one shard at a time."""
_MAX_SNAPSHOTS: Final = 100
"""Moments that are kept in mind, while transactions from before them are still open."""
_MAX_PRUNED: Final = 1_000_000
"""More jobs than anyone asks to prune at once."""
_PARTITIONS_INTERVAL: Final = 600.0
"""Seconds between looks after the days of the history, which are made three days ahead."""


def elect(schema: Schema, candidate: str, lease: timedelta, current_term: Term | None) -> Plan[Term | None]:
    """Become or stay leader."""
    values = [schema.now, candidate, lease // MICROSECOND]
    if current_term is None:
        rows = yield Statement(schema.elect, values)
    else:
        rows = yield Statement(schema.elect_renew, [*values, current_term.number])
    if not rows:
        return None
    number, leader_id, until = rows[0]
    return Term(number, leader_id, moment_of(until))


def resign(schema: Schema, term: Term) -> Plan[None]:
    """End a term before its time."""
    yield Statement(schema.resign, [schema.now, term.number, term.leader_id])


class NextDue:
    """When the next job comes due. Whoever listens is told of one that comes sooner, and need not ask until then."""

    TTL: Final = timedelta(seconds=10)
    """How long it is believed: somebody may have put a job in by hand."""
    _MIN_INTERVAL: Final = 0.02
    """Seconds between two looks at least, however often it is told that a job comes due."""

    def __init__(self) -> None:
        self._asked_at = self._until = -math.inf

    def remaining(self) -> float | None:
        """Say for how many seconds there is nothing to do; None: it is time to look."""
        left = max(self._until, self._asked_at + self._MIN_INTERVAL) - monotonic()
        return left if left > 0 else None

    def begin_check(self) -> None:
        """Note that it is being asked: what is told from now on may not be in the answer."""
        self._asked_at = monotonic()
        self._until = math.inf

    def update(self, next_in: float | None) -> None:
        """Note the answer, unless something was told meanwhile."""
        ttl = self.TTL.total_seconds()
        self._until = min(self._until, self._asked_at + (ttl if next_in is None else min(next_in, ttl)))

    def reset(self) -> None:
        """Note that a job comes due, sooner perhaps than was known. From any thread."""
        self._until = -math.inf


def promote(schema: Schema, term: Term, limit: int, next_due: NextDue) -> Plan[tuple[MaintenanceResult, bool]]:
    """Make due jobs ready; cancel expired ones; say, too, whether there is news of batches."""
    next_due.begin_check()
    values = [schema.now, schema.channel, term.number, term.leader_id, limit]
    try:
        ((promoted, expired, queues, next_in, has_batch_events),) = yield Statement(schema.promote, values)
    except BaseException:
        next_due.reset()
        raise
    batch = MaintenanceResult(
        changed=promoted + expired,
        queues=frozenset(queues),
        more=limit in {promoted, expired},
        next_in=None if next_in is None else max(0.0, next_in),
    )
    next_due.update(0.0 if batch.more else batch.next_in)
    return batch, has_batch_events


class RescueState:
    """What is known of the leases that run out next. In memory: who leads next begins with a look at all."""

    _IDLE_TTL: Final = 3.0
    """Seconds for which what is known will do, where nothing is heard of. Others may claim jobs that waited before."""
    _NEXT_CHECK: Final = 2.5
    """Seconds in which one will be had at the latest."""
    _COMMIT_MARGIN: Final = 60_000_000
    """Microseconds. A claim that takes longer than this to commit is found by one of the deep looks."""
    _FULL_CHECK_EVERY: Final = 64
    """Of so many looks, one is at all that there is: beside an open transaction it meets the remains of all before."""

    def __init__(self) -> None:
        self._is_busy = True
        self._checked_at = self._next_at = -math.inf
        self._checked_until: int | None = None
        self._checks = 0

    def mark_busy(self) -> None:
        """Note that jobs come and go."""
        self._is_busy = True

    def can_skip(self) -> bool:
        """Say whether no lease can have run out that one would not learn of in time, if one hears of what goes on."""
        now = monotonic()
        return not self._is_busy and now < self._checked_at + self._IDLE_TTL and now + self._NEXT_CHECK < self._next_at

    def begin(self) -> int | None:
        """Note that a look begins; say up to when it has been done; None: look at all, the clock may have gone back."""
        self._is_busy = False
        self._checks += 1
        return (
            None
            if self._checked_until is None or self._checks % self._FULL_CHECK_EVERY == 0
            else self._checked_until - self._COMMIT_MARGIN
        )

    def finish(self, checked_until: int | None, next_in: float | None) -> None:
        """Note the answer."""
        self._checked_at = monotonic()
        self._next_at = math.inf if next_in is None else self._checked_at + next_in
        if checked_until is not None:
            has_gone_back = self._checked_until is not None and checked_until < self._checked_until
            self._checked_until = None if has_gone_back else checked_until


class UpkeepSchedule:
    """When what is not urgent is next to be looked after. In memory: who leads next begins with a look."""

    def __init__(self) -> None:
        self._due = 0.0
        self._checks = 0
        self._deep_shards = 1
        self._partitions_due = 0.0
        self._prune_limit = _MAX_PRUNED

    def is_due(self) -> bool:
        """Say whether it is time for a look."""
        return monotonic() >= self._due

    def shard(self) -> int | None:
        """Return the shard of the lanes from which empty ones are removed next; None: all, in the first repair."""
        return self._checks % _SHARDS if self._checks else None

    def deep_shard(self) -> tuple[int | None, int]:
        """Return which lanes to scan from their beginning, as a shard and the number of shards; None: all of them."""
        return (None if self._deep_shards == 1 else self._checks % self._deep_shards), self._deep_shards

    def is_partition_check_due(self, now: int | None) -> bool:
        """Say whether it is time to look after the days of the history, and count it as done.

        ``now``: the store's time, where it does not go by its own clock.
        """
        clock = monotonic() if now is None else now / 1e6
        is_due = clock >= self._partitions_due
        if is_due:
            self._partitions_due = clock + _PARTITIONS_INTERVAL
        return is_due

    def repeat_partition_check(self) -> None:
        """Have the next prune step go on with the days of the history."""
        self._partitions_due = 0.0

    def prune_limit(self, limit: int) -> int:
        """Return how many jobs one statement may prune."""
        return min(limit, self._prune_limit)

    def prune_timed_out(self, limit: int) -> None:
        """Prune fewer jobs with each statement: one took longer than the role's statement_timeout allows."""
        self._prune_limit = max(self.prune_limit(limit) // 2, 1)
        self.repeat_partition_check()

    def prune_succeeded(self) -> None:
        """Prune some more with each statement again. Slowly: each that is given up has done its work for nothing."""
        self._prune_limit = min(self._prune_limit + max(self._prune_limit // 10, 1), _MAX_PRUNED)

    def finish(self, began: float) -> None:
        """Record a repair: the longer it took, the later the next one, and the fewer lanes are scanned completely."""
        now = monotonic()
        duration = now - began
        self._due = now + max(_LANES_INTERVAL, duration * _LANES_TIME_FACTOR)
        self._checks += 1
        if duration > _LANES_MAX_DURATION:
            self._deep_shards = min(self._deep_shards * 2, _SHARDS)
        elif duration < _LANES_SHORT_DURATION:
            self._deep_shards = max(self._deep_shards // 2, 1)


class WatermarkState:
    """When the watermark is next to be moved, and what was seen on the way. In memory: who leads next begins anew."""

    def __init__(self) -> None:
        self._moved_at = self._duration = -math.inf
        self._is_busy = True
        self._term = 0
        """The number of the last one."""
        self._watermark = 0
        self._snapshots: list[tuple[int, str]] = []
        """Moments, each with the first transaction after it: from the last on before which all have ended."""
        self.late: int | None = 0
        """From which moment on jobs may come to light below the watermark; None: it has not gone ahead of any."""

    def lead(self, term: Term) -> None:
        """Note for which term it is. If somebody else has led since, the watermark may be ahead of any job."""
        if term.number > self._term + 1:
            self._snapshots = []  # for them the clock may have gone back
            self.late = 0
        self._term = term.number

    def mark_busy(self) -> None:
        """Note that jobs come and go."""
        self._is_busy = True

    def is_due(self, *, is_listening: bool) -> bool:
        """Say whether it is time. ``is_listening``: whether somebody listens."""
        interval = (
            _WATERMARK_INTERVAL
            if self._is_busy
            else _WATERMARK_QUIET_INTERVAL
            if is_listening
            else _WATERMARK_IDLE_INTERVAL
        )
        return monotonic() >= self._moved_at + max(interval, self._duration * _WATERMARK_TIME_FACTOR)

    def snapshots(self) -> tuple[str, str]:
        """Lay out what was seen as the store wants it."""
        return arrays.numbers([at for at, _ in self._snapshots]), arrays.words([first for _, first in self._snapshots])

    def move(self, schema: Schema, term: Term) -> Plan[None]:
        """Move the watermark up to where every job that is ready can be seen, or nearly so."""
        self.lead(term)
        began, self._is_busy = monotonic(), False
        leader_values = [schema.now, term.number, term.leader_id]
        ((next_, visible_until, at, first),) = yield Statement(
            schema.prepare_watermark, [*leader_values, *self.snapshots()]
        )
        passes = next_ is not None and at is not None and (visible_until is None or next_ > visible_until)
        if passes and self.late is None:
            self.late = visible_until or 0  # before the move: its answer may be lost
        if next_ is not None:
            yield Statement(schema.move_watermark, [*leader_values, next_])
            self._watermark = next_
        if next_ is not None and at is None:  # the clock has gone back
            self._snapshots = []
            self.late = None
        elif next_ is not None:
            self._snapshots = [one for one in self._snapshots if visible_until is None or one[0] >= visible_until]
            self._snapshots.append((at, first))
            if len(self._snapshots) > _MAX_SNAPSHOTS:
                del self._snapshots[1:-1:2]
        self._moved_at = monotonic()
        self._duration = self._moved_at - began

    def lanes_maintained(self, late: int | None, visible_until: int | None) -> None:
        """Note that low marks were brought down for all jobs from ``late`` up to ``visible_until``: no more will come.

        The watermark may have gone ahead only meanwhile: then that is for the next time.
        """
        if late is not None and late == self.late and visible_until is not None and visible_until > late:
            self.late = visible_until if visible_until < self._watermark else None


def rescue(
    schema: Schema,
    term: Term,
    lease: timedelta,
    limit: int,
    rescue_state: RescueState,
    upkeep: UpkeepSchedule,
    watermark_state: WatermarkState,
) -> Plan[MaintenanceResult]:
    """Give back what dead workers held; forget the workers; look after the lanes."""
    watermark_state.lead(term)
    values = [
        schema.now,
        schema.channel,
        term.number,
        term.leader_id,
        lease // MICROSECOND,
        limit,
        rescue_state.begin(),
    ]
    began, maintains_lanes, late = monotonic(), upkeep.is_due(), watermark_state.late
    lanes = [maintains_lanes, late, *watermark_state.snapshots(), upkeep.shard(), *upkeep.deep_shard()]
    ((rescued, queues, checked_until, next_in, visible_until),) = yield Statement(schema.rescue, [*values, *lanes])
    rescue_state.finish(checked_until, next_in)
    if maintains_lanes:
        upkeep.finish(began)
        watermark_state.lanes_maintained(late, visible_until)
    return MaintenanceResult(changed=rescued, queues=frozenset(queues), more=rescued == limit)


def prune(schema: Schema, term: Term, limit: int, upkeep: UpkeepSchedule) -> Plan[MaintenanceResult]:
    """Archive ended jobs that are no longer kept: by whole days where it can be, else one by one."""
    by_partition, has_more_partitions = 0, False
    limit = upkeep.prune_limit(limit)
    values = [schema.now, term.number, term.leader_id, limit]
    if upkeep.is_partition_check_due(schema.now):
        ((by_partition, has_more_partitions),) = yield Statement(schema.rotate_partitions, values)
        if has_more_partitions:
            upkeep.repeat_partition_check()
    ((pruned,),) = yield Statement(schema.prune, values)
    ((pruned_archive,),) = yield Statement(schema.prune_archive, values)
    yield from roll_up(schema, term)
    ((forgotten,),) = yield Statement(schema.throttle_prune, values)
    ((batches,),) = yield Statement(schema.batch_prune, [*values, BATCH_KEPT // MICROSECOND])
    return MaintenanceResult(
        changed=by_partition + pruned, more=has_more_partitions or limit in {pruned, pruned_archive, forgotten, batches}
    )


def home(schema: Schema) -> Plan[Home]:
    """Say whether the store is where it was confirmed to be. One without jobs has none to repeat."""
    ((is_same, is_same_timeline, has_jobs),) = yield Statement(schema.check_home)
    return Home(is_same, is_same_timeline, has_jobs, needs_adoption=not is_same and not has_jobs)


def confirm_home(schema: Schema, *, only_if_empty: bool = False) -> Plan[None]:
    """Have the jobs of the store run where it is now."""
    yield Statement(schema.confirm_home, [only_if_empty])
