"""Onward's engine as one of the sides that are compared: the contract's verbs, each on one job, and BullMQ's own."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from typing import Any, Final

import msgspec

from onward.bullmq import BackoffOptions, BullMQ, Deduplication, Flow, KeepJobs
from onward.clock import ManualClock, moment_of
from onward.engine.values import (
    Claim,
    ClaimRequest,
    Exchange,
    JobChange,
    JobFilter,
    QueueChange,
    Rate,
    Settlement,
    Term,
)
from onward.engines.bullmq.engine import BullMQEngine
from onward.errors import InvalidValue
from onward.job import JobRef, NewJob
from onward.lifecycle import Complete, Fail, Failure, Outcome, Raised, Release, Snooze, decide
from tests.interop.bullmq.sides import QUEUE, WORKER

_LEASE: Final = timedelta(minutes=5)
_CRASHES: Final = 2
"""Lost so often, a job is failed: Node's maxStalledCount, 1, is how often it may be."""


class OnwardSide:
    """Onward's engine, on the queue below a prefix."""

    def __init__(self, url: str, prefix: str, clock: ManualClock, **options: Any) -> None:
        self.prefix = prefix
        self._clock = clock
        self._runner = asyncio.Runner()
        self._engine = BullMQEngine(url, prefix=prefix, clock=clock, **options)
        self._run(self._engine.open())
        self._bullmq = BullMQ(self._engine)
        self._configure()  # Node makes a queue by opening it
        self._claims: dict[str, Claim] = {}
        self._term: Term | None = None

    def _run(self, work: Any) -> Any:
        return self._runner.run(work)

    def close(self) -> None:
        """Let go of its connections."""
        self._run(self._engine.close())
        self._runner.close()

    def add(self, name: str, data: Any, options: dict[str, Any]) -> str:
        """See :class:`Side`."""
        return str(self._run(self._bullmq.add(QUEUE, name, data, **_options(options))).ref.id)

    def add_flow(self, parent: str, children: dict[str, dict[str, Any]], options: dict[str, Any]) -> list[str]:
        """See :class:`Side`."""

        def flow(id: str, options: dict[str, Any], *children: Flow) -> Flow:
            return Flow(QUEUE, "task", {}, children, {"job_id": id, **_options(options)})

        self._run(self._bullmq.add_flow(flow(parent, options, *[flow(*child) for child in children.items()])))
        return [parent, *children]

    def schedule(self, id: str, repeat: dict[str, Any], options: dict[str, Any]) -> str:
        """See :class:`Side`."""
        schedule_options = {_snake(name): value for name, value in repeat.items()}
        if "end_date" in schedule_options:
            schedule_options["end_date"] = moment_of(schedule_options["end_date"] * 1000)
        job: dict[str, Any] = {"name": "tick", "data": {"of": id}, "options": _options(options)}
        try:
            return str(self._run(self._bullmq.upsert_job_scheduler(QUEUE, id, **job, **schedule_options)).ref.id)
        except InvalidValue:
            return "refused"

    def unschedule(self, id: str) -> bool:
        """See :class:`Side`."""
        return bool(self._run(self._bullmq.remove_job_scheduler(QUEUE, id)))

    def drain(self, *, delayed: bool) -> None:
        """See :class:`Side`."""
        self._run(self._bullmq.drain(QUEUE, delayed=delayed))

    def clean(self, state: str, grace: int, limit: int) -> list[str]:
        """See :class:`Side`."""
        return sorted(self._run(self._bullmq.clean(QUEUE, state=state, grace=grace, limit=limit)))  # type: ignore[arg-type]

    def obliterate(self, *, force: bool) -> bool:
        """See :class:`Side`."""
        try:
            self._run(self._bullmq.obliterate(QUEUE, force=force))
        except InvalidValue:
            return False
        return True

    def enqueue(self, jobs: list[NewJob]) -> list[str]:
        """See :class:`Side`."""
        return [added.ref.id for added in self._run(self._engine.enqueue(jobs))]

    def _request(self, limit: int) -> ClaimRequest:
        return ClaimRequest(worker_id=WORKER, queues=(QUEUE,), slots=limit, lease=_LEASE)

    def _remember(self, claims: tuple[Claim, ...]) -> list[str]:
        self._claims.update({claim.ref.id: claim for claim in claims})
        return [claim.ref.id for claim in claims]

    def take(self, limit: int) -> list[str]:
        """See :class:`Side`."""
        return self._remember(self._run(self._engine.claim(self._request(limit))).claims)

    def _settle(self, id: str, outcome: Outcome) -> bool:
        return not self._run(self._engine.settle([Settlement(self._claims[id], outcome)]))

    def complete(self, id: str, value: Any) -> bool:
        """See :class:`Side`."""
        return self._settle(id, Complete(_json(value)))

    def complete_and_take(self, id: str, value: Any) -> list[str] | None:
        """See :class:`Side`."""
        settled = (Settlement(self._claims[id], Complete(_json(value))),)
        answer = self._run(self._engine.exchange(Exchange(settlements=settled, request=self._request(1))))
        return None if answer.lost else self._remember(answer.claimed.claims)

    def fail(self, id: str, message: str) -> bool:
        """See :class:`Side`."""
        return self._settle(id, decide(self._claims[id], Raised(_failure(message))))

    def fail_for_good(self, id: str, message: str) -> bool:
        """See :class:`Side`."""
        return self._settle(id, Fail(_failure(message)))

    def snooze(self, id: str, milliseconds: int) -> bool:
        """See :class:`Side`."""
        return self._settle(id, Snooze(timedelta(milliseconds=milliseconds)))

    def release(self, id: str) -> bool:
        """See :class:`Side`."""
        return self._settle(id, Release())

    def progress(self, id: str, value: int) -> None:
        """See :class:`Side`."""
        self._run(self._engine.report(self._claims[id], progress=value))

    def log(self, id: str, line: str) -> None:
        """See :class:`Side`."""
        self._run(self._engine.report(self._claims[id], lines=[line]))

    def check_stalled(self) -> None:
        """See :class:`Side`."""
        self._term = self._run(self._engine.elect(WORKER, lease=timedelta(days=1), current_term=self._term))
        assert self._term is not None
        self._run(self._engine.rescue(self._term, lease=timedelta(days=1), max_crashes=_CRASHES))

    def _configure(self, **change: Any) -> None:
        self._run(self._engine.configure(QUEUE, QueueChange(**change)))

    def pause(self) -> None:
        """See :class:`Side`."""
        self._configure(paused=True)

    def resume(self) -> None:
        """See :class:`Side`."""
        self._configure(paused=False)

    def set_concurrency(self, limit: int | None) -> None:
        """See :class:`Side`."""
        self._configure(global_concurrency=limit)

    def set_rate(self, limit: int | None, milliseconds: int) -> None:
        """See :class:`Side`."""
        self._configure(rate=None if limit is None else Rate(limit, timedelta(milliseconds=milliseconds), burst=limit))

    def remove(self, id: str) -> bool:
        """See :class:`Side`."""
        return bool(self._run(self._engine.delete(JobFilter(refs=(JobRef(QUEUE, id),)))))

    def retry(self, id: str) -> bool:
        """See :class:`Side`."""
        return bool(self._run(self._engine.replay(JobFilter(refs=(JobRef(QUEUE, id),)))))

    def promote(self, id: str) -> bool:
        """See :class:`Side`."""
        return self.change_delay(id, 0)

    def change_delay(self, id: str, milliseconds: int) -> bool:
        """See :class:`Side`."""
        return self._edit(id, run_at=self._clock.now() + timedelta(milliseconds=milliseconds))

    def update_data(self, id: str, data: Any) -> bool:
        """See :class:`Side`."""
        return self._edit(id, payload=_json(data))

    def _edit(self, id: str, **change: Any) -> bool:
        return self._run(self._engine.edit(JobRef(QUEUE, id), JobChange(**change))) is not None


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Say in our words what Node is told in its own."""
    kinds: dict[str, Any] = {"deduplication": Deduplication, "backoff": BackoffOptions}
    return {
        _snake(name): msgspec.convert(value, kinds.get(name, KeepJobs)) if isinstance(value, dict) else value
        for name, value in given.items()
    }


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))  # as Node spaces it


def _failure(message: str) -> Failure:
    kind, _, text = message.partition(": ")
    return Failure(kind, text, f"Traceback: {message}")
