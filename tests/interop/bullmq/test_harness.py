"""The yardstick itself: it finds two equal sides equal, and sees the smallest difference."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, given, settings

from tests.interop.bullmq.keys import difference, keys
from tests.interop.bullmq.peer import NodePeer
from tests.interop.bullmq.sequences import CONTROL, EVERY, FAULTS, MANUAL, MESSAGES, WORK, Step, run_steps, sequences
from tests.interop.bullmq.sides import QUEUE, NodeSide, remove_keys

_numbers = itertools.count()


def new_prefix() -> str:
    return f"h{os.getpid()}n{next(_numbers)}"


@pytest.fixture
def side(node6: NodePeer, client: redis.Redis) -> Iterator[NodeSide]:
    side = NodeSide(node6, client, new_prefix())
    yield side
    side.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=sequences(EVERY, [*WORK, *FAULTS, *CONTROL, *MANUAL, *MESSAGES], max_steps=20))
def test_bullmq_beside_itself_leaves_the_same_keys(
    node6: NodePeer, client: redis.Redis, steps: list[Step]
):  # the masks leave nothing out that differs by chance
    first, second = (NodeSide(node6, client, new_prefix()) for _ in range(2))
    try:
        run_steps(steps, first, second, client=client, peer=node6)
    finally:
        first.close()
        second.close()
        remove_keys(client, first, second)


def test_a_difference_of_one_member_one_score_one_field_or_one_expiry_is_seen(
    node6: NodePeer, client: redis.Redis, side: NodeSide
):
    node6.set_clock(1_900_000_000_000)
    side.add("task", {"n": 1}, {"delay": 1000})
    side.add("task", {"n": 2}, {})
    before = keys(client, side.prefix)
    assert difference(before, before) == []
    at = f"{side.prefix}:{QUEUE}"
    for spoil in (
        lambda: client.lpush(f"{at}:wait", "7"),
        lambda: client.zincrby(f"{at}:delayed", 1, "1"),
        lambda: client.hset(f"{at}:2", "atm", "1"),
        lambda: client.xadd(f"{at}:events", {"event": "drained"}),
        lambda: client.expire(f"{at}:id", 1000),
        lambda: client.set(f"{at}:new", "1"),
        lambda: client.delete(f"{at}:marker"),
    ):
        spoil()
        after = keys(client, side.prefix)
        assert len(difference(before, after)) == 1
        before = after
