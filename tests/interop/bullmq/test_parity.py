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
    BY_PRIORITY,
    CONTROL,
    EDITS,
    EMPTIED,
    ENQUEUES,
    EVERY,
    FAULTS,
    FLOWS,
    MANUAL,
    MESSAGES,
    METRICS,
    NAMED,
    ORDERED,
    PLAIN,
    RETAINED,
    RETRYING,
    SCHEDULES,
    START,
    WORK,
    Step,
    run_steps,
    sequences,
)
from tests.interop.bullmq.sides import QUEUE, NodeSide, remove_keys

_numbers = itertools.count()


@dataclass(frozen=True)
class Scenario:
    """What may happen to a queue: which jobs come, what is done, and how the two sides are set up for it."""

    jobs: Sequence[dict[str, Any]]
    steps: Sequence[str]
    theirs: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)


def compare(steps: list[Step], scenario: Scenario, url: str, peer: NodePeer, client: redis.Redis) -> None:
    number = next(_numbers)
    clock = ManualClock(moment_of(START * 1000))
    peer.set_clock(START)
    theirs = NodeSide(peer, client, f"t{os.getpid()}n{number}", **scenario.theirs)
    ours = OnwardSide(url, f"o{os.getpid()}n{number}", clock, **scenario.ours)

    def set_clock(now: int) -> None:
        clock.advance((now * 1000 - clock.micros()) / 1e6)

    try:
        run_steps(steps, theirs, ours, client=client, peer=peer, set_clock=set_clock)
    finally:
        theirs.close()
        ours.close()
        remove_keys(client, theirs, ours)


SCENARIOS: Final = {
    "plain jobs": Scenario(PLAIN, WORK),
    "every kind of job": Scenario(EVERY, WORK),
    "tried again": Scenario([*RETRYING, *ORDERED], WORK),
    "by priority and by time": Scenario(ORDERED, WORK),
    "kept for a while": Scenario(RETAINED, WORK),
    "told apart by name": Scenario(NAMED, WORK),
    "progress, lines, put off": Scenario([*PLAIN, *RETAINED], MESSAGES),
    "paused and limited": Scenario([*PLAIN, *ORDERED], CONTROL),
    "changed by hand": Scenario([*PLAIN, *ORDERED], EDITS),
    "removed and tried again by hand": Scenario([*PLAIN, *RETRYING, *ORDERED], MANUAL),
    "emptied": Scenario([*PLAIN, *ORDERED, *NAMED], EMPTIED),
    "counted by the minute": Scenario(
        [*PLAIN, *RETAINED], METRICS, theirs={"metrics": {"maxDataPoints": 3}}, ours={"metrics": 3}
    ),
    "enqueued by us": Scenario(PLAIN, ENQUEUES),
    "enqueued by us with priorities": Scenario(PLAIN, BY_PRIORITY, ours={"prioritized": [QUEUE]}),
    "parents and children": Scenario(PLAIN, FLOWS),
    "schedules": Scenario(PLAIN, SCHEDULES),
    "lost and found": Scenario(EVERY, FAULTS),
}


@pytest.mark.parametrize("kind", SCENARIOS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_both_leave_the_same_keys(kind: str, url: str, node6: NodePeer, client: redis.Redis, data: st.DataObject):  # B2
    scenario = SCENARIOS[kind]
    compare(data.draw(sequences(scenario.jobs, scenario.steps)), scenario, url, node6, client)


def test_who_is_tried_again_at_once_stands_behind_those_whose_time_has_come(
    url: str, node6: NodePeer, client: redis.Redis
):  # B2, O3
    steps: list[Step] = [
        ("add", {"options": {"attempts": 3}}),
        ("add", {"options": {"delay": 1500}}),
        ("take", {"limit": 1}),
        ("advance", {"by": 2000}),
        ("fail", {"which": 0}),
    ]
    compare(steps, SCENARIOS["tried again"], url, node6, client)
