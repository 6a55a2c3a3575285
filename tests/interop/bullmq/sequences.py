"""Random lives of a queue: steps drawn by hypothesis, done by two sides at the same millisecond, compared after each.

A step names jobs by number, not by id: which job it means is looked up among those that exist when it is done, so that
any list of steps makes sense and a failing one can be made shorter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import redis
from hypothesis import strategies as st

from onward.backoff import Backoff
from onward.clock import moment_of
from onward.job import NewJob
from tests.interop.bullmq.keys import difference, keys
from tests.interop.bullmq.peer import NodePeer
from tests.interop.bullmq.sides import QUEUE, Side, expire_rate_window, lose_lock

Step = tuple[str, dict[str, Any]]

START: Final = 1_900_000_000_000
"""The millisecond at which every sequence begins."""

HOUR: Final = 3_600_000

PLAIN: Final[list[dict[str, Any]]] = [{}, {"attempts": 3}, {"lifo": True}]
RETRYING: Final[list[dict[str, Any]]] = [
    {"attempts": 2, "backoff": {"type": "fixed", "delay": 1000}},
    {"attempts": 4, "backoff": {"type": "exponential", "delay": 500}},
    {"attempts": 3, "backoff": 700},
    {"attempts": 3, "lifo": True},
]
ORDERED: Final[list[dict[str, Any]]] = [
    {"delay": 1000},
    {"delay": 5000, "attempts": 2},
    {"priority": 1},
    {"priority": 7, "attempts": 2},
    {"priority": 3, "delay": 2000},
]
RETAINED: Final[list[dict[str, Any]]] = [
    {"removeOnComplete": True, "removeOnFail": True},
    {"removeOnComplete": 2, "removeOnFail": 1},
    {"removeOnComplete": {"count": 1}, "removeOnFail": {"count": 2}},
    {"removeOnComplete": {"age": 3}, "removeOnFail": {"age": 2, "count": 3}},
    {"removeOnComplete": 0, "removeOnFail": False, "attempts": 2},
    {"keepLogs": 2},
]
NAMED: Final[list[dict[str, Any]]] = [
    {"jobId": "mine"},
    {"jobId": "theirs", "removeOnComplete": True},
    {"deduplication": {"id": "once"}},
    {"deduplication": {"id": "for-an-hour", "ttl": HOUR}},
    {"deduplication": {"id": "newest", "ttl": HOUR, "extend": True, "replace": True}, "delay": 2000},
    {"deduplication": {"id": "last", "keepLastIfActive": True}},
    {"deduplication": {"id": "later", "ttl": HOUR, "reschedule": True}, "delay": 3000},
]
EVERY: Final = [*PLAIN, *RETRYING, *ORDERED, *RETAINED, *NAMED]

CHILDREN: Final[list[dict[str, Any]]] = [
    {},
    {"attempts": 2},
    {"failParentOnFailure": True},
    {"ignoreDependencyOnFailure": True},
    {"removeDependencyOnFailure": True},
    {"continueParentOnFailure": True},
    {"removeOnComplete": True, "removeOnFail": True},
    {"priority": 3},
    {"delay": 1000},
]
PARENTS: Final[list[dict[str, Any]]] = [{}, {"priority": 2}, {"delay": 1500}, {"attempts": 2, "backoff": 1000}]
REPEATS: Final[list[dict[str, Any]]] = [
    {"every": 1000},
    {"every": 700, "limit": 3},
    {"pattern": "*/2 * * * * *"},
    {"pattern": "0 9 * * *", "tz": "Europe/Berlin"},
    {"every": 1000, "endDate": 1_900_000_003_000},
]

_which: Final = st.integers(0, 5)
_steps: Final[dict[str, st.SearchStrategy[dict[str, Any]]]] = {
    "take": st.fixed_dictionaries({"limit": st.integers(1, 3)}),
    "take_one": st.just({"limit": 1}),
    "complete": st.fixed_dictionaries({"which": _which}),
    "complete_and_take": st.fixed_dictionaries({"which": _which}),
    "fail": st.fixed_dictionaries({"which": _which}),
    "fail_for_good": st.fixed_dictionaries({"which": _which}),
    "snooze": st.fixed_dictionaries({"which": _which, "milliseconds": st.sampled_from([1, 1500])}),
    "release": st.fixed_dictionaries({"which": _which}),
    "progress": st.fixed_dictionaries({"which": _which, "value": st.integers(0, 100)}),
    "log": st.fixed_dictionaries({"which": _which}),
    "lose": st.fixed_dictionaries({"which": _which}),
    "check_stalled": st.just({}),
    "advance": st.fixed_dictionaries({"by": st.sampled_from([1, 500, 1000, 2000, 10_000])}),
    "later": st.fixed_dictionaries({"by": st.sampled_from([20_000, 60_000, 150_000])}),
    "pause": st.just({}),
    "resume": st.just({}),
    "set_concurrency": st.fixed_dictionaries({"limit": st.sampled_from([1, 2, None])}),
    "set_rate": st.fixed_dictionaries({"limit": st.sampled_from([1, 3, None])}),
    "window": st.just({}),
    "remove": st.fixed_dictionaries({"which": _which}),
    "retry": st.fixed_dictionaries({"which": _which}),
    "promote": st.fixed_dictionaries({"which": _which}),
    "change_delay": st.fixed_dictionaries({"which": _which, "milliseconds": st.sampled_from([1, 3000])}),
    "update_data": st.fixed_dictionaries({"which": _which}),
}

OURS: Final[list[dict[str, Any]]] = [
    {},
    {"max_attempts": 3, "backoff": Backoff.fixed(1.0)},
    {"max_attempts": 4, "backoff": Backoff.exponential(0.5)},
    {"delay": timedelta(milliseconds=1500)},
    {"run_at": moment_of((START + 2000) * 1000)},
    {"dedupe_key": "once"},
    {"org_id": "acme", "max_attempts": 1},
    {"idempotency_key": "order-7"},
]
_steps["enqueue"] = st.fixed_dictionaries({"jobs": st.lists(st.sampled_from(OURS), min_size=1, max_size=4)})
PRIORITIES: Final[list[dict[str, Any]]] = [
    *({"priority": priority} for priority in (0, 1, 5, 1_000_000)),
    {"priority": 3, "delay": timedelta(milliseconds=1500)},
    {"priority": 4, "max_attempts": 2, "backoff": Backoff.fixed(0.5)},
]
_steps["enqueue_by_priority"] = st.fixed_dictionaries(
    {"jobs": st.lists(st.sampled_from(PRIORITIES), min_size=1, max_size=4)}
)
BY_PRIORITY: Final = (
    "enqueue_by_priority",
    "enqueue_by_priority",
    "take",
    "complete",
    "fail",
    "pause",
    "resume",
    "advance",
)
ENQUEUES: Final = ("enqueue", "enqueue", "enqueue", "take", "complete", "fail", "pause", "resume", "advance")

_children: Final = st.lists(st.sampled_from(CHILDREN), min_size=1, max_size=3)
_steps["flow"] = st.fixed_dictionaries({"children": _children, "options": st.sampled_from(PARENTS)})
_steps["schedule"] = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["a", "b"]),
        "repeat": st.sampled_from(REPEATS),
        "options": st.sampled_from([*PLAIN, *RETAINED]),
    }
)
_steps["unschedule"] = st.fixed_dictionaries({"id": st.sampled_from(["a", "b"])})

_steps["drain"] = st.fixed_dictionaries({"delayed": st.booleans()})
_steps["clean"] = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["completed", "failed", "waiting", "delayed", "prioritized", "active"]),
        "grace": st.sampled_from([0, 1500]),
        "limit": st.sampled_from([0, 1, 2]),
    }
)
_steps["obliterate"] = st.fixed_dictionaries({"force": st.booleans()})

EMPTIED: Final = (
    "take",
    "complete",
    "fail_for_good",
    "advance",
    "drain",
    "clean",
    "clean",
    "clean",
    "obliterate",
    "lose",
)
FLOWS: Final = ("flow", "flow", "take", "take", "complete", "complete", "fail", "fail_for_good", "remove", "advance")
# One at a time: BullMQ makes the next job of a schedule between two jobs that it takes, we when all are taken.
SCHEDULES: Final = (
    "schedule",
    "schedule",
    "unschedule",
    "take_one",
    "take_one",
    "complete",
    "fail",
    "advance",
    "advance",
)
WORK: Final = ("take", "take", "complete", "complete_and_take", "fail", "fail_for_good", "advance")
FAULTS: Final = ("take", "lose", "lose", "check_stalled", "check_stalled", "window", "complete", "fail", "release")
CONTROL: Final = ("take", "complete_and_take", "pause", "resume", "set_concurrency", "set_rate", "window", "advance")
METRICS: Final = ("take", "complete", "complete_and_take", "fail_for_good", "later")
EDITS: Final = ("promote", "change_delay", "update_data", "take", "complete", "advance")
MANUAL: Final = ("take", "complete", "fail_for_good", "remove", "retry", "advance")
MESSAGES: Final = ("take", "progress", "log", "snooze", "release", "complete", "fail", "advance")


def sequences(
    jobs: Sequence[dict[str, Any]], names: Sequence[str], *, max_steps: int = 14
) -> st.SearchStrategy[list[Step]]:
    """Draw sequences: some jobs first, then steps with a few more jobs among them."""
    add: st.SearchStrategy[Step] = st.tuples(
        st.just("add"), st.fixed_dictionaries({"options": st.sampled_from(list(jobs))})
    )
    others = [st.tuples(st.just(name), _steps[name]) for name in names]
    return st.builds(
        lambda first, rest: [*first, *rest],
        st.lists(add, min_size=1, max_size=4),
        st.lists(st.one_of(add, *others), min_size=2, max_size=max_steps),
    )


@dataclass
class QueueModel:
    """What has become of the jobs so far, as both sides have said."""

    known: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    added: int = 0
    is_paused: bool = False


class Disagreement(AssertionError):
    """Two sides have done the same and left something different."""


def run_steps(
    steps: Sequence[Step],
    theirs: Side,
    ours: Side,
    *,
    client: redis.Redis,
    peer: NodePeer,
    set_clock: Callable[[int], None] = lambda _: None,
) -> None:
    """Do each step on both sides, and compare answers and keys after each."""
    model = QueueModel()
    now = START

    def set_clocks() -> None:
        peer.set_clock(now)
        set_clock(now)

    set_clocks()
    for number, (name, given) in enumerate(steps):
        if name in {"advance", "later"}:
            now += given["by"]
            set_clocks()
            continue
        if name in {"pause", "resume"}:
            if model.is_paused is (name == "pause"):
                continue  # said twice, BullMQ tells of it twice: that is nobody's to rely on
            model.is_paused = name == "pause"
        if name in {"enqueue", "enqueue_by_priority"}:
            answers = _enqueue(theirs, ours, given["jobs"], client)
        else:
            answers = [_do(side, name, given, model, client) for side in (theirs, ours)]
        _update(model, name, given, answers[0])
        done = list(steps[: number + 1])
        if answers[0] != answers[1]:
            raise Disagreement(f"after {done}: theirs answered {answers[0]!r}, ours {answers[1]!r}")
        lines = difference(keys(client, theirs.prefix), keys(client, ours.prefix))
        if lines:
            raise Disagreement("\n".join([f"after {done}:", *lines]))


def _enqueue(theirs: Side, ours: Side, jobs: Sequence[dict[str, Any]], client: redis.Redis) -> list[Any]:
    """Have ours add jobs by its own words, and theirs add what came of it: how words become options is tested apart."""
    known = set(client.scan_iter(f"{ours.prefix}:{QUEUE}:*", count=1000))
    new = [NewJob(type="task", queue=QUEUE, payload='{"n":1}', **job) for job in jobs]
    ids = ours.enqueue(new)
    their_ids = []
    for id, job in zip(ids, jobs, strict=True):
        is_new = f"{ours.prefix}:{QUEUE}:{id}" not in known
        known.add(f"{ours.prefix}:{QUEUE}:{id}")
        if not is_new and "idempotency_key" in job:
            their_ids.append(id)  # the key is Onward's own, and the job was there before
            continue
        hash = client.hgetall(f"{ours.prefix}:{QUEUE}:{id}")
        options = json.loads(hash["opts"])
        long = {"kl": "keepLogs", "de": "deduplication"}
        their_ids.append(theirs.add("task", {"n": 1}, {long.get(name, name): value for name, value in options.items()}))
    return [their_ids, ids]


def _do(side: Side, name: str, given: dict[str, Any], model: QueueModel, client: redis.Redis) -> Any:
    match name:
        case "add":
            return side.add("task", {"n": model.added}, given["options"])
        case "flow":
            children = {f"c{model.added}-{n}": options for n, options in enumerate(given["children"])}
            return side.add_flow(f"p{model.added}", children, given["options"])
        case "schedule":
            return side.schedule(given["id"], given["repeat"], given["options"])
        case "unschedule":
            return side.unschedule(given["id"])
        case "drain":
            return side.drain(delayed=given["delayed"])
        case "clean":
            return side.clean(given["state"], given["grace"], given["limit"])
        case "obliterate":
            return side.obliterate(force=given["force"])
        case "take" | "take_one":
            return side.take(given["limit"])
        case "check_stalled":
            return side.check_stalled()
        case "pause":
            return side.pause()
        case "resume":
            return side.resume()
        case "set_concurrency":
            return side.set_concurrency(given["limit"])
        case "set_rate":
            return side.set_rate(given["limit"], HOUR)
        case "window":
            return expire_rate_window(client, side)
    candidates = model.known if name in {"remove", "retry", "promote", "change_delay", "update_data"} else model.held
    if not candidates:
        return None
    id = candidates[given["which"] % len(candidates)]
    if name in {"promote", "change_delay"} and client.zscore(f"{side.prefix}:{QUEUE}:delayed", id) is None:
        return None  # BullMQ does this to delayed jobs only, Onward to all that wait
    if name == "remove" and int(client.scard(f"{side.prefix}:{QUEUE}:{id}:dependencies")) > 1:
        return None  # which of several children goes first is left to the order of a set
    if name == "update_data" and not _waits(client, side, id):
        return None  # and this to any job, where Onward changes only those that wait
    match name:
        case "complete":
            return side.complete(id, {"n": id})
        case "complete_and_take":
            return side.complete_and_take(id, {"n": id})
        case "fail":
            return side.fail(id, "ValueError: boom")
        case "fail_for_good":
            return side.fail_for_good(id, "ValueError: no use")
        case "snooze":
            return side.snooze(id, given["milliseconds"])
        case "release":
            return side.release(id)
        case "progress":
            return side.progress(id, given["value"])
        case "log":
            return side.log(id, f"line of {id}")
        case "lose":
            return lose_lock(client, side, id)
        case "remove":
            return side.remove(id)
        case "retry":
            return side.retry(id)
        case "promote":
            return side.promote(id)
        case "change_delay":
            return side.change_delay(id, given["milliseconds"])
        case "update_data":
            return side.update_data(id, {"n": "new"})
    raise AssertionError(f"no step is called {name}")


def _waits(client: redis.Redis, side: Side, id: str) -> bool:
    base = f"{side.prefix}:{QUEUE}"
    return client.lpos(f"{base}:wait", id) is not None or any(
        client.zscore(f"{base}:{location}", id) is not None
        for location in ("prioritized", "delayed", "waiting-children")
    )


def _update(model: QueueModel, name: str, given: dict[str, Any], answer: Any) -> None:
    if name == "add":
        model.added += 1
        if answer not in model.known:
            model.known.append(answer)
    if name in {"flow", "enqueue", "enqueue_by_priority"}:
        model.added += 1
        model.known += [id for id in answer if id not in model.known]
    if name in {"complete", "complete_and_take", "fail", "fail_for_good", "snooze", "release"} and model.held:
        id = model.held[given["which"] % len(model.held)]
        if answer is not None and answer is not False:
            model.held.remove(id)
    if name in {"take", "take_one", "complete_and_take"}:
        model.held += [id for id in answer or () if id not in model.held]
