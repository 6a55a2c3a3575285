"""The same random sequence of operations, through BullMQ's own scripts and through ours, leaves the same keys (B2)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onward.clock import ManualClock, moment_of
from tests.interop.bullmq.onward_side import OnwardSide
from tests.interop.bullmq.peer import NodePeer
from tests.interop.bullmq.sequences import (
    BEGINNING,
    BY_PRIORITY,
    CONTROL,
    EDITS,
    EMPTIED,
    ENQUEUES,
    EVERY,
    FLOWS,
    HANDS,
    KEPT,
    MESSAGES,
    METRICS,
    NAMED,
    ORDERED,
    PLAIN,
    RETRYING,
    SCHEDULES,
    TROUBLE,
    WORK,
    Step,
    play,
    sequences,
)
from tests.interop.bullmq.sides import QUEUE, NodeSide, forget

_numbers = itertools.count()


@dataclass(frozen=True)
class Life:
    """What may happen to a queue: which jobs come, what is done, and how the two sides are set up for it."""

    jobs: Sequence[dict[str, Any]]
    steps: Sequence[str]
    theirs: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)


def compare(steps: list[Step], life: Life, url: str, peer: NodePeer, client: redis.Redis) -> None:
    number = next(_numbers)
    clock = ManualClock(moment_of(BEGINNING * 1000))
    peer.set_clock(BEGINNING)
    theirs = NodeSide(peer, client, f"t{os.getpid()}n{number}", **life.theirs)
    ours = OnwardSide(url, f"o{os.getpid()}n{number}", clock, **life.ours)

    def set_clock(now: int) -> None:
        clock.advance((now * 1000 - clock.micros()) / 1e6)

    try:
        play(steps, theirs, ours, client=client, peer=peer, set_clock=set_clock)
    finally:
        theirs.close()
        ours.close()
        forget(client, theirs, ours)


LIVES: Final = {
    "plain jobs": Life(PLAIN, WORK),
    "every kind of job": Life(EVERY, WORK),
    "tried again": Life([*RETRYING, *ORDERED], WORK),
    "by priority and by time": Life(ORDERED, WORK),
    "kept for a while": Life(KEPT, WORK),
    "told apart by name": Life(NAMED, WORK),
    "progress, lines, put off": Life([*PLAIN, *KEPT], MESSAGES),
    "paused and limited": Life([*PLAIN, *ORDERED], CONTROL),
    "changed by hand": Life([*PLAIN, *ORDERED], EDITS),
    "removed and tried again by hand": Life([*PLAIN, *RETRYING, *ORDERED], HANDS),
    "emptied": Life([*PLAIN, *ORDERED, *NAMED], EMPTIED),
    "counted by the minute": Life(
        [*PLAIN, *KEPT], METRICS, theirs={"metrics": {"maxDataPoints": 3}}, ours={"metrics": 3}
    ),
    "enqueued by us": Life(PLAIN, ENQUEUES),
    "enqueued by us with priorities": Life(PLAIN, BY_PRIORITY, ours={"prioritized": [QUEUE]}),
    "parents and children": Life(PLAIN, FLOWS),
    "schedules": Life(PLAIN, SCHEDULES),
    "lost and found": Life(EVERY, TROUBLE),
}


@pytest.mark.parametrize("kind", LIVES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_both_leave_the_same_keys(kind: str, url: str, node6: NodePeer, client: redis.Redis, data: st.DataObject):  # B2
    life = LIVES[kind]
    compare(data.draw(sequences(life.jobs, life.steps)), life, url, node6, client)


def test_who_is_tried_again_at_once_stands_behind_those_whose_time_has_come(
    url: str, node6: NodePeer, client: redis.Redis
):  # B2, O3
    steps: list[Step] = [
        ("add", {"options": {"attempts": 3}}),
        ("add", {"options": {"delay": 1500}}),
        ("take", {"most": 1}),
        ("advance", {"by": 2000}),
        ("fail", {"which": 0}),
    ]
    compare(steps, LIVES["tried again"], url, node6, client)
