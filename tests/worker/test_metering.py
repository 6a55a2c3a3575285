"""What a worker counts goes to the store, is kept while that is away, and is not gathered for nobody (H8)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onward.engine.capabilities import NATIVE, Capabilities, Feature, absent
from onward.engine.values import Claim, Settlement
from onward.errors import StoreUnavailable
from onward.job import JobRef
from onward.lifecycle import Complete
from onward.metering import Usage
from onward.worker.metering import Metering


class StubUsageStore:
    """A store that takes counts, unless it is away or takes none."""

    def __init__(self, *, has_usage: bool = True) -> None:
        support = NATIVE if has_usage else absent("none here")
        features = {**dict.fromkeys(Feature, NATIVE), Feature.USAGE: support}
        self.capabilities = Capabilities(engine="books", features=features, status_aliases={})
        self.is_unavailable = False
        self.runs: list[int] = []

    async def record_usage(self, usage: Sequence[Usage]) -> None:
        if self.is_unavailable:
            raise StoreUnavailable("away")
        self.runs += [one.runs for one in usage]


def claim(number: int = 0) -> Claim:
    ref = JobRef(f"mail/{number}", "1")
    return Claim(ref=ref, token=(1, 1), type="send", payload="{}", attempts=1, started=True)


async def test_what_could_not_be_handed_over_goes_with_the_next():
    store = StubUsageStore()
    metering = Metering(store)  # type: ignore[arg-type]  # as much of an engine as it asks
    metering.count([Settlement(claim(), Complete(), 1.0)])
    store.is_unavailable = True
    with pytest.raises(StoreUnavailable):
        await metering.send()
    store.is_unavailable = False
    metering.count([Settlement(claim(), Complete(), 1.0)])
    await metering.send()
    await metering.send()
    assert store.runs == [2]


async def test_where_nobody_takes_the_counts_none_are_gathered():
    metering = Metering(StubUsageStore(has_usage=False))  # type: ignore[arg-type]
    for number in range(100):
        metering.count([Settlement(claim(number), Complete(), 1.0)])
    assert metering._meter.take() == []
