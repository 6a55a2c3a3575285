"""Clients that can be told to do the same, one step at a time, so that what they leave behind can be compared.

A :class:`Side` works on the queue ``q`` below a prefix of its own. Every step is one transition of a job or a queue;
answers are the ids of jobs, or whether it was done. :class:`NodeSide` is BullMQ itself, each step one of its scripts.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import redis

from onward.job import NewJob
from tests.interop.bullmq.peer import NodePeer, PeerError

QUEUE: Final = "q"
WORKER: Final = "host-1-abc"
"""The worker's name on every side: it is kept with the job (``pb``)."""


class Side(Protocol):
    """A client of one queue."""

    prefix: str

    def add(self, name: str, data: Any, options: dict[str, Any]) -> str:
        """Add a job, and hear its id."""
        ...

    def enqueue(self, jobs: list[NewJob]) -> list[str]:
        """Add jobs in Onward's words, and hear their ids."""
        ...

    def add_flow(self, parent: str, children: dict[str, dict[str, Any]], options: dict[str, Any]) -> list[str]:
        """Add a job that waits for others, by their ids, each child with its own options."""
        ...

    def schedule(self, id: str, repeat: dict[str, Any], options: dict[str, Any]) -> str:
        """Have a job added again and again, and hear the first one's id, or that it was refused."""
        ...

    def unschedule(self, id: str) -> bool:
        """Have it added no more."""
        ...

    def drain(self, *, delayed: bool) -> None:
        """Remove what waits."""
        ...

    def clean(self, state: str, grace: int, limit: int) -> list[str]:
        """Remove what has been in a state for long, and hear which."""
        ...

    def obliterate(self, *, force: bool) -> bool:
        """Remove the queue; False: jobs were active."""
        ...

    def take(self, limit: int) -> list[str]:
        """Take jobs, at most so many, in the order they are handed out."""
        ...

    def complete(self, id: str, value: Any) -> bool:
        """Finish a job that is held; False: it was not ours to finish."""
        ...

    def complete_and_take(self, id: str, value: Any) -> list[str] | None:
        """Finish a job and take the next in the same step; None: it was not ours to finish."""
        ...

    def fail(self, id: str, message: str) -> bool:
        """Let a run fail: tried again as the job's own options say, or failed."""
        ...

    def fail_for_good(self, id: str, message: str) -> bool:
        """Let a run fail so that it is not tried again."""
        ...

    def snooze(self, id: str, milliseconds: int) -> bool:
        """Put a held job off without counting the attempt."""
        ...

    def release(self, id: str) -> bool:
        """Give a held job back."""
        ...

    def progress(self, id: str, value: int) -> None:
        """Say how far a held job is."""
        ...

    def log(self, id: str, line: str) -> None:
        """Write a line about a held job."""
        ...

    def check_stalled(self) -> None:
        """Look for jobs whose lock has gone: what was active at the look before, and has none, is given back."""
        ...

    def pause(self) -> None:
        """Stop handing out."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...

    def set_concurrency(self, limit: int | None) -> None:
        """Limit how many jobs are active at once."""
        ...

    def set_rate(self, limit: int | None, milliseconds: int) -> None:
        """Limit how many start in a time."""
        ...

    def remove(self, id: str) -> bool:
        """Remove a job that is not held, with its children."""
        ...

    def retry(self, id: str) -> bool:
        """Give a failed job a new life."""
        ...

    def promote(self, id: str) -> bool:
        """Make a delayed job ready now."""
        ...

    def change_delay(self, id: str, milliseconds: int) -> bool:
        """Change when a delayed job is due, from now."""
        ...

    def update_data(self, id: str, data: Any) -> bool:
        """Change the data of a job that waits."""
        ...


class NodeSide:
    """BullMQ for Node, by its own scripts."""

    def __init__(self, peer: NodePeer, client: redis.Redis, prefix: str, **options: Any) -> None:
        self.peer, self.prefix = peer, prefix
        self._queue = peer.queue(QUEUE, prefix=prefix)
        self._flows = peer.flows(prefix=prefix)
        self._client = client
        self._worker = peer.handle()
        peer.request("make", handle=self._worker, kind="Worker", queue=QUEUE, options=self._options(prefix, options))
        self._tokens: dict[str, str] = {}
        self._claims = 0

    @staticmethod
    def _options(prefix: str, options: dict[str, Any]) -> dict[str, Any]:
        return {"prefix": prefix, "name": WORKER, "lockDuration": 300_000, "stalledInterval": 300_000, **options}

    def close(self) -> None:
        """Let go of its connections."""
        for handle in (self._worker, self._flows, self._queue.handle):
            self.peer.request("close", handle=handle)

    def add(self, name: str, data: Any, options: dict[str, Any]) -> str:
        """See :class:`Side`."""
        return str(self._queue.add(name, data, **options)["id"])

    def enqueue(self, jobs: list[NewJob]) -> list[str]:
        """See :class:`Side`."""
        raise NotImplementedError("Node has no such words")

    def add_flow(self, parent: str, children: dict[str, dict[str, Any]], options: dict[str, Any]) -> list[str]:
        """See :class:`Side`."""

        def node(id: str, opts: dict[str, Any]) -> dict[str, Any]:
            return {"name": "task", "queueName": QUEUE, "data": {}, "opts": {"jobId": id, **opts}}

        tree = {**node(parent, options), "children": [node(id, opts) for id, opts in children.items()]}
        self.peer.request("call", handle=self._flows, method="add", args=[tree])
        return [parent, *children]

    def schedule(self, id: str, repeat: dict[str, Any], options: dict[str, Any]) -> str:
        """See :class:`Side`."""
        template = {"name": "tick", "data": {"of": id}, "opts": options}
        try:
            return str(self._queue("upsertJobScheduler", id, repeat, template)["id"])
        except PeerError:
            return "refused"

    def unschedule(self, id: str) -> bool:
        """See :class:`Side`."""
        return bool(self._queue("removeJobScheduler", id))

    def drain(self, *, delayed: bool) -> None:
        """See :class:`Side`."""
        self._queue("drain", delayed)

    def clean(self, state: str, grace: int, limit: int) -> list[str]:
        """See :class:`Side`."""
        return sorted(self._queue("clean", grace, limit, state))

    def obliterate(self, *, force: bool) -> bool:
        """See :class:`Side`."""
        try:
            self._queue("obliterate", {"force": force})
        except PeerError:
            return False
        return True

    def take(self, limit: int) -> list[str]:
        """See :class:`Side`."""
        taken: list[str] = []
        for _ in range(limit):
            token = f"token-{self._claims}"
            self._claims += 1
            job = self.peer.request("claim", handle=self._worker, token=token)
            if job is None:
                break
            self._tokens[job["id"]] = token
            taken.append(job["id"])
        return taken

    def _call_job(self, id: str, method: str, *args: Any) -> bool:
        try:
            self.peer.request("callJob", handle=self._worker, id=id, method=method, args=args)
        except PeerError:
            return False
        return True

    def complete(self, id: str, value: Any) -> bool:
        """See :class:`Side`."""
        return self._call_job(id, "moveToCompleted", value, self._tokens[id], False)

    def complete_and_take(self, id: str, value: Any) -> list[str] | None:
        """See :class:`Side`."""
        token = self._tokens[id]
        try:
            job = self.peer.request("finish", handle=self._worker, id=id, token=token, value=value)
        except PeerError:
            return None
        if job is None:
            return []
        self._tokens[job["id"]] = token
        return [job["id"]]

    def _fail(self, id: str, message: str, *, unrecoverable: bool) -> bool:
        given = {"message": message, "unrecoverable": unrecoverable, "stack": f"Traceback: {message}"}
        try:
            self.peer.request("fail", handle=self._worker, id=id, token=self._tokens[id], **given)
        except PeerError:
            return False
        return True

    def fail(self, id: str, message: str) -> bool:
        """See :class:`Side`."""
        return self._fail(id, message, unrecoverable=False)

    def fail_for_good(self, id: str, message: str) -> bool:
        """See :class:`Side`."""
        return self._fail(id, message, unrecoverable=True)

    def snooze(self, id: str, milliseconds: int) -> bool:
        """See :class:`Side`."""
        return self._call_job(id, "moveToDelayed", self.peer.now + milliseconds, self._tokens[id])

    def release(self, id: str) -> bool:
        """See :class:`Side`."""
        return self._call_job(id, "moveToWait", self._tokens[id])

    def progress(self, id: str, value: int) -> None:
        """See :class:`Side`."""
        self._call_job(id, "updateProgress", value)

    def log(self, id: str, line: str) -> None:
        """See :class:`Side`."""
        self._call_job(id, "log", line)

    def check_stalled(self) -> None:
        """See :class:`Side`."""
        self._client.delete(f"{self.prefix}:{QUEUE}:stalled-check")
        self.peer.request("call", handle=self._worker, method="moveStalledJobsToWait")

    def pause(self) -> None:
        """See :class:`Side`."""
        self._queue("pause")

    def resume(self) -> None:
        """See :class:`Side`."""
        self._queue("resume")

    def set_concurrency(self, limit: int | None) -> None:
        """See :class:`Side`."""
        if limit is None:
            self._queue("removeGlobalConcurrency")
        else:
            self._queue("setGlobalConcurrency", limit)

    def set_rate(self, limit: int | None, milliseconds: int) -> None:
        """See :class:`Side`."""
        if limit is None:
            self._queue("removeGlobalRateLimit")
        else:
            self._queue("setGlobalRateLimit", limit, milliseconds)

    def _job(self, id: str, method: str, *args: Any) -> bool:
        try:
            self._queue.job(id, method, *args)
        except PeerError:
            return False
        return True

    def remove(self, id: str) -> bool:
        """See :class:`Side`."""
        return self._job(id, "remove")

    def retry(self, id: str) -> bool:
        """See :class:`Side`."""
        return self._job(id, "retry", "failed", {"resetAttemptsMade": True, "resetAttemptsStarted": True})

    def promote(self, id: str) -> bool:
        """See :class:`Side`."""
        return self._job(id, "promote")

    def change_delay(self, id: str, milliseconds: int) -> bool:
        """See :class:`Side`."""
        return self._job(id, "changeDelay", milliseconds)

    def update_data(self, id: str, data: Any) -> bool:
        """See :class:`Side`."""
        return self._job(id, "updateData", data)


def remove_keys(client: redis.Redis, *sides: Side) -> None:
    """Remove all that sides have left, so that the store does not grow with each example."""
    for side in sides:
        if keys := list(client.scan_iter(f"{side.prefix}:*", count=1000)):
            client.unlink(*keys)


def lose_lock(client: redis.Redis, side: Side, id: str) -> None:
    """Let a lock run out, as it does when nobody extends it."""
    client.delete(f"{side.prefix}:{QUEUE}:{id}:lock")


def expire_rate_window(client: redis.Redis, side: Side) -> None:
    """Let the limiter's window be over."""
    client.delete(f"{side.prefix}:{QUEUE}:limiter")
